package mlflow

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/store"
)

// journalName is the file in the endpoint's directory; one JSON object a line.
const journalName = "journal.jsonl"

// compactFrom is how long a journal is when its server begins that is written anew, if it becomes shorter by half.
const compactFrom = 8 << 20

// maxPending is how many changes wait for the disk; who comes later waits.
const maxPending = 1024

// ErrSuperseded ends a server whose journal another one has taken over.
var ErrSuperseded = errors.New("another server has taken over the journal")

// change is a request that alters the state. do runs under the lock: it checks, and returns what is to be written, which the
// journal applies. Its answer counts when the entries are on disk.
type change struct {
	do   func(s *state) ([]*entry, error)
	done chan error
}

// Store is the state of an endpoint and its journal. One goroutine, Run, changes it.
type Store struct {
	files  store.FS
	dir    string
	log    *slog.Logger
	server string
	queue  chan change

	mu    sync.RWMutex
	state *state

	writer store.Writer // Run's
	ended  chan struct{}
}

// OpenStore takes over the journal in a directory, which it makes if it has to: whoever wrote it before cannot any more.
func OpenStore(ctx context.Context, files store.FS, dir string, log *slog.Logger) (*Store, error) {
	s := &Store{files: files, dir: dir, log: log, server: uuid.NewString(), queue: make(chan change, maxPending), state: newState(), ended: make(chan struct{})}
	if err := files.Mkdirs(ctx, dir); err != nil {
		return nil, err
	}
	length, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	first := []*entry{{}} // the first line says who writes from here on
	if s.state.experiments["0"] == nil {
		now := time.Now().UnixMilli()
		first = append(first, &entry{Experiment: &experiment{ID: "0", Name: "Default", Artifacts: artifactScheme + "/0", Stage: active, Created: now, Updated: now}})
	}
	if err := s.append(ctx, first); err != nil {
		s.writer.Abort()
		return nil, err
	}
	if length > compactFrom { // now that the one before knows that it is not its any more
		if err := s.compact(ctx, length); err != nil {
			s.writer.Abort()
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) name() string { return path.Join(s.dir, journalName) }

// open reads the journal, which nobody writes any more, and opens it at its end. It returns how long it was.
func (s *Store) open(ctx context.Context) (int64, error) {
	err := s.files.Seal(ctx, s.name())
	if store.Missing(err) {
		s.writer, err = s.files.Create(ctx, s.name(), false)
		return 0, err
	}
	if err != nil {
		return 0, err
	}
	state, _, err := s.read(ctx)
	if err != nil {
		return 0, err
	}
	st, err := s.files.Stat(ctx, s.name())
	if err != nil {
		return 0, err
	}
	w, err := s.files.Append(ctx, s.name())
	if err != nil {
		return 0, err
	}
	if st.Length > 0 { // a line that a crash has cut ends here
		if _, err := w.Write([]byte{'\n'}); err != nil {
			w.Abort()
			return 0, err
		}
	}
	s.writer, s.state = w, state
	return st.Length, nil
}

// read folds the journal. Lines that are no entries are what a crash has cut. last is who wrote the last one.
func (s *Store) read(ctx context.Context) (st *state, last string, err error) {
	st = newState()
	r, err := s.files.Open(ctx, s.name(), 0)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	b := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := b.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e entry
			if json.Unmarshal(line, &e) == nil && e.N > st.n {
				if e.N != st.n+1 {
					return nil, "", fmt.Errorf("%s: entry %d follows %d: the journal is damaged", s.name(), e.N, st.n)
				}
				st.apply(&e)
				last = e.Server
			}
		}
		if errors.Is(err, io.EOF) {
			return st, last, nil
		}
		if err != nil {
			return nil, "", err
		}
	}
}

