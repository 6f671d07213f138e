package cgroup

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzMounts reads any mount table and any membership: whatever they say, a group of ours lies below a mount point that
// the table names.
func FuzzMounts(f *testing.F) {
	f.Add("30 20 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n31 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "4:memory:/a/b\n0::/user.slice\n")
	f.Add("31 20 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n", "0::/../../etc\n")
	f.Add("31 20 0:28 / /with\\040space rw - cgroup2 cgroup2 rw\n", "1:cpu,cpuacct:/..\n0::/")
	f.Fuzz(func(t *testing.T, mounts, own string) {
		v1, v2, err := mountPoints(strings.NewReader(mounts))
		if err != nil {
			return
		}
		inside := func(mount, dir string) {
			t.Helper()
			if rel, err := filepath.Rel(mount, dir); err != nil || !filepath.IsLocal(rel) {
				t.Errorf("%q is not below %q", dir, mount)
			}
		}
		for controller, mount := range v1 {
			if !filepath.IsAbs(mount) || !strings.Contains(mounts, controller) {
				t.Errorf("%s is mounted on %q", controller, mount)
			}
			g := Group{Version: 1, Dirs: map[string]string{controller: filepath.Join(mount, "hops", "manager", "container")}}
			homes, err := g.homes(own)
			if err != nil {
				continue
			}
			for _, home := range homes {
				inside(mount, home)
			}
		}
		for line := range strings.Lines(own) {
			if v2 == "" {
				break
			}
			if dir, err := below(v2, strings.TrimPrefix(strings.TrimSpace(line), "0::")); err == nil {
				inside(v2, dir)
			}
		}
		// Nothing there is writable, or it is ours to look at: only that it answers counts.
		if r := detect(strings.NewReader(mounts), own); r.String() == "" {
			t.Error("a report without words")
		}
	})
}
