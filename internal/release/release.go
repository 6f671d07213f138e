// Package release says which versions of the program work together. A level counts the changes of what servers write for each other and for
// later: logs, snapshots, files, messages. A program writes nothing of a level to which the cluster has not been raised (`hops cluster finalize`),
// so that until then the version before can take over again.
package release

import (
	"errors"
	"fmt"
)

const (
	// Level is the newest one that this program knows: what it writes at most. A change of a format or of a message between servers that the
	// program before would misread, or refuse, takes the next number, and happens only where the cluster has been raised to it.
	Level = 6
	// Oldest is the oldest level of a cluster that this program works in.
	Oldest = 1
)

// What came with a level, and is written only where the cluster has been raised to it. Level 1 is the first.
const (
	// NodePrograms: the resource managers' log and snapshots say of which level the program of each node is.
	NodePrograms = 2
	// Requests: resources by name, applications with masters of their own, containers that are granted before it is known what runs in
	// them, and launches in YARN's dialect.
	Requests = 2
	// Snapshots of directories: commands of the namenodes' log, and records of their state.
	Snapshots = 3
	// Resolved: commands of the namenodes' log name the directory that a path leads to, and the version of the tree.
	Resolved = 4
	// ErasureCoding: directories and files with a policy, and block groups, in the namenodes' log and state.
	ErasureCoding = 5
	// SmallFiles: contents of files in the namenodes' log and state.
	SmallFiles = 6
	// SealedTails: the end of a file with a policy is a replicated block until a command puts a group in its place.
	SealedTails = 6
	// TypeQuotas: quotas of the bytes on volumes of a type.
	TypeQuotas = 6
	// Tiers: files obey a storage policy that was given to a directory above later.
	Tiers = 6
	// Caching: pools and directives of what datanodes keep in memory.
	Caching = 6
	// JoinKeys: the register has the key with which a machine joined.
	JoinKeys = 6
	// ResolvedConcat: concat names the directories that its paths lead to, too.
	ResolvedConcat = 6
	// LazyPersist: files are made with the storage policy LAZY_PERSIST.
	LazyPersist = 6
	// Publish: several renames, deletions, changes of attributes and a snapshot in one command.
	Publish = 6
	// RetoldNotices: the registration of a master has what is to go told to it again.
	RetoldNotices = 6
	// RememberedSuccess: the resource managers' state says which instances have succeeded whose containers it has forgotten.
	RememberedSuccess = 6
	// Forgetting: what the resource managers' state forgets first of what has ended, and to whose applications nothing is granted.
	Forgetting = 6
	// Sheets: checkpoints and copies of the namenodes' state have the ways to several inodes in a record, and directories in a class of their own.
	Sheets = 6
	// ExactAppends: a file remembers whether the append that opened it has handed out a block.
	ExactAppends = 6
)

// Program is what a version of the program says of itself.
type Program struct{ Level, Oldest int }

// This is the program that runs.
var This = Program{Level, Oldest}

// Errors that callers tell apart.
var (
	// ErrOlder: a program is too old for what it meets.
	ErrOlder = errors.New("an older version of hops cannot take part any more")
	// ErrNewer: a program is too new for what it meets.
	ErrNewer = errors.New("a newer version of hops cannot take part yet")
)

// In says whether a program can take part in a cluster that has been raised to a level; 0: it is not known to which. Errors: ErrOlder, ErrNewer.
func (p Program) In(level int) error {
	switch {
	case level == 0:
		return nil
	case p.Level < level:
		return fmt.Errorf("%w: it knows levels up to %d, the cluster has been raised to %d: install the version that the others run (`hops cluster nodes` shows it)",
			ErrOlder, p.Level, level)
	case p.Oldest > level:
		return fmt.Errorf("%w: it works with levels from %d on, the cluster is at %d: install a version in between on all machines, and raise the cluster (`hops cluster finalize`), first",
			ErrNewer, p.Oldest, level)
	}
	return nil
}

// Beside says whether a program can work beside this one. Errors: ErrOlder, ErrNewer, about p.
func (p Program) Beside(this Program) error {
	switch {
	case p.Level < this.Oldest:
		return fmt.Errorf("%w: it knows levels up to %d, a server runs a version that works with levels from %d on: install a version in between first", ErrOlder, p.Level, this.Oldest)
	case p.Oldest > this.Level:
		return fmt.Errorf("%w: it works with levels from %d on, a server knows levels up to %d: install a version in between first", ErrNewer, p.Oldest, this.Level)
	}
	return nil
}

// Reads says whether this program can read what was written at a level; 0 stands for 1. Errors: ErrOlder, ErrNewer, with what it is in front.
func Reads(what string, level int) error { return This.reads(what, level) }

func (p Program) reads(what string, level int) error {
	switch level = max(level, 1); {
	case level > p.Level:
		return fmt.Errorf("%s was written at level %d, this program knows levels up to %d (%w): install the version that wrote it, or a later one; nothing was changed", what, level, p.Level, ErrOlder)
	case level < p.Oldest:
		return fmt.Errorf("%s was written at level %d, this program works with levels from %d on (%w): install a version in between, and raise the cluster (`hops cluster finalize`), first; nothing was changed",
			what, level, p.Oldest, ErrNewer)
	}
	return nil
}
