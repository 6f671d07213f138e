package roster

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
)

func TestTheNextAuthorityIssuesWhenAllTrustIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := &authority.Name{Cluster: cluster, Machine: "first", Generation: 1, Roles: []authority.Role{authority.Namenode}}
	m1, err := f.admit(t, f.invite(t, 1, authority.Datanode), "m1", authority.Datanode)
	if err != nil {
		t.Fatal(err)
	}
	step := func(want Rotation) {
		t.Helper()
		if err := f.Advance(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Rotation(); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v %v, want %+v", got, err, want)
		}
	}
	issuer := func() authority.Fingerprint {
		t.Helper()
		c, err := f.Issuer()
		if err != nil {
			t.Fatal(err)
		}
		return authority.FingerprintOf(c)
	}
	before := issuer()
	step(Rotation{Step: Unrotated})
	if err := f.Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	step(Rotation{Announced, []string{"first", "m1"}})
	if err := f.Rotate(t.Context(), false); err != nil {
		t.Fatalf("asked for twice: %v", err)
	}
	trust, err := f.Trust()
	if err != nil || len(trust.Roots) != 2 || issuer() != before {
		t.Fatalf("%v %v", trust, err)
	}
	next := authority.FingerprintOf(trust.Roots[1])
	if err := f.Confirm(t.Context(), m1, authority.Fingerprint{1}); !errors.Is(err, ErrUnknown) {
		t.Errorf("an authority of nobody's: %v", err)
	}
	if err := f.Confirm(t.Context(), &authority.Name{Machine: "m1", Generation: 2}, next); !errors.Is(err, authority.ErrRevoked) {
		t.Errorf("another generation: %v", err)
	}
	for _, n := range []*authority.Name{m1, first} {
		if err := f.Confirm(t.Context(), n, next); err != nil {
			t.Fatal(err)
		}
	}
	step(Rotation{Issued, []string{"first", "m1"}})
	if issuer() != next {
		t.Error("the old one still issues")
	}
	for _, n := range []*authority.Name{m1, first} {
		der, err := f.Renew(t.Context(), n, request(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.verify(t, der); err != nil {
			t.Error(err)
		}
	}
	step(Rotation{Step: Unrotated})
	if trust, err := f.Trust(); err != nil || len(trust.Roots) != 1 || authority.FingerprintOf(trust.Roots[0]) != next {
		t.Errorf("%v %v", trust, err)
	}
	if trust, err := f.Trust(); err != nil || len(trust.Links) != 1 {
		t.Errorf("links for who knows the old one: %v %v", trust, err)
	}
	// A machine that is away for good is not waited for, if the operator says so.
	if err := f.Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Advance(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.Rotation(); err != nil || got.Step != Unrotated || issuer() == next {
		t.Errorf("%+v %v", got, err)
	}
}

// Who may have been robbed of its key vouches for nobody, before or while another one follows.
func TestACompromisedAuthorityVouchesForNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	links := func() int {
		t.Helper()
		trust, err := f.Trust()
		if err != nil {
			t.Fatal(err)
		}
		return len(trust.Links)
	}
	rotate := func(compromised bool) {
		t.Helper()
		if err := f.Rotate(t.Context(), compromised); err != nil {
			t.Fatal(err)
		}
	}
	finish := func() {
		t.Helper()
		for range 2 {
			if err := f.Advance(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range 5 {
		rotate(false)
		if got := links(); got != min(n+1, 3) {
			t.Errorf("rotation %d: %d links", n, got)
		}
		finish()
	}
	rotate(true)
	if got := links(); got != 0 {
		t.Errorf("%d links with a compromised authority", got)
	}
	finish()
	rotate(false)
	rotate(true)
	if got := links(); got != 0 {
		t.Errorf("%d links when it becomes known on the way", got)
	}
}

func TestAnAddressBelongsToOneMachine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	join := func(name, address string) error {
		token := f.invite(t, 1, authority.Datanode)
		_, err := f.Admit(t.Context(), Joining{
			Token: token.ID, Proof: token.Prove(nil, nil), Machine: name, Roles: []authority.Role{authority.Datanode}, Addresses: []string{address}, Request: request(t),
		})
		return err
	}
	if err := join("m1", "10.0.0.7"); err != nil {
		t.Fatal(err)
	}
	if err := join("m2", "10.0.0.7"); !errors.Is(err, ErrAddress) {
		t.Errorf("the address of a member: %v", err)
	}
	if err := f.Remove(t.Context(), "m1", false); err != nil {
		t.Fatal(err)
	}
	if err := join("m2", "10.0.0.7"); err != nil {
		t.Errorf("the address of one that was removed: %v", err)
	}
}

func TestServersAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	join := func(name string, roles []authority.Role, nn *config.NamenodeMember) error {
		token := f.invite(t, 1, authority.Roles...)
		_, err := f.Admit(t.Context(), Joining{
			Token: token.ID, Proof: token.Prove(nil, nil), Machine: name, Roles: roles, Addresses: []string{name}, Request: request(t), Namenode: nn,
		})
		return err
	}
	if err := join("m2", []authority.Role{authority.Namenode}, &config.NamenodeMember{ID: "m2", GRPC: "10.0.0.2:8486"}); err != nil {
		t.Fatal(err)
	}
	ids := func() (out []string) {
		s, err := f.Servers()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range s.Namenodes {
			out = append(out, n.ID)
		}
		return out
	}
	if got := ids(); !slices.Equal(got, []string{"first", "m2"}) {
		t.Errorf("%q", got)
	}
	if err := f.Remove(t.Context(), "m2", false); err != nil {
		t.Fatal(err)
	}
	if got := ids(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("%q", got)
	}
	if err := f.Remove(t.Context(), "first", false); !errors.Is(err, ErrServer) {
		t.Errorf("who runs the resource manager and the last namenode: %v", err)
	}
	if err := join("m4", []authority.Role{authority.Namenode}, &config.NamenodeMember{ID: "m4"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(t.Context(), "first", false); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "the last resource manager") {
		t.Errorf("who runs the last resource manager: %v", err)
	}
	token := f.invite(t, 1, authority.Roles...)
	if _, err := f.Admit(t.Context(), Joining{
		Token: token.ID, Proof: token.Prove(nil, nil), Machine: "m5", Roles: []authority.Role{authority.ResourceManager}, Addresses: []string{"m5"}, Request: request(t),
		Manager: &config.ManagerMember{ID: "m5", GRPC: "10.0.0.5:8586"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(t.Context(), "first", false); err != nil {
		t.Error(err)
	}
	if s, err := f.Servers(); err != nil || len(s.ResourceManagers) != 1 || s.ResourceManagers[0].ID != "m5" {
		t.Errorf("%+v %v", s, err)
	}
}
