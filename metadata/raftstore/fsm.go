package raftstore

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/release"
)

// fsm stands between raft and the state machine. raft calls it on one goroutine.
type fsm struct {
	group   *Group
	machine StateMachine
	// applied is the last entry of any kind known to be contained in the state.
	applied atomic.Uint64
	// awaited is the entry that the group's reader waits for, 0: none; progress wakes it.
	awaited  atomic.Uint64
	progress chan struct{}
	// applying is the entry that the state machine has been given and has not come back with; 0: there is none.
	applying atomic.Uint64
	// replacing is how many callers replace the whole state now: the state machine may answer nobody meanwhile, for as long as a large state takes.
	replacing atomic.Int32
	// begun is the last entry whose commands the state machine was given, or those of a snapshot up to it: they may show already.
	begun   atomic.Uint64
	waiters waiters
}

var _ raft.ConfigurationStore = (*fsm)(nil)

// applied is what became of an entry: results has one for each command, or is nil.
type applied struct {
	results []any
	began   time.Time
	took    time.Duration
}

// Apply implements raft.FSM; the response is *applied.
func (f *fsm) Apply(l *raft.Log) any {
	commands, err := decodeBatch(l.Index, l.Data)
	if err != nil {
		f.group.fail(err)
		f.group.leave(err) // going on would make this member differ from the others
	}
	if len(commands) == 0 { // a new leader's barrier
		f.advance(l.Index)
		return &applied{}
	}
	defer f.stop()
	f.holdBack(heldBack)
	began := time.Now()
	raise(&f.begun, l.Index)
	f.applying.Store(l.Index)
	results := f.machine.Apply(l.Index, commands)
	f.applying.Store(0)
	if results != nil && len(results) != len(commands) {
		panic(fmt.Sprintf("state machine of group %s returned %d results for %d commands", f.group.name, len(results), len(commands)))
	}
	f.group.hashes.note(l.Index, f.machine)
	f.advance(l.Index)
	return &applied{results, began, time.Since(began)}
}

// heldBack is for how long an entry waits for a state machine that is behind.
const heldBack = 20 * time.Millisecond

// holdBack waits, for most at most, while the state machine is behind.
func (f *fsm) holdBack(most time.Duration) {
	m, ok := f.machine.(Behind)
	if !ok {
		return
	}
	behind := m.Behind()
	if behind == nil {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-behind:
	case <-t.C:
	case <-f.group.dying:
	}
}

// stop ends the group, with the reason in one line, when a command is of a later version of the program. Other panics go on.
func (f *fsm) stop() {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, release.ErrOlder) {
		f.group.fail(err)
		f.group.leave(err)
	}
	panic(p) // going on would make this member differ from the others
}

// StoreConfiguration implements raft.ConfigurationStore: entries of raft that changed the membership.
func (f *fsm) StoreConfiguration(index uint64, c raft.Configuration) {
	f.group.members.changed(index, c)
	f.advance(index)
}

// advance notes that the state contains everything up to index.
func (f *fsm) advance(index uint64) {
	for {
		old := f.applied.Load()
		if old >= index {
			return
		}
		if f.applied.CompareAndSwap(old, index) {
			break
		}
	}
	f.waiters.wake(index)
	if awaited := f.awaited.Load(); awaited != 0 && index >= awaited {
		select {
		case f.progress <- struct{}{}:
		default:
		}
	}
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.machine.Freeze()
	if err != nil {
		return nil, err
	}
	return &frozen{snapshot: s, group: f.group}, nil
}

type frozen struct {
	snapshot Snapshot
	group    *Group
}

// Persist implements raft.FSMSnapshot. raft closes the sink.
func (f *frozen) Persist(sink raft.SnapshotSink) error {
	if k, ok := sink.(*snapshotSink); ok && f.group.versioned() != nil {
		ref, err := f.snapshot.(Checkpoint).Write()
		if errors.Is(err, ErrStoreFailed) {
			f.group.retire(err)
		}
		if err != nil {
			return err
		}
		return k.refer(ref)
	}
	w, err := newFrameWriter(abortable{sink, f.group.dying}, f.snapshot.Index())
	if err != nil {
		return err
	}
	if _, err := f.snapshot.WriteTo(w); err != nil {
		return err
	}
	return w.Close()
}

func (f *frozen) Release() { f.snapshot.Release() }

// abortable is a writer that fails once the group ends, so that closing it does not wait for a large snapshot.
type abortable struct {
	w     io.Writer
	dying <-chan struct{}
}

func (a abortable) Write(p []byte) (int, error) {
	select {
	case <-a.dying:
		return 0, errClosed
	default:
		return a.w.Write(p)
	}
}

// Restore implements raft.FSM for snapshots that the leader sent.
func (f *fsm) Restore(r io.ReadCloser) error {
	if f.group.versioned() != nil {
		return f.takeOver(r)
	}
	frames, err := newFrameReader(r)
	if err == nil {
		err = f.restore(frames)
	}
	if err != nil {
		f.group.fail(fmt.Errorf("restore snapshot: %w", err))
	}
	return err
}

// restore loads a snapshot unless the state machine is at or ahead of it: what a state machine contains is committed.
func (f *fsm) restore(frames *frameReader) error {
	if applied := f.machine.AppliedIndex(); applied >= frames.state && applied > 0 {
		f.advance(f.group.snapshots.reach(frames.state))
		return nil
	}
	raise(&f.begun, frames.state)
	f.replacing.Add(1)
	err := f.machine.Restore(frames)
	f.replacing.Add(-1)
	if err != nil {
		return err
	}
	// The state machine may have stopped reading at its own last record; what follows must still be sound.
	if _, err := io.Copy(io.Discard, frames); err != nil {
		return err
	}
	if got := f.machine.AppliedIndex(); got != frames.state {
		return fmt.Errorf("the state machine is at index %d after restoring a snapshot of %d", got, frames.state)
	}
	f.advance(f.group.snapshots.reach(frames.state))
	return nil
}

var errNotRestored = errors.New("no snapshot can be restored")
