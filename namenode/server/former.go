package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
	"github.com/gohops/hops/metadata/smallfile"
)

// formerDir has the bodies of before the state was lost. It was lost again since it had come: formerDir.1, .2, ... have those of before that.
func (s *Server) formerDir() string { return filepath.Join(s.config.Dir, "smallfiles.former") }

// cameFile is there if the state has come while former bodies were there: what is here since then is not what came in part.
func (s *Server) cameFile() string { return filepath.Join(s.config.Dir, "smallfiles.came") }

// formers are the directories that have former bodies.
func (s *Server) formers() (dirs []string, err error) {
	all, err := os.ReadDir(s.config.Dir)
	if err != nil {
		return nil, err
	}
	own := filepath.Base(s.formerDir())
	for _, e := range all {
		if name := e.Name(); name == own || strings.HasPrefix(name, own+".") {
			dirs = append(dirs, filepath.Join(s.config.Dir, name))
		}
	}
	return dirs, nil
}

// emptyBodies begins anew where there is no state: everything comes again, with the log or from another namenode, and what is there may be of a cluster
// that was here before, whose ids are given out again. It stays beside until the state has come, for what nobody sends: see useFormer.
func (s *Server) emptyBodies() error {
	err := s.setAsideBodies()
	var dirs []string
	if err == nil {
		dirs, err = s.formers()
	}
	if err != nil {
		return fmt.Errorf("small files: %w", err)
	}
	s.formerPending.Store(len(dirs) > 0)
	return nil
}

func (s *Server) setAsideBodies() error {
	if s.ns.AppliedIndex() > 0 || s.bodies.Figures().Bodies == 0 {
		return nil
	}
	s.bodies.Abandon()
	dirs, err := s.formers()
	if err != nil {
		return err
	}
	_, err = os.Lstat(s.cameFile())
	switch came := err == nil; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(dirs) > 0 && !came: // the state has not come since: all that is not in there comes as well as it did
		err = os.RemoveAll(s.bodiesDir())
	default:
		to := s.formerDir()
		for n := 1; err == nil || n == 1; n++ {
			if _, err = os.Lstat(to); err == nil {
				to = fmt.Sprintf("%s.%d", s.formerDir(), n)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Rename(s.bodiesDir(), to)
		}
		if err == nil {
			err = journal.FileSystem{}.SyncDir(s.config.Dir) // else what comes in part might be taken for what has come
		}
		if err == nil && came {
			err = os.Remove(s.cameFile())
		}
	}
	if err != nil {
		return err
	}
	former := s.bodies
	if err := s.openBodies(); err != nil {
		return err
	}
	former.Store, s.bodies = s.bodies.Store, former // which the namespace has
	return nil
}

const (
	// formerEvery is how often it is looked whether the state has come, and formerRest how long it takes until the former bodies are tried again after an error.
	formerEvery, formerRest = time.Second, time.Minute
	// formerFull is for how long there may be no room beside the former bodies before they go: what comes needs it.
	formerFull = time.Minute
	// formerTime is for how long former bodies are tried that cannot be read.
	formerTime = 24 * time.Hour
	// offerEvery is how often a body is offered while too much waits for the disk.
	offerEvery = 100 * time.Millisecond
)

// useFormer takes from the bodies of before the state was lost what the one that has come lacks, and removes them.
func (s *Server) useFormer(ctx context.Context) error {
	var fullSince, triedSince time.Time
	for ctx.Err() == nil {
		dirs, err := s.formers()
		if err == nil && len(dirs) == 0 {
			s.formerPending.Store(false)
			if err := os.Remove(s.cameFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.log.Warn("a file beside the small files cannot be removed", "file", s.cameFile(), "error", err)
			}
			return nil
		}
		wait := formerEvery
		full := s.config.Host.Room()
		switch {
		case full == nil:
			fullSince = time.Time{}
		case fullSince.IsZero():
			fullSince = time.Now()
		case time.Since(fullSince) >= formerFull:
			s.log.Error("there is no room beside the small files of before the state was lost: they are removed, and those that no other namenode has are lost", "directories", dirs, "error", full)
			wait = s.removeFormer(dirs...)
		}
		if err == nil && full == nil && s.group.Current() && s.ns.AppliedIndex() > 0 {
			if triedSince.IsZero() {
				triedSince = time.Now()
			}
			wait = s.lookThrough(ctx, dirs, time.Since(triedSince) >= formerTime)
		}
		if err != nil {
			s.log.Warn("small files of before the state was lost cannot be looked for", "error", err)
			wait = formerRest
		}
		_ = pace.Wait(ctx, wait)
	}
	return nil
}

