// Package oauthbearer is the SASL mechanism OAUTHBEARER (RFC 7628): the initiator sends a token of the user (usertoken) in one message,
// and that is all. The token can be read in that message, so the connection must be TLS before it.
//
// A token that is not good ends the exchange with an error, whose words the protocol around it carries, in place of the
// failure message of RFC 7628, 3.2.2, and the dummy answer to it.
package oauthbearer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security/usertoken"
)

// Name is the mechanism's (RFC 7628, 5.1).
const Name = "OAUTHBEARER"

// maxMessage is the size of the largest message, in bytes: a token and the names around it.
const maxMessage = usertoken.MaxToken + 1<<10

// separator of the parts of a message (kvsep).
const separator = "\x01"

// Initial is the initiator's one message: user is who it asks to be, empty for the token's.
func Initial(user, token string) []byte {
	as := ""
	if user != "" {
		as = "a=" + strings.NewReplacer("=", "=3D", ",", "=2C").Replace(user)
	}
	return []byte("n," + as + "," + separator + "auth=Bearer " + token + separator + separator)
}

// parse reads what Initial made. Nothing but the user and the token may matter; host and port (RFC 7628, 3.1) do not, as TLS says
// which server it is.
func parse(message []byte) (user, token string, err error) {
	if len(message) > maxMessage {
		return "", "", fmt.Errorf("a message of %d bytes, %d are allowed", len(message), maxMessage)
	}
	header, rest, ok := strings.Cut(string(message), separator)
	flag, as, ok2 := strings.Cut(header, ",")
	if !ok || !ok2 || flag != "n" || !strings.HasSuffix(as, ",") || strings.Count(as, ",") != 1 {
		return "", "", errors.New("the message does not begin as one without channel binding (n,,)")
	}
	if as = strings.TrimSuffix(as, ","); as != "" {
		if user, ok = strings.CutPrefix(as, "a="); !ok || user == "" {
			return "", "", errors.New("the message does not say whom it is for as a=NAME")
		}
		if user, err = unescape(user); err != nil {
			return "", "", err
		}
	}
	pairs, ok := strings.CutSuffix(rest, separator+separator)
	if !ok {
		return "", "", errors.New("the message is cut off")
	}
	found := false
	for pair := range strings.SplitSeq(pairs, separator) {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || name == "":
			return "", "", errors.New("the message has a part that is no name=value")
		case name != "auth":
		case found:
			return "", "", errors.New("the message has auth twice")
		default:
			found = true
			scheme, rest, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return "", "", errors.New("auth is not of the scheme Bearer")
			}
			token = strings.TrimSpace(rest)
		}
	}
	if token == "" {
		return "", "", errors.New("the message has no token")
	}
	return user, token, nil
}

// unescape reads a saslname (RFC 5801, 4).
func unescape(name string) (string, error) {
	plain := strings.NewReplacer("=2C", ",", "=3D", "=").Replace(name)
	if strings.NewReplacer("=", "=3D", ",", "=2C").Replace(plain) != name {
		return "", errors.New("the name in the message is not escaped as it must be")
	}
	return plain, nil
}

// Acceptor is the server's side of one exchange. It implements sasl.Mechanism.
type Acceptor struct {
	verifier *usertoken.Verifier
	claims   *usertoken.Claims
}

var _ sasl.Mechanism = (*Acceptor)(nil)

// NewAcceptor makes the side of a server on a connection that is TLS or does not leave the machine; on another one it must not be
// offered. A nil verifier refuses every token.
func NewAcceptor(v *usertoken.Verifier) *Acceptor { return &Acceptor{verifier: v} }

// Step implements sasl.Mechanism. Errors say in one line what is wrong with the token.
func (a *Acceptor) Step(message []byte) (reply []byte, done bool, err error) {
	if a.claims != nil {
		return nil, false, errors.New(Name + ": the exchange is over")
	}
	user, token, err := parse(message)
	if err != nil {
		return nil, false, fmt.Errorf(Name+": %w", err)
	}
	if a.verifier == nil {
		return nil, false, errors.New(Name + ": this server takes no user tokens")
	}
	c, err := a.verifier.Verify(token)
	if err != nil {
		return nil, false, err
	}
	if user != "" && user != c.User {
		return nil, false, fmt.Errorf("the token is of user %s, not of %.*q", c.User, usertoken.MaxName, user)
	}
	a.claims = c
	return nil, true, nil
}

// Identity implements sasl.Mechanism.
func (a *Acceptor) Identity() sasl.Identity {
	if a.claims == nil {
		return sasl.Identity{}
	}
	return sasl.Identity{Name: a.claims.User, Method: sasl.Bearer}
}

// Layer implements sasl.Mechanism: there is none, the connection is TLS.
func (a *Acceptor) Layer() sasl.Layer { return nil }

// Claims are what the token says, once done; nil before. Who acts then, with which groups, is security.Door.TokenCaller's to say.
func (a *Acceptor) Claims() *usertoken.Claims { return a.claims }

// Good tells whether the token still is, some time after the exchange: it may have expired or been revoked. Errors wrap
// usertoken.ErrRefused.
func (a *Acceptor) Good() error {
	if a.claims == nil {
		return errors.New(Name + ": nobody has shown a token")
	}
	return a.verifier.Good(a.claims)
}
