package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// open is what processes of a group say of devices: cat of each path.
func open(t *testing.T, g Group, paths ...string) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	script := `for f; do if head -c 0 "$f" 2>/dev/null; then echo "$f open"; else echo "$f refused"; fi; done; mknod made c 1 3 2>/dev/null && echo made`
	attr := &syscall.ProcAttr{Dir: t.TempDir(), Env: os.Environ(), Files: []uintptr{r.Fd(), w.Fd(), w.Fd()}, Sys: &syscall.SysProcAttr{}}
	pid, err := g.Fork(attr.Sys, func() (int, error) {
		return syscall.ForkExec(shell, append([]string{"sh", "-c", script, "sh"}, paths...), attr)
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
	n, _ := r.Read(out)
	return string(out[:n])
}

// Both versions let a group open the devices that it was granted, and nothing else, not even as root.
func TestAGroupOpensItsDevicesOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may limit devices")
	}
	dir := t.TempDir()
	granted, other := filepath.Join(dir, "granted"), filepath.Join(dir, "other")
	for path, minor := range map[string]uint32{granted: 5, other: 7} { // zero and full, under other names
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			t.Skip(err)
		}
	}
	device, err := DeviceOf(granted)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open(other); err != nil {
		t.Skipf("devices cannot be opened in %s: %v", dir, err)
	} else {
		f.Close()
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer mounts.Close()
	v1, v2, err := mountPoints(mounts)
	if err != nil {
		t.Fatal(err)
	}
	run := strconv.Itoa(os.Getpid()) // another run of these tests may be on this machine
	groups := map[string]Group{}
	if at := v1["devices"]; at != "" {
		groups["version 1"] = Group{Version: 1, Dirs: map[string]string{"devices": filepath.Join(at, "hops", "test-devices", run)}}
	}
	if v2 != "" {
		groups["version 2"] = Group{Version: 2, Dirs: map[string]string{"unified": filepath.Join(v2, "hops-test-devices-"+strings.ReplaceAll(t.Name(), "/", "-")+"-"+run)}}
	}
	for name, g := range groups {
		t.Run(name, func(t *testing.T) {
			if _, err := g.Make(Limits{Devices: []Device{device, {Major: 1, Minor: 3}}}); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := g.Remove(); err != nil {
					t.Error(err)
				}
			}()
			if got, want := open(t, g, granted, other, "/dev/null"), granted+" open\n"+other+" refused\n/dev/null open\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
