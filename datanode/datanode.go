// Package datanode names the things of a datanode: volumes, replicas, their states, and the contract of the store that
// keeps them. The engine is datanode/blockstore; the wires are datanode/transfer and datanode/server.
package datanode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
)

// ChunkSize is how many bytes of a block one stored checksum covers, whatever its writer wants (Checksum). It is part of the disk
// format and the same in the whole cluster.
const ChunkSize = 512

// ChecksumType is a kind of checksum, with HDFS's numbers.
type ChecksumType uint8

// The kinds of checksum.
const (
	NoChecksum ChecksumType = 0
	CRC32      ChecksumType = 1 // IEEE, as zlib
	CRC32C     ChecksumType = 2 // Castagnoli
)

// Checksum is how the writer of a block wants it checked: every BytesPer bytes by one checksum of Type. It stays with the block for its life, because
// the checksum that HDFS has of a file depends on it. The zero value is DefaultChecksum.
type Checksum struct {
	Type     ChecksumType
	BytesPer uint32
}

// DefaultChecksum is what HDFS's clients want that are not told otherwise.
var DefaultChecksum = Checksum{Type: CRC32C, BytesPer: ChunkSize}

// Stored is the kind of the checksums that a store keeps of each ChunkSize bytes of such a block: CRC32C, also where none are wanted.
func (c Checksum) Stored() ChecksumType {
	if c.Type == CRC32 {
		return CRC32
	}
	return CRC32C
}

// Why a volume is refused at start.
var (
	// ErrVolumeInUse: another process has it.
	ErrVolumeInUse = errors.New("volume is in use")
	// ErrVolumeVersion: it is not a volume, or one of another layout.
	ErrVolumeVersion = errors.New("volume has another layout")
	// ErrVolumeOwner: it belongs to another datanode or another cluster.
	ErrVolumeOwner = errors.New("volume belongs elsewhere")
)

// StorageType is the kind of a volume, with the numbers of HDFS's StorageTypeProto.
type StorageType uint8

// The kinds of volume.
const (
	Disk    StorageType = 1
	SSD     StorageType = 2
	Archive StorageType = 3
	RAMDisk StorageType = 4
	NVDIMM  StorageType = 6
)

var storageNames = map[StorageType]string{Disk: "DISK", SSD: "SSD", Archive: "ARCHIVE", RAMDisk: "RAM_DISK", NVDIMM: "NVDIMM"}

func (t StorageType) String() string {
	if s, ok := storageNames[t]; ok {
		return s
	}
	return "DISK"
}

// ParseStorageType understands HDFS's names; the empty one is DISK.
func ParseStorageType(s string) (StorageType, error) {
	if s == "" {
		return Disk, nil
	}
	for t, name := range storageNames {
		if strings.EqualFold(s, name) {
			return t, nil
		}
	}
	return 0, metadata.Errorf(metadata.ErrInvalidArgument, "storage type %q is none of DISK, SSD, ARCHIVE, RAM_DISK, NVDIMM", s)
}

// ReplicaState is where a replica is in its life.
//
//	       Create                    Finalize
//	·  ───────────────▶  RBW  ───────────────────▶  Finalized
//	                    ▲  │  ◀───────────────────      │
//	Temporary ──────────┘  │         Append             │
//	    │   Promote        │ restart                    │
//	    │                  ▼         UpdateReplica      │
//	    │ Finalize        RWR  ───────────────────▶  Finalized
//	    └──────────────────────────────────────────▶
type ReplicaState uint8

// The states of a replica.
const (
	// Temporary: being copied from another datanode; invisible and gone after a restart.
	Temporary ReplicaState = iota + 1
	// RBW: being written; readers see the acknowledged bytes.
	RBW
	// RWR: was being written when the datanode stopped; waits for block recovery and cannot be read.
	RWR
	// Finalized: complete and durable.
	Finalized
)

func (s ReplicaState) String() string {
	if s >= Temporary && s <= Finalized {
		return [...]string{"TEMPORARY", "RBW", "RWR", "FINALIZED"}[s-1]
	}
	return fmt.Sprintf("ReplicaState(%d)", uint8(s))
}

// Replica is what a datanode holds of a block.
type Replica struct {
	// Block's Length is the bytes on disk that checksums cover.
	Block metadata.Block
	State ReplicaState
	// Visible is how many bytes readers may see: those acknowledged by every datanode of the pipeline.
	Visible int64
	// Volume is the storage uuid.
	Volume string
}

// Readable reports whether clients may read the replica.
func (r Replica) Readable() bool { return r.State == Finalized || r.State == RBW }

