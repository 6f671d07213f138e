package oauthbearer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/internal/security/usertoken"
)

func TestATokenIsShownInOneMessage(t *testing.T) {
	sign, v := securitytest.Tokens(t)
	token := sign("ann", 12*time.Hour)
	for _, user := range []string{"", "ann"} {
		a := NewAcceptor(v)
		reply, done, err := a.Step(Initial(user, token))
		if err != nil || !done || len(reply) != 0 || a.Identity() != (sasl.Identity{Name: "ann", Method: "BEARER"}) || a.Layer() != nil || a.Claims().User != "ann" || a.Good() != nil {
			t.Fatalf("as %q: %q %v %v %+v", user, reply, done, err, a.Identity())
		}
		if _, _, err := a.Step(Initial(user, token)); err == nil || !strings.Contains(err.Error(), "the exchange is over") {
			t.Errorf("a second message: %v", err)
		}
	}
	// As RFC 7628, 4.1 has it, with host and port.
	a := NewAcceptor(v)
	if _, done, err := a.Step([]byte("n,a=ann,\x01host=nn1\x01port=8020\x01auth=Bearer " + token + "\x01\x01")); !done || err != nil {
		t.Error(done, err)
	}
	if err := NewAcceptor(v).Good(); err == nil {
		t.Error("nobody is good")
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	sign, v := securitytest.Tokens(t)
	good := sign("ann", 12*time.Hour)
	for _, c := range []struct{ name, message, want string }{
		{"an expired token", string(Initial("", sign("ann", time.Minute))), "expired at"},
		{"a forged token", string(Initial("", good[:len(good)-8]+"AAAAAAAA")), "its signature is wrong"},
		{"another's name beside the token", string(Initial("root", good)), `the token is of user ann, not of "root"`},
		{"a name with an equals sign", string(Initial("a=n", good)), `not of "a=n"`},
		{"a name that is not escaped", "n,a=a=n,\x01auth=Bearer " + good + "\x01\x01", "not escaped"},
		{"channel binding", "p=tls-exporter,,\x01auth=Bearer " + good + "\x01\x01", "without channel binding"},
		{"nothing", "", "without channel binding"},
		{"PLAIN's message", "\x00ann\x00secret", "without channel binding"},
		{"cut off", string(Initial("", good)[:200]), "cut off"},
		{"without a token", "n,,\x01auth=Bearer \x01\x01", "has no token"},
		{"without auth", "n,,\x01host=x\x01\x01", "has no token"},
		{"another scheme", "n,,\x01auth=Basic x\x01\x01", "not of the scheme Bearer"},
		{"auth twice", "n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", "auth twice"},
		{"a part that is none", "n,,\x01hello\x01\x01", "no name=value"},
		{"too long", string(Initial("", strings.Repeat("A", 10<<10))), "are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAcceptor(v)
			_, done, err := a.Step([]byte(c.message))
			if done || err == nil || !strings.Contains(err.Error(), c.want) || a.Identity() != (sasl.Identity{}) {
				t.Fatalf("%v, %v; want %q", done, err, c.want)
			}
		})
	}
	if _, _, err := NewAcceptor(nil).Step(Initial("", good)); err == nil || !strings.Contains(err.Error(), "takes no user tokens") {
		t.Errorf("where none are taken: %v", err)
	}
}

// Whatever is sent: no panic, and nobody is let in who has no token.
func FuzzMessage(f *testing.F) {
	v := usertoken.NewVerifier(time.Now)
	if err := v.Believe([]byte(`{"cluster":"a"}`)); err != nil {
		f.Fatal(err)
	}
	f.Add(Initial("ann", "a.b.c"))
	f.Add(Initial("a=,n", "x"))
	f.Add([]byte("n,,\x01auth=Bearer \x01\x01"))
	f.Fuzz(func(t *testing.T, message []byte) {
		a := NewAcceptor(v)
		if _, done, err := a.Step(message); done || err == nil {
			t.Errorf("%q is let in", message)
		}
		user, token, err := parse(message)
		if err != nil {
			return
		}
		again, same, err := parse(Initial(user, token))
		if err != nil || again != user || same != token {
			t.Errorf("%q: %q %q, then %q %q, %v", message, user, token, again, same, err)
		}
	})
}

func TestARevokedTokenEndsWhatItBegan(t *testing.T) {
	sign, v := securitytest.Tokens(t)
	a := NewAcceptor(v)
	if _, _, err := a.Step(Initial("", sign("ann", 12*time.Hour))); err != nil {
		t.Fatal(err)
	}
	if err := v.Believe([]byte(`{"cluster":"CID-test","revoked":{"` + a.Claims().ID + `":0}}`)); err != nil {
		t.Fatal(err)
	}
	if err := a.Good(); !errors.Is(err, usertoken.ErrRefused) || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("%v", err)
	}
}
