package blockstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
)

// Identity says whose a volume is.
type Identity struct {
	// Datanode is the uuid that all volumes of a datanode share.
	Datanode string
	// Storage is the uuid of one volume.
	Storage string
	// Siblings are the storage uuids of all volumes of the datanode, this one too, in order and with commas: each volume
	// knows which others there should be.
	Siblings string
	// Cluster and BlockPool are empty until a namenode has accepted the datanode.
	Cluster   string
	BlockPool string
	// Unsynced volumes are of unsyncedLayout, for good.
	Unsynced bool
}

// encode makes the VERSION file: a line each, the last one the checksum of those before.
func (id Identity) encode() []byte {
	layout := LayoutVersion
	if id.Unsynced {
		layout = unsyncedLayout
	}
	s := fmt.Sprintf("layoutVersion=%d\ndatanodeUuid=%s\nstorageUuid=%s\nclusterId=%s\nblockPool=%s\nstorages=%s\n",
		layout, id.Datanode, id.Storage, id.Cluster, id.BlockPool, id.Siblings)
	return fmt.Appendf(nil, "%scrc32c=%08x\n", s, crcOf([]byte(s)))
}

// decodeIdentity also tells the layout version.
func decodeIdentity(b []byte) (Identity, int, error) {
	text := string(b)
	i := strings.LastIndex(text, "crc32c=")
	if i < 0 || strings.TrimSpace(text[i+7:]) != fmt.Sprintf("%08x", crcOf(b[:i])) {
		return Identity{}, 0, fmt.Errorf("%s does not match its checksum, it is damaged: %s: %w", versionFile, putBack, datanode.ErrVolumeVersion)
	}
	values := map[string]string{}
	for line := range strings.Lines(text[:i]) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[k] = v
	}
	layout, err := strconv.Atoi(values["layoutVersion"])
	if err != nil || layout < 1 || layout > unsyncedLayout {
		return Identity{}, 0, fmt.Errorf("layout version is %q, this program reads %d: %w", values["layoutVersion"], unsyncedLayout, datanode.ErrVolumeVersion)
	}
	id := Identity{Datanode: values["datanodeUuid"], Storage: values["storageUuid"], Cluster: values["clusterId"], BlockPool: values["blockPool"], Siblings: values["storages"], Unsynced: layout == unsyncedLayout}
	if id.Datanode == "" || id.Storage == "" {
		return Identity{}, 0, fmt.Errorf("%s names no datanode or no storage: %w", versionFile, datanode.ErrVolumeVersion)
	}
	return id, layout, nil
}

// OwnerOf is the uuid of the datanode whose volume is in a directory, without opening it. fs.ErrNotExist: there is none yet.
func OwnerOf(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(path, versionFile))
	if err != nil {
		return "", err
	}
	id, _, err := decodeIdentity(b)
	return id.Datanode, err
}

// acceptFile is an empty file that an operator puts into the empty directory of a new disk that takes the place of a volume
// that is gone: without it an empty directory, where there should be a volume, is a disk that is not mounted.
const acceptFile = "ACCEPT"

// putBack is what to do about a VERSION file that is damaged or lost. The directory is that of a new volume when it is empty.
const putBack = "put a copy of it there, or empty the directory if what is on the volume is lost or elsewhere"

// claimed is what was found of a volume. fresh: the directory is not there, or it is empty and nobody has put anything there but,
// if accepted, acceptFile; it is neither made nor locked then. Of one that cannot be locked, because another process has it or its file system is read-only, id is known as well, if it can be read.
type claimed struct {
	id              Identity
	lock            io.Closer
	fresh, accepted bool
	err             error
}

// release gives back the lock of a volume that nobody waits for any more.
func (c claimed) release() {
	if c.lock != nil {
		_ = c.lock.Close()
	}
}

// claim locks a volume and reads its identity.
func claim(fsys vfs.FS, path string) claimed {
	fresh, accepted, err := isFresh(fsys, path)
	if err != nil || fresh {
		return claimed{fresh: fresh, accepted: accepted, err: err}
	}
	lock, err := lockVolume(fsys, path)
	if err != nil {
		return claimed{id: peek(fsys, path), err: err}
	}
	id, err := readIdentity(fsys, path)
	if err != nil {
		_ = lock.Close()
		return claimed{err: err}
	}
	return claimed{id: id, lock: lock}
}

// peek is the identity of a volume that is not locked by this process, empty if it cannot be read, or not within a moment: its disk may be what the process that has it cannot end for.
func peek(fsys vfs.FS, path string) Identity {
	read := make(chan Identity, 1)
	go func() {
		b, err := readFile(fsys, filepath.Join(path, versionFile))
		if err != nil {
			read <- Identity{}
			return
		}
		id, _, _ := decodeIdentity(b) // empty with an error
		read <- id
	}()
	select {
	case id := <-read:
		return id
	case <-time.After(usageWait):
		return Identity{}
	}
}

func lockVolume(fsys vfs.FS, path string) (io.Closer, error) {
	lock, err := fsys.Lock(filepath.Join(path, lockFile))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("another datanode runs on it, or was ended and cannot come to its end before a disk answers: %w", datanode.ErrVolumeInUse)
	}
	return lock, err
}

