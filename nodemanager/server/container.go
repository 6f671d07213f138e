package server

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// container is one container on this node, from its order until it is forgotten and its logs are away.
type container struct {
	server *Server
	id     nodemanager.ContainerID
	dir    string
	log    *slog.Logger
	client *supervisor.Client

	// unrecorded: there is no directory on disk for it, because the disk refused or because it never ran.
	unrecorded bool

	// stopped is closed by the first stop order.
	stopped  chan struct{}
	stopOnce sync.Once
	// hurry says that the grace of the stop order has become shorter; of capacity 1.
	hurry chan struct{}
	// gone is closed when the container is COMPLETE; forgot when the resource manager has recorded that.
	gone       chan struct{}
	goneOnce   sync.Once
	forgot     chan struct{}
	forgotOnce sync.Once
	// shipped is closed when the log files are in the filesystem completely, or go nowhere.
	shipped chan struct{}

	disk    int64             // that it may take, in bytes; of the goroutine that prepares it
	account *account.Account  // it runs as; nil: our own; of the same goroutine
	handed  supervisor.Handed // until its supervisor has it; of the same goroutine
	again   time.Duration     // when its credentials are refreshed; 0: never; of the same goroutine
	sharing int               // containers that share its application's directory, as its supervisor knows; of that goroutine
	trees   []string          // of the localizer's cache that it uses; of the same goroutine

	telling sync.Mutex // of who writes the authorities that it knows

	mu     sync.Mutex
	record *state.Record
	// unsaved: the record on disk is older than record; saving: a goroutine writes it.
	unsaved, saving bool
	grace           time.Duration // of the stop order; negative: the spec's
	memory          int64
	used            time.Time // when its use of devices was recorded
	stuck           []int
	// unshipped: the last shipment of logs has failed.
	unshipped bool
	// waits says what keeps the container from starting; empty: nothing.
	waits string
	// heeded: notice is what its file says, or will say as soon as the goroutine is done that is heeding it.
	heeded, heeding bool
	notice          string
}

func (s *Server) newContainer(r *state.Record) *container {
	dir := s.store.ContainerDir(r.Spec.ID)
	if !r.Spec.ID.Valid() {
		dir = filepath.Join(s.store.Dir(), "refused") // is never made
	}
	c := &container{
		server: s, id: r.Spec.ID, dir: dir, unrecorded: !r.Spec.ID.Valid(), record: r, log: s.log.With("container", r.Spec.ID, "app", r.Spec.Application),
		client: supervisor.NewClient(dir), grace: -1, hurry: make(chan struct{}, 1),
		stopped: make(chan struct{}), gone: make(chan struct{}), forgot: make(chan struct{}), shipped: make(chan struct{}),
	}
	if r.Stop != nil {
		c.stopOnce.Do(func() { close(c.stopped) })
	}
	if r.State == nodemanager.Complete {
		c.goneOnce.Do(func() { close(c.gone) })
	}
	if r.Forgotten {
		c.forgotOnce.Do(func() { close(c.forgot) })
	}
	return c
}

// view is a copy of the record for reports and pages.
func (c *container) view() (state.Record, int64, []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.record, c.memory, c.stuck
}

func (c *container) logsPath() string { return filepath.Join(c.dir, "logs") }

// saveLocked has the record written, and again until it is on disk as it is in memory.
func (c *container) saveLocked() {
	c.unsaved = true
	if c.unrecorded || c.saving {
		return
	}
	c.saving = true
	c.server.work.Go(func() {
		failed := false
		for {
			c.mu.Lock()
			if !c.unsaved || c.unrecorded {
				c.saving = false
				c.mu.Unlock()
				return
			}
			c.unsaved = false
			record := *c.record
			c.mu.Unlock()
			err := c.server.store.Put(&record)
			if err == nil {
				continue
			}
			if _, gone := os.Lstat(c.dir); errors.Is(gone, fs.ErrNotExist) {
				continue // the container is removed
			}
			if !failed {
				c.log.Error("container's record not written, trying again", "error", err)
				failed = true
			}
			c.mu.Lock()
			c.unsaved = true
			c.mu.Unlock()
			if !c.server.pause(time.Second) {
				c.mu.Lock()
				c.saving = false
				c.mu.Unlock()
				return
			}
		}
	})
}

func (c *container) waiting() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waits
}

// setWaits says what keeps the container from starting. It reports whether that is news.
func (c *container) setWaits(why string) bool {
	c.mu.Lock()
	before := c.waits
	c.waits = nodemanager.Shorten(why, 1024)
	news := c.waits != before
	c.mu.Unlock()
	if news {
		c.server.nudge()
	}
	return news && before == ""
}

func firstLine(s string) string {
	if before, _, ok := strings.Cut(s, "\n"); ok {
		return before
	}
	return s
}
