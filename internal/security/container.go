package security

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
)

// A container on another machine than the resource manager's signs what it asks that, with a key that follows from its token
// (ManagerRequests). On the same machine the owner of the connection counts, as ever.

// ContainerOf is what a container's request is checked by: the token and the user of a container that runs; ok is false when there is none
// of that name.
type ContainerOf func(container string) (token, user string, ok bool)

// Containers lets the signed requests of containers in. It is safe for concurrent use; the zero value is ready.
type Containers struct {
	// Another says whether a host:port is the address of another server that knows the containers, for which a request is not good here; nil:
	// none is. A request that is signed for an address of nobody's, such as a proxy's, is taken once by each of them.
	Another func(host string) bool

	mu         sync.Mutex
	admissions map[string]*Admission // of containers that asked since swept
	swept      time.Time
}

// maxSignedBody bounds the body of a signed request, in bytes: all of it is covered.
const maxSignedBody = 2 << 20

// Caller is the user of the container that has signed a request, and its name; an empty name means that nobody did. It is never a superuser: that
// needs more than a job. Errors are of kind metadata.ErrUnauthorized.
func (c *Containers) Caller(d *Door, r *http.Request, find ContainerOf) (caller metadata.Caller, container string, err error) {
	s, ok := ParseSignature(r)
	if !ok {
		return metadata.Caller{}, "", nil
	}
	defer func() {
		if err != nil {
			d.RefuseRequest(r, s.Container, err)
		}
	}()
	token, user, ok := find(s.Container)
	if !ok || !NewRequestKey(token, ManagerRequests).Signed(r, r.Host, s) || c.Another != nil && c.Another(r.Host) {
		return metadata.Caller{}, s.Container, metadata.Errorf(metadata.ErrUnauthorized, "the request is not signed by a container that runs, for %s", printable(r.Host))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxSignedBody+1))
	if err != nil {
		return metadata.Caller{}, s.Container, metadata.Errorf(metadata.ErrUnauthorized, "the body of a signed request: %v", err)
	}
	if len(body) > maxSignedBody || BodySum(body) != s.Body {
		return metadata.Caller{}, s.Container, metadata.Errorf(metadata.ErrUnauthorized, "the body is not the one that container %s has signed", s.Container)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	name, as, err := claims(r)
	if err == nil && (as != "" || name != "" && name != user) {
		err = metadata.Errorf(metadata.ErrUnauthorized, "container %s is of user %s, and acts for nobody else", s.Container, user)
	}
	if err == nil {
		if e := c.admit(s.Container, s.Number, time.Now()); e != nil {
			err = metadata.Errorf(metadata.ErrUnauthorized, "%v", e)
		}
	}
	if err != nil {
		return metadata.Caller{}, s.Container, err
	}
	if caller, err = d.AuthenticatedRequest(r, user, ""); err != nil {
		return metadata.Caller{}, s.Container, err
	}
	caller.Superuser = false
	return caller, s.Container, nil
}

// admit admits a number of a container. Those that have not asked for so long that no number of theirs is taken any more are forgotten, in the same
// step: none of which a number is being admitted.
func (c *Containers) admit(container string, number int64, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.swept) > 2*MaxSkew {
		for name, a := range c.admissions {
			if a.idle(now) {
				delete(c.admissions, name)
			}
		}
		c.swept = now
	}
	a := c.admissions[container]
	if a == nil {
		if c.admissions == nil {
			c.admissions = map[string]*Admission{}
		}
		a = new(Admission)
		c.admissions[container] = a
	}
	return a.Admit(number, now)
}

// idle reports whether every number that was let in is too old to be let in again.
func (a *Admission) idle(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.seen) == 0 || now.Sub(time.Unix(0, a.seen[len(a.seen)-1])) > MaxSkew
}

// Signing is of an HTTP client in a container: requests that go to other machines are signed with its token, each for the server that it
// is for, also after a redirect; none other is.
type Signing struct {
	Container, Token string
	Next             http.RoundTripper
	// Here says whether a server is on this machine; nil: asked of the kernel. Tests set it.
	Here func(addr string) bool

	numbers Numbers
}

// RoundTrip implements http.RoundTripper.
func (s *Signing) RoundTrip(r *http.Request) (*http.Response, error) {
	here := s.Here
	if here == nil {
		here = reachedHere
	}
	if here(r.URL.Host) {
		return s.Next.RoundTrip(r)
	}
	var body []byte
	if r.Body != nil && r.Body != http.NoBody {
		if r.GetBody == nil {
			r.Body.Close()
			return nil, errors.New("a request whose body is a stream cannot be signed")
		}
		b, err := r.GetBody()
		if err == nil {
			body, err = io.ReadAll(b)
		}
		if err != nil {
			r.Body.Close()
			return nil, err
		}
	}
	r = r.Clone(r.Context())
	NewRequestKey(s.Token, ManagerRequests).Sign(r, Signature{Container: s.Container, Number: s.numbers.Next(), Body: BodySum(body)})
	return s.Next.RoundTrip(r)
}

// CloseIdleConnections has http.Client close those of Next.
func (s *Signing) CloseIdleConnections() {
	if c, ok := s.Next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// reachedHere asks the kernel for the addresses that a connection would have; nothing is sent.
func reachedHere(addr string) bool {
	if !strings.Contains(addr, ":") {
		addr = net.JoinHostPort(addr, "80")
	}
	ctx, cancel := context.WithTimeout(context.Background(), connecting)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	remote, err1 := netip.ParseAddrPort(c.RemoteAddr().String())
	local, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	return err1 == nil && err2 == nil && Here(remote.Addr().Unmap().WithZone(""), local.Addr().Unmap().WithZone(""))
}
