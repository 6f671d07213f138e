package blockstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// Open opens the volumes: locks them, checks whose they are, and recovers what a crash left. Replicas that were being
// written become RWR, cut to what their checksums cover. A volume that cannot be opened, or whose disk does not answer, has failed; the others serve. So has one that another process has
// locked, as one does that was ended and cannot come to its end before a disk answers; ErrVolumeInUse: one is locked, and no other one of the same datanode works that is not new. Only a
// datanode all of whose volumes are new is a new one: where one cannot be read, and no other one says whose they are, the error is that of the volume.
func Open(cfg Config) (*Store, error) {
	if cfg.FS == nil {
		cfg.FS = vfs.OS
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Keep == 0 {
		cfg.Keep = DefaultKeep
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Volumes) == 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a datanode needs at least one volume")
	}
	if !slices.ContainsFunc(cfg.Volumes, func(v VolumeConfig) bool { return v.Type != datanode.RAMDisk }) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a datanode needs at least one volume that is not of type RAM_DISK: what is in memory is saved there")
	}
	s := &Store{cfg: cfg, log: cfg.Logger, rescue: make(chan struct{}, 1), leaves: make(chan struct{}), patient: map[string]patience{}, removed: map[string]*volume{}}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Shutdown())
	}
	s.opened.Store(true)
	return s, nil
}