// removeFormer removes directories of former bodies, and returns how long to wait before they are looked for again.
func (s *Server) removeFormer(dirs ...string) time.Duration {
	var wait time.Duration
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			s.log.Warn("small files of before the state was lost cannot be removed", "directory", dir, "error", err)
			wait = formerRest
		}
	}
	return wait
}

// lookThrough is one try of all former bodies, the last one where they are to be given up, and returns how long to wait for the next one.
func (s *Server) lookThrough(ctx context.Context, dirs []string, giveUp bool) (wait time.Duration) {
	if err := s.noteCame(); err != nil {
		s.log.Warn("it cannot be noted that the state has come, and the small files of before it was lost are not taken before that", "file", s.cameFile(), "error", err)
		return formerRest // else they would be removed, and what was taken of them as well if the state is lost again
	}
	for _, dir := range dirs {
		taken, left, err := s.takeFormer(ctx, dir)
		switch {
		case ctx.Err() != nil:
			return 0
		case err == nil:
			s.log.Info("small files of before the state was lost were looked through, and removed", "directory", dir, "taken", taken)
		case giveUp && errors.As(err, new(*unreadFormer)):
			s.log.Error("small files of before the state was lost cannot be read: they are removed, and those that no other namenode has are lost", "directory", dir, "taken", taken, "left", left, "error", err)
			wait = max(wait, s.removeFormer(dir))
		default:
			s.log.Warn("small files of before the state was lost stay for now", "directory", dir, "taken", taken, "left", left, "error", err)
			wait = formerRest
		}
	}
	if wait == 0 { // none is left
		s.formerPending.Store(false)
	}
	return wait
}

// unreadFormer is the error of former bodies that cannot be read, when all others were taken and are durable here.
type unreadFormer struct{ error }

func (e *unreadFormer) Unwrap() error { return e.error }

// noteCame says durably that the state has come.
func (s *Server) noteCame() error {
	if _, err := os.Lstat(s.cameFile()); err == nil {
		return nil
	}
	if err := os.WriteFile(s.cameFile(), nil, 0o600); err != nil {
		return err
	}
	return journal.FileSystem{}.SyncDir(s.config.Dir)
}

// takeFormer takes the bodies of a former directory that are needed, are not here, and are what the state says, and removes it. Errors: those of ctx and of the disk, with everything
// still there; left are the bodies that are known to be there and could not be read, and the others were taken nevertheless. Nothing is removed while there is something that could not be
// read, be it a segment or a part of one.
func (s *Server) takeFormer(ctx context.Context, dir string) (taken, left int, err error) {
	former, err := smallfile.Open(smallfile.Config{
		Dir: dir, Disk: s.config.formerDisk, Lenient: true, Logger: s.log, Live: func(ids []metadata.BlockID) ([]bool, error) { return nil, errors.New("nobody compacts former bodies") },
	})
	if exhausted(err) {
		return 0, 0, err
	}
	if err != nil {
		return 0, 0, &unreadFormer{err}
	}
	defer former.Abandon()
	get := former.Get
	if s.config.readFormer != nil {
		get = func(id metadata.BlockID) ([]byte, error) { return s.config.readFormer(id, former.Get) }
	}
	passing := former.Unread()
	for id := range former.IDs() {
		if ctx.Err() != nil {
			return taken, left, ctx.Err()
		}
		if s.bodies.Has(id) {
			continue
		}
		r, err := s.ns.FindBody(id, 0)
		if err != nil {
			return taken, left, err
		}
		if r == nil || r.Data != nil {
			continue
		}
		data, err := get(id)
		if err == nil {
			err = r.Verify(data) // else it is damaged, or another cluster's
		}
		switch {
		case err == nil:
			if err := s.bodies.give(ctx, id, data, s.config.Host.Room); err != nil {
				return taken, left, err
			}
			taken++
		case exhausted(err):
			return taken, left, err
		case !proven(err) && !errors.Is(err, fs.ErrNotExist):
			left++
			passing = cmp.Or(passing, err)
		}
	}
	if err := s.bodies.Sync(); err != nil {
		return taken, left, err
	}
	if passing != nil {
		return taken, left, &unreadFormer{passing}
	}
	return taken, 0, os.RemoveAll(dir)
}

// exhausted reports whether an error says nothing of a file, but that this process or machine has no descriptors or no memory left.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// give offers a body until it is taken. Errors: that of room; the disk does not take what waits for it for a while; that of ctx.
func (b *bodyStore) give(ctx context.Context, id metadata.BlockID, data []byte, room func() error) error {
	for began := time.Now(); !b.Offer(id, data); {
		if err := room(); err != nil {
			return err
		}
		if time.Since(began) >= formerRest {
			return errors.New("too many small files wait for the disk")
		}
		if err := pace.Wait(ctx, offerEvery); err != nil {
			return err
		}
	}
	return nil
}
