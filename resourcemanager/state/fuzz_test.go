package state

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// populated is a state with a node, an application that runs with a worker, one that waits, and one that has ended.
func populated(t testing.TB) *cluster {
	c := newCluster(t, Config{MaxApplications: 20, MaxEnded: 4, MaxEndedContainers: 4, MaxLedger: 4, MaxBytes: 1 << 20})
	c.node(nodeOne, "i", 2)
	done, _, epoch := c.running(&rm.Application{User: "bob", Document: []byte("{}"), IdempotencyKey: "k"})
	c.do(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: ApplicationID(done), Attempt: 1, Epoch: epoch, Final: "SUCCEEDED"}}})
	id, _, epoch := c.running(&rm.Application{Document: []byte("{}")})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	c.grant(c.epoch, id, "w", oneGPU, nodeOne, "n1:1-0")
	c.submit(&rm.Application{Document: []byte(`{"run": "x"}`)})
	c.sound()
	return c
}

// snapshotOf writes a state.
func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	f, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Whatever is in the log, a member applies it without a panic, the state stays sound, and one that starts from a
// snapshot is the same. Only bytes that are no command of this version stop it.
func FuzzCommands(f *testing.F) {
	base := populated(f)
	start := snapshotOf(f, base.State)
	var ended, running, waiting *rm.Application
	for a := range base.View().Applications() {
		switch {
		case a.State.Final():
			ended = a
		case a.State == rm.StateRunning:
			running = a
		default:
			waiting = a
		}
	}
	epoch, at := base.epoch, running.Attempt().Epoch
	worker := base.View().Containers(running.ID)[1]
	for _, c := range []*statepb.Command{
		{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm2"}}},
		{Op: &statepb.Command_NewApplication{NewApplication: &statepb.NewApplication{}}},
		{Op: &statepb.Command_Submit{Submit: &statepb.Submit{}}},
		{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: Application(ended)}}},
		{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: &statepb.Application{User: "u", State: "FAILED", Ended: 7, Attempts: []*statepb.Attempt{{}}}}}},
		{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: epoch}}},
		{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: epoch, Node: Node(base.View().Node(rm.NodeID(nodeOne)))}}},
		{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: epoch, Node: &statepb.Node{Id: nodeOne, Incarnation: "j", State: "LOST"}}}},
		{Op: &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: epoch, Node: nodeOne}}},
		{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{Epoch: epoch, Node: nodeOne, Incarnation: "i", Statuses: []*statepb.Status{{}, {Container: ContainerID(worker.ID), State: "COMPLETE"}}}}},
		{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{Epoch: epoch, Node: nodeOne, Incarnation: "i", Statuses: []*statepb.Status{{Container: ContainerID(worker.ID), State: "COMPLETE", Exit: 1}}}}},
		{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: epoch, Groups: []*statepb.Group{{}, {Application: ApplicationID(waiting.ID), Attempt: 1, Placements: []*statepb.Placement{{Node: nodeOne, Resource: Resource(master)}}}}}}},
		{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: epoch, Groups: []*statepb.Group{{Application: ApplicationID(running.ID), Attempt: 1, Ask: "w", Placements: []*statepb.Placement{{Node: nodeOne, Resource: Resource(oneGPU), Gpus: []string{"n1:1-1"}}}}}}}},
		{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: ApplicationID(running.ID), Attempt: 1, Http: "h:1"}}},
		{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: ApplicationID(running.ID), Attempt: 1, Http: "h:1", HttpCertificate: make([]byte, 32)}}},
		{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: ApplicationID(running.ID), Attempt: 1, Http: "h:1", HttpCertificate: make([]byte, 31)}}},
		{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{Application: ApplicationID(running.ID), Attempt: 1, Epoch: at, Sequence: 9, Asks: []*statepb.WantedAsk{{}, {Ask: &statepb.Ask{Id: "v", Count: 3}}}}}},
		{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{Application: ApplicationID(running.ID), Attempt: 1, Epoch: at, Sequence: 9, Acknowledged: 1, Asks: []*statepb.WantedAsk{{Ask: Ask(gpuAsk)}}, Cancel: []string{"w"}, Release: []*statepb.ContainerID{ContainerID(worker.ID)}}}},
		{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: ApplicationID(running.ID), Attempt: 1, Epoch: at, Final: "FAILED"}}},
		{Op: &statepb.Command_KeepCredentials{KeepCredentials: &statepb.KeepCredentials{Epoch: epoch, Keep: []*statepb.Credential{{Application: ApplicationID(running.ID), Number: 1, Sealed: []byte("x")}}}}},
		{Op: &statepb.Command_KeepCredentials{KeepCredentials: &statepb.KeepCredentials{Epoch: epoch, Keep: []*statepb.Credential{{}}, Drop: []*statepb.Credential{{}}}}},
		{Op: &statepb.Command_Fail{Fail: &statepb.Fail{Epoch: epoch, Application: ApplicationID(running.ID)}}},
		{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(running.ID)}}},
		{Op: &statepb.Command_Kill{Kill: &statepb.Kill{}}},
		{Op: &statepb.Command_UpdateApplication{UpdateApplication: &statepb.UpdateApplication{Application: ApplicationID(running.ID), Queue: "root.b", ExpiresMs: 7}}},
		{Op: &statepb.Command_UpdateApplication{UpdateApplication: &statepb.UpdateApplication{Queue: "root.b"}}},
		{Op: &statepb.Command_Stop{Stop: &statepb.Stop{Epoch: epoch, Containers: []*statepb.ContainerID{ContainerID(worker.ID), {}}}}},
	} {
		b, err := Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := New(base.config)
		if err := s.Restore(bytes.NewReader(start)); err != nil {
			t.Fatal(err)
		}
		index := s.AppliedIndex()
		for _, b := range [][]byte{first, second} {
			c := &statepb.Command{}
			if proto.Unmarshal(b, c) != nil || c.Op == nil {
				continue // stops a member, as it should
			}
			index++
			s.Apply(index, [][]byte{b})
			for _, err := range s.Check() {
				t.Errorf("after %v: %v", c, err)
			}
		}
		late := New(base.config)
		if err := late.Restore(bytes.NewReader(snapshotOf(t, s))); err != nil {
			t.Fatal(err)
		}
		if late.Hash() != s.Hash() {
			t.Error("a snapshot holds another state")
		}
		for _, err := range late.Check() {
			t.Errorf("restored: %v", err)
		}
	})
}

