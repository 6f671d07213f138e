package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// standbyFS has no active namenode until a moment.
type standbyFS struct {
	*memoryFS
	until time.Time
}

func (f standbyFS) Stat(ctx context.Context, name string) (localizer.Info, error) {
	if time.Now().Before(f.until) {
		return localizer.Info{}, metadata.Errorf(metadata.ErrStandby, "no active namenode")
	}
	return f.memoryFS.Stat(ctx, name)
}

// An outage of the filesystem is no fault of a container that starts meanwhile.
func TestInputsAreWaitedForThroughAnOutage(t *testing.T) {
	for name, test := range map[string]struct {
		outage time.Duration
		ok     bool
	}{"40 s": {40 * time.Second, true}, "an hour": {time.Hour, false}} {
		work := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			fsys := standbyFS{newMemoryFS(), time.Now().Add(test.outage)}
			fsys.put("/data/in", "input\n")
			loc, err := localizer.New(localizer.Config{Cache: filepath.Join(work, "cache"), Reserve: 1})
			if err != nil {
				t.Fatal(err)
			}
			s := &Server{
				config:    Config{FS: func(string) (Filesystem, error) { return fsys, nil }, Outage: 10 * time.Minute},
				localizer: loc, nudged: make(chan struct{}, 1), filesystem: map[nodemanager.User]*userFS{},
			}
			spec := nodemanager.Spec{ID: nodemanager.ContainerID(containerName(1)), User: "ann", Artifacts: []nodemanager.Artifact{{Name: "in", URI: "/data/in", Kind: nodemanager.File}}}
			c := &container{server: s, dir: work, log: slog.New(slog.DiscardHandler), record: &state.Record{Spec: spec, State: nodemanager.Localizing}}
			if err := os.Mkdir(filepath.Join(work, "work"), 0o700); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- c.localize(t.Context(), &spec) }()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got := c.status(); got.Diagnostics != "waits for the filesystem: artifact \"in\" (/data/in): no active namenode" || got.State != rmpb.ContainerStatus_LOCALIZING {
				t.Errorf("%s: reported as %v", name, got)
			}
			begin := time.Now()
			if err := <-done; (err == nil) != test.ok || err != nil && !passes(err) || time.Since(begin) > 11*time.Minute {
				t.Errorf("%s: %v after %v", name, err, time.Since(begin))
			}
			if u := s.filesystem["ann"]; u == nil || u.uses != 0 {
				t.Errorf("%s: the filesystem is not given back: %+v", name, u)
			}
		})
	}
}

// hangingFS has log files whose first write never ends by itself.
type hangingFS struct {
	*memoryFS
	once *sync.Once
}

func (f hangingFS) OpenLog(ctx context.Context, name string) (LogFile, error) {
	l, err := f.memoryFS.OpenLog(ctx, name)
	hangs := false
	f.once.Do(func() { hangs = true })
	if hangs {
		return hangingLog{l, make(chan struct{}), new(sync.Once)}, err
	}
	return l, err
}

type hangingLog struct {
	LogFile
	aborted chan struct{}
	once    *sync.Once
}

func (l hangingLog) Write([]byte) (int, error) { <-l.aborted; return 0, errDown }
func (l hangingLog) Abort()                    { l.once.Do(func() { close(l.aborted) }) }

func TestAWriteOfLogsThatHangsIsGivenUp(t *testing.T) {
	m, files := newManager(t, ""), newMemoryFS()
	c := baseConfig(t, t.TempDir(), m.address)
	c.LogPatience = 50 * time.Millisecond
	c.FS = func(string) (Filesystem, error) { return hangingFS{files, new(sync.Once)}, nil }
	run(t, c)
	s := spec(t, 2, "sh", "-c", "echo hello")
	s.LogDir = "/logs/" + s.ContainerId
	m.start(s)
	eventually(t, "the log arrives", func() bool { return files.get(s.LogDir+"/stdout") == "hello\n" })
}

// closingFS counts those that are open.
type closingFS struct {
	*memoryFS
	open *int
}

func (f closingFS) Close() error { *f.open--; return nil }

func TestFilesystemsThatNobodyUsesAreClosed(t *testing.T) {
	open := 0
	s := &Server{filesystem: map[nodemanager.User]*userFS{}, config: Config{FS: func(string) (Filesystem, error) { open++; return closingFS{nil, &open}, nil }}}
	for _, user := range []nodemanager.User{"ann", "ann", "bob"} {
		if _, err := s.fs(user); err != nil {
			t.Fatal(err)
		}
	}
	s.releaseFS("ann")
	s.releaseFS("bob")
	s.closeFilesystems(time.Now().Add(-fsIdle))
	if open != 2 {
		t.Errorf("%d open, want those of ann and of bob, whose next container may be on its way", open)
	}
	s.closeFilesystems(time.Now())
	if open != 1 {
		t.Errorf("%d open, want that of ann, who uses it", open)
	}
}

// A supervisor whose disk is full cannot write the exit down; the resource manager has it all the same.
func TestASupervisorOnAFullDiskEndsWithItsContainer(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "mkdir -p ../exit.json.tmp/x; exit 5")
	m.start(s)
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 5 {
		t.Errorf("%v", got)
	}
	dir := filepath.Join(work, "containers", s.ContainerId)
	lock, err := os.Open(dir) // keeps what is in it reachable
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if alive, err := supervisor.Alive(dir); !alive || err != nil {
		t.Fatalf("the test's obstacle is none: %v %v", alive, err)
	}
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	eventually(t, "the directory is removed, and with it goes the supervisor", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
}

func TestTheNodeSaysWhichLogsAreNotThereYet(t *testing.T) {
	m, files := newManager(t, ""), newMemoryFS()
	files.setDown(true)
	c := baseConfig(t, t.TempDir(), m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	run(t, c)
	s := spec(t, 2, "sh", "-c", "echo hello")
	s.LogDir = "/logs/" + s.ContainerId
	early := false
	m.set(func() {
		m.seen = func(r *rmpb.NodeReport) {
			if find(r, s.ContainerId).GetState() == rmpb.ContainerStatus_COMPLETE && len(r.Logs) == 0 && files.get(s.LogDir+"/stdout") == "" {
				early = true
			}
		}
	})
	m.start(s)
	m.until("its logs are said to fail", func(r *rmpb.NodeReport) bool {
		return len(r.Logs) == 1 && r.Logs[0].ApplicationId == appID && r.Logs[0].Failing && !r.Logs[0].Lost
	})
	files.setDown(false)
	m.until("they are there", func(r *rmpb.NodeReport) bool { return len(r.Logs) == 0 })
	m.set(func() {
		if m.seen = nil; early {
			t.Error("reported as ended without a word of its logs")
		}
	})
}
