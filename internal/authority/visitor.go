package authority

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Visitor is who has no certificate: a machine that joins, or a container. It makes sure of the other end all the same.
type Visitor struct {
	// Trust is what it knows of the cluster; nil: it knows the fingerprint of an authority.
	Trust     *Trust
	Authority Fingerprint
	Now       func() time.Time
}

// Connect connects to a member of the cluster with one of the door's roles. Where the acceptor has a Guest, prove shows it who
// this is, and the verdict is waited for; nil: there is no verdict. It returns the authority that the other end showed. It
// ends with ctx, and after 10 s. When it fails, c is closed.
func (v *Visitor) Connect(ctx context.Context, c net.Conn, d Door, prove func(*tls.Conn) error) (*Conn, *x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	b := &batch{Conn: c}
	name := ""
	if v.Trust == nil {
		name = rootWanted
	}
	t := tls.Client(b, &tls.Config{
		ServerName: name, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, NextProtos: d.Protocols, Time: v.Now,
		// A member is who its certificate says, wherever it answers: verify looks at that before anything is sent.
		InsecureSkipVerify: true,
	})
	root, err := v.handshake(ctx, t, d)
	if err == nil && prove != nil {
		err = within(ctx, t, func() error {
			if err := prove(t); err != nil {
				return err
			}
			_, err := readVerdict(t)
			return err
		})
	}
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return &Conn{Conn: t, socket: b}, root, nil
}

func (v *Visitor) handshake(ctx context.Context, t *tls.Conn, d Door) (*x509.Certificate, error) {
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	shown := t.ConnectionState().PeerCertificates
	trust, root := v.Trust, (*x509.Certificate)(nil)
	if trust == nil {
		for _, c := range shown[1:] {
			if FingerprintOf(c) == v.Authority {
				root = c
			}
		}
		if root == nil {
			return nil, fmt.Errorf("%w: the other end does not show the authority that the token names: either the address is of another cluster, or somebody stands in between", ErrForeign)
		}
		cluster, err := clusterOf(root)
		if err != nil {
			return nil, err
		}
		trust = &Trust{Cluster: cluster, Roots: []*x509.Certificate{root}}
	}
	if trust.File != "" { // one authority may have followed another, and the one before be good no more
		if fresh, err := TrustFile(trust.File); err == nil && fresh.Cluster == trust.Cluster {
			trust = fresh
		}
	}
	n, err := trust.Verify(shown[0], v.Now())
	if errors.Is(err, ErrForeign) && root == nil {
		n, err = trust.through(shown[1:], v.Now()).Verify(shown[0], v.Now())
	}
	if err != nil {
		return nil, err
	}
	return root, d.allows(n)
}
