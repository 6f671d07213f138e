package namenode

import (
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
)

// Service is the contract between a namenode and the wires it is reached by. namenode/server implements it.
//
// Methods do not block: done is called exactly once, perhaps before the method returns, from any goroutine, and must not
// block either. A namenode that does not lead answers everything that touches the namespace with ErrStandby.
//
// Paths are absolute, or of the form /.reserved/.inodes/<id>. Permissions of the Caller are checked on every path.
// Errors are of metadata's kinds, worded as HDFS words them.
type Service interface {
	Reader
	Writer
	SmallFiles
	Attributes
	Snapshots
	Publisher
	Cluster
	Tokens
	Feed
	Search
	Erasure
	Caching
	Moves
}

// Tokens are the calls about delegation tokens.
type Tokens interface {
	// IssueToken gives the caller a token, which renewer may renew; nobody if that is empty.
	IssueToken(c metadata.Caller, renewer string, done func(security.Token, error))
	// RenewToken makes a token good for longer, and says until when. The caller has to be its renewer.
	RenewToken(c metadata.Caller, t security.Token, done func(metadata.Time, error))
	// CancelToken ends a token. The caller has to be whom it is for, or its renewer.
	CancelToken(c metadata.Caller, t security.Token, done func(error))
	// TokenPassword is the password that goes with an identifier, and what that says; an error of kind ErrToken if it is of no token that
	// is good, ErrStandby if this namenode does not lead.
	TokenPassword(identifier []byte) (password []byte, id token.Identifier, err error)
	// EncryptionKey makes a key with which a client's data goes encrypted between it and datanodes.
	EncryptionKey() (EncryptionKey, error)
}

// Reader are the calls that change nothing. What they see contains every change acknowledged before the call.
type Reader interface {
	// Stat describes a path; nil, nil when nothing is there.
	Stat(c metadata.Caller, path string, done func(*metadata.FileStatus, error))
	// StatNow answers what Stat would, where nobody has to be asked before; ok false: Stat tells. A status takes the place of what is in room.
	StatNow(c metadata.Caller, path string, room *metadata.FileStatus) (f *metadata.FileStatus, ok bool, err error)
	// StatEach answers what StatNow would of several paths, of the first ones, as many as end without an error and are in memory, and returns how many. Where
	// there is nothing a room gets no Type.
	StatEach(c metadata.Caller, paths []string, rooms []metadata.FileStatus) int
	// StatMany is Stat of many paths, in their order. Each is looked up by itself: changes come in between.
	StatMany(c metadata.Caller, r StatManyRequest, done func([]Found, error))
	// List is one page of a directory, or a file listed as itself; nil, nil when nothing is there.
	List(c metadata.Caller, r ListRequest, done func(*Listing, error))
	// Locate finds the blocks of a part of a file.
	Locate(c metadata.Caller, r LocateRequest, done func(*LocatedFile, error))
	ContentSummary(c metadata.Caller, path string, done func(*metadata.ContentSummary, error))
	CheckAccess(c metadata.Caller, path string, access metadata.Access, done func(error))
	// OpenFiles is a page of the files being written below path, by inode from after on; with blocking only those that keep a datanode
	// from being let go. Superusers only.
	OpenFiles(c metadata.Caller, after metadata.INodeID, path string, blocking bool, done func([]OpenFile, bool, error))
	// LostFiles is a page of the files at or below path that have a block without a good replica, once for each such block, and the
	// cookie with which the next page is asked for; an empty page is the last. The first is asked for with an empty cookie. Superusers only.
	LostFiles(c metadata.Caller, path, cookie string, done func(paths []string, next string, err error))
	// Sync ends when everything acknowledged before is visible here (msync).
	Sync(done func(error))
	// State numbers what this namenode has seen: the last entry of the log in its state. Those of all namenodes compare.
	State() int64
	// Observes reports whether this namenode does not lead, and has lately had all that the one that does said was committed.
	Observes() bool
	// Await calls done when a namenode that observes has seen what somebody has who has seen that state. ErrRetriable: that takes too long.
	Await(seen int64, done func(error))
	// Within calls done when a namenode that does not lead has all that was acknowledged more than age ago, and what somebody has seen as in Await. fresh tells,
	// behind a read, whether what was read still has all that had been acknowledged age before. ErrStandby: another namenode has to be asked.
	Within(age time.Duration, seen int64, done func(fresh func() bool, err error))
}

