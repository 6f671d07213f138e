package raftstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSoleSurvivorGoesOnAndTheOldMembersAreRefused(t *testing.T) {
	c := newCluster(t, 3)
	c.tune = func(g *GroupConfig) { g.Cluster = "c1" }
	c.start("a")
	c.propose("a", set("x", 1))
	for _, m := range c.members {
		eventually(t, "all have the entry", func() bool { return c.nodes[m.ID].machines["a"].get("x") == "1" })
	}
	for _, m := range c.members {
		c.stop(m.ID)
	}
	c.host("m1")
	h := c.nodes["m1"].host
	if err := h.Recover(c.config("a", false), "c2"); err == nil || !strings.Contains(err.Error(), `belongs to cluster "c1", not to "c2"`) {
		t.Fatalf("with the name of another cluster: %v", err)
	}
	if err := h.Recover(c.config("a", false), "c1"); err != nil {
		t.Fatal(err)
	}
	c.open("m1", "a", false, nil)
	if err := h.Recover(c.config("a", false), "c1"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("while it runs: %v", err)
	}
	c.propose("a", set("x", 2))
	g := c.leader("a")
	if s := g.Status(); len(s.Members) != 1 || s.LeaderID != "m1" {
		t.Fatalf("%+v", s)
	}
	if got := c.nodes["m1"].machines["a"].get("x"); got != "2" {
		t.Fatalf("x is %q", got)
	}
	// A member with the old history hears of the recovery and ends.
	c.host("m2")
	old := c.open("m2", "a", false, nil)
	eventually(t, "the old member stops", func() bool { return old.Status().Failure != nil })
	if why := old.Status().Failure.Error(); !strings.Contains(why, "recovered on m1") || !strings.Contains(why, "reinstall") {
		t.Fatalf("it says %s", why)
	}
	c.stop("m2")
	// Reinstalled and added it is a member again.
	c.host("m2")
	if err := c.nodes["m2"].host.Reinstall(c.config("a", false)); err != nil {
		t.Fatal(err)
	}
	again := c.open("m2", "a", false, nil)
	c.join("a", "m2")
	c.propose("a", set("x", 3))
	eventually(t, "it follows", func() bool { return c.nodes["m2"].machines["a"].get("x") == "3" })
	if again.Status().Joining {
		t.Fatal("it has no vote")
	}
	// The recovered one starts again, from its log and from a snapshot.
	if err := c.nodes["m1"].groups["a"].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	c.stop("m1")
	c.host("m1")
	c.open("m1", "a", false, nil)
	c.propose("a", set("x", 4))
}

func TestMemberThatIsNotUpToDateIsNotRecovered(t *testing.T) {
	c := newCluster(t, 3)
	c.tune = func(g *GroupConfig) { g.Cluster = "c1" }
	c.host("m1")
	c.open("m1", "a", false, nil)
	c.stop("m1")
	c.host("m1")
	if err := c.nodes["m1"].host.Recover(c.config("a", false), "c1"); err == nil || !strings.Contains(err.Error(), "empty or was not up to date") {
		t.Fatalf("an empty member: %v", err)
	}
}

// A member that nobody has added says so, with what to do.
func TestStrangerSaysThatItIsNone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(g *GroupConfig) { g.Cluster, g.Command = "c1", "hops namenode" }
	c.start("a")
	c.propose("a", set("x", 1))
	nd := c.add("m4", true)
	c.host("m4")
	g := c.open("m4", "a", false, nil)
	var known []knowledge
	eventually(t, "the only member answers in time", func() bool {
		var err error
		known, err = g.askEach(ctx(t))
		return err == nil
	})
	want := "m4 is not a member of the group a of cluster c1; its members are m1. It has to be added: hops namenode add m4 " + nd.addr
	if got := g.strangeness(known); got != want {
		t.Fatalf("it says %q\nwant %q", got, want)
	}
	c.join("a", "m4")
	eventually(t, "the other member answers in time", func() bool {
		var err error
		known, err = g.askEach(ctx(t))
		return err == nil
	})
	if g.strangeness(known) != "" {
		t.Fatalf("a member is told that it is a stranger: %+v", known)
	}
}

