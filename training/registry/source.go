package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/store"
)

// Source is the files of a model before they are its.
type Source interface {
	// Walk hands each file over by its relative path, with slashes.
	Walk(ctx context.Context, take func(name string, content io.Reader) error) error
}

// FromCluster is a file of the cluster, or a directory with what is in it.
func FromCluster(f store.FS, name string) Source { return cluster{f, name} }

type cluster struct {
	f    store.FS
	name string
}

func (c cluster) Walk(ctx context.Context, take func(string, io.Reader) error) error {
	s, err := c.f.Stat(ctx, c.name)
	if err != nil {
		return err
	}
	one := func(full, name string) error {
		r, err := c.f.Open(ctx, full, 0)
		if err != nil {
			return err
		}
		defer r.Close()
		return take(name, r)
	}
	if !s.IsDir() {
		return one(c.name, path.Base(c.name))
	}
	return store.Walk(ctx, c.f, c.name, func(name string, _ metadata.FileStatus) error {
		return one(path.Join(c.name, name), name)
	})
}

// FromCheckpoint is a committed checkpoint: the files that its manifest names, wherever their bytes lie, compared with it. The
// manifest comes along and says that they lie beside it (training/checkpoint/FORMAT.md).
func FromCheckpoint(f store.FS, dir string) Source { return committed{f, dir} }

type committed struct {
	f   store.FS
	dir string
}

func (c committed) Walk(ctx context.Context, take func(string, io.Reader) error) error {
	name := path.Join(c.dir, checkpoint.ManifestName)
	text, err := store.ReadFile(ctx, c.f, name)
	if err != nil {
		return err
	}
	m, err := checkpoint.ParseManifest(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var files []training.File
	for _, f := range m.Files {
		if f, err = c.one(ctx, checkpoint.Path(c.dir, path.Join(c.dir, m.Blobs), f), f, take); err != nil {
			return err
		}
		files = append(files, f)
	}
	// What else is in it is for the program that reads the model.
	var whole map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&whole); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	whole["version"], whole["files"] = checkpoint.Version1, files
	delete(whole, "blobs")
	if text, err = json.Marshal(whole); err != nil {
		return err
	}
	return take(checkpoint.ManifestName, bytes.NewReader(text))
}

// one hands a file over and compares it: a blob with its name, another file with its CRC-32. It returns the file as one that is no blob.
func (c committed) one(ctx context.Context, from string, want training.File, take func(string, io.Reader) error) (training.File, error) {
	r, err := c.f.Open(ctx, from, 0)
	if err != nil {
		return want, err
	}
	defer r.Close()
	sum, digest := crc32.NewIEEE(), sha256.New()
	sums := io.Writer(sum)
	if want.Blob != "" {
		sums = io.MultiWriter(sum, digest)
	}
	counted := &counter{r: io.TeeReader(r, sums)}
	if err := take(want.Name, counted); err != nil {
		return want, err
	}
	if counted.n != want.Size {
		return want, fmt.Errorf("%s is not what was committed: %d bytes, the manifest says %d", from, counted.n, want.Size)
	}
	if want.Blob == "" && sum.Sum32() != want.CRC32 {
		return want, fmt.Errorf("%s is not what was committed: its CRC-32 is %08x, the manifest says %08x", from, sum.Sum32(), want.CRC32)
	}
	if want.Blob != "" {
		blob, err := checkpoint.ParseBlob(want.Blob)
		if err != nil {
			return want, err
		}
		if found := digest.Sum(nil); !bytes.Equal(found, blob.Sum[:]) {
			return want, fmt.Errorf("%s is not what was committed: its SHA-256 is %x", from, found)
		}
	}
	want.Blob, want.CRC32 = "", sum.Sum32()
	return want, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// FromLocal is a file of this machine, or a directory with what is in it. Links are followed; what is neither a file nor a
// directory is an error.
func FromLocal(name string) Source { return local(name) }

type local string

func (l local) Walk(ctx context.Context, take func(string, io.Reader) error) error {
	info, err := os.Stat(string(l))
	if err != nil {
		return err
	}
	one := func(full, name string) error {
		f, err := os.Open(full)
		if err != nil {
			return err
		}
		defer f.Close()
		return errors.Join(ctx.Err(), take(name, f))
	}
	if !info.IsDir() {
		return one(string(l), filepath.Base(string(l)))
	}
	return filepath.WalkDir(string(l), func(full string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := os.Stat(full); err != nil {
			return err
		} else if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", full)
		}
		name, err := filepath.Rel(string(l), full)
		if err != nil {
			return err
		}
		return one(full, filepath.ToSlash(name))
	})
}

// Lineage adds to a model what its experiment's directory tells: the code's hash, the versions of the data, and, of a
// trial, its parameters. What is not written down there stays empty.
func Lineage(ctx context.Context, f store.FS, m *Model, directory string) error {
	m.Experiment = path.Base(directory)
	var about struct {
		Spec struct {
			Code *training.Code `json:"code"`
		} `json:"spec"`
	}
	if err := read(ctx, f, path.Join(directory, "experiment.json"), &about); err != nil {
		return err
	}
	m.Code = about.Spec.Code
	if err := read(ctx, f, path.Join(directory, history.DataName), &m.Data); err != nil {
		return err
	}
	if m.Trial == "" || m.Params != nil {
		return nil
	}
	return read(ctx, f, path.Join(directory, m.Trial, ".hparams.json"), &m.Params)
}

func read(ctx context.Context, f store.FS, name string, into any) error {
	text, err := store.ReadFile(ctx, f, name)
	if store.Missing(err) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Checkpoint finds the directory of a trial's checkpoint: that of a step, or the newest of the steps that are kept.
func Checkpoint(ctx context.Context, f store.FS, trialDir string, kept []int64, step *int64) (dir string, at int64, err error) {
	if step == nil {
		if len(kept) == 0 {
			return "", 0, metadata.Errorf(metadata.ErrNotExist, "%s has no checkpoint: name the path of the model instead", trialDir)
		}
		step = new(slices.Max(kept))
	}
	if len(kept) > 0 && !slices.Contains(kept, *step) {
		return "", 0, metadata.Errorf(metadata.ErrNotExist, "%s has no checkpoint of step %d; it has %v", trialDir, *step, kept)
	}
	root := path.Join(trialDir, "checkpoints")
	attempts, err := f.List(ctx, root)
	if err != nil {
		return "", 0, err
	}
	newest := -1
	for _, a := range attempts {
		n := 0
		if _, err := fmt.Sscanf(a.Name, "%d", &n); err != nil || n < newest {
			continue
		}
		name := path.Join(root, a.Name, fmt.Sprintf("step-%d", *step))
		if _, err := f.Stat(ctx, path.Join(name, checkpoint.ManifestName)); err == nil {
			dir, newest = name, n
		} else if !store.Missing(err) {
			return "", 0, err
		}
	}
	if dir == "" {
		return "", 0, metadata.Errorf(metadata.ErrNotExist, "the checkpoint of step %d is not in %s", *step, root)
	}
	return dir, *step, nil
}
