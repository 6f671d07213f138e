package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// HostConfig describes a Host. ID, Listener, Dir and Door are required.
type HostConfig struct {
	// ID names this process among the members of its groups, for ever.
	ID string
	// Listener takes the connections of peers; the host owns it.
	Listener net.Listener
	// Advertise is the host:port under which peers reach Listener; default: the listener's own address.
	Advertise string
	// Dir holds a directory per group. It is made if missing.
	Dir string
	// Credentials are the server's, and Role is that of all members: both ends of a connection show it. Door keeps other users away.
	Credentials security.Credentials
	Role        authority.Role
	Door        *security.Door
	Logger      *slog.Logger
	// Reserve is how many bytes of Dir's disk stay free: below, Propose returns metadata.ErrNoSpace while reads go on, and a
	// leader hands over to a member with space. It grows to what the next snapshot takes.
	// 0: 5 % of the disk, 1 GiB at most; negative: no reserve.
	Reserve int64
	// DiskSpace looks up the free and all bytes of the disk under a directory; nil: the kernel is asked.
	DiskSpace func(dir string) (free, total int64, err error)
	// WriteDeadline is how long one write of the log may take before OnFatal is called; default 5 s, negative: forever.
	// A leader whose disk hangs otherwise keeps its followers waiting for ever (hashicorp/raft#503). Time in which the
	// process was stopped does not count. The only voter of a group waits as long as it takes: there are none who could go on.
	WriteDeadline time.Duration
	// SlowWrite is how long one write of the log may take before a leader that is not the only voter gives up its
	// leadership; default a fifth of WriteDeadline. Raised: fewer handovers on a slow disk, a longer stop on a hung one.
	SlowWrite time.Duration
	// SlowApply is how long the state machine may take for one entry before a leader hands over to a voter that has carried it out; default
	// WriteDeadline, negative: forever. Raised: fewer handovers where machines are overloaded, a longer stop where a checkpoint's disk hangs.
	SlowApply time.Duration
	// SlowAppend is told of appends to the log that take too long; nil: nobody is.
	SlowAppend *slowlog.Operation
	// OnFatal is called when the process must not go on: a write failed or hangs, stored bytes are damaged. Default:
	// log the error and exit with status 1. When it returns, the group concerned is closed and Run returns the error.
	OnFatal func(error)
	// LogDisk is where the logs of the groups lie; nil: in the file system.
	LogDisk journal.Disk
}

// Host carries the members of any number of groups in one process, on one listener.
type Host struct {
	cfg      HostConfig
	log      *slog.Logger
	listener net.Listener
	space    *space
	fatal    chan error // capacity 1: the first one
	// headerTimeout is for a peer that connects and says nothing, hashLook how often states are compared, and see pullPatience; only tests
	// change them.
	headerTimeout, hashLook, pullPatience time.Duration

	mu     sync.Mutex
	groups map[string]*Group
	closed bool
	// closing is closed when the host begins to close.
	closing chan struct{}
}

