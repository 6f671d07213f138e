package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
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

// ballotKey is where the record lies in the backend.
var ballotKey = []byte("hops.ballot")

const (
	ballotVersion = 1
	maxCandidate  = 1 << 10
)

// ballot is what a member may never forget: the term it is in, and whom it voted for in which term.
//
//	 0         1      9           17       19
//	+---------+------+-----------+--------+-----------+-----+
//	| version | term | vote term | length | candidate | crc |
//	+---------+------+-----------+--------+-----------+-----+
type ballot struct {
	term      uint64
	voteTerm  uint64
	candidate []byte
}

func (b ballot) encode() []byte {
	out := []byte{ballotVersion}
	out = binary.LittleEndian.AppendUint64(out, b.term)
	out = binary.LittleEndian.AppendUint64(out, b.voteTerm)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(b.candidate)))
	out = append(out, b.candidate...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func decodeBallot(raw []byte) (ballot, error) {
	damaged := metadata.Errorf(metadata.ErrCorrupt, "the record of term and vote is damaged")
	if len(raw) < 23 || crc32.Checksum(raw[:len(raw)-4], castagnoli) != binary.LittleEndian.Uint32(raw[len(raw)-4:]) {
		return ballot{}, damaged
	}
	if raw[0] != ballotVersion {
		return ballot{}, fmt.Errorf("the record of term and vote has version %d, this program reads %d", raw[0], ballotVersion)
	}
	n := int(binary.LittleEndian.Uint16(raw[17:]))
	if len(raw) != 23+n {
		return ballot{}, damaged
	}
	return ballot{
		term:      binary.LittleEndian.Uint64(raw[1:]),
		voteTerm:  binary.LittleEndian.Uint64(raw[9:]),
		candidate: append([]byte(nil), raw[19:19+n]...),
	}, nil
}

// stable is the raft.StableStore half of a journal.
type stable struct {
	mu sync.Mutex
	ballot
	// pending is the term of a vote whose candidate raft has not named yet. raft stores a vote in two calls, first the
	// term, then the candidate (hashicorp/raft#661); here the second one writes both.
	pending uint64
}

func (s *stable) load(b Backend) error {
	raw, err := guard(func() ([]byte, error) { return b.Get(ballotKey) })
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		return nil
	}
	s.ballot, err = decodeBallot(raw)
	return err
}

// save makes next durable and current. The caller holds stable.mu.
func (j *Journal) save(next ballot) error {
	if err := j.write("store term and vote", func() error { return j.backend.Set(ballotKey, next.encode()) }); err != nil {
		return err
	}
	j.stable.ballot = next
	return nil
}

// SetUint64 implements raft.StableStore for the keys that raft uses.
func (j *Journal) SetUint64(key []byte, v uint64) error {
	j.stable.mu.Lock()
	defer j.stable.mu.Unlock()
	switch string(key) {
	case keyTerm:
		if v == j.stable.term {
			return j.usable()
		}
		next := j.stable.ballot
		next.term = v
		return j.save(next)
	case keyVoteTerm:
		j.stable.pending = v
		return j.usable()
	}
	return fmt.Errorf("stable store: unknown key %q", key)
}

// Set implements raft.StableStore for the keys that raft uses.
func (j *Journal) Set(key, value []byte) error {
	j.stable.mu.Lock()
	defer j.stable.mu.Unlock()
	if string(key) != keyCandidate {
		return fmt.Errorf("stable store: unknown key %q", key)
	}
	if len(value) > maxCandidate {
		return fmt.Errorf("stable store: a candidate's address of %d bytes", len(value))
	}
	next := j.stable.ballot
	next.voteTerm, next.candidate = j.stable.pending, append([]byte(nil), value...)
	return j.save(next)
}

// GetUint64 implements raft.StableStore; 0 when nothing is stored.
func (j *Journal) GetUint64(key []byte) (uint64, error) {
	j.stable.mu.Lock()
	defer j.stable.mu.Unlock()
	switch string(key) {
	case keyTerm:
		return j.stable.term, nil
	case keyVoteTerm:
		return j.stable.voteTerm, nil
	}
	return 0, fmt.Errorf("stable store: unknown key %q", key)
}

// Get implements raft.StableStore; nil when nothing is stored.
func (j *Journal) Get(key []byte) ([]byte, error) {
	j.stable.mu.Lock()
	defer j.stable.mu.Unlock()
	if string(key) != keyCandidate {
		return nil, fmt.Errorf("stable store: unknown key %q", key)
	}
	return j.stable.candidate, nil
}

var _ raft.StableStore = (*Journal)(nil)
