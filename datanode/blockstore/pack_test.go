package blockstore

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

func names(t testing.TB, fsys vfs.FS, dir string) []string {
	t.Helper()
	var out []string
	for _, e := range must[[]vfs.Entry](t)(fsys.ReadDir(dir)) {
		out = append(out, e.Name)
	}
	return out
}

func TestSmallBlockIsOneFsyncAndNoFile(t *testing.T) {
	disk := faulty.New(mem.New(1 << 20))
	h := open(t, disk)
	h.put(1, 1, pattern(10)) // makes the pack
	calls := map[string]int{}
	disk.Set(func(op faulty.Op) error { calls[op.Call]++; return nil })
	h.put(2, 1, pattern(4096))
	disk.Set(nil)
	if calls["sync"] != 1 || calls["open"]+calls["rename"]+calls["syncdir"]+calls["mkdir"] != 0 {
		t.Errorf("calls to the disk: %v", calls)
	}
	h.wantContent(2, pattern(4096))
}

func TestPackedBlocksLiveThroughRestartsAndChanges(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"os": vfs.OS, "mem": mem.New(1 << 22)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := open(t, fsys, dir)
			data := pattern(packLimit)
			sizes := []int{1, 511, 512, 513, 4096, packLimit - 1, packLimit}
			for i, n := range sizes {
				h.put(int64(i+1), 5, data[:n])
			}
			for range 2 {
				for i, n := range sizes {
					h.wantContent(int64(i+1), data[:n])
					check(t, h.Verify(context.Background(), metadata.BlockID(i+1), datanode.VerifyOptions{}))
				}
				check(t, h.Shutdown())
				h = open(t, fsys, dir)
			}
			w := must[datanode.Writer](t)(h.Append(block(2, 5, 511), 6, false))
			check(t, w.Write(511, data[511:1000], nil))
			w.Acked(1000)
			must[datanode.Replica](t)(w.Finalize())
			must[datanode.Replica](t)(h.InitRecovery(block(5, 5, 0), 9))
			must[datanode.Replica](t)(h.UpdateReplica(block(5, 5, 0), 9, 700))
			must[datanode.Replica](t)(h.Close(block(6, 5, packLimit-1), 7))
			check(t, h.Delete(block(7, 5, 0)))
			for range 2 {
				h.wantContent(2, data[:1000])
				h.wantContent(5, data[:700])
				h.wantContent(6, data[:packLimit-1])
				if r, ok := h.Replica(7); ok {
					t.Errorf("deleted replica is back as %v", r)
				}
				if v := h.Volumes()[0]; v.Replicas != 6 {
					t.Errorf("volume %+v", v)
				}
				check(t, h.Shutdown())
				h = open(t, fsys, dir)
			}
			for i := range sizes[:6] {
				check(t, h.Delete(block(int64(i+1), 9, 0)))
			}
			if left := names(t, fsys, filepath.Join(dir, packsDir)); len(left) > 0 {
				t.Errorf("packs without a block are left: %v", left)
			}
			if v := h.Volumes()[0]; v.Used != 0 || v.Replicas != 0 {
				t.Errorf("volume %+v after deleting all", v)
			}
			check(t, h.Shutdown())
		})
	}
}

func TestPackGoesWithItsLastBlock(t *testing.T) {
	fsys := mem.New(1 << 22)
	h := open(t, fsys)
	h.all()[0].packSize = 16 << 10
	for id := int64(1); id <= 8; id++ {
		h.put(id, 1, pattern(4096))
	}
	if got := names(t, fsys, "/v/packs"); len(got) != 4 {
		t.Fatalf("packs are %v", got)
	}
	check(t, h.Delete(block(1, 1, 0)))
	check(t, h.Delete(block(3, 1, 0)))
	if got := strings.Join(names(t, fsys, "/v/packs"), " "); got != "2.pack 3.pack 4.pack" && got != "1.pack 2.pack 3.pack 4.pack" {
		t.Errorf("packs are %v", got)
	}
	check(t, h.Delete(block(2, 1, 0)))
	for _, name := range names(t, fsys, "/v/packs") {
		if name == "1.pack" {
			t.Error("an empty pack is left")
		}
	}
	h.wantContent(8, pattern(4096))
}

func TestReaderOfPackedBlockOutlivesItsDeletion(t *testing.T) {
	h := open(t, vfs.OS, t.TempDir())
	data := pattern(5000)
	h.put(1, 1, data)
	rd := must[datanode.Reader](t)(h.Store.Open(block(1, 1, 0)))
	check(t, h.Delete(block(1, 1, 0)))
	got := make([]byte, 5000)
	if _, err := rd.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read after the deletion: %v", err)
	}
	check(t, rd.Close())
}

