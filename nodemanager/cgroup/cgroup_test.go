package cgroup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestDetect reads mount tables of machines of every kind; the directories are real so that rights are.
func TestDetect(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"memory", "cpu,cpuacct", "pids", "freezer", "unified/user.slice/me"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	me := filepath.Join(dir, "unified/user.slice/me")
	for file, text := range map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": "", "cgroup.procs": ""} {
		if err := os.WriteFile(filepath.Join(me, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v1 := func(controllers ...string) string {
		var b strings.Builder
		for _, c := range controllers {
			b.WriteString("30 20 0:27 / " + dir + "/" + c + " rw,nosuid - cgroup cgroup rw," + c + "\n")
		}
		return b.String()
	}
	v2 := "31 20 0:28 / " + dir + "/unified rw - cgroup2 cgroup2 rw\n"
	for _, test := range []struct {
		name, mounts, own string
		version           int
		degraded          string
	}{
		{"v1", v1("memory", "cpu,cpuacct", "pids", "freezer"), "", 1, ""},
		{"v1 without memory", v1("cpu,cpuacct", "pids", "freezer"), "", 1, "memory is limited by polling"},
		{"v1 with a cpuset that is also cpu's", strings.Replace(v1("memory", "cpu,cpuacct", "pids", "freezer"), "cgroup rw,cpu,cpuacct", "cgroup rw,cpu,cpuset", 1), "", 1, ""},
		{"hybrid", v2 + v1("memory", "cpu,cpuacct", "pids"), "0::/\n", 1, ""},
		{"v1 read-only or absent", v1("gone"), "", 0, "no control group filesystem"},
		{"v2 delegated", v2, "0::/user.slice/me\n", 2, ""},
		{"v2 not delegated", v2, "0::/system.slice/other\n", 0, "Delegate=yes"},
		{"nothing", "rubbish\n1 2 3 - \n", "", 0, "no control group filesystem"},
	} {
		r := detect(strings.NewReader(test.mounts), test.own)
		if r.Version != test.version || (test.degraded == "") != (r.Degradation() == "") || !strings.Contains(r.Degradation(), test.degraded) || r.String() == "" || r.Version == 1 && r.CPUSet || r.Version == 2 && (!r.CPUSet || !r.IO) {
			t.Errorf("%s: version %d, %q", test.name, r.Version, r.Degradation())
		}
	}
}

// TestVersion2Files runs against a plain directory, which is what the files of version 2 look like to us.
func TestVersion2Files(t *testing.T) {
	dir := t.TempDir()
	r := Report{Version: 2, Memory: true, CPU: true, Pids: true, CPUSet: true, IO: true, Freezer: true, unified: dir}
	for _, d := range []string{".", "hops-n1", "hops-n1/c1"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cgroup.subtree_control", "cgroup.procs", "cgroup.kill", "memory.max", "memory.swap.max", "memory.oom.group", "cpu.weight", "pids.max", "memory.current", "memory.events", "cpu.max", "cpuset.cpus", "io.weight", "pids.events"} {
			if err := os.WriteFile(filepath.Join(dir, d, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := Open(r, "n1")
	if d := m.Report().Degradation(); d != "" {
		t.Fatal(d)
	}
	g := m.Group("c1")
	c := filepath.Join(dir, "hops-n1/c1")
	if unmet, err := g.Make(Limits{Memory: 1 << 30, VCores: 4, Pids: 99}); unmet != nil || err != nil {
		t.Fatal(unmet, err)
	}
	for _, file := range []string{"cpu.max", "cpuset.cpus"} { // only where they are asked for
		if got, _ := os.ReadFile(filepath.Join(c, file)); len(got) > 0 {
			t.Errorf("%s = %q", file, got)
		}
	}
	if unmet, err := g.Make(Limits{Memory: 1 << 30, VCores: 4, Pids: 99, HardCPU: true, CPUs: "0-3,8"}); unmet != nil || err != nil {
		t.Fatal(unmet, err)
	}
	if r := m.Report(); !r.CPUSet || !r.IO {
		t.Errorf("lost: %v", r)
	}
	os.WriteFile(filepath.Join(c, "memory.current"), []byte("123\n"), 0o644)
	os.WriteFile(filepath.Join(c, "pids.events"), []byte("max 7\n"), 0o644)
	os.WriteFile(filepath.Join(c, "memory.events"), []byte("low 0\noom 2\noom_kill 1\n"), 0o644)
	for file, want := range map[string]string{
		"memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.weight": "400", "pids.max": "99",
		"cpu.max": "400000 100000", "cpuset.cpus": "0-3,8", "io.weight": "default 400",
	} {
		if got, _ := os.ReadFile(filepath.Join(c, file)); string(got) != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if now, peak, ok := g.Memory(); !ok || now != 123 || peak != 123 || g.OOMKills() != 1 || g.ForksRefused() != 7 {
		t.Errorf("memory %d %d %v, kills %d, refused %d", now, peak, ok, g.OOMKills(), g.ForksRefused())
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(filepath.Join(c, "cgroup.kill")); string(got) != "1" {
		t.Errorf("kill wrote %q", got)
	}
	if got := m.List(); len(got) != 1 || got[0] != "c1" {
		t.Errorf("list %v", got)
	}
}

// TestVersion1Files does the same for version 1, where each controller has a tree of its own.
func TestVersion1Files(t *testing.T) {
	dir := t.TempDir()
	r := Report{Version: 1, Memory: true, CPU: true, Pids: true, CPUSet: true, IO: true, dirs: map[string]string{}}
	for controller, files := range map[string][]string{
		"memory": {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"},
		"cpu":    {"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"},
		"cpuset": {"cpuset.cpus", "cpuset.mems"},
		"blkio":  {"blkio.weight"},
		"pids":   {"pids.max", "pids.events"},
	} {
		r.dirs[controller] = filepath.Join(dir, controller, "hops")
		for _, d := range []string{"", "hops", "hops/n1", "hops/n1/c1"} {
			if err := os.MkdirAll(filepath.Join(dir, controller, d), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				text := map[string]string{"cpuset.cpus": "0-63\n", "cpuset.mems": "0-1\n"}[file]
				if d != "" {
					text = ""
				}
				if err := os.WriteFile(filepath.Join(dir, controller, d, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	m := Open(r, "n1")
	if d := m.Report().Degradation(); d != "" {
		t.Fatal(d)
	}
	g := m.Group("c1")
	if unmet, err := g.Make(Limits{Memory: 1 << 30, VCores: 4, Pids: 99, HardCPU: true, CPUs: "0-3,8"}); unmet != nil || err != nil {
		t.Fatal(unmet, err)
	}
	for file, want := range map[string]string{
		"memory/hops/n1/c1/memory.limit_in_bytes": "1073741824", "memory/hops/n1/c1/memory.memsw.limit_in_bytes": "1073741824",
		"cpu/hops/n1/c1/cpu.shares": "4096", "cpu/hops/n1/c1/cpu.cfs_period_us": "100000", "cpu/hops/n1/c1/cpu.cfs_quota_us": "400000",
		"cpuset/hops/cpuset.cpus": "0-63", "cpuset/hops/n1/cpuset.mems": "0-1", "cpuset/hops/n1/c1/cpuset.cpus": "0-3,8", "cpuset/hops/n1/c1/cpuset.mems": "0-1",
		"blkio/hops/n1/c1/blkio.weight": "400", "pids/hops/n1/c1/pids.max": "99",
	} {
		if got, _ := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	os.WriteFile(filepath.Join(dir, "pids/hops/n1/c1/pids.events"), []byte("max 3\n"), 0o644)
	os.WriteFile(filepath.Join(dir, "memory/hops/n1/c1/memory.oom_control"), []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 0o644)
	if g.ForksRefused() != 3 || g.OOMKills() != 2 {
		t.Errorf("refused %d, kills %d", g.ForksRefused(), g.OOMKills())
	}
}

// Node managers of one machine share a parent, which the last group of one of them takes along when it ends.
func TestAManagerOpensWhileAnotherOnesGroupsEnd(t *testing.T) {
	hops := filepath.Join(t.TempDir(), "hops")
	other := Group{Version: 1, Dirs: map[string]string{"memory": filepath.Join(hops, "n2", "c1")}}
	stop, ended := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-ended }()
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := other.Make(Limits{}); err != nil {
				t.Error(err)
			}
			if err := other.Remove(); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 1000 {
		m := Open(Report{Version: 1, Memory: true, dirs: map[string]string{"memory": hops}}, "n1")
		if r := m.Report(); !r.Memory {
			t.Fatalf("memory is not limited: %v", r.Missing)
		}
		m.Close()
	}
}

// TestCoresThatAreRefusedCostNoOtherLimit: files of a kernel that takes neither the cores nor the time of a container.
func TestCoresThatAreRefusedCostNoOtherLimit(t *testing.T) {
	limits := Limits{Memory: 1 << 30, VCores: 4, Pids: 99, HardCPU: true, CPUs: "0-3,8"}
	file := func(names ...string) {
		t.Helper()
		name := filepath.Join(names...)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if err == nil {
			err = os.WriteFile(name, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(names ...string) { // a directory takes no write
		t.Helper()
		if err := os.MkdirAll(filepath.Join(names...), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v2 := t.TempDir()
	for _, name := range []string{"memory.max", "pids.max", "cpu.weight"} {
		file(v2, name)
	}
	for _, name := range []string{"cpuset.cpus", "cpu.max", "io.weight"} {
		refused(v2, name)
	}
	unmet, err := (Group{Version: 2, Dirs: map[string]string{"unified": v2}, MemoryLimited: true}).Make(limits)
	if err != nil || unmet == nil || !strings.Contains(unmet.Error(), "cpuset.cpus") || !strings.Contains(unmet.Error(), "cpu.max") {
		t.Errorf("version 2: unmet %v, %v", unmet, err)
	}
	if got, _ := os.ReadFile(filepath.Join(v2, "pids.max")); string(got) != "99" {
		t.Errorf("pids.max = %q", got)
	}
	refused(v2, "memory.swap.max")
	if _, err := (Group{Version: 2, Dirs: map[string]string{"unified": v2}, MemoryLimited: true}).Make(limits); err == nil {
		t.Error("version 2: memory is not limited, and nobody says so")
	}

	v1 := t.TempDir()
	g := Group{Version: 1, Dirs: map[string]string{}, MemoryLimited: true}
	for _, controller := range []string{"memory", "cpu", "cpuset", "pids"} {
		g.Dirs[controller] = filepath.Join(v1, controller, "hops", "n1", "c1")
	}
	file(g.Dirs["memory"], "memory.limit_in_bytes")
	file(g.Dirs["pids"], "pids.max")
	file(g.Dirs["cpu"], "cpu.shares")
	file(g.Dirs["cpu"], "cpu.cfs_period_us")
	unmet, err = g.Make(limits) // the files of cpuset are not there, nor is cpu.cfs_quota_us
	if err != nil || unmet == nil || !strings.Contains(unmet.Error(), "run on the cores 0-3,8") || !strings.Contains(unmet.Error(), "processor time to 4 cores") {
		t.Errorf("version 1: unmet %v, %v", unmet, err)
	}
	if _, err := os.Stat(g.Dirs["cpuset"]); !errors.Is(err, fs.ErrNotExist) { // who enters a group without cores is refused
		t.Errorf("version 1: the group of the cores: %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(g.Dirs["pids"], "pids.max")); string(got) != "99" {
		t.Errorf("pids.max = %q", got)
	}
}

func TestRealGroupRunsOnItsCores(t *testing.T) {
	r := Detect()
	if !r.CPUSet || !r.CPU {
		t.Skipf("needs writable controllers: %v", r)
	}
	m := Open(r, "cores-test-"+strconv.Itoa(os.Getpid()))
	defer m.Close()
	if r = m.Report(); !r.CPUSet || !r.CPU {
		t.Skipf("needs writable controllers: %v", r)
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, allowed, _ := strings.Cut(string(own), "Cpus_allowed_list:\t")
	core := allowed[:strings.IndexAny(allowed, "-,\n")]
	g := m.Group("c1")
	if unmet, err := g.Make(Limits{VCores: 1, HardCPU: true, CPUs: core}); unmet != nil || err != nil {
		t.Fatal(unmet, err)
	}
	defer g.Remove()
	var out []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		read, write, err := os.Pipe()
		if err != nil {
			t.Error(err)
			return
		}
		defer read.Close()
		attr := &syscall.SysProcAttr{}
		child, err := g.Fork(attr, func() (int, error) {
			return syscall.ForkExec("/bin/cat", []string{"cat", "/proc/self/status"}, &syscall.ProcAttr{Files: []uintptr{0, write.Fd(), 2}, Sys: attr})
		})
		write.Close()
		if err != nil {
			t.Error(err)
			return
		}
		out, _ = io.ReadAll(read)
		_, _ = syscall.Wait4(child, nil, 0, nil)
	}()
	<-done
	if !strings.Contains(string(out), "Cpus_allowed_list:\t"+core+"\n") {
		t.Errorf("not on core %s alone: %s", core, out)
	}
}

func TestNoGroupDoesNothing(t *testing.T) {
	m := Open(None("not wanted"), "x")
	g := m.Group("c")
	if _, err := g.Make(Limits{Memory: 1}); err != nil {
		t.Error(err)
	}
	ran := false
	if _, err := g.Fork(&syscall.SysProcAttr{}, func() (int, error) { ran = true; return 1, nil }); err != nil || !ran {
		t.Error(err)
	}
	if _, _, ok := g.Memory(); ok || g.Kill() != nil || g.Remove() != nil || len(g.Procs()) != 0 || len(m.List()) != 0 {
		t.Error("no group did something")
	}
	if !strings.Contains(m.Report().Degradation(), "not wanted") {
		t.Error(m.Report())
	}
}

func TestRealGroupHoldsAndKills(t *testing.T) {
	r := Detect()
	if !r.Memory || !r.Pids {
		t.Skipf("needs writable controllers: %v", r)
	}
	m := Open(r, "cgroup-test-"+strconv.Itoa(os.Getpid()))
	if m.Report().Degradation() != "" {
		t.Skipf("needs writable controllers: %v", m.Report())
	}
	defer func() {
		m.Close()
		if left, err := os.ReadDir(filepath.Dir(m.Group("c1").Dirs["memory"])); err == nil {
			t.Errorf("the parent group stays, with %d entries", len(left))
		}
	}()
	g := m.Group("c1")
	for range 2 { // the second time it exists
		if _, err := g.Make(Limits{Memory: 64 << 20, VCores: 2, Pids: 20}); err != nil {
			t.Fatal(err)
		}
	}
	defer g.Remove()
	pid := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		attr := &syscall.SysProcAttr{}
		child, err := g.Fork(attr, func() (int, error) {
			return syscall.ForkExec("/bin/sleep", []string{"sleep", "100"}, &syscall.ProcAttr{Sys: attr})
		})
		if err != nil {
			t.Error(err)
		}
		own, _ := os.ReadFile("/proc/thread-self/cgroup")
		if strings.Contains(string(own), "/hops/") {
			t.Errorf("the forking thread stayed in the group: %s", own)
		}
		pid <- child
	}()
	child := <-pid
	if procs := g.Procs(); len(procs) != 1 || procs[0] != child {
		t.Errorf("processes %v, want %d", procs, child)
	}
	if now, _, ok := g.Memory(); !ok || now < 0 {
		t.Errorf("memory %d %v", now, ok)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(child, &status, 0, nil); err != nil || status.Signal() != syscall.SIGKILL {
		t.Errorf("%v %v", status, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}
