package supervisor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that a container's processes are refused with EPERM: those that the default profile of Docker
// (moby, profiles/seccomp/default.json) leaves to privileged containers, because they change the machine, reach into the
// kernel, or have opened ways out of containers. ptrace, process_vm_readv, pidfd_getfd, and the calls for memory policies
// are not among them: debuggers, profilers and frameworks use them on their own processes, and the kernel checks the owner.
var denied = append([]uint32{
	// File systems and namespaces.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE,
	// The kernel.
	unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_REBOOT, unix.SYS_SYSLOG,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_ACCT, unix.SYS_NFSSERVCTL,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	// Keys, which belong to no namespace.
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	// Clocks, names, terminals.
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP,
}, deniedHere...)

const (
	// namespaces are the flags of clone that make one (CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET).
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	// newest is the highest number of a system call that was looked at (Linux 6.15, open_tree_attr): later ones do not exist for containers.
	newest = 467
)

// profile is the filter (seccomp(2)): what is in denied fails with EPERM; clone3, whose flags a filter cannot read, with
// ENOSYS, upon which libraries take clone; and so do calls of other architectures and those that are newer than this list.
func profile() []unix.SockFilter {
	const (
		// Offsets in struct seccomp_data; arguments are looked at in their lower half.
		number, arch, argument0 = 0, 4, 16
		load                    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal                   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		greater                 = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		bits                    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		answer                  = unix.BPF_RET | unix.BPF_K
		allow                   = unix.SECCOMP_RET_ALLOW
		eperm                   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys                  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	var code []unix.SockFilter
	add := func(op uint16, k uint32, yes, no uint8) {
		code = append(code, unix.SockFilter{Code: op, Jt: yes, Jf: no, K: k})
	}
	// when adds: if the number is that, the rest, which answers.
	when := func(nr uint32, rest ...unix.SockFilter) {
		add(equal, nr, 0, uint8(len(rest)))
		code = append(code, rest...)
	}
	step := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: op, Jt: yes, Jf: no, K: k}
	}
	add(load, arch, 0, 0)
	add(equal, auditArch, 1, 0)
	add(answer, enosys, 0, 0)
	add(load, number, 0, 0)
	add(greater, newest, 0, 1) // the calls of x32 too
	add(answer, enosys, 0, 0)
	when(unix.SYS_CLONE3, step(answer, enosys, 0, 0))
	when(unix.SYS_CLONE, step(load, argument0+8*cloneFlags, 0, 0), step(bits, namespaces, 0, 1), step(answer, eperm, 0, 0), step(answer, allow, 0, 0))
	// Sockets of these families lead past the network: to the hypervisor, and into the kernel's cryptography.
	when(unix.SYS_SOCKET, step(load, argument0, 0, 0), step(equal, unix.AF_VSOCK, 1, 0), step(equal, unix.AF_ALG, 0, 1), step(answer, eperm, 0, 0), step(answer, allow, 0, 0))
	for _, nr := range denied {
		when(nr, step(answer, eperm, 0, 0))
	}
	add(answer, allow, 0, 0)
	return code
}

// confineThread lays the filter on the calling thread, which must have no_new_privs, and on what it starts.
func confineThread() error {
	code := profile()
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("filter of system calls: %w", errno)
	}
	return nil
}
