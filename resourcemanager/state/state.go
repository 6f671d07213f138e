// Package state is the replicated state of the resource manager: applications with their attempts, asks and containers,
// nodes, the ledger of GPUs, idempotency keys, and the epoch of the leader. It is a deterministic state machine on
// metadata/raftstore with no clock, goroutine, logger or randomness of its own. See DESIGN.md.
package state

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// Config bounds a State. The zero value is the default. All replicas must have the same limits.
type Config struct {
	// MaxApplications bounds the live applications; a submission beyond gets ErrBusy. Default 10,000, as in YARN. A user
	// may have as many as are still free; so with MaxBytes.
	MaxApplications int
	// MaxBytes bounds the documents, asks and launches of live applications; more get ErrBusy. Default 256 MiB, of which
	// one application may have a quarter in asks and launches.
	MaxBytes int64
	// MaxEnded bounds the ended applications that are remembered, without their documents and with their idempotency keys.
	// Beyond it, the oldest of the user who has most of them is forgotten. Default 10,000.
	MaxEnded int
	// MaxEndedContainers bounds the ended containers that are remembered. Beyond it, the oldest of ended applications are
	// forgotten, then those of the live application that has most. Default 50,000.
	MaxEndedContainers int
	// MaxLedger bounds the closed lines of the ledger that are remembered. Default 100,000.
	MaxLedger int
	// OnEffects, if set, is told after each Apply and Restore what they touched; in order, on the caller's goroutine. It
	// must be quick.
	OnEffects func(Effects)
}

func (c *Config) defaults() {
	for _, l := range []struct {
		value *int
		by    int
	}{{&c.MaxApplications, 10_000}, {&c.MaxEnded, 10_000}, {&c.MaxEndedContainers, 50_000}, {&c.MaxLedger, 100_000}} {
		if *l.value <= 0 {
			*l.value = l.by
		}
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 256 << 20
	}
}

// Effects says what commands touched, so that the leader need not search.
type Effects struct {
	Index uint64
	// Nodes on which a container was granted, told to stop, or ended.
	Nodes map[rm.NodeID]bool
	// Applications that changed or have new events.
	Applications map[rm.ApplicationID]bool
	// Schedule: there may be something to grant that there was not before.
	Schedule bool
	// Credentials: an application was submitted or has ended, so that tokens may be wanted or not wanted any more.
	Credentials bool
	// Begun: a leader has begun, or other queues count.
	Begun bool
	// Restored: everything may have changed.
	Restored bool
}

// State is the state machine. Apply, Freeze and Restore are called by one goroutine at a time; View, Hash, Check and
// AppliedIndex by any.
type State struct {
	config Config

	mu sync.Mutex // guards everything below
	tables
	index // derived from the tables
	view  *View
	// made is the tree with the queues that were made, as of the last view.
	made  *rm.Queues
	touch Effects
}

// New returns an empty state.
func New(config Config) *State {
	config.defaults()
	s := &State{config: config, tables: newTables()}
	s.index = s.buildIndex()
	return s
}

// Result is the answer to one command.
type Result struct {
	// Err is set when the command had no effect. Its kinds are those of metadata and of resourcemanager.
	Err error
	// Application is the one created or found.
	Application rm.ApplicationID
	// Existing: the submission was known already.
	Existing bool
	// Epoch is the leader's for Begin, the attempt's for RegisterMaster.
	Epoch uint64
	// Lease is the longest that any node may still hold, for Begin.
	Lease time.Duration
	// Containers of the application that live, for RegisterMaster, and the instances that have succeeded and whose containers are forgotten.
	Containers []rm.ContainerID
	Succeeded  rm.Numbers
	// Groups answer those of Grant, in order.
	Groups []GroupResult
	// Noticed are the containers that PreemptContainers told to go.
	Noticed int
	// Launches answer the containers of LaunchContainers, in order: nil, or why one stays as it is.
	Launches []error
	// Version of the queues after SetQueues.
	Version uint64
	// State of the application after Kill.
	State rm.State
}

// GroupResult says which containers a group became, or why it was refused.
type GroupResult struct {
	Containers []rm.ContainerID
	Reason     rm.Reason
}

// Encode serializes a command for Propose.
func Encode(c *statepb.Command) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(c)
}

// Apply runs commands at an index and returns a *Result for each. Entries at or below AppliedIndex are skipped with nil
// results. It panics on bytes that are no command, and with release.ErrOlder on a command that has something in it which this program does not
// know: a replica that cannot follow the log must stop. On nothing else: an entry is in the log for ever.
func (s *State) Apply(index uint64, commands [][]byte) []any {
	results := make([]any, len(commands))
	s.mu.Lock()
	if index <= s.applied {
		s.mu.Unlock()
		return results
	}
	s.touch = Effects{Index: index, Nodes: map[rm.NodeID]bool{}, Applications: map[rm.ApplicationID]bool{}}
	s.view = nil
	for i, c := range commands {
		results[i] = s.apply(index, c)
	}
	s.applied = index
	touched := s.touch
	s.mu.Unlock()
	if s.config.OnEffects != nil {
		s.config.OnEffects(touched)
	}
	return results
}

