package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
)

// A user shows who they are by a token (usertoken) in the header Authorization (RFC 6750): Bearer TOKEN. A token counts more than
// who owns the connection, and a request whose token is not good is refused whatever else it has, before a handler sees it.

// Users checks the tokens of users; nil: this process takes none.
func (d *Door) Users() *usertoken.Verifier { return d.config.Users }

// bearerScheme of Authorization. The scheme's case does not matter (RFC 9110, 11.1).
const bearerScheme = "bearer"

// bearerOf finds the token of a request; ok is false when it has none.
func bearerOf(r *http.Request) (token string, ok bool, err error) {
	values := r.Header.Values("Authorization")
	for _, v := range values {
		scheme, rest, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, bearerScheme) {
			continue
		}
		if len(values) > 1 {
			return "", true, errors.New("the request has Authorization more than once")
		}
		return strings.TrimSpace(rest), true, nil
	}
	return "", false, nil
}

// safe refuses a token that came where others could read it.
func (d *Door) safe(r *http.Request) error {
	if r.TLS != nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if p, _ := d.peerOfRequest(r); p != nil {
		if p.secure || p.from == here {
			return nil
		}
	} else if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("the user token came in plain from %s, where others can read it: it must be taken for lost. Revoke it (`hops user revoke ID`) and use https", host)
}

type claimsKey struct{}

// tokenOf is what the token of a request says; nil when the request has none. Errors are of kind metadata.ErrUnauthorized.
func (d *Door) tokenOf(r *http.Request) (*usertoken.Claims, error) {
	if c := TokenOf(r); c != nil {
		return c, nil
	}
	token, ok, err := bearerOf(r)
	if !ok {
		return nil, nil
	}
	var c *usertoken.Claims
	if err == nil {
		err = d.safe(r)
	}
	if err == nil && d.config.Users == nil {
		err = errors.New("this server takes no user tokens; an application is reached through the resource manager's /proxy")
	}
	if err == nil {
		c, err = d.config.Users.Verify(token)
	}
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrUnauthorized, "%v", err)
	}
	return c, nil
}

// bearers checks the tokens of requests before next sees them, but for those that are own, of which it makes sure only that nobody else could
// read them.
func (d *Door) bearers(next http.Handler, own func(r *http.Request, token string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok, err := bearerOf(r); ok && err == nil && own != nil && d.safe(r) == nil && own(r, token) {
			next.ServeHTTP(w, r)
			return
		}
		c, err := d.tokenOf(r)
		if err != nil {
			d.refuseToken(w, r, err)
			return
		}
		if c != nil {
			r = r.WithContext(context.WithValue(r.Context(), claimsKey{}, c))
		}
		next.ServeHTTP(w, r)
	})
}

// refuseToken answers 401 with the reason in the header, too (RFC 6750).
func (d *Door) refuseToken(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer error=%q, error_description=%q", "invalid_token", plainText(err.Error())))
	d.refuseProof(w, r, "token", "org.apache.hadoop.security.AccessControlException", err)
}

// refuseProof answers 401 to a request whose proof is not good, in every dialect that is spoken here: the body is a problem
// (RFC 9457) as well as Hadoop's RemoteException of a class.
func (d *Door) refuseProof(w http.ResponseWriter, r *http.Request, proof, class string, err error) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	d.Record(Decision{Caller: metadata.Caller{Host: host}, Port: "door", Command: proof, Source: r.Method, Target: r.URL.Path, Reason: err.Error()})
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	if strings.HasPrefix(r.URL.Path, "/webhdfs/") || strings.HasPrefix(r.URL.Path, "/ws/") {
		h.Set("Content-Type", "application/json") // the only one that Hadoop's client reads
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusUnauthorized)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(map[string]any{ // fails only when the client is gone
		"type": "about:blank", "title": "Unauthorized", "status": http.StatusUnauthorized, "detail": err.Error(),
		"RemoteException": map[string]string{"exception": class[strings.LastIndexByte(class, '.')+1:], "javaClassName": class, "message": err.Error()},
	})
}

// plainText is what may stand in a quoted string of a header.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\':
			return '\''
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, text)
}

// TokenCaller answers who acts when a token's user does, from a host, and calls themselves as: empty or the user's own name, or
// somebody else, for whom the user needs a proxy rule. Errors are of kind metadata.ErrUnauthorized.
func (d *Door) TokenCaller(c *usertoken.Claims, host, as string) (metadata.Caller, error) {
	if as == "" || as == c.User {
		caller := d.Caller(c.User)
		if c.Groups != nil {
			caller.Groups = slices.Clone(c.Groups)
			caller.Superuser = c.User == d.daemon || slices.Contains(caller.Groups, d.Supergroup())
		}
		caller.Host = host
		return caller, nil
	}
	if err := checkName(as); err != nil {
		return metadata.Caller{}, err
	}
	caller := d.Caller(shortName(as))
	caller.Host = host
	if !d.mayProxy(c.User, caller) {
		err := metadata.Errorf(metadata.ErrUnauthorized, "User: %s is not allowed to impersonate %s", c.User, caller.User)
		d.Record(Decision{Caller: metadata.Caller{User: caller.User, RealUser: c.User, Host: host}, Port: "door", Command: "claim", Reason: err.Error()})
		return metadata.Caller{}, err
	}
	caller.RealUser = c.User
	return caller, nil
}

// TokenPeer is TokenCaller for the far end of a connection.
func (d *Door) TokenPeer(c *usertoken.Claims, p *Peer, as string) (metadata.Caller, error) {
	return d.TokenCaller(c, hostOf(p), as)
}

// bearerCaller is TokenCaller for a request that names its user and for whom they act as HTTP requests do.
func (d *Door) bearerCaller(r *http.Request, c *usertoken.Claims, name, as string) (metadata.Caller, error) {
	if name != "" && name != c.User {
		return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "the token is of user %s, and user.name says %s; to act for somebody else say doas", c.User, printable(name))
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return d.TokenCaller(c, host, as)
}

// printable bounds what somebody else wrote into a message.
func printable(text string) string { return fmt.Sprintf("%.*q", MaxUserName, text) }

// ProvedBy says how the user of a request has shown who they are: "token"; "ticket" of Kerberos; "certificate", of a user; "server" for a name that
// another server of the cluster gives; "socket" for who owns a connection within this machine; "nothing" for a name that is merely believed, as in a trusted network.
func (d *Door) ProvedBy(r *http.Request) string {
	switch {
	case TokenOf(r) != nil:
		return "token"
	case ByTicket(r):
		return "ticket"
	}
	switch p, err := d.peerOfRequest(r); {
	case err != nil:
		return "nothing"
	case p.server():
		return "server"
	case p.name != nil:
		return "certificate"
	case p.from == here:
		return "socket"
	}
	return "nothing"
}

// ServerOf is the server of the cluster that a request comes from; nil: it comes from none that has shown its certificate.
func (d *Door) ServerOf(r *http.Request) *authority.Name {
	if p, _ := d.peerOfRequest(r); p != nil && p.server() {
		return p.name
	}
	return nil
}

// TokenOf is what the token says that a request came with through a door; nil: it had none.
func TokenOf(r *http.Request) *usertoken.Claims {
	c, _ := r.Context().Value(claimsKey{}).(*usertoken.Claims)
	return c
}
