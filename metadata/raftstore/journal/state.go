package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
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

const maxCandidate = 255

// state is what a member may never forget, and what tells entries from leftovers. The file "state" holds it twice, at 0 and
// at 4096, each time in a sector of 512 bytes, little endian:
//
//	 0       8          16     24          32      40           48    56      60       61          61+n   65+n
//	+-------+----------+------+-----------+-------+------------+-----+-------+--------+-----------+------+
//	| magic | sequence | term | vote term | acked | acked term | cut | epoch | length | candidate | crc  |
//	+-------+----------+------+-----------+-------+------------+-----+-------+--------+-----------+------+
//
// Of two whole records that with the higher sequence counts. Term, vote, cut and epoch are always the same in both, because
// replace writes both; what raise writes into one of them, without fsync, is true whenever it gets to the disk.
type state struct {
	sequence uint64
	// The term the member is in, and whom it voted for in which term.
	term      uint64
	voteTerm  uint64
	candidate []byte
	// acked is the watermark: entries up to it were acknowledged. ackedTerm is the term of that entry, 0 when it is not known.
	acked     uint64
	ackedTerm uint64
	// epoch counts the times at which the log has been cut behind an entry, or opened; cut is that entry. Entries behind it
	// are of this epoch: older ones are leftovers.
	cut   uint64
	epoch uint32
}

const (
	stateMagic  = "hopsSTA2"
	stateName   = "state"
	recordBytes = 512  // a sector, which disks write whole or not at all
	recordApart = 4096 // records lie in blocks of their own
	recordFixed = 61
)

func (s state) encode() []byte {
	b := make([]byte, 0, recordBytes)
	b = append(b, stateMagic...)
	for _, v := range []uint64{s.sequence, s.term, s.voteTerm, s.acked, s.ackedTerm, s.cut} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, s.epoch)
	b = append(b, byte(len(s.candidate)))
	b = append(b, s.candidate...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:recordBytes]
}

func decodeState(b []byte) (s state, ok bool) {
	if len(b) < recordBytes || string(b[:8]) != stateMagic {
		return s, false
	}
	end := recordFixed + int(b[60])
	if crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return s, false
	}
	for i, v := range []*uint64{&s.sequence, &s.term, &s.voteTerm, &s.acked, &s.ackedTerm, &s.cut} {
		*v = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	s.epoch = binary.LittleEndian.Uint32(b[56:])
	s.candidate = append([]byte(nil), b[recordFixed:end]...)
	return s, true
}

// newestState finds the record that counts in the bytes of the file.
func newestState(raw []byte) (newest state, found bool) {
	for at := 0; at < len(raw); at += recordApart {
		if s, ok := decodeState(raw[at:]); ok && (!found || s.sequence > newest.sequence) {
			newest, found = s, true
		}
	}
	return newest, found
}

// soundState is newestState with an error that says what is wrong.
func soundState(path string, raw []byte) (state, error) {
	s, found := newestState(raw)
	if found {
		return s, nil
	}
	for at := 0; at < len(raw); at += recordApart {
		if err := otherFormat(raw[at:], stateMagic); err != nil {
			return s, fmt.Errorf("%s at %d: %w", path, at, err)
		}
	}
	return s, metadata.Errorf(metadata.ErrCorrupt, "%s is damaged: this member has forgotten whom it voted for", path)
}

// stateFile is the open file. It is the raft.StableStore half of a journal.
type stateFile struct {
	file File

	mu sync.Mutex // guards what follows
	state
	// pending is the term of a vote whose candidate raft has not named yet. raft stores a vote in two calls, first the
	// term, then the candidate (hashicorp/raft#661); here the second one writes both.
	pending uint64
}

// openState reads the file. fs.ErrNotExist: there is none.
func openState(disk Disk, dir string) (*stateFile, error) {
	path := filepath.Join(dir, stateName)
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, recordApart+recordBytes)
	for _, at := range []int64{0, recordApart} {
		_, _ = f.ReadAt(raw[at:at+recordBytes], at) // what cannot be read is no whole record
	}
	s, err := soundState(path, raw)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &stateFile{file: f, state: s}, nil
}

