package server

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/roster"
)

// follow has a process of a machine follow a namenode; it stops with the function.
func follow(t *testing.T, m *member, i *authority.Identity, p *pb.Program) (stop func()) {
	t.Helper()
	own, err := authority.NewMember(authority.Config{
		Key: i.Key, Certificate: i.Certificate, Trust: &authority.Trust{Cluster: m.config.Credentials.Member.Self().Cluster, Roots: i.Roots},
		Program: release.Program{Level: int(p.Level), Oldest: int(p.Oldest)}, Now: time.Now,
	})
	check(t, err)
	conn, err := grpc.NewClient("passthrough:///"+m.grpc, grpc.WithTransportCredentials(security.Credentials{Member: own}.Key(authority.Namenode).Credentials()))
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	stream, err := pb.NewMembershipClient(conn).Follow(t.Context(), &pb.FollowRequest{Program: p})
	check(t, err)
	news, err := stream.Recv()
	check(t, err)
	if news.Level != uint32(m.config.Credentials.Member.Level()) {
		t.Errorf("it hears of level %d", news.Level)
	}
	return func() {
		conn.Close()
		eventually(t, "it is gone", func() bool {
			return !slices.ContainsFunc(m.followers.list(), func(f *pb.Follower) bool { return f.Program.Version == p.Version })
		})
	}
}

func TestWhoKeepsTheClusterFromBeingRaised(t *testing.T) {
	m, a := joinable(t)
	identity := func(name string, roles ...authority.Role) *authority.Identity {
		i, err := a.Self(name, roles, nil, time.Now())
		check(t, err)
		return i
	}
	refused := func(what, says string) {
		t.Helper()
		if _, err := m.raise(t.Context()); !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
	}
	eventually(t, "a level", func() bool { l, err := m.roster.Level(); return err == nil && l.Level == release.Level })
	// At its level already, whoever is heard.
	for range 2 {
		l, err := m.raise(t.Context())
		check(t, err)
		if l.Level.Level != release.Level || !slices.Equal(l.Silent, []string{"namenode nn1"}) {
			t.Errorf("%+v", l)
		}
	}
	next := uint32(release.Level + 1)
	newer := follow(t, m, identity("m2", authority.Datanode), &pb.Program{Servers: []*pb.ServerOf{{Role: "datanode"}}, Version: "v9", Level: next, Oldest: 1})
	refused("a namenode that was not heard", "it is not known which version namenode nn1 runs: start it, or take its machine out")
	follow(t, m, identity("m1", authority.Namenode), &pb.Program{Servers: []*pb.ServerOf{{Role: "namenode", Id: "nn1"}}, Version: "v8", Level: uint32(release.Level), Oldest: 1})
	refused("a namenode of the version before", "an older version runs on m1 (namenode nn1, hops v8, level")
	l, err := m.level(t.Context())
	check(t, err)
	if l.Newest != int(next) || len(l.Programs) != 2 || len(l.Behind()) != 1 || len(l.Silent) != 0 {
		t.Errorf("%+v", l)
	}
	newer()
	l, err = m.raise(t.Context())
	check(t, err)
	if l.Newest != release.Level || l.Level.Level != release.Level {
		t.Errorf("%+v", l)
	}
}