// Whatever a snapshot holds, reading it refuses it and changes nothing, or makes a state that writes the same and goes on
// without a panic.
func FuzzSnapshot(f *testing.F) {
	base := populated(f)
	f.Add(snapshotOf(f, base.State))
	f.Add(snapshotOf(f, New(Config{})))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := New(base.config)
		before := s.Hash()
		if err := s.Restore(bytes.NewReader(data)); err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) && !errors.Is(err, metadata.ErrUnsupported) {
				t.Errorf("refused with %v", err)
			}
			if s.Hash() != before {
				t.Error("a refused snapshot has an effect")
			}
			return
		}
		again := New(base.config)
		if err := again.Restore(bytes.NewReader(snapshotOf(t, s))); err != nil || again.Hash() != s.Hash() {
			t.Fatalf("what was written is read differently: %v", err)
		}
		if len(s.Check()) > 0 {
			return // framing and checksums are raftstore's: a state that no log makes need not go on
		}
		c := &cluster{t: t, State: s, index: s.AppliedIndex(), now: int64(s.now)}
		for n := range s.View().Nodes() {
			c.do(&statepb.Command{Op: &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: s.epoch, Node: string(n.ID)}}})
		}
		for a := range s.View().Applications() {
			c.do(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(a.ID)}}})
		}
		c.submit(&rm.Application{})
		for _, err := range s.Check() {
			t.Error(err)
		}
	})
}
