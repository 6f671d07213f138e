package blockstore

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/mem"
)

// stuckFS is a disk of which one call under a path does not come back until it is let go.
type stuckFS struct {
	vfs.FS
	under, call string
	once        sync.Once
	freed, back chan struct{}
}

func (s *stuckFS) wait(call, name string) {
	if call == s.call && strings.HasPrefix(name, s.under) {
		s.once.Do(func() {
			<-s.freed
			close(s.back)
		})
	}
}

func (s *stuckFS) Stat(name string) (vfs.Info, error) { s.wait("stat", name); return s.FS.Stat(name) }

func (s *stuckFS) ReadDir(name string) ([]vfs.Entry, error) {
	if strings.HasSuffix(name, blocksDir) {
		s.wait("list", name)
	}
	return s.FS.ReadDir(name)
}

func (s *stuckFS) Usage(name string) (vfs.Usage, error) {
	s.wait("usage", name)
	return s.FS.Usage(name)
}

// A datanode starts although one of its disks does not answer, whichever call of the opening that is, and serves what the others have.
func TestAHungDiskDoesNotHoldUpTheStart(t *testing.T) {
	for _, call := range []string{"stat", "usage", "list"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { hungDiskAtTheStart(t, call) })
		})
	}
}

func hungDiskAtTheStart(t *testing.T, call string) {
	disk := mem.New(1 << 30)
	h := open(t, disk, "/a", "/b")
	on := map[string]datanode.Replica{}
	for id := int64(1); id <= 4; id++ {
		h.put(id, 1, pattern(40_000))
	}
	for _, v := range h.Volumes() {
		h.Each(v.ID, func(r datanode.Replica) bool { on[v.Path] = r; return false })
	}
	was := h.Volumes()
	check(t, h.Shutdown())

	stuck := &stuckFS{FS: disk, under: "/a", call: call, freed: make(chan struct{}), back: make(chan struct{})}
	cfg := Config{
		FS: stuck, Reserve: -1, DiskTimeout: diskTimeout, Logger: slog.New(slog.DiscardHandler),
		Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}},
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v := s.Volumes()
	if v[0].Failed == nil || !strings.Contains(v[0].Failed.Error(), "does not answer") || v[1].Failed != nil {
		t.Fatalf("volumes are %+v", v)
	}
	if v[0].ID != was[0].ID {
		t.Errorf("the hung volume is called %s, it is %s", v[0].ID, was[0].ID)
	}
	if _, ok := s.Replica(on["/b"].Block.ID); !ok {
		t.Error("the replica on the other volume is not there")
	}
	if _, ok := s.Replica(on["/a"].Block.ID); ok {
		t.Error("the replica on the hung volume is there")
	}
	close(stuck.freed) // the disk answers after all, too late for the start
	<-stuck.back
	synctest.Wait()
	if back := s.Revive(); len(back) != 1 || back[0] != "/a" {
		t.Errorf("the disk answers, and %v work again", back)
	}
	if _, ok := s.Replica(on["/a"].Block.ID); !ok {
		t.Error("the replica on the volume that hung is not there")
	}
	if now := s.Volumes(); now[0].ID != was[0].ID && now[1].ID != was[0].ID {
		t.Errorf("volumes are %+v", now)
	}
	check(t, s.Shutdown())
}

// slowFS is a disk that says how full it is when two have asked.
type slowFS struct {
	vfs.FS
	asked sync.WaitGroup
}

func (s *slowFS) Usage(name string) (vfs.Usage, error) {
	s.asked.Done()
	s.asked.Wait()
	return s.FS.Usage(name)
}

// Disks that do not answer are waited for side by side, whichever call it is: two cost the start no more than one.
func TestDisksAreAskedSideBySide(t *testing.T) {
	slow := &slowFS{FS: mem.New(1 << 30)}
	slow.asked.Add(2)
	s, err := Open(Config{
		FS: slow, Reserve: -1, DiskTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}},
	})
	check(t, err)
	for _, v := range s.all() {
		check(t, v.err())
	}
	check(t, s.Shutdown())
}

// A disk that does not answer may hold all that this datanode is: a new one that is empty makes no other datanode of it.
func TestNoNewDatanodeBesideADiskThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := mem.New(1 << 30)
		h := open(t, disk, "/a")
		check(t, h.Shutdown())
		stuck := &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		cfg := Config{
			FS: stuck, Reserve: -1, DiskTimeout: diskTimeout, Logger: slog.New(slog.DiscardHandler),
			Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}},
		}
		s, err := Open(cfg)
		if err == nil || !strings.Contains(err.Error(), "/a") || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("it starts: %v", err)
			if s != nil {
				check(t, s.Shutdown())
			}
		}
		if _, err := disk.Stat("/b/" + versionFile); err == nil {
			t.Error("the empty directory is a volume")
		}
		close(stuck.freed)
		<-stuck.back
		synctest.Wait()
	})
}