func (s *Store) open() error {
	if err := s.list(); err != nil {
		return err
	}
	defer s.watchOpening(s.all())()
	if err := s.survey(); err != nil {
		return err
	}
	if err := s.needDisk(); err != nil {
		return err
	}
	if err := s.agree(); err != nil {
		return err
	}
	var g errgroup.Group
	for _, v := range s.all() {
		if v.err() != nil {
			continue
		}
		g.Go(func() error {
			if err := v.ask(func() error { return s.load(v) }); err != nil {
				v.fail(explain(err))
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are the volumes'
	for _, v := range s.all() {
		if p := v.failed.Load(); p != nil && (errors.Is(*p, errSilent) || errors.Is(*p, datanode.ErrVolumeInUse)) {
			v.hung.Store(true) // it is opened when that is over, see Revive
		}
	}
	return s.Tolerable()
}

// survey looks at all volumes and locks those that are there. One that cannot be read is a failed volume. An empty directory
// is a new volume, unless one of the others knows of a volume that is missing: then it is that one's place, and its disk is
// not mounted or was replaced.
func (s *Store) survey() error {
	var fresh []*volume
	accepted := map[*volume]bool{}
	found := make([]claimed, len(s.all()))
	var g sync.WaitGroup
	for i, v := range s.all() {
		g.Go(func() {
			var silent error
			if found[i], silent = answerOf(v, func() claimed { return claim(v.fs, v.path) }, claimed.release); silent != nil {
				found[i].err = silent
			}
		})
	}
	g.Wait()
	for i, v := range s.all() {
		f := found[i]
		v.id, v.lock = f.id, f.lock
		switch {
		case f.err != nil:
			v.broken = f.err
		case f.fresh:
			fresh = append(fresh, v)
			accepted[v] = f.accepted
		}
	}
	for _, v := range s.all() {
		if v.broken != nil && slices.ContainsFunc(s.all(), func(other *volume) bool { return other != v && other.id.Storage == v.id.Storage }) {
			v.id = Identity{} // the same directory by another path
		}
	}
	missing := missing(s.all())
	for _, v := range fresh {
		if len(missing) > 0 && !accepted[v] && !v.inMemory() {
			v.broken = fmt.Errorf("there is nothing, but volume %s of this datanode is missing: is its disk not mounted? If it was replaced by a new one, put an empty file named %s there: %w",
				strings.Join(missing, " or "), acceptFile, datanode.ErrVolumeVersion)
			continue
		}
		made, silent := answerOf(v, func() claimed {
			err := mkdirAll(v.fs, v.path)
			if err != nil {
				return claimed{err: err}
			}
			lock, err := lockVolume(v.fs, v.path)
			return claimed{lock: lock, err: err}
		}, claimed.release)
		v.lock, v.broken = made.lock, errors.Join(made.err, silent)
	}
	if err := allTaken(s.all()); err != nil {
		return err
	}
	if err := onlyNew(s.all(), fresh); err != nil {
		return err
	}
	for _, v := range s.all() {
		if v.broken == nil {
			g.Go(func() { v.broken = s.size(v) })
		}
	}
	g.Wait()
	s.nameBroken(missing)
	return nil
}

// allTaken is the error of a second process that is started on the volumes of one that runs: one is locked, and no other one of the same datanode works. One that is
// new says nothing: with it alone this would become another datanode.
func allTaken(all []*volume) error {
	var works *volume
	for _, v := range all {
		if v.broken == nil && !v.inMemory() && v.id.Datanode != "" {
			works = v
			break
		}
	}
	for _, v := range all {
		if errors.Is(v.broken, datanode.ErrVolumeInUse) && (works == nil || v.id.Datanode != "" && v.id.Datanode != works.id.Datanode) {
			return fmt.Errorf("volume %s: %w", v.path, v.broken)
		}
	}
	return nil
}

// onlyNew is the error of a start with new volumes beside one that cannot be read, where no volume says which datanode this is: it would become another one, though what cannot be
// read may be all that there was. One that is in fresh had nothing on it, and says so unless its disk does not answer.
func onlyNew(all, fresh []*volume) error {
	if slices.ContainsFunc(all, func(v *volume) bool { return v.id.Datanode != "" }) ||
		!slices.ContainsFunc(all, func(v *volume) bool { return v.broken == nil && !v.inMemory() }) {
		return nil
	}
	for _, v := range all {
		if v.broken != nil && (errors.Is(v.broken, errSilent) || !slices.Contains(fresh, v)) {
			return fmt.Errorf("volume %s: %w; without it there are only new volumes, and with these this would be another datanode: mend it, or take it out of the list if what is on it is lost", v.path, explain(v.broken))
		}
	}
	return nil
}

// list makes the volumes of the configuration, without a look at any disk.
func (s *Store) list() error {
	var list []*volume
	for _, c := range s.cfg.Volumes {
		v, err := s.newVolume(c, list)
		if err != nil {
			return err
		}
		list = append(list, v)
	}
	s.listed.Store(&list)
	return nil
}

// newVolume makes a volume beside others, without a look at its disk.
func (s *Store) newVolume(c VolumeConfig, others []*volume) (*volume, error) {
	path, err := filepath.Abs(c.Path)
	if err != nil || c.Path == "" {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "volume path %q is not usable", c.Path)
	}
	if slices.ContainsFunc(others, func(v *volume) bool { return v.path == path }) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "volume %s is listed twice", path)
	}
	v := newVolume(s.cfg.FS, path, c.Type, 0, s.log)
	v.onFail = s.volumeFailed
	v.places, v.at = &s.places, s.places.add(place{v: v})
	v.trash.keep, v.trash.now = s.cfg.Keep, s.cfg.Now
	if v.typ == 0 {
		v.typ = datanode.Disk
	}
	if v.inMemory() {
		v.trash.keep = -1 // memory is too dear
		v.evict = func(n int64) bool { return s.evict(v, n) }
	}
	return v, nil
}

// size finds how much a volume holds.
func (s *Store) size(v *volume) error {
	type answer struct {
		u   vfs.Usage
		err error
	}
	a, err := answerOf(v, func() answer {
		u, err := v.fs.Usage(v.path)
		return answer{u, err}
	}, nil)
	if err = errors.Join(a.err, err); err != nil {
		return err
	}
	u := a.u
	switch {
	case s.cfg.Reserve == 0:
		v.reserve = min(u.Total/20, 1<<30)
	case s.cfg.Reserve > 0:
		v.reserve = s.cfg.Reserve
	}
	v.trash.limit = u.Total / trashShare
	return nil
}

// missing lists the volumes that the others know of and that are not there, in order.
func missing(volumes []*volume) []string {
	there := map[string]bool{}
	known := map[string]bool{}
	for _, v := range volumes {
		there[v.id.Storage] = true
		for _, id := range strings.Split(v.id.Siblings, ",") {
			known[id] = true
		}
	}
	var out []string
	for id := range known {
		if id != "" && !there[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// nameBroken gives up the volumes that could not be opened. Which of the missing ones each was is a guess where VERSION could not be read (see mistaken); the namenode
// hears that they have failed.
func (s *Store) nameBroken(missing []string) {
	for _, v := range s.all() {
		if v.broken == nil {
			continue
		}
		if v.id.Storage == "" {
			v.guessed, v.id.Storage = true, unknownName(v.path)
			if len(missing) > 0 {
				v.id.Storage, missing = missing[0], missing[1:]
			}
		}
		v.fail(explain(v.broken))
	}
}

// unknownName is what a volume is called of which nothing is known but its path.
func unknownName(path string) string { return fmt.Sprintf("DS-unknown-%08x", crcOf([]byte(path))) }

// needDisk refuses to go on with memory alone, which does not know whose it is after its machine has started anew.
func (s *Store) needDisk() error {
	var err error
	if !slices.ContainsFunc(s.all(), (*volume).inMemory) {
		return nil
	}
	for _, v := range s.all() {
		p := v.failed.Load()
		switch {
		case v.inMemory():
		case p == nil:
			return nil
		default:
			err = fmt.Errorf("volume %s: %w", v.path, *p)
		}
	}
	return err
}

// Tolerable decides whether there are enough volumes that work: the error names how many do not, and the first of them. Open asks, and whoever wants
// a store to be given up of which too many have failed later.
func (s *Store) Tolerable() error {
	var errs []error
	for _, v := range s.all() {
		if p := v.failed.Load(); p != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.path, *p))
		}
	}
	limit := len(s.all()) - 1
	if s.cfg.Tolerated != nil {
		limit = min(limit, *s.cfg.Tolerated)
	}
	switch {
	case len(errs) <= limit:
		return nil
	case len(errs) == 1:
		return errs[0]
	}
	return fmt.Errorf("%d of %d volumes do not work, %d may; the first is %w", len(errs), len(s.all()), limit, errs[0])
}

// explain adds what to do about the errors that operators meet.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: the datanode's user must own the directory and be able to read and write it", err)
	}
	return err
}

