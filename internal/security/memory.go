package security

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory is how many bytes this process may use: the least of the machine's memory, the limits of the control groups it
// is in, and the runtime's own limit (GOMEMLIMIT, LimitMemory).
func Memory() int64 {
	return min(available(os.ReadFile), debug.SetMemoryLimit(-1))
}

// LimitMemory makes the collector keep the process below nine tenths of what it may use, where GOMEMLIMIT does not say
// otherwise: a heap that is about to double is collected earlier when there is no room for that.
func LimitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(available(os.ReadFile) / 10 * 9)
	}
}

// available is the machine's memory or a control group's limit below it.
func available(read func(string) ([]byte, error)) int64 {
	memory := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = int64(info.Totalram) * int64(info.Unit)
	}
	own, _ := read("/proc/self/cgroup") // without control groups there are no limits of theirs
	for line := range strings.Lines(string(own)) {
		// 5:memory:/a/b of version 1, 0::/a/b of version 2
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		switch {
		case fields[1] == "memory":
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case fields[0] != "0":
			continue
		}
		// A limit of a group above holds too; in a container the path may be the host's, and only the root is there.
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			text, _ := read(path.Join(root, dir, file)) // the root of version 2 has none
			if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 {
				memory = min(memory, limit)
			}
			if dir == "/" {
				break
			}
		}
	}
	return memory
}
