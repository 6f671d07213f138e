package roster

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
)

// register is a Register in memory.
type register struct {
	mu      sync.Mutex
	values  map[string][]byte
	version map[string]uint64
	last    uint64
	meddle  func() // what others do between a look and the change
}

func newRegister() *register {
	return &register{values: map[string][]byte{}, version: map[string]uint64{}}
}

func (g *register) Item(name string) ([]byte, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.values[name], g.version[name]
}

func (g *register) Items(prefix string) iter.Seq2[string, []byte] {
	g.mu.Lock()
	all := maps.Clone(g.values)
	g.mu.Unlock()
	return func(yield func(string, []byte) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if strings.HasPrefix(name, prefix) && !yield(name, all[name]) {
				return
			}
		}
	}
}

func (g *register) RegisterVersion() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

func (g *register) Change(_ context.Context, changes ...Change) (bool, error) {
	if meddle := g.meddle; meddle != nil {
		g.meddle = nil
		meddle()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range changes {
		if g.version[c.Name] != c.Version {
			return false, nil
		}
	}
	for _, c := range changes {
		g.last++
		if g.values[c.Name], g.version[c.Name] = c.Value, g.last; c.Value == nil {
			delete(g.values, c.Name)
			delete(g.version, c.Name)
		}
	}
	return true, nil
}

const cluster = "CID-77"

var seal = []byte(strings.Repeat("s", 32))

type fixture struct {
	*Roster
	g         *register
	now       time.Time
	authority *authority.Authority
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{g: newRegister(), now: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)}
	r, err := New(Config{Register: f.g, Seal: seal, Now: func() time.Time { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	f.Roster = r
	if f.authority, err = authority.New(cluster, f.now); err != nil {
		t.Fatal(err)
	}
	if err := r.Found(t.Context(), f.authority, founder(f.now), listed); err != nil {
		t.Fatal(err)
	}
	return f
}

var listed = config.Servers{Namenodes: []config.NamenodeMember{{ID: "first", GRPC: "10.0.0.1:8486"}}, ResourceManagers: []config.ManagerMember{{ID: "first"}}}

// founder is the machine that made the cluster.
func founder(now time.Time) Machine {
	return Machine{Name: "first", Generation: 1, Roles: []authority.Role{authority.Namenode}, Addresses: []string{"10.0.0.1"}, Joined: now, Expires: now.Add(authority.MachineLife)}
}

func request(t *testing.T) []byte {
	t.Helper()
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := authority.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (f *fixture) invite(t *testing.T, uses int, roles ...authority.Role) authority.Token {
	t.Helper()
	token, err := f.Invite(t.Context(), roles, time.Hour, uses)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (f *fixture) admit(t *testing.T, token authority.Token, machine string, roles ...authority.Role) (*authority.Name, error) {
	t.Helper()
	der, err := f.Admit(t.Context(), Joining{
		Token: token.ID, Proof: token.Prove(nil, nil), Machine: machine, Roles: roles, Addresses: []string{machine + ".example"}, Request: request(t),
	})
	if err != nil {
		return nil, err
	}
	return f.verify(t, der)
}

func (f *fixture) verify(t *testing.T, der []byte) (*authority.Name, error) {
	t.Helper()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := f.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return trust.Verify(leaf, f.now)
}

func TestAMachineJoinsIsRenewedGoesAndComesBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.invite(t, 2, authority.Datanode, authority.NodeManager)
	n, err := f.admit(t, token, "m1", authority.Datanode)
	if err != nil || n.Machine != "m1" || n.Generation != 1 || !n.Has(authority.Datanode) || n.Has(authority.NodeManager) {
		t.Fatalf("%v %v", n, err)
	}
	if _, err := f.admit(t, token, "m1", authority.Datanode); !errors.Is(err, ErrMember) {
		t.Errorf("a second machine of that name: %v", err)
	}
	f.now = f.now.Add(60 * 24 * time.Hour)
	renewed, err := f.Renew(t.Context(), n, request(t))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.verify(t, renewed); err != nil || again.String() != n.String() {
		t.Errorf("%v %v", again, err)
	}
	if err := f.Remove(t.Context(), "m1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.verify(t, renewed); !errors.Is(err, authority.ErrRevoked) {
		t.Errorf("after it was removed: %v", err)
	}
	if _, err := f.Renew(t.Context(), n, request(t)); !errors.Is(err, authority.ErrRevoked) {
		t.Errorf("renewing after it was removed: %v", err)
	}
	if err := f.Remove(t.Context(), "m1", false); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	if err := f.Remove(t.Context(), "m7", false); !errors.Is(err, ErrUnknown) {
		t.Errorf("removing what never joined: %v", err)
	}
	again, err := f.admit(t, f.invite(t, 1, authority.Datanode), "m1", authority.Datanode)
	if err != nil || again.Generation != 2 {
		t.Fatalf("with a new token: %v %v", again, err)
	}
	if _, err := f.verify(t, renewed); !errors.Is(err, authority.ErrRevoked) {
		t.Errorf("the certificate from before: %v", err)
	}
	all, err := f.Machines()
	if err != nil || len(all) != 2 || all[1].Name != "m1" || all[1].Generation != 2 || !all[1].Removed.IsZero() {
		t.Errorf("%+v %v", all, err)
	}
}

// TestWhoAsksAgainIsAnsweredAgain: the answer to a machine that joined was lost with the leader.
func TestWhoAsksAgainIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.invite(t, 1, authority.Datanode, authority.Namenode)
	own := request(t)
	asked := Joining{
		Token: token.ID, Proof: token.Prove(nil, nil), Machine: "m1", Roles: []authority.Role{authority.Datanode, authority.Namenode}, Addresses: []string{"10.0.0.5"}, Request: own,
		Namenode: &config.NamenodeMember{ID: "m1", GRPC: "10.0.0.5:8486"},
	}
	for range 3 {
		der, err := f.Admit(t.Context(), asked)
		if err != nil {
			t.Fatal(err)
		}
		n, err := f.verify(t, der)
		if err != nil || n.Machine != "m1" || n.Generation != 1 || len(n.Roles) != 2 {
			t.Fatalf("%v %v", n, err)
		}
		f.now = f.now.Add(time.Second)
	}
	servers, err := f.Servers()
	if err != nil || len(servers.Namenodes) != 2 {
		t.Errorf("%+v %v", servers, err)
	}
	second := f.invite(t, 2, authority.Datanode, authority.Namenode)
	for what, c := range map[string]struct {
		change func(*Joining)
		want   error
	}{
		"another key":       {func(j *Joining) { j.Request = request(t) }, authority.ErrToken}, // which is used up
		"other roles":       {func(j *Joining) { j.Roles = []authority.Role{authority.Datanode} }, authority.ErrToken},
		"other addresses":   {func(j *Joining) { j.Addresses = []string{"10.0.0.6"} }, authority.ErrToken},
		"another port":      {func(j *Joining) { j.Namenode = &config.NamenodeMember{ID: "m1", GRPC: "10.0.0.5:1"} }, authority.ErrToken},
		"a proof of none":   {func(j *Joining) { j.Proof = []byte("?") }, authority.ErrToken},
		"another name":      {func(j *Joining) { j.Machine = "m2" }, authority.ErrToken},
		"another token":     {func(j *Joining) { j.Token, j.Proof = second.ID, second.Prove(nil, nil) }, ErrMember},
		"no request at all": {func(j *Joining) { j.Request = nil }, authority.ErrToken},
	} {
		j := asked
		c.change(&j)
		if _, err := f.Admit(t.Context(), j); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Once it has another key, or is removed, the first one is good for nothing.
	der, err := f.Admit(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	n, err := f.verify(t, der)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Renew(t.Context(), n, request(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Admit(t.Context(), asked); !errors.Is(err, authority.ErrToken) {
		t.Errorf("after it was renewed: %v", err)
	}
}

// TestNoKeysBeforeTheClusterIsRaised: the version before would lose them.
func TestNoKeysBeforeTheClusterIsRaised(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	text, err := json.Marshal(Level{Level: release.JoinKeys - 1})
	if err != nil {
		t.Fatal(err)
	}
	f.g.values[levelItem] = text
	if _, err := f.admit(t, f.invite(t, 1, authority.Datanode), "m1", authority.Datanode); err != nil {
		t.Fatal(err)
	}
	if m, _ := f.Machine("m1"); m == nil || m.Key != (authority.Fingerprint{}) {
		t.Errorf("%+v", m)
	}
}

func TestTokensThatLetNobodyIn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.invite(t, 1, authority.Datanode)
	guessed := token
	guessed.Secret[0] ^= 1
	unknown := token
	unknown.ID = "00000000"
	for what, try := range map[string]func() (*authority.Name, error){
		"guessed":    func() (*authority.Name, error) { return f.admit(t, guessed, "m1", authority.Datanode) },
		"unknown":    func() (*authority.Name, error) { return f.admit(t, unknown, "m1", authority.Datanode) },
		"wrong role": func() (*authority.Name, error) { return f.admit(t, token, "m1", authority.Namenode) },
	} {
		if n, err := try(); !errors.Is(err, authority.ErrToken) {
			t.Errorf("%s: %v %v", what, n, err)
		}
	}
	// None of that cost the token its use; a bad request does not either.
	if _, err := f.Admit(t.Context(), Joining{Token: token.ID, Proof: token.Prove(nil, nil), Machine: "m1", Roles: []authority.Role{authority.Datanode}, Request: []byte("?")}); err == nil {
		t.Error("a request that is none")
	}
	if _, err := f.admit(t, token, "m1", authority.Datanode); err != nil {
		t.Errorf("the token itself: %v", err)
	}
	if _, err := f.admit(t, token, "m2", authority.Datanode); !errors.Is(err, authority.ErrToken) {
		t.Errorf("used too often: %v", err)
	}
	late := f.invite(t, 1, authority.Datanode)
	withdrawn := f.invite(t, 1, authority.Datanode)
	if err := f.Withdraw(t.Context(), withdrawn.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admit(t, withdrawn, "m3", authority.Datanode); !errors.Is(err, authority.ErrToken) {
		t.Errorf("withdrawn: %v", err)
	}
	f.now = f.now.Add(time.Hour)
	if _, err := f.admit(t, late, "m3", authority.Datanode); !errors.Is(err, authority.ErrToken) {
		t.Errorf("too late: %v", err)
	}
	// Tokens that are over are known for a while, and go when they are many.
	if _, err := f.admit(t, late, "m3", authority.Datanode); err == nil || !strings.Contains(err.Error(), "it ended at") {
		t.Errorf("too late: %v", err)
	}
	for range maxOver {
		f.invite(t, 1, authority.Datanode)
	}
	f.now = f.now.Add(time.Hour)
	f.invite(t, 1, authority.Datanode)
	left := 0
	for range f.g.Items(invitations) {
		left++
	}
	if left > maxOver {
		t.Errorf("%d tokens are kept", left)
	}
	for _, c := range []struct {
		roles []authority.Role
		life  time.Duration
		uses  int
	}{{nil, time.Hour, 1}, {[]authority.Role{authority.Datanode}, 0, 1}, {[]authority.Role{authority.Datanode}, MaxInvitation + 1, 1}, {[]authority.Role{authority.Datanode}, time.Hour, 0}} {
		if _, err := f.Invite(t.Context(), c.roles, c.life, c.uses); err == nil {
			t.Errorf("%+v is given", c)
		}
	}
}

// TestATokenIsUsedNoOftenerThanItMayBe: machines that join at the same time at several namenodes.
func TestATokenIsUsedNoOftenerThanItMayBe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.invite(t, 3, authority.Datanode)
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for i := range 8 {
		wg.Go(func() {
			if _, err := f.admit(t, token, fmt.Sprintf("m%d", i), authority.Datanode); err == nil {
				mu.Lock()
				in++
				mu.Unlock()
			} else if !errors.Is(err, authority.ErrToken) && !errors.Is(err, errRaced) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in > 3 || in == 0 {
		t.Errorf("%d machines joined", in)
	}
	// The same name at the same time: one gets it.
	elsewhere, err := New(Config{Register: f.g, Seal: seal, Now: func() time.Time { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	other := &fixture{Roster: elsewhere, g: f.g, now: f.now}
	f.g.meddle = func() {
		if _, err := other.admit(t, other.invite(t, 1, authority.Datanode), "twin", authority.Datanode); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.admit(t, f.invite(t, 1, authority.Datanode), "twin", authority.Datanode); !errors.Is(err, ErrMember) {
		t.Errorf("the second of two: %v", err)
	}
}

func TestTheAuthorityIsSealed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before, err := f.opened()
	if err != nil {
		t.Fatal(err)
	}
	second, err := authority.New(cluster, f.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Found(t.Context(), second, founder(f.now), config.Servers{}); err != nil {
		t.Fatal(err)
	}
	if after, err := f.opened(); err != nil || !after.Root().Equal(before.Root()) {
		t.Errorf("founded twice: %v", err)
	}
	text, err := before.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	value, _ := f.g.Item(authorityItem)
	if strings.Contains(string(value), "PRIVATE") || strings.Contains(string(value), string(text)) {
		t.Error("the register shows the key")
	}
	other, err := New(Config{Register: f.g, Seal: []byte(strings.Repeat("o", 32)), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Invite(t.Context(), []authority.Role{authority.Datanode}, time.Hour, 1); err == nil || !strings.Contains(err.Error(), "of another cluster") {
		t.Errorf("with another secret: %v", err)
	}
	if _, err := New(Config{Seal: []byte("short")}); err == nil {
		t.Error("a short seal is taken")
	}
	empty, err := New(Config{Register: newRegister(), Seal: seal, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if trust, err := empty.Trust(); trust != nil || err != nil {
		t.Errorf("without an authority: %v %v", trust, err)
	}
	if _, err := empty.Invite(t.Context(), []authority.Role{authority.Datanode}, time.Hour, 1); !errors.Is(err, ErrNone) {
		t.Errorf("a token without an authority: %v", err)
	}
}

// Many machines come at once with one token, and all are taken in; of those with the same address one is, whatever their tokens.
func TestMachinesThatJoinAtOnce(t *testing.T) {
	f := newFixture(t)
	const many = 60
	join := func(token authority.Token, machine, address string) error {
		_, err := f.Admit(t.Context(), Joining{
			Token: token.ID, Proof: token.Prove(nil, nil), Machine: machine, Roles: []authority.Role{authority.Datanode}, Addresses: []string{address}, Request: request(t),
		})
		return err
	}
	token := f.invite(t, many, authority.Datanode)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			if err := join(token, fmt.Sprint("m", i), fmt.Sprintf("10.1.0.%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var in atomic.Int64
	for i := range many {
		token := f.invite(t, 1, authority.Datanode)
		all.Go(func() {
			err := join(token, fmt.Sprint("same", i), "10.2.0.1")
			if err == nil {
				in.Add(1)
			} else if !errors.Is(err, ErrAddress) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := in.Load(); n != 1 {
		t.Errorf("%d machines have one address", n)
	}
}
