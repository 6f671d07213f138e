package supervisor

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_AARCH64
	cloneFlags = 0 // which argument of clone has the flags
)

// deniedHere are calls that only this architecture has.
var deniedHere = []uint32{unix.SYS_KEXEC_FILE_LOAD}