// What a process says of itself counts as far as its certificate and its connection bear it out.
func TestAFollowerIsWhatItsCertificateSays(t *testing.T) {
	m, a := joinable(t)
	eventually(t, "a level", func() bool { l, err := m.roster.Level(); return err == nil && l.Level == release.Level })
	i, err := a.Self("m5", []authority.Role{authority.Namenode, authority.Datanode}, nil, time.Now())
	check(t, err)
	own, err := i.Member(time.Now)
	check(t, err)
	who := security.Principal{Server: own.Self(), Program: own.Program()}
	founder := m.config.Credentials.Member.Self().Machine
	f := m.followerOf(who, &pb.Program{Level: 99, Oldest: 98, Servers: []*pb.ServerOf{
		{Role: "namenode", Id: founder}, {Role: "namenode", Id: "m5"}, {Role: "namenode", Id: "nn9"}, {Role: "resourcemanager", Id: "rm1"}, {Role: "datanode"},
	}})
	var is []string
	for _, of := range f.Program.Servers {
		is = append(is, of.Role+" "+of.Id)
	}
	if want := []string{"namenode m5", "namenode nn9", "datanode "}; !slices.Equal(is, want) || f.Program.Level != uint32(release.Level) || f.Program.Oldest != uint32(release.Oldest) {
		t.Errorf("%v, level %d, oldest %d", is, f.Program.Level, f.Program.Oldest)
	}
	var all followers
	var leave func()
	for range maxFollowing {
		var ok bool
		if leave, ok = all.enter(&pb.Follower{Machine: "m5"}); !ok {
			t.Fatal("refused")
		}
	}
	if _, ok := all.enter(&pb.Follower{Machine: "m5"}); ok {
		t.Error("one machine follows without end")
	}
	if _, ok := all.enter(&pb.Follower{Machine: "m6"}); !ok {
		t.Error("another machine is refused")
	}
	leave()
	if _, ok := all.enter(&pb.Follower{Machine: "m5"}); !ok {
		t.Error("refused after one has gone")
	}
}

// Who follows a namenode that does not answer is not known, and a datanode that lives runs some version.
func TestWhoIsNotHeardKeepsTheClusterFromBeingRaised(t *testing.T) {
	m, a := joinable(t)
	eventually(t, "a level", func() bool { l, err := m.roster.Level(); return err == nil && l.Level == release.Level })
	now, err := m.roster.Servers()
	check(t, err)
	away, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	away.Close()
	now.Namenodes = append(now.Namenodes, config.NamenodeMember{ID: "nn2", GRPC: away.Addr().String()})
	check(t, m.roster.SetServers(t.Context(), now))
	next := uint32(release.Level + 1)
	for _, name := range []string{"nn1", "nn2"} {
		i, err := a.Self(name, []authority.Role{authority.Namenode}, nil, time.Now())
		check(t, err)
		follow(t, m, i, &pb.Program{Servers: []*pb.ServerOf{{Role: "namenode", Id: name}}, Version: "v9", Level: next, Oldest: 1})
	}
	m.soft.mu.Lock()
	m.soft.m.Register(time.Now(), namenode.Node{ID: "d3", IP: "10.0.0.3", Machine: "m3"}, nil, 1)
	m.soft.mu.Unlock()
	l, err := m.level(t.Context())
	check(t, err)
	if !slices.Equal(l.Silent, []string{"namenode nn2", "datanode m3"}) {
		t.Errorf("not heard are %v", l.Silent)
	}
	if _, err := m.raise(t.Context()); !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), "it is not known which version namenode nn2, datanode m3 runs") {
		t.Error(err)
	}
	takeIn := func(name string) {
		t.Helper()
		j := dialToJoin(t, m, invite(t, m, authority.Datanode))
		_, err := j.join(t.Context(), j.request(t, func(r *pb.Joining) { r.Machine, r.Addresses = name, []string{"10.0.0.3"} }))
		check(t, err)
	}
	takeIn("m3")
	check(t, m.roster.Remove(t.Context(), "m3", false))
	if l, err := m.level(t.Context()); err != nil || !slices.Equal(l.Silent, []string{"namenode nn2"}) {
		t.Errorf("of a machine that was removed: %+v %v", l, err)
	}
	takeIn("m3")
	if l, err := m.level(t.Context()); err != nil || !slices.Equal(l.Silent, []string{"namenode nn2", "datanode m3"}) {
		t.Errorf("of a machine that is back: %+v %v", l, err)
	}
	i, err := a.Self("m3", []authority.Role{authority.Datanode}, nil, time.Now())
	check(t, err)
	follow(t, m, i, &pb.Program{Servers: []*pb.ServerOf{{Role: "datanode"}}, Version: "v9", Level: next, Oldest: 1})
	if l, err := m.level(t.Context()); err != nil || !slices.Equal(l.Silent, []string{"namenode nn2"}) {
		t.Errorf("not heard are %+v %v", l, err)
	}
}

