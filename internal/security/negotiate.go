package security

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/gohops/hops/metadata"
)

// Users of Kerberos show who they are by a ticket in the header Authorization (SPNEGO, RFC 4559): Negotiate TOKEN. Each request
// shows one of its own: no cookie stands for it, which a page of another site could send, and nothing is remembered but that the
// ticket's proof was used. A request that shows nothing, where the door asks who it is, is told to.

// Negotiator takes tickets in requests.
type Negotiator interface {
	// Negotiate takes the token of a request; user is the short name of whose it is, and reply proves this server to them.
	Negotiate(token []byte) (user string, reply []byte, err error)
}

// negotiateScheme of Authorization, in small letters: its case does not matter (RFC 9110, 11.1).
const negotiateScheme = "negotiate"

// negotiation is what is known of a request where tickets are taken.
type negotiation struct {
	user   string      // who has shown a ticket; empty: nobody
	answer http.Header // of the request
}

type negotiationKey struct{}

// negotiates looks at the tickets of requests before next sees them.
func (d *Door) negotiates(next http.Handler) http.Handler {
	if d.config.Negotiator == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := &negotiation{answer: w.Header()}
		token, ok, err := negotiateToken(r)
		if ok && err == nil {
			var reply []byte
			if n.user, reply, err = d.config.Negotiator.Negotiate(token); err == nil {
				err = checkName(n.user)
			}
			if err == nil && len(reply) > 0 {
				w.Header().Set("WWW-Authenticate", "Negotiate "+base64.StdEncoding.EncodeToString(reply))
			}
		}
		if err != nil {
			d.refuseTicket(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), negotiationKey{}, n)))
	})
}

// negotiateToken finds the token of a request; ok is false when it has none.
func negotiateToken(r *http.Request) (token []byte, ok bool, err error) {
	values := r.Header.Values("Authorization")
	for _, v := range values {
		scheme, rest, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, negotiateScheme) {
			continue
		}
		if len(values) > 1 {
			return nil, true, metadata.Errorf(metadata.ErrUnauthorized, "the request has Authorization more than once")
		}
		if token, err = base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err != nil {
			err = metadata.Errorf(metadata.ErrUnauthorized, "the token of Authorization: Negotiate is not in base64, or was cut off")
		}
		return token, true, err
	}
	return nil, false, nil
}

// refuseTicket answers 401, and asks for a ticket.
func (d *Door) refuseTicket(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("WWW-Authenticate", "Negotiate")
	d.refuseProof(w, r, "ticket", "org.apache.hadoop.security.authentication.client.AuthenticationException", err)
}

// ticketCaller answers who acts in a request with a ticket, which says it is from name and for as, both of which may be empty. ok is
// false when the ticket does not decide: there is none, and a name is claimed, for which the connection's owner may do. Errors are
// of kind metadata.ErrUnauthorized.
func (d *Door) ticketCaller(r *http.Request, name, as string) (c metadata.Caller, ok bool, err error) {
	n, taken := r.Context().Value(negotiationKey{}).(*negotiation)
	switch {
	case !taken:
		return c, false, nil
	case n.user == "" && (name == "" || name == DrWho):
		return c, true, d.challenge(r, metadata.Errorf(metadata.ErrUnauthorized, "the request shows no ticket of Kerberos: kinit, then ask again with it (curl --negotiate -u :)"))
	case n.user == "":
		return c, false, nil
	case name != "" && shortName(name) != n.user:
		return c, true, metadata.Errorf(metadata.ErrUnauthorized, "the ticket is of user %s, and user.name says %.*q; to act for somebody else say doas", n.user, MaxUserName, name)
	}
	peer := &Peer{}
	if addr, err := tcpAddr(r.RemoteAddr); err == nil {
		peer.Remote = addr
	}
	if as == "" {
		c, err = d.Authenticated(peer, n.user, "")
	} else {
		c, err = d.Proxied(peer, n.user, shortName(as))
	}
	return c, true, err
}

// challenge says that a request is refused because it shows no ticket, where one would help.
func (d *Door) challenge(r *http.Request, err error) error {
	if n, ok := r.Context().Value(negotiationKey{}).(*negotiation); ok && n.user == "" {
		n.answer.Set("WWW-Authenticate", "Negotiate")
	}
	return err
}

// ByTicket reports whether the user of a request has shown a ticket.
func ByTicket(r *http.Request) bool {
	n, ok := r.Context().Value(negotiationKey{}).(*negotiation)
	return ok && n.user != ""
}

// Challenged reports whether an answer asks for a ticket, so that its status has to be 401.
func Challenged(answer http.Header) bool { return answer.Get("WWW-Authenticate") == "Negotiate" }
