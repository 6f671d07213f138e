package blockstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// paths are where the store has volumes, in order.
func (h *harness) paths() string {
	var out []string
	for _, v := range h.Volumes() {
		out = append(out, v.Path)
	}
	return strings.Join(out, " ")
}

func TestVolumesComeAndGo(t *testing.T) {
	disk := mem.New(1 << 26)
	h := open(t, disk, "/a")
	h.put(1, 7, pattern(100_000))
	h.put(2, 7, pattern(3000)) // in a pack
	check(t, h.Add(VolumeConfig{Path: "/b"}))
	for id := int64(10); id < 30; id++ {
		h.put(id, 7, pattern(1000*int(id)))
	}
	if b := h.Volumes()[1]; h.paths() != "/a /b" || b.Replicas != 10 || b.Used == 0 {
		t.Fatalf("%s: %+v", h.paths(), b)
	}
	wantKind(t, h.Add(VolumeConfig{Path: "/b"}), metadata.ErrInvalidArgument)
	wantKind(t, h.Remove("/c"), metadata.ErrInvalidArgument)

	// One goes, with a writer and a reader on it.
	w := must[datanode.Writer](t)(h.Create(block(50, 7, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(5000), nil))
	w2 := must[datanode.Writer](t)(h.Create(block(51, 7, 0), datanode.CreateOptions{}))
	check(t, w2.Write(0, pattern(5000), nil))
	gone, _ := h.Replica(50)
	path, stays, lost := "/a", w2, w
	if gone.Volume == h.Volumes()[1].ID {
		path = "/b"
	}
	var onIt []metadata.BlockID
	for _, v := range h.Volumes() {
		if v.Path == path {
			h.Each(v.ID, func(r datanode.Replica) bool {
				if r.State == datanode.Finalized && r.Block.Length > packLimit/4 {
					onIt = append(onIt, r.Block.ID)
				}
				return true
			})
		}
	}
	rd := must[datanode.Reader](t)(h.Store.Open(block(int64(onIt[0]), 7, 0)))
	length := int(rd.Replica().Block.Length)
	check(t, h.Remove(path))
	select {
	case <-lost.Lost():
	default:
		t.Error("a writer of the volume was not told")
	}
	if err := lost.Write(5000, pattern(10), nil); err == nil {
		t.Error("a writer of the volume goes on")
	}
	check(t, lost.Close())
	check(t, stays.Write(5000, pattern(10), nil))
	p := make([]byte, length)
	if _, err := rd.ReadAt(p, 0); err != nil || string(p) != string(pattern(length)) {
		t.Errorf("a reader of the volume: %v", err)
	}
	check(t, rd.Close())
	for _, id := range onIt {
		if _, ok := h.Replica(id); ok {
			t.Errorf("block %d is still there", id)
		}
	}
	rest := h.paths()
	wantKind(t, h.Remove(rest), metadata.ErrInvalidArgument) // the last one
	stays.Acked(5010)
	must[datanode.Replica](t)(stays.Finalize())

	// It comes back with what is on it; a block that is here meanwhile stays as it is here.
	h.put(int64(onIt[0]), 8, pattern(77))
	check(t, h.Add(VolumeConfig{Path: path}))
	for _, id := range onIt[1:] {
		r, ok := h.Replica(id)
		if !ok {
			t.Fatalf("block %d has not come back", id)
		}
		h.wantContent(int64(id), pattern(int(r.Block.Length)))
	}
	h.wantContent(int64(onIt[0]), pattern(77))
	if r, ok := h.Replica(50); !ok || r.State != datanode.RWR {
		t.Errorf("what was being written is %+v", r)
	}

	// A start finds the same, and both volumes know of both.
	check(t, h.Remove(path))
	check(t, h.Add(VolumeConfig{Path: path}))
	check(t, h.Shutdown())
	h = open(t, disk, "/a", "/b")
	for _, id := range onIt[1:] {
		h.wantContent(int64(id), pattern(int(must2(h.Replica(id)).Block.Length)))
	}
	for _, v := range h.all() {
		if got := strings.Count(v.id.Siblings, "DS-"); got != 2 {
			t.Errorf("%s knows of %s", v.path, v.id.Siblings)
		}
	}
}

// A volume goes while a write to it is on its way to the disk: the write comes to its end, and the next call says that the replica is lost.
func TestVolumeIsRemovedDuringAWrite(t *testing.T) {
	disk := faulty.New(mem.New(1 << 26))
	h := open(t, disk, "/a", "/b")
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(100_000), nil))
	path := h.all()[0].path
	if w.Replica().Volume != h.all()[0].id.Storage {
		path = h.all()[1].path
	}
	begun, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	disk.Set(func(op faulty.Op) error {
		if op.Call == "write" && strings.HasPrefix(op.Name, path) {
			once.Do(func() { close(begun); <-let })
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Write(100_000, pattern(100_000), nil); err != nil {
			t.Error(err)
		}
	})
	<-begun
	waited := make(chan struct{})
	wg.Go(func() { defer close(waited); h.Wait(t.Context(), 1, 200_000) })
	wg.Go(func() { check(t, h.Remove(path)) })
	<-w.Lost()
	<-waited
	w.Replica() // the lock under which it was taken away is free again
	close(let)
	wg.Wait()
	if err := w.Write(200_000, pattern(10), nil); err == nil {
		t.Error("a writer of the volume goes on")
	}
	check(t, w.Close())
}

