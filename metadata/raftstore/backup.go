package raftstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// Backup is a state of a group that Host.Restore makes a group of.
type Backup struct {
	// Cluster is the cluster's id, and Recovered how often the group was made anew.
	Cluster   string `json:"cluster"`
	Recovered int    `json:"recovered"`
	// Index is that of the newest entry in it.
	Index uint64 `json:"index"`
	// Snapshot is the name of the file below the member's directory. It never changes; newer snapshots replace it, but not within an hour.
	Snapshot string `json:"snapshot"`
	// Level is of which level the state may be, as Group.Level says.
	Level int `json:"level,omitempty"`
}

// Backup writes a copy of this member's state as it is now, beside the group's work, reads it back and says where it is. It has everything that this member has
// acknowledged before the call.
func (g *Group) Backup() (Backup, error) {
	s, err := g.newestCopy()
	if err != nil {
		return Backup{}, err
	}
	i := g.identity()
	return Backup{Cluster: i.Cluster, Recovered: i.Recovered, Index: s.meta.Index, Snapshot: filepath.Join("snapshots", s.id+snapshotSuffix), Level: i.Level}, nil
}

// Path is where the file of a backup is on this machine.
func (g *Group) Path(b Backup) string { return filepath.Join(g.dir.path, b.Snapshot) }

// Copy is a Backup with the snapshot's file, which the caller closes.
func (g *Group) Copy() (Backup, *os.File, error) {
	b, err := g.Backup()
	if err != nil {
		return b, nil, err
	}
	f, err := os.Open(filepath.Join(g.dir.path, b.Snapshot))
	return b, f, err
}

// Recovered is how often the group was made anew, of one surviving member or of a backup.
func (g *Group) Recovered() int { return g.identity().Recovered }

// Restore makes a group of a backup, whose only voter is this member, as Recover does. There must be nothing of the group here.
// r is the snapshot's file; when it is damaged nothing is left. A backup of a level that this program does not know is refused (release.ErrOlder).
func (h *Host) Restore(cfg GroupConfig, b Backup, r io.Reader) error {
	if err := release.Reads("the backup", b.Level); err != nil {
		return err
	}
	if err := cfg.validate(h.cfg.ID, h.cfg.Advertise); err != nil {
		return err
	}
	if err := h.prepare(); err != nil {
		return fmt.Errorf("restore group %s: %w", cfg.Name, err)
	}
	path := filepath.Join(h.cfg.Dir, cfg.Name)
	err := os.Mkdir(path, 0o700)
	if err == nil {
		if err = h.place(cfg, path, b, r); err == nil {
			err = h.recoverGroup(cfg, b.Cluster)
		}
		if err != nil {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	if err != nil {
		return fmt.Errorf("restore group %s: %w", cfg.Name, err)
	}
	return nil
}

// place writes the snapshot, and then whose it is.
func (h *Host) place(cfg GroupConfig, path string, b Backup, r io.Reader) error {
	d := &directory{path: path, identity: identity{Format: formatVersion, Cluster: b.Cluster, Group: cfg.Name, Member: h.cfg.ID, Recovered: b.Recovered, Level: b.Level}}
	for _, sub := range []string{d.logs(), d.snapshots()} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
	}
	name := filepath.Join(d.snapshots(), filepath.Base(b.Snapshot))
	if filepath.Ext(name) != snapshotSuffix {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%q is no name of a snapshot", b.Snapshot)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	stored, err := openSnapshots(d.snapshots(), 0, h.log)
	if err != nil {
		return err
	}
	list := stored.all()
	if len(list) != 1 || list[0].meta.Index != b.Index || !list[0].whole() {
		return metadata.Errorf(metadata.ErrCorrupt, "the backup holds no snapshot of entry %d", b.Index)
	}
	if err := stored.verify(list[0].id); err != nil {
		return err
	}
	// The term is recorded for a log that has no entry yet.
	j, err := journal.Open(journal.Config{
		Dir: d.logs(), Disk: h.cfg.LogDisk, SegmentBytes: cfg.SegmentBytes, Covered: journal.Covered{Index: b.Index, Term: list[0].meta.Term}, Logger: h.log,
		Fatal: func(error) {},
	})
	if err != nil {
		return err
	}
	if err := errors.Join(j.SetUint64([]byte("CurrentTerm"), list[0].meta.Term), j.Close()); err != nil {
		return err
	}
	return errors.Join(d.save(), syncDir(h.cfg.Dir))
}
