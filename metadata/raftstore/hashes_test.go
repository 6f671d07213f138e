package raftstore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// hashing is a machine that keeps a hash.
type hashing struct{ *machine }

var hashSeed = maphash.MakeSeed()

func (h hashing) StateHash() (index, hash uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, v := range h.values {
		hash += maphash.String(hashSeed, k+"="+v)
	}
	return h.index, hash
}

func TestMemberWhoseStateDiffersStopsAndStaysStopped(t *testing.T) {
	c := newCluster(t, 3)
	c.prepare = func(h *Host) { h.hashLook = time.Hour } // the test compares
	machines := map[string]*machine{}
	open := func(id string) error {
		machines[id] = newMachine()
		g, err := c.nodes[id].host.Open(c.config("a", true), hashing{machines[id]})
		if err == nil {
			c.nodes[id].groups["a"] = g
		}
		return err
	}
	for _, m := range c.members {
		c.host(m.ID)
		if err := open(m.ID); err != nil {
			t.Fatal(err)
		}
	}
	changes := 0
	more := func() {
		changes++
		for i := range hashEvery + 1 {
			c.propose("a", set("x", fmt.Sprint(changes, ".", i)))
		}
		for _, m := range c.members {
			eventually(t, "all are even", func() bool { return machines[m.ID].get("x") == fmt.Sprint(changes, ".", hashEvery) })
		}
	}
	more()
	bad := c.leader("a").host.cfg.ID
	for _, m := range c.members {
		if at, names, _ := c.nodes[m.ID].groups["a"].compareHashes(); at != 0 {
			t.Fatalf("%s differs from %v at %d", m.ID, names, at)
		}
	}
	// A bit flips in the memory of one, the leader at that.
	machines[bad].mu.Lock()
	machines[bad].values["flipped"] = "1"
	machines[bad].mu.Unlock()
	more()
	for _, m := range c.members {
		g := c.nodes[m.ID].groups["a"]
		eventually(t, m.ID+" knows who differs, when the others have answered in time", func() bool {
			at, names, wrong := g.compareHashes()
			if m.ID != bad && (wrong || at != 0 && !slices.Equal(names, []string{bad})) {
				t.Fatalf("%s: differs from %v at %d, wrong: %v; the bad one is %s", m.ID, names, at, wrong, bad)
			}
			return at != 0 && wrong == (m.ID == bad)
		})
	}
	g := c.nodes[bad].groups["a"]
	at, names, _ := g.compareHashes()
	g.disown(at, names)
	if why := g.Status().Failure; why == nil || !strings.Contains(why.Error(), "reinstall it") {
		t.Fatalf("it goes on: %v", why)
	}
	c.propose("a", set("x", "on"), bad)
	c.stop(bad)
	c.host(bad)
	if err := open(bad); !errors.Is(err, metadata.ErrCorrupt) || !strings.Contains(err.Error(), "is not that of") {
		t.Fatalf("it starts again: %v", err)
	}
	if err := c.nodes[bad].host.Reinstall(c.config("a", true)); err != nil {
		t.Fatal(err)
	}
	if err := open(bad); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has the others' state", func() bool { return machines[bad].get("x") == "on" && machines[bad].get("flipped") == "" })
}

func TestHashesOfTwoDoNotSayWhoIsWrong(t *testing.T) {
	own := []stateHash{{64, 1}, {128, 2}, {192, 3}}
	for _, c := range []struct {
		others []knowledge
		voters int
		at     uint64
		wrong  bool
	}{
		{[]knowledge{{Member: "b", Hashes: []stateHash{{64, 1}, {128, 2}}}}, 3, 0, false},
		{[]knowledge{{Member: "b", Hashes: []stateHash{{128, 9}}}}, 2, 128, false},
		{[]knowledge{{Member: "b", Hashes: []stateHash{{128, 9}}}, {Member: "c", Hashes: []stateHash{{128, 2}}}}, 3, 128, false},
		{[]knowledge{{Member: "b", Hashes: []stateHash{{128, 9}}}, {Member: "c", Hashes: []stateHash{{128, 9}, {256, 1}}}}, 3, 128, true},
		{[]knowledge{{Member: "b", Hashes: []stateHash{{128, 9}}}, {Member: "c", Hashes: []stateHash{{128, 8}}}}, 3, 128, false},
	} {
		at, _, wrong := differs(own, c.others, c.voters)
		if at != c.at || wrong != c.wrong {
			t.Errorf("%+v: %d %v, want %d %v", c.others, at, wrong, c.at, c.wrong)
		}
	}
}
