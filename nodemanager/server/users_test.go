package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/localizer"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// accounts of the users that tests of this file have.
var accounts = map[string]*account.Account{
	"ann": {Name: "ann", UID: 54321, GID: 54321, Groups: []uint32{54321}, Home: "/nonexistent"},
	"eve": {Name: "eve", UID: 54331, GID: 54331, Groups: []uint32{54331}, Home: "/nonexistent"},
}

// asRoot is a node manager that runs containers as their users; it needs root.
func asRoot(t *testing.T, m *manager) (Config, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root runs containers as their users")
	}
	work := t.TempDir()
	for dir := work; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	c := baseConfig(t, work, m.address)
	c.Isolation, c.Shown = IsolationAuto, []string{self(t)}
	c.FindAccount = func(_ context.Context, name string) (*account.Account, error) {
		if a := accounts[name]; a != nil {
			return a, nil
		}
		return nil, fmt.Errorf("user %s: %w", name, account.ErrUnknown)
	}
	return c, work
}

// usersSpec is a container of a user.
func usersSpec(t *testing.T, n int, user, script string) *rmpb.ContainerSpec {
	s := spec(t, n, "sh", "-c", script)
	s.User = user
	return s
}

// private skips a test that needs what this kernel does not give.
func (n *node) private(t *testing.T) {
	t.Helper()
	<-n.Ready()
	if why := n.protection.shared + n.protection.unreachable; why != "" {
		t.Skip(why)
	}
}

func output(t *testing.T, work, id string) string {
	t.Helper()
	out, err := os.ReadFile(filepath.Join(work, "containers", id, "logs", "stdout"))
	if err != nil {
		t.Error(err)
	}
	return string(out)
}

// asUser is what a process of a user that is in no container gets from a shell.
func asUser(t *testing.T, user, script string) string {
	t.Helper()
	a := accounts[user]
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, w.Fd(), w.Fd()},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.UID, Gid: a.GID}},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 64<<10)
	k, _ := r.Read(out)
	return string(out[:k])
}

func TestAContainerIsItsUsers(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	n := run(t, c)
	n.private(t)
	s := usersSpec(t, 1, "ann", `id -u; stat -c '%u %a %n' . in/data.txt ../token ../authority.pem ../logs $HOME; cat $HOPS_TOKEN; touch in/mine && echo x >> in/data.txt && cat in/data.txt
		cat ../record.json ../launch.json ../supervisor.log 2>/dev/null || echo not the node manager\'s; test "$HOME" = "$PWD" && echo home; test "$TMPDIR" && touch $TMPDIR/x && ls /tmp`)
	s.Artifacts = []*rmpb.Artifact{{Name: "in/data.txt", Kind: "file", Content: []byte("data\n")}}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	here := filepath.Join(work, "containers", s.ContainerId, "work")
	want := "54321\n54321 700 .\n54321 644 in/data.txt\n54321 400 ../token\n54321 400 ../authority.pem\n54321 700 ../logs\n54321 700 " + here +
		"\ns3cret\ndata\nx\nnot the node manager's\nhome\n"
	if got := output(t, work, s.ContainerId); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "x\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	eventually(t, "its directory is removed", func() bool { _, err := os.Stat(filepath.Dir(here)); return os.IsNotExist(err) })
}

func TestAUserWithoutAnAccountRunsNothing(t *testing.T) {
	m := newManager(t, "")
	c, _ := asRoot(t, m)
	run(t, c)
	for i, user := range []string{"mallory", "hdfs"} {
		s := usersSpec(t, i+1, user, "true")
		m.start(s)
		got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		if got.GetExitStatus() != int32(nodemanager.Invalid) || !strings.Contains(got.GetDiagnostics(), "was refused: user "+user) || strings.Contains(got.GetDiagnostics(), "\n") {
			t.Errorf("%s: %d %q", user, got.GetExitStatus(), got.GetDiagnostics())
		}
	}
}