func must2[T any](v T, _ bool) T { return v }

func TestVolumesThatCannotBeAdded(t *testing.T) {
	disk := mem.New(1 << 26)
	other := open(t, disk, "/other")
	h := open(t, disk, "/a")
	if err := h.Add(VolumeConfig{Path: "/other"}); !errors.Is(err, datanode.ErrVolumeInUse) {
		t.Errorf("one that is in use: %v", err)
	}
	check(t, other.Shutdown())
	if err := h.Add(VolumeConfig{Path: "/other"}); !errors.Is(err, datanode.ErrVolumeOwner) {
		t.Errorf("another datanode's: %v", err)
	}
	check(t, disk.Mkdir("/foreign", 0o700))
	check(t, disk.Mkdir("/foreign/home", 0o700))
	if err := h.Add(VolumeConfig{Path: "/foreign"}); !errors.Is(err, datanode.ErrVolumeVersion) {
		t.Errorf("a directory with something else: %v", err)
	}
	if h.paths() != "/a" {
		t.Fatal(h.paths())
	}
	h.put(1, 7, pattern(1000))
	open(t, disk, "/other") // it was let go
}

// A disk that failed works again, or was replaced by an empty one, which somebody has to say.
func TestFailedVolumesAreReplaced(t *testing.T) {
	disk := faulty.New(mem.New(1 << 26))
	h := open(t, disk, "/a", "/b")
	for id := int64(1); id <= 20; id++ {
		h.put(id, 7, pattern(40_000))
	}
	broken := errors.New("broken")
	disk.Set(faulty.Nth(1, "sync", "/b/", true, broken))
	for id := int64(21); id <= 24; id++ {
		if w, err := h.Create(block(id, 7, 0), datanode.CreateOptions{}); err == nil {
			if err = w.Write(0, pattern(40_000), nil); err == nil {
				_, _ = w.Finalize()
			}
			_ = w.Close()
		}
	}
	if v := h.Volumes()[1]; v.Failed == nil || !errors.Is(v.Failed, broken) {
		t.Fatalf("%+v", v)
	}
	if err := h.Add(VolumeConfig{Path: "/b"}); !errors.Is(err, broken) {
		t.Fatalf("it still fails: %v", err)
	}
	if v := h.Volumes()[1]; v.Failed == nil {
		t.Fatalf("%+v", v)
	}
	disk.Set(nil)
	check(t, h.Add(VolumeConfig{Path: "/b"}))
	if v := h.Volumes()[1]; v.Failed != nil || v.Replicas < 10 {
		t.Fatalf("%+v", v)
	}
	for id := int64(1); id <= 20; id++ {
		h.wantContent(id, pattern(40_000))
	}

	h.all()[1].fail(broken)
	check(t, disk.Rename("/b", "/old"))
	check(t, disk.Mkdir("/b", 0o700))
	if err := h.Add(VolumeConfig{Path: "/b"}); !errors.Is(err, datanode.ErrVolumeVersion) || !strings.Contains(err.Error(), "ACCEPT") {
		t.Fatalf("an empty disk: %v", err)
	}
	f := must[vfs.File](t)(disk.OpenFile("/b/ACCEPT", os.O_RDWR|os.O_CREATE, 0o600))
	check(t, f.Close())
	check(t, h.Add(VolumeConfig{Path: "/b"}))
	if v := h.Volumes()[1]; v.Failed != nil || v.Replicas != 0 {
		t.Fatalf("%+v", v)
	}
}

