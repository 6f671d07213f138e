package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/logpiece"
	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

const (
	maxLogFiles  = 64
	shipmentSize = 1 << 20 // bytes per write
	// idleAfter closes a log file of the filesystem into which nothing was written for so long; its lease is not free.
	idleAfter = time.Minute
)

// shipper copies the log files of one container to the cluster's filesystem, where they are appended to. What is there is
// a prefix of what is here, always: so its length says where to go on, after any failure of either side.
//
// It never holds up the container. What it cannot ship it tries again, for as long as the container's directory exists. Files
// that the container removes or cuts after they were shipped stay there, so it counts: no more than maxLogFiles names and
// LogLimit bytes go away in a container's life, whatever a hole in a file claims to be. A file that is rolled is shipped in pieces
// (pieces.go), each of which is a prefix of what was there; the first and the last of them stay.
type shipper struct {
	c     *container
	files map[string]*shipment
	fails int        // shipments in a row that failed
	cut   bool       // the log says that not everything is shipped
	fsys  Filesystem // nil: not opened yet
	began time.Time
	sent  int64 // bytes of rolled files
}

// within bounds one call on an open file, which is broken by Abort: when it takes too long, or the node manager stops.
func (s *shipper) within(ctx context.Context, to LogFile, call func() error) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.server.config.LogPatience)
	defer cancel()
	defer context.AfterFunc(ctx, to.Abort)()
	err := call()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

type shipment struct {
	to   LogFile
	last time.Time // something was written
	done int64     // bytes known to be there; -1: not known
	most int64     // the most that done ever was; of a rolled file, the bytes of its pieces

	rolled bool
	listed bool    // pieces are known
	pieces []piece // of a rolled file, the last is the one that is written
}

// until is how far a file of so many bytes may be shipped.
func (s *shipper) until(f *shipment, size int64) int64 {
	left := s.c.server.config.LogLimit
	for _, other := range s.files {
		if other != f {
			left -= other.most
		}
	}
	if size > left {
		s.shorten()
	}
	return min(size, max(0, left))
}

func (s *shipper) shorten() {
	if !s.cut {
		s.c.log.Warn("logs are not shipped completely: the container writes more than it may", "limit", s.c.server.config.LogLimit, "files", maxLogFiles)
	}
	s.cut = true
}

// logDir is where the container's logs go: the order's directory, in a directory of the container's own unless that is
// it already.
func logDir(spec *nodemanager.Spec) string {
	if spec.LogDir == "" || path.Base(spec.LogDir) == string(spec.ID) {
		return spec.LogDir
	}
	return path.Join(spec.LogDir, string(spec.ID))
}

