package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is one entry of /proc. start tells two processes that had the same id apart.
type process struct {
	pid, parent int
	start       uint64
	zombie      bool
	threads     int // 1 at least
}

// readProcess parses /proc/<pid>/stat (proc(5)); the command name may contain anything, so fields count from its last ')'.
func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, text)
}

func parseStat(pid int, text []byte) (process, bool) {
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return process{}, false
	}
	fields := strings.Fields(string(text[i+1:])) // state is field 3 of the manual page, here 0
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return process{}, false
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return process{}, false
	}
	return process{pid, parent, start, fields[0] == "Z" || fields[0] == "X", max(1, threads)}, true
}

func allPids() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendants lists the living processes below root, without root.
func descendants(root int) []process {
	children := map[int][]process{}
	for _, pid := range allPids() {
		if p, ok := readProcess(pid); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var all []process
	queue := []int{root}
	for len(queue) > 0 {
		next := children[queue[0]]
		delete(children, queue[0])
		queue = queue[1:]
		for _, p := range next {
			queue = append(queue, p.pid)
			if !p.zombie {
				all = append(all, p)
			}
		}
	}
	return all
}

// signal sends sig to exactly this process, not to a later one with its id.
func (p process) signal(sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if err == unix.ENOSYS || err == unix.EPERM {
			if now, ok := readProcess(p.pid); ok && now.start == p.start {
				_ = unix.Kill(p.pid, sig)
			}
		}
		return
	}
	defer unix.Close(fd)
	if now, ok := readProcess(p.pid); ok && now.start == p.start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// killAll sends SIGKILL to all given processes, holding them still first so that none forks away meanwhile.
func killAll(list func() []process) (left []process) {
	for _, p := range list() {
		p.signal(unix.SIGSTOP)
	}
	left = list()
	for _, p := range left {
		p.signal(unix.SIGKILL)
	}
	return left
}

// resident is the sum of the resident memory of processes; shared pages count once per process.
func resident(processes []process) int64 {
	var sum int64
	page := int64(os.Getpagesize())
	for _, p := range processes {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/statm")
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += n * page
		}
	}
	return sum
}

// proportional is the sum of the proportional set sizes, in which shared pages count once; resident memory stands in
// where the kernel does not tell. It walks page tables: call it only when it decides something.
func proportional(processes []process) int64 {
	var sum int64
	for _, p := range processes {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/smaps_rollup")
		if err != nil {
			sum += resident([]process{p})
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				if fields := strings.Fields(rest); len(fields) > 0 {
					n, _ := strconv.ParseInt(fields[0], 10, 64)
					sum += n << 10
				}
			}
		}
	}
	return sum
}

// virtual is the sum of the address spaces, for YARN's diagnostics.
func virtual(processes []process) int64 {
	var sum int64
	page := int64(os.Getpagesize())
	for _, p := range processes {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/statm")
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			sum += n * page
		}
	}
	return sum
}

// marked lists the living processes in whose initial environment the entry stands.
func marked(entry string) []process {
	var found []process
	for _, pid := range allPids() {
		if pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), entry) {
			continue
		}
		if p, ok := readProcess(pid); ok && !p.zombie {
			found = append(found, p)
		}
	}
	return found
}

// outside translates ids of processes below root from the process namespace in which root is the first one to ours. Those that
// are gone are left out.
func outside(root int, inside []int) []int {
	var found []int
	for _, p := range descendants(root) {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
				ids := append([]string{""}, strings.Fields(rest)...)
				if id, err := strconv.Atoi(ids[len(ids)-1]); err == nil && slices.Contains(inside, id) {
					found = append(found, p.pid)
				}
			}
		}
	}
	return found
}