// Who tries what with the container of another, inside of containers and outside.
func TestContainersOfDifferentUsers(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	data := filepath.Join(t.TempDir(), "nn")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "edits"), []byte("DATA"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.Hidden = []string{data}
	n := run(t, c)
	n.private(t)
	victim := usersSpec(t, 1, "ann", "echo LOG; echo WORK > file; chmod 0777 . file; exec sleep 1000")
	victim.Env["PASSWORD"] = "ENVIRON"
	m.start(victim)
	m.untilState(victim.ContainerId, rmpb.ContainerStatus_RUNNING)
	dir := filepath.Join(work, "containers", victim.ContainerId)
	eventually(t, "it has written", func() bool { return strings.Contains(output(t, work, victim.ContainerId), "LOG") })
	var pid int
	eventually(t, "its process", func() bool {
		for _, p := range n.find(nodemanager.ContainerID(victim.ContainerId)).processes() {
			// Before it is what it will be, it starts others.
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p))
			if st, err := os.Stat(fmt.Sprintf("/proc/%d", p)); err == nil && st.Sys().(*syscall.Stat_t).Uid == accounts["ann"].UID && string(name) == "sleep\n" {
				pid = p
			}
		}
		return pid != 0
	})
	attempts := []struct{ tries, script string }{
		{"the token", "cat " + dir + "/token"},
		{"the log", "cat " + dir + "/logs/stdout"},
		{"a file that everybody may read", "cat " + dir + "/work/file"},
		{"writing a file that everybody may write", "echo EVIL > " + dir + "/work/file"},
		{"the list of its directory", "ls " + dir},
		{"the record of the node manager", "cat " + dir + "/record.json"},
		{"the socket of its supervisor", "test -r " + dir + "/sock"},
		{"the environment of its process", fmt.Sprintf("cat /proc/%d/environ", pid)},
		{"the directory of its process", fmt.Sprintf("ls /proc/%d/cwd/", pid)},
		{"the memory of its process", fmt.Sprintf("head -c 1 /proc/%d/mem", pid)},
		{"a signal to it", fmt.Sprintf("kill -9 %d", pid)},
		{"a list of all containers", "ls " + work + "/containers"},
		{"the cache of inputs", "ls " + work + "/cache"},
		{"the node's record", "cat " + work + "/node.json"},
	}
	for i, a := range attempts {
		script := "{ " + a.script + "; } >/dev/null 2>&1 && echo DONE || echo no"
		t.Run("eve outside/"+strings.ReplaceAll(a.tries, " ", "_"), func(t *testing.T) {
			if got := asUser(t, "eve", script); got != "no\n" {
				t.Errorf("%s: %q", a.script, got)
			}
		})
		attempts[i].script = script
	}
	var all strings.Builder
	for _, a := range append(attempts, struct{ tries, script string }{"the servers' data", "cat " + data + "/edits 2>/dev/null && echo DONE || echo no"}) {
		all.WriteString("echo '" + strings.ReplaceAll(a.tries, "'", "") + ":'; " + a.script + "\n")
	}
	for i, user := range []string{"eve", "ann"} { // another container of ann's is a stranger too
		s := usersSpec(t, 2+i, user, all.String())
		m.start(s)
		m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		// The list of containers has one: its own.
		lines := strings.Split(strings.TrimSpace(output(t, work, s.ContainerId)), "\n")
		for k := 0; k+1 < len(lines); k += 2 {
			t.Run(user+" inside/"+strings.ReplaceAll(strings.TrimSuffix(lines[k], ":"), " ", "_"), func(t *testing.T) {
				if lines[k+1] != "no" && lines[k] != "a list of all containers:" {
					t.Errorf("%s %s", lines[k], lines[k+1])
				}
			})
		}
		if len(lines) != 2*(len(attempts)+1) {
			t.Errorf("%s said %q", user, lines)
		}
	}
	if text, err := os.ReadFile(dir + "/work/file"); string(text) != "WORK\n" || err != nil || !lives(pid) {
		t.Errorf("the victim has %q, %v, lives %v", text, err, lives(pid))
	}
}

// What a user plants where the node manager reads, as root, leads nowhere.
func TestWhatAUserPlantsLeadsNowhere(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	memory := newMemoryFS()
	c.FS = func(string) (Filesystem, error) { return memory, nil }
	c.Door = security.NewDoor(security.Config{})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("SECRET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := run(t, c)
	n.private(t)
	s := usersSpec(t, 1, "ann", `ln -s `+secret+` ../logs/symbolic; ln -s ../record.json ../logs/record; mkfifo ../logs/pipe; rm ../logs/stderr; ln -s `+secret+` ../logs/stderr
		mkdir -p deep/er; ln -s `+filepath.Dir(secret)+` out; ln -s / deep/er/root; chmod 0 deep; echo planted; echo > up; exec sleep 1000`)
	s.LogDir = "/logs/ann/app"
	m.start(s)
	eventually(t, "it has planted", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId, "work", "up"))
		return err == nil
	})
	// A hard link, which a kernel without fs.protected_hardlinks lets it make.
	if err := os.Link(filepath.Join(work, "node.json"), filepath.Join(work, "containers", s.ContainerId, "logs", "hard")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"symbolic", "record", "pipe", "stderr", "hard"} {
		code, body, _ := n.get("/ws/v1/node/containers/"+s.ContainerId+"/logs/"+name+"?user.name="+me(), "")
		if code != http.StatusNotFound || strings.Contains(body, "SECRET") || strings.Contains(body, "incarnation") {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -105, Reason: "enough"}}})
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	eventually(t, "its directory is removed", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
		return os.IsNotExist(err)
	})
	if text, err := os.ReadFile(secret); string(text) != "SECRET\n" || err != nil {
		t.Errorf("what the links named: %q, %v", text, err)
	}
	memory.mu.Lock() // the node manager ships on
	for name, content := range memory.files {
		if text := content.String(); strings.Contains(text, "SECRET") || strings.Contains(text, "incarnation") {
			t.Errorf("shipped as %s: %s", name, text)
		}
	}
	memory.mu.Unlock()
	if got := memory.get("/logs/ann/app/" + s.ContainerId + "/stdout"); got != "planted\n" {
		t.Errorf("shipped: %q", got)
	}
}

