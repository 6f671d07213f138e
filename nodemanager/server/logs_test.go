package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestLogsAreShippedThroughAFailureOfTheFilesystem(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	run(t, c)
	s := spec(t, 2, "sh", "-c", `i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo extra > $HOPS_LOG_DIR/events; ln -s /etc/passwd $HOPS_LOG_DIR/link; mkfifo $HOPS_LOG_DIR/pipe; sleep 0.1`)
	s.LogDir = "/logs/" + s.ContainerId
	m.start(s)
	stdout := s.LogDir + "/stdout"
	eventually(t, "some lines", func() bool { return files.get(stdout) != "" })
	files.setDown(true)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE) // is not held up
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	m.until("oblivion", func(r *rmpb.NodeReport) bool { return find(r, s.ContainerId) == nil })
	files.setDown(false)
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	eventually(t, "all lines, once each", func() bool { return files.get(stdout) == want.String() })
	eventually(t, "directory removed", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
		return os.IsNotExist(err)
	})
	if files.get(s.LogDir+"/events") != "extra\n" {
		t.Error("a log file of the container's own was not shipped")
	}
	if files.get(s.LogDir+"/link") != "" || files.get(s.LogDir+"/pipe") != "" {
		t.Error("something that is no log file was shipped")
	}
}

// TestLogsTakeABoundedShare: of this disk, of the filesystem, and of the report that says so.
func TestLogsTakeABoundedShare(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return files, nil }
	c.LogLimit, c.LogRate, c.LogKeep = 100<<10, 1<<40, 100<<10
	run(t, c)
	endless := spec(t, 2, "yes")
	// The file is shipped, removed and written anew under another name: each time it is small enough.
	const again = `for i in 1 2 3 4; do head -c 60000 /dev/zero > $HOPS_LOG_DIR/$i; while [ ! -e go$i ]; do sleep 0.02; done; rm $HOPS_LOG_DIR/$i; done`
	moving := spec(t, 3, "sh", "-c", again)
	hole := spec(t, 4, "sh", "-c", "truncate -s 1T $HOPS_LOG_DIR/hole")
	shipped := func(s *rmpb.ContainerSpec) (sum int) {
		files.mu.Lock()
		defer files.mu.Unlock()
		for name, f := range files.files {
			if strings.HasPrefix(name, s.LogDir+"/") {
				sum += f.Len()
			}
		}
		return sum
	}
	for _, s := range []*rmpb.ContainerSpec{endless, hole, moving} {
		s.LogDir = "/logs/" + s.ContainerId
		m.start(s)
	}
	for _, s := range []*rmpb.ContainerSpec{endless, hole} {
		if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -109 || !strings.Contains(got.Diagnostics, "exceeded the limit of its log files") {
			t.Errorf("%d %q", got.ExitStatus, got.Diagnostics)
		}
	}
	for i, want := range []int{60000, 100 << 10, 100 << 10, 100 << 10} {
		if i < 2 {
			eventually(t, "shipped", func() bool { return shipped(moving) == want })
		}
		if err := os.WriteFile(filepath.Join(work, "containers", moving.ContainerId, "work", fmt.Sprintf("go%d", i+1)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.untilState(moving.ContainerId, rmpb.ContainerStatus_COMPLETE)
	for _, s := range []*rmpb.ContainerSpec{endless, hole, moving} {
		m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
		eventually(t, "directory removed, so that everything was shipped", func() bool {
			_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
			return os.IsNotExist(err)
		})
		if n := shipped(s); n > 100<<10 {
			t.Errorf("%v: %d bytes were shipped, the limit is %d", s.Argv, n, 100<<10)
		}
	}
}