func (s *State) apply(index uint64, command []byte) *Result {
	c := &statepb.Command{}
	if err := proto.Unmarshal(command, c); err != nil {
		panic(fmt.Sprintf("resource manager state: entry %d is not a command: %v", index, err))
	}
	if c.Op == nil || unknown(c.ProtoReflect()) {
		panic(fmt.Errorf("resource manager state: log entry %d: command of a newer version of the program (%w): install the one that the leader runs", index, release.ErrOlder))
	}
	if err := validate(c); err != nil {
		return &Result{Err: err}
	}
	s.now = max(s.now, metadata.Time(c.NowMs))
	switch op := c.Op.(type) {
	case *statepb.Command_Begin:
		return s.begin(op.Begin)
	case *statepb.Command_NewApplication:
		return s.newApplication()
	case *statepb.Command_Submit:
		return s.submit(op.Submit)
	case *statepb.Command_RegisterNode:
		return s.registerNode(op.RegisterNode)
	case *statepb.Command_LoseNode:
		return s.loseNode(op.LoseNode)
	case *statepb.Command_Statuses:
		return s.statuses(op.Statuses)
	case *statepb.Command_Grant:
		return s.grant(op.Grant)
	case *statepb.Command_RegisterMaster:
		return s.registerMaster(op.RegisterMaster)
	case *statepb.Command_Allocate:
		return s.allocate(op.Allocate)
	case *statepb.Command_Finish:
		return s.finish(op.Finish)
	case *statepb.Command_Kill:
		return s.kill(op.Kill)
	case *statepb.Command_Stop:
		return s.stop(op.Stop)
	case *statepb.Command_SettleLease:
		return s.settleLease(op.SettleLease)
	case *statepb.Command_KeepCredentials:
		return s.keepCredentials(op.KeepCredentials)
	case *statepb.Command_Fail:
		return s.fail(op.Fail)
	case *statepb.Command_AdministerNodes:
		return s.administerNodes(op.AdministerNodes)
	case *statepb.Command_ExcludeNodes:
		return s.excludeNodes(op.ExcludeNodes)
	case *statepb.Command_RetireNode:
		return s.retireNode(op.RetireNode)
	case *statepb.Command_ResizeNode:
		return s.resizeNode(op.ResizeNode)
	case *statepb.Command_SetQueues:
		return s.setQueues(op.SetQueues)
	case *statepb.Command_LaunchContainers:
		return s.launchContainers(op.LaunchContainers)
	case *statepb.Command_ChangeLabels:
		return s.changeLabels(op.ChangeLabels)
	case *statepb.Command_MarkNodes:
		return s.markNodes(op.MarkNodes)
	case *statepb.Command_UpdateApplication:
		return s.updateApplication(op.UpdateApplication)
	case *statepb.Command_PreemptContainers:
		return s.preemptContainers(op.PreemptContainers)
	case *statepb.Command_Checkpoint:
		return s.checkpoint(op.Checkpoint)
	case *statepb.Command_ResizeJob:
		return s.resizeJob(op.ResizeJob)
	case *statepb.Command_ChangeMembers:
		return s.changeMembers(op.ChangeMembers)
	}
	panic(fmt.Sprintf("resource manager state: entry %d holds a command that this program does not carry out", index))
}

// AppliedIndex is the last index that the state contains; 0: it is empty.
func (s *State) AppliedIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

// View returns the state as it is now. Views are immutable and cost almost nothing.
func (s *State) View() *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view == nil {
		s.view = &View{t: s.tables.copy(), queues: s.madeQueues(), most: s.config.MaxEndedContainers}
	}
	return s.view
}

// What is passed over when the group was made anew: more leaders, and registrations of masters, than a history can have that was lost.
const (
	lostLeaders       = 1 << 20
	lostRegistrations = 1 << 32
)

// begin opens the next epoch. The lease that it answers is the longest that a node may hold, of this leader or of one before
// it: so long must be waited before a silent node's fenced containers are certainly dead.
func (s *State) begin(c *statepb.Begin) *Result {
	s.epoch++
	s.lease = max(s.lease, time.Duration(c.LeaseMs)*time.Millisecond)
	if s.cluster == 0 {
		s.cluster = int64(s.now)
	}
	if c.Recovered > s.recovered {
		// Leaders whose history is lost have given out ids that are not known here: those from now on are none of these.
		s.recovered = c.Recovered
		s.epoch += lostLeaders
		s.registrations += lostRegistrations
		s.series, s.lastApplication = max(int64(s.now)-s.cluster, s.series+1), 0
	}
	s.raise(c.Level)
	s.leader, s.queuesHash = c.Leader, c.QueuesHash
	if s.queues.tree != nil {
		s.queuesHash = s.queues.tree.Hash()
	}
	s.touch.Schedule, s.touch.Begun = true, true
	return &Result{Epoch: s.epoch, Lease: s.lease}
}

// raise notes the level that a command says: rules that came with one count for all members from the same entry on.
func (s *State) raise(level int32) { s.level = max(s.level, int(level)) }

// settleLease forgets the leases of earlier leaders, for which this one has waited.
func (s *State) settleLease(c *statepb.SettleLease) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	s.lease = time.Duration(c.LeaseMs) * time.Millisecond
	return &Result{Lease: s.lease}
}

// stale answers commands of leaders that lead no more.
func (s *State) stale(epoch uint64) *Result {
	if epoch == s.epoch {
		return nil
	}
	return &Result{Err: fmt.Errorf("%w: %d, now %d", rm.ErrStaleEpoch, epoch, s.epoch)}
}
