package blockstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	// Cluster and BlockPool are empty until a namenode has accepted the datanode.
	Cluster   string
	BlockPool string
}

// encode makes the VERSION file: a line each, the last one the checksum of those before.
func (id Identity) encode() []byte {
	s := fmt.Sprintf("layoutVersion=%d\ndatanodeUuid=%s\nstorageUuid=%s\nclusterId=%s\nblockPool=%s\n",
		LayoutVersion, id.Datanode, id.Storage, id.Cluster, id.BlockPool)
	return fmt.Appendf(nil, "%scrc32c=%08x\n", s, crcOf([]byte(s)))
}

// decodeIdentity also tells the layout version.
func decodeIdentity(b []byte) (Identity, int, error) {
	text := string(b)
	i := strings.LastIndex(text, "crc32c=")
	if i < 0 || strings.TrimSpace(text[i+7:]) != fmt.Sprintf("%08x", crcOf(b[:i])) {
		return Identity{}, 0, fmt.Errorf("%s does not match its checksum: %w", versionFile, datanode.ErrVolumeVersion)
	}
	values := map[string]string{}
	for line := range strings.Lines(text[:i]) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[k] = v
	}
	layout, err := strconv.Atoi(values["layoutVersion"])
	if err != nil || layout < 1 || layout > LayoutVersion {
		return Identity{}, 0, fmt.Errorf("layout version is %q, this program reads %d: %w", values["layoutVersion"], LayoutVersion, datanode.ErrVolumeVersion)
	}
	id := Identity{Datanode: values["datanodeUuid"], Storage: values["storageUuid"], Cluster: values["clusterId"], BlockPool: values["blockPool"]}
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

// claim makes the volume's directory if it is not there, locks it and reads its identity, which is empty on a new volume.
func claim(fsys vfs.FS, path string) (Identity, io.Closer, error) {
	if err := mkdirAll(fsys, path); err != nil {
		return Identity{}, nil, err
	}
	lock, err := fsys.Lock(filepath.Join(path, lockFile))
	if errors.Is(err, vfs.ErrLocked) {
		return Identity{}, nil, fmt.Errorf("another datanode runs on it: %w", datanode.ErrVolumeInUse)
	}
	if err != nil {
		return Identity{}, nil, err
	}
	id, err := readIdentity(fsys, path)
	if err != nil {
		lock.Close()
		return Identity{}, nil, err
	}
	return id, lock, nil
}

// readIdentity brings a volume of an older layout up to this one.
func readIdentity(fsys vfs.FS, path string) (Identity, error) {
	b, err := readFile(fsys, filepath.Join(path, versionFile))
	if err == nil {
		id, layout, err := decodeIdentity(b)
		if err == nil && layout < LayoutVersion {
			err = writeIdentity(fsys, path, id)
		}
		return id, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, err
	}
	entries, err := fsys.ReadDir(path)
	if err != nil {
		return Identity{}, err
	}
	for _, e := range entries {
		switch e.Name {
		case lockFile, versionFile + ".new", "lost+found":
		default:
			return Identity{}, fmt.Errorf("it has no %s but holds %q: not a volume, and not empty: %w", versionFile, e.Name, datanode.ErrVolumeVersion)
		}
	}
	return Identity{}, nil
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
			return &fs.PathError{Op: "open", Path: path, Err: errors.New("is not a directory")}
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
	return fsys.SyncDir(parent)
}
