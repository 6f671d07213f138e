package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/roster"
)

// Program is a process of the cluster, and its version.
type Program struct {
	Machine string `json:"machine"`
	// Servers are its roles, with their names in the lists of namenodes and resource managers: "namenode nn1", "datanode".
	Servers []string `json:"servers"`
	Version string   `json:"version"`
	Level   int      `json:"level"`
	Oldest  int      `json:"oldest"`
}

func (p Program) String() string {
	return fmt.Sprintf("%s (%s, hops %s, level %d)", p.Machine, strings.Join(p.Servers, ", "), p.Version, p.Level)
}

// Level is how far an upgrade of the cluster is.
type Level struct {
	roster.Level
	// Newest is the highest level that a live process knows: what the cluster can be raised to when all know it.
	Newest int `json:"newest"`
	// Programs are the live processes.
	Programs []Program `json:"programs"`
	// Silent are namenodes, which did not answer or were not heard, resource managers that were not heard, and machines with a live datanode that
	// was not: "resourcemanager rm2", "datanode m3".
	Silent []string `json:"silent,omitempty"`
}

// Behind are the processes that do not know the newest level.
func (l *Level) Behind() []Program {
	return slices.DeleteFunc(slices.Clone(l.Programs), func(p Program) bool { return p.Level >= l.Newest })
}

// heedLevel does what the register's level asks for: the directory gets its mark, and then the members hear; where the disk does not take the mark, it
// tries again at the next call. Error: this program does not know the level.
func (s *Server) heedLevel() error {
	version := s.ns.RegisterVersion() // before it is read: a change in between is seen the next time
	if version == s.heeded {
		return nil
	}
	l, err := s.roster.Level()
	if err != nil { // as other items: everything else goes on
		s.log.Error("the cluster's level cannot be read", "error", err)
		s.heeded = version
		return nil
	}
	m := s.config.Credentials.Member
	if err := m.Program().In(l.Level); err != nil {
		return err
	}
	if l.Level > s.group.Level() {
		if err := s.group.Raise(l.Level); err != nil {
			if text := err.Error(); text != s.unnoted {
				s.unnoted = text
				s.log.Error("the cluster has been raised, which cannot be noted; trying again", "level", l.Level, "error", err)
			}
			return nil
		}
		s.unnoted = ""
		s.log.Info("the cluster has been raised", "level", l.Level)
	}
	m.Raise(l.Level)
	s.heeded = version
	return nil
}

// followers are the processes that follow this namenode.
type followers struct {
	mu  sync.Mutex
	all map[*pb.Follower]struct{}
	of  map[string]int // how many, by machine
}

// maxFollowing is how many processes of one machine may follow at the same time.
const maxFollowing = 256

// enter notes one until the function is called; false: too many of its machine are noted.
func (f *followers) enter(one *pb.Follower) (leave func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all, f.of = map[*pb.Follower]struct{}{}, map[string]int{}
	}
	if f.of[one.Machine] == maxFollowing {
		return nil, false
	}
	f.all[one] = struct{}{}
	f.of[one.Machine]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.all, one)
		if f.of[one.Machine]--; f.of[one.Machine] == 0 {
			delete(f.of, one.Machine)
		}
	}, true
}

func (f *followers) list() (out []*pb.Follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for one := range f.all {
		out = append(out, one)
	}
	return out
}

// Limits of what a process says of itself.
const maxServers = 16

// followerOf is what a process says of itself, as far as it may: its level is what its connection has shown, its roles are those of its machine's
// certificate, and it takes no other machine's name in the lists of servers.
func (s *Server) followerOf(who security.Principal, p *pb.Program) *pb.Follower {
	out := &pb.Program{Version: printable(p.GetVersion()), Level: uint32(max(who.Program.Level, 1)), Oldest: uint32(max(who.Program.Oldest, 1))}
	servers := p.GetServers()
	for _, of := range servers[:min(len(servers), maxServers)] {
		role, id := printable(of.GetRole()), printable(of.GetId())
		_, another := s.roster.Machine(id)
		if !who.Server.Has(authority.Role(role)) || id != "" && id != who.Server.Machine && another {
			s.log.Warn("a process says that it is a server which its machine is not", "machine", who.Server.Machine, "role", role, "id", id)
			continue
		}
		out.Servers = append(out.Servers, &pb.ServerOf{Role: role, Id: id})
	}
	return &pb.Follower{Machine: who.Server.Machine, Program: out}
}

// Followers implements pb.MembershipServer.
func (m *membership) Followers(ctx context.Context, _ *pb.FollowersRequest) (*pb.FollowersResponse, error) {
	if _, err := callerAs(ctx, authority.Namenode); err != nil {
		return nil, err
	}
	return &pb.FollowersResponse{Followers: m.server.followers.list()}, nil
}

// askTime is how long another namenode may take to say who follows it.
const askTime = 3 * time.Second

