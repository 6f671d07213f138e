package blockstore

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// twoVolumes makes a store with replicas on both of its volumes, and closes it.
func twoVolumes(t *testing.T) (a, b string, ids map[string]string, on map[string]metadata.BlockID) {
	t.Helper()
	dir := t.TempDir()
	a, b = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	h := open(t, vfs.OS, a, b)
	ids, on = map[string]string{}, map[string]metadata.BlockID{}
	for id := int64(1); id <= 4; id++ {
		h.put(id, 1, pattern(40_000))
	}
	for _, v := range h.Volumes() {
		ids[v.Path] = v.ID
		h.Each(v.ID, func(r datanode.Replica) bool { on[v.Path] = r.Block.ID; return false })
	}
	check(t, h.Shutdown())
	return a, b, ids, on
}

// A disk that is damaged, or that is not mounted, is a failed volume: the others serve, nothing is formatted, and when it is
// back its replicas are.
func TestOneBadDiskLeavesTheOthers(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string) (restore func()){
		"damaged VERSION": func(t *testing.T, dir string) func() {
			name := filepath.Join(dir, versionFile)
			was := must[[]byte](t)(os.ReadFile(name))
			check(t, os.WriteFile(name, []byte("x"), 0o600))
			return func() { check(t, os.WriteFile(name, was, 0o600)) }
		},
		"not mounted": func(t *testing.T, dir string) func() {
			check(t, os.Rename(dir, dir+".away"))
			check(t, os.Mkdir(dir, 0o700))
			return func() {
				check(t, os.Remove(dir))
				check(t, os.Rename(dir+".away", dir))
			}
		},
		"mount point gone": func(t *testing.T, dir string) func() {
			check(t, os.Rename(dir, dir+".away"))
			return func() { check(t, os.Rename(dir+".away", dir)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, ids, on := twoVolumes(t)
			restore := spoil(t, b)
			h := open(t, vfs.OS, a, b)
			v := h.Volumes()
			if v[0].Failed != nil || v[1].Failed == nil || v[1].ID != ids[b] {
				t.Errorf("volumes are %+v", v)
			}
			if _, ok := h.Replica(on[b]); ok {
				t.Error("a replica of the absent volume is offered")
			}
			h.wantContent(int64(on[a]), pattern(40_000))
			h.put(9, 1, pattern(40_000))
			check(t, h.Join("lab", "BP-1"))
			check(t, h.Shutdown())
			none := 0
			cfg := Config{Volumes: []VolumeConfig{{Path: a}, {Path: b}}, FS: vfs.OS, Reserve: -1, Tolerated: &none}
			if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), b) {
				t.Errorf("with none tolerated: %v", err)
			}
			restore()
			h = open(t, vfs.OS, a, b)
			h.wantContent(int64(on[b]), pattern(40_000))
			if v := h.Volumes(); v[1].ID != ids[b] || v[1].Failed != nil {
				t.Errorf("when it is back: %+v", v[1])
			}
			check(t, h.Shutdown())
		})
	}
}

// An operator says that a new disk takes the place of one that is gone, on the disk itself and once.
func TestANewDiskIsAccepted(t *testing.T) {
	a, b, ids, on := twoVolumes(t)
	check(t, os.RemoveAll(b))
	check(t, os.Mkdir(b, 0o700))
	h := open(t, vfs.OS, a, b)
	if err := h.Volumes()[1].Failed; err == nil || !strings.Contains(err.Error(), acceptFile) || !strings.Contains(err.Error(), ids[b]) {
		t.Errorf("the empty directory: %v", err)
	}
	check(t, h.Shutdown())
	check(t, os.WriteFile(filepath.Join(b, acceptFile), nil, 0o600))
	h = open(t, vfs.OS, a, b)
	v := h.Volumes()[1]
	if v.Failed != nil || v.ID == ids[b] {
		t.Errorf("accepted: %+v", v)
	}
	h.wantContent(int64(on[a]), pattern(40_000))
	check(t, h.Shutdown())
	check(t, os.RemoveAll(b)) // not accepted twice
	check(t, os.Mkdir(b, 0o700))
	h = open(t, vfs.OS, a, b)
	if h.Volumes()[1].Failed == nil {
		t.Error("the next empty directory is a volume at once")
	}
	check(t, h.Shutdown())
	h = open(t, vfs.OS, a) // a volume taken out of the list is forgotten
	check(t, h.Shutdown())
	h = open(t, vfs.OS, a, b)
	if err := h.Volumes()[1].Failed; err != nil {
		t.Errorf("a volume that was added: %v", err)
	}
	check(t, h.Shutdown())
}

