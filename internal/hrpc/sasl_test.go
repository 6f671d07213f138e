package hrpc

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// tokenOffer takes the tokens of alice, and of carol for whom oozie acts, whose passwords are their names twice.
func tokenOffer(qualities ...sasl.Quality) Offer {
	return Offer{
		Method: sasl.Token, Mechanism: sasl.DigestMD5, Protocol: TokenService, ServerID: TokenServer, First: true,
		New: func(*security.Peer) (sasl.Mechanism, error) {
			return sasl.NewAcceptor(sasl.AcceptorConfig{
				Service: TokenService, Server: TokenServer, Qualities: qualities,
				Lookup: func(name string) (string, sasl.Identity, error) {
					id, err := sasl.DecodeName(name)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					switch who := string(id); who {
					case "alice", "nobody":
						return sasl.EncodePassword([]byte(who + who)), sasl.Identity{Name: who, Method: sasl.Token}, nil
					case "carol":
						return sasl.EncodePassword([]byte(who + who)), sasl.Identity{Name: who, RealUser: "oozie", Method: sasl.Token}, nil
					}
					return "", sasl.Identity{}, metadata.Errorf(metadata.ErrToken, "token of %s is not found in cache", id)
				},
			}), nil
		},
	}
}

// strangers is a door to which loopback is another machine.
func strangers() *security.Door {
	return security.NewDoor(security.Config{
		Here: func(_, _ netip.Addr) bool { return false },
		ProxyUsers: map[string]security.ProxyRule{
			"proxy": {Users: []string{"alice"}, Hosts: []string{"*"}},
		},
	})
}

func tokenOf(who, password string) func(string) (Token, bool) {
	return func(string) (Token, bool) { return Token{[]byte(who), []byte(password)}, true }
}

