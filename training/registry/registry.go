package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/store"
)

// Registry is the models of a project.
type Registry struct {
	files   store.FS
	project string
	now     func() time.Time
}

// Open makes the registry of a project. Nothing is read or made.
func Open(files store.FS, project string) (*Registry, error) {
	if err := CheckName("project", project); err != nil {
		return nil, err
	}
	return &Registry{files: files, project: project, now: time.Now}, nil
}

// Root is the directory of the project's models.
func (r *Registry) Root() string { return path.Join("/Projects", r.project, "Models") }

// Directory is that of a model.
func (r *Registry) Directory(name string) string { return path.Join(r.Root(), name) }

// Names are the models that there are.
func (r *Registry) Names(ctx context.Context) ([]string, error) {
	list, err := r.files.List(ctx, r.Root())
	if store.Missing(err) {
		return nil, nil
	}
	var out []string
	for _, s := range list {
		if s.IsDir() && CheckName("model", s.Name) == nil {
			out = append(out, s.Name)
		}
	}
	return out, err
}

// ErrNone is wrapped by errors about models and versions that are not there.
var ErrNone = metadata.ErrNotExist

// numbers are the versions of a model in ascending order, those without model.json included; what is being written is not.
func (r *Registry) numbers(ctx context.Context, name string) (numbers []int, stale []string, err error) {
	if err := CheckName("model", name); err != nil {
		return nil, nil, err
	}
	list, err := r.files.List(ctx, r.Directory(name))
	if store.Missing(err) {
		return nil, nil, metadata.Errorf(metadata.ErrNotExist, "project %s has no model %s", r.project, name)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, s := range list {
		if n, err := strconv.Atoi(s.Name); err == nil && n > 0 && strconv.Itoa(n) == s.Name {
			numbers = append(numbers, n)
		} else if strings.HasPrefix(s.Name, unfinished) && r.now().Sub(s.MTime.Time()) > staleAfter {
			stale = append(stale, path.Join(r.Directory(name), s.Name))
		}
	}
	slices.Sort(numbers)
	return numbers, stale, nil
}

// unfinished is how the directory of a version begins until it is whole; one that nobody touched for so long is removed.
const (
	unfinished = ".new-"
	staleAfter = 24 * time.Hour
)

// Versions are those of a model, oldest first.
func (r *Registry) Versions(ctx context.Context, name string) ([]*Model, error) {
	numbers, _, err := r.numbers(ctx, name)
	if err != nil {
		return nil, err
	}
	var out []*Model
	for _, n := range numbers {
		m, err := r.read(ctx, name, n)
		if store.Missing(err) {
			continue // deleted since, or not a version
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// Version is one of a model; 0 is the highest.
func (r *Registry) Version(ctx context.Context, name string, version int) (*Model, error) {
	numbers, _, err := r.numbers(ctx, name)
	if err != nil {
		return nil, err
	}
	slices.Reverse(numbers)
	for _, n := range numbers {
		if version != 0 && n != version {
			continue
		}
		m, err := r.read(ctx, name, n)
		if !store.Missing(err) {
			return m, err
		}
	}
	if version == 0 {
		return nil, metadata.Errorf(metadata.ErrNotExist, "model %s of project %s has no version", name, r.project)
	}
	return nil, metadata.Errorf(metadata.ErrNotExist, "model %s of project %s has no version %d", name, r.project, version)
}

func (r *Registry) read(ctx context.Context, name string, n int) (*Model, error) {
	dir := path.Join(r.Directory(name), strconv.Itoa(n))
	m, err := readModel(ctx, r.files, dir)
	if err != nil {
		return nil, err
	}
	m.Name, m.Version, m.Directory = name, n, dir // the path counts
	tags, note, err := history.Tags(ctx, r.files, dir)
	if err != nil {
		return nil, err
	}
	m.Tags = tags
	if note != "" {
		m.Description = note
	}
	return m, nil
}

func readModel(ctx context.Context, f store.FS, dir string) (*Model, error) {
	file, err := f.Open(ctx, path.Join(dir, ModelName), 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxModelJSON+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxModelJSON {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s/%s is longer than %d bytes", dir, ModelName, maxModelJSON)
	}
	m, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", dir, ModelName, err)
	}
	return m, nil
}

// Best is the version with the best value of a metric, of equal ones the oldest.
func (r *Registry) Best(ctx context.Context, name, metric string, direction training.Direction) (*Model, error) {
	all, err := r.Versions(ctx, name)
	if err != nil {
		return nil, err
	}
	var best *Model
	has := map[string]bool{}
	for _, m := range all {
		for k := range m.Metrics {
			has[k] = true
		}
		v, ok := m.value(metric)
		if !ok {
			continue
		}
		if best == nil || direction.Better(v, best.Metrics[metric].Value) {
			best = m
		}
	}
	if best == nil {
		known := "none has any metric"
		if len(has) > 0 {
			known = "there are " + strings.Join(slices.Sorted(maps.Keys(has)), ", ")
		}
		return nil, metadata.Errorf(metadata.ErrNotExist, "no version of model %s has a finite value of %q; %s", name, metric, known)
	}
	return best, nil
}

// Export makes a version of a model from the files of a source: m says what it is, its Version which number it is to get, 0 the next
// one. A version is there whole or not at all. overwrite replaces a version that has the number.
//
// Errors: metadata.ErrExist, when the number is taken and overwrite is false.
func (r *Registry) Export(ctx context.Context, m Model, source Source, overwrite bool) (*Model, error) {
	if err := CheckName("model", m.Name); err != nil {
		return nil, err
	}
	if m.Version < 0 || m.Version > 1<<30 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "version %d: a version is a number from 1 on", m.Version)
	}
	if len(m.Description) > maxDescription {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the description has %d bytes, at most %d", len(m.Description), maxDescription)
	}
	for name, v := range m.Metrics {
		if v.Text != "" {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "metric %s: %q is not a number", name, v.Text)
		}
	}
	dir := r.Directory(m.Name)
	if _, err := r.files.Stat(ctx, path.Join(dir, strconv.Itoa(m.Version))); m.Version > 0 && err == nil && !overwrite {
		return nil, taken(m.Name, m.Version) // before anything is copied
	}
	temporary := path.Join(dir, unfinished+uuid.NewString())
	if err := r.files.Mkdirs(ctx, temporary); err != nil {
		return nil, err
	}
	made, err := r.export(ctx, m, source, overwrite, temporary)
	if err != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = r.files.Delete(after, temporary) // err says more
		return nil, err
	}
	return made, nil
}