// A disk that does not answer when it is tried is tried again as the first time: only one that was opened and is given up over and over has to wait for long.
func TestADiskThatIsStillSilentIsTriedAgainAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := mem.New(1 << 30)
		h := open(t, disk, "/a", "/b")
		check(t, h.Shutdown())
		var stuck *stuckFS
		renew := func() {
			stuck = &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		}
		answer := func() {
			close(stuck.freed)
			<-stuck.back
			synctest.Wait()
		}
		renew()
		s, err := Open(Config{
			FS: stuck, Reserve: -1, DiskTimeout: diskTimeout, Logger: slog.New(slog.DiscardHandler),
			Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}},
		})
		check(t, err)
		answer()
		for range 5 {
			renew()
			s.cfg.FS = stuck
			if back := s.Revive(); len(back) > 0 {
				t.Errorf("%v are back, and do not answer", back)
			}
			if wait := time.Until(s.patient["/a"].until); wait > minPatience {
				t.Errorf("it is tried again after %v", wait)
			}
			time.Sleep(10 * minPatience)
			s.cfg.FS = disk
			if back := s.Revive(); len(back) > 0 {
				t.Errorf("%v are back while a call of the last attempt is under way", back)
			}
			answer()
		}
		if back := s.Revive(); len(back) != 1 {
			t.Errorf("the disk answers, and %v are back", back)
		}
		check(t, s.Shutdown())
	})
}

// A datanode that ends while it tries the disk of a volume anew, which does not answer again, releases the others: whoever is started in its place has them.
func TestNoDiskThatIsTriedAnewHoldsUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := mem.New(1 << 30)
		h := open(t, disk, "/a", "/b")
		check(t, h.Shutdown())
		stuck := &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		s, err := Open(Config{
			FS: stuck, Reserve: -1, DiskTimeout: 10 * time.Minute, Logger: slog.New(slog.DiscardHandler),
			Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}},
		})
		check(t, err)
		close(stuck.freed)
		<-stuck.back
		synctest.Wait()
		stuck = &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		s.cfg.FS = stuck
		revived := make(chan []string)
		go func() { revived <- s.Revive() }()
		synctest.Wait()
		began := time.Now()
		s.Leave()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it left after %v", took)
		}
		lock, err := disk.Lock("/b/" + lockFile)
		if err != nil {
			t.Fatalf("the volume whose disk answers: %v", err)
		}
		check(t, lock.Close())
		if back := <-revived; len(back) > 0 {
			t.Errorf("%v are back, and do not answer", back)
		}
		close(stuck.freed)
		<-stuck.back
		synctest.Wait()
		if back := s.Revive(); len(back) > 0 {
			t.Errorf("%v are opened of a store that is left", back)
		}
		if err := s.Add(VolumeConfig{Path: "/a"}); !errors.Is(err, errLeft) {
			t.Errorf("it was added: %v", err)
		}
	})
}

// An administrator does not wait for a disk that is tried anew and does not answer again, which is tried later.
func TestNoDiskThatIsTriedAnewHoldsUpAnAdministrator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := mem.New(1 << 30)
		h := open(t, disk, "/a", "/b", "/c")
		check(t, h.Shutdown())
		stuck := &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		s, err := Open(Config{
			FS: stuck, Reserve: -1, DiskTimeout: 10 * time.Minute, Logger: slog.New(slog.DiscardHandler),
			Volumes: []VolumeConfig{{Path: "/a"}, {Path: "/b"}, {Path: "/c"}},
		})
		check(t, err)
		close(stuck.freed)
		<-stuck.back
		synctest.Wait()
		stuck = &stuckFS{FS: disk, under: "/a", call: "stat", freed: make(chan struct{}), back: make(chan struct{})}
		s.cfg.FS = stuck
		revived := make(chan []string)
		go func() { revived <- s.Revive() }()
		synctest.Wait()
		began := time.Now()
		check(t, s.Remove("/c"))
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it was removed after %v", took)
		}
		if back := <-revived; len(back) > 0 {
			t.Errorf("%v are back, and do not answer", back)
		}
		close(stuck.freed)
		<-stuck.back
		time.Sleep(minPatience)
		if back := s.Revive(); !slices.Equal(back, []string{"/a"}) {
			t.Errorf("%v are back", back)
		}
		check(t, s.Shutdown())
	})
}
