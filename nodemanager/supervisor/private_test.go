package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager/account"
)

// ann is an account that no machine has; files do not ask.
var ann = account.Account{Name: "ann", UID: 54321, GID: 54321, Groups: []uint32{54321, 54322}}

// privately makes a container whose command runs as ann, with everything for itself. It needs root.
func privately(t *testing.T, argv ...string) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root starts containers of other users")
	}
	c := newContainer(t, argv...)
	if err := TryPrivate(t.Context(), []string{self(t), "supervisor"}, t.TempDir()); err != nil {
		if os.Getenv("HOPS_NEED_ISOLATION") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	tmp := filepath.Join(c.dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir := c.dir; within(dir, os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	a := ann
	c.launch.Account, c.launch.Confinement = &a, &Confinement{Umask: 0o027, Files: 1000}
	c.launch.DiskDirs = []string{c.launch.Dir, tmp}
	c.launch.Isolation = &Isolation{Hide: []string{filepath.Dir(c.dir)}, Show: []string{c.dir, self(t)}, Private: &Private{Tmp: tmp}}
	return c
}

// says runs the container and returns what its command printed.
func (c *container) says() string {
	c.t.Helper()
	started := c.start()
	if started.Exit == nil {
		c.end()
	} else {
		c.t.Errorf("not started: %+v", started.Exit)
	}
	out, err := os.ReadFile(c.launch.Stdout)
	if err != nil {
		c.t.Fatal(err)
	}
	complaints, _ := os.ReadFile(c.launch.Stderr)
	c.t.Logf("stderr: %s", complaints)
	return string(out)
}

func TestACommandRunsAsItsUser(t *testing.T) {
	c := privately(t, "sh", "-c", `id -u; id -g; id -G; umask; ulimit -n; ulimit -c; grep -e NoNewPrivs -e Seccomp: -e CapEff /proc/self/status | tr -d '\t'
		pwd; touch made; stat -c '%u %a' made . ../logs ../logs/stdout /tmp; echo x > /tmp/x; cat $PWD/../tmp/x; ls -A /dev; echo y > /dev/shm/y; echo z | tee /dev/null; head -c 3 /dev/zero | wc -c
		echo via >> /dev/stdout; (exec 3<>/dev/ptmx && echo terminal)`)
	got := strings.Split(strings.TrimSpace(c.says()), "\n")
	want := []string{
		"54321", "54321", "54321 54322", "0027", "1000", "0", "CapEff:0000000000000000", "NoNewPrivs:1", "Seccomp:2", c.launch.Dir,
		"54321 640", "54321 700", "54321 700", "54321 640", "54321 700", "x",
		"fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero", "z", "3", "via", "terminal",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A command that cannot start says why as a shell would, as if there were no stage between.
func TestACommandOfAUserThatCannotStart(t *testing.T) {
	for argv, want := range map[string]int{"no-such-program": 127, "/no/such": 127, "/etc/passwd": 126, "/root/secret": 126} {
		c := privately(t, argv)
		if e := c.start().Exit; e == nil || int(e.Status) != want || !strings.Contains(e.Diagnostics, argv) {
			t.Errorf("%s: %+v, want status %d", argv, e, want)
		}
	}
}

func TestProcessesOfAUserEndWithItsContainer(t *testing.T) {
	c := privately(t, "sh", "-c", `setsid sh -c 'trap "" TERM; (sleep 1000; echo $$) & sleep 1000' & sleep 1000 & echo running; wait`)
	c.start()
	eventually(t, "it runs", func() bool { out, _ := os.ReadFile(c.launch.Stdout); return strings.Contains(string(out), "running") })
	st, err := c.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := readProcess(st.Supervisor); !ok || p.parent != os.Getpid() {
		t.Errorf("supervisor %d is no child of ours: %+v", st.Supervisor, p)
	}
	if err := c.client.Stop(t.Context(), StopRequest{Status: -105, Grace: 0}); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != -105 {
		t.Errorf("%+v", e)
	}
	if left := marked(Mark(c.launch.Dir)); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestAKilledSupervisorTakesItsContainerAlong(t *testing.T) {
	c := privately(t, "sh", "-c", `env -i setsid sh -c 'trap "" TERM; echo running; sleep 1000' & wait`)
	c.start()
	eventually(t, "it runs", func() bool { out, _ := os.ReadFile(c.launch.Stdout); return strings.Contains(string(out), "running") })
	st, err := c.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tree := descendants(st.Supervisor)
	if len(tree) < 2 {
		t.Errorf("its tree is %v", tree)
	}
	if err := unix.Kill(st.Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, p := range tree {
		eventually(t, fmt.Sprintf("process %d is gone", p.pid), func() bool {
			now, ok := readProcess(p.pid)
			return !ok || now.start != p.start || now.zombie
		})
	}
}

// What a user tries from a container, and what comes of it.
func TestWhatAUsersContainerCannotDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts containers of other users")
	}
	servers := t.TempDir() // readable, so that it is hidden and not only forbidden
	if err := os.WriteFile(filepath.Join(servers, "secret"), []byte("SECRET\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	device := "/dev/hops-test-" + strconv.Itoa(os.Getpid())
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Skip(err)
	}
	defer os.Remove(device)
	if err := os.Chmod(device, 0o666); err != nil {
		t.Fatal(err)
	}
	// Another container of the same user is there all the time.
	other := privately(t, "sh", "-c", `echo OTHERS > ../tmp/mine; echo OTHERS > /dev/shm/mine; echo running; sleep 1000`)
	other.launch.Env = append(other.launch.Env, "TOKEN=OTHERS")
	if err := os.WriteFile(filepath.Join(other.dir, "token"), []byte("OTHERS\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(other.dir, "token"), int(ann.UID), int(ann.GID)); err != nil {
		t.Fatal(err)
	}
	main := other.start().Main
	eventually(t, "the other one runs", func() bool { out, _ := os.ReadFile(other.launch.Stdout); return len(out) > 0 })
	st, err := other.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	victim := descendants(st.Supervisor)[0].pid
	if main == victim {
		t.Errorf("the container knows its own processes by the ids of the machine: %d", main)
	}
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ann.UID, Gid: ann.GID}}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleeper.Process.Kill(); sleeper.Wait() }()
	setuid := filepath.Join(t.TempDir(), "id")
	program, err := os.ReadFile(lookOrSkip(t, "id"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setuid, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ tries, script, want string }{
		{"reads the servers' data", "cat " + servers + "/secret 2>/dev/null || echo no", "no\n"},
		{"reads another container's token", "cat " + other.dir + "/token 2>/dev/null || echo no", "no\n"},
		{"reads another container's log", "cat " + other.dir + "/logs/stdout 2>/dev/null || echo no", "no\n"},
		{"reads another container's /tmp", "cat /tmp/mine " + other.dir + "/tmp/mine 2>/dev/null || echo no", "no\n"},
		{"reads another container's /dev/shm", "cat /dev/shm/mine 2>/dev/null || echo no", "no\n"},
		{"writes into another container", "touch " + other.dir + "/work/x 2>/dev/null || echo no", "no\n"},
		{"reads the environment of another container", fmt.Sprintf("cat /proc/%d/environ 2>/dev/null || echo no", victim), "no\n"},
		{"goes through the root of another container", fmt.Sprintf("ls /proc/%d/root/ 2>/dev/null || echo no", victim), "no\n"},
		{"signals another container", fmt.Sprintf("kill -9 %d 2>/dev/null || echo no", victim), "no\n"},
		{"signals its user's processes outside", fmt.Sprintf("kill -9 %d 2>/dev/null || echo no", sleeper.Process.Pid), "no\n"},
		{"signals everybody", "sleep 1000 & $SELF kill-all", ""},
		{"signals its supervisor", "kill -9 1 2>/dev/null || echo no", "no\n"},
		{"looks at its supervisor", "cat /proc/1/environ /proc/1/cmdline 2>/dev/null || echo no", "no\n"},
		{"counts processes of the machine", "ls -d /proc/[0-9]* | wc -l", ""},
		{"reads its own launch", "cat ../launch.json 2>/dev/null || echo no", "no\n"},
		{"speaks to its supervisor's socket", "test -w ../sock && echo writable || echo no", "no\n"},
		{"plants a link in place of its exit", "ln -sf /etc/passwd ../exit.json 2>/dev/null || echo no", "no\n"},
		{"replaces its log directory", "mv ../logs ../logs2 2>/dev/null || echo no", "no\n"},
		{"uses a device that it was not granted", "head -c 1 " + device + " 2>/dev/null || echo no", "no\n"},
		{"makes a device", "mknod mine c 1 5 2>/dev/null && head -c 1 mine || echo no", "no\n"},
		{"makes a name in /dev", "touch /dev/x 2>/dev/null || echo no", "no\n"},
		{"becomes root by a set-user-id program", setuid + " -u", "54321\n"},
		{"mounts", "$SELF call mount", "operation not permitted\n"},
		{"makes a user namespace", "$SELF call unshare", "operation not permitted\n"},
		{"clones into a user namespace", "$SELF call clone", "operation not permitted\n"},
		{"clones in a way that cannot be checked", "$SELF call clone3", "function not implemented\n"},
		{"loads a program into the kernel", "$SELF call bpf", "operation not permitted\n"},
		{"loads a module", "$SELF call module", "operation not permitted\n"},
		{"loads another kernel", "$SELF call kexec", "operation not permitted\n"},
		{"uses keys of the kernel", "$SELF call keyctl", "operation not permitted\n"},
		{"handles its own page faults", "$SELF call userfaultfd", "operation not permitted\n"},
		{"uses io_uring", "$SELF call io_uring", "operation not permitted\n"},
		{"speaks to the hypervisor", "$SELF call vsock", "operation not permitted\n"},
		{"makes a call that nobody has looked at", "$SELF call 4000", "function not implemented\n"},
		{"traces another container", fmt.Sprintf("$SELF call ptrace %d", victim), "no such process\n"},
		{"traces its own child", "sleep 1000 & $SELF call ptrace $!; kill -9 $!", "success\n"},
		{"reads memory of its own child", "sleep 1000 & sleep 0.1; cat /proc/$!/environ >/dev/null && echo success; kill -9 $!", "success\n"},
	} {
		t.Run(strings.ReplaceAll(test.tries, " ", "_"), func(t *testing.T) {
			c := privately(t, "sh", "-c", test.script)
			c.launch.Isolation.Hide = append(c.launch.Isolation.Hide, servers)
			c.launch.Isolation.Show = append(c.launch.Isolation.Show, setuid)
			got := c.says()
			if test.tries == "counts processes of the machine" {
				if n, _ := strconv.Atoi(strings.TrimSpace(got)); n < 1 || n > 4 {
					t.Errorf("it sees %d processes", n)
				}
				return
			}
			if got != test.want {
				t.Errorf("%s: %q, want %q", test.script, got, test.want)
			}
		})
	}
	if got := outside(st.Supervisor, []int{main, 4000}); len(got) != 1 || got[0] != victim {
		t.Errorf("process %d of the container is %v, want %d", main, got, victim)
	}
	if _, ok := readProcess(victim); !ok {
		t.Error("the other container's process is gone")
	}
	if p, ok := readProcess(sleeper.Process.Pid); !ok || p.zombie {
		t.Error("the process outside is gone")
	}
}

func lookOrSkip(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(err)
	}
	return path
}
