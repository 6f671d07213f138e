// Package authority is who the members of a cluster are: a certificate authority of the cluster's own, the certificates that it
// issues to machines and users, the tokens by which machines join, and connections over TLS 1.3 whose ends both show who
// they are. It keeps nothing and asks no clock: who holds an authority says when it is now.
package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

const (
	// RootLife is how long an authority is good for.
	RootLife = 10 * 365 * 24 * time.Hour
	// MachineLife is how long a machine's certificate is good for; it is renewed after two thirds.
	MachineLife = 90 * 24 * time.Hour
	// backdated is how far certificates begin in the past, for machines whose clocks are behind the authority's.
	backdated = time.Hour
	// maxRequest is the size of the largest request for a certificate, in bytes.
	maxRequest = 16 << 10
	// maxAddresses of one certificate.
	maxAddresses = 64
)

// Authority issues certificates. It does not change and is safe for concurrent use.
type Authority struct {
	cluster string
	root    *x509.Certificate
	key     crypto.Signer
}

// New makes the authority of a cluster, with a key that did not exist before.
func New(cluster string, now time.Time) (*Authority, error) {
	if !words.MatchString(cluster) {
		return nil, fmt.Errorf("%q is no id of a cluster", cluster)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "hops authority of " + cluster}, URIs: []*url.URL{{Scheme: scheme, Host: cluster}},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(RootLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{cluster, root, key}, nil
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails (crypto/rand)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

// Marshal is the authority with its key in PEM. Who has it can be anybody in the cluster.
func (a *Authority) Marshal() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

// Parse reads what Marshal wrote.
func Parse(text []byte) (*Authority, error) {
	certificate, rest := pem.Decode(text)
	if certificate == nil || certificate.Type != "CERTIFICATE" {
		return nil, errors.New("the authority begins with no certificate in PEM")
	}
	key, rest := pem.Decode(rest)
	if key == nil || key.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the authority's certificate is not followed by its key, and nothing else")
	}
	root, err := x509.ParseCertificate(certificate.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	cluster, err := clusterOf(root)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the authority's key: %w", err)
	}
	signer, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(root.PublicKey) {
		return nil, errors.New("the key is not that of the authority's certificate")
	}
	return &Authority{cluster, root, signer}, nil
}

// clusterOf an authority is the id of the cluster that it is for.
func clusterOf(root *x509.Certificate) (string, error) {
	if !root.IsCA || len(root.URIs) != 1 || root.URIs[0].Scheme != scheme || !words.MatchString(root.URIs[0].Host) {
		return "", errors.New("the certificate is not that of a cluster's authority")
	}
	return root.URIs[0].Host, nil
}

// Cluster is the id of the cluster whose authority it is.
func (a *Authority) Cluster() string { return a.cluster }

// Root is the certificate that members trust.
func (a *Authority) Root() *x509.Certificate { return a.root }

// Fingerprint is the SHA-256 of a root, by which a machine that joins knows the authority.
type Fingerprint [sha256.Size]byte

// String is the fingerprint in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// MarshalText is String.
func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (f *Fingerprint) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(f)) {
		return errors.New("that is no fingerprint")
	}
	_, err := hex.Decode(f[:], text)
	return err
}

// FingerprintOf a root.
func FingerprintOf(root *x509.Certificate) Fingerprint { return sha256.Sum256(root.Raw) }

// Request asks for a certificate: key's public half, signed by key, and nothing else; the name is what the authority knows it
// to be.
func Request(key crypto.Signer) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

// NewKey draws a key of a machine or user. It never leaves the machine.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// Issue certifies that who signed the request is n, from now on for life, and answers at the addresses, which are names or IP
// addresses. The caller has made sure of both. The certificate is in DER.
func (a *Authority) Issue(request []byte, n Name, addresses []string, now time.Time, life time.Duration) ([]byte, error) {
	if n.Cluster == "" {
		n.Cluster = a.cluster
	}
	if err := n.Validate(); err != nil {
		return nil, err
	}
	if n.Cluster != a.cluster {
		return nil, fmt.Errorf("this is the authority of cluster %s, not of %s", a.cluster, n.Cluster)
	}
	public, err := checkRequest(request)
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate: %w", err)
	}
	end := now.Add(life)
	if end.After(a.root.NotAfter) {
		end = a.root.NotAfter
	}
	if !now.Before(end) {
		return nil, fmt.Errorf("the authority ended at %s: rotate it", a.root.NotAfter.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: n.Machine + n.User}, URIs: n.uris(),
		NotBefore: now.Add(-backdated), NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if n.Machine != "" {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if err := addressesInto(template, addresses); err != nil {
		return nil, err
	}
	return x509.CreateCertificate(rand.Reader, template, a.root, public, a.key)
}

// KeyOf is the fingerprint of the key that a request is for; nothing else of it is looked at.
func KeyOf(request []byte) (Fingerprint, error) {
	if len(request) > maxRequest {
		return Fingerprint{}, fmt.Errorf("%d bytes, %d are allowed", len(request), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return Fingerprint{}, err
	}
	return sha256.Sum256(r.RawSubjectPublicKeyInfo), nil
}

func checkRequest(der []byte) (crypto.PublicKey, error) {
	if len(der) > maxRequest {
		return nil, fmt.Errorf("%d bytes, %d are allowed", len(der), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	switch k := r.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return nil, fmt.Errorf("a key on the curve %s; P-256, P-384 and Ed25519 are taken", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < 2048 || bits > 8192 {
			return nil, fmt.Errorf("an RSA key of %d bits; 2048 to 8192 are taken", bits)
		}
	default:
		return nil, fmt.Errorf("a key of an unknown kind (%s)", r.PublicKeyAlgorithm)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("it is not signed by its own key: %w", err)
	}
	return r.PublicKey, nil
}

// addressesInto notes where the certificate's owner answers, for clients that look at that (curl, browsers).
func addressesInto(c *x509.Certificate, addresses []string) error {
	if len(addresses) > maxAddresses {
		return fmt.Errorf("%d addresses, %d are allowed", len(addresses), maxAddresses)
	}
	for _, a := range addresses {
		switch ip := net.ParseIP(a); {
		case ip != nil && ip.IsUnspecified():
			return fmt.Errorf("%s is no address that anybody can reach", a)
		case ip != nil:
			c.IPAddresses = append(c.IPAddresses, ip)
		case hostName.MatchString(a) && len(a) <= 253:
			c.DNSNames = append(c.DNSNames, a)
		default:
			return fmt.Errorf("%q is neither an IP address nor the name of a host", a)
		}
	}
	return nil
}
