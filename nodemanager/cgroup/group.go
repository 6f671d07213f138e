package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Make creates the group with its limits. A group of that name that was left behind is used again.
func (g Group) Make(l Limits) error {
	switch g.Version {
	case 1:
		for _, dir := range g.Dirs {
			err := os.MkdirAll(dir, 0o755)
			for try := 0; errors.Is(err, fs.ErrNotExist) && try < 20; try++ {
				err = os.MkdirAll(dir, 0o755) // another container's end took the parent away just now
			}
			if err != nil {
				return err
			}
		}
		if dir := g.Dirs["memory"]; dir != "" && l.Memory > 0 {
			text := strconv.FormatInt(l.Memory, 10)
			// Lowering below memsw and raising above it both fail in one of the two orders.
			first := write(dir, "memory.limit_in_bytes", text)
			if err := write(dir, "memory.memsw.limit_in_bytes", text); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("limit memory and swap to %s: %w", text, err)
			}
			if first != nil {
				if err := write(dir, "memory.limit_in_bytes", text); err != nil {
					return fmt.Errorf("limit memory to %s: %w", text, err)
				}
			}
		}
		if dir := g.Dirs["cpu"]; dir != "" && l.VCores > 0 {
			if err := write(dir, "cpu.shares", strconv.Itoa(min(262144, 1024*l.VCores))); err != nil {
				return err
			}
		}
		if dir := g.Dirs["pids"]; dir != "" && l.Pids > 0 {
			if err := write(dir, "pids.max", strconv.Itoa(l.Pids)); err != nil {
				return err
			}
		}
		if dir := g.Dirs["devices"]; dir != "" && l.Devices != nil {
			if err := limitV1(dir, l.Devices); err != nil {
				return err
			}
		}
	case 2:
		dir := g.Dirs["unified"]
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		set := func(file, value string, optional bool) error {
			err := write(dir, file, value)
			if err != nil && optional && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if l.Memory > 0 && g.MemoryLimited {
			if err := errors.Join(
				set("memory.max", strconv.FormatInt(l.Memory, 10), false),
				set("memory.swap.max", "0", true),
				set("memory.oom.group", "1", true)); err != nil {
				return err
			}
		}
		if l.VCores > 0 {
			if err := set("cpu.weight", strconv.Itoa(weight(l.VCores)), true); err != nil {
				return err
			}
		}
		if l.Pids > 0 {
			if err := set("pids.max", strconv.Itoa(l.Pids), true); err != nil {
				return err
			}
		}
		if l.Devices != nil {
			if err := limitV2(dir, l.Devices); err != nil {
				return err
			}
		}
	}
	return nil
}

// weight is the v2 weight (1..10000, default 100 for one core) of so many cores.
func weight(vcores int) int { return max(1, min(10000, 100*vcores)) }

// Fork calls start so that the process it makes is born inside the group. The caller's goroutine must be locked to its
// thread (runtime.LockOSThread): with version 1 that thread enters the group for the time of the call, because a child is
// born where the forking thread is. attr is completed for version 2.
func (g Group) Fork(attr *syscall.SysProcAttr, start func() (int, error)) (int, error) {
	switch g.Version {
	case 1:
		home, err := threadHome(g)
		if err != nil {
			return 0, err
		}
		tid := strconv.Itoa(unix.Gettid())
		defer func() {
			for _, dir := range home {
				_ = write(dir, "tasks", tid) // at worst this thread stays accounted to the container
			}
		}()
		for _, dir := range g.Dirs {
			if err := write(dir, "tasks", tid); err != nil {
				return 0, fmt.Errorf("enter control group %s: %w", dir, err)
			}
		}
	case 2:
		dir, err := os.Open(g.Dirs["unified"])
		if err != nil {
			return 0, err
		}
		defer dir.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	return start()
}

// threadHome finds, for each controller of g, the directory this thread is in now.
func threadHome(g Group) ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	return g.homes(string(text))
}

// homes reads a membership (/proc/<id>/cgroup).
func (g Group) homes(membership string) ([]string, error) {
	var home []string
	for line := range strings.Lines(membership) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // 4:memory:/path
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if dir := g.Dirs[controller]; dir != "" {
				mount := filepath.Dir(filepath.Dir(filepath.Dir(dir))) // <mount>/hops/<manager>/<container>
				at, err := below(mount, parts[2])
				if err != nil {
					return nil, err
				}
				home = append(home, at)
			}
		}
	}
	return home, nil
}

// Procs lists the processes in the group, without the calling one.
func (g Group) Procs() []int {
	var all []int
	for _, dir := range g.Dirs {
		pids, err := readPids(filepath.Join(dir, "cgroup.procs"))
		if err == nil {
			all = append(all, pids...)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(pid int) bool { return pid == os.Getpid() || pid <= 1 })
}

// Kill sends SIGKILL to every process in the group at once, so that none can fork away. The processes may still be seen
// for a moment afterwards.
func (g Group) Kill() error {
	switch g.Version {
	case 1:
		if dir := g.Dirs["freezer"]; dir != "" {
			_ = write(dir, "freezer.state", "FROZEN") // a fork bomb holds still; a signal is delivered on thaw
			defer func() { _ = write(dir, "freezer.state", "THAWED") }()
		}
	case 2:
		err := write(g.Dirs["unified"], "cgroup.kill", "1")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return ignoreNotExist(err)
		}
	}
	var errs []error
	for _, pid := range g.Procs() {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("kill %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// Memory is the memory charged to the group now and the most it ever was, in bytes. ok is false when no group counts it.
func (g Group) Memory() (now, peak int64, ok bool) {
	if !g.MemoryLimited {
		return 0, 0, false
	}
	switch g.Version {
	case 1:
		now, ok = readInt(g.Dirs["memory"], "memory.usage_in_bytes")
		peak, _ = readInt(g.Dirs["memory"], "memory.max_usage_in_bytes")
	case 2:
		now, ok = readInt(g.Dirs["unified"], "memory.current")
		peak, _ = readInt(g.Dirs["unified"], "memory.peak")
	}
	return now, max(now, peak), ok
}

// OOMKills counts the processes that the kernel killed because the group had no memory left.
func (g Group) OOMKills() int64 {
	file, dir := "memory.oom_control", g.Dirs["memory"]
	if g.Version == 2 {
		file, dir = "memory.events", g.Dirs["unified"]
	}
	if dir == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// Remove deletes the group once its processes are gone, waiting a short time for the kernel to let go of the last ones. With
// version 1 the last group takes its parents along, so that nothing is left of a node manager that was killed.
func (g Group) Remove() error {
	var errs []error
	for _, dir := range g.Dirs {
		var err error
		for range 50 {
			if err = ignoreNotExist(os.Remove(dir)); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			errs = append(errs, err)
		} else if g.Version == 1 && os.Remove(filepath.Dir(dir)) == nil { // fails while it holds another container
			_ = os.Remove(filepath.Dir(filepath.Dir(dir)))
		}
	}
	return errors.Join(errs...)
}

func readInt(dir, file string) (int64, bool) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
