package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/logpiece"
	"github.com/gohops/hops/metadata"
)

// LogOptions say what Logs copies.
type LogOptions struct {
	// Follow goes on until the job has ended. Otherwise what is there now is copied.
	Follow bool
	// Instance chooses one instance of the command, from 0 on; nil: all.
	Instance *int
	// Master adds the log of the application master, which goes to stderr.
	Master bool
	// Label begins every line with the number of its instance, as [2]. It is set by itself when several have written.
	Label bool
	// Seen, if not nil, is called with every status of the job that is looked at, from one goroutine.
	Seen func(JobStatus)
}

// Follow waits for the end of a job and copies what its programs write as they write it: from the node managers while
// containers run, and from the filesystem what these have no more. Standard output goes to stdout, standard error to
// stderr. An error in reading a log does not end it before the job's end. What was followed is never nil.
func (c *Client) Follow(ctx context.Context, id string, o LogOptions, stdout, stderr io.Writer) (*Followed, error) {
	out := &sinks{}
	f := follower{c: c, o: o, stdout: &sink{all: out, w: stdout}, stderr: &sink{all: out, w: stderr}, began: map[string]context.CancelFunc{}, ended: map[string]chan struct{}{}, written: map[string]int64{}}
	s, err := c.jobs.Get(ctx, id)
	if err == nil && !o.Follow {
		if o.Seen != nil {
			o.Seen(s)
		}
		f.see(ctx, s)
		err = f.wait(ctx)
		return &Followed{s, f.written}, err
	}
	if err == nil {
		s, err = c.jobs.Wait(ctx, id, func(s JobStatus) {
			if o.Seen != nil {
				o.Seen(s)
			}
			f.see(ctx, s)
		})
	}
	err = errors.Join(err, f.wait(ctx))
	return &Followed{s, f.written}, err
}

// Followed is what Follow saw.
type Followed struct {
	// Job is its last status.
	Job JobStatus
	// Written are the log files that are not empty: paths of the filesystem, and how many bytes were seen of each.
	Written map[string]int64
}

// follower copies the logs of a job's containers.
type follower struct {
	c              *Client
	o              LogOptions
	stdout, stderr *sink
	began          map[string]context.CancelFunc
	ended          map[string]chan struct{} // closed when a container has ended
	group          sync.WaitGroup

	mu      sync.Mutex
	errs    []error
	written map[string]int64
}

// see begins to copy what new containers write.
func (f *follower) see(ctx context.Context, s JobStatus) {
	chosen := slices.DeleteFunc(slices.Clone(s.Containers), func(k JobContainer) bool {
		if k.Master {
			return !f.o.Master
		}
		return f.o.Instance != nil && *f.o.Instance != k.Instance()
	})
	label := f.o.Label
	for _, k := range chosen {
		label = label || !k.Master && k.Instance() > 0 && f.o.Instance == nil
	}
	for _, k := range chosen {
		over := k.ExitStatus != nil || s.Ended()
		if _, known := f.began[k.ID]; !known && (k.Started > 0 || !over) {
			k := k
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan struct{})
			f.began[k.ID], f.ended[k.ID] = cancel, ended
			for file, to := range map[string]*sink{"stdout": f.stdout, "stderr": f.stderr} {
				prefix := ""
				if k.Master {
					to = f.stderr
				} else if label {
					prefix = fmt.Sprintf("[%d] ", k.Instance())
				}
				f.group.Go(func() {
					l := logFile{c: f.c, k: k, file: file, w: to.lines(prefix), notes: f.stderr, ended: ended, follow: f.o.Follow}
					err := l.copy(ctx)
					f.mu.Lock()
					defer f.mu.Unlock()
					if err != nil && ctx.Err() == nil {
						f.errs = append(f.errs, err)
					}
					if l.offset > 0 {
						f.written[path.Join(k.LogDir, file)] = l.offset
					}
				})
			}
		}
		if ended := f.ended[k.ID]; ended != nil && over {
			select {
			case <-ended:
			default:
				close(ended)
			}
			if k.Started == 0 {
				f.began[k.ID]() // it never ran, there is nothing to wait for
			}
		}
	}
}

