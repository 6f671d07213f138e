package authority

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Token is what a machine joins with, pasted from the terminal of a machine that is in. It says which authority is the
// right one, so that nobody in between can pose as the cluster, and it is a secret.
type Token struct {
	Authority Fingerprint
	ID        string
	Secret    [16]byte
}

const tokenVersion = "hops1"

// String is the token as it is pasted.
func (t Token) String() string {
	return strings.Join([]string{tokenVersion, t.ID, base64.RawURLEncoding.EncodeToString(append(t.Authority[:], t.Secret[:]...))}, ".")
}

// ParseToken reads a token as it was pasted.
func ParseToken(text string) (Token, error) {
	var t Token
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenVersion || len(parts[1]) == 0 || len(parts[1]) > 32 {
		return t, errors.New("that is no token to join with: it begins with hops1. and has three parts; `hops cluster token` prints one")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(b) != len(t.Authority)+len(t.Secret) {
		return t, errors.New("the token is cut off or was changed on its way: copy it again as a whole")
	}
	t.ID = parts[1]
	copy(t.Authority[:], b)
	copy(t.Secret[:], b[len(t.Authority):])
	return t, nil
}

// Invitation is what the cluster keeps of a token: not its secret.
type Invitation struct {
	ID      string
	Hash    [sha256.Size]byte // of the secret
	Roles   []Role            // that may be asked for
	Expires time.Time
	Uses    int // that are left
}

// ErrToken: a token lets nobody in.
var ErrToken = errors.New("the token is refused")

// NewInvitation draws a token, and what the cluster keeps of it.
func NewInvitation(authority Fingerprint, roles []Role, expires time.Time, uses int) (Token, Invitation) {
	t := Token{Authority: authority}
	rand.Read(t.Secret[:]) // never fails (crypto/rand)
	id := make([]byte, 4)
	rand.Read(id)
	t.ID = hex.EncodeToString(id)
	return t, Invitation{ID: t.ID, Hash: sha256.Sum256(t.Secret[:]), Roles: roles, Expires: expires, Uses: uses}
}

// Admit says whether the token lets a machine with these roles in now. The caller counts the use. Errors are ErrToken, with
// the reason for who knows the secret.
func (i *Invitation) Admit(secret [16]byte, roles []Role, now time.Time) error {
	hash := sha256.Sum256(secret[:])
	if subtle.ConstantTimeCompare(hash[:], i.Hash[:]) != 1 {
		return fmt.Errorf("%w: the cluster does not know it: it was withdrawn, or is of another cluster", ErrToken)
	}
	if !now.Before(i.Expires) {
		return fmt.Errorf("%w: it ended at %s: `hops cluster token` prints a new one", ErrToken, i.Expires.UTC().Format(time.RFC3339))
	}
	if i.Uses <= 0 {
		return fmt.Errorf("%w: it was used as often as it may be: `hops cluster token` prints a new one", ErrToken)
	}
	for _, r := range roles {
		if !slices.Contains(i.Roles, r) {
			return fmt.Errorf("%w: it is for %s, not for %s", ErrToken, join(i.Roles), r)
		}
	}
	return nil
}

// ConnectByToken connects a machine that has no certificate yet to a namenode of the cluster that the token is of, and returns
// the authority that the token names. When it fails, c is closed.
func ConnectByToken(ctx context.Context, c net.Conn, t Token, protocols []string, now func() time.Time) (*tls.Conn, *x509.Certificate, error) {
	var root *x509.Certificate
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, Time: now,
		// The authority's fingerprint is what is known of the other end; VerifyConnection looks at it.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, shown := range s.PeerCertificates[1:] {
				if FingerprintOf(shown) == t.Authority {
					root = shown
				}
			}
			if root == nil {
				return fmt.Errorf("%w: the other end does not show the authority that the token names: either the address is of another cluster, or somebody stands in between", ErrForeign)
			}
			cluster, err := clusterOf(root)
			if err != nil {
				return err
			}
			n, err := (&Trust{Cluster: cluster, Roots: []*x509.Certificate{root}}).Verify(s.PeerCertificates[0], now())
			if err == nil && !n.Has(Namenode) {
				err = fmt.Errorf("%w: %s is no namenode", ErrRole, n)
			}
			return err
		},
	}
	out := tls.Client(c, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := out.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return out, root, nil
}