// A file that vanishes is a replica less, not a damaged one; where the volume itself is gone nothing is said to be deleted.
func TestAReplicaWhoseFileVanishedIsMissing(t *testing.T) {
	for _, unmounted := range []bool{false, true} {
		var told []string
		dir := t.TempDir()
		s, err := Open(Config{
			FS: vfs.OS, Volumes: []VolumeConfig{{Path: dir}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler),
			OnChange: func(c datanode.Change) { told = append(told, fmt.Sprintf("%v %d", c.Kind, c.Block.ID)) },
		})
		check(t, err)
		b := metadata.Block{ID: 7, Generation: 1001}
		w, err := s.Create(b, datanode.CreateOptions{})
		check(t, err)
		_, err = w.WriteAll([]datanode.Piece{{Data: make([]byte, 200_000)}})
		check(t, err)
		_, err = w.Finalize()
		check(t, err)
		check(t, w.Close())
		used := s.Volumes()[0].Used
		v := s.all()[0]
		check(t, os.Remove(v.dataPath(7)))
		if unmounted {
			check(t, os.Rename(filepath.Join(dir, versionFile), filepath.Join(dir, "VERSION.away")))
		}
		told = nil
		_, err = s.Open(b)
		_, there := s.Replica(7)
		if !unmounted {
			left, _ := filepath.Glob(filepath.Join(filepath.Dir(v.dataPath(7)), "blk_7*"))
			if !errors.Is(err, metadata.ErrReplicaNotFound) || there || len(told) != 1 || told[0] != fmt.Sprintf("%v 7", datanode.Deleted) || s.Volumes()[0].Used >= used || len(left) > 0 {
				t.Errorf("%v, there: %v, told %v, used %d of %d, left %v", err, there, told, s.Volumes()[0].Used, used, left)
			}
		} else if !errors.Is(err, metadata.ErrCorrupt) || !there || len(told) != 1 || told[0] != fmt.Sprintf("%v 7", datanode.Corrupt) {
			t.Errorf("without the volume: %v, there: %v, told %v", err, there, told)
		}
		check(t, s.Shutdown())
	}
}

// A disk that is unmounted while the store serves is a failed volume, and nothing is written to where it was.
func TestNothingIsWrittenWhereADiskWas(t *testing.T) {
	for name, write := range map[string]func(h *harness) error{
		"files": func(h *harness) error {
			w, err := h.Create(block(1<<20, 1, 0), datanode.CreateOptions{})
			if err != nil {
				return err
			}
			return errors.Join(w.Write(0, pattern(100_000), nil), w.Close())
		},
		"a pack": func(h *harness) error {
			w, err := h.Create(block(1<<20, 1, 0), datanode.CreateOptions{})
			if err != nil {
				return err
			}
			return errors.Join(w.Write(0, pattern(1000), nil), w.Close())
		},
		"files, as long as it is believed to be there": func(h *harness) error { return h.all()[0].ensureDir(1 << 20) },
	} {
		for _, mountPoint := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mount point %v", name, mountPoint), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "a")
				h := open(t, vfs.OS, dir)
				h.put(1, 1, pattern(40_000))
				check(t, os.Rename(dir, dir+".away"))
				if mountPoint {
					check(t, os.Mkdir(dir, 0o700))
				}
				wantKind(t, write(h), metadata.ErrIO)
				if h.Volumes()[0].Failed == nil {
					t.Error("the volume works")
				}
				left, err := os.ReadDir(dir)
				if len(left) > 0 || mountPoint != (err == nil) {
					t.Errorf("where the disk was are %v, %v", left, err)
				}
				check(t, h.Shutdown())
			})
		}
	}
}