func TestTheClusterIsRaised(t *testing.T) {
	t.Parallel()
	m, a := joinable(t)
	eventually(t, "a level", func() bool { l, err := m.roster.Level(); return err == nil && l.Level == release.Level })
	i, err := a.Self("m1", []authority.Role{authority.Namenode}, nil, time.Now())
	check(t, err)
	follow(t, m, i, &pb.Program{Servers: []*pb.ServerOf{{Role: "namenode", Id: "nn1"}}, Version: "v9", Level: uint32(release.Level), Oldest: 1})
	// As a cluster that the version before has made.
	_, version := m.ns.Item("level")
	done, err := register{m.Server}.Change(t.Context(), roster.Change{Name: "level", Version: version})
	if err != nil || !done {
		t.Fatal(done, err)
	}
	info, err := m.rollingUpgrade(t.Context(), namenode.QueryUpgrade)
	if err != nil || info != nil {
		t.Errorf("no upgrade: %+v %v", info, err)
	}
	prepared, err := m.rollingUpgrade(t.Context(), namenode.PrepareUpgrade)
	if err != nil || prepared == nil || prepared.Started.IsZero() || !prepared.Finalized.IsZero() {
		t.Errorf("prepared: %+v %v", prepared, err)
	}
	ended, err := m.rollingUpgrade(t.Context(), namenode.FinalizeUpgrade)
	if err != nil || ended == nil || !ended.Started.Equal(prepared.Started) || ended.Finalized.IsZero() {
		t.Errorf("finalized: %+v %v", ended, err)
	}
	for range 2 {
		l, err := m.raise(t.Context())
		check(t, err)
		if l.Level.Level != release.Level || !l.Raised.Equal(ended.Finalized) || !l.Prepared.IsZero() {
			t.Errorf("%+v", l)
		}
	}
	eventually(t, "the member's directory is marked", func() bool {
		return m.group.Level() == release.Level && m.config.Credentials.Member.Level() == release.Level
	})
	var answer error
	m.RollingUpgrade(metadata.Caller{User: "eve"}, namenode.FinalizeUpgrade, func(_ *namenode.Upgrade, err error) { answer = err })
	if !errors.Is(answer, metadata.ErrPermission) {
		t.Errorf("somebody who is no superuser: %v", answer)
	}
}

func TestWhoHearsOfFollowers(t *testing.T) {
	m, a := joinable(t)
	for role, may := range map[authority.Role]bool{authority.Namenode: true, authority.Datanode: false, authority.NodeManager: false, authority.ResourceManager: false} {
		i, err := a.Self("m7", []authority.Role{role}, nil, time.Now())
		check(t, err)
		_, err = pb.NewMembershipClient(as(t, m, i)).Followers(t.Context(), &pb.FollowersRequest{})
		if (err == nil) != may {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// A namenode that has started and hears no leader does not know who was removed since it was stopped.
func TestANamenodeThatMayLagBehindIsNotFollowed(t *testing.T) {
	t.Parallel()
	credentials, a, err := securitytest.Make(security.NewSecret())
	check(t, err)
	first := Founder(credentials.Member.Self(), credentials.Member.Certificate(), time.Now())
	c := newCluster(t, 2, func(conf *Config) {
		conf.Credentials = credentials
		conf.Servers = config.Servers{Namenodes: []config.NamenodeMember{{ID: "nn1"}, {ID: "nn2"}}}
		conf.Founding = func() (*Founding, error) { return &Founding{a, first}, nil }
	})
	i, err := a.Self("m7", []authority.Role{authority.Datanode}, nil, time.Now())
	check(t, err)
	ask := func(m *member) error {
		stream, err := pb.NewMembershipClient(as(t, m, i)).Follow(t.Context(), &pb.FollowRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	for _, m := range c.nodes {
		eventually(t, "both tell", func() bool { return ask(m) == nil })
	}
	for _, m := range c.nodes {
		m.stop()
	}
	c.start(0)
	m := c.nodes[0]
	eventually(t, "alone it tells nothing", func() bool {
		err := ask(m)
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "hears of no leader")
	})
	c.start(1)
	eventually(t, "with the other one", func() bool { return ask(m) == nil })
}