// agree checks that all volumes of which it is known are of one datanode and one cluster, gives new ones that identity, and tells each
// of all.
func (s *Store) agree() error {
	var first *volume
	for _, v := range s.all() {
		if v.id.Datanode == "" {
			continue
		}
		if first == nil {
			first = v
		}
		if v.id.Datanode != first.id.Datanode {
			return fmt.Errorf("volume %s is of datanode %s, volume %s of datanode %s: %w", first.path, first.id.Datanode, v.path, v.id.Datanode, datanode.ErrVolumeOwner)
		}
		if v.id.Cluster != "" && first.id.Cluster != "" && v.id.Cluster != first.id.Cluster {
			return fmt.Errorf("volume %s is of cluster %s, volume %s of cluster %s: %w", first.path, first.id.Cluster, v.path, v.id.Cluster, datanode.ErrVolumeOwner)
		}
		if first.id.Cluster == "" {
			first = v
		}
	}
	s.datanode = uuid.NewString()
	if first != nil {
		s.own = first.id
		s.datanode = first.id.Datanode
	}
	wants := make([]Identity, len(s.all()))
	var all []string
	for i, v := range s.all() {
		wants[i] = v.id
		if v.err() == nil && v.id.Datanode == "" {
			wants[i] = newIdentity(s.datanode)
		}
		if !v.inMemory() && (v.err() == nil || !strings.HasPrefix(wants[i].Storage, "DS-unknown-")) {
			all = append(all, wants[i].Storage)
		}
	}
	slices.Sort(all)
	s.own = Identity{Datanode: s.datanode, Cluster: s.own.Cluster, BlockPool: s.own.BlockPool}
	for i, v := range s.all() {
		if v.err() != nil {
			continue
		}
		want := wants[i]
		want.Cluster, want.BlockPool, want.Siblings = s.own.Cluster, s.own.BlockPool, strings.Join(all, ",")
		want.Unsynced = want.Unsynced || s.cfg.Unsynced
		if want == v.id {
			continue
		}
		isNew := v.id.Datanode == ""
		err := v.ask(func() error {
			err := writeIdentity(v.fs, v.path, want)
			if err == nil && isNew {
				err = removeFile(v.fs, filepath.Join(v.path, acceptFile))
			}
			return err
		})
		v.id = want
		if err != nil {
			v.fail(explain(err))
		}
	}
	return nil
}
