package shell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// copying is the suffix of a file that is not complete yet; it gets its name when it is.
const copying = "._COPYING_"

// copyBuffer is how much is read from a local file at a time, in bytes.
const copyBuffer = 1 << 20

func runPut(ctx context.Context, s *Shell, args []string) error {
	return s.put(ctx, args, nil)
}

func runMoveFromLocal(ctx context.Context, s *Shell, args []string) error {
	return s.put(ctx, args, os.RemoveAll)
}

// copyAll runs f, which adds copies, and waits for them, while the terminal shows how far they are.
func (s *Shell) copyAll(ctx context.Context, f func(t *tasks) error) error {
	t, err := s.newTasks(ctx)
	if err != nil {
		return err
	}
	s.meter = s.newMeter()
	defer s.meter.end()
	err = f(t)
	return cmp.Or(t.wait(), err)
}

// put copies local files; done, if not nil, is called with each source that was copied whole.
func (s *Shell) put(ctx context.Context, args []string, done func(string) error) error {
	sources, last := args, "."
	if len(args) > 1 {
		sources, last = args[:len(args)-1], args[len(args)-1]
	}
	return s.in(last, func() error {
		if len(sources) == 1 && sources[0] == "-" {
			dst, err := s.destination(ctx, last, sources, s.option("f"))
			if err != nil {
				return err
			}
			target, err := s.targetOf(ctx, item{path: "/-"}, dst, last)
			if err != nil {
				return err
			}
			return s.putStream(ctx, newInput(ctx, s.Stdin), &s.place, target, 0o666)
		}
		found := make([]string, len(sources)) // local names have no wildcards: the shell around this one has seen to them
		for i, source := range sources {
			found[i] = localName(source)
		}
		dst, err := s.destination(ctx, last, found, s.option("f"))
		if err != nil {
			return err
		}
		return s.copyAll(ctx, func(t *tasks) error {
			go s.meter.measure(ctx, found)
			for _, source := range found {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				before := 0
				if done != nil {
					t.settle()
					before = s.errors // nobody reports now
				}
				t.claim(filepath.Base(source))
				err := s.putSource(ctx, t, source, dst, last)
				var wrong usageError
				if errors.As(err, &wrong) {
					return err
				}
				t.failed(err)
				if done == nil {
					continue
				}
				if t.settle(); s.errors == before && t.ctx.Err() == nil {
					t.failed(done(source))
				}
			}
			return nil
		})
	})
}

// measure tells the meter what there is to copy, beside the copies.
func (m *meter) measure(ctx context.Context, sources []string) {
	if m == nil {
		return
	}
	var files, bytes int64
	for _, source := range sources {
		sum, err := local{}.ContentSummary(ctx, source)
		if err != nil {
			return
		}
		files, bytes = files+sum.Files, bytes+sum.Length
	}
	m.expect(files, bytes)
}

func (s *Shell) putSource(ctx context.Context, t *tasks, source string, dst item, last string) error {
	info, err := localStat(source)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	target, err := s.targetOf(ctx, item{path: "/" + filepath.Base(abs)}, dst, last)
	if err != nil {
		return err
	}
	return s.putTree(ctx, t, source, info, target)
}

// putTree makes the directories of a local tree and adds its files to the tasks.
func (s *Shell) putTree(ctx context.Context, t *tasks, source string, info fs.FileInfo, target item) error {
	to := s.place
	if !info.IsDir() {
		t.add(func(ctx context.Context) error { return s.putFile(ctx, source, info, &to, target) })
		return nil
	}
	if target.status != nil && !target.isDir() {
		return notDirectory(target.shown)
	}
	made := target.status == nil
	if made {
		if err := s.fs.Mkdirs(ctx, target.path, 0o777, false); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		t.failed(func() error {
			info, err := os.Stat(filepath.Join(source, e.Name()))
			if err != nil {
				return err
			}
			child, err := s.below(ctx, target, e.Name(), made)
			if err != nil {
				return err
			}
			return s.putTree(ctx, t, filepath.Join(source, e.Name()), info, child)
		}())
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
	}
	t.afterwards(func() error { return s.preserve(ctx, &to, target.path, info) })
	return nil
}

// below is what is at a name in a directory; a directory that was just made is empty.
func (s *place) below(ctx context.Context, dir item, name string, made bool) (item, error) {
	if !made {
		return s.look(ctx, childPath(dir.shown, name))
	}
	if strings.Contains(name, ":") { // refused, in its words
		return s.look(ctx, childPath(dir.shown, name))
	}
	return item{shown: childPath(dir.shown, name), path: childPath(dir.path, name), uri: s.uri}, nil
}