// A group that is founded in place of one that is gone, or restored, takes members in, and its leader's term is later than any before.
func TestAGroupMadeAnewHasALaterTerm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1) // of no named cluster, as the resource managers' is
	c.host("m1")
	began := uint64(time.Now().Unix())
	path := filepath.Join(c.nodes["m1"].host.cfg.Dir, "a")
	if err := os.MkdirAll(path, 0o700); err != nil { // as a crash may leave it
		t.Fatal(err)
	}
	if err := c.nodes["m1"].host.Found(c.config("a", false)); err != nil {
		t.Fatal(err)
	}
	d, err := openDirectory(path, identity{Format: formatVersion, Group: "a", Member: "m1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	d.Joining = true // a crash before the last write
	if err := errors.Join(d.save(), d.close()); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes["m1"].host.Found(c.config("a", false)); err != nil {
		t.Error(err)
	}
	if err := c.nodes["m1"].host.Found(c.config("a", false)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("founded over what is there: %v", err)
	}
	g := c.open("m1", "a", false, nil)
	c.propose("a", set("x", 1))
	first := c.leader("a").Leadership().Term
	if first <= began || g.Recovered() != 0 {
		t.Errorf("term %d, recovered %d times", first, g.Recovered())
	}
	b, f, err := g.Copy()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.stop("m1")

	c.host("m1")
	h := c.nodes["m1"].host
	if err := h.Recover(c.config("a", false), "c1"); err == nil || !strings.Contains(err.Error(), `belongs to cluster "", not to "c1"`) {
		t.Errorf("recovered under a name that it does not have: %v", err)
	}
	if err := h.Restore(c.config("a", false), b, f); err == nil {
		t.Error("restored over what is there")
	}
	if err := os.RemoveAll(filepath.Join(h.cfg.Dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := h.Restore(c.config("a", false), b, f); err != nil {
		t.Fatal(err)
	}
	g = c.open("m1", "a", false, nil)
	c.propose("a", set("y", 1))
	if now := c.leader("a").Leadership().Term; now <= first || g.Recovered() != 1 || c.nodes["m1"].machines["a"].get("x") != "1" {
		t.Errorf("term %d after %d, recovered %d times, x is %q", now, first, g.Recovered(), c.nodes["m1"].machines["a"].get("x"))
	}
	c.add("m2", true)
	c.host("m2")
	again := c.open("m2", "a", false, nil)
	c.join("a", "m2")
	if again.Recovered() != 1 {
		t.Errorf("who joined knows of %d recoveries", again.Recovered())
	}
}

// Whether a member has the version that a leader has sent last is not known before its state machine runs. A recovery that took it for
// lost would end the log in front of the state.
func TestMemberThatWasTakingAStateOverIsStartedBeforeItIsRecovered(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(20, "x")
	c.away(id)
	g := c.begin(id, nil)
	c.agrees(id)
	eventually(t, "the version has a snapshot", func() bool { return len(g.snapshots.all()) == 1 })
	list := g.snapshots.all()
	for _, m := range c.members {
		c.stop(m.ID)
	}
	if c.vaults[id].restored != 1 {
		t.Fatalf("it did not take a version over: %+v", list)
	}
	// As if the process had ended between taking the version over and its snapshot's name.
	path := g.snapshots.path(list[0].id)
	pulled := strings.TrimSuffix(path, snapshotSuffix) + pulledSuffix
	if err := os.Rename(path, pulled); err != nil {
		t.Fatal(err)
	}
	c.host(id)
	h := c.nodes[id].host
	if err := h.Recover(c.config("a", false), ""); err == nil || !strings.Contains(err.Error(), "start it once") {
		t.Fatalf("it is recovered: %v", err)
	}
	if _, err := os.Stat(pulled); err != nil {
		t.Fatal(err)
	}
	if _, err := c.join(id, nil); err != nil {
		t.Fatal(err)
	}
	c.stop(id)
	c.host(id)
	h = c.nodes[id].host
	if err := h.Recover(c.config("a", false), ""); err != nil {
		t.Fatal(err)
	}
	g, err := c.join(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it leads", func() bool { return g.Status().Leader })
	if got := c.vaults[id].get("k019"); !strings.HasPrefix(got, "2-") {
		t.Errorf("k019 is %.10q", got)
	}
}
