package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
)

// What cannot be copied keeps the file, and what is in the way in /lost+found is not written over. That what can be read is copied, integration/process
// shows: no datanode of these tests has any bytes.
func TestFsckMovesNothingAwayThatItCouldNotCopy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	one := c.datanode("dn-1")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	lost := lead.oneBlock(t, "/d/lost", 1, one)
	w := lead.begin(t, "/d/half", "writer", 1)
	var blocks []metadata.Block
	for range 2 {
		_, err := w.addBlock()
		must(t, err)
		b := w.block(1 << 20)
		one.has(b, pb.ReplicaState_FINALIZED)
		blocks = append(blocks, b)
	}
	eventually(t, "/d/half is closed", func() bool { ok, err := w.complete(); return err == nil && ok })
	one.tell(pb.BlockChange_DELETED, wireBlock(lost))
	one.tell(pb.BlockChange_DELETED, wireBlock(blocks[0]))
	eventually(t, "both are known", func() bool { return lead.Statistics().Missing == 2 })
	fsck := func(pairs ...string) string {
		t.Helper()
		status, text := lead.fsck(t, super, append(pairs, "path", "/d")...)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		return text
	}
	there := func(path string, want bool) {
		t.Helper()
		if s, err := lead.ns.Stat(lead.caller(), path); err != nil || (s != nil) != want {
			t.Errorf("%s: %v, %v", path, s, err)
		}
	}
	if status, text := lead.fsck(t, "alice", "path", "/d", "move", "1"); status != http.StatusForbidden || !strings.Contains(text, "Superuser privilege is required for operation fsck") {
		t.Errorf("by anybody: %d %s", status, text)
	}
	// Who goes away leaves nothing behind that would be in the way.
	file, err := lead.ns.Blocks(lead.caller(), "/d/half", 0, 1<<62)
	must(t, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	walk := &fsckRun{Server: lead.Server, ctx: gone, caller: lead.caller(), w: bufio.NewWriter(io.Discard), path: "/", move: true}
	if _, err := (&fsckFile{fsckRun: walk, path: "/d/half"}).salvage(file); !errors.Is(err, context.Canceled) {
		t.Errorf("a walk that was given up: %v", err)
	}
	must(t, walk.client.Close())
	there("/lost+found/d", true)
	there("/lost+found/d/half", false)
	// What comes to /lost+found is all there is. A namenode that has ended meanwhile has left a part elsewhere, which is not taken for it, nor in the way.
	must(t, c.root().Mkdirs(t.Context(), unmoved, 0o755, true))
	must(t, c.root().WriteFile(t.Context(), unmoved+"/0", nil, true))
	text := fsck("move", "1", "delete", "1")
	there(unmoved, false)
	// Others could not search /d either.
	if s, err := lead.ns.Stat(lead.caller(), "/lost+found/d"); err != nil || s == nil || s.Mode != 0o700 {
		t.Errorf("%+v, %v: want a directory for its owner alone", s, err)
	}
	// The datanode has the other block, says the namenode, and nobody answers there.
	if !strings.Contains(text, "\n/d/half: not moved: block blk_"+blockNumber(blocks[1])+": ") || !strings.HasSuffix(text, "\nfsck encountered internal errors!\n\n\nFsck on path '/d' FAILED\n") {
		t.Error(text)
	}
	there("/d/half", true)
	there("/d/lost", false) // of which nothing can be read
	there("/lost+found/d/lost", true)
	there("/lost+found/d/lost/0", false)
	text = fsck("move", "1", "delete", "1")
	if !strings.Contains(text, "\n/d/half: not moved: /lost+found/d/half already exists\n") || !strings.HasSuffix(text, "The filesystem under path '/d' is CORRUPT\n") {
		t.Error(text)
	}
	there("/d/half", true)
	if _, err := (&fsckFile{fsckRun: walk}).makeRoom("/lost+found/d/.snapshot/s/half", &namespace.FileBlocks{InSnapshot: true}); err == nil || err.Error() != "it is in a snapshot" {
		t.Errorf("a file of a snapshot: %v", err)
	}
	// What another walk has made meanwhile in the same place is not taken for this one's.
	room, err := (&fsckFile{fsckRun: walk}).makeRoom("/lost+found/d/other", file)
	must(t, err)
	_, err = c.root().Delete(t.Context(), unmoved, true)
	must(t, err)
	must(t, c.root().Mkdirs(t.Context(), unmoved, 0o755, true))
	if err := lead.await(func(done func(error)) {
		lead.RenameTo(lead.caller(), namenode.Retry{}, room, "/lost+found/d/other", false, false, done)
	}); err == nil {
		t.Error("another directory has come to its place")
	}
	lead.moving.Store(true)
	if status, _ := lead.fsck(t, super, "path", "/", "move", "1"); status != http.StatusServiceUnavailable {
		t.Errorf("two at a time: %d", status)
	}
	lead.moving.Store(false)
	if text := fsck("delete", "1"); !strings.HasSuffix(text, "is CORRUPT\n") {
		t.Error(text)
	}
	there("/d/half", false)
}

