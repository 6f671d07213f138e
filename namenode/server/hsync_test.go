package server

import (
	"errors"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Bytes of a writer that is gone lie on a datanode that is still booting after a power cut, while the namenode and
// another datanode are up. Whoever takes the file from the writer, they stay.
func TestSyncedBytesOutliveAPowerCut(t *testing.T) {
	none := func(*testing.T, *cluster) {}
	for name, test := range map[string]struct {
		synced bool // or only flushed, of which the namenode hears nothing
		before func(*testing.T, *cluster)
		take   func(*testing.T, *cluster)
	}{
		"hsync, recoverLease":  {true, none, recoverLease},
		"hflush, recoverLease": {false, none, recoverLease},
		"hsync, hard limit": {true, none, func(t *testing.T, c *cluster) {
			m := c.leader()
			eventually(t, "the lease is beyond the hard limit", func() bool { // who has just begun to lead may begin to count only now
				m.clock.pass(beyondHardLimit)
				m.checkLeases(m.reign.Load())
				return !slices.ContainsFunc(m.ns.Holders(), func(l namespace.LeaseInfo) bool { return l.Holder == "writer" })
			})
		}},
		"hsync, another writer": {true, none, func(t *testing.T, c *cluster) {
			m := c.leader()
			m.clock.pass(2 * namespace.SoftLimit)
			got := make(chan error, 1)
			m.Append(m.caller(), namenode.AppendRequest{Path: "/wal", Client: "other"}, func(_ *namenode.LocatedBlock, _ *metadata.FileStatus, err error) { got <- err })
			if err := <-got; !errors.Is(err, metadata.ErrRecoveryInProgress) {
				t.Fatalf("append: %v", err)
			}
		}},
		// The recovery had begun before the power cut; the next leader takes it up.
		"hsync, a leader's takeover": {true, recoverLease, func(*testing.T, *cluster) {}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, nil)
			dn1 := c.datanode("dn1")
			w := c.leader().begin(t, "/wal", "writer", 1)
			if _, err := w.addBlock(); err != nil {
				t.Fatal(err)
			}
			b := w.block(77)
			dn1.has(metadata.Block{ID: b.ID, Generation: b.Generation}, pb.ReplicaState_RBW)
			if test.synced {
				m := c.leader()
				got := make(chan error, 1)
				m.Fsync(m.caller(), namenode.FileRef{Path: "/wal"}, "writer", -1, func(err error) { got <- err })
				if err := <-got; err != nil {
					t.Fatal(err)
				}
			}
			dn1.stop()
			test.before(t, c)
			c.nodes[0].stop()

			c.start(0)
			c.await(0)
			c.datanode("dn2") // has reported, and has nothing
			eventually(t, "it leads and is out of safe mode", func() bool { return c.leader().SafeMode() == "" })
			test.take(t, c)
			m := c.leader()
			id, err := m.ns.Resolve(m.caller(), "/wal")
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the file is under recovery", func() bool {
				f, ok := m.ns.FileByID(id)
				return ok && (!f.UnderConstruction || f.LastState == namespace.UnderRecovery)
			})
			// What is decided without the datanode is decided when two more looks at the leases have gone by.
			for range 2 {
				m.checkLeases(m.reign.Load())
			}
			if f, _ := m.ns.FileByID(id); !f.UnderConstruction || len(f.Blocks) != 1 {
				t.Fatalf("the file is closed with %d blocks, length %d", len(f.Blocks), f.Status.Length)
			}
			again := c.datanode("dn1", &pb.Replica{Block: wireBlock(b), State: pb.ReplicaState_RWR})
			eventually(t, "the file is closed with its 77 bytes", func() bool {
				f, ok := m.ns.FileByID(id)
				return ok && !f.UnderConstruction && f.Status.Length == 77
			})
			again.mu.Lock()
			defer again.mu.Unlock()
			for _, o := range again.orders {
				if len(o.Delete) > 0 {
					t.Errorf("ordered to delete %v", o.Delete)
				}
			}
		})
	}
}

