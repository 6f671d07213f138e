package dfs

import (
	"context"
	"io"
	"io/fs"
	"path"
	"sort"
	"time"

	"github.com/gohops/hops/metadata"
)

// FS is a view of the tree under root as the standard library's file system; ctx bounds every operation on it. Files are
// also io.Seekers and io.ReaderAts.
func (c *Client) FS(ctx context.Context, root string) fs.FS { return &view{c: c, ctx: ctx, root: root} }

// view implements fs.FS, fs.StatFS, fs.ReadDirFS and fs.ReadFileFS. io/fs has no contexts, so it holds one.
type view struct {
	c    *Client
	ctx  context.Context
	root string
}

func (v *view) full(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return path.Join(v.root, name), nil
}

// pathError words an error as io/fs wants it.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (v *view) Open(name string) (fs.File, error) {
	full, err := v.full("open", name)
	if err != nil {
		return nil, err
	}
	status, err := v.c.Stat(v.ctx, full)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	info := fileInfo{path.Base(name), status}
	if status.IsDir() {
		return &openDir{v: v, name: name, info: info}, nil
	}
	r, err := v.c.Open(v.ctx, full)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &openFile{r, info}, nil
}

func (v *view) Stat(name string) (fs.FileInfo, error) {
	full, err := v.full("stat", name)
	if err != nil {
		return nil, err
	}
	status, err := v.c.Stat(v.ctx, full)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return fileInfo{path.Base(name), status}, nil
}

func (v *view) ReadDir(name string) ([]fs.DirEntry, error) {
	full, err := v.full("readdir", name)
	if err != nil {
		return nil, err
	}
	list, err := v.c.List(v.ctx, full)
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	if len(list) == 1 && list[0].Name == "" {
		return nil, pathError("readdir", name, metadata.Errorf(metadata.ErrInvalidArgument, "not a directory"))
	}
	entries := make([]fs.DirEntry, len(list))
	for i, status := range list {
		entries[i] = fs.FileInfoToDirEntry(fileInfo{status.Name, status})
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	return entries, nil
}

func (v *view) ReadFile(name string) ([]byte, error) {
	full, err := v.full("readfile", name)
	if err != nil {
		return nil, err
	}
	data, err := v.c.ReadFile(v.ctx, full)
	return data, pathError("readfile", name, err)
}

// fileInfo is a status as fs.FileInfo; Sys returns the metadata.FileStatus.
type fileInfo struct {
	name   string
	status metadata.FileStatus
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.status.Length }
func (i fileInfo) Mode() fs.FileMode  { return i.status.FSMode() }
func (i fileInfo) ModTime() time.Time { return i.status.MTime.Time() }
func (i fileInfo) IsDir() bool        { return i.status.IsDir() }
func (i fileInfo) Sys() any           { return i.status }

// openFile is a Reader as fs.File.
type openFile struct {
	*Reader
	info fileInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// openDir is a directory as fs.ReadDirFile; it lists when it is asked first.
type openDir struct {
	v      *view
	name   string
	info   fileInfo
	listed bool
	rest   []fs.DirEntry
	closed bool
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, pathError("read", d.name, metadata.Errorf(metadata.ErrInvalidArgument, "is a directory"))
}

func (d *openDir) Close() error {
	if d.closed {
		return pathError("close", d.name, fs.ErrClosed)
	}
	d.closed = true
	return nil
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, pathError("readdir", d.name, fs.ErrClosed)
	}
	if !d.listed {
		list, err := d.v.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.listed, d.rest = true, list
	}
	if n <= 0 || n > len(d.rest) {
		if n > 0 && len(d.rest) == 0 {
			return nil, io.EOF
		}
		n = len(d.rest)
	}
	entries := d.rest[:n]
	d.rest = d.rest[n:]
	return entries, nil
}