func TestVolumesSwappedUnderLoad(t *testing.T) {
	disk := mem.New(1 << 28)
	h := open(t, disk, "/a", "/b")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range int64(4) {
		wg.Go(func() {
			for id := g; ; id += 4 {
				select {
				case <-stop:
					return
				default:
				}
				w, err := h.Create(block(1000+id, 7, 0), datanode.CreateOptions{})
				if err != nil {
					continue
				}
				data := pattern(int(id%9) * 7000)
				if err = w.Write(0, data, nil); err == nil {
					w.Acked(int64(len(data)))
					_, err = w.Finalize()
				}
				if err == nil {
					if rd, err := h.Store.Open(block(1000+id, 7, 0)); err == nil {
						p := make([]byte, len(data))
						if _, err := rd.ReadAt(p, 0); err == nil && string(p) != string(data) {
							t.Error("other bytes")
						}
						_ = rd.Close()
					}
					if id%3 == 0 {
						_ = h.Delete(block(1000+id, 7, 0))
					}
				}
				_ = w.Close()
			}
		})
	}
	for range 25 {
		check(t, h.Remove("/b"))
		check(t, h.Add(VolumeConfig{Path: "/b"}))
	}
	close(stop)
	wg.Wait()
	if v := h.Volumes()[1]; v.Failed != nil {
		t.Fatal(v.Failed)
	}
	check(t, h.Shutdown())
	h = open(t, disk, "/a", "/b")
	for _, v := range h.Volumes() {
		if v.Failed != nil {
			t.Fatal(v.Failed)
		}
		h.Each(v.ID, func(r datanode.Replica) bool {
			if r.State == datanode.Finalized {
				h.wantContent(int64(r.Block.ID), pattern(int(r.Block.Length)))
			}
			return true
		})
	}
}

// A writer that is closed after its volume was taken out, and has come back, leaves alone what others have written there since.
func TestWriterOfAVolumeThatHasComeBackCutsNothing(t *testing.T) {
	disk := mem.New(1 << 28)
	h := open(t, disk, "/a", "/b")
	data := pattern(6 << 20)
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{Expect: 64 << 20}))
	check(t, w.Write(0, data, nil))
	check(t, w.Write(int64(len(data)), []byte("end"), nil)) // with room behind it
	length := int64(len(data)) + 3
	path := h.get(1).vol.path
	check(t, h.Remove(path))
	check(t, h.Add(VolumeConfig{Path: path}))
	must[datanode.Replica](t)(h.InitRecovery(block(1, 7, 0), 9))
	must[datanode.Replica](t)(h.UpdateReplica(block(1, 7, 0), 9, length))
	w2 := must[datanode.Writer](t)(h.Append(block(1, 9, length), 10, false))
	check(t, w2.Write(length, []byte("more"), nil))
	w2.Acked(length + 4)
	must[datanode.Replica](t)(w2.Finalize())
	check(t, w.Close())
	h.wantContent(1, append(append(data, "end"...), "more"...))
}

