// Package store is the cluster's filesystem as the history of experiments, the registry of models and the tracking endpoint
// use it: directories that are made under another name and renamed when they are whole, logs that are appended to, and
// attributes of directories.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// FS is what is needed of a filesystem. Errors wrap metadata's kinds. The contexts of Create and Append bound the opening
// only.
type FS interface {
	// Mkdirs makes a directory and those above it; one that is there is fine.
	Mkdirs(ctx context.Context, path string) error
	// Create makes a file and the directories above it. metadata.ErrExist: it is there, and overwrite is false.
	Create(ctx context.Context, path string, overwrite bool) (Writer, error)
	// Append opens a closed file at its end.
	Append(ctx context.Context, path string) (Writer, error)
	// Seal takes a file away from a writer that is gone and returns when it is closed.
	Seal(ctx context.Context, path string) error
	// Open reads a file from an offset.
	Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
	Stat(ctx context.Context, path string) (metadata.FileStatus, error)
	List(ctx context.Context, path string) ([]metadata.FileStatus, error)
	// Move renames. metadata.ErrExist: the name is taken.
	Move(ctx context.Context, src, dst string) error
	// Replace renames a file to a name that may be taken.
	Replace(ctx context.Context, src, dst string) error
	// Delete removes a file, or a directory with all in it; nothing there is fine.
	Delete(ctx context.Context, path string) error
	// Attributes are the user's extended attributes with their values, without the prefix "user.".
	Attributes(ctx context.Context, path string) (map[string]string, error)
	// SetAttribute sets one of them; RemoveAttribute takes one away, and one that is not there is fine.
	SetAttribute(ctx context.Context, path, name, value string) error
	RemoveAttribute(ctx context.Context, path, name string) error
	// User is who acts.
	User() string
}

// Writer is a file open for writing.
type Writer interface {
	io.Writer
	// Hsync returns when what was written is on the disks of all datanodes of the pipeline.
	Hsync(ctx context.Context) error
	Close() error
	// Abort gives the file up as if the process had died.
	Abort()
}

// MaxSmallFile bounds the files that ReadFile reads whole, in bytes.
const MaxSmallFile = 64 << 20

// ReadFile reads a small file.
func ReadFile(ctx context.Context, f FS, name string) ([]byte, error) {
	r, err := f.Open(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, MaxSmallFile+1))
	if err == nil && len(b) > MaxSmallFile {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%s is longer than %d bytes", name, MaxSmallFile)
	}
	return b, err
}

// WriteFile makes a file from what r gives.
func WriteFile(ctx context.Context, f FS, name string, r io.Reader, overwrite bool) (n int64, err error) {
	w, err := f.Create(ctx, name, overwrite)
	if err != nil {
		return 0, err
	}
	if n, err = io.Copy(w, r); err == nil {
		err = w.Close()
	}
	if err != nil {
		w.Abort()
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = f.Delete(after, name) // err says more
	}
	return n, err
}

// Walk calls take for each file below a directory, by its path relative to it, in the order of names.
func Walk(ctx context.Context, f FS, dir string, take func(name string, s metadata.FileStatus) error) error {
	list, err := f.List(ctx, dir)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.IsDir() {
			err = Walk(ctx, f, path.Join(dir, s.Name), func(name string, t metadata.FileStatus) error { return take(path.Join(s.Name, name), t) })
		} else {
			err = take(s.Name, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Missing reports whether err says that a file is not there.
func Missing(err error) bool { return errors.Is(err, metadata.ErrNotExist) }

// DFS makes the filesystem of a client.
func DFS(c *dfs.Client) FS { return files{c} }

type files struct{ c *dfs.Client }

func (f files) Mkdirs(ctx context.Context, path string) error {
	return f.c.Mkdirs(ctx, path, 0o777, true)
}

func (f files) Create(ctx context.Context, path string, overwrite bool) (Writer, error) {
	w, err := dfs.Within(ctx, func(life context.Context) (*dfs.Writer, error) {
		return f.c.Create(life, path, dfs.CreateOptions{Overwrite: overwrite, Parents: true})
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (f files) Append(ctx context.Context, path string) (Writer, error) {
	w, err := dfs.Within(ctx, func(life context.Context) (*dfs.Writer, error) { return f.c.Append(life, path) })
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (f files) Seal(ctx context.Context, path string) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		closed, err := f.c.RecoverLease(ctx, path)
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

func (f files) Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	r, err := f.c.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if _, err := r.Seek(min(offset, r.Size()), io.SeekStart); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (f files) Stat(ctx context.Context, path string) (metadata.FileStatus, error) {
	return f.c.Stat(ctx, path)
}

func (f files) List(ctx context.Context, path string) ([]metadata.FileStatus, error) {
	return f.c.List(ctx, path)
}

func (f files) Move(ctx context.Context, src, dst string) error {
	return f.c.RenameStrict(ctx, src, dst)
}

func (f files) Replace(ctx context.Context, src, dst string) error {
	return f.c.RenameOverwrite(ctx, src, dst)
}

func (f files) Delete(ctx context.Context, path string) error {
	_, err := f.c.Delete(ctx, path, true)
	return err
}

func (f files) Attributes(ctx context.Context, path string) (map[string]string, error) {
	list, err := f.c.XAttrs(ctx, path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, a := range list {
		if a.Namespace == metadata.XAttrUser {
			out[a.Name] = strings.ToValidUTF8(string(a.Value), "\uFFFD")
		}
	}
	return out, nil
}

func (f files) SetAttribute(ctx context.Context, path, name, value string) error {
	return f.c.SetXAttr(ctx, path, metadata.XAttr{Name: name, Value: []byte(value)}, dfs.XAttrCreate|dfs.XAttrReplace)
}

func (f files) RemoveAttribute(ctx context.Context, path, name string) error {
	err := f.c.RemoveXAttr(ctx, path, metadata.XAttr{Name: name})
	if err != nil {
		if have, look := f.Attributes(ctx, path); look == nil {
			if _, ok := have[name]; !ok {
				return nil
			}
		}
	}
	return err
}

func (f files) User() string { return f.c.User() }
