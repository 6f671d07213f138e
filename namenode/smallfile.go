package namenode

import (
	"context"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// SmallFiles are the calls about files whose bytes the namenodes have: they were made whole, by one command, and no datanode has a block of them.
type SmallFiles interface {
	// SmallFileLimit is how many bytes a new small file may have; metadata.MaxBody at most.
	SmallFileLimit() int
	// StoreFile makes a closed file of the given bytes, SmallFileLimit at most, as Create, AddBlock and Complete would. Client is for messages only:
	// no lease is left. Nobody changes data any more. Errors: those of Create; ErrUnsupported where no small file may be made: below a directory
	// that says so, of more bytes, and below release.SmallFiles. The client goes on with Create then.
	StoreFile(c metadata.Caller, r CreateRequest, data []byte, done func(*metadata.FileStatus, error))
	// KeepFile makes a small file of a closed one, whose blocks go. The bytes come from whoever has read these blocks, and may write the file; nobody changes data any more.
	// Inode, owner, times and all else stay, as do the blocks for the snapshots that have them. Errors: ErrBeingCreated for an open file, ErrIO when it is made of other blocks by
	// now, ErrPermission without WRITE, ErrSpaceQuota, and ErrUnsupported as for StoreFile, for a file that is small already, is empty or has an erasure coding policy.
	KeepFile(c metadata.Caller, r KeepFileRequest, done func(error))
	// FileWithData describes a file and comes with its bytes, if it is a small one of at most Most bytes and nothing else belongs to it; else with its
	// blocks, as Locate does.
	FileWithData(c metadata.Caller, r FileWithDataRequest, done func(*FileWithData, error))
	// FilesWithData is FileWithData of many files, for as many of the first as have most bytes in all, one at least. Those that are no small files, or
	// more than that, are told without data. When ctx is done nobody else is asked for what this namenode cannot read, and its disk is not waited for. Error: ErrRetriable too, when too many
	// calls read from the disk.
	FilesWithData(ctx context.Context, c metadata.Caller, paths []string, most int64, done func([]OpenedFile, error))
	// Body is the body of a small file, for the data-transfer door, which has looked at the block token: nobody asks for rights. One that this namenode
	// does not have, or has damaged, is got from another one. The bytes are not to be changed.
	//
	// Errors: ErrReplicaNotFound when there is none with this id and generation; ErrCorrupt when no namenode that can be reached has it sound; ErrRetriable when
	// too many calls read from the disk; that of ctx.
	Body(ctx context.Context, id metadata.BlockID, generation metadata.Generation) ([]byte, error)
	// Bodies is Body of many, for the bearers of their block tokens: a token that is not good refuses all, with ErrToken. each is called for every one,
	// one call at a time and in any order, unless there is another error: ErrRetriable when too many calls read from the disk; that of ctx.
	Bodies(ctx context.Context, pool string, wanted []WantedBody, each func(i int, data []byte, err error)) error
	// SetSmallFiles says whether small files may be made below a directory from now on. The caller needs WRITE on it.
	SetSmallFiles(c metadata.Caller, path string, policy SmallFilePolicy, done func(error))
	// SmallFilesAt tells what holds for a directory, or for the files beside a file: SmallFilesOn or SmallFilesOff, and whether the directory itself says so.
	SmallFilesAt(c metadata.Caller, path string, done func(policy SmallFilePolicy, own bool, err error))
}

// SmallFilePolicy says whether small files may be made below a directory.
type SmallFilePolicy uint8

// The policies. Without any in the directories above small files may be made.
const (
	// SmallFilesInherit: as the directory above says.
	SmallFilesInherit SmallFilePolicy = iota
	SmallFilesOff
	SmallFilesOn
)

func (p SmallFilePolicy) String() string {
	switch p {
	case SmallFilesOff:
		return "off"
	case SmallFilesOn:
		return "on"
	}
	return "inherit"
}

// KeepFileRequest makes a small file of an ordinary one.
type KeepFileRequest struct {
	Retry  Retry
	Path   string
	Blocks []metadata.Block
	Data   []byte
}

// FileWithDataRequest asks for a file with its bytes.
type FileWithDataRequest struct {
	Path string
	// Most is how many bytes may come; 0: metadata.MaxBody.
	Most int64
	// Length is of how many bytes, from the first on, blocks are wanted otherwise; 0: of all.
	Length int64
	// Unnoticed leaves the file's access time alone.
	Unnoticed bool
	Admit     Admit
}

// FileWithData is a file, with its bytes or its blocks.
type FileWithData struct {
	LocatedFile
	// Whole: Data is all of the file, and Blocks is empty. The bytes are not to be changed.
	Whole bool
	Data  []byte
}

// OpenedFile is one of many: all of its bytes, which are not to be changed, or why there are none; neither: it is no small file.
type OpenedFile struct {
	Whole bool
	Data  []byte
	Err   error
}

// WantedBody is a body that the bearer of a token for its block wants.
type WantedBody struct {
	Block metadata.Block // Length is not used
	Token security.Token
}