// ship runs beside the container until everything it wrote has been shipped, or work ends.
func (c *container) ship(work context.Context) {
	r, _, _ := c.view()
	if logDir(&r.Spec) == "" || c.server.config.FS == nil {
		close(c.shipped)
		return
	}
	s := &shipper{c: c, files: map[string]*shipment{}, began: time.Now()}
	defer func() {
		s.abort()
		if s.fsys != nil {
			c.server.releaseFS(r.Spec.User)
		}
	}()
	interval := c.server.config.LogInterval
	for {
		ended := false
		select {
		case <-c.gone:
			ended = true
		default:
		}
		err := s.round(work, &r.Spec, ended)
		if err == nil && ended {
			close(c.shipped)
			return
		}
		c.setUnshipped(err != nil)
		if err != nil {
			if s.fails++; s.fails == 1 && work.Err() == nil {
				c.log.Warn("logs not shipped, trying again", "error", err)
			}
		} else {
			s.fails = 0
		}
		pause := interval << min(s.fails, 4)
		var gone <-chan struct{}
		if !ended {
			gone = c.gone
		}
		timer := time.NewTimer(min(pause, 30*time.Second))
		select {
		case <-work.Done():
			timer.Stop()
			return
		case <-gone:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (c *container) setUnshipped(failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unshipped = failed
}

// maxLogsUnderway bounds the applications that a report names for their logs.
const maxLogsUnderway = 1000

// logsUnderway lists the applications of which logs are here and not yet in the filesystem, of containers that have ended.
func (s *Server) logsUnderway() []*rmpb.LogsUnderway {
	found := map[nodemanager.ApplicationID]*rmpb.LogsUnderway{}
	entry := func(app nodemanager.ApplicationID) *rmpb.LogsUnderway {
		if found[app] == nil {
			found[app] = &rmpb.LogsUnderway{ApplicationId: string(app)}
		}
		return found[app]
	}
	for _, c := range s.list() {
		select {
		case <-c.shipped:
			continue
		default:
		}
		c.mu.Lock()
		app, ended, failed := c.record.Spec.Application, c.record.State == nodemanager.Complete, c.unshipped
		c.mu.Unlock()
		if !ended {
			continue
		}
		if e := entry(app); failed {
			e.Failing = true
		}
	}
	s.mu.Lock()
	lost := slices.Clone(s.lostLogs.order)
	s.mu.Unlock()
	for _, app := range lost[max(0, len(lost)-maxLogsUnderway):] {
		entry(app).Lost = true
	}
	var all []*rmpb.LogsUnderway
	for _, app := range slices.Sorted(maps.Keys(found)) {
		if len(all) < maxLogsUnderway {
			all = append(all, found[app])
		}
	}
	return all
}

// round ships what is new in every file; at the end it closes them.
func (s *shipper) round(ctx context.Context, spec *nodemanager.Spec, ended bool) error {
	root, err := os.OpenRoot(s.c.logsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	names, err := logNames(root)
	errs := []error{err}
	for _, name := range names {
		if file, begin := logpiece.Parse(name); begin > 0 && s.c.server.config.rolls(file) {
			continue // the name of a piece that we may have made there
		}
		if err := s.file(ctx, root, spec, name, ended); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// logNames lists the regular files of a log directory, first those that every container has. With an error these are not all.
func logNames(root *os.Root) ([]string, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var names []string
	var errs []error
	for _, name := range []string{"stdout", "stderr"} {
		info, err := root.Lstat(name)
		switch {
		case err == nil && info.Mode().IsRegular():
			names = append(names, name)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	entries, err := d.ReadDir(10 * maxLogFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != "stdout" && e.Name() != "stderr" && !strings.HasPrefix(e.Name(), ".") && utf8.ValidString(e.Name()) && len(names) < maxLogFiles {
			names = append(names, e.Name())
		}
	}
	return names, errors.Join(errs...)
}

// errNoLog: what has the name of a log file is none.
var errNoLog = errors.New("not a log file of its container")

// noLog reports whether an error of openLog says that there is no log file by that name (any more), or that its program lets nobody read it. Any other
// error says nothing about the file: this process may have no descriptor left, or the disk may not answer.
func noLog(err error) bool {
	return errors.Is(err, errNoLog) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// openLog opens a log file for reading. The container may put anything in its place at any time: a link does not lead out
// of the directory (os.Root), and a pipe does not make us wait.
//
// Errors: errNoLog for what is no regular file, or another user's; those of the open file.
func openLog(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		if info, now := root.Lstat(name); now == nil && !info.Mode().IsRegular() { // os.Root has no error of its own for a link that leads out
			err = &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("%w: %w", errNoLog, err)}
		}
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil {
		var own bool
		if own, err = sameOwner(root, info); err == nil && (!own || !info.Mode().IsRegular()) {
			err = &fs.PathError{Op: "open", Path: name, Err: errNoLog}
		}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// sameOwner reports whether a log file belongs to whom its directory belongs: a container's user may give a name there to
// another's file (link(2)), which we could read and it could not. Root's own containers may do as they like.
func sameOwner(root *os.Root, file fs.FileInfo) (bool, error) {
	dir, err := root.Stat(".")
	if err != nil {
		return false, err
	}
	owner, ok := dir.Sys().(*syscall.Stat_t)
	found, ok2 := file.Sys().(*syscall.Stat_t)
	return ok && ok2 && (owner.Uid == 0 || owner.Uid == found.Uid), nil
}

func (s *shipper) file(ctx context.Context, root *os.Root, spec *nodemanager.Spec, name string, ended bool) (err error) {
	from, info, err := openLog(root, name)
	if err != nil {
		if noLog(err) {
			return nil
		}
		return err
	}
	defer from.Close()
	f := s.files[name]
	if f == nil && len(s.files) >= maxLogFiles {
		s.shorten()
		return nil
	}
	if f == nil {
		f = &shipment{done: -1, rolled: s.c.server.config.rolls(name)}
		s.files[name] = f
	}
	if f.rolled {
		return s.pieces(ctx, logReader{from, true}, f, path.Join(logDir(spec), name), info.Size(), ended)
	}
	size := s.until(f, info.Size())
	defer func() {
		if err != nil && f.to != nil {
			f.to.Abort()
			f.to, f.done = nil, -1
		}
	}()
	if f.done >= 0 && f.done >= size {
		if f.to != nil && (ended || time.Since(f.last) > idleAfter) {
			to := f.to
			f.to = nil
			return s.within(ctx, to, to.Close)
		}
		return nil
	}
	if size == 0 && (!ended || info.Size() > 0) {
		return nil
	}
	if f.to == nil {
		if err := s.open(ctx, f, path.Join(logDir(spec), name)); err != nil {
			return err
		}
		f.done = f.to.Size()
		f.most = max(f.most, f.done)
	}
	buffer := make([]byte, min(shipmentSize, max(0, size-f.done)))
	for f.done < size {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := from.ReadAt(buffer[:min(int64(len(buffer)), size-f.done)], f.done)
		if n > 0 {
			to := f.to
			if err := s.within(ctx, to, func() error { _, err := to.Write(buffer[:n]); return err }); err != nil {
				return err
			}
			f.done += int64(n)
			f.most = max(f.most, f.done)
		}
		if err == io.EOF {
			break // the container has cut its own log
		}
		if err != nil {
			return err
		}
	}
	return s.settle(ctx, f, ended)
}

// settle makes what was written readable, or closes the file at the end of the container.
func (s *shipper) settle(ctx context.Context, f *shipment, ended bool) error {
	f.last = time.Now()
	if ended {
		return s.close(ctx, f)
	}
	flush, cancel := context.WithTimeout(ctx, s.c.server.config.LogPatience)
	defer cancel()
	return f.to.Flush(flush)
}

func (s *shipper) close(ctx context.Context, f *shipment) error {
	to := f.to
	if err := s.within(ctx, to, to.Close); err != nil {
		return err
	}
	f.to = nil
	return nil
}

// filesystem is that of the container's user.
func (s *shipper) filesystem() (Filesystem, error) {
	if s.fsys == nil {
		r, _, _ := s.c.view()
		fsys, err := s.c.server.fs(r.Spec.User)
		if err != nil {
			return nil, err
		}
		s.fsys = fsys
	}
	return s.fsys, nil
}

func (s *shipper) open(ctx context.Context, f *shipment, name string) error {
	fsys, err := s.filesystem()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.server.config.LogPatience)
	defer cancel()
	f.to, err = fsys.OpenLog(ctx, name)
	return err
}

// abort lets go of open files when the node manager ends; the next one goes on.
func (s *shipper) abort() {
	for _, f := range s.files {
		if f.to != nil {
			f.to.Abort()
		}
	}
}

// tailOf is the end of a log file as text.
func tailOf(dir, name string, n int64) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer root.Close()
	f, info, err := openLog(root, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	from := max(0, info.Size()-n)
	b, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return ""
	}
	if from > 0 {
		for len(b) > 0 && !utf8.RuneStart(b[0]) {
			b = b[1:]
		}
	}
	return strings.ToValidUTF8(strings.TrimRight(string(b), "\n"), "\uFFFD")
}
