package namespace

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// modelTokens are the delegation tokens told plainly.
type modelTokens struct {
	good map[int32]DelegationToken
	keys []int32
	last int32
}

func (m *modelTokens) compare(t *rapid.T, name string, ns *Namespace) {
	got := map[int32]DelegationToken{}
	for n := range m.last + 1 {
		if d, ok := ns.Token(n); ok {
			got[n] = d
		}
	}
	want := m.good
	if want == nil {
		want = map[int32]DelegationToken{}
	}
	if !maps.Equal(got, want) || ns.TokenFigures(0).Count != len(want) {
		t.Fatalf("%s: the tokens are %v, the model's %v", name, got, want)
	}
	var keys []int32
	for id := range int32(60) {
		if _, ok := ns.TokenKey(id); ok {
			keys = append(keys, id)
		}
	}
	if !slices.Equal(keys, m.keys) {
		t.Fatalf("%s: the keys of tokens are %v, the model's %v", name, keys, m.keys)
	}
}

const modelPerUser, modelTotal = 3, 5

// changeTokens does one of the things that can be done to tokens.
func (s *machine) changeTokens(t *rapid.T) {
	m := &s.tokens
	if m.good == nil {
		m.good = map[int32]DelegationToken{}
	}
	users := []string{"alice", "bob", "yarn"}
	user := rapid.SampledFrom(users).Draw(t, "user")
	now := s.w.now + 10 // of the command
	newest := int32(0)
	if len(m.keys) > 0 {
		newest = m.keys[len(m.keys)-1]
	}
	which := func() (int32, int64) {
		n := rapid.Int32Range(0, max(m.last, 1)).Draw(t, "token")
		issued := int64(m.good[n].Issued)
		if rapid.IntRange(0, 5).Draw(t, "former") == 0 {
			issued++
		}
		return n, issued
	}
	switch rapid.IntRange(0, 7).Draw(t, "what") {
	case 0:
		if newest > 50 {
			t.Skip("enough keys")
		}
		late := rapid.Int32Range(0, 1).Draw(t, "late")
		r := s.do(t, super, &logpb.RollTokenKey{After: newest - late, Seed: seeds(1, uint32(s.w.index))[0]})
		if r.Err != nil || r.OK != (late == 0) {
			t.Fatalf("roll after %d: %v, %v", newest-late, r.OK, r.Err)
		}
		if r.OK {
			m.keys = slices.DeleteFunc(m.keys, func(k int32) bool {
				return !slices.ContainsFunc(slices.Collect(maps.Values(m.good)), func(d DelegationToken) bool { return d.Key == k })
			})
			m.keys = append(m.keys, newest+1)
		}
	case 1, 2, 3:
		life := rapid.Int64Range(0, 500).Draw(t, "life")
		op := &logpb.IssueToken{
			Renewer: rapid.SampledFrom([]string{"", "yarn"}).Draw(t, "renewer"), RealUser: rapid.SampledFrom(append(users, "")).Draw(t, "real"),
			Expires: int64(now) + rapid.Int64Range(0, 300).Draw(t, "first"), MaxDate: int64(now) + life, MaxTokens: modelTotal, MaxOfUser: modelPerUser,
		}
		d := DelegationToken{
			Owner: user, Renewer: op.Renewer, RealUser: op.RealUser, Issued: now, MaxDate: metadata.Time(op.MaxDate),
			Expires: min(metadata.Time(op.Expires), metadata.Time(op.MaxDate)), Key: newest, Sequence: m.last + 1,
		}
		if d.RealUser == user {
			d.RealUser = ""
		}
		of := 0
		for _, o := range m.good {
			if o.holder() == d.holder() {
				of++
			}
		}
		r := s.do(t, metadata.Caller{User: user}, op)
		if fits := newest > 0 && len(m.good) < modelTotal && of < modelPerUser; r.OK != fits || (r.Err == nil) != fits {
			t.Fatalf("issue to %s: %v, %v, want %v", user, r.OK, r.Err, fits)
		}
		if r.OK {
			m.last++
			m.good[m.last] = d
			if *r.Token != d {
				t.Fatalf("issued %v, want %v", r.Token, &d)
			}
		}
	case 4, 5:
		n, issued := which()
		expires := now + metadata.Time(rapid.Int64Range(-50, 300).Draw(t, "expires"))
		d, there := m.good[n]
		r := s.do(t, metadata.Caller{User: user}, &logpb.RenewToken{Sequence: n, Issued: issued, Expires: int64(expires)})
		there = there && issued == int64(d.Issued)
		if may := there && d.MaxDate >= now && d.Renewer == user; r.OK != may || (r.Err == nil) != may {
			t.Fatalf("renew %v by %s: %v, %v, want %v", &d, user, r.OK, r.Err, may)
		}
		if r.OK {
			d.Expires = max(min(expires, d.MaxDate), d.Issued)
			m.good[n] = d
		}
	case 6:
		n, issued := which()
		d, there := m.good[n]
		r := s.do(t, metadata.Caller{User: user}, &logpb.CancelToken{Sequence: n, Issued: issued})
		if may := there && issued == int64(d.Issued) && (d.Owner == user || d.Renewer == user); r.OK != may || (r.Err == nil) != may {
			t.Fatalf("cancel %v by %s: %v, %v, want %v", &d, user, r.OK, r.Err, may)
		}
		if r.OK {
			delete(m.good, n)
		}
	case 7:
		before := len(m.good)
		maps.DeleteFunc(m.good, func(_ int32, d DelegationToken) bool { return d.Expires < now })
		if r := s.do(t, super, &logpb.ExpireTokens{}); r.Err != nil || r.OK != (len(m.good) < before) {
			t.Fatalf("expire: %v, %v", r.OK, r.Err)
		}
	}
	m.compare(t, "the one", s.w.ns)
}