func taken(name string, version int) error {
	return metadata.Errorf(metadata.ErrExist, "model %s has a version %d; without a version the next number is taken, or overwrite it", name, version)
}

func (r *Registry) export(ctx context.Context, m Model, source Source, overwrite bool, temporary string) (*Model, error) {
	m.Format, m.User, m.Created, m.Files = format, r.files.User(), training.MillisOf(r.now()), []training.File{}
	err := source.Walk(ctx, func(name string, content io.Reader) error {
		if name == ModelName {
			return nil // that of the version it is copied from
		}
		sum := crc32.NewIEEE()
		n, err := store.WriteFile(ctx, r.files, path.Join(temporary, name), io.TeeReader(content, sum), false)
		m.Files = append(m.Files, training.File{Name: name, Size: n, CRC32: sum.Sum32()})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(m.Files) == 0 && m.Source != "" {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s holds no file", m.Source)
	}
	slices.SortFunc(m.Files, func(a, b training.File) int { return cmp.Compare(a.Name, b.Name) })
	chosen := m.Version
	for {
		numbers, stale, err := r.numbers(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		for _, s := range stale {
			if s == temporary { // the clocks differ, or the upload took a day
				continue
			}
			if err := r.files.Delete(ctx, s); err != nil {
				return nil, err
			}
		}
		if m.Version = chosen; chosen == 0 {
			m.Version = 1
			if len(numbers) > 0 {
				m.Version = numbers[len(numbers)-1] + 1
			}
		}
		text, err := json.MarshalIndent(m, "", " ")
		if err != nil {
			return nil, err
		}
		if len(text) > maxModelJSON {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "what is to be written about the model has %d bytes, at most %d", len(text), maxModelJSON)
		}
		if _, err := store.WriteFile(ctx, r.files, path.Join(temporary, ModelName), bytes.NewReader(append(text, '\n')), true); err != nil {
			return nil, err
		}
		to := path.Join(r.Directory(m.Name), strconv.Itoa(m.Version))
		if chosen > 0 && overwrite {
			if err := r.files.Delete(ctx, to); err != nil {
				return nil, err
			}
		}
		err = r.files.Move(ctx, temporary, to)
		if err == nil {
			m.Directory = to
			return &m, nil
		}
		if !errors.Is(err, metadata.ErrExist) {
			return nil, err
		}
		if chosen > 0 && !overwrite {
			return nil, taken(m.Name, m.Version)
		}
	}
}

// Delete removes a version; 0: the model with all of them.
func (r *Registry) Delete(ctx context.Context, name string, version int) error {
	if version == 0 {
		if _, _, err := r.numbers(ctx, name); err != nil {
			return err
		}
		return r.files.Delete(ctx, r.Directory(name))
	}
	m, err := r.Version(ctx, name, version)
	if err != nil {
		return err
	}
	return r.files.Delete(ctx, m.Directory)
}

// Get copies the files of a version into a local directory, which must not be there or be empty, and compares their
// checksums.
func (r *Registry) Get(ctx context.Context, m *Model, local string) error {
	if list, err := os.ReadDir(local); err == nil && len(list) > 0 {
		return metadata.Errorf(metadata.ErrExist, "%s is not empty", local)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	sums := map[string]training.File{}
	for _, f := range m.Files {
		sums[f.Name] = f
	}
	err := FromCluster(r.files, m.Directory).Walk(ctx, func(name string, content io.Reader) error {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("file %q of the model would lie outside of %s", name, local)
		}
		to := filepath.Join(local, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		sum := crc32.NewIEEE()
		n, err := io.Copy(io.MultiWriter(f, sum), content)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		if want, ok := sums[name]; ok && (want.Size != n || want.CRC32 != sum.Sum32()) {
			return fmt.Errorf("%s/%s is not what was exported: %d bytes with CRC-32 %08x, %s says %d and %08x", m.Directory, name, n, sum.Sum32(), ModelName, want.Size, want.CRC32)
		}
		delete(sums, name)
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		return fmt.Errorf("%s/%s is missing, which %s names", m.Directory, name, ModelName)
	}
	return nil
}

// References tells which experiments models are made of: an experiment's id, and one model of it. Models that the user may
// not read, and those that cannot be read, are passed over: the second result names them.
func References(ctx context.Context, files store.FS) (map[string]string, []string, error) {
	out := map[string]string{}
	var skipped []string
	projects, err := files.List(ctx, "/Projects")
	if err != nil && !store.Missing(err) {
		return nil, nil, err
	}
	for _, p := range projects {
		r, err := Open(files, p.Name)
		if err != nil || !p.IsDir() {
			continue
		}
		names, err := r.Names(ctx)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("%s: %v", r.Root(), err))
			continue
		}
		for _, name := range names {
			versions, err := r.Versions(ctx, name)
			if err != nil {
				skipped = append(skipped, fmt.Sprintf("%s: %v", r.Directory(name), err))
				continue
			}
			for _, m := range versions {
				if m.Experiment != "" {
					out[m.Experiment] = fmt.Sprintf("model %s version %d of project %s", m.Name, m.Version, p.Name)
				}
			}
		}
	}
	return out, skipped, nil
}
