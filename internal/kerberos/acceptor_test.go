package kerberos

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/gohops/hops/internal/sasl"
)

// exchange drives both sides to the end.
func exchange(m sasl.Mechanism, i *Initiator, token []byte) error {
	for {
		reply, done, err := m.Step(token)
		if err != nil {
			return err
		}
		if done {
			return nil
		}
		if token, _, err = i.Step(reply); err != nil {
			return err
		}
	}
}

func TestExchange(t *testing.T) {
	for _, e := range enctypes {
		for _, q := range []sasl.Quality{sasl.Authentication, sasl.Integrity, sasl.Privacy} {
			t.Run(e.name+" "+string(q), func(t *testing.T) {
				w := newWorld(t, e.id)
				m := w.acceptor.Exchange(sasl.Authentication, sasl.Integrity, sasl.Privacy)
				i, token := w.initiator()
				i.qualities = []sasl.Quality{q}
				if err := exchange(m, i, token); err != nil {
					t.Fatal(err)
				}
				if got, want := m.Identity(), (sasl.Identity{Name: "alice", Principal: "alice@" + realm, Method: sasl.Kerberos}); got != want {
					t.Errorf("it is %+v, want %+v", got, want)
				}
				if q == sasl.Authentication {
					if m.Layer() != nil || i.Layer() != nil {
						t.Error("there is a layer without protection")
					}
					return
				}
				for n := range 3 {
					for _, way := range []struct{ from, to sasl.Layer }{{m.Layer(), i.Layer()}, {i.Layer(), m.Layer()}} {
						message := bytes.Repeat([]byte("message "), n*1000)
						wrapped, err := way.from.Wrap(message)
						if err != nil {
							t.Fatal(err)
						}
						if q == sasl.Privacy && n > 0 && bytes.Contains(wrapped, []byte("message")) {
							t.Error("a confidential message can be read")
						}
						if got, err := way.to.Unwrap(wrapped); err != nil || !bytes.Equal(got, message) {
							t.Fatalf("message %d comes as %d bytes, %v", n, len(got), err)
						}
					}
				}
			})
		}
	}
}

// What a client shows that is not let in, and what it is told.
func TestRefusedTickets(t *testing.T) {
	hourOff := func(w *world, i *Initiator, by time.Duration) { // the acceptor's clock, from the time of the proof on
		w.now = i.sent.CTime.Add(time.Duration(i.sent.Cusec)*time.Microsecond + by)
	}
	for _, c := range []struct {
		name    string
		prepare func(*world)
		after   func(*world, *Initiator)
		spoil   func([]byte) []byte
		want    string
	}{
		{
			name: "a ticket for another service", prepare: func(w *world) { w.service = principal(w.t, "HTTP/a.example.com@"+realm); w.add(w.service, "x", 2) },
			want: "the ticket is for HTTP/a.example.com@EXAMPLE.COM, and this server is nn/a.example.com@EXAMPLE.COM",
		},
		{
			name: "a ticket of another realm's KDC", prepare: func(w *world) { w.service.Realm = "OTHER.ORG"; w.add(w.service, "x", 2) },
			want: "the ticket is for nn/a.example.com@OTHER.ORG, and this server is nn/a.example.com@EXAMPLE.COM",
		},
		{
			name: "a user of another realm", prepare: func(w *world) { w.client.Realm = "OTHER.ORG" },
			want: "No rules applied to alice@OTHER.ORG: see hadoop.security.auth_to_local",
		},
		{
			name: "an expired ticket", prepare: func(w *world) { w.start, w.lifetime = w.now.Add(-3*time.Hour), time.Hour },
			want: "the ticket of alice@EXAMPLE.COM expired at",
		},
		{
			name: "a ticket that is not good yet", prepare: func(w *world) { w.start = w.now.Add(3 * time.Hour) },
			want: "is not good before",
		},
		{
			name: "a ticket marked invalid", prepare: func(w *world) { w.flags = []int{flags.Invalid} },
			want: "is not good before",
		},
		{
			name: "the server's clock an hour ahead", prepare: func(w *world) { w.lifetime = 10 * time.Hour }, after: func(w *world, i *Initiator) { hourOff(w, i, time.Hour) },
			want: "1h0m0s behind this server's, and 5m0s are allowed: set the clocks (NTP)",
		},
		{
			name: "the server's clock an hour behind", prepare: func(w *world) { w.start = w.now.Add(-2 * time.Hour); w.lifetime = 10 * time.Hour }, after: func(w *world, i *Initiator) { hourOff(w, i, -time.Hour) },
			want: "ahead of this server's, and 5m0s are allowed: set the clocks (NTP)",
		},
		{
			name: "a way through realms that no KDC has checked", prepare: func(w *world) { w.transited = []byte("OTHER.ORG") },
			want: "no KDC has checked the way (transited policy)",
		},
		{
			name: "a key that the keytab does not have", prepare: func(w *world) { w.version = 3; w.keys = keytab.New(); w.add(w.service, "newer", 3) },
			want: "the ticket needs key version 3 of " + enctypes[1].name + " of nn/a.example.com@EXAMPLE.COM, and the keytab",
		},
		{
			name: "another key of the same version", prepare: func(w *world) { w.keys = keytab.New(); w.add(w.service, "other", 2) },
			want: "the KDC has another key than the keytab",
		},
		{name: "garbage", spoil: func([]byte) []byte { return []byte("garbage") }, want: "it is no Kerberos token, or only a part of one"},
		{name: "a part of a token", spoil: func(b []byte) []byte { return b[:len(b)/2] }, want: "it is no Kerberos token, or only a part of one"},
		{name: "a token that is too long", spoil: func([]byte) []byte { return make([]byte, MaxToken+1) }, want: "is too long, 65536 are allowed"},
		{
			name: "an answer in place of a request", spoil: func(b []byte) []byte { return frame(oidKerberos, []byte{2, 0, 1}) },
			want: "a Kerberos token of kind 0200 came where 0100 was expected",
		},
		{
			name: "a changed proof", spoil: func(b []byte) []byte { b[len(b)-3] ^= 1; return b },
			want: "the proof with the ticket of alice@EXAMPLE.COM: it was not encrypted with this key, or was changed on the way",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 18)
			if c.prepare != nil {
				c.prepare(w)
			}
			i, token := w.initiator()
			if c.after != nil {
				c.after(w, i)
			}
			if c.spoil != nil {
				token = c.spoil(token)
			}
			m := w.acceptor.Exchange()
			err := exchange(m, i, token)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if m.Identity() != (sasl.Identity{}) {
				t.Errorf("it is %+v all the same", m.Identity())
			}
			if _, _, err := m.Step(token); err == nil {
				t.Error("the exchange goes on after its error")
			}
		})
	}
}

