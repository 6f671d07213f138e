package state

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// size is that of a snapshot, in bytes.
func (c *cluster) size() int64 {
	c.t.Helper()
	f, err := c.Freeze()
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := f.WriteTo(&bytes.Buffer{})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// One user submits four times the bytes that there is room for, on a sixteenth of the default scale. The state holds its
// share, others go on, and nothing of it is left when the jobs have ended.
func TestFatJobsAreBounded(t *testing.T) {
	c := newCluster(t, Config{MaxBytes: 16 << 20})
	document := make([]byte, 31<<10)
	var taken []rm.ApplicationID
	refused := 0
	for range 2_196 {
		r := c.submit(&rm.Application{User: "mallory", Document: document})
		switch {
		case r.Err == nil:
			taken = append(taken, r.Application)
		case errors.Is(r.Err, rm.ErrBusy):
			refused++
		default:
			t.Fatal(r.Err)
		}
	}
	if got := len(taken) * len(document); got > 8<<20 || got < 7<<20 {
		t.Errorf("%d documents with %d bytes are taken", len(taken), got)
	}
	if n := c.size(); n > 9<<20 {
		t.Errorf("the state has %d bytes", n)
	}
	for _, user := range []string{"ann", "bob", "cid"} {
		if r := c.submit(&rm.Application{User: user, Document: document}); r.Err != nil {
			t.Errorf("%s: %v", user, r.Err)
		}
	}
	c.sound()
	hash := c.Hash()
	var b bytes.Buffer
	f, _ := c.Freeze()
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(&b); err != nil || c.Hash() != hash {
		t.Fatal("restored:", err)
	}
	c.sound()
	if r := c.submit(&rm.Application{User: "mallory", Document: document}); !errors.Is(r.Err, rm.ErrBusy) {
		t.Errorf("after a restart: %v", r.Err)
	}
	if err := c.Room(&rm.Application{User: "mallory", Document: document}); !errors.Is(err, rm.ErrBusy) {
		t.Errorf("a leader proposes it: %v", err)
	}
	for _, id := range taken {
		c.do(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
	}
	c.sound()
	if n := c.size(); n > 1<<20 {
		t.Errorf("ended jobs leave %d bytes", n)
	}
	if r := c.submit(&rm.Application{User: "mallory", Document: document}); r.Err != nil {
		t.Errorf("when they have ended: %v", r.Err)
	}
}

func TestNobodyTakesAllPlaces(t *testing.T) {
	c := newCluster(t, Config{MaxApplications: 100})
	take := func(user string) (n int) {
		for c.submit(&rm.Application{User: user}).Err == nil {
			n++
		}
		return n
	}
	for i, want := range []int{50, 25, 12, 6, 3} {
		if got := take(fmt.Sprint("user-", i)); got != want {
			t.Errorf("user %d gets %d places, want %d", i, got, want)
		}
	}
	// A repeat is answered whatever is free.
	key := &rm.Application{User: "last", IdempotencyKey: "k", Digest: "d"}
	first := c.submit(key)
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	take("last")
	if r := c.submit(key); r.Err != nil || !r.Existing || r.Application != first.Application {
		t.Errorf("a repeat: %+v", r)
	}
	if err := c.Room(key); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	c.sound()
}

// One user's failed submissions do not drive out what others want to look up, or repeat.
func TestEndedApplicationsOfOthersAreRemembered(t *testing.T) {
	c := newCluster(t, Config{MaxEnded: 20})
	mine := c.submit(&rm.Application{User: "ann", IdempotencyKey: "k", Digest: "d"}).Application
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(mine)}}})
	for range 100 {
		c.submit(&rm.Application{User: "mallory", State: rm.StateFailed, Document: []byte("{}")})
	}
	c.sound()
	if a := c.View().Application(mine); a == nil || a.State != rm.StateKilled {
		t.Errorf("forgotten: %+v", a)
	}
	if r := c.submit(&rm.Application{User: "ann", IdempotencyKey: "k", Digest: "d"}); !r.Existing {
		t.Errorf("the key is forgotten: %+v", r)
	}
	if n := c.apps.Len(); n != 20 {
		t.Errorf("%d applications are remembered", n)
	}
}

// A master that handles no events gets no more containers, until it does.
func TestADeafMasterGetsNothingMore(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, _, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	a := c.app(id)
	a.LastEvent = a.Acknowledged + 50_000
	c.setApp(a)
	if g := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0"); len(g.Containers) != 0 || g.Reason.Code != rm.ReasonConflict {
		t.Errorf("granted: %+v", g)
	}
	c.allocate(id, 1, epoch, 2, a.LastEvent)
	if g := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0"); len(g.Containers) != 1 {
		t.Errorf("refused: %+v", g)
	}
}

func TestAsksAreBounded(t *testing.T) {
	c := newCluster(t, Config{MaxBytes: 1 << 20})
	c.node(nodeOne, "i", 2)
	id, _, epoch := c.running(&rm.Application{User: "mallory"})
	sequence, taken := uint64(0), 0
	want := func(content int) error {
		sequence++
		return c.do(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
			Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Sequence: sequence,
			Asks: []*statepb.WantedAsk{{
				Ask:    Ask(rm.Ask{ID: fmt.Sprint(sequence), Count: 1, Resource: oneGPU}),
				Launch: &statepb.Launch{Argv: []string{"run"}, Artifacts: []*statepb.Artifact{{Name: "x", Content: make([]byte, content)}}},
			}},
		}}}).Err
	}
	var err error
	for err = want(10_000); err == nil; err = want(10_000) {
		taken++
	}
	if !errors.Is(err, metadata.ErrInvalidArgument) || taken < 20 || taken > 26 {
		t.Errorf("%d asks, then %v", taken, err)
	}
	c.sound()
	// What is withdrawn gives its room back.
	c.must(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
		Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Sequence: sequence + 1, Cancel: []string{"1", "2", "3"},
	}}})
	sequence++
	if err := want(10_000); err != nil {
		t.Error(err)
	}
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
	if n := len(c.usedBytes); n != 0 {
		t.Errorf("%d ended applications count for asks", n)
	}
}