// That a replica is gone is announced before another one of its block can be: the namenode would forget the one that came. That there is none is
// only said where there is none.
func TestThatAReplicaIsGoneIsToldBeforeTheNextComes(t *testing.T) {
	var s *Store
	var told []string
	s, err := Open(Config{
		FS: vfs.OS, Volumes: []VolumeConfig{{Path: t.TempDir()}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler),
		OnChange: func(c datanode.Change) {
			told = append(told, fmt.Sprintf("%v %d", c.Kind, c.Block.ID))
			if c.Kind == datanode.Deleted && c.Block.Generation > 0 && s.get(7) == nil {
				t.Error("another one can be created already")
			}
		},
	})
	check(t, err)
	b := metadata.Block{ID: 7, Generation: 1001}
	for range 2 {
		w, err := s.Create(b, datanode.CreateOptions{})
		check(t, err)
		check(t, w.Close())
		s.Disown(7)
		check(t, s.Discard(b))
	}
	s.Disown(7)
	if want := "[receiving 7 deleted 7 receiving 7 deleted 7 deleted 7]"; strings.ToLower(fmt.Sprint(told)) != want {
		t.Errorf("told is %v, want %s", told, want)
	}
	check(t, s.Shutdown())
}

// What another process has locked is known all the same: nobody becomes another datanode because only a new, empty directory is left.
func TestNoNewDatanodeBesideOneThatRuns(t *testing.T) {
	for name, c := range map[string]struct{ old, later []string }{
		"one is locked, a new one is there":  {[]string{"a"}, []string{"a", "c"}},
		"two are locked, a new one is there": {[]string{"a", "b"}, []string{"a", "b", "c"}},
		"the new one is first":               {[]string{"a", "b"}, []string{"c", "b", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(names []string) (paths []string) {
				for _, n := range names {
					paths = append(paths, filepath.Join(dir, n))
				}
				return paths
			}
			runs := open(t, vfs.OS, at(c.old)...)
			cfg := Config{FS: vfs.OS, Reserve: -1, Logger: slog.New(slog.DiscardHandler)}
			for _, path := range at(c.later) {
				cfg.Volumes = append(cfg.Volumes, VolumeConfig{Path: path})
			}
			if s, err := Open(cfg); !errors.Is(err, datanode.ErrVolumeInUse) {
				t.Errorf("it starts beside: %v", err)
				if s != nil {
					t.Errorf("as %s, the other is %s", s.Identity().Datanode, runs.Identity().Datanode)
					check(t, s.Shutdown())
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "c", versionFile)); err == nil {
				t.Error("the new directory is a volume")
			}
			was := runs.Identity().Datanode
			check(t, runs.Shutdown())
			h := open(t, vfs.OS, at(c.later)...)
			if now := h.Identity().Datanode; now != was {
				t.Errorf("it is datanode %s, was %s", now, was)
			}
			for _, v := range h.Volumes() {
				if v.Failed != nil {
					t.Errorf("%+v", v)
				}
			}
			check(t, h.Shutdown())
		})
	}
}