func (r Replica) String() string {
	return fmt.Sprintf("%v %v visible=%d on %s", r.Block, r.State, r.Visible, r.Volume)
}

// VolumeStatus describes a volume. Sizes are in bytes.
type VolumeStatus struct {
	ID   string
	Path string
	Type StorageType
	// Capacity is the size of the file system less the reserve.
	Capacity int64
	// Used is what replicas and their checksums take.
	Used int64
	// Remaining is what new replicas may take.
	Remaining int64
	Replicas  int
	// Slow: a call of its disk has not come back for seconds. New replicas go elsewhere while that is so, if they can.
	Slow bool
	// Opened says how its replicas were found.
	Opened Opened
	// Failed is why the volume was given up, nil while it works.
	Failed error
}

// Opened says how the replicas of a volume were found when it was opened.
type Opened struct {
	// Indexed directories and packs were taken from the volume's index, Scanned ones were looked through.
	Indexed, Scanned int
	// Unread is how many places its disk could not read then; what was there is damaged, or not known.
	Unread int
	Took   time.Duration
}

// ChangeKind says what happened to a replica.
type ChangeKind uint8

// The kinds of change, as the namenode hears of them.
const (
	Receiving ChangeKind = iota + 1
	Received
	Deleted
	Corrupt
	Verified
	// Cached: it is kept in memory; Uncached: it is not any more.
	Cached
	Uncached
)

func (k ChangeKind) String() string {
	if k >= Receiving && k <= Uncached {
		return [...]string{"RECEIVING", "RECEIVED", "DELETED", "CORRUPT", "VERIFIED", "CACHED", "UNCACHED"}[k-1]
	}
	return fmt.Sprintf("ChangeKind(%d)", uint8(k))
}

// Change is one event of a store.
type Change struct {
	Kind   ChangeKind
	Block  metadata.Block
	Volume string
	// Instead is as in CreateOptions, of a replica that was received.
	Instead string
}

// CreateOptions tune a new replica.
type CreateOptions struct {
	// Temporary makes a copy that nobody sees before it is finished.
	Temporary bool
	// Type is preferred, not required; zero is Disk.
	Type StorageType
	// Expect is how many bytes will probably come; a volume with less room is not chosen. 0 is unknown.
	Expect int64
	// Checksum is what the block's writer wants; zero is DefaultChecksum.
	Checksum Checksum
	// Instead is the uuid of the datanode whose replica is one too many when this one is there; empty: nobody says so.
	Instead string
}

// VerifyOptions tune Verify.
type VerifyOptions struct {
	// Tell announces the outcome in every case: Verified of an intact replica, Deleted of one that is not there.
	Tell bool
	// Pace is called before n bytes are read; it may wait, and an error ends the verification. Nil does not wait.
	Pace func(n int64) error
}

// Cursor is how far the scrubber is on a volume: the pass that began at Begun has verified the blocks up to After.
type Cursor struct {
	Begun time.Time
	After metadata.BlockID
	Done  bool
}

