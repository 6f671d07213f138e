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

// Make creates the group with its limits. A group of that name that was left behind is used again. What its memory, processes and devices
// are limited to is kept, or the group is of no use, which err says. unmet says what else of the limits the kernel refused, as cores that
// this machine keeps from us: the group holds without it.
func (g Group) Make(l Limits) (unmet, err error) {
	switch g.Version {
	case 1:
		return g.makeV1(l)
	case 2:
		return g.makeV2(l)
	}
	return nil, nil
}

// cpuPeriod is the time in microseconds over which a hard limit of processor time is kept; the kernel's own default.
const cpuPeriod = 100_000

func (g Group) makeV1(l Limits) (unmet, err error) {
	for controller, dir := range g.Dirs {
		if controller == "cpuset" && l.CPUs == "" {
			continue // who runs anywhere needs none
		}
		if err := makeDir(dir); err != nil {
			return nil, err
		}
	}
	if dir := g.Dirs["memory"]; dir != "" && l.Memory > 0 {
		text := strconv.FormatInt(l.Memory, 10)
		// Lowering below memsw and raising above it both fail in one of the two orders.
		first := write(dir, "memory.limit_in_bytes", text)
		if err := write(dir, "memory.memsw.limit_in_bytes", text); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("limit memory and swap to %s: %w", text, err)
		}
		if first != nil {
			if err := write(dir, "memory.limit_in_bytes", text); err != nil {
				return nil, fmt.Errorf("limit memory to %s: %w", text, err)
			}
		}
	}
	if dir := g.Dirs["cpu"]; dir != "" && l.VCores > 0 {
		unmet = errors.Join(unmet, write(dir, "cpu.shares", strconv.Itoa(min(262144, 1024*l.VCores))))
		if l.HardCPU {
			err := errors.Join(write(dir, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)), write(dir, "cpu.cfs_quota_us", strconv.Itoa(cpuPeriod*l.VCores)))
			if err != nil {
				unmet = errors.Join(unmet, fmt.Errorf("limit the processor time to %d cores: %w", l.VCores, err))
			}
		}
	}
	if dir := g.Dirs["cpuset"]; dir != "" && l.CPUs != "" {
		if err := pinV1(dir, l.CPUs); err != nil {
			unmet = errors.Join(unmet, fmt.Errorf("run on the cores %s: %w", l.CPUs, err))
			if err := os.Remove(dir); err != nil { // without cores it takes no process
				return nil, err
			}
		}
	}
	if dir := g.Dirs["blkio"]; dir != "" && l.VCores > 0 {
		// Which of the files there is depends on the schedulers that the kernel has.
		for _, file := range []string{"blkio.bfq.weight", "blkio.weight"} {
			unmet = errors.Join(unmet, ignoreNotExist(write(dir, file, strconv.Itoa(min(1000, weight(l.VCores))))))
		}
	}
	if dir := g.Dirs["pids"]; dir != "" && l.Pids > 0 {
		if err := write(dir, "pids.max", strconv.Itoa(l.Pids)); err != nil {
			return nil, err
		}
	}
	if dir := g.Dirs["devices"]; dir != "" && l.Devices != nil {
		return unmet, limitV1(dir, l.Devices)
	}
	return unmet, nil
}

// makeDir makes a directory of version 1 with its parents, also while the end of another container takes these away: a parent is
// gone when the next one is to be made in it, or was there when it was to be made and is not when it is looked at.
func makeDir(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	for try := 0; (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)) && try < 100; try++ {
		err = os.MkdirAll(dir, 0o755)
	}
	return err
}

// pinV1 names the cores of a group. A new group of version 1 has neither cores nor memory of its own, and takes no process before.
func pinV1(dir, cpus string) error {
	ours := filepath.Dir(dir)
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(ours)), file))
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(have))
		for _, parent := range []string{filepath.Dir(ours), ours} {
			if err := write(parent, file, text); err != nil {
				return err
			}
		}
		if file == "cpuset.cpus" {
			text = cpus
		}
		if err := write(dir, file, text); err != nil {
			return err
		}
	}
	return nil
}

func (g Group) makeV2(l Limits) (unmet, err error) {
	dir := g.Dirs["unified"]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	memory := l.Memory > 0 && g.MemoryLimited
	type setting struct {
		file, value  string
		wanted, kept bool
	}
	for _, s := range []setting{
		{"memory.max", strconv.FormatInt(l.Memory, 10), memory, true},
		{"memory.swap.max", "0", memory, true},
		{"memory.oom.group", "1", memory, true},
		{"cpu.weight", strconv.Itoa(weight(l.VCores)), l.VCores > 0, false},
		{"cpu.max", fmt.Sprintf("%d %d", cpuPeriod*l.VCores, cpuPeriod), l.VCores > 0 && l.HardCPU, false},
		{"cpuset.cpus", l.CPUs, l.CPUs != "", false},
		{"io.weight", "default " + strconv.Itoa(weight(l.VCores)), l.VCores > 0, false},
		{"pids.max", strconv.Itoa(l.Pids), l.Pids > 0, true},
	} {
		if !s.wanted {
			continue
		}
		err := write(dir, s.file, s.value)
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist) && s.file != "memory.max": // a controller that is not delegated, which the report says
		case s.kept:
			return nil, err
		default:
			unmet = errors.Join(unmet, fmt.Errorf("set %s to %s: %w", s.file, s.value, err))
		}
	}
	if l.Devices != nil {
		return unmet, limitV2(dir, l.Devices)
	}
	return unmet, nil
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
		for controller, dir := range g.Dirs {
			if err := write(dir, "tasks", tid); err != nil {
				if controller == "cpuset" && errors.Is(err, fs.ErrNotExist) {
					continue
				}
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
	if g.Version == 2 {
		return readEvent(g.Dirs["unified"], "memory.events", "oom_kill")
	}
	return readEvent(g.Dirs["memory"], "memory.oom_control", "oom_kill")
}

// ForksRefused counts the processes and threads that the group was not given because it had as many as it may.
func (g Group) ForksRefused() int64 {
	if g.Version == 2 {
		return readEvent(g.Dirs["unified"], "pids.events", "max")
	}
	return readEvent(g.Dirs["pids"], "pids.events", "max")
}

// readEvent reads one number of a file with a name and a number in each line; 0: it is not there.
func readEvent(dir, file, name string) int64 {
	if dir == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
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