func TestReplay(t *testing.T) {
	w := newWorld(t, 18)
	i, token := w.initiator()
	if err := exchange(w.acceptor.Exchange(), i, bytes.Clone(token)); err != nil {
		t.Fatal(err)
	}
	_, _, err := w.acceptor.Exchange().Step(bytes.Clone(token))
	if !errors.Is(err, errReplay) {
		t.Fatalf("a repeated request: %v", err)
	}
	w.now = time.Now().Add(MaxSkew + 2*time.Second) // too late for it, however long it took to make
	_, next := w.initiator()
	_, _, err = w.acceptor.Exchange().Step(bytes.Clone(token))
	if err == nil || !strings.Contains(err.Error(), "set the clocks") {
		t.Fatalf("a repeated request, later: %v", err)
	}
	_ = next
	if w.acceptor.replays.add([]byte("x"), w.now, w.now.Add(MaxSkew)) != nil || len(w.acceptor.replays.seen) != 1 {
		t.Errorf("%d requests are remembered", len(w.acceptor.replays.seen))
	}
}

// Replays are remembered in bounded room; who comes then is told to come again.
func TestReplaysAreBounded(t *testing.T) {
	r := replays{limit: 3000}
	now := time.Unix(1e9, 0)
	r.seen = map[[32]byte]struct{}{}
	for i := range r.limit {
		var sum [32]byte
		sum[0], sum[1], sum[2] = byte(i), byte(i>>8), byte(i>>16)
		r.seen[sum] = struct{}{}
		r.queue = append(r.queue, replay{sum, now.Add(time.Minute)})
	}
	if err := r.add([]byte("one more"), now, now.Add(time.Minute)); !errors.Is(err, errFull) {
		t.Fatalf("error %v", err)
	}
	if err := r.add([]byte("one more"), now.Add(2*time.Minute), now.Add(3*time.Minute)); err != nil || len(r.seen) != 1 {
		t.Fatalf("error %v, %d remembered", err, len(r.seen))
	}
}

func TestQualities(t *testing.T) {
	w := newWorld(t, 20)
	i, token := w.initiator() // wants authentication
	err := exchange(w.acceptor.Exchange(sasl.Privacy), i, token)
	if !errors.Is(err, sasl.ErrQuality) || !strings.Contains(err.Error(), `the server offers the layers 100, wanted is one of ["auth"]`) {
		t.Errorf("a client that wants less: %v", err)
	}
	// A client that takes what was not offered.
	i, token = w.initiator()
	m := w.acceptor.Exchange(sasl.Privacy)
	reply, _, err := m.Step(token)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = i.Step(reply); err != nil {
		t.Fatal(err)
	}
	if _, _, err = m.Step(nil); err != nil {
		t.Fatal(err)
	}
	i.context.received++
	_, _, err = m.Step(i.context.wrap([]byte{1, 0, 0, 0}, false))
	if !errors.Is(err, sasl.ErrQuality) || !strings.Contains(err.Error(), `auth is asked for, ["auth-conf"] are offered`) {
		t.Errorf("a client that takes less than is offered: %v", err)
	}
	// And one that would be somebody else.
	i, token = w.initiator()
	m = w.acceptor.Exchange()
	reply, _, _ = m.Step(token)
	_, _, _ = i.Step(reply)
	_, _, _ = m.Step(nil)
	_, _, err = m.Step(i.context.wrap([]byte("\x01\x00\x00\x00root"), false))
	if err == nil || !strings.Contains(err.Error(), `alice@EXAMPLE.COM may not log in as "root"`) {
		t.Errorf("a client that names another user: %v", err)
	}
}

