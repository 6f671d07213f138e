package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// Recover makes a group anew whose only voter is this member, on what this member's log and snapshots hold: the way out
// when the other disks are lost and no majority will come back. Entries that only the others had are gone. The group must
// not be open here, and nobody else may go on with its old history: members that do not know of the recovery are refused
// by this one from then on, and stop when they hear of it; they are to be reinstalled and added again.
//
// cluster is the cluster's id as the caller knows it, to be sure that it is this one which is meant; empty for a group without.
//
// It writes one entry: a configuration in the next term. A crash before it has changed nothing but the number of
// recoveries, which makes the call repeatable.
func (h *Host) Recover(cfg GroupConfig, cluster string) error {
	if err := cfg.validate(h.cfg.ID, h.cfg.Advertise); err != nil {
		return err
	}
	if err := h.recoverGroup(cfg, cluster); err != nil {
		return fmt.Errorf("recover group %s: %w", cfg.Name, err)
	}
	return nil
}

// Found makes a new group, whose only voter is this member. There must be nothing of the group here (fs.ErrExist), but for an empty member, or
// what a call has left that crashed. It is for a group that had predecessors of its name whose term somebody still knows: its first
// term is later.
func (h *Host) Found(cfg GroupConfig) (err error) {
	if err := cfg.validate(h.cfg.ID, h.cfg.Advertise); err != nil {
		return err
	}
	if err := h.prepare(); err != nil {
		return fmt.Errorf("found group %s: %w", cfg.Name, err)
	}
	path := filepath.Join(h.cfg.Dir, cfg.Name)
	d, err := openDirectory(path, identity{Format: formatVersion, Cluster: cfg.Cluster, Group: cfg.Name, Member: h.cfg.ID, Joining: true}, false)
	if err != nil {
		return fmt.Errorf("found group %s: %w", cfg.Name, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	there := fmt.Errorf("found group %s: data directory %s: %w", cfg.Name, path, fs.ErrExist)
	snapshots, err := os.ReadDir(d.snapshots())
	if err != nil {
		return err
	}
	if !d.Joining || d.Reinstalled || d.Recovered > 0 || d.Damaged != "" || len(snapshots) > 0 {
		return there
	}
	j, err := journal.Open(journal.Config{Dir: d.logs(), Disk: h.cfg.LogDisk, SegmentBytes: cfg.SegmentBytes, Logger: h.log, Fatal: func(error) {}})
	if err != nil {
		return err
	}
	last, err := j.LastIndex()
	switch {
	case err != nil:
	case last == 0:
		err = h.alone(j, 0, laterTerm(0))
	case last > 1 || !h.isAlone(j):
		err = there
	}
	if err := errors.Join(err, j.Close()); err != nil {
		return err
	}
	d.Joining = false
	return d.save()
}

// isAlone reports whether the first entry is the one of alone: a call of Found has crashed behind it.
func (h *Host) isAlone(j *journal.Journal) bool {
	var first raft.Log
	return j.GetLog(1, &first) == nil && first.Type == raft.LogConfiguration && alone(raft.DecodeConfiguration(first.Data), raft.ServerID(h.cfg.ID))
}

// laterTerm is one that no leader has had: behind a term, and behind all that elections could have reached by now, of which there is
// less than one a second. Who was told of a term by a leader whose history is lost goes on with this one.
func laterTerm(term uint64) uint64 { return max(term, uint64(time.Now().Unix())) + 1 }

// alone writes the entry by which this member is the only one.
func (h *Host) alone(j *journal.Journal, last, term uint64) error {
	if err := j.SetUint64([]byte("CurrentTerm"), term); err != nil {
		return err
	}
	voters := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(h.cfg.ID), Address: raft.ServerAddress(h.cfg.Advertise)}}}
	return j.StoreLog(&raft.Log{Index: last + 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(voters)})
}

func (h *Host) recoverGroup(cfg GroupConfig, cluster string) (err error) {
	if err := h.prepare(); err != nil {
		return err
	}
	d, err := openDirectory(filepath.Join(h.cfg.Dir, cfg.Name), identity{Format: formatVersion, Cluster: cfg.Cluster, Group: cfg.Name, Member: h.cfg.ID, Joining: true}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	switch {
	case d.Joining:
		return errors.New("this member is empty or was not up to date with the group: recover one that has a vote")
	case d.Cluster != cluster:
		return metadata.Errorf(metadata.ErrInvalidArgument, "the directory belongs to cluster %q, not to %q", d.Cluster, cluster)
	}
	// Only the state machine knows whether it has what a leader has sent last; without that, log and snapshots may end in front of it.
	if unsettled, err := filepath.Glob(filepath.Join(d.snapshots(), "*"+pulledSuffix)); err != nil || len(unsettled) > 0 {
		return errors.Join(err, errors.New("this member ended while it took the state over from another one: start it once, which settles what it has, stop it, and recover it then"))
	}
	stored, err := openSnapshots(d.snapshots(), 0, h.log)
	if err != nil {
		return err
	}
	var covered journal.Covered
	if list := stored.all(); len(list) > 0 {
		covered = journal.Covered{Index: list[0].meta.Index, Term: list[0].meta.Term}
	}
	failed := make(chan error, 1)
	j, err := journal.Open(journal.Config{
		Dir: d.logs(), Disk: h.cfg.LogDisk, SegmentBytes: cfg.SegmentBytes, Covered: covered, Voted: true, Logger: h.log,
		Fatal: func(err error) { failed <- err },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	last, err := j.LastIndex()
	if err != nil {
		return err
	}
	term, err := j.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return err
	}
	if last = max(last, covered.Index); last == 0 {
		return errors.New("there is neither a log nor a snapshot")
	}
	d.Recovered++
	if err := d.save(); err != nil {
		return err
	}
	return h.alone(j, last, laterTerm(max(term, covered.Term)))
}