// Writer are the calls that change the namespace. They are durable on a majority of namenodes when they succeed.
type Writer interface {
	Mkdirs(c metadata.Caller, r MkdirsRequest, done func(error))
	Create(c metadata.Caller, r CreateRequest, done func(*metadata.FileStatus, error))
	AddBlock(c metadata.Caller, r AddBlockRequest, done func(*LocatedBlock, error))
	AbandonBlock(c metadata.Caller, f FileRef, client string, b metadata.Block, done func(error))
	// MoreTargets finds want more places for a block that is being written; the answer lists the old ones first.
	MoreTargets(c metadata.Caller, r MoreTargetsRequest, done func(*LocatedBlock, error))
	// Complete closes a file. False: its blocks have too few replicas yet, ask again. It waits up to a second for them.
	Complete(c metadata.Caller, f FileRef, client string, last *metadata.Block, done func(bool, error))
	// Append opens a file for more. The block is the last one if it has room, else nil.
	Append(c metadata.Caller, r AppendRequest, done func(*LocatedBlock, *metadata.FileStatus, error))
	// BumpBlock hands out a new generation for a block being written, without places; nothing changes until UpdatePipeline.
	BumpBlock(c metadata.Caller, client string, b metadata.Block, done func(*LocatedBlock, error))
	UpdatePipeline(c metadata.Caller, r UpdatePipelineRequest, done func(error))
	// Fsync makes the length of the last block visible; a negative length leaves it.
	Fsync(c metadata.Caller, f FileRef, client string, length int64, done func(error))
	RenewLease(c metadata.Caller, client string, done func(error))
	// RecoverLease takes a file from its writer. True: it is closed.
	RecoverLease(c metadata.Caller, path, client string, done func(bool, error))

	// Rename is HDFS's first rename: into a directory that exists, and false for most mishaps.
	Rename(c metadata.Caller, retry Retry, src, dst string, done func(bool, error))
	// RenameTo is HDFS's second rename: exactly to dst, and an error for every mishap.
	RenameTo(c metadata.Caller, retry Retry, src, dst string, overwrite, toTrash bool, done func(error))
	// Delete is false when nothing was there.
	Delete(c metadata.Caller, retry Retry, path string, recursive bool, done func(bool, error))
	SetPermission(c metadata.Caller, path string, mode metadata.Mode, done func(error))
	// SetOwner leaves what is empty.
	SetOwner(c metadata.Caller, path, owner, group string, done func(error))
	// SetTimes leaves what is -1.
	SetTimes(c metadata.Caller, path string, mtime, atime metadata.Time, done func(error))
	// SetReplication is false for directories and missing paths.
	SetReplication(c metadata.Caller, path string, replication int, done func(bool, error))
	// ReportBad tells of replicas that a reader found damaged.
	ReportBad(c metadata.Caller, blocks []LocatedBlock, done func(error))
}

// Cluster are the calls about the namenode itself and its datanodes; they answer at once.
type Cluster interface {
	Defaults() Defaults
	// Address is the host:port of the IPC door.
	Address() string
	// BlockPool is the id under which all blocks of this namespace go.
	BlockPool() string
	// Active: this namenode leads.
	Active() bool
	Statistics() Statistics
	Datanodes() []NodeReport
	// SafeMode says why nothing can be changed; empty: it can.
	SafeMode() string
	// SetSafeMode enters or leaves safe mode by an administrator's hand.
	SetSafeMode(on bool) error
	// SetAdmin takes datanodes out of service, or back into it: state is Normal, Decommissioned or InMaintenance, life how long a
	// maintenance lasts (0: until it is ended). Names are uuids, HOST or HOST:PORT of the data transfer; done gets the addresses of those
	// that are meant. Superusers only; it does not wait for the datanodes to be free. ErrNotExist: there is none of a name.
	SetAdmin(c metadata.Caller, names []string, state AdminState, life time.Duration, done func([]string, error))
	// SaveNamespace writes the state of this namenode to disk now, so that its next start replays nothing. Only in safe mode, as in
	// HDFS; a follower may at any time.
	SaveNamespace(done func(error))
	// MetaSave writes what the leader knows of blocks that are not as they should be to a file in its data directory.
	MetaSave(name string, done func(error))
	// SetBalancerBandwidth says how many bytes a second a datanode sends at most for the balancer.
	SetBalancerBandwidth(bytes int64, done func(error))
	// Transfer hands leadership to the namenode with an id or IPC address; empty: to the one that is best. Only who leads can.
	Transfer(c metadata.Caller, to string, done func(error))
	// Lead has this namenode lead: it is done when it does.
	Lead(c metadata.Caller, done func(error))
	// Balance begins, or goes on, to move replicas from full datanodes to empty ones, for a session of ten seconds. ErrExist: another
	// one goes on. Superusers only.
	Balance(c metadata.Caller, r BalanceRequest, done func(*Balanced, error))
	// Tier is for how far SatisfyStoragePolicy is with a path, and asks for it if it is to start.
	Tier(c metadata.Caller, r TierRequest, done func(*Tiered, error))
	// RollingUpgrade asks how far an upgrade of the cluster is, begins one, or ends it by raising the cluster to the newest level that all know;
	// nil: there is none. Superusers only.
	RollingUpgrade(c metadata.Caller, action UpgradeAction, done func(*Upgrade, error))
	// RefreshNodes reads the host lists (dfs.hosts, dfs.hosts.exclude) anew.
	RefreshNodes(done func(error))
	// Healthy is nil while the namenode can do its work, leading or not.
	Healthy() error
	// DoorFor picks the datanode whose HTTP door serves a WebHDFS data operation: one that holds the block at offset of
	// path if read is set, else one that has room.
	DoorFor(c metadata.Caller, r DoorRequest, done func(*Node, error))
}