// whoAmI asks a server who the caller is, in two names.
func whoAmI(t *testing.T, addr string, config DialConfig) ([]string, error) {
	t.Helper()
	config.Protocol, config.DialTimeout = nn, 30*time.Second
	c, err := Dial(t.Context(), addr, config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var answer hadooppb.GetGroupsForUserResponseProto
	err = c.Call(t.Context(), nn, "getGroups", &hadooppb.GetGroupsForUserRequestProto{User: new("x")}, &answer)
	return answer.Groups, err
}

func TestWhoIsLetIn(t *testing.T) {
	for _, c := range []struct {
		name   string
		offers []Offer
		local  bool // the door takes loopback for what it is
		config DialConfig
		who    string // the caller, and who acts for it
		class  string
		words  string
	}{
		{name: "a stranger with a token", offers: []Offer{tokenOffer()}, config: DialConfig{User: "mallory", Token: tokenOf("alice", "alicealice")}, who: "alice,"},
		{name: "a stranger with a token that a proxy got", offers: []Offer{tokenOffer()}, config: DialConfig{Token: tokenOf("carol", "carolcarol")}, who: "carol,oozie"},
		{
			name: "a stranger that only claims a name", offers: []Offer{tokenOffer()}, config: DialConfig{User: "alice"},
			class: classAccessControl, words: "SIMPLE authentication is not enabled.  Available:[TOKEN]",
		},
		{
			name: "a stranger with a forged token", offers: []Offer{tokenOffer()}, config: DialConfig{Token: tokenOf("alice", "guess")},
			class: classSASL, words: "Mismatched response",
		},
		{
			name: "a stranger with a token that was cancelled", offers: []Offer{tokenOffer()}, config: DialConfig{Token: tokenOf("bob", "bobbob")},
			class: classIOException, words: "not found in cache",
		},
		{
			name: "a stranger that takes less protection than is asked for", offers: []Offer{tokenOffer(sasl.Privacy)},
			config: DialConfig{Token: tokenOf("alice", "alicealice"), Qualities: []sasl.Quality{sasl.Authentication}}, words: "quality of protection refused",
		},
		{name: "a stranger at a server that offers nothing", config: DialConfig{Token: tokenOf("alice", "alicealice")}, words: "takes no delegation tokens"},
		{name: "somebody of this machine with a token", local: true, offers: []Offer{tokenOffer()}, config: DialConfig{Token: tokenOf("alice", "alicealice")}, who: "alice,"},
		{name: "somebody of this machine without", local: true, offers: []Offer{tokenOffer()}, config: DialConfig{User: "alice"}, who: "alice,"},
		{name: "integrity", offers: []Offer{tokenOffer(sasl.Integrity)}, config: DialConfig{Token: tokenOf("alice", "alicealice")}, who: "alice,"},
		{name: "privacy", offers: []Offer{tokenOffer(sasl.Authentication, sasl.Privacy)}, config: DialConfig{Token: tokenOf("alice", "alicealice")}, who: "alice,"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := ServerConfig{Offers: c.offers, Exception: notFound, Door: strangers()}
			if c.local {
				config.Door = nil
			}
			who, err := whoAmI(t, start(t, newServer(t, config)), c.config)
			if c.words == "" {
				if err != nil || strings.Join(who, ",") != c.who {
					t.Fatalf("%q, %v, want %s", who, err, c.who)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Fatalf("%q, %v, want %s", who, err, c.words)
			}
			if remote, ok := errors.AsType[*RemoteError](err); c.class != "" && (!ok || remote.Class != c.class) {
				t.Fatalf("%v, want %s", err, c.class)
			}
		})
	}
}

// A protected connection carries what a plain one does: many calls at once, errors, and requests larger than a message.
func TestProtectedCalls(t *testing.T) {
	addr := start(t, newServer(t, ServerConfig{Offers: []Offer{tokenOffer(sasl.Privacy)}, Exception: notFound, Door: strangers()}))
	c, err := Dial(t.Context(), addr, DialConfig{Protocol: nn, Token: tokenOf("alice", "alicealice"), DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	done := make(chan error)
	for i := range 40 {
		go func() {
			path := []string{"/x", "/later", "/" + strings.Repeat("long", 50_000)}[i%3]
			err := c.Call(t.Context(), nn, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &path}, &hadooppb.GetFileInfoResponseProto{})
			if remote, ok := errors.AsType[*RemoteError](err); ok && path == "/x" && remote.Class == "java.io.FileNotFoundException" {
				err = nil
			} else if path == "/x" {
				err = errors.New("no error for a file that is not there")
			}
			done <- err
		}()
	}
	for range 40 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// saslFrame is a message of a client's.
func saslFrame(m *hadooppb.RpcSaslProto) []byte { return frameOf(header(2, 0, callSASL), m) }

// negotiated connects, asks what is offered, and returns the connection and the challenge of TOKEN.
func negotiated(t *testing.T, addr string) (net.Conn, *hadooppb.RpcSaslProto) {
	t.Helper()
	conn := dialRaw(t, addr)
	_, _ = conn.Write(append(unhex(t, "687270630900df"), saslFrame(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_NEGOTIATE.Enum()})...))
	h, body := readFrame(t, conn)
	m := new(hadooppb.RpcSaslProto)
	message, _ := cut(body)
	if err := m.UnmarshalVT(message); err != nil || h.callID != callSASL || m.GetState() != hadooppb.RpcSaslProto_NEGOTIATE {
		t.Fatalf("%+v, %v, %v", h, m, err)
	}
	return conn, m
}

// initiated goes on until the server is content with alice's token, and returns the layer.
func initiated(t *testing.T, conn net.Conn, offered *hadooppb.RpcSaslProto, quality sasl.Quality) sasl.Layer {
	t.Helper()
	i := sasl.NewInitiator(sasl.InitiatorConfig{
		Server: TokenServer, Name: sasl.EncodeName([]byte("alice")), Password: sasl.EncodePassword([]byte("alicealice")), Qualities: []sasl.Quality{quality},
	})
	auth := offered.Auths[0]
	response, _, err := i.Step(auth.Challenge)
	if err != nil {
		t.Fatal(err)
	}
	auth.Challenge = nil
	_, _ = conn.Write(saslFrame(&hadooppb.RpcSaslProto{
		State: hadooppb.RpcSaslProto_INITIATE.Enum(), Auths: []*hadooppb.RpcSaslProto_SaslAuth{auth}, Token: response,
	}))
	h, body := readFrame(t, conn)
	m := new(hadooppb.RpcSaslProto)
	message, _ := cut(body)
	if err := m.UnmarshalVT(message); err != nil || m.GetState() != hadooppb.RpcSaslProto_SUCCESS {
		t.Fatalf("%+v, %v, %v", h, m, err)
	}
	if _, done, err := i.Step(m.GetToken()); !done || err != nil {
		t.Fatalf("%v, %v", done, err)
	}
	return i.Layer()
}

func contextFrame(user string) []byte {
	m := &hadooppb.IpcConnectionContextProto{Protocol: new(nn)}
	if user != "" {
		m.UserInfo = &hadooppb.UserInformationProto{EffectiveUser: &user}
	}
	return frameOf(header(2, 0, callContext), m)
}

// What no client of Hadoop's sends ends the connection, with a word.
func TestForgedExchanges(t *testing.T) {
	state := func(s hadooppb.RpcSaslProto_SaslState, auths ...string) []byte {
		m := &hadooppb.RpcSaslProto{State: s.Enum()}
		for i := 0; i+1 < len(auths); i += 2 {
			m.Auths = append(m.Auths, &hadooppb.RpcSaslProto_SaslAuth{Method: &auths[i], Mechanism: &auths[i+1]})
		}
		return saslFrame(m)
	}
	const initiate, response, negotiate = hadooppb.RpcSaslProto_INITIATE, hadooppb.RpcSaslProto_RESPONSE, hadooppb.RpcSaslProto_NEGOTIATE
	for _, c := range []struct {
		name  string
		send  []byte
		words string
	}{
		{"a context before anything is proved", contextFrame("alice"), "has not proved who it is"},
		{"a call before anything is proved", request(7, 0, nn, "getGroups", &hadooppb.GetGroupsForUserRequestProto{User: new("x")}), "connection context not established"},
		{"SIMPLE after all", state(initiate, sasl.Simple, ""), "SIMPLE authentication is not enabled.  Available:[TOKEN]"},
		{"a method that is not offered", state(initiate, sasl.Kerberos, "GSSAPI"), "KERBEROS authentication is not enabled.  Available:[TOKEN]"},
		{"another mechanism under a method's name", state(initiate, sasl.Token, "PLAIN"), "TOKEN authentication is not enabled"},
		{"two methods at once", state(initiate, sasl.Token, sasl.DigestMD5, sasl.Simple, ""), "Client mechanism is malformed"},
		{"a response to nothing", state(response), "nothing was asked"},
		{"negotiating twice", state(negotiate), "already attempted negotiation"},
		{"a state that is the server's", state(hadooppb.RpcSaslProto_SUCCESS), "unsupported state SUCCESS"},
		{"a protected message without protection", state(hadooppb.RpcSaslProto_WRAP), "not wrapping"},
		{"endless responses", bytes.Repeat(state(initiate, sasl.Token, sasl.DigestMD5), 20), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := start(t, newServer(t, ServerConfig{Offers: []Offer{tokenOffer()}, Door: strangers()}))
			conn, _ := negotiated(t, addr)
			_, _ = conn.Write(c.send)
			h, _ := readFrame(t, conn)
			if h.status != hadooppb.RpcResponseHeaderProto_FATAL || !strings.Contains(h.message, c.words) {
				t.Fatalf("%+v, want %s", h, c.words)
			}
			wantClosed(t, conn)
		})
	}
}

// A token stands for its user: a context that names another one is refused, and so is a message without the protection that was
// agreed on.
func TestAfterTheExchange(t *testing.T) {
	call := request(7, 0, nn, "getGroups", &hadooppb.GetGroupsForUserRequestProto{User: new("x")})
	for _, c := range []struct {
		name    string
		quality sasl.Quality
		send    func(sasl.Layer) []byte
		words   string
	}{
		{
			"somebody else's name", sasl.Authentication, func(sasl.Layer) []byte { return contextFrame("root") },
			"Authenticated user (alice) doesn't match what the client claims to be (root)",
		},
		{"one's own name", sasl.Authentication, func(sasl.Layer) []byte { return append(contextFrame("alice"), call...) }, ""},
		{"a context in the clear", sasl.Integrity, func(sasl.Layer) []byte { return contextFrame("") }, "unprotected message"},
		{"a call in the clear", sasl.Privacy, func(l sasl.Layer) []byte { return append(wrapped(t, l, contextFrame("")), call...) }, "unprotected message"},
		{"a message that was changed", sasl.Integrity, func(l sasl.Layer) []byte {
			b := wrapped(t, l, contextFrame(""))
			b[len(b)-20] ^= 1
			return b
		}, "integrity check"},
		{"a message twice", sasl.Integrity, func(l sasl.Layer) []byte { return bytes.Repeat(wrapped(t, l, contextFrame("")), 2) }, "integrity check"},
		{"a protected message inside another one", sasl.Integrity, func(l sasl.Layer) []byte {
			return wrapped(t, l, saslFrame(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_WRAP.Enum()}))
		}, "inside another one"},
		{"a frame in two messages", sasl.Integrity, func(l sasl.Layer) []byte {
			b := append(contextFrame(""), call...)
			return append(wrapped(t, l, b[:100]), wrapped(t, l, b[100:])...)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := start(t, newServer(t, ServerConfig{Offers: []Offer{tokenOffer(c.quality)}, Door: strangers()}))
			conn, offered := negotiated(t, addr)
			layer := initiated(t, conn, offered, c.quality)
			_, _ = conn.Write(c.send(layer))
			h, body := readFrame(t, conn)
			if layer != nil {
				h = unwrapped(t, layer, h, body)
			}
			if c.words == "" {
				if h.callID != 7 || h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
					t.Fatalf("%+v", h)
				}
				return
			}
			if h.status != hadooppb.RpcResponseHeaderProto_FATAL || !strings.Contains(h.message, c.words) {
				t.Fatalf("%+v, want %s", h, c.words)
			}
		})
	}
}

