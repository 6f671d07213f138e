package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode/roster"
)

// Founding is what a new cluster begins with.
type Founding struct {
	Authority *authority.Authority
	// First is the machine that made it.
	First roster.Machine
}

// register gives the roster the namespace's.
type register struct{ *Server }

func (r register) Item(name string) (value []byte, version uint64) { return r.ns.Item(name) }
func (r register) Items(prefix string) iter.Seq2[string, []byte]   { return r.ns.Items(prefix) }
func (r register) RegisterVersion() uint64                         { return r.ns.RegisterVersion() }
func (r register) Change(ctx context.Context, changes ...roster.Change) (bool, error) {
	op := &logpb.ChangeRegister{}
	for _, c := range changes {
		op.Changes = append(op.Changes, &logpb.ItemChange{Name: c.Name, Value: c.Value, Remove: c.Value == nil, Version: c.Version})
	}
	return r.changeRegister(ctx, op)
}

// changeRegister reports whether a change is done, once it is durable.
func (s *Server) changeRegister(ctx context.Context, op *logpb.ChangeRegister) (bool, error) {
	type outcome struct {
		done bool
		err  error
	}
	ended := make(chan outcome, 1)
	s.send(&logpb.Command{Op: &logpb.Command_ChangeRegister{ChangeRegister: op}}, func(result *namespace.Result, err error) {
		ended <- outcome{err == nil && result.OK, err}
	})
	select {
	case o := <-ended:
		return o.done, o.err
	case <-ctx.Done():
		return false, metadata.Errorf(metadata.ErrRetriable, "the change is not acknowledged yet, and perhaps done later: %v", ctx.Err())
	}
}

// found puts the authority of a new cluster into the register, and says where the servers are that the leader is configured with. It
// reports whether the leader can go on.
func (s *Server) found(ctx context.Context) bool {
	trust, err := s.roster.Trust()
	if err != nil {
		s.log.Error("the register's list of members cannot be read", "error", err)
		return true
	}
	if trust == nil && s.config.Founding != nil {
		f, err := s.config.Founding()
		if err != nil {
			s.log.Error("the authority that this cluster should begin with cannot be read", "error", err)
		}
		if f != nil {
			if err := s.roster.Found(ctx, f.Authority, f.First, s.config.Servers); err != nil {
				s.log.Warn("the cluster's authority is not in the register yet", "error", err)
				return false
			}
		}
		if trust, err = s.roster.Trust(); err != nil {
			s.log.Error("the register's list of members cannot be read", "error", err)
			return true
		}
	}
	if trust == nil {
		s.log.Warn("this cluster has no certificate authority in its register: machines cannot join, and certificates are not renewed")
		return true
	}
	if s.config.Founded != nil {
		s.config.Founded(trust)
	}
	if s.config.Static {
		if err := s.roster.SetServers(ctx, s.config.Servers); err != nil {
			s.log.Warn("machines that join do not hear of the configured servers yet", "error", err)
		}
	}
	return true
}

// recoveredItem of the register is how often the group was made anew, as far as it is noted here.
const recoveredItem = "recovered"

// noteRecovery lifts the versions of the register to the time, in seconds since 1970, when the group was made anew of a backup, or of one
// survivor, since that was noted last: processes that still run heard of changes that are lost, and would take what they are told now for older.
func (s *Server) noteRecovery(ctx context.Context, recovered int, now time.Time) error {
	value, version := s.ns.Item(recoveredItem)
	noted := 0
	if value != nil {
		if err := json.Unmarshal(value, &noted); err != nil {
			return fmt.Errorf("item %s of the register: %w", recoveredItem, err)
		}
	}
	if recovered <= noted {
		return nil
	}
	done, err := s.changeRegister(ctx, &logpb.ChangeRegister{Changes: []*logpb.ItemChange{itemChange(recoveredItem, recovered, version)}, AtLeast: uint64(max(0, now.Unix()))})
	if err == nil && !done {
		err = errors.New("somebody else changed the register")
	}
	return err
}

// news wakes those who wait for a change of the register.
type news struct {
	version atomic.Uint64
	changed atomic.Pointer[chan struct{}]
}

// tell wakes them if there is one. Only the duties call it.
func (n *news) tell(version uint64) {
	if n.version.Swap(version) == version {
		return
	}
	next := make(chan struct{})
	if old := n.changed.Swap(&next); old != nil {
		close(*old)
	}
}

// wait returns a channel that is closed at the next change, and the version of which it is the next.
func (n *news) wait() <-chan struct{} {
	if c := n.changed.Load(); c != nil {
		return *c
	}
	first := make(chan struct{})
	n.changed.CompareAndSwap(nil, &first)
	return *n.changed.Load()
}

// advanceEvery is how often a leader looks whether a rotation of the authority can go on.
const advanceEvery = time.Second

// advance goes on with a rotation of the authority, beside the duties.
func (s *Server) advance(ctx context.Context, r *reign, now time.Time) {
	if now.Before(r.advanceAt) || !r.advancing.CompareAndSwap(false, true) {
		return
	}
	r.advanceAt = now.Add(advanceEvery)
	go func() {
		defer r.advancing.Store(false)
		before, err := s.roster.Rotation()
		if err != nil || before.Step == roster.Unrotated {
			return
		}
		if err := s.roster.Advance(ctx, false); err != nil {
			s.log.Warn("the next authority does not go on to follow", "step", before.Step, "error", err)
			return
		}
		if after, err := s.roster.Rotation(); err == nil && after.Step != before.Step {
			s.log.Info("one authority follows the other", "was", before.Step, "step", after.Step)
		}
	}()
}
