// Package metadata names the things of the file system: inodes, blocks, leases, callers and the errors that
// operations on them end in. It has no behaviour beyond the words themselves; the state machine over them is
// metadata/namespace and its replication metadata/raftstore.
package metadata

import (
	"fmt"
	"io/fs"
	"time"
)

// INodeID identifies a file or directory for its life; renames keep it, overwriting makes a new one.
type INodeID uint64

// RootID is the inode of "/", as in HDFS.
const RootID INodeID = 16385

// BlockID identifies a block in all its replicas and generations.
type BlockID int64

// FirstBlockID is the first block id of a new namespace, as in HDFS.
const FirstBlockID BlockID = 1<<30 + 1

// Generation is HDFS's generation stamp: replicas of an older generation than the namespace's are stale.
type Generation uint64

// FirstGeneration is the first generation stamp of a new namespace, as in HDFS.
const FirstGeneration Generation = 1001

// Block is one block in one generation. Length is in bytes.
type Block struct {
	ID         BlockID
	Generation Generation
	Length     int64
}

func (b Block) String() string {
	return fmt.Sprintf("blk_%d_%d(%d)", b.ID, b.Generation, b.Length)
}

// MaxBody is how many bytes a small file has at most: one that the namenodes have the bytes of.
const MaxBody = 64 << 10

// Time is milliseconds since 1970, the resolution of every time in HDFS.
type Time int64

// TimeOf converts a wall-clock time.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Time converts to a wall-clock time.
func (t Time) Time() time.Time { return time.UnixMilli(int64(t)) }

// Mode is the permission bits with the sticky bit, 01777 at most.
type Mode uint16

// Sticky is the sticky bit: in such a directory only the owner of an entry, of the directory, or the superuser may
// remove or rename the entry.
const Sticky Mode = 0o1000

// String is ls's nine letters with t or T for the sticky bit, without the type letter.
func (m Mode) String() string {
	const letters = "rwxrwxrwx"
	var b [9]byte
	for i := range b {
		if m&(1<<(8-i)) != 0 {
			b[i] = letters[i]
		} else {
			b[i] = '-'
		}
	}
	if m&Sticky != 0 {
		if m&1 != 0 {
			b[8] = 't'
		} else {
			b[8] = 'T'
		}
	}
	return string(b[:])
}

// Access is a set of rights asked for: any of Read, Write, Execute.
type Access uint8

// The rights of Access, with the bit values of a mode's digit.
const (
	Execute Access = 1 << iota
	Write
	Read
)

// String is the name that HDFS prints in "Permission denied": READ_EXECUTE, WRITE, ALL, ...
func (a Access) String() string {
	return [...]string{"NONE", "EXECUTE", "WRITE", "WRITE_EXECUTE", "READ", "READ_EXECUTE", "READ_WRITE", "ALL"}[a&7]
}

// Caller is who acts, authenticated at the door: internal/security makes it, everything else receives it.
type Caller struct {
	// User is the effective user.
	User string
	// Groups are the server-side groups of User, the first one primary.
	Groups []string
	// RealUser is who authenticated, when that is a proxy acting for User; empty otherwise.
	RealUser string
	// Superuser is the user of the daemon or a member of the supergroup.
	Superuser bool
	// Host is the address the request came from, without port.
	Host string
	// Local: what this member has is new enough for what the caller has seen, and is answered although another one leads.
	Local bool
	// Waits, if not nil, is told what the request has waited for.
	Waits *Waits
	// Changed, if not nil, is told what the request has changed, before it is answered.
	Changed *Changed
}

// Changed is whose the file or directory is that a request has made or changed, and its mode, right after that, for the audit log. Without an Owner there is none.
type Changed struct {
	Owner, Group string
	Mode         Mode
}

// Waits is what a request has waited for, for the log of slow ones. Its writers do not run at the same time.
type Waits struct {
	// Queue is for a place in an entry of the log, Disk until this member had the entry on disk, Others until a majority had it and it was
	// its turn to be applied, Apply until it was.
	Queue, Disk, Others, Apply time.Duration
}

// Type is the kind of an inode.
type Type uint8

// The kinds of an inode.
const (
	TypeFile Type = iota + 1
	TypeDirectory
)

// FileStatus describes one inode. For an entry of a listing Name is its local name, otherwise Name is empty.
type FileStatus struct {
	ID          INodeID
	Type        Type
	Name        string
	Length      int64
	Mode        Mode
	Owner       string
	Group       string
	MTime       Time
	ATime       Time
	Replication uint16
	BlockSize   int64
	// Children counts a directory's entries.
	Children int
	// UnderConstruction: a writer has the file open.
	UnderConstruction bool
	// ACL: there are access control entries beside the mode.
	ACL bool
	// Snapshottable: snapshots may be taken of the directory.
	Snapshottable bool
	// StoragePolicy is HDFS's number of the storage policy, its own or that of a directory above. 0: none was set.
	StoragePolicy uint8
	// Erasure is the erasure coding policy of a file, or of the files that are made in a directory, its own or that of a directory above. 0: they
	// are replicated.
	Erasure ErasurePolicyID
	// Path is the absolute path that was asked for or listed; filled in by clients.
	Path string
}

// IsDir reports whether the inode is a directory.
func (s FileStatus) IsDir() bool { return s.Type == TypeDirectory }

// FSMode converts to the standard library's mode.
func (s FileStatus) FSMode() fs.FileMode {
	m := fs.FileMode(s.Mode & 0o777)
	if s.Mode&Sticky != 0 {
		m |= fs.ModeSticky
	}
	if s.IsDir() {
		m |= fs.ModeDir
	}
	return m
}

// ContentSummary counts a subtree. A directory counts itself. Quotas are -1 when unset.
type ContentSummary struct {
	Length        int64
	Files         int64
	Directories   int64
	SpaceConsumed int64
	Quota         int64
	SpaceQuota    int64
	// Types are the quotas of types of volumes; nil: there are none.
	Types []TypeQuota
	// What of it is not there any more, and only snapshots have. The numbers above count it.
	Snapshot SnapshotSummary
	// Erasure is the policy of the file, or of files that are made in the directory; 0: they are replicated.
	Erasure ErasurePolicyID
}

// Present is what of the tree is there now.
func (s ContentSummary) Present() ContentSummary {
	s.Length -= s.Snapshot.Length
	s.Files -= s.Snapshot.Files
	s.Directories -= s.Snapshot.Directories
	s.SpaceConsumed -= s.Snapshot.SpaceConsumed
	s.Snapshot = SnapshotSummary{}
	return s
}

// SnapshotSummary is what of a tree only snapshots have.
type SnapshotSummary struct {
	Length        int64
	Files         int64
	Directories   int64
	SpaceConsumed int64
}

// The limits that HDFS ships with; paths longer than these are refused by name.
const (
	MaxPathLength   = 8000
	MaxPathDepth    = 1000
	MaxNameLength   = 255
	MaxDirectory    = 1048576
	MaxReplication  = 512
	DefaultPageSize = 1000
)
