package client

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// What may be sent with a job. Data belongs into the filesystem, where it is read in place.
const (
	maxStagedBytes = 1 << 30
	maxStagedFiles = 50_000
	// stagedFor is how long what was sent is kept after its last use.
	stagedFor = 30 * 24 * time.Hour
)

// Staged is what Stage made.
type Staged struct {
	// URI is an archive in the filesystem, for Job.Workdir.
	URI   string
	Files int
	Bytes int64
	// LeftOut are directories that do not travel: .git, __pycache__, virtual environments.
	LeftOut []string
}

// Stage packs local files and directories and stores them in the user's staging directory of the filesystem, under the
// hash of their content, so that the same ones are sent once. A file or a directory gets its own name in the archive; "."
// and other names that end in a dot give their content. What nobody used for a month is removed.
//
// The archive is a zip whose bytes depend on names, contents and execute permissions alone. Links are followed to files.
func (c *Client) Stage(ctx context.Context, names []string) (*Staged, error) {
	f, err := os.CreateTemp("", "hops-stage-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	sum := sha256.New()
	p := &packing{ctx: ctx, zip: zip.NewWriter(io.MultiWriter(f, sum)), taken: map[string]string{}}
	for _, name := range names {
		if err := p.add(name); err != nil {
			return nil, err
		}
	}
	if err := p.zip.Close(); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	dir := path.Join(c.fs.Home(), ".hops", "staging")
	p.made.URI = path.Join(dir, hex.EncodeToString(sum.Sum(nil))+".zip")
	return &p.made, c.store(ctx, dir, p.made.URI, f)
}

// store puts a file where it is not yet, and removes old ones beside it.
func (c *Client) store(ctx context.Context, dir, name string, r io.Reader) error {
	now := metadata.TimeOf(time.Now())
	if _, err := c.fs.Stat(ctx, name); err == nil {
		return c.fs.SetTimes(ctx, name, now, -1) // it is in use
	} else if !errors.Is(err, metadata.ErrNotExist) {
		return err
	}
	if err := c.fs.Mkdirs(ctx, dir, 0o700, true); err != nil {
		return err
	}
	list, err := c.fs.List(ctx, dir)
	if err != nil {
		return err
	}
	for _, old := range list {
		if time.Since(old.MTime.Time()) > stagedFor {
			if _, err := c.fs.Delete(ctx, path.Join(dir, old.Name), false); err != nil {
				return err
			}
		}
	}
	temporary := name + "." + uuid.NewString() + ".tmp"
	w, err := c.fs.Create(ctx, temporary, dfs.CreateOptions{Mode: 0o600})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.Abort)
	_, err = io.Copy(w, r)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		w.Abort()
	} else if err = w.Close(); err != nil {
		w.Abort()
	}
	if err == nil {
		err = c.fs.RenameStrict(ctx, temporary, name)
	}
	if err != nil {
		_, _ = c.fs.Delete(context.WithoutCancel(ctx), temporary, false)
	}
	if errors.Is(err, metadata.ErrExist) { // somebody else was faster with the same bytes
		err = nil
	}
	return err
}

// packing is an archive in the making.
type packing struct {
	ctx   context.Context
	zip   *zip.Writer
	taken map[string]string // names in the archive, and where they come from
	made  Staged
}

func (p *packing) add(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	inside := ""
	if last := filepath.Base(filepath.Clean(name)); last != "." && last != ".." {
		inside = last
	} else if abs, err := filepath.Abs(name); err != nil || abs == "/" {
		return fmt.Errorf("%s is the root of this machine's files: name a directory", name)
	}
	return p.walk(name, inside, info)
}

// walk adds a file or, in the order of names, what is in a directory.
func (p *packing) walk(name, inside string, info fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		return p.file(name, inside, info)
	}
	if !info.IsDir() {
		return nil // sockets, pipes
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		child := filepath.Join(name, e.Name())
		info, err := os.Stat(child)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a link that leads nowhere, or it has just gone
		}
		if err != nil {
			return err
		}
		if info.IsDir() && (e.Type()&fs.ModeSymlink != 0 || stays(child, e.Name())) {
			p.made.LeftOut = append(p.made.LeftOut, child)
			continue
		}
		if err := p.walk(child, path.Join(inside, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

// stays tells directories that are of this machine.
func stays(dir, name string) bool {
	if name == ".git" || name == "__pycache__" || name == ".hg" || name == ".svn" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "pyvenv.cfg"))
	return err == nil
}

func (p *packing) file(name, inside string, info fs.FileInfo) error {
	if other, taken := p.taken[inside]; taken {
		return fmt.Errorf("%s and %s have the same name in the working directory", other, name)
	}
	p.taken[inside] = name
	p.made.Files++
	p.made.Bytes += info.Size()
	if p.made.Files > maxStagedFiles || p.made.Bytes > maxStagedBytes {
		return fmt.Errorf("%s: more than %d files or %d MiB are not sent with a job: put data into the filesystem (hops fs -put) and read it there", name, maxStagedFiles, maxStagedBytes>>20)
	}
	header := &zip.FileHeader{Name: inside, Method: zip.Deflate} // no time: the same files make the same bytes
	header.SetMode(0o644 | info.Mode().Perm()&0o111)
	w, err := p.zip.CreateHeader(header)
	if err != nil {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, io.LimitReader(f, maxStagedBytes))
	return err
}
