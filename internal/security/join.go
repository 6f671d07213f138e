package security

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gohops/hops/internal/authority"
)

// Joiner is the connection of a machine that has no certificate yet to a namenode, which has shown one.
type Joiner struct {
	*grpc.ClientConn
	// Authority is the root by which the namenode is known.
	Authority *x509.Certificate
	// Bound is keying material of the connection (RFC 9266), to which a proof is bound.
	Bound []byte
}

// DialToJoin connects to a namenode which the authority that a token names has certified. Errors for which ErrProof stands: it is not
// the cluster that the token is of, or its certificate is not valid by this machine's clock.
func DialToJoin(ctx context.Context, addr string, root authority.Fingerprint) (*Joiner, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	visitor := authority.Visitor{Authority: root, Now: time.Now}
	c, shown, err := visitor.Connect(ctx, raw, authority.Door{Roles: []authority.Role{authority.Namenode}, Protocols: protocols}, func(c *tls.Conn) error {
		_, err := c.Write([]byte{0})
		return err
	})
	if err != nil {
		return nil, proofError(err)
	}
	bound, err := joinBinding(c.Conn)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var once sync.Once
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), // of the connection, which is TLS
		grpc.WithContextDialer(func(context.Context, string) (out net.Conn, err error) {
			err = errors.New("the connection was closed")
			once.Do(func() { out, err = c, nil })
			return out, err
		}))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Joiner{conn, shown, bound}, nil
}

// joinBinding is keying material of the connection of a machine that joins.
func joinBinding(c *tls.Conn) ([]byte, error) {
	state := c.ConnectionState()
	return state.ExportKeyingMaterial("EXPORTER-hops-join", nil, sha256.Size)
}
