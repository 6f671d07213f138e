package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes one system call and prints what came of it: what containers of tests run.
func call(args []string) {
	var errno unix.Errno
	raw := func(nr, a, b, c uintptr) { _, _, errno = unix.RawSyscall(nr, a, b, c) }
	switch args[0] {
	case "mount":
		raw(unix.SYS_MOUNT, 0, 0, 0)
	case "unshare":
		raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0)
	case "clone":
		raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0)
	case "clone3":
		raw(unix.SYS_CLONE3, 0, 0, 0)
	case "bpf":
		raw(unix.SYS_BPF, 0, 0, 0)
	case "module":
		raw(unix.SYS_FINIT_MODULE, 0, 0, 0)
	case "kexec":
		raw(unix.SYS_KEXEC_LOAD, 0, 0, 0)
	case "keyctl":
		raw(unix.SYS_KEYCTL, 0, 0, 0)
	case "userfaultfd":
		raw(unix.SYS_USERFAULTFD, 0, 0, 0)
	case "io_uring":
		raw(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	case "vsock":
		raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	case "ptrace":
		pid, _ := strconv.Atoi(args[1])
		raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0)
	default:
		nr, _ := strconv.Atoi(args[0])
		raw(uintptr(nr), uintptr(unsafe.Pointer(nil)), 0, 0)
	}
	if errno == 0 {
		fmt.Println("success")
		return
	}
	fmt.Println(errno.Error())
}

// killAllMain sends SIGKILL to every process that it may signal.
func killAllMain() {
	_ = unix.Kill(-1, unix.SIGKILL)
	time.Sleep(time.Millisecond)
	os.Exit(0)
}