// A replica of a volume that comes, which somebody works on already, is not removed for a newer record that was being written.
func TestVolumeThatComesLeavesAloneWhatIsWorkedOn(t *testing.T) {
	disk := faulty.New(mem.New(1 << 26))
	h := open(t, disk, "/a", "/b")
	h.put(1, 5, pattern(100_000))
	v := h.get(1).vol
	data := pattern(1000)
	at := must[*slot](t)(v.addRecord(1, 6, sumsOf(data), data))
	check(t, at.p.sync())
	check(t, h.Remove(v.path))
	var met atomic.Bool
	disk.Set(func(op faulty.Op) error {
		if op.Call == "read" && strings.HasSuffix(op.Name, packExt) && met.CompareAndSwap(false, true) {
			must[datanode.Replica](t)(h.InitRecovery(block(1, 5, 0), 9))
		}
		return nil
	})
	check(t, h.Add(VolumeConfig{Path: v.path}))
	if !met.Load() {
		t.Fatal("no pack was read")
	}
	must[datanode.Replica](t)(h.UpdateReplica(block(1, 5, 0), 9, 100_000))
	h.wantContent(1, pattern(100_000))
}

// Replicas that were found in a pack of a volume that comes are moved away while the rest of the pack is looked through.
func TestReplicasLeaveAPackWhileItIsLookedThrough(t *testing.T) {
	h := open(t, mem.New(1<<26), "/a", "/b", "/ssd")
	v, data := h.all()[1], pattern(100)
	const records, moves = 2000, 40
	for id := metadata.BlockID(1); id <= records; id++ {
		at := must[*slot](t)(v.addRecord(id, 7, sumsOf(data), data))
		check(t, at.finish())
		if id >= records-1 { // the last one says that those before it are durable
			check(t, at.p.sync())
		}
	}
	check(t, h.Remove("/b"))
	var g sync.WaitGroup
	g.Go(func() {
		for id := int64(1); id <= moves; id++ {
			until(t, "it is there", func() bool { return h.get(metadata.BlockID(id)) != nil })
			check(t, h.Move(t.Context(), block(id, 7, 100), datanode.SSD, nil))
		}
	})
	check(t, h.Add(VolumeConfig{Path: "/b"}))
	g.Wait()
	for id := int64(1); id <= records; id += 10 {
		h.wantContent(id, data)
	}
	if b := h.Volumes()[2]; b.Path != "/b" || b.Replicas != records-moves {
		t.Errorf("%+v", b)
	}
	check(t, h.Shutdown())
}

// A reader of a volume that has failed is on the way through its replica while the block has got another one of the same generation, and the volume another owner: nothing is announced of what it finds.
func TestNoVerdictOnAVolumeThatHasFailed(t *testing.T) {
	disk := mem.New(1 << 26)
	h := open(t, disk, "/a", "/b")
	data := pattern(100_000)
	h.put(1, 7, data)
	old := h.get(1)
	intact := must[datanode.Reader](t)(h.Store.Open(block(1, 7, 0))).(*reader)
	cut := must[datanode.Reader](t)(h.Store.Open(block(1, 7, 0))).(*reader)
	name := old.vol.dataPath(1)
	old.vol.fail(errors.New("broken"))
	h.put(1, 7, data)
	f := must[vfs.File](t)(disk.OpenFile(name, os.O_RDWR, 0))
	must[int](t)(f.WriteAt([]byte("other"), 0))
	if err := intact.verify(t.Context(), nil); err == nil {
		t.Error("it matches")
	}
	check(t, f.Truncate(1000))
	check(t, f.Close())
	if err := cut.verify(t.Context(), nil); err == nil {
		t.Error("its sizes fit")
	}
	if got := h.kinds(1); got != "RECEIVING RECEIVED RECEIVING RECEIVED" {
		t.Error(got)
	}
	check(t, intact.Close())
	check(t, cut.Close())
	h.wantContent(1, data)
}