// UpgradeAction is what RollingUpgrade is to do.
type UpgradeAction int

// The actions, of `hdfs dfsadmin -rollingUpgrade query|prepare|finalize`.
const (
	QueryUpgrade UpgradeAction = iota
	PrepareUpgrade
	FinalizeUpgrade
)

// Upgrade is an upgrade of the cluster under way, or one that has just ended.
type Upgrade struct {
	Started time.Time
	// Finalized is when the cluster was raised; zero: it is under way.
	Finalized time.Time
}

// Retry identifies a request across retries, so that it takes effect once; the zero value does not.
type Retry struct {
	// ClientID has 16 bytes, else the request is not remembered.
	ClientID []byte
	CallID   int32
}

// FileRef is a file by inode, or by path where the inode is 0. With an inode the path is for messages.
type FileRef struct {
	INode metadata.INodeID
	Path  string
}

// ListRequest asks for a page of a directory.
type ListRequest struct {
	Path string
	// After is the last name of the page before; empty for the first page.
	After string
	// Locations: files come with their blocks.
	Locations bool
	// Passing: the entries are not looked at any more when done has returned, so that their memory can be used again.
	Passing bool
	Admit   Admit
}

// Admit waits until there is room for an answer of about n bytes, or says why there is none. A service calls it before it
// makes an answer that is larger than usual, on a goroutine that nothing else waits for. Nil: there is room.
type Admit func(n int64) error

// StatManyRequest asks what is at many paths.
type StatManyRequest struct {
	Paths []string
	Admit Admit
}

// Found is what is at one of many paths, as Stat says: a status, why it is not told, or neither when nothing is there.
type Found struct {
	Status *metadata.FileStatus
	Err    error
}

// LocateRequest asks for the blocks that overlap [Offset, Offset+Length) of a file.
type LocateRequest struct {
	Path           string
	Offset, Length int64
	// Unnoticed leaves the file's access time alone: one who reads everything, again and again, would write as much to the log.
	Unnoticed bool
	// Tails: the replicated block at the end of a file with an erasure coding policy is wanted too. Hadoop's clients could not read any of the file then.
	Tails bool
	// Passing: the file is not looked at any more when done has returned, so that its memory can be used again.
	Passing bool
	Admit   Admit
}

// Listing is a page of a directory.
type Listing struct {
	Entries []metadata.FileStatus
	// Files is aligned with Entries when locations were asked for; nil for directories.
	Files []*LocatedFile
	// Remaining is how many more there are at least; 0 on the last page.
	Remaining int
}

// CreateRequest asks for a new file.
type CreateRequest struct {
	Retry Retry
	Path  string
	Mode  metadata.Mode
	// Unmasked is as in MkdirsRequest.
	Unmasked *metadata.Mode
	Client   string
	// Create: the file may be made. Overwrite: an existing one is replaced.
	Create, Overwrite bool
	Parents           bool
	Replication       int
	BlockSize         int64
	// Policy is the name of the erasure coding policy, ReplicationPolicy for none; empty: that of the directory.
	Policy string
	// LazyPersist: the file gets the storage policy LAZY_PERSIST.
	LazyPersist bool
}

