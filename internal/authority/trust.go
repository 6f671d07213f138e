package authority

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Why a certificate is refused. Their texts tell both ends what to do.
var (
	// ErrForeign: no authority of the cluster signed it.
	ErrForeign = errors.New("the certificate is not of this cluster")
	// ErrTime: it is over, or has not begun, or one of the clocks is wrong.
	ErrTime = errors.New("the certificate is not valid now")
	// ErrRevoked: its machine was removed from the cluster.
	ErrRevoked = errors.New("the machine was removed from the cluster")
	// ErrWithdrawn: it is a user's, and was revoked.
	ErrWithdrawn = errors.New("the certificate was revoked")
	// ErrRole: its machine has not the role that the connection is for.
	ErrRole = errors.New("the certificate does not allow that role")
)

// Trust is what a member knows of the others: which authorities are good, two while one follows the other, and which
// machines are gone. It does not change: a newer one takes its place.
type Trust struct {
	// Cluster is the cluster's id.
	Cluster string
	Roots   []*x509.Certificate
	// Links lead from earlier authorities to these: members show them to who knows an earlier one (Authority.Vouch), and do not
	// believe them themselves.
	Links []*x509.Certificate
	// Removed are the machines that were removed, each with the newest generation that is void.
	Removed map[string]uint64
	// Revoked are the ids of certificates of users that are good no more.
	Revoked []string
	// File is where the roots were read from, if others keep it up to date: a visitor looks there each time.
	File string
}

// MarshalRoots writes roots in PEM.
func MarshalRoots(roots []*x509.Certificate) []byte {
	var out []byte
	for _, r := range roots {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Raw})...)
	}
	return out
}

// maxRoots of a bundle.
const maxRoots = 16

// ParseRoots reads certificates of authorities in PEM, and takes nothing else: half a file is an error, and so is a link, which is
// nobody's to trust.
func ParseRoots(text []byte) ([]*x509.Certificate, error) {
	roots, links, err := parseAuthorities(text)
	if err == nil && len(links) > 0 {
		err = errors.New("a certificate that one authority issued to another stands among those of authorities")
	}
	if err != nil {
		return nil, err
	}
	return roots, nil
}

// parseAuthorities reads certificates of authorities, and those by which one vouches for the next.
func parseAuthorities(text []byte) (roots, links []*x509.Certificate, err error) {
	all, err := parseBundle(text)
	for _, c := range all {
		if c.CheckSignatureFrom(c) == nil {
			roots = append(roots, c)
		} else {
			links = append(links, c)
		}
	}
	if err == nil && len(roots) == 0 {
		err = errors.New("there is no authority's certificate")
	}
	return roots, links, err
}

func parseBundle(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a %s stands among the certificates of authorities", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out)+1, err)
		}
		if _, err := clusterOf(c); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out)+1, err)
		}
		if out = append(out, c); len(out) > maxRoots {
			return nil, fmt.Errorf("more than %d authorities", maxRoots)
		}
		text = rest
	}
	if len(out) == 0 || len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("the authorities' certificates are cut off, or something else stands behind them")
	}
	return out, nil
}

// TrustFile reads what a container is told of its cluster: the authorities' certificates.
func TrustFile(path string) (*Trust, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots, err := ParseRoots(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t, err := (&Identity{Roots: roots}).Trust()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.File = path
	return t, nil
}

// Verify says who a certificate speaks of: one of the cluster's authorities signed it, it is valid now, and its machine was not
// removed, or itself revoked. Errors are ErrForeign, ErrTime, ErrRevoked and ErrWithdrawn.
func (t *Trust) Verify(leaf *x509.Certificate, now time.Time) (*Name, error) {
	// The signature first, whatever the time is: of a stranger's certificate nothing is to be believed.
	if !t.signed(leaf) {
		return nil, fmt.Errorf("%w: it is signed by %q", ErrForeign, leaf.Issuer.CommonName)
	}
	n, err := parseName(leaf.URIs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if n.Cluster != t.Cluster {
		return nil, fmt.Errorf("%w: it is of cluster %s, this is %s", ErrForeign, n.Cluster, t.Cluster)
	}
	if early := leaf.NotBefore.Sub(now); early > 0 {
		return nil, fmt.Errorf("%w: that of %s begins %v after this machine's time, so that one of the two clocks is wrong: set both by NTP",
			ErrTime, n, early.Round(time.Second))
	}
	if late := now.Sub(leaf.NotAfter); late > 0 {
		return nil, fmt.Errorf("%w: that of %s ended %v ago by this machine's clock (%s): if the clock is right, let the machine join again",
			ErrTime, n, late.Round(time.Second), now.UTC().Format(time.RFC3339))
	}
	if gone, ok := t.Removed[n.Machine]; ok && n.Machine != "" && n.Generation <= gone {
		return nil, fmt.Errorf("%w: %s; to take it in again, give it a new token and let it join", ErrRevoked, n)
	}
	if n.ID != "" && slices.Contains(t.Revoked, n.ID) {
		return nil, fmt.Errorf("%w: %s of %s; ask for another one: hops user certificate", ErrWithdrawn, n.ID, n)
	}
	return n, nil
}

// signed reports whether one of the roots signed a certificate of a member.
func (t *Trust) signed(leaf *x509.Certificate) bool {
	if leaf.IsCA || len(leaf.UnhandledCriticalExtensions) > 0 || leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return false
	}
	for _, r := range t.Roots {
		if leaf.CheckSignatureFrom(r) == nil && !leaf.NotAfter.After(r.NotAfter) {
			return true
		}
	}
	return false
}
