package kerberos

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/sasl"
)

// Whatever comes in place of the first token: no panic, and nobody is let in who changed it.
func FuzzInitialToken(f *testing.F) {
	var acceptors []*Acceptor
	whole := map[string]bool{}
	for _, r := range recordings(f) {
		f.Add(r.sent[0])
		acceptors = append(acceptors, r.acceptor)
		whole[string(r.sent[0])] = true
	}
	f.Fuzz(func(t *testing.T, token []byte) {
		if whole[string(token)] {
			return
		}
		for _, a := range acceptors {
			c, reply, err := a.accept(bytes.Clone(token))
			if err == nil {
				// What is not sealed may be written in other ways that mean the same.
				if c.peer.String() != "alice@HOPS.TEST" || len(reply) == 0 {
					t.Fatalf("%s is let in", c.peer)
				}
				a.replays.mu.Lock()
				a.replays.seen, a.replays.queue = nil, nil
				a.replays.mu.Unlock()
			}
		}
	})
}

// What a ticket and an authenticator hold, once decrypted, may be anything too: who has a key may write it.
func FuzzDecrypted(f *testing.F) {
	for _, r := range recordings(f) {
		message, err := kerberosToken(r.sent[0], tokenAPReq)
		if err != nil {
			f.Fatal(err)
		}
		var request apReq
		var t ticket
		if decode(message, messageAPReq, &request) != nil || decode(request.Ticket.Bytes, tagTicket, &t) != nil {
			f.Fatal("a recording cannot be read")
		}
		k, err := r.acceptor.find(t.Name.in(t.Realm), uint32(t.Part.Version), t.Part.Type)
		if err != nil {
			f.Fatal(err)
		}
		part, err := r.acceptor.open(&t)
		if err != nil {
			f.Fatal(err)
		}
		session, err := newKey(part.Key.Type, part.Key.Value)
		if err != nil {
			f.Fatal(err)
		}
		_ = decode(request.Ticket.Bytes, tagTicket, &t)
		one, err1 := k.usage(usageTicket).decrypt(t.Part.Cipher)
		two, err2 := session.usage(usageAuthenticator).decrypt(request.Authenticator.Cipher)
		if err1 != nil || err2 != nil {
			f.Fatal(err1, err2)
		}
		f.Add(one, two)
	}
	w := newWorld(f, 17)
	k, err := w.acceptor.find(w.service, 2, 17)
	if err != nil {
		f.Fatal(err)
	}
	name := principalName{1, w.service.Components}
	f.Fuzz(func(_ *testing.T, one, two []byte) {
		t := ticket{5, realm, name, encryptedData{17, 2, k.usage(usageTicket).encrypt(nil, one)}}
		part, err := w.acceptor.open(&t)
		if err != nil {
			part = &ticketPart{Name: principalName{1, []string{"alice"}}, Realm: realm}
		}
		session := k
		if s, err := newKey(part.Key.Type, part.Key.Value); err == nil {
			session = s
		}
		request := apReq{Authenticator: encryptedData{Cipher: session.usage(usageAuthenticator).encrypt(nil, two)}}
		auth, err := w.acceptor.authenticate(&request, part, session)
		if err != nil {
			auth = &authenticator{}
			if decode(two, tagAuthenticator, auth) != nil {
				return
			}
		}
		_, _, _ = w.acceptor.establish(&request, part, auth, session)
	})
}

// Messages under a layer.
func FuzzUnwrap(f *testing.F) {
	type end struct {
		layer sasl.Layer
		next  uint64
	}
	var ends []end
	for _, r := range recordings(f) {
		m, messages := r.begin(f)
		for _, b := range messages {
			f.Add(b)
		}
		if m.Layer() != nil {
			ends = append(ends, end{m.Layer(), m.Layer().(*layer).context.received})
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range ends {
			got, err := e.layer.Unwrap(bytes.Clone(b))
			if err == nil && len(got) > len(b) {
				t.Fatalf("%d bytes become %d", len(b), len(got))
			}
			e.layer.(*layer).context.received = e.next
		}
	})
}

func FuzzNegotiate(f *testing.F) {
	var acceptor *Acceptor
	for _, r := range recordings(f) {
		b, err := negotiationOf(r.sent[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		acceptor = r.acceptor
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _, _ = acceptor.Negotiate(b)
	})
}

func FuzzKeytab(f *testing.F) {
	w := newWorld(f, 18)
	b, err := os.ReadFile(w.path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseKeytab(b)
		if err == nil && len(entries) > len(b) {
			t.Fatalf("%d bytes have %d entries", len(b), len(entries))
		}
	})
}

func FuzzCache(f *testing.F) {
	b, err := os.ReadFile("testdata/alice.cache")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		path := t.TempDir() + "/cache"
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, _ = readCache(path)
	})
}

func FuzzRules(f *testing.F) {
	text, err := os.ReadFile("testdata/auth_to_local.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rules, ok := strings.CutPrefix(line, "rules "); ok {
			f.Add(rules, "alice/host@EXAMPLE.COM")
		}
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		r, err := ParseRules(text, realm)
		if err != nil {
			return
		}
		p, err := ParsePrincipal(name)
		if err != nil {
			return
		}
		if short, err := r.ShortName(p); err == nil && (short == "" || strings.ContainsAny(short, "/@")) {
			t.Fatalf("%s becomes %q", p, short)
		}
	})
}
