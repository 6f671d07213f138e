package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// limitFiles makes every write of a process beyond an offset fail (RLIMIT_FSIZE), as a disk does that is full. -1: no
// limit.
func limitFiles(t *testing.T, pid int, size int64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if size >= 0 {
		limit.Cur = uint64(size)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		t.Fatal(err)
	}
}

func TestDatanodeThatCannotWriteRefusesAndGoesOn(t *testing.T) {
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, Properties: map[string]string{"dfs.replication": "1"}})
	h := k.Hops()
	small, big := bytes.Repeat([]byte("s"), 1000), bytes.Repeat([]byte("b"), 3<<20)
	put := func(data []byte, name string) Result { return h.Input(string(data), "fs", "-put", "-", name) }
	check := func(r Result) {
		t.Helper()
		if r.Status != 0 {
			t.Fatalf("status %d: %s", r.Status, r.Stderr)
		}
	}
	check(put(small, "/tmp/before"))
	limitFiles(t, k.Pid("dn1"), 1<<20)
	put(big, "/tmp/big").Says(t, 1, "put: ", "are bad")
	check(put(small, "/tmp/during"))
	limitFiles(t, k.Pid("dn1"), -1)
	k.Await("a large file", func() error {
		if r := put(big, "/tmp/big"); r.Status != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
	for name, want := range map[string][]byte{"/tmp/before": small, "/tmp/during": small, "/tmp/big": big} {
		if got := h.OK("fs", "-cat", name); got != string(want) {
			t.Errorf("%s has %d bytes, want %d", name, len(got), len(want))
		}
	}
	if got := h.OK("fs", "-ls", "-C", "/tmp"); got != "/tmp/before\n/tmp/big\n/tmp/during\n" {
		t.Errorf("left behind:\n%s", got)
	}
}

// The one namenode there is cannot write its journal: it must not acknowledge, and what it has acknowledged is there when
// it can write again.
func TestNamenodeThatCannotWriteAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	data := Dir(t)
	dev := StartDev(t, data)
	fs := dev.Client().FS()
	mkdir(t, fs, "/nodisk")
	h := NewHistory(t, "/nodisk")
	h.Start(func(ctx context.Context) { h.Calls(ctx, 2, fs) })
	h.More(20)
	limitFiles(t, dev.cmd.Process.Pid, 0)
	Eventually(t, "the end, or a refused operation", func() error {
		select {
		case <-dev.done:
			return nil
		default:
		}
		if h.failed.Load() == 0 {
			return errors.New("everything is acknowledged")
		}
		return nil
	})
	begun, refused := h.serial.Load(), h.failed.Load() // an acknowledgement of what has begun may be on its way
	Eventually(t, "the end, or further refusals", func() error {
		select {
		case <-dev.done:
			return nil
		default:
		}
		if n := h.failed.Load() - refused; n < 3 { // one worker's was under way
			return fmt.Errorf("%d were refused", n)
		}
		return nil
	})
	if n := h.latest.Load(); n > begun {
		t.Errorf("file %d was acknowledged, and a write was refused before it began, when %d had", n, begun)
	}
	dev.Kill()
	h.End()
	t.Logf("it printed:\n%s", dev.Output())
	dev = StartDev(t, data)
	h.Verify(dev.Client().FS())
}

// onDatanodes is what no namenode keeps: a small file would need no datanode.
var onDatanodes = strings.Repeat("on datanodes\n", 64<<10/8)

// A disk that fills up: the servers refuse new data while there is still room, serve what is there, and go on when there
// is space again, without a restart.
func TestServersTurnReadOnlyBeforeTheDiskIsFull(t *testing.T) {
	const reserve = 224 << 20 // more than what the store of a checkpoint may write without asking
	for _, c := range []struct {
		full  string // whose disk fills up
		words []string
	}{
		{"nn1", []string{"put: ", "224 MiB are reserved"}},
		{"dn1", []string{"put: ", "could only be written to 0 of the 1 minReplication nodes"}},
	} {
		t.Run(c.full, func(t *testing.T) {
			disk := tmpfs(t, 512<<20)
			k := Start(t, processes.Config{
				Namenodes: 1, Datanodes: 1, Properties: map[string]string{"dfs.replication": "1"},
				Adjust: func(name string, f *config.File) {
					if name != c.full {
						return
					}
					if f.Namenode != nil {
						f.Namenode.Data, f.Namenode.Reserve = filepath.Join(disk, "data"), reserve
					}
					if f.Datanode != nil {
						f.Datanode.Volumes[0].Path, f.Datanode.Reserve = filepath.Join(disk, "data"), reserve
					}
				},
			})
			h := k.Hops()
			if r := h.Input("kept", "fs", "-put", "-", "/tmp/kept"); r.Status != 0 {
				t.Fatal(r.Stderr)
			}
			ballast := filepath.Join(disk, "ballast")
			fill(t, disk, ballast, reserve/2)
			serial := 0
			put := func() Result {
				serial++
				return h.Input(onDatanodes, "fs", "-put", "-", "/tmp/more"+string(rune('a'+serial%26)))
			}
			var refused Result
			k.Await("a refusal", func() error {
				if refused = put(); refused.Status == 0 {
					return errors.New("files are taken")
				}
				return nil
			})
			refused.Says(t, 1, c.words...)
			if free := freeSpace(t, disk); free < reserve/4 {
				t.Errorf("only %d MiB are left", free>>20)
			}
			if got := h.OK("fs", "-cat", "/tmp/kept"); got != "kept" {
				t.Errorf("the file has %q", got)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			k.Await("writes", func() error {
				if r := put(); r.Status != 0 {
					return errors.New(r.Stderr)
				}
				return nil
			})
			t.Logf("writes go on %v after there was space", time.Since(started))
		})
	}
}

// tmpfs mounts a disk of its own, which only root may do.
func tmpfs(t *testing.T, size int64) string {
	t.Helper()
	dir := Dir(t)
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.FormatInt(size, 10))
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENODEV) {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func freeSpace(t *testing.T, dir string) int64 {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// fill makes a file that leaves so much space.
func fill(t *testing.T, dir, name string, leave int64) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for freeSpace(t, dir) > leave {
		if _, err := f.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
}

// The filesystem does not take what a job writes: it is shown all the same, and it is said that it is not kept. When there
// is space again, it is.
func TestAJobWhoseOutputIsNotKeptSaysSo(t *testing.T) {
	t.Parallel()
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, NodeManagers: 1, Properties: map[string]string{"dfs.replication": "1"}})
	h := k.Hops()
	output := strings.Repeat("x", 3<<20)
	limitFiles(t, k.Pid("dn1"), 1<<20)
	r := h.Run("job", "run", "--", "sh", "-c", "head -c 3145728 /dev/zero | tr '\\0' x")
	if r.Status != 0 || r.Stdout != output || !strings.Contains(r.Stderr, "warning: what it wrote is not kept: it could not be written to /logs/") {
		t.Fatalf("status %d, %d bytes, %s", r.Status, len(r.Stdout), r.Stderr)
	}
	limitFiles(t, k.Pid("dn1"), -1)
	id := strings.TrimSpace(h.OK("job", "list", "-q"))
	k.Await("the log in the filesystem", func() error {
		if r := h.Run("logs", "-applicationId", id); r.Status != 0 || !strings.Contains(r.Stdout, output) {
			return fmt.Errorf("status %d, %d bytes, %s", r.Status, len(r.Stdout), r.Stderr)
		}
		return nil
	})
}
