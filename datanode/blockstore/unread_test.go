package blockstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// badPage has reads of a page of files with a part in their name fail, as where a disk has a sector that it cannot read.
func badPage(part string, page int64) faulty.Rule {
	return func(op faulty.Op) error {
		if op.Call == "read" && strings.Contains(op.Name, part) && op.Off < (page+1)*pageSize && op.Off+op.N > page*pageSize {
			return syscall.EIO
		}
		return nil
	}
}

// openBad opens the store of a disk on which reads fail so.
func openBad(t *testing.T, inner vfs.FS, rule faulty.Rule) *harness {
	t.Helper()
	disk := faulty.New(inner)
	disk.Set(rule)
	h := open(t, disk)
	check(t, h.all()[0].err())
	return h
}

func bytesAt(t *testing.T, fsys vfs.FS, name string) []byte {
	t.Helper()
	f := must[vfs.File](t)(fsys.OpenFile(name, os.O_RDONLY, 0))
	defer f.Close()
	b := make([]byte, must[int64](t)(f.Size()))
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return b
}

// unread is how many places could not be read when the store was opened.
func (h *harness) unread() int { return h.Volumes()[0].Opened.Unread }

// A record whose head cannot be read is left alone, and its pack with it. All others are there.
func TestAPageOfAPackCannotBeRead(t *testing.T) {
	inner := mem.New(1 << 22)
	h := open(t, inner)
	for id := int64(1); id <= 5; id++ {
		h.put(id, 1, pattern(5000)) // two pages each
	}
	check(t, h.Shutdown())
	h = openBad(t, inner, badPage(packExt, 3))
	if _, ok := h.Replica(2); ok || h.unread() != 1 {
		t.Errorf("it is there, %d places are unread", h.unread())
	}
	for _, id := range []int64{1, 3, 4, 5} {
		h.wantContent(id, pattern(5000))
		check(t, h.Delete(block(id, 1, 0)))
	}
	check(t, h.Shutdown())
	h = open(t, inner)
	h.wantContent(2, pattern(5000))
	if n := h.Volumes()[0].Replicas; n != 1 || h.unread() != 0 {
		t.Errorf("%d replicas, %d places are unread", n, h.unread())
	}
	check(t, h.Shutdown())

	disk := faulty.New(inner) // one that takes no writes either
	disk.Set(func(op faulty.Op) error {
		if strings.HasSuffix(op.Name, probeFile) {
			return syscall.EIO
		}
		return badPage(packExt, 1)(op)
	})
	_, err := tryOpen(t, disk)
	wantKind(t, err, syscall.EIO)
}

// A disk that cannot read much is about to fail, and each of its pages takes seconds.
func TestADiskThatCannotReadMuchHasFailed(t *testing.T) {
	inner := mem.New(1 << 24)
	h := open(t, inner)
	for id := int64(1); id <= 40; id++ {
		h.put(id, 1, pattern(packLimit))
	}
	check(t, h.Shutdown())
	disk, read := faulty.New(inner), 0
	disk.Set(func(op faulty.Op) error {
		if op.Call == "read" && strings.Contains(op.Name, packExt) && op.Off > 0 {
			read++
			return syscall.EIO
		}
		return nil
	})
	_, err := tryOpen(t, disk)
	if wantKind(t, err, syscall.EIO); read > mostUnread+1 {
		t.Errorf("%d reads", read)
	}
}

