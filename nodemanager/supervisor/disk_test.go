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