func (s *Shell) putFile(ctx context.Context, source string, info fs.FileInfo, to *place, target item) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := s.putStream(ctx, f, to, target, 0o666); err != nil {
		return err
	}
	return s.preserve(ctx, to, target.path, info)
}

// putStream writes a file under a temporary name, unless -d says otherwise, and gives it its own when it is durable.
func (s *Shell) putStream(ctx context.Context, r io.Reader, to *place, target item, mode metadata.Mode) error {
	if target.isDir() || target.status != nil && !s.option("f") {
		return exists(target.shown)
	}
	name := target.path
	if !s.option("d") {
		name += copying
	}
	notMade := func(err error) error {
		if errors.Is(err, metadata.ErrNotExist) {
			return &pathError{path: target.shown, text: "No such file or directory", qualified: to.qualified(target.path)}
		}
		return refused(err)
	}
	options := dfs.CreateOptions{Overwrite: true, Mode: mode, Late: true}
	if s.option("l") {
		options.LazyPersist, options.Replication = true, 1
	}
	w, err := to.fs.create(ctx, name, options)
	if err != nil {
		return notMade(err)
	}
	stop := context.AfterFunc(ctx, w.Abort)
	_, err = io.CopyBuffer(w, bound{ctx, r, s.meter}, make([]byte, copyBuffer))
	if !stop() {
		err = ctx.Err() // what the writer says of it is noise
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		w.Abort()
		if w, ok := w.(*dfs.Writer); ok && w.INode() == 0 { // there may be another one of that name
			return notMade(err)
		}
		_, _ = to.fs.Delete(context.WithoutCancel(ctx), name, false)
		return err
	}
	s.meter.file()
	if name == target.path {
		return nil
	}
	if target.status != nil {
		return to.fs.RenameOverwrite(ctx, name, target.path)
	}
	ok, err := to.fs.Rename(ctx, name, target.path)
	if err == nil && !ok {
		return failed(target.shown)
	}
	return err
}

// onlyReader hides a file's WriteTo, so that io.CopyBuffer uses the writer's ReadFrom or the buffer.
type onlyReader struct{ io.Reader }

// found is what a word means, in its filesystem.
type found struct {
	from place
	item item
}