// HDFS's client gives up after a minute without a word.
func TestFsckSaysThatItGoesOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	lead := c.leader()
	must(t, c.root().Mkdirs(t.Context(), "/d", 0o755, true))
	var heard bytes.Buffer
	walk := &fsckRun{Server: lead.Server, ctx: t.Context(), caller: lead.caller(), w: bufio.NewWriter(&heard), path: "/"}
	dir, err := lead.ns.Stat(walk.caller, "/d")
	must(t, err)
	must(t, walk.check("/d", dir))
	if heard.Len() == 0 {
		t.Error("a walk of which nothing was heard for long says nothing")
	}
	heard.Reset()
	if must(t, walk.check("/d", dir)); heard.Len() > 0 {
		t.Errorf("%q: it was heard just now", &heard)
	}
	// The words are NamenodeFsck's, the comma is where it has it.
	walk.maintenance = true
	at := namenode.Location{Node: &namenode.Node{}}
	one := &fsckFile{fsckRun: walk, sums: new(fsckTotals), path: "/d/f", replication: 2}
	one.block(0, metadata.Block{ID: 1, Generation: 2}, &blockmanager.BlockReport{At: []blockmanager.ReplicaReport{{Location: at, Good: true}}})
	must(t, walk.w.Flush())
	if want := " but found 1 live replica(s), 0 decommissioned replica(s), 0 decommissioning replica(s)0, entering maintenance replica(s) and 0 in maintenance replica(s).\n"; !strings.HasSuffix(heard.String(), want) {
		t.Errorf("%q", &heard)
	}
	if word := one.detail(&blockmanager.ReplicaReport{Location: at, Good: true, Stale: true}); word != "STALE_NODE" {
		t.Error(word)
	}
}

// heard notes when something is heard.
type heard struct{ at []time.Time }

func (h *heard) Write(b []byte) (int, error) {
	h.at = append(h.at, time.Now())
	return len(b), nil
}

// Who asked is never without a word for longer than fsckBreath, whatever a walk waits for: here for three datanodes that say nothing, and inside of that for a namenode.
func TestFsckSaysThatItGoesOnWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		walk := &fsckRun{ctx: t.Context(), w: bufio.NewWriter(&h), breath: time.Now()}
		began := time.Now()
		time.Sleep(7 * time.Second)
		walk.meanwhile(func() {
			time.Sleep(moveStall)
			walk.meanwhile(func() { time.Sleep(moveStall) })
			time.Sleep(moveStall)
		})
		last := began
		for _, at := range append(h.at, time.Now()) {
			if pause := at.Sub(last); pause > fsckBreath {
				t.Errorf("nothing was said for %v", pause)
			}
			last = at
		}
		if len(h.at) != 6 {
			t.Errorf("%d words in %v", len(h.at), time.Since(began))
		}
	})
}

