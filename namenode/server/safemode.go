package server

import (
	"fmt"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

// safeThreshold is the share of blocks that must have a replica before a namenode leaves safe mode after its start
// (dfs.namenode.safemode.threshold-pct).
const safeThreshold = 0.999

// safeMode holds back changes: after the start until enough blocks have been reported, and while an administrator wants
// it. A namenode that has left the first does not come back to it; a new leader that has heard of the blocks as a
// follower leaves it as it steps up. The second is in the namespace: it outlives restarts and is every leader's.
type safeMode struct {
	started atomic.Bool // left the safe mode of the start
	local   atomic.Bool // wanted of this process while it followed: Hadoop's dfsadmin tells every namenode
}

// manual reports whether an administrator wants nothing to be changed.
func (m *safeMode) manual(s *Server) bool { return m.local.Load() || s.ns != nil && s.ns.SafeMode() }

// check is nil when the namespace may be changed. With other namenodes to ask, clients are told to try again while the
// start lasts, as in HDFS.
func (m *safeMode) check(s *Server) error {
	if m.started.Load() && !m.manual(s) && !s.listing.Load() {
		return nil
	}
	why := s.waiting()
	if why == "" {
		return nil
	}
	kind := metadata.ErrSafeMode
	if !m.manual(s) && len(s.config.Members) > 1 {
		kind = metadata.ErrRetriable
	}
	return metadata.Errorf(kind, "%s", why)
}

// SafeMode implements namenode.Cluster: the reason for which nothing can be changed, a disk that is nearly full included.
// HDFS breaks the line after the first sentence, where its shell and ours stop reading; the reason is for people, so it
// stays on the line.
func (s *Server) SafeMode() string {
	if why := s.waiting(); why != "" {
		return why
	}
	if s.group == nil { // not running
		return ""
	}
	if err := s.group.Writable(); err != nil {
		return lowResources(err)
	}
	return ""
}

// lowResources is how HDFS begins to say that a disk is full.
func lowResources(err error) string {
	return fmt.Sprintf("Name node is in safe mode. Resources are low on NN: %v. It goes on by itself when there is space again.", err)
}

// waiting is why safe mode holds changes back, by hand or since the start.
func (s *Server) waiting() string {
	if s.safe.manual(s) {
		return "Name node is in safe mode. It was turned on manually. Use \"hdfs dfsadmin -safemode leave\" to turn safe mode off."
	}
	s.soft.mu.Lock()
	if l := s.soft.listing; l != nil {
		listed := l.listed
		s.soft.mu.Unlock()
		return fmt.Sprintf("Name node is in safe mode. The blocks of the namespace are being listed, %d so far. Safe mode will be turned off automatically "+
			"once all are listed and the thresholds have been reached.", listed)
	}
	s.soft.mu.Unlock()
	if s.safe.started.Load() {
		return ""
	}
	s.soft.mu.Lock()
	st := s.soft.m.Statistics()
	live := s.soft.m.Live()
	s.soft.mu.Unlock()
	total, safe := st.Blocks, st.Blocks-st.Missing
	need := int64(float64(total)*safeThreshold + 0.5)
	if total > 0 {
		need = max(need, 1)
	}
	if safe >= need {
		return ""
	}
	return fmt.Sprintf("Name node is in safe mode. The reported blocks %d needs additional %d blocks to reach the threshold %.4f of total blocks %d. "+
		"The number of live datanodes %d has reached the minimum number 0. Safe mode will be turned off automatically once the thresholds have been reached.",
		safe, need-safe, safeThreshold, total, live)
}

// SetSafeMode implements namenode.Cluster. The leader's is the cluster's; a follower's is its own, until it leads and is
// told otherwise. Leaving also ends the safe mode of the start.
func (s *Server) SetSafeMode(on bool) error {
	if s.reign.Load() == nil {
		s.safe.local.Store(on)
	} else {
		err := s.await(func(done func(error)) {
			s.send(&logpb.Command{Op: &logpb.Command_SetSafeMode{SetSafeMode: &logpb.SetSafeMode{On: on}}},
				func(_ *namespace.Result, err error) { done(err) })
		})
		if err != nil {
			return err
		}
		s.safe.local.Store(false)
	}
	if !on {
		s.safe.started.Store(true)
	}
	s.pause()
	s.log.Info("safe mode set by hand", "on", on)
	return nil
}

// leaveSafeMode ends the safe mode of the start when it is time. Only a leader calls it: a follower does not know
// whether it has all of the log, and so how many blocks there are.
func (s *Server) leaveSafeMode() {
	if s.safe.started.Load() || s.waiting() != "" {
		return
	}
	s.safe.started.Store(true)
	s.log.Info("left safe mode")
	s.pause()
}

// pause holds the block manager's copies and deletions while in safe mode. It looks with the lock held: who looked last is the last to say.
func (s *Server) pause() {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.m.Pause(s.safe.manual(s) || !s.safe.started.Load())
}
