package blockstore

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// hangingFS is a disk of which one volume stops to answer: what changes it, and what asks how full it is, waits until it is
// let go.
type hangingFS struct {
	vfs.FS
	under string
	mu    sync.Mutex
	hangs bool
	stuck chan string // the calls that wait
	freed chan struct{}
}

func (h *hangingFS) wait(name string) {
	h.mu.Lock()
	hangs := h.hangs && strings.HasPrefix(name, h.under)
	h.mu.Unlock()
	if hangs {
		h.stuck <- name
		<-h.freed
	}
}

func (h *hangingFS) Remove(name string) error { h.wait(name); return h.FS.Remove(name) }

func (h *hangingFS) Rename(a, b string) error { h.wait(a); return h.FS.Rename(a, b) }

func (h *hangingFS) Usage(name string) (vfs.Usage, error) { h.wait(name); return h.FS.Usage(name) }

func (h *hangingFS) hang(on bool)                             { h.mu.Lock(); h.hangs = on; h.mu.Unlock() }
func (h *hangingFS) ReadDir(name string) ([]vfs.Entry, error) { return h.FS.ReadDir(name) }

// One disk that does not answer is one volume's trouble: the other one serves meanwhile, and when the watchdog has given the
// hung one up, whoever waited for it goes on.
func TestAHungDiskIsOneVolumesTrouble(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	disk := &hangingFS{FS: vfs.OS, under: a, stuck: make(chan string, 100), freed: make(chan struct{})}
	h := open(t, disk, a, b)
	failed := make(chan string, 10)
	h.cfg.OnVolumeFailed = func(v datanode.VolumeStatus) { failed <- v.Path }
	on := map[string][]datanode.Replica{}
	for id := int64(1); id <= 6; id++ {
		h.put(id, 1, pattern(100_000))
		r, _ := h.Replica(metadata.BlockID(id))
		on[r.Volume] = append(on[r.Volume], r)
	}
	volumes := h.Volumes()
	hung, well := volumes[0].ID, volumes[1].ID
	h.all()[0].usageWait = 50 * time.Millisecond
	disk.hang(true)
	var lost sync.WaitGroup // comes back when the disk does
	lost.Go(func() { _ = h.Delete(on[hung][0].Block) })
	<-disk.stuck

	for _, v := range h.Volumes() { // what every beat tells
		if v.Failed != nil || v.Capacity == 0 {
			t.Errorf("volume %+v", v)
		}
	}
	n := 0
	h.Each(well, func(datanode.Replica) bool { n++; return true })
	if n != len(on[well]) {
		t.Errorf("%d replicas on the other volume, want %d", n, len(on[well]))
	}
	h.wantContent(int64(on[well][0].Block.ID), pattern(100_000))
	for id := int64(20); id < 24; id++ {
		h.put(id, 1, pattern(1000))
		if v, _ := h.VolumeOf(metadata.BlockID(id)); v != well {
			t.Errorf("block %d is on the hung volume", id)
		}
	}
	if err := h.Delete(on[well][1].Block); err != nil {
		t.Error(err)
	}

	var waiting sync.WaitGroup
	for _, wait := range []func(){
		func() { h.Each(hung, func(datanode.Replica) bool { return true }) },
		func() { h.Corrupt() },
		func() { h.Replica(on[hung][0].Block.ID) },
		func() { _, _ = h.Open(on[hung][0].Block) },
		func() { _, _ = h.InitRecovery(on[hung][0].Block, 99) },
		func() { _ = h.Delete(on[hung][0].Block) },
	} {
		waiting.Go(wait)
	}
	for range hangTicks {
		select {
		case v := <-failed:
			t.Fatalf("%s was given up too early", v)
		default:
		}
		h.watch(30 * time.Second)
	}
	waiting.Wait()
	select {
	case v := <-failed:
		if v != a {
			t.Errorf("%s was given up", v)
		}
	default:
		t.Error("nothing was given up")
	}
	if v := h.Volumes(); v[0].Failed == nil || !strings.Contains(v[0].Failed.Error(), "not come back for 30s") || v[1].Failed != nil {
		t.Errorf("volumes are %+v", v)
	}
	disk.hang(false)
	close(disk.freed)
	lost.Wait()
}

// hangingFile is a file of a hangingFS whose reads wait as well.
type hangingFile struct {
	vfs.File
	disk *hangingFS
	name string
}