// Blocks that stand on one rack of two wait for a copy on the other one, and datanodes have no upgrade domains.
func TestFsckQueuesBlocksThatStandOnTooFewRacks(t *testing.T) {
	t.Parallel()
	table := filepath.Join(t.TempDir(), "racks")
	must(t, os.WriteFile(table, []byte("127.0.0.1 /one\n127.0.0.2 /two\n"), 0o600))
	c := newCluster(t, 1, func(c *Config) { c.Properties.RackTable = table })
	lead := c.leader()
	one, two := c.datanode("dn-1"), c.datanode("dn-2")
	super := lead.config.Door.Daemon()
	lead.oneBlock(t, "/d/near", 2, one, two)
	c.datanodeAt("dn-3", "127.0.0.2", 0) // which cannot have it
	eventually(t, "two racks", func() bool {
		_, text := lead.fsck(t, super, "path", "/d")
		return strings.Contains(text, "\n Number of racks:\t\t2\n")
	})
	eventually(t, "the block manager knows", func() bool {
		_, text := lead.fsck(t, super, "path", "/d", "replicate", "1")
		return strings.Contains(text, "\n Blocks queued for replication:\t1\n")
	})
	status, text := lead.fsck(t, super, "path", "/d", "replicate", "1", "files", "1", "blocks", "1", "upgradedomains", "1", "replicadetails", "1", "storagepolicies", "1")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	for _, want := range []string{
		",DISK](ud=undefined)(LIVE), DatanodeInfoWithStorage[", "\n Mis-replicated blocks:\t\t1 (100.0 %)\n", "\n Blocks queued for replication:\t1\n",
		"\n Blocks queued for replication:\t0\n\nBlocks satisfying the specified storage policy:\n",
		"\nDISK:2(HOT)                        1             100.0000%\n\nAll blocks satisfy specified storage policy.\nFSCK ended at ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// The text is that of Apache Hadoop's StoragePolicySummary, given the same.
func TestStoragePoliciesAreSummedAsInHDFS(t *testing.T) {
	var s policySummary
	add := func(n int, policy uint8, types ...namenode.StorageType) {
		r := blockmanager.BlockReport{}
		for _, kind := range types {
			r.At = append(r.At, blockmanager.ReplicaReport{Location: namenode.Location{Type: kind}, Good: true})
		}
		r.At = append(r.At, blockmanager.ReplicaReport{Location: namenode.Location{Type: namenode.SSD}, Good: true, Dead: true},
			blockmanager.ReplicaReport{Location: namenode.Location{Type: namenode.SSD}, Corrupt: true})
		for range n {
			s.add(namenode.StoragePolicyByID(policy), &r, false)
		}
	}
	add(5, 0, namenode.Disk, namenode.Disk, namenode.Disk)
	add(4, 5, namenode.Archive, namenode.Disk, namenode.Archive)
	add(3, 12, namenode.Disk, namenode.SSD, namenode.Disk)
	add(2, 2, namenode.Disk)
	add(1, 7)
	add(6, 15, namenode.Disk, namenode.RAMDisk)
	add(1, 1, namenode.Disk, namenode.Provided)
	var text strings.Builder
	s.print(&text)
	if want := `
Blocks satisfying the specified storage policy:
Storage Policy                  # of blocks       % of blocks
RAM_DISK:1,DISK:1(LAZY_PERSIST)          6              27.2727%
DISK:3(HOT)                        5              22.7273%
DISK:1,ARCHIVE:2(WARM)             4              18.1818%
DISK:1,PROVIDED:1(PROVIDED)          1               4.5455%

Blocks NOT satisfying the specified storage policy:
Storage Policy                  Specified Storage Policy      # of blocks       % of blocks
SSD:1,DISK:2(ONE_SSD)               ALL_SSD                       3              13.6364%
DISK:1(HOT)                         COLD                          2               9.0909%
                                    HOT                           1               4.5455%
`; text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &text, want)
	}
}
