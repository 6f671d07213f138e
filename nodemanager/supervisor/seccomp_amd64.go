package supervisor

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_X86_64
	cloneFlags = 0 // which argument of clone has the flags
)

// deniedHere are calls that only this architecture has.
var deniedHere = []uint32{
	unix.SYS_KEXEC_FILE_LOAD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE,
	unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL,
}
