package authority

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"time"
)

// Pinned is the key and the certificate of a server that is no machine of the cluster, such as the master of an application:
// it makes them itself, in its memory, for as long as it lives. The certificate says nothing about it. Who connects has learned
// over another way, which is safe, that the server is who has exactly this one.
type Pinned struct {
	own  tls.Certificate
	leaf *x509.Certificate
}

// forever is the end of a certificate that has none (RFC 5280, 4.1.2.5).
var forever = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// NewPinned draws a key and signs a certificate with it.
func NewPinned(now time.Time) (*Pinned, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "hops application"}, NotBefore: now.Add(-backdated), NotAfter: forever,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Pinned{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, leaf}, nil
}

// DER is the certificate.
func (p *Pinned) DER() []byte { return p.leaf.Raw }

// Fingerprint is by what it is known.
func (p *Pinned) Fingerprint() Fingerprint { return FingerprintOf(p.leaf) }

// Accept runs the server's side of a connection with TLS 1.3. Who connects shows no certificate. It ends with ctx, and after
// 5 s. When it fails, c is closed.
func (p *Pinned) Accept(ctx context.Context, c net.Conn) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	b := &batch{Conn: c}
	t := tls.Server(b, &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true, Certificates: []tls.Certificate{p.own},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return &Conn{Conn: t, socket: b}, nil
}

// ErrPin: the other end has another certificate than the one that is expected.
var ErrPin = errors.New("the other end shows another certificate than the one that was registered: it is somebody else")

// ConnectPinned runs the dialer's side of a connection to the server whose certificate has a fingerprint. It ends with ctx, and
// after 10 s. When it fails, c is closed.
func ConnectPinned(ctx context.Context, c net.Conn, pin Fingerprint) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	b := &batch{Conn: c}
	t := tls.Client(b, &tls.Config{
		MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true,
		// The certificate itself is known: there is nobody who vouches for it, and it names nobody.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if FingerprintOf(s.PeerCertificates[0]) != pin { // a server shows one, or there is no TLS
				return ErrPin
			}
			return nil
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return &Conn{Conn: t, socket: b}, nil
}