// NewHost checks the configuration. It starts nothing; Run and Open do.
func NewHost(cfg HostConfig) (*Host, error) {
	var mistakes []error
	if cfg.ID == "" || len(cfg.ID) > 255 {
		mistakes = append(mistakes, errors.New("the member's id is missing or longer than 255 bytes"))
	}
	if cfg.Listener == nil {
		mistakes = append(mistakes, errors.New("the listener is missing"))
	}
	if cfg.Door == nil {
		mistakes = append(mistakes, errors.New("the door is missing"))
	}
	if cfg.Dir == "" {
		mistakes = append(mistakes, errors.New("the data directory is missing"))
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, fmt.Errorf("raft host: %w", err)
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	h := &Host{
		cfg: cfg, log: cfg.Logger.With("member", cfg.ID),
		listener:      security.Keyring{Member: cfg.Credentials.Member, Roles: []authority.Role{cfg.Role}}.Listen(cfg.Door.Guard(cfg.Listener, security.Doorway{Name: "Raft", Servers: true, Proves: true})),
		space:         newSpace(cfg.Dir, cfg.Reserve),
		fatal:         make(chan error, 1),
		groups:        make(map[string]*Group),
		closing:       make(chan struct{}),
		headerTimeout: headerTimeout, hashLook: hashLook, pullPatience: pullPatience,
	}
	if h.cfg.SlowApply == 0 {
		if h.cfg.SlowApply = cfg.WriteDeadline; h.cfg.SlowApply == 0 {
			h.cfg.SlowApply = slowApply
		}
	}
	if cfg.DiskSpace != nil {
		h.space.lookup = cfg.DiskSpace
	}
	if h.cfg.OnFatal == nil {
		h.cfg.OnFatal = func(err error) {
			h.log.Error("stopping: the Raft store cannot go on", "err", err)
			os.Exit(1)
		}
	}
	return h, nil
}

// ID is the member's name in its groups.
func (h *Host) ID() string { return h.cfg.ID }

// Address is what peers connect to.
func (h *Host) Address() string { return h.cfg.Advertise }

// Run takes connections and watches the disk until ctx is done, then closes all groups and the listener and returns nil.
// It returns earlier, with the reason, when a group failed.
func (h *Host) Run(ctx context.Context) error {
	if err := h.prepare(); err != nil {
		return errors.Join(err, h.Close())
	}
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	g, work := errgroup.WithContext(work)
	// Groups are closed while the listener still works: a leader hands over before it goes.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g.Go(func() error { return h.accept(serving) })
	g.Go(func() error { return h.space.run(work) })
	g.Go(func() error {
		var failure error
		select {
		case <-work.Done():
		case failure = <-h.fatal:
		}
		stopGroups := h.closeGroups()
		stop()
		return errors.Join(failure, stopGroups, h.closeListener())
	})
	return g.Wait()
}

// prepare makes the data directory and looks up free space.
func (h *Host) prepare() error {
	if err := makeDir(h.cfg.Dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := h.space.check(); err != nil {
		return fmt.Errorf("data directory %s: free space: %w", h.cfg.Dir, err)
	}
	return nil
}

// Close closes all groups and the listener. Run does it too.
func (h *Host) Close() error { return errors.Join(h.closeGroups(), h.closeListener()) }

func (h *Host) closeListener() error {
	if err := h.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (h *Host) closeGroups() error {
	h.mu.Lock()
	if !h.closed {
		close(h.closing)
	}
	h.closed = true
	groups := make([]*Group, 0, len(h.groups))
	for _, g := range h.groups {
		if g != nil {
			groups = append(groups, g)
		}
	}
	h.mu.Unlock()
	var wait errgroup.Group
	for _, g := range groups {
		wait.Go(g.Close)
	}
	return wait.Wait()
}

// Room is nil while there is space for more of a state machine's checkpoint, else metadata.ErrNoSpace. It looks at the
// disk: whoever writes asks every few MiB, and gives up.
func (h *Host) Room() error { return h.space.room(0) }

// Clear removes what a crash left half written of a group. Whoever opens something else on the same disk first calls it
// before: half a snapshot may be what the disk is full of. Error: a later version of the program wrote the directory (release.ErrOlder), which
// stays as it is, and the rest of that disk should.
func (h *Host) Clear(group string) error { return clearTemporary(filepath.Join(h.cfg.Dir, group)) }

// Open starts this process's member of a group; Group.Close or the end of Run stops it. The state machine is brought to
// the newest snapshot unless it is there already; what the log has beyond it follows once a leader is known.
//
// Errors of kind metadata.ErrCorrupt mean that the member has to be reinstalled from its peers: see Reinstall.
func (h *Host) Open(cfg GroupConfig, machine StateMachine) (*Group, error) {
	if err := cfg.validate(h.cfg.ID, h.cfg.Advertise); err != nil {
		return nil, err
	}
	if err := h.prepare(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	_, twice := h.groups[cfg.Name]
	closed := h.closed
	if !closed && !twice {
		h.groups[cfg.Name] = nil // taken; route takes nil for "not here"
	}
	h.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("group %s: the host is closed", cfg.Name)
	case twice:
		return nil, fmt.Errorf("group %s is open already on this host", cfg.Name)
	}
	g, err := openGroup(h, cfg, machine)
	h.mu.Lock()
	if err != nil {
		delete(h.groups, cfg.Name)
	}
	closed = h.closed
	h.mu.Unlock()
	if err == nil && closed {
		err = errors.Join(errors.New("the host was closed"), g.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", cfg.Name, err)
	}
	return g, nil
}

// Reinstall deletes this member's log and snapshots of a group, so that the next Open starts empty and is brought up to
// date by the group's leader; until then the member does not vote. It is the way out of metadata.ErrCorrupt. A state
// machine's own checkpoint must be deleted too. The group must not be open, and must have other members.
func (h *Host) Reinstall(cfg GroupConfig) error {
	if err := cfg.validate(h.cfg.ID, h.cfg.Advertise); err != nil {
		return err
	}
	if len(cfg.Members) < 2 {
		return fmt.Errorf("group %s has no other member to reinstall this one from", cfg.Name)
	}
	path := filepath.Join(h.cfg.Dir, cfg.Name)
	want := identity{Format: formatVersion, Cluster: cfg.Cluster, Group: cfg.Name, Member: h.cfg.ID, Joining: true, Reinstalled: true}
	d, err := openDirectory(path, want, true)
	if err != nil {
		return fmt.Errorf("reinstall group %s: %w", cfg.Name, err)
	}
	defer d.close()
	d.Joining, d.Reinstalled, d.Recovered, d.Damaged = true, true, 0, ""
	// First the identity: a crash in between leaves a member that knows it may have forgotten something.
	if err := d.save(); err != nil {
		return fmt.Errorf("reinstall group %s: %w", cfg.Name, err)
	}
	for _, dir := range []string{d.logs(), d.snapshots()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("reinstall group %s: %w", cfg.Name, err)
		}
	}
	return syncDir(path)
}
