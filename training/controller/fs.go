package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// FS is what the controller needs of the cluster's filesystem. Errors wrap metadata's kinds. The contexts of Create and
// Append bound the opening only: what is open is written to the end although the controller has to stop.
type FS interface {
	// Mkdirs makes a directory and those above it; one that is there is fine.
	Mkdirs(ctx context.Context, path string) error
	// Create makes a file, in place of one that is there if overwrite.
	Create(ctx context.Context, path string, overwrite bool) (FileWriter, error)
	// Append opens a closed file at its end.
	Append(ctx context.Context, path string) (FileWriter, error)
	// Seal takes a file away from a writer that is gone and returns when it is closed.
	Seal(ctx context.Context, path string) error
	// Open reads a file from an offset; of one that is being written, what was flushed.
	Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
	Stat(ctx context.Context, path string) (metadata.FileStatus, error)
	List(ctx context.Context, path string) ([]metadata.FileStatus, error)
	// Replace renames a file to a name that may be taken.
	Replace(ctx context.Context, src, dst string) error
	// Delete removes a file or a directory with all in it; nothing there is fine.
	Delete(ctx context.Context, path string) error
}

// FileWriter is a file open for writing.
type FileWriter interface {
	io.Writer
	// Hflush returns when every reader can see what was written, whatever happens to the writer.
	Hflush(ctx context.Context) error
	// Hsync is Hflush, and what was written is on the disks of all datanodes of the pipeline: it survives a power cut.
	Hsync(ctx context.Context) error
	Close() error
	// Abort gives the file up as if the process had died.
	Abort()
}

// DFS makes the filesystem of a client.
func DFS(c *dfs.Client) FS { return dfsFS{c} }

type dfsFS struct{ c *dfs.Client }

func (d dfsFS) Mkdirs(ctx context.Context, path string) error {
	return d.c.Mkdirs(ctx, path, 0o777, true)
}

func (d dfsFS) Create(ctx context.Context, path string, overwrite bool) (FileWriter, error) {
	w, err := dfs.Within(ctx, func(life context.Context) (*dfs.Writer, error) {
		return d.c.Create(life, path, dfs.CreateOptions{Overwrite: overwrite, Parents: true})
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (d dfsFS) Append(ctx context.Context, path string) (FileWriter, error) {
	w, err := dfs.Within(ctx, func(life context.Context) (*dfs.Writer, error) { return d.c.Append(life, path) })
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (d dfsFS) Seal(ctx context.Context, path string) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		closed, err := d.c.RecoverLease(ctx, path)
		if err != nil && !errors.Is(err, metadata.ErrRecoveryInProgress) && !errors.Is(err, metadata.ErrBeingCreated) {
			return err
		}
		if closed {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still open for its last writer: %w", path, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (d dfsFS) Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	r, err := d.c.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if _, err := r.Seek(min(offset, r.Size()), io.SeekStart); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (d dfsFS) Stat(ctx context.Context, path string) (metadata.FileStatus, error) {
	return d.c.Stat(ctx, path)
}

func (d dfsFS) List(ctx context.Context, path string) ([]metadata.FileStatus, error) {
	return d.c.List(ctx, path)
}

func (d dfsFS) Replace(ctx context.Context, src, dst string) error {
	return d.c.RenameOverwrite(ctx, src, dst)
}

func (d dfsFS) Delete(ctx context.Context, path string) error {
	_, err := d.c.Delete(ctx, path, true)
	return err
}

// maxSmallFile bounds the files that readFile reads whole, in bytes.
const maxSmallFile = 64 << 20

// readFile reads a small file.
func readFile(ctx context.Context, f FS, path string) ([]byte, error) {
	r, err := f.Open(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxSmallFile+1))
	if err == nil && len(b) > maxSmallFile {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%s is longer than %d bytes", path, maxSmallFile)
	}
	return b, err
}

// writeFile writes a file so that a reader sees the old content or the new one, never a part.
func writeFile(ctx context.Context, f FS, path string, data []byte) error {
	tmp := path + ".tmp"
	w, err := f.Create(ctx, tmp, true)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		w.Abort()
		return err
	}
	if err := w.Close(); err != nil {
		w.Abort()
		return err
	}
	return f.Replace(ctx, tmp, path)
}

// missing reports whether err says that a file is not there.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