// wait waits until everything is copied.
func (f *follower) wait(ctx context.Context) error {
	f.group.Wait()
	for _, cancel := range f.began {
		cancel()
	}
	return errors.Join(append(f.errs, ctx.Err())...)
}

// logFile is one file of a container's log, copied from offset on.
type logFile struct {
	c      *Client
	k      JobContainer
	file   string
	w      *lineWriter
	notes  io.Writer
	follow bool
	ended  chan struct{}
	offset int64
}

// logPatience is how long the end of a log is waited for after its container has ended, while nothing comes: from the node,
// which may stand still, or from the filesystem, into which the node manager copies it.
var logPatience = 5 * time.Second // a variable for tests

// firstPatience is logPatience for the answer that is about to be asked for; a variable for tests.
var firstPatience = func(*logFile) time.Duration { return logPatience }

// copy copies until the log is complete, or for what is there now.
func (l *logFile) copy(ctx context.Context) error {
	defer l.w.flush()
	var last time.Time // something came, after the end of the container
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		over := false
		select {
		case <-l.ended:
			over = true
		default:
		}
		before := l.offset
		complete, live := l.live(ctx)
		if complete {
			return nil
		}
		if gap, ok := errors.AsType[*logGap](live); ok { // perhaps the filesystem has it
			if _, err := l.stored(ctx, gap.to); err != nil && ctx.Err() == nil {
				fmt.Fprintf(l.notes, "hops: %s of container %s: %v\n", l.file, l.k.ID, err)
			}
			l.skip(gap.to)
			pause = 10 * time.Millisecond
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var err error
		if live != nil { // not from the node
			closed, ferr := l.stored(ctx, math.MaxInt64)
			if !l.follow && !closed && ferr == nil && errors.Is(live, errSilent) {
				ferr = fmt.Errorf("%s of container %s: %w", l.file, l.k.ID, live)
			}
			if closed && over || !l.follow {
				return ferr
			}
			err = ferr
		}
		if l.offset > before {
			pause = 20 * time.Millisecond
			last = time.Time{}
		}
		if over && last.IsZero() {
			last = time.Now()
		}
		if over && time.Since(last) > logPatience {
			if err == nil {
				err = fmt.Errorf("%s of container %s may lack its end: its node has not copied it to %s yet", l.file, l.k.ID, l.k.LogDir)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// live asks the container's node. It returns true when everything is copied; an error says why the node does not give it.
func (l *logFile) live(ctx context.Context) (complete bool, err error) {
	address := l.k.Node
	if !strings.Contains(address, ":") {
		return false, fmt.Errorf("no address of node %s", address)
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := make(chan struct{}, 1)
	go l.watch(ctx, cancel, heard, firstPatience(l), logPatience)
	query := url.Values{"offset": {strconv.FormatInt(l.offset, 10)}, "follow": {strconv.FormatBool(l.follow)}}
	if claim := l.c.rest.claim; claim != "" {
		query.Set(claim, l.c.User())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		l.c.rest.scheme+"://"+address+"/api/v1/containers/"+url.PathEscape(l.k.ID)+"/logs/"+url.PathEscape(l.file)+"?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	silent := func(err error) error {
		if ctx.Err() != nil && outer.Err() == nil {
			err = fmt.Errorf("node %s: %w", address, errSilent)
		}
		return err
	}
	answer, err := l.c.rest.nodes.Do(request)
	if err != nil {
		return false, silent(err)
	}
	if answer.StatusCode != http.StatusOK {
		return false, readError(answer)
	}
	defer answer.Body.Close()
	if begin, err := strconv.ParseInt(answer.Header.Get("Hops-Log-Offset"), 10, 64); err == nil && begin > l.offset {
		return false, &logGap{begin}
	}
	n, err := io.Copy(l.w, noting{answer.Body, heard})
	l.offset += n
	if err == nil {
		return true, nil
	}
	if err = silent(err); !errors.Is(err, errSilent) {
		err = nil // broken off: from the next byte on
	}
	return false, err
}

// errSilent is why a node is not waited for any longer.
var errSilent = errors.New("it says nothing")

// watch gives up a node that says nothing for so long, at first for another time, when there is nothing more to come that it could wait for itself.
func (l *logFile) watch(ctx context.Context, giveUp func(), heard <-chan struct{}, first, later time.Duration) {
	quiet := time.NewTimer(first)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heard:
		case <-quiet.C:
			select {
			case <-l.ended:
				giveUp()
				return
			default:
			}
			if !l.follow {
				giveUp()
				return
			}
		}
		quiet.Reset(later)
	}
}

// noting is a reader that says when something comes.
type noting struct {
	r     io.Reader
	heard chan<- struct{}
}

func (n noting) Read(p []byte) (int, error) {
	k, err := n.r.Read(p)
	select {
	case n.heard <- struct{}{}:
	default:
	}
	return k, err
}

// logGap is why a node does not send a log from where it was asked: it has it from there on, because it is long and was rolled.
type logGap struct{ to int64 }

func (g *logGap) Error() string {
	return fmt.Sprintf("the node has it from byte %d on", g.to)
}

// skip goes on at an offset, and tells of what is missing.
func (l *logFile) skip(to int64) {
	if to > l.offset {
		l.w.endLine()
		fmt.Fprintf(l.notes, "hops: %s of container %s was rolled: %d bytes from byte %d on are not kept\n", l.file, l.k.ID, to-l.offset, l.offset)
		l.offset = to
	}
}

// stored copies what is in the filesystem up to an offset, and reports whether that is all that there will be. A file that is not there is
// empty.
func (l *logFile) stored(ctx context.Context, until int64) (closed bool, err error) {
	name := path.Join(l.k.LogDir, l.file)
	first, err := l.c.fs.IsFileClosed(ctx, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pieces, err := l.c.pieces(ctx, name)
	if err != nil {
		return false, err
	}
	for i, p := range pieces {
		end := until
		if i+1 < len(pieces) {
			end = min(end, pieces[i+1].begin)
		}
		if end <= l.offset {
			continue
		}
		if p.begin >= until {
			break
		}
		l.skip(p.begin)
		if closed = first; i > 0 {
			if closed, err = l.c.fs.IsFileClosed(ctx, p.path); errors.Is(err, metadata.ErrNotExist) {
				continue // an old piece that has gone meanwhile
			} else if err != nil {
				return false, err
			}
		}
		n, err := l.c.appendFrom(ctx, p.path, l.offset-p.begin, &limitedWriter{l.w, end - l.offset})
		l.offset += n
		if err != nil && !errors.Is(err, errLimit) {
			return false, err
		}
	}
	return closed, nil
}

// errLimit ends a copy where the next piece begins.
var errLimit = errors.New("enough")

type limitedWriter struct {
	w    io.Writer
	left int64
}

// Write implements io.Writer.
func (w *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= w.left {
		n, err := w.w.Write(p)
		w.left -= int64(n)
		return n, err
	}
	n, err := w.w.Write(p[:w.left])
	w.left -= int64(n)
	return n, cmp.Or(err, errLimit)
}

// logPiece is a file of the filesystem that has a log, or a part of one that was rolled.
type logPiece struct {
	path  string
	begin int64
}

// pieces lists those of a log, in order. There is always a first one, which may not be there.
func (c *Client) pieces(ctx context.Context, name string) ([]logPiece, error) {
	all := []logPiece{{path: name}}
	entries, err := c.fs.List(ctx, path.Dir(name))
	if err != nil && !errors.Is(err, metadata.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if file, begin := logpiece.Parse(e.Name); begin > 0 && file == path.Base(name) {
			all = append(all, logPiece{path.Join(path.Dir(name), e.Name), begin})
		}
	}
	slices.SortFunc(all, func(a, b logPiece) int { return cmp.Compare(a.begin, b.begin) })
	return all, nil
}

// sinks make the writes of all goroutines come one after the other.
type sinks struct{ mu sync.Mutex }

type sink struct {
	all *sinks
	w   io.Writer
}

func (s *sink) Write(p []byte) (int, error) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	return s.w.Write(p)
}

// lines makes a writer whose lines begin with a prefix, and are not mixed with those of others; without prefix bytes go
// through as they come.
func (s *sink) lines(prefix string) *lineWriter { return &lineWriter{s: s, prefix: []byte(prefix)} }

type lineWriter struct {
	s      *sink
	prefix []byte
	rest   []byte // of a line that has not ended
	within bool   // without prefix: what was written last has not ended its line
}

// maxLine is when a line is written in pieces, in bytes.
const maxLine = 64 << 10

func (w *lineWriter) Write(p []byte) (int, error) {
	if len(w.prefix) == 0 {
		if len(p) > 0 {
			w.within = p[len(p)-1] != '\n'
		}
		return w.s.Write(p)
	}
	w.rest = append(w.rest, p...)
	var out []byte
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 && len(w.rest) < maxLine {
			break
		}
		if i < 0 {
			i = maxLine - 1
		}
		out = append(append(out, w.prefix...), w.rest[:i+1]...)
		w.rest = w.rest[i+1:]
	}
	if len(out) > 0 {
		if _, err := w.s.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// endLine ends a line of which the rest does not come.
func (w *lineWriter) endLine() {
	w.flush()
	if w.within {
		_, _ = w.s.Write([]byte("\n"))
		w.within = false
	}
}

// flush writes a line that has no end.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		_, _ = w.s.Write(append(append(slices.Clone(w.prefix), w.rest...), '\n'))
		w.rest = nil
	}
}

// AwaitKept waits until all that was followed is in the filesystem: node managers copy logs while containers run, and the
// last of them a moment after they have ended. It gives up when ctx ends, or when it may not look.
func (c *Client) AwaitKept(ctx context.Context, f *Followed) error {
	for name, seen := range f.Written {
		if err := c.awaitKept(ctx, name, seen); err != nil {
			return err
		}
	}
	return nil
}

// awaitKept waits until a log file is closed and has as many bytes as were seen: one that could not be written is shorter.
func (c *Client) awaitKept(ctx context.Context, name string, seen int64) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		var closed bool
		pieces, err := c.pieces(ctx, name)
		if err == nil {
			last := pieces[len(pieces)-1]
			if closed, err = c.fs.IsFileClosed(ctx, last.path); err == nil && closed {
				var st metadata.FileStatus
				if st, err = c.fs.Stat(ctx, last.path); err == nil && last.begin+st.Length >= seen {
					return nil
				}
			}
		}
		if err != nil && !errors.Is(err, metadata.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Instance is the number of the command's instance that a container runs, from 0 on; 0 also for what has no number.
func (k JobContainer) Instance() int {
	if k.Number == nil {
		return 0
	}
	return *k.Number
}

// ExitStatus is that of the program, when the job failed by one that ended with a status of its own: the first of the
// containers that ended so. Otherwise it is 0 for a job that succeeded and 1 for others.
func (s JobStatus) ExitStatus() int {
	if s.Succeeded() {
		return 0
	}
	status, first := 1, int64(0)
	for _, k := range s.Containers {
		if !k.Master && k.ExitStatus != nil && *k.ExitStatus > 0 && *k.ExitStatus < 256 && (first == 0 || k.Finished < first) {
			status, first = *k.ExitStatus, max(k.Finished, 1)
		}
	}
	return status
}
