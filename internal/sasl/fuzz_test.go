package sasl

import (
	"bytes"
	"testing"
)

// FuzzResponse: whatever an initiator sends, the acceptor refuses it, unless it knows the password.
func FuzzResponse(f *testing.F) {
	m := acceptor(Authentication, Integrity, Privacy)
	challenge, _, _ := m.Step(nil)
	i := NewInitiator(InitiatorConfig{Service: "hdfs", Server: "0", Name: "alice", Password: "secret", Qualities: []Quality{Privacy}})
	response, _, _ := i.Step(challenge)
	f.Add(response)
	f.Add([]byte(`username="alice",nonce="x",nc=00000001,cnonce="\"",response=00`))
	f.Fuzz(func(t *testing.T, token []byte) {
		m := acceptor(Authentication, Integrity, Privacy)
		if _, done, err := m.Step(token); len(token) > 0 && (done || err == nil) {
			t.Fatal("a response before the challenge is taken")
		}
		if _, _, err := m.Step(nil); err != nil && len(token) > 0 {
			t.Fatal(err)
		}
		if _, done, err := m.Step(token); done || err == nil {
			t.Fatal("a response without the password is taken")
		}
		_, _, _ = NewInitiator(InitiatorConfig{Name: "alice", Password: "secret"}).Step(token)
	})
}

// FuzzUnwrap: nobody makes a message of a layer without its keys.
func FuzzUnwrap(f *testing.F) {
	f.Add([]byte("message\x00\x01\x00\x00\x00\x00"), uint8(0))
	f.Add(bytes.Repeat([]byte{0}, 64), uint8(2))
	f.Fuzz(func(t *testing.T, p []byte, kind uint8) {
		q, c := Integrity, ""
		if kind %= 3; kind > 0 {
			q, c = Privacy, cipherNames[kind-1]
		}
		_, b := layers(t, q, c)
		if m, err := b.Unwrap(p); err == nil {
			t.Fatalf("%x is taken for %q", p, m)
		}
	})
}