// createState makes the file. A crash leaves either none or a whole one.
func createState(disk Disk, dir string) (_ *stateFile, err error) {
	path := filepath.Join(dir, stateName)
	f, err := disk.Create(path + temporary)
	if err != nil {
		return nil, err
	}
	s := &stateFile{file: f}
	if _, err = f.WriteAt(make([]byte, 2*recordApart), 0); err == nil {
		err = errors.Join(s.put(0, s.state), s.put(1, s.state))
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = disk.Rename(path+temporary, path)
	}
	if err == nil {
		err = disk.SyncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create %s: %w", path, err), f.Close())
	}
	return s, nil
}

// put writes one of the two records, without fsync.
func (s *stateFile) put(which uint64, next state) error {
	_, err := s.file.WriteAt(next.encode(), int64(which)*recordApart)
	return err
}

// raise notes that entries up to acked, which has the term, are durable. It is called behind their fsync, and needs none
// itself: envelopes say the same, one append later.
func (s *stateFile) raise(acked, term uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state
	next.sequence++
	next.acked, next.ackedTerm = acked, term
	if err := s.put(next.sequence%2, next); err != nil {
		return err
	}
	s.state = next
	return nil
}

// replaceLocked makes next durable in both records, one after the other, the older one first: whatever happens one of them is
// whole, and once it has returned either of them suffices.
func (s *stateFile) replaceLocked(next state) error {
	next.sequence = s.sequence + 1
	for i := range uint64(2) {
		if err := s.put((next.sequence+i)%2, next); err != nil {
			return err
		}
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	s.state = next
	return nil
}

// cutBehind begins a new epoch: what lies behind entry last is void from now on. The watermark is acked.
func (s *stateFile) cutBehind(last uint64, acked Covered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state
	next.epoch++
	next.cut, next.acked, next.ackedTerm = last, acked.Index, acked.Term
	return s.replaceLocked(next)
}

// cover makes the end of a snapshot the watermark, durably, if it is higher.
func (s *stateFile) cover(c Covered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Index <= s.acked {
		return nil
	}
	next := s.state
	next.acked, next.ackedTerm = c.Index, c.Term
	return s.replaceLocked(next)
}

func (s *stateFile) current() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// save makes a term and a vote durable. The caller holds stateFile.mu.
func (j *Journal) save(next state) error {
	return j.write("store term and vote", func() error { return j.state.replaceLocked(next) })
}

// SetUint64 implements raft.StableStore for the keys that raft uses. The term never falls: raft handles heartbeats beside
// its main loop, and one that was checked before this member took a new term, and is carried out after it, would set the
// old one again, in which it could then accept entries that the leader it has voted for knows nothing of. raft ends the
// process when this is refused.
func (j *Journal) SetUint64(key []byte, v uint64) error {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case keyTerm:
		if v == s.term {
			return j.usable()
		}
		if v < s.term {
			return fmt.Errorf("stable store: term %d after term %d", v, s.term)
		}
		next := s.state
		next.term = v
		return j.save(next)
	case keyVoteTerm:
		s.pending = v
		return j.usable()
	}
	return fmt.Errorf("stable store: unknown key %q", key)
}

// Set implements raft.StableStore for the keys that raft uses.
func (j *Journal) Set(key, value []byte) error {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) != keyCandidate {
		return fmt.Errorf("stable store: unknown key %q", key)
	}
	if len(value) > maxCandidate {
		return fmt.Errorf("stable store: a candidate's address of %d bytes", len(value))
	}
	next := s.state
	next.voteTerm, next.candidate = s.pending, append([]byte(nil), value...)
	return j.save(next)
}

// GetUint64 implements raft.StableStore; 0 when nothing is stored.
func (j *Journal) GetUint64(key []byte) (uint64, error) {
	s := j.state.current()
	switch string(key) {
	case keyTerm:
		return s.term, nil
	case keyVoteTerm:
		return s.voteTerm, nil
	}
	return 0, fmt.Errorf("stable store: unknown key %q", key)
}

// Get implements raft.StableStore; nil when nothing is stored.
func (j *Journal) Get(key []byte) ([]byte, error) {
	if string(key) != keyCandidate {
		return nil, fmt.Errorf("stable store: unknown key %q", key)
	}
	return j.state.current().candidate, nil
}

var _ raft.StableStore = (*Journal)(nil)
