package server

import (
	"context"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// renewEvery is how often at most the renewals of one client are replicated. A client may write for a soft limit of 60 s
// after its last replicated renewal, and renews every 30 s, so that a new leader finds no lease expired that is alive.
const renewEvery = namespace.LogTime(20 * 1000)

// leases is what the leader has heard of lease holders, in log time. A new leader gives every holder a full limit.
type leases struct {
	mu      sync.Mutex
	holders map[string]*holder
}

type holder struct {
	heard      namespace.LogTime
	replicated namespace.LogTime
}

func (l *leases) init() { l.holders = map[string]*holder{} }

func (l *leases) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.holders)
}

// opened notes that a client has opened a file, which renewed its lease.
func (l *leases) opened(client string, now namespace.LogTime) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holders[client]
	if h == nil {
		h = &holder{}
		l.holders[client] = h
	}
	h.heard, h.replicated = now, now
}

// renew notes a renewal. True: it has to be replicated. Clients that hold nothing are not kept.
func (l *leases) renew(client string, now namespace.LogTime) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holders[client]
	if h == nil {
		return false
	}
	h.heard = now
	if now-h.replicated < renewEvery {
		return false
	}
	h.replicated = now
	return true
}

// silent reports whether a client was not heard of for so long that another may take what it writes.
func (l *leases) silent(client string, now namespace.LogTime) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holders[client]
	return h != nil && now-h.heard > namespace.SoftLimit
}

// look makes the table agree with the namespace's leases and returns the holders silent for longer than limit.
func (l *leases) look(all []namespace.LeaseInfo, now, limit namespace.LogTime) (expired []namespace.LeaseInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[string]bool, len(all))
	for _, info := range all {
		there[info.Holder] = true
		h := l.holders[info.Holder]
		if h == nil {
			l.holders[info.Holder] = &holder{heard: now}
			continue
		}
		if now-h.heard > limit {
			expired = append(expired, info)
		}
	}
	for name, h := range l.holders {
		if !there[name] && now-h.heard > namespace.SoftLimit {
			delete(l.holders, name)
		}
	}
	return expired
}

// RenewLease implements namenode.Writer. Most renewals are only remembered.
func (s *Server) RenewLease(c metadata.Caller, client string, done func(error)) {
	if _, err := s.leading(); err != nil {
		done(err)
		return
	}
	if !s.leases.renew(client, s.clock.now()) {
		done(nil)
		return
	}
	s.send(&logpb.Command{Op: &logpb.Command_RenewLease{RenewLease: &logpb.RenewLease{ClientName: client}}},
		func(_ *namespace.Result, err error) { done(err) })
}

// renewAll gives every writer a full limit, because none could renew while nobody led, and lets log time go on from where
// the log has it. It is done before anybody is served, so that nobody takes over from a writer that lives. False: the
// process ends.
func (s *Server) renewAll(ctx context.Context) bool {
	s.clock.stop()
	done := make(chan error, 1)
	s.send(&logpb.Command{Op: &logpb.Command_RenewLease{RenewLease: &logpb.RenewLease{Everybody: true}}},
		func(_ *namespace.Result, err error) { done <- err })
	select {
	case err := <-done:
		if err != nil { // such as a disk that is nearly full, which lets nobody take over either
			s.log.Warn("leases are not renewed by the new leader", "error", err)
		}
	case <-ctx.Done():
		return false
	}
	s.clock.start(s.ns.LogTime(), time.Now())
	return true
}

// takeOver begins to count the limits of all writers, and takes up the recoveries of the leader before.
func (s *Server) takeOver(r *reign) {
	now := s.clock.now()
	for _, info := range s.ns.Holders() {
		if info.Holder == namespace.RecoveryHolder {
			s.recoverAll(r, info)
		} else {
			s.leases.opened(info.Holder, now)
		}
	}
}

// checkLeases recovers the files of holders that are silent beyond the hard limit, and of those that wrote through a
// datanode that is dead.
func (s *Server) checkLeases(r *reign) {
	all := s.ns.Holders()
	now := time.Now()
	hard := namespace.LogTime(s.config.Properties.LeaseHardLimit) * 1000
	for _, info := range s.leases.look(all, s.clock.log(now), hard) {
		if info.Holder != namespace.RecoveryHolder {
			s.log.Info("lease expired", "holder", info.Holder)
			s.recoverAll(r, info)
		}
	}
	for _, info := range all {
		if info.Holder != namespace.RecoveryHolder && info.ClientNode != "" && s.gone(r, namenode.NodeID(info.ClientNode), now) {
			s.log.Info("writer's datanode is dead", "holder", info.Holder, "node", info.ClientNode)
			s.recoverAll(r, info)
		}
		if info.Holder == namespace.RecoveryHolder {
			for _, id := range s.ns.LeaseFiles(info.Holder) { // those whose recovery got lost between the log and the block manager
				if f, ok := s.ns.FileByID(id); ok && !s.recovering(f) {
					s.recover(r, id, namespace.RecoveryHolder, nil)
				}
			}
		}
	}
}

