package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// The keys that hashicorp/raft uses.
const (
	keyTerm      = "CurrentTerm"
	keyVoteTerm  = "LastVoteTerm"
	keyCandidate = "LastVoteCand"
)

const (
	ballotMagic  = "hopsVOT1"
	maxCandidate = 255
)

// ballot is what a member may never forget: the term it is in, and whom it voted for in which term. It is the file
// "ballot", little endian:
//
//	 0          8      16          24        25
//	+----------+------+-----------+--------+-----------+
//	| sequence | term | vote term | length | candidate |
//	+----------+------+-----------+--------+-----------+
//
// Both records of the file are replaced and synced, so damage to one of them loses nothing. In a database file that falls
// back to its state before the last transaction when its newest page is damaged, a vote could be forgotten unnoticed.
type ballot struct {
	seq       uint64
	term      uint64
	voteTerm  uint64
	candidate []byte
}

func (b ballot) encode() []byte {
	out := binary.LittleEndian.AppendUint64(nil, b.seq)
	out = binary.LittleEndian.AppendUint64(out, b.term)
	out = binary.LittleEndian.AppendUint64(out, b.voteTerm)
	out = append(out, byte(len(b.candidate)))
	return append(out, b.candidate...)
}

func decodeBallot(raw []byte) (b ballot, ok bool) {
	if len(raw) < 25 || len(raw) != 25+int(raw[24]) {
		return b, false
	}
	return ballot{
		seq:      binary.LittleEndian.Uint64(raw),
		term:     binary.LittleEndian.Uint64(raw[8:]),
		voteTerm: binary.LittleEndian.Uint64(raw[16:]), candidate: append([]byte(nil), raw[25:]...),
	}, true
}

// ballots is the raft.StableStore half of a journal.
type ballots struct {
	slots *slots

	mu sync.Mutex // guards what follows
	ballot
	// pending is the term of a vote whose candidate raft has not named yet. raft stores a vote in two calls, first the
	// term, then the candidate (hashicorp/raft#661); here the second one writes both.
	pending uint64
}

// openBallots reads the file; fresh says whether it was made just now.
func openBallots(dir string) (b *ballots, fresh bool, err error) {
	path := filepath.Join(dir, "ballot")
	s, records, err := openSlots(path, ballotMagic)
	if errors.Is(err, fs.ErrNotExist) {
		b = &ballots{}
		b.slots, err = createSlots(path, ballotMagic, b.encode())
		return b, true, err
	}
	if err != nil {
		return nil, false, err
	}
	b = &ballots{slots: s}
	found := false
	for _, r := range records {
		if v, ok := decodeBallot(r); ok && (!found || v.seq > b.seq) {
			found = true
			b.ballot = v
		}
	}
	if !found {
		s.close()
		return nil, false, metadata.Errorf(metadata.ErrCorrupt, "%s is damaged: this member has forgotten whom it voted for", path)
	}
	return b, false, nil
}

// save makes next durable and current. The caller holds ballots.mu.
func (j *Journal) save(next ballot) error {
	next.seq++
	if err := j.write("store term and vote", func() error { return j.ballots.slots.replace(next.encode()) }); err != nil {
		return err
	}
	j.ballots.ballot = next
	return nil
}

// SetUint64 implements raft.StableStore for the keys that raft uses. The term never falls: raft handles heartbeats beside
// its main loop, and one that was checked before this member took a new term, and is carried out after it, would set the
// old one again, in which it could then accept entries that the leader it has voted for knows nothing of. raft ends the
// process when this is refused.
func (j *Journal) SetUint64(key []byte, v uint64) error {
	b := j.ballots
	b.mu.Lock()
	defer b.mu.Unlock()
	switch string(key) {
	case keyTerm:
		if v == b.term {
			return j.usable()
		}
		if v < b.term {
			return fmt.Errorf("stable store: term %d after term %d", v, b.term)
		}
		next := b.ballot
		next.term = v
		return j.save(next)
	case keyVoteTerm:
		b.pending = v
		return j.usable()
	}
	return fmt.Errorf("stable store: unknown key %q", key)
}

// Set implements raft.StableStore for the keys that raft uses.
func (j *Journal) Set(key, value []byte) error {
	b := j.ballots
	b.mu.Lock()
	defer b.mu.Unlock()
	if string(key) != keyCandidate {
		return fmt.Errorf("stable store: unknown key %q", key)
	}
	if len(value) > maxCandidate {
		return fmt.Errorf("stable store: a candidate's address of %d bytes", len(value))
	}
	next := b.ballot
	next.voteTerm, next.candidate = b.pending, append([]byte(nil), value...)
	return j.save(next)
}

// GetUint64 implements raft.StableStore; 0 when nothing is stored.
func (j *Journal) GetUint64(key []byte) (uint64, error) {
	b := j.ballots
	b.mu.Lock()
	defer b.mu.Unlock()
	switch string(key) {
	case keyTerm:
		return b.term, nil
	case keyVoteTerm:
		return b.voteTerm, nil
	}
	return 0, fmt.Errorf("stable store: unknown key %q", key)
}

// Get implements raft.StableStore; nil when nothing is stored.
func (j *Journal) Get(key []byte) ([]byte, error) {
	b := j.ballots
	b.mu.Lock()
	defer b.mu.Unlock()
	if string(key) != keyCandidate {
		return nil, fmt.Errorf("stable store: unknown key %q", key)
	}
	return b.candidate, nil
}

var _ raft.StableStore = (*Journal)(nil)
