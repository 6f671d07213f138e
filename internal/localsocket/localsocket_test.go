package localsocket

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// child has this program be another process: what it does there.
const child = "HOPS_TEST_LOCALSOCKET"

func TestMain(m *testing.M) {
	switch os.Getenv(child) {
	case "":
		os.Exit(m.Run())
	case "receive":
		os.Exit(receiveAndPrint(os.Args[1]))
	case "stranger":
		l, err := net.Listen("unix", os.Args[1])
		if err != nil {
			fmt.Println(err)
		}
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			err = os.Chmod(os.Args[1], 0o666)
		}
		if err != nil {
			fmt.Println(err)
		}
		fmt.Println(tcp.Addr())
		io.Copy(io.Discard, os.Stdin)
		runtime.KeepAlive(l) // the collector closes what nobody has any more
		runtime.KeepAlive(tcp)
		os.Exit(0)
	case "listen":
		l, err := Listen(os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("listening")
		io.Copy(io.Discard, os.Stdin)
		runtime.KeepAlive(l)
		os.Exit(0) // its socket stays behind
	}
}

// receiveAndPrint prints the bytes and the contents of the files that come from a path.
func receiveAndPrint(path string) int {
	c, err := Dial(context.Background(), path, netip.AddrPort{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r := Receiver{Conn: c}
	b := make([]byte, 16)
	n, err := r.Read(b)
	fmt.Printf("%q %v", b[:n], err)
	for _, f := range r.Files() {
		text, err := io.ReadAll(f)
		_, written := f.WriteAt([]byte("x"), 0)
		fmt.Printf(" %q %v %v", text, err, written != nil)
	}
	return 0
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func self(t *testing.T, what, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	cmd := exec.Command(exe, path)
	cmd.Env = append(os.Environ(), child+"="+what)
	return cmd
}

func TestFilesGoToAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dn")
	l, err := Listen(path)
	check(t, err)
	defer l.Close()
	m, err := Seal("sums", []byte("cyc"), []byte("lic"))
	check(t, err)
	defer m.Close()
	name := filepath.Join(t.TempDir(), "data")
	check(t, os.WriteFile(name, []byte("block"), 0o600))
	cmd := self(t, "receive", path)
	var out bytes.Buffer
	cmd.Stdout = &out
	check(t, cmd.Start())
	conn, err := l.Accept()
	check(t, err)
	data, err := os.Open(name)
	check(t, err)
	sums, err := m.Reopen()
	check(t, err)
	check(t, SendFiles(conn.(*net.UnixConn), []byte{7}, data, sums))
	data.Close()
	sums.Close()
	check(t, cmd.Wait())
	conn.Close()
	if want := `"\a" <nil> "block" <nil> true "cyclic" <nil> true`; out.String() != want {
		t.Fatalf("the other process says %s, want %s", out.String(), want)
	}
}

// A memory is held while somebody has it, however it was got, and not after.
func TestMemoryKnowsWhoHoldsIt(t *testing.T) {
	m, err := Seal("m", []byte("four"))
	check(t, err)
	defer m.Close()
	if m.Held() {
		t.Fatal("held by nobody")
	}
	f, err := m.Reopen()
	check(t, err)
	if !m.Held() {
		t.Fatal("a descriptor does not count")
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ, unix.MAP_SHARED)
	check(t, err)
	f.Close()
	if !m.Held() {
		t.Fatal("a mapping does not count")
	}
	check(t, unix.Munmap(b))
	if m.Held() {
		t.Fatal("held by nobody any more")
	}
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", m.file.Fd()), os.O_RDWR, 0)
	check(t, err)
	defer w.Close()
	if _, err := w.WriteAt([]byte("x"), 0); err == nil {
		t.Error("who opens it for writing can write")
	}
	if err := w.Truncate(0); err == nil {
		t.Error("it can be cut")
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "dn.9866")
	l, err := Listen(path)
	check(t, err)
	info, err := os.Stat(path)
	check(t, err)
	if info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v", info.Mode())
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "in use by another datanode") {
		t.Errorf("a second one: %v", err)
	}
	check(t, l.Close())
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	l, err = Listen(path)
	check(t, err)
	check(t, l.Close())
	// A server that takes no lock.
	plain, err := net.Listen("unix", path)
	check(t, err)
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "in use by another datanode") {
		t.Errorf("beside another server: %v", err)
	}
	plain.Close()
	// One whose queue is full.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)))
	for err = nil; err == nil; {
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			defer c.Close()
		}
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "in use by another datanode") {
		t.Errorf("beside another server with a full queue: %v", err)
	}
	check(t, errors.Join(unix.Close(fd), os.Remove(path)))
	check(t, os.WriteFile(path, nil, 0o600))
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file is in the way: %v", err)
	}
}

