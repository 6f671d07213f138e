package checkpoint

import (
	"errors"
	"fmt"

	"github.com/gohops/hops/training"
)

// ErrGone says that a commit names a blob that no committed checkpoint has, or has with other bytes: it has to be
// written anew.
var ErrGone = errors.New("is of no committed checkpoint any more: save the checkpoint anew")

// Blobs counts which blobs the committed checkpoints of an experiment use. The zero value is that of an experiment
// without checkpoints. It follows from them, and is not stored.
type Blobs struct {
	used map[string]use
}

type use struct {
	checkpoints int
	size        int64
}

// Add counts the blobs of a checkpoint that is committed.
func (b *Blobs) Add(files []training.File) {
	for name, f := range distinct(files) {
		if b.used == nil {
			b.used = map[string]use{}
		}
		u := b.used[name]
		b.used[name] = use{u.checkpoints + 1, f.Size}
	}
}

// Drop discounts the blobs of a checkpoint that is dropped, and returns those that nobody uses any more, in the order
// of the files. They can be removed as soon as the drop is written down.
func (b *Blobs) Drop(files []training.File) (free []string) {
	left := distinct(files)
	for _, f := range files {
		if _, ok := left[f.Blob]; !ok {
			continue
		}
		delete(left, f.Blob)
		u := b.used[f.Blob]
		if u.checkpoints--; u.checkpoints > 0 {
			b.used[f.Blob] = u
		} else {
			delete(b.used, f.Blob)
			free = append(free, f.Blob)
		}
	}
	return free
}

// Uses says whether a committed checkpoint has this blob.
func (b *Blobs) Uses(name string) bool { return b.used[name].checkpoints > 0 }

// Check refuses a commit by a trial's attempt whose blobs are neither its own nor those of a committed checkpoint:
// ErrGone if writing them anew helps.
func (b *Blobs) Check(trial training.TrialID, attempt int, step int64, files []training.File) error {
	for _, f := range files {
		if f.Blob == "" {
			continue
		}
		name, err := ParseBlob(f.Blob)
		if err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
		u, used := b.used[f.Blob]
		switch {
		case used && u.size != f.Size:
			return fmt.Errorf("file %q: blob %s has %d bytes, not %d: %w", f.Name, f.Blob, u.size, f.Size, ErrGone)
		case !used && (name.Trial != trial || name.Attempt != attempt || name.Step != step):
			return fmt.Errorf("file %q: blob %s %w", f.Name, f.Blob, ErrGone)
		}
	}
	return nil
}

// distinct are the files that are blobs, by the names of these.
func distinct(files []training.File) map[string]training.File {
	out := map[string]training.File{}
	for _, f := range files {
		if f.Blob != "" {
			out[f.Blob] = f
		}
	}
	return out
}