func TestAForkBombStaysInItsContainer(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	c.Groups, c.Pids = nil, 40
	n := run(t, c)
	n.private(t)
	if r := n.Groups(); !r.Pids {
		t.Skip(r.Degradation())
	}
	s := usersSpec(t, 1, "ann", `i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; echo all`)
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	if out := output(t, work, s.ContainerId); strings.Contains(out, "all") {
		t.Errorf("it made 200 processes: %q", out)
	}
	if left := n.find(nodemanager.ContainerID(s.ContainerId)).processes(); len(left) > 0 {
		t.Errorf("processes that are left: %v", left)
	}
}

// oneDriver has two devices that no driver has, with device files that are made for the test.
type oneDriver struct{ devices []nodemanager.GPU }

func (o oneDriver) Devices(context.Context) ([]nodemanager.GPU, error) { return o.devices, nil }

func (o oneDriver) Watch(ctx context.Context, _ func(nodemanager.GPUEvent)) error {
	<-ctx.Done()
	return nil
}

func (o oneDriver) Name() string { return "test" }

func (o oneDriver) Close() error { return nil }

func TestAContainerHasItsOwnDevicesOnly(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	c.Groups = nil
	var source oneDriver
	first := 1000 + 2*(os.Getpid()%30_000)
	for i := range 2 {
		minor := first + i
		file := fmt.Sprintf("/dev/nvidia%d", minor)
		if err := unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(5+2*i)))); err != nil { // zero and full
			t.Skip(err)
		}
		defer os.Remove(file)
		if err := os.Chmod(file, 0o666); err != nil {
			t.Fatal(err)
		}
		source.devices = append(source.devices, nodemanager.GPU{UUID: fmt.Sprint("GPU-", thisRun, "-", i), Minor: minor, Health: nodemanager.Healthy})
	}
	c.GPUs = source
	n := run(t, c)
	n.private(t)
	its, another := fmt.Sprintf("/dev/nvidia%d", first), fmt.Sprintf("/dev/nvidia%d", first+1)
	tries := `for f in ` + its + ` ` + another + `; do head -c 1 $f >/dev/null 2>&1 && echo "$f opens" || echo "$f refused"; done; ls /dev/nvidia* 2>/dev/null`
	for i, test := range []struct {
		user, gpu, want string
	}{
		{"ann", source.devices[0].UUID, its + " opens\n" + another + " refused\n" + its + "\n"},
		{"eve", "", its + " refused\n" + another + " refused\n"},
	} {
		s := usersSpec(t, i+1, test.user, tries)
		if test.gpu != "" {
			s.GpuUuids = []string{test.gpu}
		}
		m.start(s)
		m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		if got := output(t, work, s.ContainerId); got != test.want {
			t.Errorf("%s with %q: %q, want %q", test.user, test.gpu, got, test.want)
		}
	}
	// A container that poses as a stranger with another one's device takes it from nobody.
	stranger := fmt.Sprintf("container_1_%d_01_000001", os.Getpid())
	liar := usersSpec(t, 9, "eve", "HOPS_CONTAINER_ID="+stranger+" CUDA_VISIBLE_DEVICES="+source.devices[0].UUID+" sleep 1000 & echo $! > lies; wait")
	m.start(liar)
	eventually(t, "it lies", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", liar.ContainerId, "work", "lies"))
		return err == nil && len(carrying("HOPS_CONTAINER_ID="+stranger)) > 0
	})
	m.untilState(liar.ContainerId, rmpb.ContainerStatus_RUNNING)
	n.watchForgotten(t.Context())
	if occupied := n.occupied(); strings.Contains(fmt.Sprint(occupied), stranger) {
		t.Errorf("occupied: %v", occupied)
	}
	_, report := n.healthReport()
	if says := strings.Contains(report, "GPU isolation"); says == n.groups.Report().Devices {
		t.Errorf("health says %q, devices are limited: %v", report, n.groups.Report().Devices)
	}
	if r := cgroup.Detect(); r.Devices == (r.NoDevices != "") {
		t.Errorf("%+v", r)
	}
}

