package journal

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// volatile is a file layer that remembers what was not synced, so that a power cut can take it away again.
type volatile struct {
	types.VFS
	// cut makes the next sync the moment at which the power fails.
	cut   bool
	files []*volatileFile
}

var errPower = errors.New("the power is gone")

type volatileFile struct {
	types.WritableFile
	v        *volatile
	path     string
	unsynced []preimage
}

// preimage is what was in the file where something was written.
type preimage struct {
	at      int64
	content []byte
}

func (v *volatile) wrap(dir, name string, f types.WritableFile, err error) (types.WritableFile, error) {
	if err != nil {
		return nil, err
	}
	w := &volatileFile{WritableFile: f, v: v, path: filepath.Join(dir, name)}
	v.files = append(v.files, w)
	return w, nil
}

func (v *volatile) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	return v.wrap(dir, name, f, err)
}

func (v *volatile) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.VFS.OpenWriter(dir, name)
	return v.wrap(dir, name, f, err)
}

func (f *volatileFile) WriteAt(b []byte, at int64) (int, error) {
	old := make([]byte, len(b))
	f.WritableFile.ReadAt(old, at) // shorter at the end of the file: zeros were there
	f.unsynced = append(f.unsynced, preimage{at, old})
	return f.WritableFile.WriteAt(b, at)
}

func (f *volatileFile) Sync() error {
	if f.v.cut {
		return errPower
	}
	f.unsynced = nil
	return f.WritableFile.Sync()
}

// fail leaves of what was not synced a random choice of sectors, as disks do.
func (v *volatile) fail(t *testing.T, rng *rand.Rand) {
	t.Helper()
	const sector = 512
	for _, file := range v.files {
		for _, p := range file.unsynced {
			f, err := os.OpenFile(file.path, os.O_RDWR, 0)
			if err != nil {
				continue // deleted since
			}
			for from := int64(0); from < int64(len(p.content)); {
				to := min((p.at+from)/sector*sector+sector-p.at, int64(len(p.content)))
				if rng.IntN(2) == 0 {
					f.WriteAt(p.content[from:to], p.at+from)
				}
				from = to
			}
			f.Close()
		}
	}
}

func TestPowerCutLosesNothingThatWasAcknowledged(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 11))
		cfg := testConfig(t.TempDir())
		cfg.Fatal = func(error) {}
		acked := uint64(0)
		for range 3 { // lives
			v := &volatile{VFS: walfs.New()}
			cfg.Open = func(dir string, n int) (Backend, error) { return openWAL(dir, n, v) }
			j, err := Open(cfg)
			if err != nil {
				t.Fatalf("seed %d: the member does not come back: %v", seed, err)
			}
			last, _ := j.LastIndex()
			if last < acked {
				t.Fatalf("seed %d: the log ends at %d, acknowledged were %d", seed, last, acked)
			}
			first := uint64(1)
			if last == 0 {
				first = 0
			}
			holds(t, j, first, last)
			// What was found counts as acknowledged: raft tells the leader so.
			acked = last
			for n := rng.IntN(60); n >= 0; n-- {
				v.cut = n == 0
				var batch []*raft.Log
				for range 1 + rng.IntN(8) {
					last++
					batch = append(batch, entry(last))
				}
				if err := j.StoreLogs(batch); err != nil {
					if !v.cut {
						t.Fatal(err)
					}
					break
				}
				acked = last
			}
			j.Close()
			v.fail(t, rng)
		}
	}
}
