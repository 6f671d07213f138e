package sasl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The exchange of RFC 2831, section 4 (IMAP).
func TestKnownExchange(t *testing.T) {
	s := session{
		name: "chris", realm: "elwood.innosoft.com", password: "secret", nonce: "OA6MG9tEQGm2hh", cnonce: "OA6MHXh6VqTrRk",
		uri: "imap/elwood.innosoft.com", quality: Authentication,
	}
	s.derive()
	if got, want := s.response("AUTHENTICATE"), "d388dad90d4bbd760a152321f2143af7"; got != want {
		t.Errorf("response %s, want %s", got, want)
	}
	if got, want := s.response(""), "ea40f60335c427b5527b84dbabcdfffd"; got != want {
		t.Errorf("rspauth %s, want %s", got, want)
	}
	// The second one (ACAP).
	s = session{
		name: "chris", realm: "elwood.innosoft.com", password: "secret", nonce: "OA9BSXrbuRhWay", cnonce: "OA9BSuZWMSpW8m",
		uri: "acap/elwood.innosoft.com", quality: Authentication,
	}
	s.derive()
	if got, want := s.response("AUTHENTICATE"), "6084c6db3fede7352c551284490fd0fc"; got != want {
		t.Errorf("response %s, want %s", got, want)
	}
	if got, want := s.response(""), "2f0b3d7c3c2e486600ef710726aa2eae"; got != want {
		t.Errorf("rspauth %s, want %s", got, want)
	}
}

func acceptor(qualities ...Quality) Mechanism {
	return NewAcceptor(AcceptorConfig{Service: "hdfs", Server: "0", Qualities: qualities, Lookup: func(name string) (string, Identity, error) {
		if name != "alice" {
			return "", Identity{}, errors.New("nobody of that name")
		}
		return "secret", Identity{Name: "alice", Method: Token}, nil
	}})
}

// exchange lets two sides talk to the end, or to the first error and who had it.
func exchange(m Mechanism, i *Initiator) (side string, err error) {
	challenge, _, err := m.Step(nil)
	if err != nil {
		return "acceptor", err
	}
	response, _, err := i.Step(challenge)
	if err != nil {
		return "initiator", err
	}
	proof, done, err := m.Step(response)
	if err != nil {
		return "acceptor", err
	}
	if !done {
		return "acceptor", errors.New("not done")
	}
	if _, done, err = i.Step(proof); err == nil && !done {
		err = errors.New("not done")
	}
	return "initiator", err
}

func TestExchange(t *testing.T) {
	good := InitiatorConfig{Service: "hdfs", Server: "0", Name: "alice", Password: "secret"}
	with := func(change func(*InitiatorConfig)) InitiatorConfig {
		c := good
		change(&c)
		return c
	}
	for _, c := range []struct {
		name    string
		offers  []Quality
		config  InitiatorConfig
		side    string
		want    string
		quality Quality
	}{
		{name: "who knows the password is let in", config: good},
		{name: "a wrong password is refused", config: with(func(c *InitiatorConfig) { c.Password = "guess" }), side: "acceptor", want: "Mismatched response"},
		{name: "a name that nobody has is refused", config: with(func(c *InitiatorConfig) { c.Name = "bob" }), side: "acceptor", want: "nobody of that name"},
		{name: "a response for another server is refused", config: with(func(c *InitiatorConfig) { c.Server = "1" }), side: "acceptor", want: `digest-uri is "hdfs/1"`},
		{
			name: "privacy is not to be had where integrity is offered", offers: []Quality{Authentication, Integrity},
			config: with(func(c *InitiatorConfig) { c.Qualities = []Quality{Privacy} }), side: "initiator", want: "quality of protection refused",
		},
		{
			name: "the better of two qualities is taken", offers: []Quality{Authentication, Integrity, Privacy},
			config: with(func(c *InitiatorConfig) { c.Qualities = []Quality{Privacy, Integrity} }), quality: Privacy,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, i := acceptor(c.offers...), NewInitiator(c.config)
			side, err := exchange(m, i)
			if c.want != "" {
				if err == nil || side != c.side || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%s: %v, want %s: %s", side, err, c.side, c.want)
				}
				if m.Identity() != (Identity{}) || m.Layer() != nil {
					t.Fatalf("after a refusal: %+v", m.Identity())
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", side, err)
			}
			if got := m.Identity(); got != (Identity{Name: "alice", Method: Token}) {
				t.Errorf("identity %+v", got)
			}
			if (m.Layer() == nil) != (c.quality == "") {
				t.Errorf("layer %v", m.Layer())
			}
		})
	}
}

