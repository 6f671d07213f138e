package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
)

// Containers of one application on one node have a directory in common (LOCAL_DIRS), in YARN's dialect: Spark's executors read what
// others on their host have shuffled from the disk. It is its user's, who alone sees it, and goes with the last of them; that of an
// application whose outputs are served from here (package shuffle) goes when the application has ended.

func (s *Server) appsDir() string { return filepath.Join(s.store.Dir(), "apps") }

// appDir is the directory that the container shares; empty: it shares none.
func (c *container) appDir(spec *nodemanager.Spec) string {
	if spec.Dialect == nodemanager.YARN {
		return c.appDirOfID()
	}
	return ""
}

// appDirOfID is the directory of the container's application, whether this container shares it or not.
func (c *container) appDirOfID() string {
	if app := applicationOf(c.id); c.id.Valid() && app != "" {
		return filepath.Join(c.server.appsDir(), app)
	}
	return ""
}

// sharers counts the containers here that share the directory of this one's application, this one among them; 0: it shares none.
func (c *container) sharers() (n int) {
	r, _, _ := c.view()
	if c.appDir(&r.Spec) == "" {
		return 0
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for id, other := range c.server.containers {
		if applicationOf(id) != applicationOf(c.id) {
			continue
		}
		if r, _, _ := other.view(); r.Spec.Dialect == nodemanager.YARN {
			n++
		}
	}
	return n
}

// makeAppDir makes the directory, for the supervisor to hand over.
func (c *container) makeAppDir(spec *nodemanager.Spec) error {
	dir := c.appDir(spec)
	if dir == "" {
		return nil
	}
	c.server.appDirs.Lock()
	defer c.server.appDirs.Unlock()
	if err := os.MkdirAll(c.server.appsDir(), 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// dropAppDir removes the directory when no container of the application is here any more. This one has left s.containers. The last one
// need not have shared it: one that was never started, or whose record was lost, does not know.
func (c *container) dropAppDir() {
	dir := c.appDirOfID()
	if dir == "" {
		return
	}
	c.server.removeAppDir(applicationOf(c.id))
}

// removeAppDir removes the directory of an application unless it is needed.
func (s *Server) removeAppDir(app string) {
	dir, gone := filepath.Join(s.appsDir(), app), filepath.Join(s.appsDir(), ".gone-"+app+"-"+strconv.FormatInt(s.removals.Add(1), 10))
	s.appDirs.Lock() // a container is in s.containers before it makes the directory
	s.mu.Lock()
	needed := s.liveApps()[app]
	s.mu.Unlock()
	if needed || s.serves(app) {
		s.appDirs.Unlock()
		return
	}
	err := os.Rename(dir, gone) // at once, so that one that comes now makes another
	s.appDirs.Unlock()
	if err == nil {
		err = state.RemoveAll(gone)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("the directory of an application is not removed; the next node manager tries again", "application", app, "error", err)
	}
}

// liveApps are the applications of the containers that are here, s.mu held.
func (s *Server) liveApps() map[string]bool {
	live := map[string]bool{}
	for id := range s.containers {
		live[applicationOf(id)] = true
	}
	return live
}

// sweepAppDirs removes what applications have left of which no container is here.
func (s *Server) sweepAppDirs(all []*container) {
	live := map[string]bool{}
	for _, c := range all {
		live[applicationOf(c.id)] = true
	}
	entries, err := os.ReadDir(s.appsDir())
	if err != nil {
		return // there is none
	}
	for _, e := range entries {
		if !live[e.Name()] && !s.serves(e.Name()) {
			if err := state.RemoveAll(filepath.Join(s.appsDir(), e.Name())); err != nil {
				s.log.Warn("the directory of an application is not removed", "directory", e.Name(), "error", err)
			}
		}
	}
}