// Data of records that cannot be read: a finalized one is corrupt until it can be, one that was being written ends there. Nothing of the pack changes.
func TestDataOfRecordsCannotBeRead(t *testing.T) {
	inner := mem.New(1 << 22)
	h := open(t, inner)
	w := must[datanode.Writer](t)(h.Create(block(1, 1, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(20_000), nil)) // pages 1 to 5
	h.put(2, 1, pattern(20_000))               // pages 6 to 10
	check(t, h.Shutdown())
	before := bytesAt(t, inner, "/v/packs/1.pack")

	disk := faulty.New(inner)
	disk.Set(func(op faulty.Op) error { return errors.Join(badPage(packExt, 3)(op), badPage(packExt, 8)(op)) })
	h = open(t, disk)
	const good = (3*pageSize - (packAlign + recordHead + 4*40)) / chunk * chunk
	if r, _ := h.Replica(1); r.State != datanode.RWR || r.Block.Length != good {
		t.Errorf("what was being written is %v", r)
	}
	if r, _ := h.Replica(2); r.State != datanode.Finalized || len(h.Corrupt()) != 1 || h.Corrupt()[0].Block != r.Block {
		t.Errorf("what was finalized is %v, corrupt are %v", r, h.Corrupt())
	}
	if !bytes.Equal(bytesAt(t, inner, "/v/packs/1.pack"), before) {
		t.Error("the pack was changed")
	}
	disk.Set(nil)
	check(t, h.Verify(t.Context(), 2, datanode.VerifyOptions{}))
	h.wantContent(2, pattern(20_000))
	if k := h.kinds(2); k != "VERIFIED" || len(h.Corrupt()) > 0 {
		t.Errorf("announced %s, corrupt are %v", k, h.Corrupt())
	}
	must[datanode.Replica](t)(h.InitRecovery(block(1, 1, 0), 9))
	must[datanode.Replica](t)(h.UpdateReplica(block(1, 1, 0), 9, good))
	check(t, h.Shutdown())
	for range 2 {
		h = open(t, inner)
		h.wantContent(1, pattern(20_000)[:good])
		h.wantContent(2, pattern(20_000))
		check(t, h.Shutdown())
	}
}

// A record of which nothing can be read but the head is left alone, and goes before its block comes anew.
func TestNothingButTheHeadOfARecordCanBeRead(t *testing.T) {
	inner := mem.New(1 << 22)
	h := open(t, inner)
	w := must[datanode.Writer](t)(h.Create(block(1, 1, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(20_000), nil))
	check(t, h.Shutdown())
	rule := func(op faulty.Op) error {
		if op.Call == "read" && strings.Contains(op.Name, packExt) && op.N > 512 {
			return syscall.EIO
		}
		return nil
	}
	h = openBad(t, inner, rule)
	if r, ok := h.Replica(1); ok {
		t.Errorf("there is %v", r)
	}
	check(t, h.Shutdown())
	h = open(t, clone(inner))
	if r, _ := h.Replica(1); r.State != datanode.RWR || r.Block.Length != 20_000 {
		t.Errorf("when it can be read there is %v", r)
	}
	h = openBad(t, inner, rule)
	h.put(1, 1, pattern(3000))
	check(t, h.Shutdown())
	h = open(t, inner)
	h.wantContent(1, pattern(3000))
}

// An open replica ends where its files cannot be read, which stay as they are. A recovery cuts them.
func TestAnOpenReplicaCannotBeRead(t *testing.T) {
	const length = 600_001
	for name, c := range map[string]struct {
		part string
		page int64
		want int64
	}{
		"data":                   {dataName(1), 73, 73 * pageSize},
		"the last page":          {dataName(1), 146, 146 * pageSize},
		"checksums":              {".rbw", 1, (pageSize - headerSize) / 4 * chunk},
		"the head of the others": {".rbw", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inner := mem.New(1 << 22)
			h := open(t, inner)
			w := must[datanode.Writer](t)(h.Create(block(1, 1, 0), datanode.CreateOptions{}))
			check(t, w.Write(0, pattern(length), nil))
			v := h.all()[0]
			data, sums := v.dataPath(1), v.sumsPath(1, 1, sufRBW)
			check(t, h.Shutdown())
			bad := badPage(c.part, c.page)
			before := slices.Concat(bytesAt(t, inner, data), bytesAt(t, inner, sums))
			for range 2 {
				h = openBad(t, inner, bad)
				if r, _ := h.Replica(1); r.State != datanode.RWR || r.Block.Length != c.want || h.unread() != 1 {
					t.Errorf("there is %v, %d places are unread", r, h.unread())
				}
				check(t, h.Shutdown())
				if !bytes.Equal(before, slices.Concat(bytesAt(t, inner, data), bytesAt(t, inner, sums))) {
					t.Error("its files were changed")
				}
			}
			other := clone(inner)
			h = open(t, other)
			if r, _ := h.Replica(1); r.State != datanode.RWR || r.Block.Length != length {
				t.Errorf("when it can be read there is %v", r)
			}
			check(t, h.Shutdown())
			if c.want == 0 {
				return
			}
			h = openBad(t, inner, bad)
			must[datanode.Replica](t)(h.InitRecovery(block(1, 1, 0), 9))
			must[datanode.Replica](t)(h.UpdateReplica(block(1, 1, 0), 9, c.want))
			h.wantContent(1, pattern(length)[:c.want])
			check(t, h.CheckSizes(1))
			check(t, h.Shutdown())
			h = open(t, inner)
			h.wantContent(1, pattern(length)[:c.want])
			if len(h.Corrupt()) > 0 {
				t.Errorf("corrupt are %v", h.Corrupt())
			}
		})
	}
}

// What was finalized unsynced and cannot be read is corrupt, and stays what it is until it can be read.
func TestAnUnsyncedReplicaCannotBeRead(t *testing.T) {
	inner := mem.New(1 << 22)
	h := open(t, inner)
	h.cfg.Unsynced = true
	h.put(1, 1, pattern(100_000))
	check(t, h.Shutdown())
	disk := faulty.New(inner)
	disk.Set(badPage(dataName(1), 7))
	h = open(t, disk)
	if r, _ := h.Replica(1); r.State != datanode.Finalized || r.Block.Length != 100_000 || len(h.Corrupt()) != 1 {
		t.Fatalf("there is %v, corrupt are %v", r, h.Corrupt())
	}
	if h.settleAll(); h.suffixOf(1) != sufUnsynced {
		t.Error("it was settled")
	}
	wantKind(t, h.Verify(t.Context(), 1, datanode.VerifyOptions{}), metadata.ErrCorrupt)
	_, err := h.InitRecovery(metadata.Block{ID: 1, Generation: 1}, 2) // it is not known to be whole, and others may be
	wantKind(t, err, metadata.ErrIO)
	disk.Set(nil)
	other := open(t, clone(inner))
	if other.wantContent(1, pattern(100_000)); len(other.Corrupt()) > 0 {
		t.Errorf("when it can be read corrupt are %v", other.Corrupt())
	}
	check(t, h.Verify(t.Context(), 1, datanode.VerifyOptions{}))
	if h.settleAll(); h.suffixOf(1) != sufMeta || len(h.Corrupt()) > 0 {
		t.Errorf("it was not settled when it had been verified, corrupt are %v", h.Corrupt())
	}
	h.wantContent(1, pattern(100_000))
}

// A pack whose head cannot be read is left alone, unless its index knows the salt.
func TestTheHeadOfAPackCannotBeRead(t *testing.T) {
	for _, indexed := range []bool{false, true} {
		inner, clock := handDisk(1 << 24)
		h := open(t, inner)
		for id := int64(1); id <= 5; id++ {
			h.put(id, 1, pattern(5000))
		}
		h.put(6, 1, pattern(50_000))
		h.all()[0].endPack()
		clock.pass(3 * time.Second)
		if indexed {
			check(t, writeIndexes(h.Store))
		}
		h.Store.opened.Store(false) // no index at the end
		check(t, h.Shutdown())
		before := bytesAt(t, inner, "/v/packs/1.pack")
		h = openBad(t, inner, badPage("packs/1.pack", 0))
		h.wantContent(6, pattern(50_000))
		if h.unread() != 1 {
			t.Errorf("%d places are unread", h.unread())
		}
		if indexed {
			for id := int64(1); id <= 5; id++ {
				h.wantContent(id, pattern(5000))
			}
			check(t, h.Delete(block(3, 1, 0)))
			clock.pass(3 * time.Second)
			check(t, writeIndexes(h.Store))
			check(t, h.Shutdown())
			h = openBad(t, inner, badPage("packs/1.pack", 0))
			if n := h.Volumes()[0].Replicas; n != 5 {
				t.Errorf("%d replicas after one was deleted", n)
			}
			check(t, h.Shutdown())
			continue
		}
		if _, ok := h.Replica(1); ok {
			t.Error("without the salt a record is taken for one")
		}
		clock.pass(3 * time.Second)
		check(t, writeIndexes(h.Store))
		check(t, h.Shutdown())
		if !bytes.Equal(bytesAt(t, inner, "/v/packs/1.pack"), before) {
			t.Error("the pack was changed")
		}
		h = open(t, inner)
		for id := int64(1); id <= 5; id++ {
			h.wantContent(id, pattern(5000))
			check(t, h.Verify(context.Background(), metadata.BlockID(id), datanode.VerifyOptions{}))
		}
		check(t, h.Shutdown())
	}
}