func recoverLease(t *testing.T, c *cluster) {
	t.Helper()
	m := c.leader()
	got := make(chan error, 1)
	m.RecoverLease(m.caller(), "/wal", "other", func(_ bool, err error) { got <- err })
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A block that nobody has written into goes when all who might have are there to say so.
func TestBlockThatWasNeverWrittenIsDropped(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn1 := c.datanode("dn1")
	w := c.leader().begin(t, "/wal", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn1.stop()
	c.nodes[0].stop()
	c.start(0)
	c.await(0)
	c.datanode("dn2")
	recoverLease(t, c)
	m := c.leader()
	id, err := m.ns.Resolve(m.caller(), "/wal")
	if err != nil {
		t.Fatal(err)
	}
	if f, _ := m.ns.FileByID(id); !f.UnderConstruction {
		t.Fatal("it is closed while the datanode of its block is down")
	}
	c.datanode("dn1")
	m.recover(m.reign.Load(), id, namespace.RecoveryHolder, nil) // as the leader does when a recovery is overdue
	eventually(t, "the file is closed without a block", func() bool {
		f, ok := m.ns.FileByID(id)
		return ok && !f.UnderConstruction && len(f.Blocks) == 0
	})
}

// A datanode that found nothing cannot speak for those that are down.
func TestPrimaryThatFindsNothingDoesNotDropWhatWasSynced(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn1 := c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/wal", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	m.Fsync(m.caller(), namenode.FileRef{Path: "/wal"}, "writer", -1, func(err error) { got <- err })
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	recoverLease(t, c) // dn1, which is expected to have the block, has nothing and says so
	dn1.received("recover the block", func(o *pb.Orders) bool { return len(o.Recover) == 1 })
	id, err := m.ns.Resolve(m.caller(), "/wal")
	if err != nil {
		t.Fatal(err)
	}
	f, _ := m.ns.FileByID(id)
	_, err = dn1.links[0].client.CommitBlockSynchronization(t.Context(), &pb.CommitBlockSynchronizationRequest{
		Block: wireBlock(w.block(0)), RecoveryId: uint64(f.RecoveryID), Close: true, DeleteBlock: true,
	})
	if f, ok := m.ns.FileByID(id); err == nil || !ok || !f.UnderConstruction || len(f.Blocks) != 1 {
		t.Errorf("the block is dropped: %+v, %v", f, err)
	}
}

// pass lets time pass for leases.
func (c *clock) pass(d namespace.LogTime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base += d
}

// A writer that syncs and says how long the block is by then (Hadoop's SyncFlag.UPDATE_LENGTH, FSNamesystem.fsync) has the length shown to
// readers, and whoever recovers the block is told that it has so many bytes at least. It never becomes shorter by it.
func TestSyncedLengthIsShownAndAskedOfRecovery(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/wal", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(w.block(0), pb.ReplicaState_RBW)
	fs := c.root()
	for _, sync := range []struct{ says, shown int64 }{{-1, 0}, {0, 0}, {50, 50}, {77, 77}, {60, 77}, {-1, 77}} {
		var done hadoop.FsyncResponseProto
		if err := w.rpc.Call(t.Context(), clientprotocol.Name, "fsync", &hadoop.FsyncRequestProto{
			Src: &w.path, Client: &w.client, LastBlockLength: &sync.says, FileId: &w.id,
		}, &done); err != nil {
			t.Fatal(err)
		}
		if st, err := fs.Stat(t.Context(), "/wal"); err != nil || st.Length != sync.shown {
			t.Errorf("after a sync that says %d: length %d, %v, want %d", sync.says, st.Length, err, sync.shown)
		}
		l, err := c.located(fs.User(), "/wal")
		if err != nil || int64(l.LastBlock.B.GetNumBytes()) != sync.shown || l.GetFileLength() != 0 || l.GetIsLastBlockComplete() {
			t.Errorf("after a sync that says %d: %v, %v, want a last block of %d bytes", sync.says, l, err, sync.shown)
		}
	}
	recoverLease(t, c)
	dn.received("recover at least 77 bytes", func(o *pb.Orders) bool { return len(o.Recover) == 1 && o.Recover[0].Block.Length == 77 })
}