func TestMessagesInOrder(t *testing.T) {
	w := newWorld(t, 17)
	m := w.acceptor.Exchange(sasl.Privacy)
	i, token := w.initiator()
	i.qualities = []sasl.Quality{sasl.Privacy}
	if err := exchange(m, i, token); err != nil {
		t.Fatal(err)
	}
	first, _ := i.Layer().Wrap([]byte("first"))
	second, _ := i.Layer().Wrap([]byte("second"))
	for _, c := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"one that was left out", second, "a message was lost, repeated or is out of order"},
		{"a changed one", append(bytes.Clone(first[:len(first)-1]), first[len(first)-1]^1), "a message was changed on the way"},
		{"a part of one", first[:20], "a message was changed on the way"},
		{"nothing", nil, "it is no wrapped message"},
		{"one that is not confidential", i.Layer().(*layer).context.wrapAt([]byte("first"), uint64(m.Layer().(*layer).context.received)), "a message is confidential and others are not"},
		{"its own", func() []byte { b, _ := m.Layer().Wrap([]byte("x")); return b }(), "a message has the flags 07, not 06"},
	} {
		if _, err := m.Layer().Unwrap(bytes.Clone(c.message)); !errors.Is(err, sasl.ErrLayer) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// wrapAt is wrap without confidentiality, with a number.
func (c *gssContext) wrapAt(p []byte, number uint64) []byte {
	kept := c.sent
	c.sent = number
	defer func() { c.sent = kept }()
	return c.wrap(p, false)
}

// A keytab that was made anew is read again.
func TestNewKeytab(t *testing.T) {
	w := newWorld(t, 18)
	w.add(w.service, "newer", 3)
	w.version = 3
	i, token := w.initiator()
	if err := exchange(w.acceptor.Exchange(), i, token); err == nil || !strings.Contains(err.Error(), "has version 2 of") {
		t.Fatalf("a key of before: %v", err)
	}
	if err := os.Chmod(w.path, 0o600); err != nil {
		t.Fatal(err)
	}
	w.write()
	if err := os.Chtimes(w.path, time.Now(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	i, token = w.initiator()
	if err := exchange(w.acceptor.Exchange(), i, token); err != nil {
		t.Fatal(err)
	}
}

func TestKeytabs(t *testing.T) {
	w := newWorld(t, 18)
	whole, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		content   []byte
		mode      os.FileMode
		principal string
		want      string
	}{
		{"whole", whole, 0o400, "", ""},
		{"everybody's", whole, 0o644, "", "has mode 0644 and everybody could use it: chmod 400 it"},
		{"half a file", whole[:len(whole)/2], 0o400, "", "it is no keytab, or ends in the middle"},
		{"empty", nil, 0o400, "", "it is no keytab, or ends in the middle"},
		{"text", []byte("nn/a.example.com@EXAMPLE.COM"), 0o400, "", "it is no keytab"},
		{"another principal's", whole, 0o400, "dn/a.example.com@" + realm, "has no key of dn/a.example.com@EXAMPLE.COM: it has nn/a.example.com@EXAMPLE.COM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir() + "/keytab"
			if err := os.WriteFile(path, c.content, c.mode); err != nil {
				t.Fatal(err)
			}
			p := w.service
			if c.principal != "" {
				p = principal(t, c.principal)
			}
			_, err := NewAcceptor(Config{Keytab: path, Principals: []Principal{p}})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if _, err := NewAcceptor(Config{Keytab: t.TempDir() + "/none", Principals: []Principal{w.service}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no keytab: %v", err)
	}
}

func TestServicePrincipal(t *testing.T) {
	for _, c := range []struct{ text, host, want string }{
		{"nn/_HOST@EXAMPLE.COM", "A.Example.com", "nn/a.example.com@EXAMPLE.COM"},
		{"nn/fixed@EXAMPLE.COM", "a.example.com", "nn/fixed@EXAMPLE.COM"},
		{"nn@EXAMPLE.COM", "a", ""},
		{"nn/_HOST", "a", ""},
		{"nn/a/b@R", "a", ""},
		{"nn/_HOST@", "a", ""},
		{"nn/ x@R", "a", ""},
		{"", "a", ""},
	} {
		p, err := ServicePrincipal(c.text, c.host)
		if got := p.String(); c.want == "" && err == nil || c.want != "" && got != c.want {
			t.Errorf("%q on %s is %s, %v; want %q", c.text, c.host, got, err, c.want)
		}
	}
}