func wrapped(t *testing.T, l sasl.Layer, plain []byte) []byte {
	t.Helper()
	b, err := appendWrapped(nil, l, plain, header(2, 0, callSASL))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unwrapped is the header of the answer in a protected one.
func unwrapped(t *testing.T, l sasl.Layer, h responseHeader, body []byte) responseHeader {
	t.Helper()
	message, _ := cut(body)
	m := new(hadooppb.RpcSaslProto)
	if err := m.UnmarshalVT(message); err != nil || h.callID != callSASL || m.GetState() != hadooppb.RpcSaslProto_WRAP {
		t.Fatalf("%+v, %v, %v", h, m, err)
	}
	plain, err := l.Unwrap(m.GetToken())
	if err != nil {
		t.Fatal(err)
	}
	head, _ := cut(plain[4:])
	if h, err = parseResponseHeader(head); err != nil {
		t.Fatal(err)
	}
	return h
}

// Somebody of another machine whom a mechanism other than a token proves may act for those that a rule allows.
func TestProxyOfPrincipal(t *testing.T) {
	principal := Offer{Method: sasl.Kerberos, Mechanism: "GSSAPI", New: func(*security.Peer) (sasl.Mechanism, error) { return &believer{}, nil }}
	for _, c := range []struct{ name, principal, claims, who, words string }{
		{"its own principal", "proxy/host@REALM", "proxy/host@REALM", "proxy,", ""},
		{"nobody", "proxy@REALM", "", "proxy,", ""},
		{"one of whom it may be a proxy", "proxy@REALM", "alice", "alice,proxy", ""},
		{"one of whom it may not", "proxy@REALM", "root", "", "User: proxy is not allowed to impersonate root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := start(t, newServer(t, ServerConfig{Offers: []Offer{principal}, Door: strangers()}))
			conn, offered := negotiated(t, addr)
			_, _ = conn.Write(saslFrame(&hadooppb.RpcSaslProto{
				State: hadooppb.RpcSaslProto_INITIATE.Enum(), Auths: offered.Auths[:1], Token: []byte(c.principal),
			}))
			if h, _ := readFrame(t, conn); h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
				t.Fatalf("%+v", h)
			}
			_, _ = conn.Write(append(contextFrame(c.claims), request(7, 0, nn, "getGroups", &hadooppb.GetGroupsForUserRequestProto{User: new("x")})...))
			h, body := readFrame(t, conn)
			if c.words != "" {
				if h.status != hadooppb.RpcResponseHeaderProto_FATAL || !strings.Contains(h.message, c.words) {
					t.Fatalf("%+v, want %s", h, c.words)
				}
				return
			}
			message, _ := cut(body)
			var answer hadooppb.GetGroupsForUserResponseProto
			if err := answer.UnmarshalVT(message); err != nil || strings.Join(answer.Groups, ",") != c.who {
				t.Fatalf("%q, %v, want %s", answer.Groups, err, c.who)
			}
		})
	}
}

