package nodemanager

import (
	"fmt"
	"strings"
)

// ExitStatus says how a container ended. 0..125 and 128+signal are the program's own, as a shell shows them; negative ones
// are the platform's, with YARN's names (org.apache.hadoop.yarn.api.records.ContainerExitStatus).
type ExitStatus int

// The exit statuses that are not the program's.
const (
	Success ExitStatus = 0
	// NotExecutable and NotFound: the command could not be started, as a shell reports it.
	NotExecutable ExitStatus = 126
	NotFound      ExitStatus = 127
	// Killed and Terminated: ended by SIGKILL or SIGTERM.
	Killed     ExitStatus = 137
	Terminated ExitStatus = 143
	// Invalid: not known (still running), or the container failed before its command started (YARN uses the same).
	Invalid ExitStatus = -1000
	// NoFilesystem: its inputs could not be had because the cluster's filesystem did not answer; nobody's fault in the application.
	NoFilesystem ExitStatus = -1001
	// Aborted: released by its application, or lost with its node or lease.
	Aborted ExitStatus = -100
	// DisksFailed: the node's work directory became unusable.
	DisksFailed ExitStatus = -101
	// Preempted by the scheduler.
	Preempted ExitStatus = -102
	// KilledExceededVMem is never set here: virtual memory is not limited.
	KilledExceededVMem ExitStatus = -103
	// KilledExceededPMem: used more memory than granted.
	KilledExceededPMem ExitStatus = -104
	// KilledByAppMaster, KilledByResourceManager, KilledAfterAppCompletion: stopped by order.
	KilledByAppMaster        ExitStatus = -105
	KilledByResourceManager  ExitStatus = -106
	KilledAfterAppCompletion ExitStatus = -107
	// KilledForExcessLogs: wrote more log than the node allows.
	KilledForExcessLogs ExitStatus = -109
)

// OfSignal is the status of a program that a signal ended.
func OfSignal(signal int) ExitStatus { return ExitStatus(128 + signal) }

// MaxDiagnostics bounds the text that says how a container ended, in bytes: it stands in every report of its node.
const MaxDiagnostics = 8 << 10

// Shorten cuts a text to n bytes, between characters, and marks the cut.
func Shorten(text string, n int) string {
	const mark = "…"
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, n-len(mark))], "") + mark
}

// ByteSize formats bytes as YARN's diagnostics do (StringUtils.TraditionalBinaryPrefix with one decimal): 512 B, 1 GB,
// 1.1 GB.
func ByteSize(n int64) string {
	const letters = "KMGTPE"
	abs := n
	if abs < 0 {
		abs = -abs
	}
	if abs < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	i := -1
	unit := int64(1)
	for abs/unit >= 1024 && i < len(letters)-1 {
		unit *= 1024
		i++
	}
	if n%unit == 0 {
		return fmt.Sprintf("%d %cB", n/unit, letters[i])
	}
	return fmt.Sprintf("%.1f %cB", float64(n)/float64(unit), letters[i])
}
