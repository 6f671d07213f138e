package hrpc

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/sasl/oauthbearer"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// BearerOffer lets users in who show a token of theirs (usertoken), within TLS.
func BearerOffer(v *usertoken.Verifier) Offer {
	return Offer{Method: sasl.Bearer, Mechanism: oauthbearer.Name, TLS: true, New: func(*security.Peer) (sasl.Mechanism, error) {
		return oauthbearer.NewAcceptor(v), nil
	}}
}

// lasting is a mechanism whose proof may cease to be good while the connection is open.
type lasting interface {
	Claims() *usertoken.Claims
	Good() error
}

// within reports whether a connection is plain and does not leave this machine.
func within(c net.Conn) bool {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	local, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	return err == nil && err2 == nil && !withinTLS(c) && security.Here(remote.Addr().Unmap(), local.Addr().Unmap())
}

// proveBearer shows a token of a user to the server that was connected to, by TLS. The first message is all that there is to say, so
// nothing is negotiated.
func (c *Client) proveBearer(token string, f *frames) error {
	if !withinTLS(c.conn) {
		return fmt.Errorf("%s was connected to in plain: the user token is not sent there", c.addr)
	}
	_ = c.conn.SetDeadline(time.Now().Add(c.config.CallTimeout))
	hello := append([]byte(magic), version, 0, authSASL)
	err := c.tell(hello, &hadooppb.RpcSaslProto{
		State: hadooppb.RpcSaslProto_INITIATE.Enum(), Token: oauthbearer.Initial("", token),
		Auths: []*hadooppb.RpcSaslProto_SaslAuth{{Method: new(sasl.Bearer), Mechanism: new(oauthbearer.Name)}},
	})
	if err != nil {
		return err
	}
	known := false
	m, err := c.hear(f, &known)
	if err != nil {
		return err
	}
	if m.GetState() != hadooppb.RpcSaslProto_SUCCESS {
		return fmt.Errorf("%w: state %v of the server after a user token", sasl.ErrMessage, m.GetState())
	}
	return c.conn.SetDeadline(time.Time{})
}
