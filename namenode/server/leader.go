package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
)

// reign is one period of leadership. What hangs on it ends with it.
type reign struct {
	term  uint64
	began time.Time
	ids   ids
	// reclaiming: a Reclaim command is under way.
	reclaiming atomic.Bool
	// trashAt is when the trash was emptied last, or the reign began; only the duties look. emptying: it is being done.
	trashAt  time.Time
	emptying atomic.Bool
	// recalling: a datanode that was given up and has come back is being recalled.
	recalling atomic.Bool
	// tiering: replicas are being brought to where storage policies want them.
	tiering atomic.Bool
	// evicted is how many answers kept for repetition had gone before their time when it was last said; warned is when.
	evicted int64
	warned  time.Time
	// hosts: the lists of datanodes have been read, or need not be. ending: a maintenance whose time is over is being ended.
	hosts  atomic.Bool
	ending atomic.Bool
	// rolling: new keys for block tokens are under way; rollAt: not before that time again. Only the duties look at rollAt.
	rolling atomic.Bool
	rollAt  time.Time
	// tokensAt is when delegation tokens and their keys were looked at last; only the duties look. tending: one of them is being changed.
	tokensAt time.Time
	tending  atomic.Bool
	// advancing: a rotation of the authority is looked at; advanceAt: not before that time again. Only the duties look at advanceAt.
	advancing atomic.Bool
	advanceAt time.Time
	// ends are the open ends that are being sealed, or wait for another try.
	ends sealing
	// codings are the small files that are being coded, because something is to be appended to them.
	codings codings
	// sweptAt is when the directory of rewrites was looked through last; only the duties look. sweeping: it is being done.
	sweptAt  time.Time
	sweeping atomic.Bool
	// lazyAt is when lazily persisted files were looked at last; only the duties look. scrubbing: it is being done, by who alone looks at lazyLost, the blocks without a replica at the
	// last look.
	lazyAt    time.Time
	scrubbing atomic.Bool
	lazyLost  map[metadata.BlockID]bool
}

// leadership is told of every change. It must be quick: the duties take it from there.
func (s *Server) leadership(l raftstore.Leadership) {
	s.reignMu.Lock()
	s.latest = l
	if r := s.reign.Load(); r != nil && (!l.Leader || l.Term != r.term) {
		s.reign.Store(nil)
	}
	s.reignMu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// enthrone makes r the reign if it still is.
func (s *Server) enthrone(r *reign) bool {
	s.reignMu.Lock()
	defer s.reignMu.Unlock()
	if !s.latest.Leader || s.latest.Term != r.term {
		return false
	}
	s.reign.Store(r)
	return true
}

// tick is how often time passes for the block manager.
const tick = 200 * time.Millisecond

// leasesEvery is how often leases are looked through.
const leasesEvery = 2 * time.Second

// duties runs what happens without being asked, for leaders and followers.
func (s *Server) duties(ctx context.Context) error {
	t := pace.NewBeat(tick)
	defer t.Stop()
	var term uint64 // of the reign whose duties have begun
	var leasesAt time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-t.C:
			t.Next()
		}
		s.reignMu.Lock()
		l := s.latest
		s.reignMu.Unlock()
		switch {
		case l.Leader && l.Term != term:
			if term != 0 {
				s.stepDown()
			}
			if s.stepUp(ctx, l.Term) {
				term = l.Term
				leasesAt = time.Time{}
			}
		case !l.Leader && term != 0:
			term = 0
			s.stepDown()
		}
		s.setCluster(s.ns.ClusterID())
		if err := s.heedLevel(); err != nil {
			return err
		}
		s.currentTrust()
		s.news.tell(s.ns.RegisterVersion())
		s.pass(time.Now())
		if time.Since(leasesAt) >= leasesEvery {
			leasesAt = time.Now()
			s.ns.FitMemory()
			s.readKnown()
			if r := s.reign.Load(); r != nil {
				s.checkLeases(r)
				s.checkTrash(r, leasesAt)
				s.checkLazy(r, leasesAt)
				s.checkRetries(r, leasesAt)
				s.checkTokens(r, leasesAt)
				s.sealEnds(r, leasesAt)
				s.sweepRewrites(r, leasesAt)
				s.noteKnown()
			}
		}
		if r := s.reign.Load(); r != nil {
			s.advance(ctx, r, time.Now())
		}
		if l.LeaderID != "" && s.cluster.Load() != nil && (l.Leader == (s.reign.Load() != nil)) {
			s.readyOnce.Do(func() { close(s.ready) })
		}
	}
}

