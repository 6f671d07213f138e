package server

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
)

// stuckFS is a disk that, once it hangs, does not rename files under a path until it is let go.
type stuckFS struct {
	vfs.FS
	under string
	hangs atomic.Bool
	stuck chan struct{} // capacity 1: a call waits
	freed chan struct{}
}

func (s *stuckFS) Rename(from, to string) error {
	if s.hangs.Load() && strings.HasPrefix(from, s.under) {
		select {
		case s.stuck <- struct{}{}:
		default:
		}
		<-s.freed
	}
	return s.FS.Rename(from, to)
}

// What is on one disk is reported although another does not answer, and has not been given up.
func TestAHungDiskHoldsUpNobodyElsesReport(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	dir := t.TempDir()
	disk := &stuckFS{FS: vfs.OS, stuck: make(chan struct{}, 1), freed: make(chan struct{})}
	disk.under = filepath.Join(dir, "a")
	d, _ := runDatanode(t, Config{
		Volumes: []Volume{{Path: filepath.Join(dir, "a")}, {Path: filepath.Join(dir, "b"), Type: "SSD"}}, Reserve: -1, FS: disk,
		Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t), DiskTimeout: time.Hour,
		NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{n.addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	var lost sync.WaitGroup
	free := sync.OnceFunc(func() {
		disk.hangs.Store(false)
		close(disk.freed)
		lost.Wait()
	})
	t.Cleanup(free)
	waitReady(t, d)
	writers := map[datanode.StorageType]datanode.Writer{}
	for id, typ := range map[int64]datanode.StorageType{1: datanode.Disk, 2: datanode.SSD} {
		w, err := d.store.Create(metadata.Block{ID: metadata.BlockID(id), Generation: 1}, datanode.CreateOptions{Type: typ})
		check(t, err)
		check(t, w.Write(0, make([]byte, 100_000), nil)) // files of its own
		writers[typ] = w
	}
	_, err := writers[datanode.SSD].Finalize()
	check(t, err)
	disk.hangs.Store(true)
	lost.Go(func() { _, _ = writers[datanode.Disk].Finalize() })
	<-disk.stuck
	n.mu.Lock()
	full := n.full
	clear(n.named)
	n.mu.Unlock()
	d.all()[0].reportNow()
	within(t, "what is on the other disk is reported", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.named[2]
	})
	n.mu.Lock()
	if n.full != full {
		t.Error("the report has ended without what is on the disk that hangs")
	}
	n.mu.Unlock()
	free()
	within(t, "the report ends", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.full > full
	})
}

// A namenode hears that a full report begins before anything is listed, however long that takes: what it is told of since then counts.
func TestAReportBeginsBeforeItIsListed(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	disk := &stuckFS{FS: mem.New(1 << 26), stuck: make(chan struct{}, 1), freed: make(chan struct{}), under: "/a"}
	d, _ := runDatanode(t, Config{
		Volumes: []Volume{{Path: "/a"}}, Reserve: -1, FS: disk,
		Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t), DiskTimeout: time.Hour,
		NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{n.addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	var lost sync.WaitGroup
	free := sync.OnceFunc(func() {
		disk.hangs.Store(false)
		close(disk.freed)
		lost.Wait()
	})
	t.Cleanup(free)
	waitReady(t, d)
	w, err := d.store.Create(metadata.Block{ID: 1, Generation: 1}, datanode.CreateOptions{})
	check(t, err)
	check(t, w.Write(0, make([]byte, 100_000), nil)) // files of its own
	disk.hangs.Store(true)
	lost.Go(func() { _, _ = w.Finalize() })
	<-disk.stuck
	n.mu.Lock()
	begun, full := n.begun, n.full
	n.mu.Unlock()
	d.all()[0].reportNow()
	within(t, "the report begins", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.begun > begun
	})
	n.mu.Lock()
	if n.full != full {
		t.Error("the report has ended without what is on the disk that hangs")
	}
	n.mu.Unlock()
	free()
	within(t, "the report ends", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.full > full
	})
}

// A volume that was given up because its disk did not answer is taken back when it does, and the namenode hears what is there.
func TestAVolumeIsTakenBackWhenItsDiskAnswers(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	disk := &stuckFS{FS: mem.New(1 << 26), stuck: make(chan struct{}, 1), freed: make(chan struct{}), under: "/a"}
	d, _ := runDatanode(t, Config{
		Volumes: []Volume{{Path: "/a"}, {Path: "/b", Type: "SSD"}}, Reserve: -1, FS: disk,
		Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t), DiskTimeout: 3 * time.Second,
		NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{n.addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	var lost sync.WaitGroup
	free := sync.OnceFunc(func() {
		disk.hangs.Store(false)
		close(disk.freed)
		lost.Wait()
	})
	t.Cleanup(free)
	waitReady(t, d)
	writer := func(id metadata.BlockID) datanode.Writer {
		w, err := d.store.Create(metadata.Block{ID: id, Generation: 1}, datanode.CreateOptions{Type: datanode.Disk})
		check(t, err)
		check(t, w.Write(0, make([]byte, 100_000), nil))
		return w
	}
	_, err := writer(1).Finalize()
	check(t, err)
	late := writer(2)
	disk.hangs.Store(true)
	lost.Go(func() {
		if _, err := late.Finalize(); err == nil {
			t.Error("a replica is finished on a volume that was given up")
		}
	})
	<-disk.stuck
	volume := func() datanode.VolumeStatus { return d.store.Volumes()[0] }
	within(t, "the volume is slow", func() bool { return volume().Slow || volume().Failed != nil })
	within(t, "it is given up", func() bool { return volume().Failed != nil })
	n.mu.Lock()
	clear(n.named)
	n.mu.Unlock()
	free()
	within(t, "the namenode hears of what is there", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.named[1]
	})
	for _, v := range d.store.Volumes() {
		if v.Failed != nil {
			t.Errorf("%+v", v)
		}
	}
}