// believer is a mechanism that believes what it is told.
type believer struct{ principal string }

func (s *believer) Step(token []byte) ([]byte, bool, error) {
	s.principal = string(token)
	return nil, true, nil
}

func (s *believer) Identity() sasl.Identity {
	return sasl.Identity{Name: security.ShortName(s.principal), Principal: s.principal, Method: sasl.Kerberos}
}

func (*believer) Layer() sasl.Layer { return nil }

// What is only for TLS is not offered without it.
func TestOfferWithinTLS(t *testing.T) {
	addr := start(t, newServer(t, ServerConfig{Door: strangers(), Offers: []Offer{
		tokenOffer(), {Method: sasl.Bearer, Mechanism: "OAUTHBEARER", TLS: true, New: func(*security.Peer) (sasl.Mechanism, error) { return &believer{}, nil }},
	}}))
	conn, offered := negotiated(t, addr)
	if len(offered.Auths) != 1 {
		t.Fatalf("offered: %v", offered.Auths)
	}
	_, _ = conn.Write(saslFrame(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_INITIATE.Enum(), Auths: []*hadooppb.RpcSaslProto_SaslAuth{{
		Method: new(sasl.Bearer), Mechanism: new("OAUTHBEARER"),
	}}}))
	if h, _ := readFrame(t, conn); !strings.Contains(h.message, "BEARER authentication is not enabled.  Available:[TOKEN]") {
		t.Fatalf("%+v", h)
	}
}
