package state

import (
	"bytes"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// Two go on from the same state, the one that is lost and the one that was made of its backup: what they give out differs.
func TestAGroupMadeAnewGivesOutNoIdTwice(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	app, _, _ := c.running(&rm.Application{Name: "since before"})
	waits := c.submit(&rm.Application{Name: "waits"}).Application
	saved := c.freeze()
	defer saved.Release()
	var text bytes.Buffer
	if _, err := saved.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	again := &cluster{t: t, State: New(Config{}), index: c.index, now: c.now}
	if err := again.Restore(bytes.NewReader(text.Bytes())); err != nil {
		t.Fatal(err)
	}

	given := func(c *cluster, recovered int64) (ids []string, registered uint64) {
		c.must(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1", Recovered: recovered}}})
		g := c.grant(c.epoch, waits, "", master, nodeOne)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		c.status(nodeOne, "i", g.Containers[0], rm.ContainerRunning, 0)
		next := c.submit(&rm.Application{Name: "next"}).Application
		if !c.View().Ours(next) || !c.View().Ours(app) || next.Compare(app) == 0 {
			t.Errorf("%v follows %v", next, app)
		}
		return []string{g.Containers[0].String(), next.String()}, c.register(waits, 1).Epoch
	}
	lost, lostEpoch := given(c, 0)
	kept, keptEpoch := given(again, 1)
	for i := range lost {
		if lost[i] == kept[i] {
			t.Errorf("%s was given out twice", lost[i])
		}
	}
	if keptEpoch == lostEpoch {
		t.Errorf("two masters registered as %d", keptEpoch)
	}

	// The next leader of the same group passes nothing over.
	before := again.epoch
	again.must(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm2", Recovered: 1}}})
	if again.epoch != before+1 {
		t.Errorf("epoch %d after %d", again.epoch, before)
	}
	var saidAgain bytes.Buffer
	f := again.freeze()
	defer f.Release()
	if _, err := f.WriteTo(&saidAgain); err != nil {
		t.Fatal(err)
	}
	third := &cluster{t: t, State: New(Config{}), index: again.index, now: again.now}
	if err := third.Restore(&saidAgain); err != nil || third.recovered != 1 {
		t.Errorf("a snapshot says %d recoveries: %v", third.recovered, err)
	}
}
