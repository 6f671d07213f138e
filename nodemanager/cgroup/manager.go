package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Manager makes the groups of one node manager, all below one parent group of its own, so that two node managers of one
// machine do not sweep each other's.
type Manager struct {
	report Report
	name   string
}

// Open makes the parent group called name. When the machine refuses, the returned manager works without control groups and
// its Report says why; an error is never returned for that.
func Open(report Report, name string) *Manager {
	m := &Manager{report: report, name: name}
	switch report.Version {
	case 1:
		for controller, dir := range report.dirs {
			if err := makeDir(filepath.Join(dir, name)); err != nil {
				m.lose(controller, err)
			}
		}
	case 2:
		if err := m.openV2(); err != nil {
			m.report = None(err.Error())
		}
	}
	return m
}

// Report is what is in force.
func (m *Manager) Report() Report { return m.report }

func (m *Manager) lose(controller string, err error) {
	switch controller {
	case "memory":
		m.report.Memory = false
	case "cpu":
		m.report.CPU = false
	case "pids":
		m.report.Pids = false
	case "freezer":
		m.report.Freezer = false
	case "cpuset":
		m.report.CPUSet = false
	case "blkio":
		m.report.IO = false
	case "devices":
		m.report.Devices, m.report.NoDevices = false, err.Error()
	}
	delete(m.report.dirs, controller)
	m.report.Missing = append(m.report.Missing, err.Error())
	if len(m.report.dirs) == 0 {
		m.report.Version = 0
	}
}

// openV2 enables the controllers for our children. A v2 group that holds processes cannot do that, except the root, so we
// move ourselves (and only if we are alone) into a leaf.
func (m *Manager) openV2() error {
	base := m.report.unified
	var enable []string
	for _, c := range []struct {
		name string
		ok   bool
	}{{"memory", m.report.Memory}, {"cpu", m.report.CPU}, {"pids", m.report.Pids}} {
		if c.ok {
			enable = append(enable, "+"+c.name)
		}
	}
	text := strings.Join(enable, " ")
	if err := write(base, "cgroup.subtree_control", text); err != nil {
		pids, listErr := readPids(filepath.Join(base, "cgroup.procs"))
		if listErr != nil {
			return listErr
		}
		if !slices.Equal(pids, []int{os.Getpid()}) {
			return fmt.Errorf("%s holds other processes, so its controllers cannot be handed on: start the node manager in a delegated group of its own (systemd: Delegate=yes): %w", base, err)
		}
		leaf := filepath.Join(base, "hops-daemon")
		if err := os.MkdirAll(leaf, 0o755); err != nil {
			return err
		}
		if err := write(leaf, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
		if err := write(base, "cgroup.subtree_control", text); err != nil {
			return err
		}
	}
	parent := filepath.Join(base, "hops-"+m.name)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if err := write(parent, "cgroup.subtree_control", text); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		ok   *bool
	}{{"cpuset", &m.report.CPUSet}, {"io", &m.report.IO}} { // one that is refused costs nobody the others
		if *c.ok {
			err := write(base, "cgroup.subtree_control", "+"+c.name)
			if err == nil {
				err = write(parent, "cgroup.subtree_control", "+"+c.name)
			}
			*c.ok = err == nil
		}
	}
	return nil
}

// Limits of a group. Zero values do not limit.
type Limits struct {
	Memory int64 `json:"memory,omitempty"` // bytes, page cache included
	VCores int   `json:"vcores,omitempty"` // relative share when processors are short
	Pids   int   `json:"pids,omitempty"`   // processes and threads
	// HardCPU: VCores are the most that it gets, idle as the machine may be.
	HardCPU bool `json:"hard_cpu,omitempty"`
	// CPUs are the cores on which alone it runs, as a list of the kernel ("0-7,16"); empty: all.
	CPUs string `json:"cpus,omitempty"`
	// Devices are the only ones that may be opened; nil: any.
	Devices []Device `json:"devices,omitempty"`
}

// Group names the directories of one container's group. It can be written down and used by another process; the zero value
// is "no group" and every method of it does nothing.
type Group struct {
	Version int `json:"version,omitempty"`
	// Dirs by controller for version 1; the single entry "unified" for version 2.
	Dirs map[string]string `json:"dirs,omitempty"`
	// MemoryLimited: memory is counted and limited by the group.
	MemoryLimited bool `json:"memory_limited,omitempty"`
	// PidsLimited: so are processes and threads.
	PidsLimited bool `json:"pids_limited,omitempty"`
}

// Group names the group of a container without making it.
func (m *Manager) Group(container string) Group {
	switch m.report.Version {
	case 1:
		g := Group{Version: 1, Dirs: map[string]string{}, MemoryLimited: m.report.Memory, PidsLimited: m.report.Pids}
		for controller, dir := range m.report.dirs {
			g.Dirs[controller] = filepath.Join(dir, m.name, container)
		}
		return g
	case 2:
		dir := filepath.Join(m.report.unified, "hops-"+m.name, container)
		return Group{Version: 2, Dirs: map[string]string{"unified": dir}, MemoryLimited: m.report.Memory, PidsLimited: m.report.Pids}
	}
	return Group{}
}

// List names the containers that have a group, living or left behind.
func (m *Manager) List() []string {
	seen := map[string]bool{}
	for _, dir := range m.Group(".").Dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				seen[e.Name()] = true
			}
		}
	}
	names := make([]string, 0, len(seen))
	for n := range seen {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Close removes the parent group if no container is left in it. It is made again when it is needed.
func (m *Manager) Close() {
	for _, dir := range m.Group(".").Dirs {
		if os.Remove(dir) == nil && m.report.Version == 1 {
			_ = os.Remove(filepath.Dir(dir)) // "hops" itself, unless another node manager uses it
		}
	}
}

func write(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return nil
}

func readPids(file string) ([]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