// BlockStore keeps replicas on volumes. All methods are safe for concurrent use. A block has at most one replica per store.
//
// Errors are of metadata's kinds: ErrReplicaNotFound, ErrExist, ErrInvalidArgument (the replica is not as the caller
// believes), ErrRecoveryInProgress, ErrCorrupt, ErrNoSpace, and ErrIO for a disk that fails, which also fails the volume.
type BlockStore interface {
	// Create starts a replica of b; b.Length is ignored. ErrExist if there is one of any generation; ErrNoSpace if every
	// volume is below its reserve.
	Create(b metadata.Block, o CreateOptions) (Writer, error)
	// Append reopens the finalized replica of b, whose length must be b.Length, under generation gen >= b.Generation.
	// With recovery an RBW one is taken over from its writer as well, under any generation in [b.Generation, gen].
	Append(b metadata.Block, gen metadata.Generation, recovery bool) (Writer, error)
	// Resume takes an RBW replica over from a broken pipeline: at least minimum bytes must be acknowledged and at most
	// maximum received; what was not acknowledged is cut off.
	Resume(b metadata.Block, gen metadata.Generation, minimum, maximum int64) (Writer, error)
	// Close finalizes a replica whose pipeline broke after the last packet, under generation gen. Its length must be
	// b.Length, all acknowledged. A finalized replica is restamped.
	Close(b metadata.Block, gen metadata.Generation) (Replica, error)

	// Open opens a replica of b's generation or a newer one for reading up to its visible length.
	Open(b metadata.Block) (Reader, error)
	// Wait returns when the replica's visible length reaches length, or cannot grow any more, or ctx is done: the caller
	// looks again.
	Wait(ctx context.Context, id metadata.BlockID, length int64)
	// Replica describes what is held of a block.
	Replica(id metadata.BlockID) (Replica, bool)
	// Each calls fn for every replica of a volume, in no order, until it returns false. Changes meanwhile may be missed
	// but are announced as Change.
	Each(volume string, fn func(Replica) bool)
	// Verify reads a replica from the disk and compares every checksum. ErrCorrupt is also announced as a Change, and so is
	// that one that was corrupt is not any more.
	Verify(ctx context.Context, id metadata.BlockID, o VerifyOptions) error
	// Confirm announces the replica of b as Received once more, if it is finalized, not known to be damaged, and exactly b, and reports whether it is: somebody
	// takes it not to be here.
	Confirm(b metadata.Block) bool
	// Delete removes the replica of b unless it is of a newer generation. A missing one is not an error.
	Delete(b metadata.Block) error
	// Discard is Delete, but what the replica holds is kept in the trash for a while.
	Discard(b metadata.Block) error

	// InitRecovery stops the replica's writer and refuses recovery ids not above the last one seen. The answer's length
	// and state are what the replica offers to the recovery.
	InitRecovery(b metadata.Block, recovery metadata.Generation) (Replica, error)
	// UpdateReplica ends the recovery that InitRecovery began: cuts to length, restamps with recovery and finalizes.
	UpdateReplica(b metadata.Block, recovery metadata.Generation, length int64) (Replica, error)

	// Volumes describes all volumes, failed ones too.
	Volumes() []VolumeStatus
}

// Writer appends to one replica. Only one goroutine uses it. After another writer or a recovery took the replica over,
// every method returns an error and Lost is closed.
type Writer interface {
	Replica() Replica
	// Checksum is what was wanted when the block was created. Sums are of its Stored kind.
	Checksum() Checksum
	// Write stores data at off. sums holds one big-endian CRC per chunk of data, chunks counted from off; nil means
	// that the caller has verified data by other means. Bytes the replica has already are skipped, after an hflush writers
	// send the last chunk again from its start. Data with sums that begins inside a chunk must end in it. ErrCorrupt if
	// a checksum does not match; nothing is stored then. Bytes stored survive the end of the process.
	Write(off int64, data, sums []byte) error
	// WriteAll is Write of one piece after the other, at less cost where they follow each other. It returns how many are
	// stored, all of them unless there is an error.
	WriteAll(pieces []Piece) (int, error)
	// Acked tells how many bytes the whole pipeline has, up to the end of some Write; readers may see them now.
	Acked(n int64)
	// Sync makes everything written durable (hsync). A replica in memory has left it for a disk then.
	Sync() error
	// Durable reports whether Finalize makes the replica durable by itself: not on a volume that is lost with its machine (RAMDisk), nor where the store does
	// not sync what it closes, unless it is a copy. After Sync it does in any case on a disk.
	Durable() bool
	// Finalize makes the replica complete, and durable as said above, and announces it as Received. The writer is closed.
	Finalize() (Replica, error)
	// Promote turns a temporary replica into RBW with everything acknowledged. The writer is closed.
	Promote() (Replica, error)
	// Close lets go of the replica: an RBW stays for whoever comes next, a temporary one is removed. Idempotent.
	Close() error
	// Lost is closed when the replica was taken away.
	Lost() <-chan struct{}
}

// Piece is the arguments of one Write.
type Piece struct {
	Off        int64
	Data, Sums []byte
	// Summed says that Sums were made of this very memory, so that it need not be compared with them again.
	Summed bool
}

// Reader reads one replica as it was when opened, while writers go on. Not for concurrent use.
type Reader interface {
	// Replica is the state at opening; Visible is the limit of reads.
	Replica() Replica
	// Checksum is what the block's writer wants.
	Checksum() Checksum
	// Sums appends the big-endian CRCs, of Checksum's Stored kind, of the chunks that cover [off, end) to dst; off is a multiple of ChunkSize and
	// end is one too, or the visible length.
	Sums(dst []byte, off, end int64) ([]byte, error)
	// ReadAt reads data bytes; it verifies nothing.
	ReadAt(p []byte, off int64) (int, error)
	// File is the operating system's file of the data, nil when there is none. It belongs to the reader.
	File() *os.File
	// Sending notes that the kernel reads n bytes of File from off on, until the next call; n is 0 when it does not any
	// more. What does not come back is seen by who watches over the disk.
	Sending(off, n int64)
	Close() error
}