// level asks all namenodes who follows them: every process follows one.
func (s *Server) level(ctx context.Context) (*Level, error) {
	now, err := s.roster.Level()
	if err != nil {
		return nil, err
	}
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	lists, failed := make([][]*pb.Follower, len(servers.Namenodes)+1), make([]bool, len(servers.Namenodes))
	lists[0] = s.followers.list()
	var wait sync.WaitGroup
	for i, n := range servers.Namenodes {
		if n.ID == s.config.ID {
			continue
		}
		wait.Go(func() {
			list, err := s.askFollowers(asking, n.GRPC)
			if err != nil {
				s.log.Warn("a namenode does not say who follows it", "namenode", n.ID, "error", err)
				failed[i] = true
			}
			lists[i+1] = list
		})
	}
	wait.Wait()
	out := &Level{Level: now, Newest: now.Level, Programs: []Program{}}
	heard, datanodes := map[string]bool{}, map[string]bool{}
	for _, f := range slices.Concat(lists...) {
		p := Program{Machine: f.Machine, Version: f.Program.GetVersion(), Level: int(f.Program.GetLevel()), Oldest: int(f.Program.GetOldest())}
		for _, of := range f.Program.GetServers() {
			p.Servers = append(p.Servers, strings.TrimSpace(of.Role+" "+of.Id))
			heard[of.Role+" "+of.Id] = true
			if of.Role == string(authority.Datanode) {
				datanodes[f.Machine] = true
			}
		}
		out.Programs = append(out.Programs, p)
		out.Newest = max(out.Newest, p.Level)
	}
	slices.SortFunc(out.Programs, func(a, b Program) int {
		return cmp.Or(strings.Compare(a.Machine, b.Machine), slices.Compare(a.Servers, b.Servers), strings.Compare(a.Version, b.Version))
	})
	missing := func(role authority.Role, id string) {
		if name := string(role) + " " + id; !heard[name] {
			out.Silent = append(out.Silent, name)
		}
	}
	for i, n := range servers.Namenodes {
		if failed[i] { // nobody knows who follows it
			heard[string(authority.Namenode)+" "+n.ID] = false
		}
		missing(authority.Namenode, n.ID)
	}
	for _, r := range servers.ResourceManagers {
		missing(authority.ResourceManager, r.ID)
	}
	for _, d := range s.Datanodes() {
		at := d.Node.Machine
		if m, ok := s.roster.Machine(at); ok && !m.Removed.IsZero() {
			continue // it is let in nowhere any more, whatever was heard of it before
		}
		if d.Alive && at != "" && !datanodes[at] {
			datanodes[at] = true // once
			out.Silent = append(out.Silent, string(authority.Datanode)+" "+at)
		}
	}
	return out, nil
}

func (s *Server) askFollowers(ctx context.Context, addr string) ([]*pb.Follower, error) {
	key := s.config.Credentials.Key(authority.Namenode)
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(key.Credentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := pb.NewMembershipClient(conn).Followers(ctx, &pb.FollowersRequest{})
	return answer.GetFollowers(), err
}

// lookAgain is how long after the first look who runs is looked at once more: a process that lost its namenode follows the next one by then.
const lookAgain = 3 * time.Second

// raise raises the cluster to the newest level, if all processes know it.
func (s *Server) raise(ctx context.Context) (*Level, error) {
	l, err := s.knownByAll(ctx)
	if err != nil {
		return nil, err
	}
	if l.Newest > l.Level.Level {
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		newest := l.Newest
		if l, err = s.knownByAll(ctx); err != nil {
			return nil, err
		}
		if l.Newest != newest {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "The cluster cannot be raised from level %d: the versions change at this moment: try again", l.Level.Level)
		}
	}
	if err := s.roster.Raise(ctx, l.Newest); err != nil {
		return nil, err
	}
	l.Level, err = s.roster.Level()
	return l, err
}

// knownByAll looks who runs. Error: not all know the newest level, or it is not known whether they do.
func (s *Server) knownByAll(ctx context.Context) (*Level, error) {
	l, err := s.level(ctx)
	if err != nil {
		return nil, err
	}
	if behind := l.Behind(); len(behind) > 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "The cluster cannot be raised from level %d to %d: an older version runs on %s: upgrade it, or stop it",
			l.Level.Level, l.Newest, some(behind))
	}
	if len(l.Silent) > 0 && l.Newest > l.Level.Level {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "The cluster cannot be raised from level %d to %d: it is not known which version %s runs: start it, or take its machine out (`hops cluster remove`)",
			l.Level.Level, l.Newest, some(l.Silent))
	}
	return l, nil
}

// some are the first of many.
func some[T any](all []T) string {
	const most = 10
	var b strings.Builder
	for i, one := range all[:min(len(all), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, one)
	}
	if n := len(all) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}

func (s *Server) showLevel(ctx context.Context, _ *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	return s.level(ctx)
}

func (s *Server) raiseLevel(ctx context.Context, _ *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	return s.raise(ctx)
}

// RollingUpgrade implements namenode.Cluster.
func (s *Server) RollingUpgrade(c metadata.Caller, action namenode.UpgradeAction, done func(*namenode.Upgrade, error)) {
	if !c.Superuser {
		done(nil, metadata.NeedsSuperuser(c.User, "rollingUpgrade"))
		return
	}
	if err := s.leads(); err != nil {
		done(nil, err)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookAgain+3*askTime)
		defer cancel()
		done(s.rollingUpgrade(ctx, action))
	}()
}

func (s *Server) rollingUpgrade(ctx context.Context, action namenode.UpgradeAction) (*namenode.Upgrade, error) {
	before, err := s.roster.Level()
	if err != nil {
		return nil, err
	}
	switch action {
	case namenode.PrepareUpgrade:
		err = s.roster.Prepare(ctx)
	case namenode.FinalizeUpgrade:
		_, err = s.raise(ctx)
	}
	if err != nil {
		return nil, err
	}
	now, err := s.roster.Level()
	switch {
	case err != nil:
		return nil, err
	case action == namenode.FinalizeUpgrade && (!before.Prepared.IsZero() || now.Level > before.Level):
		return &namenode.Upgrade{Started: cmp.Or(before.Prepared, now.Raised), Finalized: now.Raised}, nil
	case now.Prepared.IsZero(): // HDFS has nothing to say then
		return nil, nil
	}
	return &namenode.Upgrade{Started: now.Prepared}, nil
}