// What is found on a volume that comes does not take the place of a replica that is on its way from a volume that has failed.
func TestVolumeThatComesLeavesAloneWhatArrives(t *testing.T) {
	h := open(t, mem.New(1<<26), "/v", "/w", "/ram")
	h.all()[0].slow.Store(true) // so that the copies are on the other one
	h.lazy(1, pattern(50_000))
	h.persist(t.Context(), h.ram())
	h.all()[0].slow.Store(false)
	saved := h.get(1).saved.Load()
	if saved == nil || saved.v.path != "/w" {
		t.Fatal("it is not saved where it is to be")
	}
	v := h.all()[0]
	check(t, v.ensureDir(1))
	d, m, err := v.writeFiles(1, 6, sufMeta, sumsOf(pattern(40_000)), pattern(40_000)) // an old replica
	check(t, err)
	check(t, errors.Join(d.Close(), m.Close()))
	check(t, h.Remove("/v"))
	h.ram().fail(errors.New("broken"))
	check(t, h.Add(VolumeConfig{Path: "/v"}))
	h.persist(t.Context(), h.ram())
	h.wantContent(1, pattern(50_000))
	if r := must2(h.Replica(1)); r.Block.Generation != 7 {
		t.Error(r)
	}
	check(t, h.Shutdown())
}

// A replica of a volume that comes is left alone, because somebody writes the block elsewhere. When the block gets another one on that volume later, under the same name of the data, what was left alone
// is not taken for a replica with the data of the other one, whatever becomes of that.
func TestWhatWasLeftAloneHasNoOtherData(t *testing.T) {
	broken := errors.New("broken")
	for name, another := range map[string]func(h *harness, disk *faulty.FS){
		"of an older generation":        func(h *harness, _ *faulty.FS) { h.put(1, 5, pattern(40_100)) },
		"small, of an older generation": func(h *harness, _ *faulty.FS) { h.put(1, 5, pattern(100)) },
		"small, of the same generation": func(h *harness, _ *faulty.FS) { h.put(1, 7, pattern(100)) },
		"removed in part": func(h *harness, disk *faulty.FS) {
			h.put(1, 9, pattern(40_100))
			disk.Set(faulty.Nth(2, "remove", h.all()[1].dataPath(1), false, broken)) // the data; the checksums are gone
			if err := h.Delete(block(1, 9, 0)); err == nil {
				h.t.Error("it was removed")
			}
			disk.Set(nil)
		},
		"moved in part": func(h *harness, disk *faulty.FS) {
			h.all()[0].slow.Store(false)
			h.all()[1].slow.Store(true)
			h.put(1, 9, pattern(40_100))
			disk.Set(faulty.Nth(1, "rename", h.all()[1].sumsPath(1, 9, sufMeta), false, broken))
			if err := h.MoveTo(t.Context(), block(1, 9, 0), h.all()[1].id.Storage, nil); err == nil {
				h.t.Error("it was moved")
			}
			disk.Set(nil)
			check(h.t, h.Delete(block(1, 9, 0)))
		},
		"moved": func(h *harness, _ *faulty.FS) {
			h.all()[0].slow.Store(false)
			h.all()[1].slow.Store(true)
			h.put(1, 5, pattern(40_100))
			check(h.t, h.MoveTo(t.Context(), block(1, 5, 0), h.all()[1].id.Storage, nil))
		},
	} {
		for _, length := range []int{40_000, 1000} { // in files, and in a pack
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d bytes, restart %v", name, length, restart), func(t *testing.T) {
					disk := faulty.New(mem.New(1 << 26))
					h := open(t, disk, "/a", "/b")
					h.put(1, 7, pattern(length))
					path := h.get(1).vol.path
					check(t, h.Remove(path))
					w := must[datanode.Writer](t)(h.Create(block(1, 8, 0), datanode.CreateOptions{}))
					check(t, w.Write(0, pattern(50_000), nil))
					check(t, h.Add(VolumeConfig{Path: path}))
					check(t, w.Close())
					check(t, h.Delete(block(1, 8, 0)))
					h.all()[0].slow.Store(true) // the next one is on the volume that has come
					another(h, disk)
					before, had := h.Replica(1)
					if restart {
						check(t, h.Shutdown())
						h = open(t, disk, "/a", "/b")
					} else {
						h.all()[0].slow.Store(false)
						if h.all()[1].err() == nil {
							check(t, h.Remove(path))
						}
						check(t, h.Add(VolumeConfig{Path: path}))
					}
					r, there := h.Replica(1)
					if had && (!there || r.Block != before.Block || r.State != before.State) {
						t.Errorf("the replica is %v (%t), it was %v", r, there, before)
					}
					if there {
						check(t, h.CheckSizes(1))
						check(t, h.Verify(t.Context(), 1, datanode.VerifyOptions{}))
						h.wantContent(1, pattern(int(r.Block.Length)))
					}
					if got := h.kinds(1); strings.Contains(got, "CORRUPT") {
						t.Error(got)
					}
					check(t, h.Shutdown())
				})
			}
		}
	}
}