// isFresh says whether path may become a new volume.
func isFresh(fsys vfs.FS, path string) (fresh, accepted bool, err error) {
	info, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, false, nil
	}
	if err != nil {
		return false, false, err
	}
	if !info.Dir {
		return false, false, &fs.PathError{Op: "open", Path: path, Err: errors.New("is not a directory")}
	}
	entries, err := fsys.ReadDir(path)
	if err != nil {
		return false, false, err
	}
	foreign, ours := "", false
	for _, e := range entries {
		switch e.Name {
		case versionFile:
			return false, false, nil
		case acceptFile:
			accepted = true
		case lockFile, versionFile + ".new", "lost+found":
		case blocksDir:
			ours = true
		default:
			foreign = e.Name
		}
	}
	if ours {
		return false, false, fmt.Errorf("it has no %s but a directory %s, the file is lost: %s: %w", versionFile, blocksDir, putBack, datanode.ErrVolumeVersion)
	}
	if foreign != "" {
		return false, false, fmt.Errorf("it has no %s but holds %q: not a volume, and not empty: %w", versionFile, foreign, datanode.ErrVolumeVersion)
	}
	return true, accepted, nil
}

// readIdentity brings a volume of an older layout up to this one.
func readIdentity(fsys vfs.FS, path string) (Identity, error) {
	b, err := readFile(fsys, filepath.Join(path, versionFile))
	if err != nil {
		return Identity{}, err
	}
	id, layout, err := decodeIdentity(b)
	if err == nil && layout < LayoutVersion {
		err = writeIdentity(fsys, path, id)
	}
	return id, err
}

// writeIdentity replaces the VERSION file durably; after a crash the old or the new one is there.
func writeIdentity(fsys vfs.FS, path string, id Identity) error {
	name := filepath.Join(path, versionFile)
	f, err := fsys.OpenFile(name+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(id.encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(name+".new", name); err != nil {
		return err
	}
	return fsys.SyncDir(path)
}

func newIdentity(datanodeUUID string) Identity {
	return Identity{Datanode: datanodeUUID, Storage: "DS-" + uuid.NewString()}
}

// maxSmallFile limits what readFile reads.
const maxSmallFile = 64 << 10

func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, maxSmallFile))
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// mkdirAll makes the directory and those above it, durably.
func mkdirAll(fsys vfs.FS, path string) error {
	info, err := fsys.Stat(path)
	if err == nil {
		if !info.Dir {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := mkdirAll(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := fsys.SyncDir(parent); err != nil {
		return errors.Join(err, fsys.Remove(path)) // who finds it takes it to be durable
	}
	return nil
}

// Identity is the datanode's uuid and the cluster that it belongs to; Storage is empty.
func (s *Store) Identity() Identity {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.own
}

// joined: every volume that works knows the cluster.
func (s *Store) joined(cluster, blockPool string) bool {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.own.Cluster == cluster && s.own.BlockPool == blockPool && !slices.ContainsFunc(s.all(), func(v *volume) bool {
		return v.err() == nil && (v.id.Cluster != cluster || v.id.BlockPool != blockPool)
	})
}

// Join records the cluster on every volume, durably; one whose disk does not answer is not waited for, and hears of it with a later Join. A store that belongs to another one refuses.
func (s *Store) Join(cluster, blockPool string) error {
	if s.joined(cluster, blockPool) {
		return nil
	}
	s.swapMu.Lock()
	defer s.swapMu.Unlock()
	for _, v := range s.all() {
		if of := s.identityOf(v).Cluster; v.err() == nil && of != "" && of != cluster {
			return fmt.Errorf("volume %s is of cluster %s, the namenode of cluster %s: %w", v.path, of, cluster, datanode.ErrVolumeOwner)
		}
	}
	var silent error
	told := false
	for _, v := range s.all() {
		if v.err() != nil {
			continue
		}
		var on atomic.Pointer[volume]
		on.Store(v)
		err := patiently(&on, func() error { return s.tell(v, cluster, blockPool) })
		if err != nil && !errors.Is(err, errSilent) && v.err() == nil {
			return err
		}
		if told = told || err == nil; err != nil {
			silent = err
			s.log.Warn("volume does not hear of its cluster before its disk answers", "volume", v.id.Storage, "path", v.path, "err", err)
		}
	}
	if !told && silent != nil {
		return silent
	}
	s.idMu.Lock()
	defer s.idMu.Unlock()
	s.own.Cluster, s.own.BlockPool = cluster, blockPool
	return nil
}

// tell records the cluster on a volume. Nobody who asks for an identity waits for its disk.
func (s *Store) tell(v *volume, cluster, blockPool string) error {
	v.telling.Lock()
	defer v.telling.Unlock()
	want := s.identityOf(v)
	if want.Cluster == cluster && want.BlockPool == blockPool {
		return nil
	}
	want.Cluster, want.BlockPool = cluster, blockPool
	if err := v.check(writeIdentity(v.fs, v.path, want)); err != nil {
		return err
	}
	s.idMu.Lock()
	defer s.idMu.Unlock()
	v.id.Cluster, v.id.BlockPool = cluster, blockPool
	return nil
}

func (s *Store) identityOf(v *volume) Identity {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return v.id
}