func TestAUsersContainerOutlivesItsNodeManager(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	n := run(t, c)
	n.private(t)
	s, lost := usersSpec(t, 1, "ann", "echo > up; while ! test -e ../tmp/end; do sleep 0.05; done; exit 7"), usersSpec(t, 2, "ann", "exec sleep 1000")
	for _, each := range []*rmpb.ContainerSpec{s, lost} {
		m.start(each)
		m.untilState(each.ContainerId, rmpb.ContainerStatus_RUNNING)
	}
	n.close(false)
	again := baseConfig(t, work, m.address)
	again.NodeID = c.HTTP.Addr().String()
	again.Isolation, again.FindAccount = c.Isolation, c.FindAccount
	n = run(t, again)
	n.private(t)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "tmp", "end"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.GetExitStatus() != 7 {
		t.Errorf("%d %q", got.GetExitStatus(), got.GetDiagnostics())
	}
	st, err := n.find(nodemanager.ContainerID(lost.ContainerId)).client.Status(t.Context())
	if err != nil || st.Supervisor <= 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	tree := n.find(nodemanager.ContainerID(lost.ContainerId)).processes()
	if err := unix.Kill(st.Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := m.untilState(lost.ContainerId, rmpb.ContainerStatus_COMPLETE); got.GetExitStatus() != int32(nodemanager.Aborted) {
		t.Errorf("%d %q", got.GetExitStatus(), got.GetDiagnostics())
	}
	for _, pid := range tree {
		if lives(pid) {
			t.Errorf("process %d of the lost container lives", pid)
		}
	}
}

// processes are those that have the container's directory in their environment: containers of another run of the tests have the same ids.
func (c *container) processes() []int {
	return carrying(mark(c.dir))
}

// carrying are the processes that have an entry in their environment.
func carrying(entry string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if slices.Contains(strings.Split(string(env), "\x00"), entry) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// slowFS does not answer before the gate is open.
type slowFS struct {
	*memoryFS
	asked, gate chan struct{}
}

func (s *slowFS) Stat(ctx context.Context, name string) (localizer.Info, error) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	select {
	case <-s.gate:
	case <-ctx.Done():
		return localizer.Info{}, ctx.Err()
	}
	return s.memoryFS.Stat(ctx, name)
}

// While inputs are put in place the directory is not the user's yet, so nothing that the user does can lead the node manager's writing astray.
func TestNobodyIsInTheDirectoryThatIsFilled(t *testing.T) {
	m := newManager(t, "")
	c, work := asRoot(t, m)
	slow := &slowFS{memoryFS: newMemoryFS(), asked: make(chan struct{}, 1), gate: make(chan struct{})}
	slow.put("/user/ann/data", "data\n")
	c.FS = func(string) (Filesystem, error) { return slow, nil }
	n := run(t, c)
	n.private(t)
	s := usersSpec(t, 1, "ann", "cat dir/data; stat -c '%u %F' dir dir/data")
	s.Artifacts = []*rmpb.Artifact{{Name: "dir/data", Uri: "/user/ann/data", Kind: "file"}}
	m.start(s)
	<-slow.asked
	dir := filepath.Join(work, "containers", s.ContainerId)
	for tries, script := range map[string]string{
		"plants a link in the work directory": "ln -s /etc " + dir + "/work/dir",
		"looks into the work directory":       "ls " + dir + "/work",
		"plants a log file":                   "ln -s /etc/passwd " + dir + "/logs/stdout",
		"plants a temporary file":             "touch " + dir + "/tmp/x",
		"replaces the work directory":         "mv " + dir + "/work " + dir + "/w",
		"makes the directory of its secrets":  "mkdir " + dir + "/secrets",
	} {
		if got := asUser(t, "ann", "{ "+script+"; } >/dev/null 2>&1 && echo DONE || echo no"); got != "no\n" {
			t.Errorf("ann, outside, %s: %q", tries, got)
		}
	}
	close(slow.gate)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	if got := output(t, work, s.ContainerId); got != "data\n54321 directory\n54321 regular file\n" {
		t.Errorf("it sees %q", got)
	}
}