// A record that was being written, and is newer than the files of its block on a volume that comes, is left alone. When the block gets another replica there it goes, with its pack.
func TestARecordThatWasLeftAloneGoesWithItsPack(t *testing.T) {
	disk := mem.New(1 << 26)
	h := open(t, disk, "/a", "/b")
	h.put(1, 5, pattern(40_000))
	v := h.get(1).vol
	data := pattern(1000)
	at := must[*slot](t)(v.addRecord(1, 6, sumsOf(data), data))
	check(t, at.p.sync())
	check(t, h.Remove(v.path))
	check(t, h.Add(VolumeConfig{Path: v.path}))
	h.wantContent(1, pattern(40_000))
	check(t, h.Delete(block(1, 5, 0)))
	h.all()[0].slow.Store(true)
	h.put(1, 6, pattern(2000))
	if left := names(t, disk, filepath.Join(v.path, packsDir)); len(left) != 1 || left[0] != "2"+packExt {
		t.Errorf("packs are %v", left)
	}
	check(t, h.Shutdown())
	h = open(t, disk, "/a", "/b")
	if r, _ := h.Replica(1); r.State != datanode.Finalized || r.Block != block(1, 6, 2000) {
		t.Errorf("the replica is %v", r)
	}
	h.wantContent(1, pattern(2000))
	check(t, h.Shutdown())
}

// A record whose block has left its pack, and whose hole did not survive, takes nothing with it of the newer files that were left alone.
func TestAnOldRecordTakesNothingOfWhatWasLeftAlone(t *testing.T) {
	for name, finished := range map[string]bool{"finalized": true, "being written": false} {
		t.Run(name, func(t *testing.T) {
			disk := mem.New(1 << 26)
			h := open(t, disk, "/a", "/b")
			v := h.all()[1]
			data := pattern(1000)
			at := must[*slot](t)(v.addRecord(1, 5, sumsOf(data), data))
			if finished {
				check(t, at.finish())
			}
			check(t, at.p.sync())
			check(t, v.ensureDir(1))
			d, m, err := v.writeFiles(1, 7, sufMeta, sumsOf(pattern(40_000)), pattern(40_000))
			check(t, err)
			check(t, errors.Join(d.Close(), m.Close()))
			check(t, h.Remove("/b"))
			w := must[datanode.Writer](t)(h.Create(block(1, 6, 0), datanode.CreateOptions{}))
			check(t, w.Write(0, pattern(50_000), nil))
			check(t, h.Add(VolumeConfig{Path: "/b"}))
			check(t, w.Close())
			if left := names(t, disk, "/b/"+packsDir); len(left) > 0 {
				t.Errorf("packs are %v", left)
			}
			check(t, h.Shutdown())
			h = open(t, disk, "/a", "/b")
			if r, _ := h.Replica(1); r.State != datanode.Finalized || r.Block != block(1, 7, 40_000) {
				t.Errorf("the replica is %v", r)
			}
			h.wantContent(1, pattern(40_000))
			check(t, h.Shutdown())
		})
	}
}
