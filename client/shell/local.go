package shell

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// local is this machine's filesystem, which words that begin with file: name, as Hadoop's RawLocalFileSystem.
type local struct{}

// localURI names it in messages.
const localURI = "file://"

// localBlock is the block size that Hadoop shows of local files, in bytes (fs.local.block.size).
const localBlock = 32 << 20

func (local) User() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

func (local) Close() error { return nil }

// kinded gives an error of the operating system a kind of package metadata.
func kinded(err error) error {
	kind := metadata.ErrIO
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		kind = metadata.ErrNotExist
	case errors.Is(err, fs.ErrExist):
		kind = metadata.ErrExist
	case errors.Is(err, fs.ErrPermission):
		kind = metadata.ErrPermission
	}
	return metadata.Errorf(kind, "%v", err)
}

func localStatus(name string, info fs.FileInfo) metadata.FileStatus {
	mode := metadata.Mode(info.Mode().Perm())
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= metadata.Sticky
	}
	s := metadata.FileStatus{
		Type: metadata.TypeFile, Name: filepath.Base(name), Path: name, Length: info.Size(), Mode: mode, MTime: metadata.TimeOf(info.ModTime()),
		Replication: 1, BlockSize: localBlock,
	}
	s.ATime = s.MTime
	s.Owner, s.Group = localOwner(info)
	if info.IsDir() {
		s.Type, s.Length, s.Replication, s.BlockSize = metadata.TypeDirectory, 0, 0, 0
	}
	return s
}

func (local) Stat(_ context.Context, name string) (metadata.FileStatus, error) {
	info, err := os.Stat(name)
	if err != nil {
		return metadata.FileStatus{}, kinded(err)
	}
	return localStatus(name, info), nil
}

func (l local) StatMany(ctx context.Context, names []string) (*dfs.ManyStatuses, error) {
	many := &dfs.ManyStatuses{Statuses: make([]metadata.FileStatus, len(names)), Errors: make([]error, len(names))}
	for i, name := range names {
		many.Statuses[i], many.Errors[i] = l.Stat(ctx, name)
	}
	return many, nil
}

// List leaves out what goes away meanwhile, and links that lead nowhere.
func (local) List(_ context.Context, name string) ([]metadata.FileStatus, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, kinded(err)
	}
	var list []metadata.FileStatus
	for _, e := range entries {
		child := filepath.Join(name, e.Name())
		if info, err := os.Stat(child); err == nil {
			list = append(list, localStatus(child, info))
		}
	}
	return list, nil
}

// ContentSummary follows no links, so that it ends.
func (local) ContentSummary(ctx context.Context, name string) (metadata.ContentSummary, error) {
	sum := metadata.ContentSummary{Quota: -1, SpaceQuota: -1}
	err := filepath.WalkDir(name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			sum.Directories++
			return ctx.Err()
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			sum.Files++
			sum.Length += info.Size()
		}
		return err
	})
	sum.SpaceConsumed = sum.Length
	return sum, kinded(err)
}

func (local) CheckAccess(_ context.Context, name string, access metadata.Access) error {
	return kinded(unix.Access(name, uint32(access)))
}

// localReader is a local file that is read.
type localReader struct {
	*os.File
	size int64
}

func (r localReader) Size() int64 { return r.size }

func (local) open(_ context.Context, name string) (reader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, kinded(err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, kinded(err)
	}
	return localReader{f, info.Size()}, nil
}

// localWriter is a local file that is written.
type localWriter struct{ *os.File }

func (w localWriter) Abort() { w.File.Close() }

func (local) create(_ context.Context, name string, options dfs.CreateOptions) (writer, error) {
	how := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !options.Overwrite {
		how |= os.O_EXCL
	}
	f, err := os.OpenFile(name, how, fs.FileMode(options.Mode).Perm())
	if err != nil {
		return nil, kinded(err)
	}
	return localWriter{f}, nil
}

func (l local) WriteFile(ctx context.Context, name string, data []byte, overwrite bool) error {
	w, err := l.create(ctx, name, dfs.CreateOptions{Overwrite: overwrite, Mode: 0o666})
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		w.Abort()
		return kinded(err)
	}
	return kinded(w.Close())
}

func (local) Mkdirs(_ context.Context, name string, mode metadata.Mode, parents bool) error {
	if parents {
		return kinded(os.MkdirAll(name, fs.FileMode(mode).Perm()))
	}
	return kinded(os.Mkdir(name, fs.FileMode(mode).Perm()))
}

func (local) Delete(_ context.Context, name string, recursive bool) (bool, error) {
	if recursive {
		return true, kinded(os.RemoveAll(name))
	}
	return true, kinded(os.Remove(name))
}

func (l local) Rename(ctx context.Context, src, dst string) (bool, error) {
	if _, err := os.Lstat(dst); err == nil {
		return false, nil
	}
	return true, l.RenameOverwrite(ctx, src, dst)
}

func (local) RenameOverwrite(_ context.Context, src, dst string) error {
	return kinded(os.Rename(src, dst))
}

func (local) SetPermission(_ context.Context, name string, mode metadata.Mode) error {
	m := fs.FileMode(mode).Perm()
	if mode&metadata.Sticky != 0 {
		m |= fs.ModeSticky
	}
	return kinded(os.Chmod(name, m))
}

func (local) SetOwner(_ context.Context, name, owner, group string) error {
	return chown(name, owner, group)
}

func (local) SetTimes(_ context.Context, name string, mtime, atime metadata.Time) error {
	info, err := os.Stat(name)
	if err != nil {
		return kinded(err)
	}
	m, a := mtime.Time(), atime.Time()
	if mtime < 0 {
		m = info.ModTime()
	}
	if atime < 0 {
		a = m
	}
	return kinded(os.Chtimes(name, a, m))
}
