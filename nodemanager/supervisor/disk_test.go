package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTooMuchOnDiskEndsTheContainer(t *testing.T) {
	c := newContainer(t, "sh", "-c", "head -c 3000000 /dev/zero > big; sleep 100")
	c.launch.DiskDirs, c.launch.DiskLimit = []string{c.launch.Dir}, 2<<20
	c.start()
	if e := c.end(); e.Status != -109 || !strings.Contains(e.Diagnostics, " of 2 MB used") || !strings.Contains(e.Diagnostics, "exceeded the limit of its disk space: 2.") {
		t.Errorf("%+v", e)
	}
}

// What containers have in common counts in equal parts, by how many they are now.
func TestTheSharedDirectoryCountsInParts(t *testing.T) {
	c := newContainer(t, "sh", "-c", "touch ready; sleep 100")
	shared := filepath.Join(t.TempDir(), "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "shuffle"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c.launch.DiskDirs, c.launch.DiskLimit = []string{c.launch.Dir}, 2<<20
	c.launch.SharedDir, c.launch.Sharers = shared, 4
	s := &supervisor{launch: c.launch}
	if bytes, _ := s.diskUsage(); bytes < 3<<18 || bytes > 1<<20 {
		t.Errorf("a quarter of 3 MiB is %d bytes", bytes)
	}
	c.start()
	if err := c.client.Share(t.Context(), 0); err == nil {
		t.Error("no container shares its directory, not even itself")
	}
	if err := c.client.Share(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != -109 || !strings.Contains(e.Diagnostics, "exceeded the limit of its disk space: 3") {
		t.Errorf("%+v", e)
	}
}

func TestUsageCountsWhatTheDiskHas(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"a": 1 << 20, "d/b": 1 << 20} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "second")); err != nil {
		t.Fatal(err)
	}
	hole, err := os.Create(filepath.Join(dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	hole.Truncate(1 << 40)
	hole.Close()
	os.Symlink("/", filepath.Join(dir, "link"))
	if bytes, entries := usageOf(dir); bytes < 2<<20 || bytes > 2<<20+64<<10 || entries != 6 {
		t.Errorf("%d bytes, %d entries", bytes, entries)
	}
}
