package issuer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/roster"
)

// register is the namespace's, in memory and for one goroutine.
type register struct {
	values  map[string][]byte
	version map[string]uint64
	last    uint64
	meddle  func() // what others do between a look and the change
}

func (g *register) Item(name string) ([]byte, uint64) { return g.values[name], g.version[name] }
func (g *register) RegisterVersion() uint64           { return g.last }
func (g *register) Items(prefix string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, name := range slices.Sorted(maps.Keys(g.values)) {
			if strings.HasPrefix(name, prefix) && !yield(name, g.values[name]) {
				return
			}
		}
	}
}

func (g *register) Change(_ context.Context, changes ...roster.Change) (bool, error) {
	if meddle := g.meddle; meddle != nil {
		g.meddle = nil
		meddle()
	}
	for _, c := range changes {
		if g.version[c.Name] != c.Version {
			return false, nil
		}
	}
	for _, c := range changes {
		g.last++
		if c.Value == nil {
			delete(g.values, c.Name)
			delete(g.version, c.Name)
			continue
		}
		g.values[c.Name], g.version[c.Name] = c.Value, g.last
	}
	return true, nil
}

type world struct {
	*testing.T
	*Issuer
	register *register
	now      time.Time
	verifier *usertoken.Verifier
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, register: &register{values: map[string][]byte{}, version: map[string]uint64{}}, now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	var err error
	if w.Issuer, err = New(Config{Register: w.register, Seal: make([]byte, 32), Cluster: "CID-a", Now: clock}); err != nil {
		t.Fatal(err)
	}
	w.verifier = usertoken.NewVerifier(clock)
	return w
}

func (w *world) issue(r Request) (string, Token) {
	w.Helper()
	token, about, err := w.Issue(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}
	return token, about
}

func (w *world) verify(token string) error {
	w.Helper()
	document, err := w.Keys()
	if err != nil {
		w.Fatal(err)
	}
	if err := w.verifier.Believe(document); err != nil {
		w.Fatal(err)
	}
	_, err = w.verifier.Verify(token)
	return err
}

func anybody(Token) error { return nil }

func TestATokenIsIssuedListedAndRevoked(t *testing.T) {
	w := newWorld(t)
	if k, err := w.Keys(); k != nil || err != nil {
		t.Fatalf("keys of a cluster that has none: %s, %v", k, err)
	}
	token, about := w.issue(Request{User: "ann", Groups: []string{"staff"}, By: "root"})
	if err := w.verify(token); err != nil {
		t.Fatal(err)
	}
	if about.Expires.Sub(about.Issued) != DefaultLife {
		t.Errorf("good for %v", about.Expires.Sub(about.Issued))
	}
	all, err := w.Tokens()
	if err != nil || len(all) != 1 || all[0].User != "ann" || all[0].By != "root" {
		t.Fatalf("%+v, %v", all, err)
	}
	for name, value := range w.register.values {
		if bytes.Contains(value, []byte(token)) || bytes.Contains(value, []byte(token[strings.LastIndex(token, ".")+1:])) {
			t.Errorf("item %s holds the token", name)
		}
	}
	no := metadata.Errorf(metadata.ErrPermission, "not yours")
	if err := w.Revoke(t.Context(), about.ID, func(Token) error { return no }); !errors.Is(err, metadata.ErrPermission) || w.verify(token) != nil {
		t.Fatalf("revoked by somebody else: %v", err)
	}
	for range 2 {
		if err := w.Revoke(t.Context(), about.ID, anybody); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.verify(token); err == nil || !strings.Contains(err.Error(), "was revoked") {
		t.Fatalf("after it was revoked: %v", err)
	}
	if err := w.Revoke(t.Context(), "nonsense", anybody); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("an unknown token: %v", err)
	}
	// It goes when it is over, and so does what is said of it.
	w.now = w.now.Add(DefaultLife + time.Hour)
	other, _ := w.issue(Request{User: "bob"})
	if w.register.values[tokenItems+about.ID] != nil {
		t.Error("a token that is over stays in the register")
	}
	if err := w.verify(other); err != nil {
		t.Error(err)
	}
	if document, _ := w.Keys(); bytes.Contains(document, []byte(about.ID)) {
		t.Error("a token that is over stays in the list of those that were revoked")
	}
}

