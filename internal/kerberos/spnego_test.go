package kerberos

import (
	"bytes"
	"encoding/asn1"
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		name string
		mech asn1.ObjectIdentifier
	}{{"SPNEGO", mechKerberos}, {"SPNEGO of old Windows", mechMicrosoft}, {"Kerberos by itself", nil}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 18)
			i, token := w.initiator()
			if c.mech != nil {
				wrapped, err := negotiationOf(token)
				if err != nil {
					t.Fatal(err)
				}
				if c.mech.Equal(mechMicrosoft) {
					wrapped = bytes.Replace(wrapped, oidKerberos, oidMicrosoft, 1)
				}
				token = wrapped
			}
			user, reply, err := w.acceptor.Negotiate(token)
			if err != nil || user != "alice" {
				t.Fatalf("it is %q, %v", user, err)
			}
			if c.mech != nil {
				var answer negotiated
				if rest, err := asn1.UnmarshalWithParams(reply, &answer, "explicit,tag:1"); err != nil || len(rest) > 0 || answer.State != 0 || !answer.Mechanism.Equal(c.mech) {
					t.Fatalf("the answer is %+v, %v", answer, err)
				}
				reply = answer.Token
			}
			if err := i.verify(reply); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRefusedNegotiations(t *testing.T) {
	w := newWorld(t, 18)
	_, token := w.initiator()
	whole, err := negotiationOf(token)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		token []byte
		want  string
	}{
		{"nothing", nil, "it is no token of SPNEGO or Kerberos"},
		{"garbage", []byte("garbage"), "it is no token of SPNEGO or Kerberos"},
		{"a part", whole[:len(whole)/2], "it is no token of SPNEGO or Kerberos"},
		{"too long", make([]byte, MaxToken+1), "is too long"},
		{"NTLM", []byte("NTLMSSP\x00\x01\x00\x00\x00"), "the client sent NTLM, because it has no Kerberos ticket for this server: kinit"},
		{"NTLM within SPNEGO", bytes.Replace(whole, oidKerberos, []byte{6, 9, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 2, 10}, 1), "the client would begin with the mechanism 1.3.6.1.4.1.311.2.10"},
		{"the end of an exchange", frame(oidSPNEGO, []byte{0xa1, 2, 0x30, 0}), "it is no token of SPNEGO that begins an exchange"},
		{"no mechanism", frame(oidSPNEGO, []byte{0xa0, 6, 0x30, 4, 0xa0, 2, 0x30, 0}), "it is no token of SPNEGO that begins an exchange"},
	} {
		user, reply, err := w.acceptor.Negotiate(c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) || user != "" || reply != nil {
			t.Errorf("%s: %q, %v; want %q", c.name, user, err, c.want)
		}
	}
	if user, _, err := w.acceptor.Negotiate(whole); err != nil || user != "alice" {
		t.Fatalf("a whole one: %q, %v", user, err)
	}
	if _, _, err := w.acceptor.Negotiate(whole); err == nil || !strings.Contains(err.Error(), "it was shown before") {
		t.Errorf("a repeated one: %v", err)
	}
}
