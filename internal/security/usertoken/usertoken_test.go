package usertoken

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func document(t testing.TB, cluster string, revoked map[string]int64, keys ...Key) []byte {
	t.Helper()
	d := Trusted{Cluster: cluster, Revoked: revoked}
	for _, k := range keys {
		d.Keys = append(d.Keys, k.Public())
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func claims(change func(*Claims)) Claims {
	c := Claims{Cluster: "CID-a", User: "ann", Groups: []string{"staff"}, ID: "id1", Issued: start, Expires: start.Add(12 * time.Hour)}
	if change != nil {
		change(&c)
	}
	return c
}

func sign(t testing.TB, k Key, c Claims) string {
	t.Helper()
	token, err := k.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// raw makes a token of any header and payload.
func raw(header, payload string, sign func(signed string) []byte) string {
	e := base64.RawURLEncoding
	signed := e.EncodeToString([]byte(header)) + "." + e.EncodeToString([]byte(payload))
	return signed + "." + e.EncodeToString(sign(signed))
}

func TestATokenNamesItsUser(t *testing.T) {
	k := NewKey()
	v := NewVerifier(func() time.Time { return start.Add(time.Hour) })
	if err := v.Believe(document(t, "CID-a", nil, k)); err != nil {
		t.Fatal(err)
	}
	c, err := v.Verify(sign(t, k, claims(nil)))
	if err != nil || c.User != "ann" || len(c.Groups) != 1 || c.Groups[0] != "staff" || c.ID != "id1" || !c.Expires.Equal(start.Add(12*time.Hour)) {
		t.Fatalf("%+v, %v", c, err)
	}
	again, err := KeyOf(k.ID, k.Seed())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(sign(t, again, claims(nil))); err != nil {
		t.Fatalf("a key made of its seed: %v", err)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	k, stranger := NewKey(), NewKey()
	private := ed25519.NewKeyFromSeed(k.Seed())
	eddsa := func(signed string) []byte { return ed25519.Sign(private, []byte(signed)) }
	good := sign(t, k, claims(nil))
	parts := strings.Split(good, ".")
	body, _ := base64.RawURLEncoding.DecodeString(parts[1])
	header := fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"hops-user+jwt"}`, k.ID)
	with := func(change func(*Claims)) string { return sign(t, k, claims(change)) }
	for _, c := range []struct {
		name, token string
		now         time.Duration // after start
		revoked     map[string]int64
		unheard     bool
		want        string
	}{
		{name: "expired", token: good, now: 13 * time.Hour, want: "expired at 2026-03-02 00:00:00Z; by this server's clock it is 2026-03-02 01:00:00Z"},
		{name: "clock an hour behind", token: good, now: -time.Hour, want: "1h0m0s earlier: set the clocks"},
		{name: "revoked", token: good, revoked: map[string]int64{"id1": 0}, want: "token id1 of ann was revoked"},
		{name: "forged: a key of somebody's own", token: sign(t, stranger, claims(nil)), want: "a key that cluster CID-a does not have"},
		{name: "foreign: of another cluster", token: sign(t, stranger, claims(func(c *Claims) { c.Cluster = "CID-b" })), want: `it says that it is of cluster "CID-b", this is CID-a`},
		{name: "wrong issuer under a good key", token: with(func(c *Claims) { c.Cluster = "CID-b" }), want: `issued by "hops://CID-b", not by cluster CID-a`},
		{name: "another user put in", token: parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(body), "ann", "bob", 1))) + "." + parts[2], want: "its signature is wrong"},
		{name: "alg none", token: raw(strings.Replace(header, "EdDSA", "none", 1), string(body), func(string) []byte { return nil }), want: `algorithm "none", only EdDSA`},
		{name: "alg HS256 with the public key", token: raw(strings.Replace(header, "EdDSA", "HS256", 1), string(body), func(signed string) []byte {
			h := hmac.New(sha256.New, k.Public().Key)
			h.Write([]byte(signed))
			return h.Sum(nil)
		}), want: `algorithm "HS256", only EdDSA`},
		{name: "another kind of JWT under the same key", token: raw(fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"JWT"}`, k.ID), string(body), eddsa), want: "another kind of token"},
		{name: "a critical header", token: raw(fmt.Sprintf(`{"alg":"EdDSA","kid":%q,"typ":"hops-user+jwt","crit":["x"],"x":1}`, k.ID), string(body), eddsa), want: "signature is wrong"},
		{name: "its own key in the header", token: raw(fmt.Sprintf(`{"alg":"EdDSA","kid":"other","typ":"hops-user+jwt","jwk":{"kty":"OKP","crv":"Ed25519","x":%q}}`,
			base64.RawURLEncoding.EncodeToString(k.Public().Key)), string(body), eddsa), want: "a key that cluster CID-a does not have"},
		{name: "good for a year", token: raw(header, strings.Replace(string(body), fmt.Sprint(start.Add(12*time.Hour).Unix()), fmt.Sprint(start.Add(8760*time.Hour).Unix()), 1), eddsa), want: "up to 720h0m0s are allowed"},
		{name: "a user with a slash", token: raw(header, strings.Replace(string(body), "ann", "root/x", 1), eddsa), want: "is no name"},
		{name: "no user", token: raw(header, strings.Replace(string(body), `"ann"`, `""`, 1), eddsa), want: "the name is empty"},
		{name: "what it says is no JSON", token: raw(header, "hello", eddsa), want: "what it says cannot be read"},
		{name: "cut off", token: good[:len(good)/2], want: "perhaps it was cut off"},
		{name: "empty", token: "", want: "perhaps it was cut off"},
		{name: "the JSON form", token: `{"payload":"","signatures":[]}`, want: "perhaps it was cut off"},
		{name: "9 KiB", token: good + strings.Repeat("A", 9<<10), want: "8192 are allowed"},
		{name: "no keys known", token: good, unheard: true, want: "has not heard of the cluster's keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := NewVerifier(func() time.Time { return start.Add(c.now) })
			if !c.unheard {
				if err := v.Believe(document(t, "CID-a", c.revoked, k)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := v.Verify(c.token)
			if got != nil || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%+v, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestWhatWasGoodEnds(t *testing.T) {
	k, now := NewKey(), start
	v := NewVerifier(func() time.Time { return now })
	if err := v.Believe(document(t, "CID-a", nil, k)); err != nil {
		t.Fatal(err)
	}
	c, err := v.Verify(sign(t, k, claims(nil)))
	if err != nil || v.Good(c) != nil {
		t.Fatal(err, v.Good(c))
	}
	v.Refresh(func() {
		if err := v.Believe(document(t, "CID-a", map[string]int64{"id1": c.Expires.Unix()}, k)); err != nil {
			t.Error(err)
		}
	})
	if err := v.Good(c); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Fatalf("after it was revoked: %v", err)
	}
	v.Refresh(func() {})
	if err := v.Believe(document(t, "CID-a", nil, k)); err != nil {
		t.Fatal(err)
	}
	now = c.Expires
	if err := v.Good(c); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Fatalf("after its end: %v", err)
	}
}

func TestClaimsThatAreNotSigned(t *testing.T) {
	k := NewKey()
	for _, c := range []struct {
		want   string
		change func(*Claims)
	}{
		{"is no name", func(c *Claims) { c.User = "a/b" }},
		{"is no name", func(c *Claims) { c.User = "a b" }},
		{"256 are allowed", func(c *Claims) { c.User = strings.Repeat("a", 257) }},
		{"group: ", func(c *Claims) { c.Groups = []string{"x\n"} }},
		{"64 are allowed", func(c *Claims) { c.Groups = make([]string, 65) }},
		{"up to 720h0m0s", func(c *Claims) { c.Expires = c.Issued.Add(MaxLife + time.Second) }},
		{"up to 720h0m0s", func(c *Claims) { c.Expires = c.Issued }},
		{"name fewer groups", func(c *Claims) {
			for i := range 64 {
				c.Groups = append(c.Groups[:i], strings.Repeat("g", 200))
			}
		}},
	} {
		if _, err := k.Sign(claims(c.change)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	v := NewVerifier(time.Now)
	for _, d := range []string{"", "{", "{}", `{"cluster":"a","keys":[{"id":"x","key":"AAAA"}]}`} {
		if v.Believe([]byte(d)) == nil {
			t.Errorf("%q is believed", d)
		}
	}
}

// Whatever is sent as a token: no panic, and nobody is let in who has not the key.
func FuzzToken(f *testing.F) {
	k := NewKey()
	v := NewVerifier(func() time.Time { return start })
	if err := v.Believe(document(f, "CID-a", nil, k)); err != nil {
		f.Fatal(err)
	}
	f.Add("a.b.c")
	f.Add(raw(`{"alg":"none","typ":"hops-user+jwt"}`, `{"iss":"hops://CID-a","sub":"root"}`, func(string) []byte { return nil }))
	f.Add(sign(f, NewKey(), claims(nil)))
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := v.Verify(token); err == nil || c != nil || !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %+v, %v", token, c, err)
		}
	})
}