// What an initiator cannot say is refused whatever the password is.
func TestForgedResponse(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"a downgrade of what was offered", "qop=auth-int", "qop=auth", "quality of protection refused"},
		{"a response to another challenge", `nonce="`, `nonce="x`, "nonce is another one"},
		{"a second use of the nonce", "nc=00000001", "nc=00000002", "nonce count"},
		{"acting for another one", "charset=utf-8", `charset=utf-8,authzid="root"`, "nobody may act"},
		{"a directive that comes twice", "charset=utf-8", `charset=utf-8,username="root"`, "comes twice"},
		{"a changed digest-uri", "hdfs/0", "yarn/0", "digest-uri"},
		{"an unfinished string", `realm="0"`, `realm="0`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := acceptor(Integrity)
			i := NewInitiator(InitiatorConfig{Service: "hdfs", Server: "0", Name: "alice", Password: "secret", Qualities: []Quality{Integrity}})
			challenge, _, _ := m.Step(nil)
			response, _, err := i.Step(challenge)
			if err != nil {
				t.Fatal(err)
			}
			forged := strings.Replace(string(response), c.old, c.new, 1)
			if forged == string(response) {
				t.Fatalf("%s has no %s", response, c.old)
			}
			if _, done, err := m.Step([]byte(forged)); done || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("done %v, error %v, want %q", done, err, c.want)
			}
		})
	}
}

func layers(t *testing.T, q Quality, cipher string) (a, b Layer) {
	t.Helper()
	s := session{name: "alice", realm: "0", password: "secret", nonce: "n", cnonce: "c", uri: "hdfs/0", quality: q}
	s.derive()
	a, err1 := s.layer(cipher, true)
	b, err2 := s.layer(cipher, false)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestLayer(t *testing.T) {
	for _, c := range []struct {
		quality Quality
		cipher  string
	}{{Integrity, ""}, {Privacy, "rc4"}, {Privacy, "3des"}} {
		t.Run(string(c.quality)+c.cipher, func(t *testing.T) {
			a, b := layers(t, c.quality, c.cipher)
			for n := range 40 {
				for _, way := range [][2]Layer{{a, b}, {b, a}} {
					p := bytes.Repeat([]byte{byte(n), 'p'}, n)
					w, err := way[0].Wrap(p)
					if err != nil {
						t.Fatal(err)
					}
					if c.quality == Privacy && n > 4 && bytes.Contains(w, p) {
						t.Fatal("the message can be read")
					}
					got, err := way[1].Unwrap(w)
					if err != nil || !bytes.Equal(got, p) {
						t.Fatalf("message %d: %x, %v", n, got, err)
					}
				}
			}
			w, _ := a.Wrap([]byte("one message"))
			for i := range w {
				a, b := layers(t, c.quality, c.cipher)
				w, _ = a.Wrap([]byte("one message"))
				w[i] ^= 1
				if got, err := b.Unwrap(w); !errors.Is(err, ErrLayer) {
					t.Fatalf("byte %d changed: %q, %v", i, got, err)
				}
			}
			a, b = layers(t, c.quality, c.cipher)
			w, _ = a.Wrap([]byte("one message"))
			if _, err := b.Unwrap(w); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Unwrap(w); !errors.Is(err, ErrLayer) {
				t.Fatalf("a message that comes twice: %v", err)
			}
		})
	}
}

// What Java 17's provider says and wraps, as its client and its server, for the password "secret": three exchanges with
// auth-int, auth-conf with rc4, and with 3des.
func TestJavaExchanges(t *testing.T) {
	text, err := os.ReadFile("testdata/java17.txt")
	if err != nil {
		t.Fatal(err)
	}
	var s session
	var client, server Layer
	messages := 0
	for line := range strings.Lines(string(text)) {
		kind, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "response":
			d, err := parseDirectives([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			s = session{
				name: d.value("username"), realm: d.value("realm"), password: "secret", nonce: d.value("nonce"), cnonce: d.value("cnonce"),
				uri: d.value("digest-uri"), quality: Quality(d.value("qop")),
			}
			s.derive()
			if got := s.response("AUTHENTICATE"); got != d.value("response") {
				t.Errorf("response %s, want %s", got, d.value("response"))
			}
			var err1, err2 error
			client, err1 = s.layer(d.value("cipher"), false)
			server, err2 = s.layer(d.value("cipher"), true)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			messages = 0
		case "final":
			if got := "rspauth=" + s.response(""); got != value {
				t.Errorf("%s, want %s", got, value)
			}
		case "c2s", "s2c":
			out, in := client, server
			if kind == "s2c" {
				out, in = server, client
			}
			want := fmt.Sprintf("message %d", messages/2)
			messages++
			if w, err := out.Wrap([]byte(want)); err != nil || hex.EncodeToString(w) != value {
				t.Errorf("%s %s: %x, %v, want %s", s.quality, kind, w, err, value)
			}
			w, _ := hex.DecodeString(value)
			if p, err := in.Unwrap(w); err != nil || string(p) != want {
				t.Errorf("%s %s: %q, %v, want %s", s.quality, kind, p, err, want)
			}
		}
	}
	if messages != 6 {
		t.Errorf("%d messages", messages)
	}
}

func TestParseQualities(t *testing.T) {
	if q, err := ParseQualities("Privacy, integrity,privacy"); err != nil || fmt.Sprint(q) != "[auth-conf auth-int]" {
		t.Errorf("%v, %v", q, err)
	}
	for _, bad := range []string{"", "none", "privacy,"} {
		if _, err := ParseQualities(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
