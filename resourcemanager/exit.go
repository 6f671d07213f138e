package resourcemanager

import "fmt"

// ExitStatus is how a container ended: 0 to 255 is its program's, 137 and 143 mean SIGKILL and SIGTERM, negative ones
// say what the cluster did, under YARN's numbers (ContainerExitStatus).
type ExitStatus int

// The statuses that the cluster gives.
const (
	ExitSuccess ExitStatus = 0
	// ExitAborted: released by its application, or its node is lost.
	ExitAborted     ExitStatus = -100
	ExitDisksFailed ExitStatus = -101
	ExitPreempted   ExitStatus = -102
	// ExitVirtualMemory and ExitMemory: more memory than granted.
	ExitVirtualMemory ExitStatus = -103
	ExitMemory        ExitStatus = -104
	// ExitKilledByMaster: the application asked for it.
	ExitKilledByMaster          ExitStatus = -105
	ExitKilledByResourceManager ExitStatus = -106
	// ExitApplicationDone: the application has ended.
	ExitApplicationDone ExitStatus = -107
	ExitExcessLogs      ExitStatus = -109
	// ExitUnknown: not ended yet, nobody knows, or it failed before its program started.
	ExitUnknown ExitStatus = -1000
	// ExitNoFilesystem: it could not start, because the filesystem with its artifacts did not answer. Ours; YARN has no number
	// for it.
	ExitNoFilesystem ExitStatus = -1001
)

// String says the status in words.
func (s ExitStatus) String() string {
	switch s {
	case ExitAborted:
		return "released or lost (-100)"
	case ExitDisksFailed:
		return "disks failed (-101)"
	case ExitPreempted:
		return "preempted (-102)"
	case ExitVirtualMemory, ExitMemory:
		return fmt.Sprintf("exceeded its memory (%d)", int(s))
	case ExitKilledByMaster:
		return "killed by its application (-105)"
	case ExitKilledByResourceManager:
		return "killed by the resource manager (-106)"
	case ExitApplicationDone:
		return "killed after its application ended (-107)"
	case ExitExcessLogs:
		return "wrote too much log (-109)"
	case ExitUnknown:
		return "not started (-1000)"
	case ExitNoFilesystem:
		return "the filesystem did not answer (-1001)"
	case 137:
		return "SIGKILL (137)"
	case 143:
		return "SIGTERM (143)"
	}
	return fmt.Sprintf("exit status %d", int(s))
}

// ClusterFault reports whether the program is not to blame, so that a retry costs none of its tries.
func (s ExitStatus) ClusterFault() bool {
	return s == ExitAborted || s == ExitPreempted || s == ExitDisksFailed || s == ExitNoFilesystem
}
