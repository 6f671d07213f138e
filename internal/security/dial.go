package security

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/gohops/hops/internal/authority"
)

// ErrNoRoots: a server on another machine cannot be told from somebody else, because the cluster's authority is not known here.
var ErrNoRoots = errors.New("the server is on another machine, and the certificate of the cluster's authority is not known here: " +
	"run `hops login`, or set hops.cluster.roots in core-site.xml to the file that has it")

// connecting is how long an HTTP client waits for a connection, with its handshake.
const connecting = 10 * time.Second

// Dialer makes connections to the cluster's servers: in plain within this machine, where the owner of the socket counts, and
// by TLS to everywhere else. The zero value reaches this machine alone.
type Dialer struct {
	// Member is who connects, and what it trusts; nil: nobody, who trusts Trust.
	Member *authority.Member
	// Trust is what is known of the cluster; nil: nothing, so that only this machine's servers are spoken to.
	Trust *authority.Trust
	// Plain: servers elsewhere are spoken to in plain too, in a network that is trusted (clients.simple).
	Plain bool
	// Here says whether both ends of a connection are on this machine; nil: Here. Tests set it.
	Here func(remote, local netip.Addr) bool
}

// Dial connects to a server that has one of the roles, if any are given.
func (d *Dialer) Dial(ctx context.Context, addr string, roles ...authority.Role) (net.Conn, error) {
	c, err := connect(ctx, "tcp", addr)
	if err != nil || d.plain(c) {
		return c, err
	}
	return d.secure(ctx, c, roles)
}

// plain reports whether nothing more is to be done for a connection.
func (d *Dialer) plain(c net.Conn) bool {
	here := Here
	if d.Here != nil {
		here = d.Here
	}
	return d.Plain || here(addrOf(c.RemoteAddr()), addrOf(c.LocalAddr()))
}

// secure makes TLS of a connection. When it fails, c is closed.
func (d *Dialer) secure(ctx context.Context, c net.Conn, roles []authority.Role) (net.Conn, error) {
	door := authority.Door{Roles: roles, Strangers: true}
	var out *authority.Conn
	var err error
	switch {
	case d.Member != nil:
		out, err = d.Member.Connect(ctx, c, door)
	case d.Trust != nil:
		v := authority.Visitor{Trust: d.Trust, Now: time.Now}
		out, _, err = v.Connect(ctx, c, door, nil)
		err = Remedy(err)
	default:
		err = fmt.Errorf("%w: %s: %w", ErrProof, c.RemoteAddr(), ErrNoRoots)
		c.Close()
	}
	if err != nil {
		return nil, proofError(err) // nil, and no Conn that is nil
	}
	return out, nil
}

// PinnedTransport is of an HTTP client for one request, to the server whose certificate has the fingerprint, and to nobody else:
// no connection is kept, since the next request to the same address may be meant for somebody else there.
func PinnedTransport(pin authority.Fingerprint) *http.Transport {
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connecting)
			defer cancel()
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			t, err := authority.ConnectPinned(ctx, c, pin)
			if err != nil {
				return nil, err // nil, and no Conn that is nil
			}
			return t, nil
		},
		DisableKeepAlives: true, DisableCompression: true,
	}
}

// Remedy adds to an error by which a user's process does not know a server what its user can do.
func Remedy(err error) error {
	if errors.Is(err, authority.ErrForeign) {
		return fmt.Errorf("%w; if the cluster's authority was replaced since you logged in, log in anew: hops login HOST:PORT --fingerprint sha256:… (`hops cluster nodes` prints it to the operator)", err)
	}
	return err
}

// Transport is of an HTTP client that speaks to servers with one of the roles. The URLs are http: whether a connection is TLS
// follows from where the server is; of an https URL it always is.
func (d *Dialer) Transport(roles ...authority.Role) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connecting)
			defer cancel()
			return d.Dial(ctx, addr, roles...)
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connecting)
			defer cancel()
			c, err := connect(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return d.secure(ctx, c, roles)
		},
		IdleConnTimeout: 30 * time.Second,
	}
}