// A volume that is locked, and the directory of another that is not mounted: that directory is not a new volume, as the one that is locked knows.
func TestADirectoryThatIsNotMountedBesideALockedVolume(t *testing.T) {
	a, b, _, _ := twoVolumes(t)
	check(t, os.Rename(b, b+".away"))
	check(t, os.Mkdir(b, 0o700))
	lock := must[io.Closer](t)(vfs.OS.Lock(filepath.Join(a, lockFile)))
	defer lock.Close()
	cfg := Config{FS: vfs.OS, Reserve: -1, Logger: slog.New(slog.DiscardHandler), Volumes: []VolumeConfig{{Path: a}, {Path: b}}}
	if _, err := Open(cfg); !errors.Is(err, datanode.ErrVolumeInUse) {
		t.Errorf("it starts: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b, versionFile)); err == nil {
		t.Error("the directory is a volume")
	}
}

// A volume that another datanode has is not one that has failed of this one.
func TestALockedVolumeOfAnotherDatanodeIsRefused(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	other := open(t, vfs.OS, a)
	h := open(t, vfs.OS, b)
	check(t, h.Shutdown())
	cfg := Config{FS: vfs.OS, Reserve: -1, Logger: slog.New(slog.DiscardHandler), Volumes: []VolumeConfig{{Path: a}, {Path: b}}}
	if _, err := Open(cfg); !errors.Is(err, datanode.ErrVolumeInUse) {
		t.Errorf("it starts: %v", err)
	}
	check(t, other.Shutdown())
}

// A directory that is listed by two paths is one volume, and one that has failed by another name.
func TestADirectoryByTwoPathsIsOneVolume(t *testing.T) {
	a, b, ids, _ := twoVolumes(t)
	link := a + ".link"
	check(t, os.Symlink(a, link))
	h := open(t, vfs.OS, link, a, b)
	seen := map[string]bool{}
	failed := 0
	for _, v := range h.Volumes() {
		if seen[v.ID] {
			t.Errorf("two are called %s", v.ID)
		}
		if seen[v.ID] = true; v.Failed != nil {
			failed++
		}
	}
	if !seen[ids[a]] || !seen[ids[b]] || failed != 1 {
		t.Errorf("volumes are %+v", h.Volumes())
	}
	check(t, h.Shutdown())
}

// Which of the volumes that are missing is which is a guess as long as they have failed: each comes back whatever was guessed, and the others are called by what is left.
func TestVolumesThatWereMistakenForEachOtherComeBack(t *testing.T) {
	a, b, ids, on := twoVolumes(t)
	c := a + ".c"
	h := open(t, vfs.OS, a, b, c)
	check(t, h.Shutdown())
	if ids[a] < ids[b] {
		a, b = b, a // the first one that has failed is called by the lesser name
	}
	restore := map[string][]byte{}
	for _, path := range []string{a, b} {
		name := filepath.Join(path, versionFile)
		restore[path] = must[[]byte](t)(os.ReadFile(name))
		check(t, os.WriteFile(name, []byte("x"), 0o600))
	}
	h = open(t, vfs.OS, c, a, b)
	if v := h.Volumes(); v[1].Failed == nil || v[2].Failed == nil || v[1].ID != ids[b] {
		t.Fatalf("volumes are %+v", v)
	}
	for _, path := range []string{b, a} {
		check(t, os.WriteFile(filepath.Join(path, versionFile), restore[path], 0o600))
		if err := h.Add(VolumeConfig{Path: path}); err != nil {
			t.Errorf("%s does not come back: %v", path, err)
		}
		for _, v := range h.Volumes() {
			if (v.Path == a || v.Path == b) && v.ID != ids[v.Path] {
				t.Errorf("volume %s is called %s, it is %s", v.Path, v.ID, ids[v.Path])
			}
			if failed := path == b && v.Path == a; (v.Failed != nil) != failed {
				t.Errorf("volume %+v", v)
			}
		}
	}
	h.wantContent(int64(on[a]), pattern(40_000))
	h.wantContent(int64(on[b]), pattern(40_000))
	want := h.all()[0].id.Siblings
	for _, v := range h.all() {
		if v.id.Siblings != want || strings.Count(want, "DS-") != 3 {
			t.Errorf("volume %s knows of %s, the first of %s", v.path, v.id.Siblings, want)
		}
	}
	check(t, h.Shutdown())
}

// A volume that is only locked, or does not answer yet, has done nothing for which it would have to wait longer and longer.
func TestAVolumeThatIsLockedIsTriedEverySomeSeconds(t *testing.T) {
	a, b, _, on := twoVolumes(t)
	lock := must[io.Closer](t)(vfs.OS.Lock(filepath.Join(b, lockFile)))
	h := open(t, vfs.OS, a, b)
	now := time.Unix(1e9, 0)
	h.cfg.Now = func() time.Time { return now }
	for range 20 {
		if back := h.Revive(); len(back) > 0 {
			t.Fatalf("%v are back, and locked", back)
		}
		if wait := h.patient[b].until.Sub(now); wait <= 0 || wait > 10*time.Second {
			t.Fatalf("it is tried again after %v", wait)
		}
		now = h.patient[b].until
	}
	check(t, lock.Close())
	if back := h.Revive(); len(back) != 1 || back[0] != b {
		t.Errorf("it is free, and %v are back", back)
	}
	h.wantContent(int64(on[b]), pattern(40_000))
	check(t, h.Shutdown())
}

// What a start finds of a volume.
const (
	isSound      = "sound"
	isDamaged    = "VERSION damaged"
	isLost       = "VERSION lost"
	isNewlyThere = "new"
	isUnmounted  = "not mounted"
	isDenied     = "not readable"
	isReadOnly   = "read-only"
	isForeign    = "of another datanode"
	isElsewhere  = "of another cluster"
)

// pairOf is a disk with two volumes as a start finds them, and what they were.
type pairOf struct {
	t      *testing.T
	disk   *faulty.FS
	states map[string]string // by path
	owner  map[string]string // the datanode, of those that were volumes of one
	blocks map[string][]metadata.BlockID
}

func newPair(t *testing.T, states map[string]string) *pairOf {
	p := &pairOf{t: t, disk: faulty.New(mem.New(1 << 26)), states: states, owner: map[string]string{}, blocks: map[string][]metadata.BlockID{}}
	var own []string
	for _, path := range []string{"/a", "/b"} {
		switch states[path] {
		case isForeign:
			p.fill([]string{path})
		case isNewlyThere:
		default:
			own = append(own, path)
		}
	}
	if len(own) > 0 {
		p.fill(own)
	}
	for _, path := range own {
		version := filepath.Join(path, versionFile)
		switch states[path] {
		case isDamaged:
			f := must[vfs.File](t)(p.disk.OpenFile(version, os.O_RDWR, 0))
			must[int](t)(f.WriteAt([]byte("x"), 3))
			check(t, f.Close())
		case isLost:
			check(t, p.disk.Rename(version, version+".away"))
		case isUnmounted:
			check(t, p.disk.Rename(path, path+".away"))
			check(t, p.disk.Mkdir(path, 0o700))
		case isElsewhere:
			id := must[Identity](t)(readIdentity(p.disk, path))
			id.Cluster = "elsewhere"
			check(t, writeIdentity(p.disk, path, id))
		}
	}
	p.disk.Set(func(op faulty.Op) error {
		switch states["/"+strings.Split(op.Name, "/")[1]] {
		case isDenied:
			if op.Call != "stat" || strings.Count(op.Name, "/") > 1 {
				return os.ErrPermission
			}
		case isReadOnly:
			if slices.Contains([]string{"lock", "mkdir", "rename", "remove", "write", "truncate", "punch"}, op.Call) {
				return syscall.EROFS
			}
		}
		return nil
	})
	return p
}

// fill makes volumes of a datanode of its own, with replicas.
func (p *pairOf) fill(paths []string) {
	h := open(p.t, p.disk, paths...)
	check(p.t, h.Join("lab", "BP-1"))
	for i := range int64(4) {
		h.put(int64(10*len(p.owner))+i+1, 1, pattern(40_000))
	}
	for _, v := range h.Volumes() {
		p.owner[v.Path] = h.Identity().Datanode
		h.Each(v.ID, func(r datanode.Replica) bool { p.blocks[v.Path] = append(p.blocks[v.Path], r.Block.ID); return true })
	}
	check(p.t, h.Shutdown())
}

// restore mends a volume.
func (p *pairOf) restore(path string) {
	version := filepath.Join(path, versionFile)
	switch p.states[path] {
	case isDamaged:
		f := must[vfs.File](p.t)(p.disk.OpenFile(version, os.O_RDWR, 0))
		must[int](p.t)(f.WriteAt([]byte("o"), 3)) // layoutVersion
		check(p.t, f.Close())
	case isLost:
		check(p.t, p.disk.Rename(version+".away", version))
	}
	p.states[path] = isSound
}

// versions are the VERSION files, as far as there are any.
func (p *pairOf) versions() string {
	var all []string
	for _, path := range []string{"/a", "/b"} {
		b, _ := readFile(p.disk, filepath.Join(path, versionFile))
		all = append(all, string(b))
	}
	return strings.Join(all, "\n")
}

func (p *pairOf) empty(path string) bool {
	return p.states[path] == isNewlyThere || p.states[path] == isUnmounted
}

// whose are the owners that VERSION files name, by path.
func (p *pairOf) whose() map[string]string {
	named := map[string]string{}
	for path, state := range p.states {
		switch state {
		case isSound, isReadOnly, isForeign:
			named[path] = p.owner[path] + " of lab"
		case isElsewhere:
			named[path] = p.owner[path] + " of elsewhere"
		}
	}
	return named
}

// works reports whether a volume serves beside what is in another directory, if the start is not refused.
func (p *pairOf) works(path, other string) bool {
	switch p.states[path] {
	case isSound, isNewlyThere, isForeign, isElsewhere:
		return true
	case isUnmounted: // nobody tells it from a new one whom nobody tells that there is one
		return p.whose()[other] == "" || p.owner[other] != p.owner[path]
	}
	return false
}

// Whatever a start finds in two directories, nobody becomes a new datanode while one of them may hold what one had, two owners are refused, and otherwise what works serves. A start that is refused changes nothing
// and says what to do.
func TestWhatAStartMakesOfTwoVolumes(t *testing.T) {
	all := []string{isSound, isDamaged, isLost, isNewlyThere, isUnmounted, isDenied, isReadOnly, isForeign, isElsewhere}
	hints := map[string]string{
		isDamaged: "VERSION does not match its checksum, it is damaged: put a copy of it there", isLost: "it has no VERSION but a directory blocks, the file is lost: put a copy of it there",
		isDenied: "must own the directory", isReadOnly: "read-only file system", isUnmounted: "is its disk not mounted?",
	}
	for _, stateA := range all {
		for _, stateB := range all {
			t.Run(stateA+" and "+stateB, func(t *testing.T) {
				p := newPair(t, map[string]string{"/a": stateA, "/b": stateB})
				owners := map[string]bool{}
				for _, owner := range p.whose() {
					owners[owner] = true
				}
				works := map[string]bool{"/a": p.works("/a", "/b"), "/b": p.works("/b", "/a")}
				before := p.versions()
				h, err := tryOpen(t, p.disk, "/a", "/b")
				if err == nil {
					defer func() { check(t, h.Shutdown()) }()
				}
				refused := func(word string) bool {
					t.Helper()
					if err == nil {
						t.Errorf("it starts, as %s; volumes %+v", h.Identity().Datanode, h.Volumes())
						return false
					}
					if !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
						t.Errorf("the error is %q, without %q", err, word)
					}
					if after := p.versions(); after != before {
						t.Errorf("it was\n%s\nand is\n%s", before, after)
					}
					return true
				}
				switch {
				case len(owners) > 1:
					if refused("volume /a is of") {
						wantKind(t, err, datanode.ErrVolumeOwner)
					}
				case len(owners) == 0 && p.empty("/a") && p.empty("/b"):
					check(t, err)
					for _, v := range h.Volumes() {
						if v.Failed != nil {
							t.Errorf("%+v", v)
						}
					}
				case !works["/a"] && !works["/b"]:
					if refused("2 of 2 volumes do not work, 1 may; the first is volume /a: ") && !strings.Contains(err.Error(), hints[stateA]) {
						t.Errorf("the error of %s is %v", stateA, err)
					}
				case len(owners) == 0:
					bad := "/a"
					if p.empty(bad) {
						bad = "/b"
					}
					if refused("this would be another datanode: mend it, or take it out of the list") && (!strings.Contains(err.Error(), "volume "+bad+": ") || !strings.Contains(err.Error(), hints[p.states[bad]])) {
						t.Errorf("the error of %s is %v", p.states[bad], err)
					}
					if err == nil || p.states["/a"] == isUnmounted || p.states["/b"] == isUnmounted {
						return
					}
					p.restore(bad)
					mended := open(t, p.disk, "/a", "/b")
					if got := mended.Identity().Datanode; got != p.owner[bad] {
						t.Errorf("it is mended, and datanode %s, not %s", got, p.owner[bad])
					}
					for _, id := range p.blocks[bad] {
						mended.wantContent(int64(id), pattern(40_000))
					}
					check(t, mended.Shutdown())
				default:
					check(t, err)
					id := h.Identity()
					if !owners[id.Datanode+" of "+id.Cluster] {
						t.Errorf("it is %+v, the volumes are of %v", id, owners)
					}
					for _, v := range h.Volumes() {
						if (v.Failed == nil) != works[v.Path] {
							t.Errorf("volume %s, which is %s: %v", v.Path, p.states[v.Path], v.Failed)
						}
						if v.Failed != nil && !strings.Contains(v.Failed.Error(), hints[p.states[v.Path]]) {
							t.Errorf("volume %s, which is %s: %v", v.Path, p.states[v.Path], v.Failed)
						}
						if v.Failed == nil && !p.empty(v.Path) {
							for _, id := range p.blocks[v.Path] {
								h.wantContent(int64(id), pattern(40_000))
							}
						}
					}
				}
			})
		}
	}
}
