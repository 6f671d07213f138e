package raftstore

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
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// LogHead is what a group's directory says of its log, beside the entries.
type LogHead struct {
	// Group and what follows are of member.json, empty when the log's own directory is looked at without it.
	Group     string `json:"group,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
	Member    string `json:"member,omitempty"`
	Level     int    `json:"level,omitempty"`
	Recovered int    `json:"recovered,omitempty"`
	Joining   bool   `json:"joining,omitempty"`
	Damaged   string `json:"damaged,omitempty"`

	Term     uint64 `json:"term"`
	VoteTerm uint64 `json:"voteTerm"`
	Vote     string `json:"vote"`
	// Watermark: entries up to it were acknowledged, as far as the file state says.
	Watermark uint64 `json:"watermark"`
	Segments  int    `json:"segments"`
	Spares    int    `json:"spares"`
	Bytes     int64  `json:"bytes"`
}

// LogEntry is a sound entry of a log.
type LogEntry struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	// Kind is command, noop, barrier or configuration.
	Kind string `json:"kind"`
	// Bytes is what it takes in its file.
	Bytes int `json:"bytes"`
	// Appended is the clock of the leader, zero if it is not known.
	Appended time.Time `json:"appended,omitzero"`
	// Commands are those of an entry of that kind, Configuration the members of one of that kind.
	Commands      [][]byte    `json:"-"`
	Configuration []LogMember `json:"configuration,omitempty"`
	// Wrong is why they could not be read although the checksum fits: a later format, or another program's.
	Wrong error `json:"-"`
}

// LogMember is a member in a configuration.
type LogMember struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
}

// LogContents is what was found in a log. Damage is in words, with file and offset.
type LogContents struct {
	First     uint64   `json:"first"`
	Last      uint64   `json:"last"`
	Watermark uint64   `json:"watermark"`
	Damage    []string `json:"damage"`
}

// InspectLog reads a log without a lock and without changing anything, beside the process that writes it, too. dir is a group's directory, or the
// log in it. head is called first, then entry for each entry that is sound; an error of theirs ends it.
//
// Errors: one line that says what of dir cannot be read; release.ErrOlder, release.ErrNewer and metadata.ErrUnsupported for another version's.
func InspectLog(dir string, head func(LogHead) error, entry func(LogEntry) error) (LogContents, error) {
	h, log, err := logHead(dir)
	if err != nil {
		return LogContents{}, err
	}
	state, err := journal.ReadHead(log)
	if err != nil {
		return LogContents{}, err
	}
	h.Term, h.VoteTerm, h.Vote, h.Watermark = state.Term, state.VoteTerm, state.Candidate, state.Acked
	h.Segments, h.Spares, h.Bytes = state.Segments, state.Spares, state.Bytes
	if err := head(h); err != nil {
		return LogContents{}, err
	}
	c, err := journal.Read(log, func(e *raft.Log, bytes int) error { return entry(entryOf(e, bytes)) })
	return LogContents{First: c.First, Last: c.Last, Watermark: c.Acked, Damage: c.Damage}, err
}

// logHead finds the log that dir is or has, and reads member.json beside it.
func logHead(dir string) (h LogHead, log string, err error) {
	d := directory{path: dir}
	has := func(path string) (bool, error) {
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return false, nil
		}
		return err == nil, err
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return h, "", err
	case !info.IsDir():
		return h, "", &fs.PathError{Op: "inspect", Path: dir, Err: syscall.ENOTDIR}
	}
	group, err := has(d.file())
	if err != nil {
		return h, "", err
	}
	if own, err := has(filepath.Join(dir, "state")); err != nil || !group && !own {
		if err == nil {
			err = fmt.Errorf("%s is neither the directory of a raft group nor its log: it has no member.json and no state. Those of a server are below raft/ of its data directory", dir)
		}
		return h, "", err
	} else if !group {
		above, err := filepath.Abs(dir)
		if err != nil {
			return h, "", err
		}
		log, d.path = dir, filepath.Dir(above)
		if group, err = has(d.file()); err != nil || !group {
			return h, log, err
		}
	} else {
		log = d.logs()
	}
	raw, err := os.ReadFile(d.file())
	if err != nil {
		return h, "", err
	}
	if err := d.read(raw); err != nil {
		return h, "", err
	}
	return LogHead{
		Group: d.Group, Cluster: d.Cluster, Member: d.Member, Level: d.Level, Recovered: d.Recovered, Joining: d.Joining, Damaged: d.Damaged,
	}, log, nil
}

func entryOf(e *raft.Log, bytes int) LogEntry {
	out := LogEntry{Index: e.Index, Term: e.Term, Bytes: bytes, Appended: e.AppendedAt, Kind: strconv.Itoa(int(e.Type))}
	switch e.Type {
	case raft.LogCommand:
		out.Kind = "command"
		out.Commands, out.Wrong = decodeBatch(e.Index, e.Data)
	case raft.LogNoop:
		out.Kind = "noop"
	case raft.LogBarrier:
		out.Kind = "barrier"
	case raft.LogConfiguration:
		out.Kind = "configuration"
		out.Configuration, out.Wrong = configurationOf(e)
	default:
		out.Wrong = metadata.Errorf(metadata.ErrUnsupported, "log entry %d is of kind %d, which this program does not write", e.Index, e.Type)
	}
	return out
}

// configurationOf decodes an entry's members. The library panics where it cannot.
func configurationOf(e *raft.Log) (members []LogMember, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = metadata.Errorf(metadata.ErrCorrupt, "log entry %d is no configuration: %v", e.Index, p)
		}
	}()
	return membersOf(raft.DecodeConfiguration(e.Data)), nil
}

func membersOf(c raft.Configuration) (members []LogMember) {
	for _, s := range c.Servers {
		members = append(members, LogMember{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return members
}

// SnapshotHead is what stands in front of the content of a snapshot's file.
type SnapshotHead struct {
	// Index and Term are of the last entry that the snapshot replaces; ConfigIndex is of the entry that made the configuration.
	Index         uint64      `json:"index"`
	Term          uint64      `json:"term"`
	ConfigIndex   uint64      `json:"configurationIndex"`
	Configuration []LogMember `json:"configuration"`
	// State is the index of the state machine.
	State uint64 `json:"state"`
	// Reference names the version of the checkpoint that the snapshot is; nil when it is none of a version.
	Reference *SnapshotReference `json:"reference,omitempty"`
	// Bytes is the length of the file. Whole: the state is in it.
	Bytes int64 `json:"bytes"`
	Whole bool  `json:"whole"`
}

// SnapshotReference is a Reference for people; its hash is hexadecimal.
type SnapshotReference struct {
	Index uint64 `json:"index"`
	Hash  string `json:"hash"`
	Bytes int64  `json:"bytes"`
}

// InspectSnapshot reads the file of a snapshot, changing nothing. head is called first, then content, if there is one, with the state machine's bytes, whose
// sums have been checked; what it leaves is checked, too.
//
// Errors: metadata.ErrCorrupt; metadata.ErrUnsupported for one of another format; those of head and content.
func InspectSnapshot(path string, head func(SnapshotHead) error, content func(io.Reader) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	found, err := readSnapshotHead(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	h := SnapshotHead{
		Index: found.meta.Index, Term: found.meta.Term, ConfigIndex: found.meta.ConfigIndex, Configuration: membersOf(found.meta.Configuration),
		State: found.state, Bytes: info.Size(), Whole: found.whole(),
	}
	if r := found.ref; r != nil {
		h.Reference = &SnapshotReference{r.Index, fmt.Sprintf("%016x", r.Hash), r.Bytes}
	}
	if err := head(h); err != nil || !found.whole() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	frames, err := newFrameReader(io.NewSectionReader(f, found.offset, found.size))
	if err == nil {
		if err = content(frames); err == nil {
			_, err = io.Copy(io.Discard, frames)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Snapshots are the files of snapshots that a directory has: of a group, or the one in it where they lie. Newest first.
func Snapshots(dir string) ([]string, error) {
	below := (&directory{path: dir}).snapshots()
	names, err := os.ReadDir(below)
	if errors.Is(err, fs.ErrNotExist) {
		below = dir
		names, err = os.ReadDir(below)
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, n := range slices.Backward(names) {
		if strings.HasSuffix(n.Name(), snapshotSuffix) || strings.HasSuffix(n.Name(), pulledSuffix) {
			paths = append(paths, filepath.Join(below, n.Name()))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no snapshots: neither is it the directory of a raft group that has one, nor are they in it", dir)
	}
	return paths, nil
}