// compact writes the state as a journal of its own in place of the one that made it.
func (s *Store) compact(ctx context.Context, before int64) error {
	var b bytes.Buffer
	n := int64(0)
	for e := range s.state.entries {
		c := *e
		n++
		c.N, c.Server = n, s.server
		line, err := json.Marshal(&c)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	if int64(b.Len()) > before/2 {
		return nil
	}
	tmp := s.name() + "." + s.server + ".tmp"
	if _, err := store.WriteFile(ctx, s.files, tmp, &b, true); err != nil {
		return err
	}
	if err := s.writer.Close(); err != nil { // another server has taken it over meanwhile
		return errors.Join(err, s.files.Delete(ctx, tmp))
	}
	if err := s.files.Replace(ctx, tmp, s.name()); err != nil {
		return err
	}
	w, err := s.files.Append(ctx, s.name())
	if err != nil {
		return err
	}
	s.writer, s.state.n = w, n
	return nil
}

// append numbers entries, applies them and writes them to disk.
func (s *Store) append(ctx context.Context, list []*entry) error {
	if len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	s.mu.Lock()
	for _, e := range list {
		if err := s.number(e, &b); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	s.mu.Unlock()
	return s.flush(ctx, b.Bytes())
}

// number applies an entry and adds its line. The lock is held.
func (s *Store) number(e *entry, b *bytes.Buffer) error {
	e.N, e.Server = s.state.n+1, s.server
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	b.Write(line)
	b.WriteByte('\n')
	s.state.apply(e)
	return nil
}

func (s *Store) flush(ctx context.Context, lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if _, err := s.writer.Write(lines); err != nil {
		return err
	}
	return s.writer.Hsync(ctx)
}

// Run makes changes until ctx ends: those that wait are written together and synced once. ErrSuperseded: another server goes on.
func (s *Store) Run(ctx context.Context) error {
	defer close(s.ended)
	for {
		var batch []change
		select {
		case <-ctx.Done():
			return s.writer.Close()
		case c := <-s.queue:
			batch = append(batch, c)
		}
		for more := true; more && len(batch) < maxPending; {
			select {
			case c := <-s.queue:
				batch = append(batch, c)
			default:
				more = false
			}
		}
		var b bytes.Buffer
		failed := make([]error, len(batch))
		s.mu.Lock()
		for i, c := range batch {
			list, err := c.do(s.state)
			for _, e := range list {
				if err == nil {
					err = s.number(e, &b)
				}
			}
			failed[i] = err
		}
		s.mu.Unlock()
		// What has begun is finished, although the server may be about to end.
		err := s.flush(context.WithoutCancel(ctx), b.Bytes())
		if err != nil {
			s.log.Error("the journal could not be written", "error", err)
			err = &Error{unavailable, "what was sent may not have been kept, send it again: " + err.Error()}
		}
		for i, c := range batch {
			if failed[i] == nil {
				failed[i] = err
			}
			c.done <- failed[i]
		}
		if err != nil {
			if err := s.recover(ctx); err != nil {
				return err
			}
		}
	}
}

// recover goes on after a write that failed: with what is in the file.
func (s *Store) recover(ctx context.Context) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := s.reopen(ctx)
		if err == nil || errors.Is(err, ErrSuperseded) || ctx.Err() != nil {
			return err
		}
		s.log.Warn("the journal cannot be opened again yet", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (s *Store) reopen(ctx context.Context) error {
	var st *state
	for _, sealed := range []bool{false, true} { // first without taking anything away from another server, as Abort would
		if sealed {
			s.writer.Abort()
			if err := s.files.Seal(ctx, s.name()); err != nil {
				return err
			}
		}
		var last string
		var err error
		if st, last, err = s.read(ctx); err != nil {
			return err
		}
		if last != s.server {
			return fmt.Errorf("%w: %s", ErrSuperseded, s.name())
		}
	}
	w, err := s.files.Append(ctx, s.name())
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte{'\n'}); err != nil {
		w.Abort()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer, s.state = w, st
	return nil
}

// change asks Run for a change and waits until it is on disk.
func (s *Store) change(ctx context.Context, do func(*state) ([]*entry, error)) error {
	c := change{do, make(chan error, 1)}
	select {
	case s.queue <- c:
	case <-s.ended:
		return &Error{unavailable, "the server ends"}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-c.done:
		return err
	case <-s.ended:
		select {
		case err := <-c.done:
			return err
		default:
			return &Error{unavailable, "the server ends"}
		}
	}
}

// view lets f read the state.
func (s *Store) view(f func(*state) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return f(s.state)
}

// Error is an error of the interface, with MLflow's code.
type Error struct {
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// Codes of MLflow's errors.
const (
	badValue    = "INVALID_PARAMETER_VALUE"
	badRequest  = "BAD_REQUEST"
	missing     = "RESOURCE_DOES_NOT_EXIST"
	exists      = "RESOURCE_ALREADY_EXISTS"
	noEndpoint  = "ENDPOINT_NOT_FOUND"
	denied      = "PERMISSION_DENIED"
	strange     = "UNAUTHENTICATED"
	unavailable = "TEMPORARILY_UNAVAILABLE"
	internal    = "INTERNAL_ERROR"
)

func errorf(code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// coded gives any error a code.
func coded(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, metadata.ErrNotExist):
		return &Error{missing, err.Error()}
	case errors.Is(err, metadata.ErrExist):
		return &Error{exists, err.Error()}
	case errors.Is(err, metadata.ErrPermission):
		return &Error{denied, err.Error()}
	case errors.Is(err, metadata.ErrInvalidArgument), errors.Is(err, metadata.ErrInvalidPath):
		return &Error{badValue, err.Error()}
	}
	return &Error{internal, err.Error()}
}