// A server whose clock is behind takes a certificate a little longer, and has to know for as long that it was revoked.
func TestARevokedCertificateIsListedUntilItHasEndedEverywhere(t *testing.T) {
	w := newWorld(t)
	if err := w.Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	about, err := w.Certify(t.Context(), Request{User: "ann"}, func(Token) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Revoke(t.Context(), about.ID, anybody); err != nil {
		t.Fatal(err)
	}
	for at, listed := range map[time.Duration]bool{-time.Second: true, usertoken.MaxSkew - time.Second: true, usertoken.MaxSkew: false} {
		w.now = about.Expires.Add(at)
		if all, err := w.RevokedCertificates(); err != nil || slices.Equal(all, []string{about.ID}) != listed {
			t.Errorf("%v after its end: %v %v", at, all, err)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		want string
		Request
	}{
		{"not for 721h", Request{User: "ann", Life: 721 * time.Hour}},
		{"not for 1s", Request{User: "ann", Life: time.Second}},
		{"is no name", Request{User: "ann@example.com"}},
		{"is no name", Request{User: "hdfs/host"}},
		{"the name is empty", Request{}},
		{"group: ", Request{User: "ann", Groups: []string{""}}},
	} {
		if _, _, err := w.Issue(t.Context(), c.Request); !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.Request, err, c.want)
		}
	}
	for range maxOfUser {
		w.issue(Request{User: "ann"})
	}
	if _, _, err := w.Issue(t.Context(), Request{User: "ann"}); !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "ann has 200") {
		t.Errorf("one more than a user may have: %v", err)
	}
	w.issue(Request{User: "bob"})
}

func TestKeysRollAndOldTokensStayGood(t *testing.T) {
	w := newWorld(t)
	long, _ := w.issue(Request{User: "ann", Life: usertoken.MaxLife})
	first, _ := w.Keys()
	for month := range 5 {
		if err := w.verify(long); month == 0 && err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(RollEvery)
		if !w.Due() {
			t.Fatalf("month %d: no key is due", month)
		}
		// Another server signs at once with the key that follows: those who have not been told of the new one know it.
		before := w.verifier
		_, err := w.Keys()
		if err != nil {
			t.Fatal(err)
		}
		token, _ := w.issue(Request{User: "ann", Life: usertoken.MaxLife})
		if _, err := before.Verify(token); err != nil && month > 0 {
			t.Fatalf("month %d: who knows the keys from before: %v", month, err)
		}
		if err := w.verify(token); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(-time.Second)
		if month > 0 {
			if err := w.verify(long); err != nil {
				t.Fatalf("month %d: a token of the month before, one second before its end: %v", month, err)
			}
		}
		w.now = w.now.Add(time.Second)
		long = token
		k, _, err := w.keys()
		if err != nil || len(k.Keys) > 4 {
			t.Fatalf("month %d: %d keys are kept, %v", month, len(k.Keys), err)
		}
	}
	if last, _ := w.Keys(); bytes.Equal(first, last) {
		t.Error("the keys are those of the beginning")
	}
}

func TestDecisionsOfOthersMeanwhile(t *testing.T) {
	w := newWorld(t)
	other, err := New(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	w.register.meddle = func() { // makes the cluster's first keys at the same time
		if err := other.Roll(t.Context()); err != nil {
			t.Error(err)
		}
	}
	token, _ := w.issue(Request{User: "ann"})
	if err := w.verify(token); err != nil {
		t.Fatal(err)
	}
	if k, _, _ := w.keys(); len(k.Keys) != 2 {
		t.Fatalf("%d keys, want 2", len(k.Keys))
	}
}

func TestWithoutTheSealNothingIsSigned(t *testing.T) {
	w := newWorld(t)
	w.issue(Request{User: "ann"})
	c := w.Config
	c.Seal = bytes.Repeat([]byte{1}, 32)
	thief, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := thief.Issue(t.Context(), Request{User: "root"}); err == nil || !strings.Contains(err.Error(), "does not open the keys of user tokens") {
		t.Fatalf("with the register and no secret: %v", err)
	}
	w.register.values[keysItem] = []byte(`{"keys":[]}`)
	if _, _, err := w.Issue(t.Context(), Request{User: "ann"}); err == nil || !strings.Contains(fmt.Sprint(err), "damaged") {
		t.Fatalf("an item that is damaged: %v", err)
	}
}
