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
	return s.put(ctx, args, func(string) error { return nil })
}

func runMoveFromLocal(ctx context.Context, s *Shell, args []string) error {
	return s.put(ctx, args, os.RemoveAll)
}

// put copies local files; done is called with each source that was copied whole.
func (s *Shell) put(ctx context.Context, args []string, done func(string) error) error {
	sources, last := args, "."
	if len(args) > 1 {
		sources, last = args[:len(args)-1], args[len(args)-1]
	}
	if len(sources) == 1 && sources[0] == "-" {
		dst, err := s.destination(ctx, last, sources, s.option("f"))
		if err != nil {
			return err
		}
		target, err := s.targetOf(ctx, item{path: "/-"}, dst, last)
		if err != nil {
			return err
		}
		return s.putStream(ctx, s.Stdin, target, 0o666)
	}
	found := make([]string, len(sources)) // local names have no wildcards: the shell around this one has seen to them
	for i, source := range sources {
		found[i] = strings.TrimPrefix(source, "file://")
	}
	dst, err := s.destination(ctx, last, found, s.option("f"))
	if err != nil {
		return err
	}
	for _, source := range found {
		err := func() error {
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
			before := s.errors
			if err := s.putTree(ctx, source, info, target); err != nil {
				return err
			}
			if s.errors > before {
				return nil
			}
			return done(source)
		}()
		var wrong usageError
		if errors.As(err, &wrong) {
			return err
		}
		if err != nil {
			s.report(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (s *Shell) putTree(ctx context.Context, source string, info fs.FileInfo, target item) error {
	if !info.IsDir() {
		f, err := os.Open(source)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := s.putStream(ctx, f, target, 0o666); err != nil {
			return err
		}
		return s.preserve(ctx, target.path, info)
	}
	if target.status != nil && !target.isDir() {
		return notDirectory(target.shown)
	}
	if target.status == nil {
		if err := s.client.Mkdirs(ctx, target.path, 0o777, false); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		err := func() error {
			info, err := os.Stat(filepath.Join(source, e.Name()))
			if err != nil {
				return err
			}
			child, err := s.look(ctx, childPath(target.shown, e.Name()))
			if err != nil {
				return err
			}
			return s.putTree(ctx, filepath.Join(source, e.Name()), info, child)
		}()
		if err != nil {
			s.report(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.preserve(ctx, target.path, info)
}

// putStream writes a file under a temporary name, unless -d says otherwise, and gives it its own when it is durable.
func (s *Shell) putStream(ctx context.Context, r io.Reader, target item, mode metadata.Mode) error {
	if target.isDir() || target.status != nil && !s.option("f") {
		return exists(target.shown)
	}
	name := target.path
	if !s.option("d") {
		name += copying
	}
	w, err := s.client.Create(ctx, name, dfs.CreateOptions{Overwrite: true, Mode: mode})
	if err != nil {
		if errors.Is(err, metadata.ErrNotExist) {
			return &pathError{path: target.shown, text: "No such file or directory", qualified: s.qualified(target.path)}
		}
		return refused(err)
	}
	stop := context.AfterFunc(ctx, w.Abort)
	_, err = io.CopyBuffer(w, onlyReader{r}, make([]byte, copyBuffer))
	if !stop() {
		err = cmp.Or(err, ctx.Err())
	}
	if err != nil {
		w.Abort()
		_, _ = s.client.Delete(context.WithoutCancel(ctx), name, false)
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if name == target.path {
		return nil
	}
	if target.status != nil {
		return s.client.RenameOverwrite(ctx, name, target.path)
	}
	ok, err := s.client.Rename(ctx, name, target.path)
	if err == nil && !ok {
		return failed(target.shown)
	}
	return err
}

// onlyReader hides a file's WriteTo, so that io.CopyBuffer uses the writer's ReadFrom or the buffer.
type onlyReader struct{ io.Reader }

func runGet(ctx context.Context, s *Shell, args []string) error {
	sources, dst := args, "."
	if len(args) > 1 {
		sources, dst = args[:len(args)-1], strings.TrimPrefix(args[len(args)-1], "file://")
	}
	info, err := os.Stat(dst)
	isDir := err == nil && info.IsDir()
	items, wrong := s.expand(ctx, sources, false)
	if len(items) == 0 {
		return wrong
	}
	switch {
	case len(items) > 1 && err != nil:
		return notFound(dst)
	case len(items) > 1 && !isDir:
		return notDirectory(dst)
	case err == nil && !isDir && !s.option("f"):
		return exists(dst)
	case err != nil:
		if parent, perr := os.Stat(filepath.Dir(dst)); perr != nil || !parent.IsDir() {
			abs, _ := filepath.Abs(dst)
			return &pathError{path: dst, text: "No such file or directory", qualified: "file://" + abs}
		}
	}
	for _, it := range items {
		target := dst
		if isDir || strings.HasSuffix(dst, "/") {
			target = filepath.Join(dst, path.Base(it.path))
		}
		if err := s.getTree(ctx, it, target); err != nil {
			s.report(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (s *Shell) getTree(ctx context.Context, it item, target string) error {
	info, err := os.Stat(target)
	if !it.isDir() {
		if err == nil && (info.IsDir() || !s.option("f")) {
			return exists(target)
		}
		return s.getFile(ctx, it, target)
	}
	if err == nil && !info.IsDir() {
		return notDirectory(target)
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	children, err := s.children(ctx, it)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := s.getTree(ctx, child, filepath.Join(target, path.Base(child.path))); err != nil {
			s.report(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.preserveLocal(it, target)
}

func (s *Shell) getFile(ctx context.Context, it item, target string) error {
	r, err := s.client.Open(ctx, it.path)
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
	_, err = io.Copy(w, r)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(target + copying)
		return err
	}
	if err := os.Rename(target+copying, target); err != nil {
		return err
	}
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
// -nl puts a newline behind each.
func runGetmerge(ctx context.Context, s *Shell, args []string) error {
	items, err := s.expand(ctx, args[:len(args)-1], false)
	if err != nil || len(items) == 0 || s.errors > 0 {
		return err
	}
	dst := strings.TrimPrefix(args[len(args)-1], "file://")
	if info, err := os.Stat(dst); err == nil && info.IsDir() {
		return isDirectory(dst)
	}
	var files []item
	for _, it := range items {
		if !it.isDir() {
			files = append(files, it)
			continue
		}
		children, err := s.children(ctx, it)
		if err != nil {
			return err
		}
		files = append(files, slices.DeleteFunc(children, item.isDir)...)
	}
	f, err := os.Create(dst)
	if err != nil {
		return err
	}
	for _, it := range files {
		if s.option("skip-empty-file") && it.status.Length == 0 {
			continue
		}
		if err = s.merge(ctx, it, f); err != nil {
			break
		}
	}
	return errors.Join(err, f.Close())
}

func (s *Shell) merge(ctx context.Context, it item, f *os.File) error {
	r, err := s.client.Open(ctx, it.path)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(f, r); err != nil {
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

func runCp(ctx context.Context, s *Shell, args []string) error {
	sources, last := args[:len(args)-1], args[len(args)-1]
	if _, err := s.keeps(); err != nil {
		return err
	}
	isLocal := func(word string) bool { return strings.HasPrefix(word, "file:/") }
	switch {
	case isLocal(last) && !slices.ContainsFunc(sources, isLocal):
		return runGet(ctx, s, args)
	case !isLocal(last) && !slices.ContainsFunc(sources, func(word string) bool { return !isLocal(word) }):
		return runPut(ctx, s, args)
	}
	dst, err := s.destination(ctx, last, sources, s.option("f"))
	if err != nil {
		return err
	}
	return s.each(ctx, sources, func(src item) error {
		target, err := s.targetOf(ctx, src, dst, last)
		if err != nil {
			return err
		}
		return s.cpTree(ctx, src, target)
	})
}

func (s *Shell) cpTree(ctx context.Context, src, target item) error {
	if !src.isDir() {
		r, err := s.client.Open(ctx, src.path)
		if err != nil {
			return err
		}
		defer r.Close()
		if err := s.putStream(ctx, r, target, 0o666); err != nil {
			return err
		}
		return s.preserveCopy(ctx, src, target.path)
	}
	if target.status != nil && !target.isDir() {
		return notDirectory(target.shown)
	}
	if target.status == nil {
		if err := s.client.Mkdirs(ctx, target.path, 0o777, false); err != nil {
			return err
		}
	}
	children, err := s.children(ctx, src)
	if err != nil {
		return err
	}
	for _, child := range children {
		into, err := s.look(ctx, childPath(target.shown, path.Base(child.path)))
		if err == nil {
			err = s.cpTree(ctx, child, into)
		}
		if err != nil {
			s.report(err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.preserveCopy(ctx, src, target.path)
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
			files = append(files, s.Stdin)
			continue
		}
		source = strings.TrimPrefix(source, "file://")
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
		if err := s.client.Mkdirs(ctx, path.Dir(dst.path), 0o777, true); err != nil {
			return err
		}
		if err := s.client.WriteFile(ctx, dst.path, nil, false); err != nil {
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
	return w.Close()
}