// expandIn is expand for words that may be in several filesystems.
func (s *Shell) expandIn(ctx context.Context, words []string) ([]found, error) {
	var all []found
	for _, word := range words {
		err := s.in(word, func() error {
			items, err := s.expand(ctx, []string{word}, false)
			for _, it := range items {
				all = append(all, found{s.place, it})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func runGet(ctx context.Context, s *Shell, args []string) error {
	sources, dst := args, "."
	if len(args) > 1 {
		sources, dst = args[:len(args)-1], localName(args[len(args)-1])
	}
	info, err := os.Stat(dst)
	isDir := err == nil && info.IsDir()
	items, wrong := s.expandIn(ctx, sources)
	if wrong != nil {
		return wrong
	}
	switch {
	case len(items) == 0:
		return nil
	case len(items) > 1 && err != nil:
		return notFound(dst)
	case len(items) > 1 && !isDir:
		return notDirectory(dst)
	case err == nil && !isDir && !s.option("f"):
		return exists(dst)
	case err != nil:
		if parent, perr := os.Stat(filepath.Dir(dst)); perr != nil || !parent.IsDir() {
			abs, _ := filepath.Abs(dst)
			return &pathError{path: dst, text: "No such file or directory", qualified: localURI + abs}
		}
	}
	return s.copyAll(ctx, func(t *tasks) error {
		for _, f := range items {
			s.weigh(ctx, &f.from, f.item)
			t.claim(path.Base(f.item.path))
			target := dst
			if isDir || strings.HasSuffix(dst, "/") {
				target = filepath.Join(dst, path.Base(f.item.path))
			}
			t.failed(s.getTree(ctx, t, f.from, f.item, target))
			if t.ctx.Err() != nil {
				return t.ctx.Err()
			}
		}
		return nil
	})
}

// weigh tells the meter what there is to copy.
func (s *Shell) weigh(ctx context.Context, from *place, it item) {
	switch {
	case s.meter == nil:
	case !it.isDir():
		s.meter.expect(1, it.status.Length)
	default:
		if sum, err := from.fs.ContentSummary(ctx, it.path); err == nil {
			s.meter.expect(sum.Files, sum.Length)
		}
	}
}

// localName is the local file that a word names.
func localName(word string) string {
	if name, ok := strings.CutPrefix(word, localURI); ok {
		return name
	}
	return strings.TrimPrefix(word, "file:")
}

// getTree makes the directories of a tree here and adds its files to the tasks.
func (s *Shell) getTree(ctx context.Context, t *tasks, from place, it item, target string) error {
	info, err := os.Stat(target)
	if !it.isDir() {
		if err == nil && (info.IsDir() || !s.option("f")) {
			return exists(target)
		}
		t.add(func(ctx context.Context) error { return s.getFile(ctx, &from, it, target) })
		return nil
	}
	if err == nil && !info.IsDir() {
		return notDirectory(target)
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	children, err := from.children(ctx, it)
	if err != nil {
		return err
	}
	for _, child := range children {
		t.failed(s.getTree(ctx, t, from, child, filepath.Join(target, path.Base(child.path))))
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
	}
	t.afterwards(func() error { return s.preserveLocal(it, target) })
	return nil
}

func (s *Shell) getFile(ctx context.Context, from *place, it item, target string) error {
	r, err := from.fs.open(ctx, it.path)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.OpenFile(target+copying, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	var sums *crcWriter
	w := io.Writer(f)
	if s.option("crc") {
		sums = &crcWriter{}
		w = io.MultiWriter(f, sums)
	}
	_, err = io.Copy(boundWriter{ctx, w, s.meter}, r)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(target + copying)
		return err
	}
	if err := os.Rename(target+copying, target); err != nil {
		return err
	}
	s.meter.file()
	if sums != nil {
		name := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".crc")
		if err := os.WriteFile(name, sums.file(), 0o644); err != nil {
			return err
		}
	}
	return s.preserveLocal(it, target)
}

func runMoveToLocal(_ context.Context, s *Shell, _ []string) error {
	return fmt.Errorf("Option '-%s' is not implemented yet.", s.verb)
}

// runGetmerge writes the files in directories, which are not gone down further, one after the other into a local file;
// -nl puts a newline behind each. A file that it made and could not complete is removed.
func runGetmerge(ctx context.Context, s *Shell, args []string) error {
	sources, dst := args[:len(args)-1], localName(args[len(args)-1])
	items, err := s.expandIn(ctx, sources)
	if err != nil {
		return err
	}
	var files []found
	for _, it := range items {
		if !it.item.isDir() {
			files = append(files, it)
			continue
		}
		children, err := it.from.children(ctx, it.item)
		if err != nil {
			return err
		}
		for _, child := range slices.DeleteFunc(children, item.isDir) {
			files = append(files, found{it.from, child})
		}
	}
	if len(items) == 0 || s.errors > 0 {
		return nil
	}
	info, err := os.Stat(dst)
	if err == nil && info.IsDir() {
		return isDirectory(dst)
	}
	f, ferr := os.Create(dst)
	if ferr != nil {
		return ferr
	}
	made := errors.Is(err, fs.ErrNotExist)
	s.meter = s.newMeter()
	defer s.meter.end()
	for _, it := range files {
		s.weigh(ctx, &it.from, it.item)
	}
	err = nil
	for _, it := range files {
		if s.option("skip-empty-file") && it.item.status.Length == 0 {
			continue
		}
		if err = s.merge(ctx, &it.from, it.item, f); err != nil {
			break
		}
		s.meter.file()
	}
	err = errors.Join(err, f.Close())
	if err != nil && made {
		os.Remove(dst)
	}
	return err
}

func (s *Shell) merge(ctx context.Context, from *place, it item, f *os.File) error {
	r, err := from.fs.open(ctx, it.path)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(boundWriter{ctx, f, s.meter}, r); err != nil {
		return err
	}
	if s.option("nl") {
		_, err = f.WriteString("\n")
	}
	return err
}

// crcWriter makes the checksum file of Hadoop's local filesystem: "crc\0", bytes per checksum (int32), one CRC-32 per 512
// bytes, all big-endian.
type crcWriter struct {
	sums []byte
	n    int
	crc  uint32
}

func (c *crcWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		k := min(512-c.n, len(rest))
		c.crc = crc32.Update(c.crc, crc32.IEEETable, rest[:k])
		c.n += k
		rest = rest[k:]
		if c.n == 512 {
			c.end()
		}
	}
	return len(p), nil
}

func (c *crcWriter) end() {
	c.sums = append(c.sums, byte(c.crc>>24), byte(c.crc>>16), byte(c.crc>>8), byte(c.crc))
	c.n, c.crc = 0, 0
}

func (c *crcWriter) file() []byte {
	if c.n > 0 {
		c.end()
	}
	return slices.Concat([]byte("crc\x00\x00\x00\x02\x00"), c.sums)
}

// runCp copies within a filesystem, between two, and from and to this machine's.
func runCp(ctx context.Context, s *Shell, args []string) error {
	sources, last := args[:len(args)-1], args[len(args)-1]
	if _, err := s.keeps(); err != nil {
		return err
	}
	isLocal := func(word string) bool { return placeOf(word) == localURI }
	switch {
	case isLocal(last) && !slices.ContainsFunc(sources, isLocal):
		return runGet(ctx, s, args)
	case !isLocal(last) && !slices.ContainsFunc(sources, func(word string) bool { return !isLocal(word) }):
		return runPut(ctx, s, args)
	}
	return s.in(last, func() error {
		dst, err := s.destination(ctx, last, sources, s.option("f"))
		if err != nil {
			return err
		}
		to := s.place
		found, err := s.expandIn(ctx, sources)
		if err != nil {
			return err
		}
		return s.copyAll(ctx, func(t *tasks) error {
			for _, f := range found {
				t.failed(func() error {
					t.claim(path.Base(f.item.path))
					target, err := to.targetOf(ctx, f.item, dst, last)
					if err != nil {
						return err
					}
					s.weigh(ctx, &f.from, f.item)
					return s.cpTree(ctx, t, &f.from, f.item, &to, target)
				}())
			}
			return nil
		})
	})
}

// cpTree makes the directories of a copy and adds its files to the tasks.
func (s *Shell) cpTree(ctx context.Context, t *tasks, from *place, src item, to *place, target item) error {
	if !src.isDir() {
		t.add(func(ctx context.Context) error {
			r, err := from.fs.open(ctx, src.path)
			if err != nil {
				return err
			}
			defer r.Close()
			if err := s.putStream(ctx, r, to, target, 0o666); err != nil {
				return err
			}
			return s.preserveCopy(ctx, from, src, to, target.path)
		})
		return nil
	}
	if target.status != nil && !target.isDir() {
		return notDirectory(target.shown)
	}
	made := target.status == nil
	if made {
		if err := to.fs.Mkdirs(ctx, target.path, 0o777, false); err != nil {
			return err
		}
	}
	children, err := from.children(ctx, src)
	if err != nil {
		return err
	}
	for _, child := range children {
		into, err := to.below(ctx, target, path.Base(child.path), made)
		if err == nil {
			err = s.cpTree(ctx, t, from, child, to, into)
		}
		t.failed(err)
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
	}
	t.afterwards(func() error { return s.preserveCopy(ctx, from, src, to, target.path) })
	return nil
}

func runAppend(ctx context.Context, s *Shell, args []string) error {
	if len(args) < 2 {
		return errors.New("missing destination argument")
	}
	sources, last := args[:len(args)-1], args[len(args)-1]
	if slices.Contains(sources, "-") && len(sources) > 1 {
		return usageError{"'-' must be the only source"}
	}
	dst, err := s.look(ctx, last)
	if err != nil {
		return err
	}
	var files []io.Reader
	for _, source := range sources {
		if source == "-" {
			files = append(files, newInput(ctx, s.Stdin))
			continue
		}
		source = localName(source)
		f, err := os.Open(source)
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New(source)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	if dst.status == nil {
		if err := s.fs.Mkdirs(ctx, path.Dir(dst.path), 0o777, true); err != nil {
			return err
		}
		if err := s.fs.WriteFile(ctx, dst.path, nil, false); err != nil {
			return refused(err)
		}
	}
	w, err := s.client.AppendWith(ctx, dst.path, dfs.AppendOptions{NewBlock: s.option("n")})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.Abort)
	defer stop()
	for _, f := range files {
		if _, err := io.CopyBuffer(w, onlyReader{f}, make([]byte, copyBuffer)); err != nil {
			w.Abort()
			return fmt.Errorf("%s: %w", dst.shown, err)
		}
	}
	if err := w.Close(); err != nil {
		w.Abort() // after the context has ended, the file would stay open
		return err
	}
	return nil
}
