package hrpc

import (
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
)

// steps is an exchange as that of GSSAPI: the client begins, and says the last word.
type steps struct {
	believer
	expect []string
	say    []string
	at     int
}

func (s *steps) Step(token []byte) ([]byte, bool, error) {
	if s.at >= len(s.expect) || string(token) != s.expect[s.at] {
		return nil, false, errors.New("the exchange went wrong")
	}
	s.principal = "alice@REALM"
	s.at++
	return []byte(s.say[s.at-1]), s.at == len(s.expect), nil
}

// Tickets are shown to a server that takes them, and to no other; they say who the client is.
func TestLogin(t *testing.T) {
	tickets := Offer{Method: sasl.Kerberos, Mechanism: "GSSAPI", Protocol: "nn", ServerID: "host", New: func(*security.Peer) (sasl.Mechanism, error) {
		return &steps{expect: []string{"ticket", "", "layer"}, say: []string{"proof", "layers", ""}}, nil
	}}
	login := func(first string) func(string, string, string, []sasl.Quality) (Initiator, error) {
		return func(_, service, host string, _ []sasl.Quality) (Initiator, error) {
			if service != "nn" || host != "host" {
				return nil, errors.New("Server has invalid Kerberos principal: " + service + "/" + host)
			}
			return &steps{expect: []string{"", "proof", "layers"}, say: []string{first, "", "layer"}}, nil
		}
	}
	other := tickets
	other.Protocol = "other"
	for _, c := range []struct {
		name   string
		offers []Offer
		config DialConfig
		who    string
		words  string
	}{
		{"a ticket", []Offer{tickets}, DialConfig{Login: login("ticket")}, "alice,", ""},
		{"a ticket, where tokens are preferred", []Offer{tokenOffer(), tickets}, DialConfig{Login: login("ticket")}, "alice,", ""},
		{"a ticket, and a name that does not count", []Offer{tickets}, DialConfig{User: "root", Login: login("ticket")}, "alice,", ""},
		{"a ticket of whom no rule lets act for others", []Offer{tickets}, DialConfig{User: "root", RealUser: "alice", Login: login("ticket")}, "", "User: alice is not allowed to impersonate root"},
		{"a token before a ticket", []Offer{tokenOffer(), tickets}, DialConfig{Token: tokenOf("carol", "carolcarol"), Login: login("ticket")}, "carol,oozie", ""},
		{"a server that takes none", []Offer{tokenOffer()}, DialConfig{Login: login("ticket")}, "", "takes no tickets of Kerberos, and this client is configured to show one"},
		{"another service", []Offer{other}, DialConfig{Login: login("ticket")}, "", "Server has invalid Kerberos principal: other/host"},
		{"a ticket that is not good", []Offer{tickets}, DialConfig{Login: login("forged")}, "", "the exchange went wrong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := start(t, newServer(t, ServerConfig{Offers: c.offers, Door: strangers()}))
			who, err := whoAmI(t, addr, c.config)
			if c.words != "" {
				if err == nil || !strings.Contains(err.Error(), c.words) {
					t.Fatalf("%q, %v, want %s", who, err, c.words)
				}
				return
			}
			if err != nil || strings.Join(who, ",") != c.who {
				t.Fatalf("%q, %v, want %s", who, err, c.who)
			}
		})
	}
	// A server without security lets anybody in, and shows nobody who it is.
	addr := start(t, newServer(t, ServerConfig{}))
	if who, err := whoAmI(t, addr, DialConfig{Login: login("ticket")}); err == nil || !strings.Contains(err.Error(), "takes no tickets of Kerberos") {
		t.Errorf("without security: %q, %v", who, err)
	}
}