// stepUp begins a reign. A new cluster gets its name before anybody is served.
func (s *Server) stepUp(ctx context.Context, term uint64) bool {
	r := &reign{term: term, began: time.Now(), trashAt: time.Now(), sweptAt: time.Now(), lazyAt: time.Now(), evicted: s.ns.Counts().RetriesEvicted}
	if !s.renewAll(ctx) {
		return false
	}
	if s.ns.ClusterID() == "" {
		named := make(chan error, 1)
		s.newGeneration(r, func(_ metadata.Generation, err error) { named <- err })
		select {
		case err := <-named:
			if err != nil {
				s.log.Warn("cannot name the new cluster yet", "error", err)
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
	s.setCluster(s.ns.ClusterID())
	for _, first := range []struct {
		missing bool
		roll    func(func(error))
	}{{s.ns.NewestBlockKey() == 0, s.rollBlockKeys}, {s.ns.TokenFigures(0).NewestKey == 0, s.rollTokenKey}} {
		if !first.missing {
			continue
		}
		made := make(chan error, 1)
		first.roll(func(err error) { made <- err })
		select {
		case err := <-made:
			if err != nil {
				s.log.Warn("the new cluster has no keys for tokens yet", "error", err)
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
	if !s.found(ctx) {
		return false
	}
	if s.group.Level() >= release.Requests {
		if err := s.noteRecovery(ctx, s.group.Recovered(), time.Now()); err != nil {
			s.log.Warn("processes that know a later list of members do not hear yet that the group was made anew", "error", err)
			return false
		}
	}
	s.soft.mu.Lock()
	s.soft.m.Lead(r.began, term)
	s.soft.mu.Unlock()
	s.leases.reset()
	s.leaveSafeMode()
	if !s.enthrone(r) {
		s.stepDown()
		return false
	}
	s.log.Info("leading", "term", term, "cluster", s.ClusterID())
	if r.ids.empty() {
		s.reserve(r)
	}
	s.takeOver(r)
	return true
}

// stepDown ends a reign: nobody is given orders or kept waiting any more.
func (s *Server) stepDown() {
	s.soft.mu.Lock()
	s.soft.m.Follow()
	s.soft.mu.Unlock()
	s.soft.abandon()
	s.clock.stop()
}

// pass lets time pass for the block manager and acts on what it noticed.
func (s *Server) pass(now time.Time) {
	s.clock.tick(now)
	s.pause()     // safe mode may have been set, or ended, by the log
	s.forgotten() // so may datanodes have been given up
	s.heedWishes(now)
	s.soft.mu.Lock()
	ev := s.soft.m.Tick(now)
	woken := s.soft.satisfied()
	due := s.soft.m.Due(now)
	s.soft.mu.Unlock()
	wake(woken)
	for _, id := range ev.Died {
		s.log.Warn("datanode is dead", "node", id, "silent", s.config.DeadAfter)
	}
	r := s.reign.Load()
	if r == nil {
		return
	}
	s.leaveSafeMode()
	if v := s.currentTrust().message.Version; v != s.told {
		s.told = v
		s.kickAll()
	} else {
		s.kick(due)
	}
	s.reclaim(r)
	s.checkBlockKeys(r, now)
	s.recall(r)
	s.checkHosts(r)
	s.endMaintenance(r, now)
	s.endBalance(now)
	s.heedTiers(r)
	if len(ev.Died) > 0 {
		s.checkLeases(r)
	}
	for _, id := range ev.Overdue {
		if o, ok := s.ns.BlockOwner(id); ok {
			s.soft.mu.Lock()
			missing := s.soft.m.Missing(id)
			s.soft.mu.Unlock()
			s.log.Warn("block recovery is overdue, trying again", "block", o.Block, "recovery", o.RecoveryID, "missing", missing)
			s.recover(r, o.INode, namespace.RecoveryHolder, nil)
		}
	}
}

// checkRetries says, once a minute at most, that repeated requests may have effect twice: there is no room for the answers
// of ten minutes.
func (s *Server) checkRetries(r *reign, now time.Time) {
	c := s.ns.Counts()
	if c.RetriesEvicted == r.evicted || now.Sub(r.warned) < time.Minute {
		return
	}
	s.log.Warn("answers kept for the repetition of requests go before their time: a request that is repeated after a failover may have effect twice",
		"gone", c.RetriesEvicted-r.evicted, "kept", c.Retries, "bytes", c.RetryBytes, "limit", namespace.RetryBytes)
	r.evicted, r.warned = c.RetriesEvicted, now
}

// Active implements namenode.Cluster.
func (s *Server) Active() bool { return s.reign.Load() != nil }

// leading is the reign, or the error of one who does not lead.
func (s *Server) leading() (*reign, error) {
	if r := s.reign.Load(); r != nil {
		return r, nil
	}
	return nil, namenode.ErrStandbyWrite
}

// reclaim gets on with deleted directories and snapshots when no other commands do it on the way: one command after the other.
func (s *Server) reclaim(r *reign) {
	if c := s.ns.Counts(); c.Reclaiming == 0 && c.DeletedSnapshots == 0 || !r.reclaiming.CompareAndSwap(false, true) {
		return
	}
	s.send(&logpb.Command{Op: &logpb.Command_Reclaim{Reclaim: &logpb.Reclaim{Limit: namespace.ReclaimAtOnce}}}, func(_ *namespace.Result, err error) {
		r.reclaiming.Store(false)
		if err == nil {
			s.reclaim(r)
		}
	})
}
