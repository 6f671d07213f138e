package blockmanager

import (
	"fmt"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// One user's word makes only so many replicas suspect at a time, and leaves others theirs.
func TestSuspicionHasALimitPerUser(t *testing.T) {
	m, now := New(Config{}), time.Unix(1e9, 0)
	m.Register(now, namenode.Node{ID: "a", IP: "a"}, []namenode.Volume{{ID: "a1"}}, 1)
	m.Lead(now, 1)
	var replicas []namenode.Replica
	for id := metadata.BlockID(1); id <= 2*suspectsPerUser; id++ {
		b := metadata.Block{ID: id, Generation: 1, Length: 1}
		m.Put(now, Block{Block: b, Replication: 1})
		replicas = append(replicas, namenode.Replica{Block: b, State: namenode.Finalized})
	}
	m.Report(now, "a", 1, "a1", replicas, true)
	heard := map[string]int{}
	for _, r := range replicas {
		for _, user := range []string{"mallory", "reader"} {
			heard[fmt.Sprint(user, m.Suspect(now, "a", r.Block, user))]++
		}
	}
	if want := fmt.Sprint(map[string]int{
		fmt.Sprint("mallory", Suspected): suspectsPerUser, fmt.Sprint("mallory", TooMany): suspectsPerUser,
		fmt.Sprint("reader", Known): suspectsPerUser, fmt.Sprint("reader", Suspected): suspectsPerUser,
	}); fmt.Sprint(heard) != want {
		t.Errorf("heard %v, want %v", heard, want)
	}
	m.check(t)
	// What the datanode is asked to verify at a time has a limit too.
	if n := len(m.Orders(now, "a").Verify); n != verifyWindow {
		t.Errorf("asked to verify %d replicas, want %d", n, verifyWindow)
	}
	m.Changes(now, "a", []namenode.Change{{Kind: namenode.Verified, Block: replicas[0].Block, Volume: "a1"}})
	if got := m.Suspect(now, "a", replicas[2*suspectsPerUser-1].Block, "mallory"); got != Known {
		t.Errorf("a replica that is suspect: %d", got)
	}
	for _, r := range replicas {
		m.Remove(r.Block.ID)
	}
	m.check(t)
	if m.suspected != 0 || len(m.words) != 0 {
		t.Errorf("%d suspects are left, by %v", m.suspected, m.words)
	}
}

// A datanode's verdict is on the replica of one of its volumes. What comes late, when that volume has failed and a copy of the same generation lies on another one, says nothing of the copy.
func TestAVerdictIsOnOneVolume(t *testing.T) {
	m, now := New(Config{}), time.Unix(1e9, 0)
	m.Register(now, namenode.Node{ID: "a", IP: "a"}, []namenode.Volume{{ID: "a1"}, {ID: "a2"}}, 1)
	m.Lead(now, 1)
	b := metadata.Block{ID: 1, Generation: 7, Length: 1}
	m.Put(now, Block{Block: b, Replication: 1})
	m.Report(now, "a", 1, "a1", []namenode.Replica{{Block: b, State: namenode.Finalized}}, true)
	say := func(kind namenode.ChangeKind, on namenode.VolumeID) {
		m.Changes(now, "a", []namenode.Change{{Kind: kind, Block: b, Volume: on}})
	}
	m.Beat(now, "a", []namenode.Volume{{ID: "a1", Failed: true}, {ID: "a2"}}, 0)
	say(namenode.Received, "a2")
	say(namenode.Corrupt, "a1")
	if r, _ := m.Describe(b.ID); r.Readable != 1 || r.Corrupt != 0 {
		t.Errorf("the copy: %+v", r)
	}
	say(namenode.Corrupt, "a2")
	say(namenode.Verified, "a1")
	if r, _ := m.Describe(b.ID); r.Readable != 0 || r.Corrupt != 1 {
		t.Errorf("the copy, when it is damaged: %+v", r)
	}
	say(namenode.Verified, "a2")
	if r, _ := m.Describe(b.ID); r.Readable != 1 || r.Corrupt != 0 {
		t.Errorf("the copy, when it was intact: %+v", r)
	}
	m.check(t)
}

// A replica that was moved while a full report came in, and was found damaged where it is now, stays so when the report lists it where it was: what the
// datanode says of it once more at the end of the report counts.
func TestAnOldListingDoesNotHealWhatHasMoved(t *testing.T) {
	m, now := New(Config{}), time.Unix(1e9, 0)
	m.Register(now, namenode.Node{ID: "a", IP: "a"}, []namenode.Volume{{ID: "a1"}, {ID: "a2"}}, 1)
	m.Lead(now, 1)
	b := metadata.Block{ID: 1, Generation: 7, Length: 1}
	m.Put(now, Block{Block: b, Replication: 1})
	listed := []namenode.Replica{{Block: b, State: namenode.Finalized}}
	m.Report(now, "a", 1, "a1", listed, false)
	m.Report(now, "a", 1, "a2", nil, true)
	say := func(kind namenode.ChangeKind) {
		m.Changes(now, "a", []namenode.Change{{Kind: kind, Block: b, Volume: "a2"}})
	}
	wantDamaged := func(when string) {
		t.Helper()
		if r, _ := m.Describe(b.ID); r.Readable != 0 || r.Corrupt != 1 {
			t.Errorf("%s: %+v", when, r)
		}
		m.check(t)
	}
	m.Report(now, "a", 2, "a2", nil, false)
	say(namenode.Received)
	say(namenode.Corrupt)
	wantDamaged("when it was found damaged")
	m.Report(now, "a", 2, "a1", listed, true)
	wantDamaged("after the report")
	say(namenode.Corrupt)
	wantDamaged("when it was said again")
	say(namenode.Verified)
	if r, _ := m.Describe(b.ID); r.Readable != 1 || r.Corrupt != 0 {
		t.Errorf("when it was intact: %+v", r)
	}
	m.check(t)
}