// AddBlockRequest asks for the next block of a file being written.
type AddBlockRequest struct {
	File     FileRef
	Client   string
	Previous *metadata.Block
	Exclude  []NodeID
	Favoured []string
	// NoLocal: not on the writer's own machine.
	NoLocal bool
	// Anywhere: the writer's machine does not matter.
	Anywhere bool
	// Tail: a replicated block, at the end of a file with an erasure coding policy.
	Tail bool
}

// MoreTargetsRequest asks for replacements in a pipeline.
type MoreTargetsRequest struct {
	File     FileRef
	Client   string
	Block    metadata.Block
	Existing []Location
	Exclude  []NodeID
	Want     int
}

// AppendRequest opens a file for more.
type AppendRequest struct {
	Retry  Retry
	Path   string
	Client string
	// NewBlock: go on in a new block even if the last has room.
	NewBlock bool
	// Tails: the client knows that a file with an erasure coding policy may end with a replicated block.
	Tails bool
}

// UpdatePipelineRequest records a pipeline that was rebuilt. Nodes are given by id, volumes aligned with them or absent. Of a group node i has internal block i, and is empty where that
// is lost.
type UpdatePipelineRequest struct {
	Retry    Retry
	Client   string
	Old, New metadata.Block
	Nodes    []NodeID
	Volumes  []VolumeID
}

// DoorRequest asks for a datanode to send an HTTP client to.
type DoorRequest struct {
	Path    string
	Read    bool
	Offset  int64
	Exclude []string // host:port or host
}

// OpenFile is a file that somebody is writing.
type OpenFile struct {
	INode  metadata.INodeID
	Path   string
	Client string
	// Host is the machine of the writer.
	Host string
}

// BalanceRequest is what a balancer wants.
type BalanceRequest struct {
	Session string
	// Threshold is how many percent of its capacity a datanode may be fuller or emptier than all together.
	Threshold float64
	// Include are the datanodes that take part, if there are any, without those of Exclude; Source those that may give. HOST or HOST:PORT.
	Include, Exclude, Source []string
	// Stop: it ends.
	Stop bool
}

// Balanced is how far a session has come, with this namenode leading. Sizes are in bytes.
type Balanced struct {
	Moved, Blocks, Moving, Left, Failed int64
	Over, Under                         int
}

// TierRequest asks how far replicas are where storage policies want them.
type TierRequest struct {
	Path string
	// Start: they are to be brought there, unless that was asked for already.
	Start bool
}

// Tiered is how far replicas have come. Sizes are in bytes.
type Tiered struct {
	// Waiting: the path is at work, or waits for others. Known: this leader knows how it ended, with so many Stuck blocks that could not be moved.
	Waiting, Known bool
	Stuck          int64
	// Paths that wait, and of all of them, since this namenode leads: Blocks that wait, Moving bytes, Moved bytes of Replicas, and Failed copies.
	Paths, Blocks                   int
	Moving, Moved, Replicas, Failed int64
}

// Defaults are what clients that ask for nothing get, and the limits that callers are held to.
type Defaults struct {
	BlockSize        int64
	Replication      int
	BytesPerChecksum int
	PacketSize       int
	FileBufferSize   int
	// TrashMinutes is how long removed files stay in the trash; 0: there is none.
	TrashMinutes int
	// Supergroup is the group of superusers.
	Supergroup string
	// ListLimit is the page size of listings.
	ListLimit int
	// EncryptTransfer: blocks move encrypted only.
	EncryptTransfer bool
}

// What a namenode that does not lead answers, in Hadoop's words.
var (
	ErrStandbyRead  = standby("READ")
	ErrStandbyWrite = standby("WRITE")
	// ErrRetryOnActive is about one call: the next one may be answered.
	ErrRetryOnActive = metadata.Errorf(metadata.ErrAskLeader, "This namenode does not lead and lacks what the call needs, a replica that it has heard of or an access time to be set: ask the one that leads")
)

func standby(category string) error {
	return metadata.Errorf(metadata.ErrStandby, "Operation category %s is not supported in state standby. Visit https://s.apache.org/sbnn-error", category)
}

// EncryptionKey is a key of data encryption: datanodes know it by the block key's ID and the Nonce, until it Expires.
type EncryptionKey struct {
	ID         int32
	Nonce, Key []byte
	Expires    metadata.Time
}
