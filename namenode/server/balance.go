package server

import (
	"math"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/hostlist"
)

// The balancer is the leader's: it has what HDFS's balancer asks the namenode and the datanodes for, and the gates that keep a replica
// too few from coming about. `hops balancer` keeps it going; when that ends or is cut off, nothing more is moved.

// balanceFor is how long a balancer goes on without being asked to.
const balanceFor = 10 * time.Second

// balancer is who balances.
type balancer struct {
	mu      sync.Mutex
	session string
	until   time.Time
}

// Balance implements namenode.Cluster.
func (s *Server) Balance(c metadata.Caller, r namenode.BalanceRequest, done func(*namenode.Balanced, error)) {
	done(s.balance(c, r, time.Now()))
}

func (s *Server) balance(c metadata.Caller, r namenode.BalanceRequest, now time.Time) (*namenode.Balanced, error) {
	if _, err := s.leading(); err != nil {
		return nil, err
	}
	if !c.Superuser {
		return nil, metadata.NeedsSuperuser(c.User, "balance")
	}
	if err := s.safe.check(s); err != nil {
		return nil, err
	}
	if r.Session == "" || len(r.Session) > 255 || math.IsNaN(r.Threshold) || r.Threshold < 1 || r.Threshold > 100 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "balance: want a session and a threshold of 1 to 100 percent, not %q and %v", r.Session, r.Threshold)
	}
	want := blockmanager.Balance{Threshold: r.Threshold}
	include, err := entries(r.Include)
	if err != nil {
		return nil, err
	}
	exclude, err := entries(r.Exclude)
	if err != nil {
		return nil, err
	}
	source, err := entries(r.Source)
	if err != nil {
		return nil, err
	}
	if len(include)+len(exclude) > 0 {
		want.Takes = func(n *namenode.Node) bool { return (len(include) == 0 || means(include, n)) && !means(exclude, n) }
	}
	if len(source) > 0 {
		want.Gives = func(n *namenode.Node) bool { return means(source, n) }
	}
	b := &s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != "" && b.session != r.Session && now.Before(b.until) {
		return nil, metadata.Errorf(metadata.ErrExist, "Another Balancer is running..")
	}
	fresh := b.session != r.Session
	b.session, b.until = r.Session, now.Add(balanceFor)
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if fresh {
		s.soft.m.SetBalance(nil)
		s.log.Info("a balancer begins", "session", r.Session, "threshold", r.Threshold, "by", c.User)
		s.auditBalance(c, "begin")
	}
	s.soft.m.SetBalance(&want)
	x := s.soft.m.Balanced()
	if r.Stop {
		b.session = ""
		s.soft.m.SetBalance(nil)
		s.log.Info("a balancer ends", "session", r.Session, "moved", x.Moved)
		s.auditBalance(c, "end")
	}
	return &namenode.Balanced{Moved: x.Moved, Blocks: x.Blocks, Moving: x.Moving, Left: x.Left, Failed: x.Failed, Over: x.Over, Under: x.Under}, nil
}

// auditBalance keeps the beginning and the end of a balancer, not that it goes on, which it says every second.
func (s *Server) auditBalance(c metadata.Caller, what string) {
	s.config.Door.Record(security.Decision{Allowed: true, Caller: c, Port: "rpc", Command: "balance", Target: what})
}

// endBalance ends the balancer that nobody keeps going.
func (s *Server) endBalance(now time.Time) {
	b := &s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == "" || now.Before(b.until) {
		return
	}
	s.log.Info("a balancer has gone without a word", "session", b.session)
	b.session = ""
	s.soft.mu.Lock()
	s.soft.m.SetBalance(nil)
	s.soft.mu.Unlock()
}

// entries reads names of datanodes.
func entries(names []string) ([]hostlist.Entry, error) {
	const most = 10_000
	if len(names) > most {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%d datanodes are named, %d are allowed", len(names), most)
	}
	out := make([]hostlist.Entry, len(names))
	for i, name := range names {
		e, err := hostlist.ParseEntry(name)
		if err != nil {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
		}
		out[i] = e
	}
	return out, nil
}

func means(list []hostlist.Entry, n *namenode.Node) bool {
	for _, e := range list {
		if e.Means(n) {
			return true
		}
	}
	return false
}
