package shell

import (
	"context"
	"io"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// filesystem is what the verbs need that work on every filesystem: a cluster's, and this machine's (file://). The other
// verbs, for quotas, access control lists, snapshots and the like, use the client of a cluster itself.
//
// Errors are of the kinds of package metadata. Paths are absolute.
type filesystem interface {
	User() string
	Stat(ctx context.Context, name string) (metadata.FileStatus, error)
	StatMany(ctx context.Context, names []string) (*dfs.ManyStatuses, error)
	List(ctx context.Context, name string) ([]metadata.FileStatus, error)
	ContentSummary(ctx context.Context, name string) (metadata.ContentSummary, error)
	CheckAccess(ctx context.Context, name string, access metadata.Access) error
	open(ctx context.Context, name string) (reader, error)
	create(ctx context.Context, name string, options dfs.CreateOptions) (writer, error)
	WriteFile(ctx context.Context, name string, data []byte, overwrite bool) error
	Mkdirs(ctx context.Context, name string, mode metadata.Mode, parents bool) error
	Delete(ctx context.Context, name string, recursive bool) (bool, error)
	Rename(ctx context.Context, src, dst string) (bool, error)
	RenameOverwrite(ctx context.Context, src, dst string) error
	SetPermission(ctx context.Context, name string, mode metadata.Mode) error
	SetOwner(ctx context.Context, name, owner, group string) error
	SetTimes(ctx context.Context, name string, mtime, atime metadata.Time) error
	Close() error
}

// reader reads a file as it was when it was opened.
type reader interface {
	io.ReadSeekCloser
	Size() int64
}

// writer writes a file, which is there when Close has returned nil; Abort gives it up, at any time.
type writer interface {
	io.Writer
	Close() error
	Abort()
}

// remote is the filesystem of a cluster.
type remote struct{ *dfs.Client }

func (r remote) open(ctx context.Context, name string) (reader, error) {
	f, err := r.Open(ctx, name)
	if err != nil {
		return nil, err // not a nil *dfs.Reader in a reader
	}
	return f, nil
}

func (r remote) create(ctx context.Context, name string, options dfs.CreateOptions) (writer, error) {
	f, err := r.Create(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return f, nil
}