func TestSpaceOfDeletedPackedBlockIsGivenBack(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	for id := int64(1); id <= 9; id++ {
		h.put(id, 1, pattern(packLimit))
	}
	f := must[*os.File](t)(os.Open(filepath.Join(dir, packsDir, "1.pack")))
	defer f.Close()
	check(t, h.Delete(block(5, 1, 0)))
	at := packAlign + 4*recordSize(packLimit)
	b := make([]byte, 512)
	_, err := f.ReadAt(b, at)
	check(t, err)
	if !bytes.Equal(b, make([]byte, 512)) {
		t.Error("the record of a deleted block is still there")
	}
	h.wantContent(4, pattern(packLimit))
	h.wantContent(6, pattern(packLimit))
	check(t, h.Shutdown())
}

// A client may store whatever it likes, also what looks like a record.
func TestDataIsNotTakenForRecords(t *testing.T) {
	fsys := mem.New(1 << 20)
	h := open(t, fsys)
	forger := &pack{salt: make([]byte, saltSize)}
	forged := forger.encodeRecord(nil, 99, 1000, packAlign, sumsOf(pattern(100)), pattern(100))
	forged[stateAt] = stateFinal
	data := make([]byte, 3*packAlign)
	for off := 0; off+len(forged) < len(data); off += 4 {
		copy(data[off:], forged[:recordHead])
	}
	h.put(1, 1, data)
	h.put(2, 1, pattern(10))
	_, err := h.all()[0].pack.f.WriteAt(make([]byte, 512), packAlign) // the head is lost: a scan goes through the data
	check(t, err)
	check(t, h.Shutdown())
	h = open(t, fsys)
	if r, ok := h.Replica(99); ok {
		t.Errorf("forged replica %v", r)
	}
	h.wantContent(2, pattern(10))
}

// Whatever is in a pack: the store opens, and what it serves matches its checksums or is found corrupt.
func TestDamagedPacks(t *testing.T) {
	for seed := range uint64(300) {
		fsys := mem.New(1 << 20)
		h := open(t, fsys)
		for id := int64(1); id <= 5; id++ {
			h.put(id, 1, pattern(int(id)*1500))
		}
		check(t, h.Shutdown())
		r := rand.New(rand.NewPCG(seed, 3))
		f := must[vfs.File](t)(fsys.OpenFile("/v/packs/1.pack", os.O_RDWR, 0))
		size := must[int64](t)(f.Size())
		for range 1 + r.IntN(4) {
			off := r.Int64N(size)
			if r.IntN(2) == 0 {
				off = off/packAlign*packAlign + r.Int64N(64)
			}
			_, err := f.WriteAt([]byte{byte(r.Uint32())}, min(off, size-1))
			check(t, err)
		}
		if r.IntN(4) == 0 {
			check(t, f.Truncate(r.Int64N(size)))
		}
		check(t, f.Close())
		h = open(t, fsys)
		for id := int64(1); id <= 5; id++ {
			rep, ok := h.Replica(metadata.BlockID(id))
			if ok && rep.State == datanode.Finalized && h.Verify(context.Background(), metadata.BlockID(id), datanode.VerifyOptions{}) == nil {
				h.wantContent(id, pattern(int(id)*1500))
			}
		}
		check(t, h.Shutdown())
	}
}

func TestVolumeOfLayoutOneIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	h.put(1, 1, pattern(40_000))
	id := h.Identity()
	check(t, h.Shutdown())
	name := filepath.Join(dir, versionFile)
	text := strings.Replace(string(must[[]byte](t)(os.ReadFile(name))), "layoutVersion=3", "layoutVersion=1", 1)
	text = text[:strings.LastIndex(text, "crc32c=")]
	check(t, os.WriteFile(name, []byte(text+"crc32c="+hex8(crcOf([]byte(text)))+"\n"), 0o600))
	h = open(t, vfs.OS, dir)
	h.wantContent(1, pattern(40_000))
	if h.Identity() != id {
		t.Errorf("identity %+v, was %+v", h.Identity(), id)
	}
	if text := string(must[[]byte](t)(os.ReadFile(name))); !strings.Contains(text, "layoutVersion=3") {
		t.Errorf("an older program would take the volume:\n%s", text)
	}
	check(t, h.Shutdown())
}

// Power is cut while the fsync of a close runs: the state may be on disk and the data not.
func TestTornRecordIsNotFinalized(t *testing.T) {
	for seed := range uint64(200) {
		inner := mem.New(1 << 20)
		disk := faulty.New(inner)
		h := open(t, disk)
		h.put(1, 1, pattern(5000))
		var crashed *mem.FS
		disk.Set(func(op faulty.Op) error {
			if op.Call == "sync" {
				crashed = inner.Crash(rand.New(rand.NewPCG(seed, 4)), 0.8)
			}
			return nil
		})
		h.put(2, 1, pattern(3000))
		h = open(t, crashed)
		h.wantContent(1, pattern(5000))
		if r, ok := h.Replica(2); ok && r.State == datanode.Finalized {
			h.wantContent(2, pattern(3000))
		} else if ok {
			must[datanode.Replica](t)(h.InitRecovery(r.Block, 9))
			must[datanode.Replica](t)(h.UpdateReplica(r.Block, 9, r.Block.Length))
			h.wantContent(2, pattern(3000)[:r.Block.Length])
		}
	}
}
