package server

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// The node manager was started when the disk was full for a moment. What is free now counts.
func TestTheDiskLimitIsOfWhatIsFreeWhenAContainerStarts(t *testing.T) {
	c := baseConfig(t, t.TempDir(), "127.0.0.1:1")
	c.Reserve = 1 << 60 // more than there is
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.store.Close()
	defer c.HTTP.Close()
	if got := s.diskLimit(); got != 1 { // 0 is no limit at all
		t.Errorf("on a full disk: %d", got)
	}
	s.config.Reserve = 1
	if got, free := s.diskLimit(), s.freeSpace(); got < free/2 || got > free {
		t.Errorf("%d with %d bytes free", got, free)
	}
	s.config.DiskLimit = 4711
	if got := s.diskLimit(); got != 4711 {
		t.Errorf("configured: %d", got)
	}
}

func TestAContainerIsLaunchedWithTheNodesLimits(t *testing.T) {
	m, work, files := newManager(t, ""), t.TempDir(), newMemoryFS()
	c := baseConfig(t, work, m.address)
	c.DiskLimit, c.Grace, c.Pids, c.HardCPU = 4711<<20, 77*time.Second, 4712, true
	files.put("/data/in", "input\n")
	c.FS = func(string) (Filesystem, error) { return files, nil }
	n := run(t, c)
	s := spec(t, 2, "sleep", "100")
	s.GraceMs = 0
	s.Artifacts = []*rmpb.Artifact{{Name: "in", Uri: "/data/in", Kind: "file", Size: 6}}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	text, err := os.ReadFile(filepath.Join(work, "containers", s.ContainerId, "launch.json"))
	if err != nil {
		t.Fatal(err)
	}
	var l supervisor.Launch
	if err := json.Unmarshal(text, &l); err != nil || l.DiskLimit != n.config.DiskLimit || l.Grace != 77*time.Second || l.Limits.Pids != 4712 || !l.Limits.HardCPU || l.Limits.VCores != int(s.Resources.Vcores) {
		t.Errorf("launched with disk %d, grace %v, %+v: %v", l.DiskLimit, l.Grace, l.Limits, err)
	}
}