// Of a process that was killed the socket is left. The next one takes its place.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dn")
	cmd := self(t, "listen", path)
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	b := make([]byte, len("listening"))
	_, err = io.ReadFull(out, b)
	check(t, err)
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "in use by another datanode") {
		t.Errorf("while it lives: %v", err)
	}
	check(t, cmd.Process.Kill())
	_ = cmd.Wait()
	in.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal("nothing is left behind: ", err)
	}
	l, err := Listen(path)
	check(t, err)
	l.Close()
}

func TestPlaces(t *testing.T) {
	root := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		dir := filepath.Join(root, name)
		check(t, os.MkdirAll(dir, 0o755))
		check(t, os.Chmod(dir, mode))
		return dir
	}
	link := filepath.Join(root, "link")
	check(t, os.Symlink(mk("open", 0o777), link))
	foreign := mk("foreign", 0o755)
	group := mk("group", 0o775)
	for dir, want := range map[string]string{
		mk("fine", 0o755):                    "",
		mk("private", 0o700):                 "",
		mk("sticky/own", 0o755):              "",
		filepath.Join(root, "open"):          "can be written by everybody",
		mk("open/below", 0o755):              "can be written by everybody",
		link:                                 "can be written by everybody",
		mk("temporary", 0o777|os.ModeSticky): "can be written by everybody",
		filepath.Join(root, "nowhere"):       "no such file",
	} {
		check(t, os.Chmod(filepath.Dir(dir), stickyFor(dir)))
		err := CheckPlace(dir)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	if os.Geteuid() == 0 {
		check(t, os.Chown(foreign, 12345, -1))
		check(t, os.Chown(group, -1, 12345))
		for dir, want := range map[string]string{foreign: "belongs to user 12345", group: "can be written by group 12345"} {
			if err := CheckPlace(dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", dir, err)
			}
		}
	}
}

// stickyFor is the mode of a directory's parent.
func stickyFor(dir string) os.FileMode {
	switch filepath.Base(filepath.Dir(dir)) {
	case "sticky":
		return 0o777 | os.ModeSticky
	case "open":
		return 0o777
	}
	return 0o755
}

func TestForms(t *testing.T) {
	for path, ok := range map[string]bool{
		"/run/hops/dn._PORT": true, "/run/dn": true, "run/dn": false, "": false, "/": false, "/run/../dn": false, "/run/hops/": false,
		"/" + strings.Repeat("x", 106): true, "/" + strings.Repeat("x", 107): false, "/" + strings.Repeat("x", 100) + "_PORT": true, "/" + strings.Repeat("x", 102) + "_PORT": false,
		"/run/\x00": false,
	} {
		if err := CheckForm(path); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
	if got := Path("/a/dn._PORT", "10.0.0.1:9866"); got != "/a/dn.9866" {
		t.Error(got)
	}
}

// Of a stranger who has put a socket where the datanode's should be nobody takes anything; of who has the TCP address, too,
// everything.
func TestStrangerAtThePath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes sockets of others")
	}
	dir := t.TempDir()
	check(t, os.Chmod(filepath.Dir(dir), 0o755))
	check(t, os.Chmod(dir, 0o777))
	exe, err := os.Executable()
	check(t, err)
	program, err := os.ReadFile(exe)
	check(t, err)
	copied := filepath.Join(dir, "program")
	check(t, os.WriteFile(copied, program, 0o755))
	path := filepath.Join(dir, "s")
	cmd := exec.Command(copied, path)
	cmd.Env = append(os.Environ(), child+"=stranger")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	check(t, err)
	his := netip.MustParseAddrPort(strings.TrimSpace(line))
	c, err := Dial(context.Background(), path, his)
	check(t, err)
	c.Close()
	ours, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	at := ours.Addr().(*net.TCPAddr).AddrPort()
	if c, err := Dial(context.Background(), path, at); !errors.Is(err, ErrStranger) {
		t.Errorf("beside the address of another user: %v, %v", c, err)
	}
	ours.Close()
	if c, err := Dial(context.Background(), path, at); err == nil || !strings.Contains(err.Error(), "nobody can be found") {
		t.Errorf("beside an address where nobody listens: %v, %v", c, err)
	}
}

func TestOwnAddresses(t *testing.T) {
	var a Addresses
	for ip, own := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "192.0.2.77": false, "::ffff:127.0.0.1": true} {
		if a.Own(netip.MustParseAddr(ip)) != own {
			t.Errorf("%s: own is not %v", ip, own)
		}
	}
}