// gone reports whether a datanode is dead: declared so, or never heard of in this process for as long as a death takes.
func (s *Server) gone(r *reign, id namenode.NodeID, now time.Time) bool {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if s.soft.m.Known(id) {
		return false
	}
	return s.soft.m.Dead(id) || now.Sub(r.began) > s.config.DeadAfter
}

func (s *Server) recoverAll(r *reign, info namespace.LeaseInfo) {
	for _, id := range s.ns.LeaseFiles(info.Holder) {
		s.recover(r, id, info.Holder, nil)
	}
}

// recover takes an open file from its holder: closed at once if its blocks are complete, else by a recovery of its last
// block. done may be nil; true: the file is closed.
func (s *Server) recover(r *reign, inode metadata.INodeID, from string, done func(bool, error)) {
	if done == nil {
		done = func(_ bool, err error) {
			if err != nil {
				s.log.Warn("lease recovery failed", "inode", uint64(inode), "holder", from, "error", err)
			}
		}
	}
	s.newGeneration(r, func(id metadata.Generation, err error) {
		if err != nil {
			done(false, err)
			return
		}
		s.send(&logpb.Command{Op: &logpb.Command_StartRecovery{StartRecovery: &logpb.StartRecovery{
			Inode: uint64(inode), RecoveryId: uint64(id), Holder: from,
		}}}, func(result *namespace.Result, err error) {
			switch {
			case err != nil:
				done(false, err)
			case result.OK:
				done(true, nil)
			case result.File == nil || len(result.File.Blocks) == 0: // somebody was faster
				done(false, nil)
			default:
				s.recoverBlock(r, result.File, done)
			}
		})
	})
}

// promised reports whether the last block of an open file has bytes that were synced.
func promised(f *namespace.FileInfo) bool {
	return f.Synced || len(f.Blocks) > 0 && f.Blocks[len(f.Blocks)-1].Length > 0
}

// recoverBlock has datanodes agree on the last block of a file under recovery, or drops the block if nothing in it was
// promised and no datanode ever had it, which those of its pipeline have to say: one that is late may have bytes that
// were flushed. What was promised is dropped as well if an operator gave up a datanode that had it.
func (s *Server) recoverBlock(r *reign, f *namespace.FileInfo, done func(bool, error)) {
	last := f.Blocks[len(f.Blocks)-1]
	s.soft.mu.Lock()
	if f.Source.ID != 0 {
		s.soft.m.ExpectLike(last.ID, f.Source.ID)
	}
	lost := promised(f) && s.soft.m.GivenUp(f.Nodes)
	drop := (lost || !promised(f)) && s.soft.m.Nowhere(last.ID, f.Nodes)
	var late []string
	if !drop {
		s.soft.m.Recover(time.Now(), last.ID, f.RecoveryID)
		late = s.soft.m.Late(f.Nodes)
	}
	s.soft.mu.Unlock()
	if !drop {
		if len(late) > 0 {
			s.log.Warn("block recovery may have to wait for datanodes that are down: they may have what was written last",
				"file", f.Path, "block", last, "synced", promised(f), "datanodes", late)
		}
		s.kickAll()
		done(false, nil)
		return
	}
	if lost {
		s.log.Error("the last block of a file is lost: an operator gave up the datanodes that had it", "file", f.Path, "block", last, "datanodes", f.Nodes)
	}
	s.send(&logpb.Command{Op: &logpb.Command_CommitRecovery{CommitRecovery: &logpb.CommitRecovery{
		Block: blockOf(last), RecoveryId: uint64(f.RecoveryID), Close: true, DeleteBlock: true, AcceptLoss: lost,
	}}}, func(result *namespace.Result, err error) { done(err == nil && result.OK, err) })
}

// RecoverLease implements namenode.Writer.
func (s *Server) RecoverLease(c metadata.Caller, path, client string, done func(bool, error)) {
	r, err := s.leading()
	if err != nil {
		done(false, err)
		return
	}
	if err := s.safe.check(s); err != nil {
		done(false, err)
		return
	}
	s.read(&c, func(err error) {
		var id metadata.INodeID
		if err == nil {
			id, err = s.ns.Resolve(c, path)
		}
		if err != nil {
			done(false, err)
			return
		}
		f, ok := s.ns.FileByID(id)
		switch {
		case !ok:
			done(false, metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s", path))
		case !f.UnderConstruction:
			done(true, nil)
		case s.ns.CheckAccess(c, path, metadata.Write) != nil:
			done(false, s.ns.CheckAccess(c, path, metadata.Write))
		case f.Holder == namespace.RecoveryHolder && s.recovering(f):
			done(false, nil) // it is on its way
		default:
			s.recover(r, id, f.Holder, done)
		}
	})
}

func (s *Server) recovering(f *namespace.FileInfo) bool {
	if len(f.Blocks) == 0 {
		return false
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return s.soft.m.Recovering(f.Blocks[len(f.Blocks)-1].ID) == f.RecoveryID
}

// expired starts the recovery of a file whose writer another client found silent.
func (s *Server) expired(e *namespace.ExpiredLease) {
	if e == nil || e.Holder == namespace.RecoveryHolder {
		return
	}
	if r := s.reign.Load(); r != nil {
		s.recover(r, e.INode, e.Holder, nil)
	}
}
