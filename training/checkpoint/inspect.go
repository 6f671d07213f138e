package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
)

// FS is what Inspect needs of a filesystem.
type FS interface {
	Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
	Stat(ctx context.Context, path string) (metadata.FileStatus, error)
	List(ctx context.Context, path string) ([]metadata.FileStatus, error)
}

// Claim is what somebody says to have written.
type Claim struct {
	Trial   training.TrialID
	Attempt int
	Step    int64
	URI     string // of the checkpoint's directory
	Blobs   string // of the experiment's directory of blobs
	Files   []training.File
}

// Incomplete says what is missing of a checkpoint that is not whole.
type Incomplete struct {
	URI string
	Why string
}

func (e *Incomplete) Error() string { return fmt.Sprintf("checkpoint %s: %s", e.URI, e.Why) }

// Inspect looks whether a checkpoint is whole: its manifest names the files of the claim, and each is there in its size,
// blobs included. Checksums are left to the reader that goes on from it. An error that is not an *Incomplete is the filesystem's.
func Inspect(ctx context.Context, f FS, c Claim) error {
	incomplete := func(format string, args ...any) error {
		return &Incomplete{c.URI, fmt.Sprintf(format, args...)}
	}
	m, err := readManifest(ctx, f, path.Join(c.URI, ManifestName))
	if bad, ok := errors.AsType[*unreadable](err); ok {
		return incomplete("%s: %v", ManifestName, bad.err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return incomplete("%s is not there", ManifestName)
	}
	if err != nil {
		return err
	}
	if m.Trial != c.Trial || m.Attempt != c.Attempt || m.Step != c.Step {
		return incomplete("%s is of trial %v/%d, step %d", ManifestName, m.Trial, m.Attempt, m.Step)
	}
	stated := make(map[string]training.File, len(m.Files))
	for _, s := range m.Files {
		stated[s.Name] = s
	}
	for _, s := range c.Files {
		if have, ok := stated[s.Name]; !ok || have != s {
			return incomplete("%s in the commit is not what the manifest says", s.Name)
		}
	}
	if len(stated) != len(c.Files) {
		return incomplete("the manifest names %d files, the commit %d", len(stated), len(c.Files))
	}
	if m.Blobs != "" && path.Join(c.URI, m.Blobs) != c.Blobs {
		return incomplete("its blobs are in %s, not in %s", path.Join(c.URI, m.Blobs), c.Blobs)
	}
	return sizes(ctx, f, c, incomplete)
}

func sizes(ctx context.Context, f FS, c Claim, incomplete func(string, ...any) error) error {
	found := map[string]int64{}
	listed := map[string]bool{}
	for _, s := range c.Files {
		at := Path(c.URI, c.Blobs, s)
		if s.Blob != "" { // among those of other checkpoints, which are not to be listed each time
			st, err := f.Stat(ctx, at)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil && !st.IsDir() {
				found[at] = st.Length
			}
		} else if dir := path.Dir(at); !listed[dir] {
			listed[dir] = true
			entries, err := f.List(ctx, dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, e := range entries {
				if !e.IsDir() {
					found[path.Join(dir, e.Name)] = e.Length
				}
			}
		}
		size, ok := found[at]
		if !ok && s.Blob != "" {
			return incomplete("%s is not there (blob %s)", s.Name, s.Blob)
		}
		if !ok {
			return incomplete("%s is not there", s.Name)
		}
		if size != s.Size {
			return incomplete("%s has %d bytes, the manifest says %d", s.Name, size, s.Size)
		}
	}
	return nil
}

// unreadable: the manifest is there, and no manifest.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return e.err.Error() }

func readManifest(ctx context.Context, f FS, name string) (*Manifest, error) {
	r, err := f.Open(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, MaxManifest+1))
	if err != nil {
		return nil, err
	}
	m, err := ParseManifest(b)
	if err != nil {
		return nil, &unreadable{err}
	}
	return m, nil
}