func (h *hangingFS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := h.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return hangingFile{f, h, name}, nil
}

func (f hangingFile) ReadAt(p []byte, off int64) (int, error) {
	f.disk.wait(f.name)
	return f.File.ReadAt(p, off)
}

// A disk that hangs while the kernel sends what is on it is found, too; a client that takes its time is no reason to give one up.
func TestADiskThatHangsInWhatTheKernelSendsIsGivenUp(t *testing.T) {
	disk := &hangingFS{FS: vfs.OS, stuck: make(chan string, 1), freed: make(chan struct{})}
	disk.under = t.TempDir()
	h := open(t, disk, disk.under)
	h.put(1, 1, pattern(300_000))
	rd := must[datanode.Reader](t)(h.Open(block(1, 1, 0)))
	rd.Sending(65_536, 131_072)
	v := h.all()[0]
	for range 4 * hangTicks {
		h.watch(30 * time.Second)
		for v.sends.touching.Load() { // the disk answers
			runtime.Gosched()
		}
	}
	check(t, v.err())
	rd.Sending(65_536, 0)
	h.watch(30 * time.Second)

	disk.hang(true)
	rd.Sending(131_072, 131_072)
	for range 3 {
		h.watch(30 * time.Second)
	}
	<-disk.stuck
	for range hangTicks {
		check(t, v.err())
		h.watch(30 * time.Second)
	}
	if err := v.err(); err == nil || !strings.Contains(err.Error(), "not come back for 30s") {
		t.Errorf("the volume: %v", err)
	}
	disk.hang(false)
	close(disk.freed)
	rd.Sending(0, 0)
	check(t, rd.Close())
	if n := len(v.sends.readers); n > 0 {
		t.Errorf("%d readers are left", n)
	}
}

// A process does not come to its end while one of its threads waits for a disk: what it has locked stays so. Who is started in its place has the volumes whose disks answer, and the other
// one when that does.
func TestADatanodeIsStartedInPlaceOfOneThatCannotEnd(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	disk := &hangingFS{FS: vfs.OS, under: a, stuck: make(chan string, 100), freed: make(chan struct{})}
	h := open(t, disk, a, b)
	on := map[string]metadata.Block{}
	for id := int64(1); id <= 4; id++ {
		h.put(id, 1, pattern(100_000))
		r, _ := h.Replica(metadata.BlockID(id))
		on[r.Volume] = r.Block
	}
	hung, well := h.Volumes()[0].ID, h.Volumes()[1].ID
	w := must[datanode.Writer](t)(h.Create(block(9, 1, 0), datanode.CreateOptions{}))
	for w.Replica().Volume != well {
		w = must[datanode.Writer](t)(h.Create(block(int64(w.Replica().Block.ID)+1, 1, 0), datanode.CreateOptions{}))
	}
	check(t, w.Write(0, pattern(70_000), nil))
	disk.hang(true)
	var lost sync.WaitGroup // comes back when the disk does
	lost.Go(func() { _ = h.Delete(on[hung]) })
	<-disk.stuck
	for range slowTicks + 1 {
		h.watch(30 * time.Second)
	}
	h.Leave()

	next := open(t, vfs.OS, a, b)
	volumes := next.Volumes()
	if volumes[0].Failed == nil || !strings.Contains(volumes[0].Failed.Error(), "cannot come to its end before a disk answers") || volumes[1].Failed != nil {
		t.Fatalf("volumes are %+v", volumes)
	}
	if volumes[0].ID != hung {
		t.Errorf("the volume that is locked is called %s, it is %s", volumes[0].ID, hung)
	}
	next.wantContent(int64(on[well].ID), pattern(100_000))
	if _, err := w.Finalize(); err == nil {
		t.Error("a writer of the datanode that has ended changes what is the next one's")
	}
	_ = h.Delete(on[well]) // there is nothing any more
	next.wantContent(int64(on[well].ID), pattern(100_000))
	if back := next.Revive(); len(back) > 0 {
		t.Errorf("%v are opened that are locked", back)
	}
	disk.hang(false)
	close(disk.freed)
	lost.Wait()
	check(t, h.all()[0].lock.Close()) // as the process does at its end
	next.cfg.Now = func() time.Time { return time.Now().Add(2 * minPatience) }
	if back := next.Revive(); len(back) != 1 || back[0] != a {
		t.Errorf("the volume is free, and %v are opened", back)
	}
	check(t, next.Shutdown())
}