func TestTokensThatAreRefused(t *testing.T) {
	w := newWorld(t, Config{})
	alice, yarn := metadata.Caller{User: "alice"}, metadata.Caller{User: "yarn"}
	issue := func(c metadata.Caller, change func(*logpb.IssueToken)) *Result {
		op := &logpb.IssueToken{Renewer: "yarn", Expires: int64(w.now) + 1000, MaxDate: int64(w.now) + 5000, MaxTokens: 3, MaxOfUser: 2}
		if change != nil {
			change(op)
		}
		return w.do(c, op)
	}
	refused := func(what string, r *Result, kind error, words string) {
		t.Helper()
		if !errors.Is(r.Err, kind) || !strings.Contains(r.Err.Error(), words) {
			t.Errorf("%s: %v, want %v: %s", what, r.Err, kind, words)
		}
	}
	refused("before there is a key", issue(alice, nil), metadata.ErrIO, "no key yet")
	if r := w.do(super, &logpb.RollTokenKey{Seed: seeds(1, 1)[0]}); !r.OK {
		t.Fatal(r.Err)
	}
	refused("a short seed", w.do(super, &logpb.RollTokenKey{After: 1, Seed: []byte("short")}), metadata.ErrInvalidArgument, "5 bytes")
	refused("a name that is none", issue(alice, func(op *logpb.IssueToken) { op.Renewer = strings.Repeat("r", MaxName+1) }), metadata.ErrInvalidArgument, "renewer of")
	refused("an end before its beginning", issue(alice, func(op *logpb.IssueToken) { op.Expires = 1 }), metadata.ErrInvalidArgument, "from")
	first := issue(alice, nil)
	if !first.OK {
		t.Fatal(first.Err)
	}
	tok := first.Token
	renew := &logpb.RenewToken{Sequence: tok.Sequence, Issued: int64(tok.Issued), Expires: math.MaxInt64}
	refused("its owner renews it", w.do(alice, renew), metadata.ErrPermission, "alice tries to renew a token")
	refused("a stranger cancels it", w.do(metadata.Caller{User: "mallory", Superuser: true}, &logpb.CancelToken{Sequence: tok.Sequence, Issued: int64(tok.Issued)}),
		metadata.ErrPermission, "mallory is not authorized to cancel the token")
	if r := w.do(yarn, renew); !r.OK || r.Token.Expires != tok.MaxDate {
		t.Errorf("its renewer renews it: %v, %v", r.Token, r.Err)
	}
	if r := issue(alice, func(op *logpb.IssueToken) { op.RealUser = "oozie" }); !r.OK {
		t.Fatal(r.Err)
	}
	if r := issue(alice, nil); !r.OK {
		t.Errorf("what a proxy got counts for the proxy: %v", r.Err)
	}
	refused("more than there may be", issue(yarn, nil), metadata.ErrIO, "there are 3")
	w.do(alice, &logpb.CancelToken{Sequence: 2, Issued: int64(tok.Issued) - 1})
	refused("what was cancelled", w.do(alice, &logpb.CancelToken{Sequence: 9}), metadata.ErrToken, "Token not found")
	third, _ := w.ns.Token(3)
	w.do(alice, &logpb.CancelToken{Sequence: 3, Issued: int64(third.Issued)})
	w.do(alice, &logpb.RollTokenKey{After: 1, Seed: seeds(1, 2)[0]})
	issue(alice, nil)
	refused("more than a user may have", issue(alice, func(op *logpb.IssueToken) { op.MaxTokens = 9 }), metadata.ErrIO, "alice has 2")
	if _, ok := w.ns.TokenKey(1); !ok {
		t.Error("a key is gone whose tokens are good")
	}
	hash := w.ns.Hash()
	w.snapshot()
	w.open()
	if w.ns.Hash() != hash || w.ns.TokenFigures(math.MaxInt64) != (TokenFigures{Count: 3, Expired: 3, NewestKey: 2, Rolled: w.ns.TokenFigures(0).Rolled}) {
		t.Errorf("after a restart: %+v", w.ns.TokenFigures(math.MaxInt64))
	}
	w.now += 10_000
	refused("after its last day", w.do(yarn, renew), metadata.ErrToken, "tried to renew an expired token")
	if r := w.do(super, &logpb.ExpireTokens{}); !r.OK || w.ns.TokenFigures(0).Count != 0 {
		t.Errorf("%v, %+v", r, w.ns.TokenFigures(0))
	}
	refused("after it was forgotten", w.do(yarn, renew), metadata.ErrToken, "Token not found")
	w.check()
}

// Numbers begin again after the greatest that there is in Java, and pass by those that are in use.
func TestTokenNumbersBeginAgain(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.RollTokenKey{Seed: seeds(1, 1)[0]})
	var got []int32
	for i := range 4 {
		if i == 1 {
			w.ns.meta.lastToken = math.MaxInt32 - 1
		}
		r := w.do(metadata.Caller{User: fmt.Sprint("user", i)}, &logpb.IssueToken{Expires: int64(w.now) + 1000, MaxDate: int64(w.now) + 1000, MaxTokens: 9, MaxOfUser: 9})
		if !r.OK {
			t.Fatal(r.Err)
		}
		got = append(got, r.Token.Sequence)
	}
	if !slices.Equal(got, []int32{1, math.MaxInt32, 2, 3}) {
		t.Errorf("%v", got)
	}
}
