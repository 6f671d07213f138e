package namenode

import (
	"github.com/gohops/hops/metadata"
)

// MaxSmallFile is the length of the largest file that namenodes keep themselves, in bytes.
const MaxSmallFile = 64 << 10

// ErrNotSmall is what StoreFile answers when the namenodes do not keep the file themselves: its directory says so, has an erasure coding policy, or the
// cluster's release level is too low. Nothing was done; who asked makes an ordinary file.
var ErrNotSmall = metadata.Errorf(metadata.ErrUnsupported, "small files are not kept by the namenodes here: create the file and write it to datanodes")

// SmallFiles are the calls about files whose bytes the namenodes keep themselves.
type SmallFiles interface {
	// StoreFile makes a closed file with its bytes, MaxSmallFile at most: what Create, writing and Complete do, by one command. Its error is ErrNotSmall
	// where that is not to be. data belongs to the service from the call on.
	StoreFile(c metadata.Caller, r CreateRequest, data []byte, done func(*metadata.FileStatus, error))
	// FileWithData opens a file: with its bytes, if the namenodes keep it and it has at most most of them, else as Locate does with r.
	FileWithData(c metadata.Caller, r LocateRequest, most int64, done func(*OpenedFile, error))
	// Body is the bytes of a small file by the id and generation of its block; nobody may change them. ErrReplicaNotFound: there is none here, ErrCorrupt:
	// it is damaged.
	Body(id metadata.BlockID, generation metadata.Generation) ([]byte, error)
}

// OpenedFile is what FileWithData answers.
type OpenedFile struct {
	LocatedFile
	// Data is the whole file, if Whole.
	Data  []byte
	Whole bool
}
