package journal

import (
	"bytes"
	"fmt"
	"math"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// survey reads the segments of a log one after the other and tells entries from leftovers and from damage.
//
// A segment is a row of entries; behind them lie zeros or leftovers: of an earlier use of the file, which have another salt, of
// a tail that was cut, or of an append that was torn, which have an index behind the cut and an older epoch, or an
// older epoch than the entry in front of them. Where no entry follows, the rest of the segment is searched for envelopes. One
// that must be an entry says that those in front of it are damaged, and any of the present epoch says what was acknowledged.
type survey struct {
	// state is what the file of that name holds.
	state state
	// visit, if not nil, is called for each sound entry, which it may keep.
	visit func(e *raft.Log, where span)

	// first and last are of all entries that were found.
	first, last uint64
	term        uint64 // of the last entry found
	epoch       uint32
	// acked is the highest watermark anywhere.
	acked uint64
	gaps  []gap
	// head is what is wrong in front of the first entry found, where nothing tells which entries are missing. hollow is the first segment in which none was found before it.
	head   error
	hollow string
	// file is the segment that was read last, end where in lastFile the last entry ends. cause is what is wrong with file, if it begins
	// with damage.
	file, lastFile string
	end            int
	cause          error
	// lost is what is wrong with a segment that holds entries behind the last one found. It is nil again when a later one is found:
	// then those in between are missing.
	lost error
	// refuse: what was found is not what a crash leaves.
	refuse error
}

// gap is a range of entries that are damaged or missing.
type gap struct {
	from, to uint64
	damage   error
}

// gap notes damage that begins at an offset of the present segment.
func (s *survey) gap(from, to uint64, at int, damage error) {
	s.gaps = append(s.gaps, gap{from, to, fmt.Errorf("%s at %d: %w", s.file, at, damage)})
}

// fits reports whether an envelope is that of an entry behind those found so far, with at most so many missing in between.
func (s *survey) fits(e *envelope, missing uint64) bool {
	switch {
	case e.epoch > s.state.epoch:
		s.refuse = metadata.Errorf(metadata.ErrCorrupt, "entry %d is of epoch %d, the file %s of epoch %d: it is not the one that belongs to this log, and this member has forgotten whom it voted for",
			e.index, e.epoch, stateName, s.state.epoch)
		return false
	case s.void(e):
		return false
	case s.last == 0:
		return true
	case e.index <= s.last: // void entries were cleared before others were written in their place
		s.refuse = metadata.Errorf(metadata.ErrCorrupt, "entry %d of epoch %d is there behind entry %d of epoch %d: the disk has lost what was written in between",
			e.index, e.epoch, s.last, s.epoch)
		return false
	}
	return e.index-s.last-1 <= missing
}

// void reports whether an envelope is a leftover.
func (s *survey) void(e *envelope) bool {
	return e.epoch < s.epoch || e.index > s.state.cut && e.epoch < s.state.epoch
}

// hides reports whether a segment whose header is damaged holds entries behind those found so far. The first envelope tells, whatever the
// salt is; files are never short.
func (s *survey) hides(raw []byte) bool {
	if len(raw) < entriesBegin+envelopeBytes {
		return true
	}
	e, ok := decodeEnvelope(raw[entriesBegin:], salt(raw[entriesBegin:]))
	return ok && e.index > s.last && !s.void(&e)
}

// note takes what an envelope says of what was acknowledged. One of an older epoch may tell of entries that were cut.
func (s *survey) note(e *envelope) {
	if e.epoch == s.state.epoch {
		s.acked = max(s.acked, e.watermark)
	}
}

// segment reads the bytes of one. damage is what is wrong with its header.
func (s *survey) segment(raw []byte, h header, damage error) {
	s.cause, s.file = nil, segmentName(h.sequence, segmentSuffix)
	if damage != nil {
		s.cause = damage
		if s.hides(raw) {
			s.lost = damage
		}
		return
	}
	missing, most := uint64(math.MaxUint64), uint64(math.MaxUint64) // a segment in front of this one may be
	for at := entriesBegin; at < len(raw); missing, most = 0, uint64(len(raw)/envelopeBytes) {
		begin := at
		e, ok := decodeEnvelope(raw[at:], h.salt)
		if ok {
			s.note(&e)
		}
		if !ok || !s.fits(&e, missing) {
			if at, e, ok = s.search(raw, at+1, h.salt, most); !ok {
				if s.last == 0 && s.hollow == "" {
					s.hollow = s.file
				}
				return
			}
		}
		if s.last == 0 && at > begin {
			s.head = metadata.Errorf(metadata.ErrCorrupt, "%s at %d: what stands in front of entry %d is damaged", s.file, begin, e.index)
		} else if s.last == 0 && s.hollow != "" {
			s.head = metadata.Errorf(metadata.ErrCorrupt, "%s at %d: there is no entry here, and there are some from entry %d on in files behind it", s.hollow, entriesBegin, e.index)
		}
		if s.last > 0 && e.index > s.last+1 {
			s.gap(s.last+1, e.index-1, begin, metadata.Errorf(metadata.ErrCorrupt, "entries %d to %d are damaged or missing", s.last+1, e.index-1))
		}
		entry, err := e.entry(raw[at+envelopeBytes:])
		if err == nil && e.term < s.term {
			err = metadata.Errorf(metadata.ErrCorrupt, "entry %d: term %d follows term %d", e.index, e.term, s.term)
		}
		if s.last = e.index; s.first == 0 {
			s.first = e.index
		}
		s.epoch, s.lost = e.epoch, nil
		if e.term > s.state.term {
			s.refuse = metadata.Errorf(metadata.ErrCorrupt, "entry %d has term %d, the file %s term %d: it is not the one that belongs to this log, and this member has forgotten whom it voted for",
				e.index, e.term, stateName, s.state.term)
		}
		if err != nil {
			s.gap(e.index, e.index, at, err)
		} else {
			s.term = e.term
			if s.visit != nil {
				s.visit(entry, span{uint32(at), uint32(e.size())})
			}
		}
		at += e.size()
		s.lastFile, s.end = s.file, at
	}
}

// search finds the next entry from an offset on, behind at least one that is damaged.
func (s *survey) search(raw []byte, from int, of salt, missing uint64) (at int, e envelope, ok bool) {
	for from < len(raw) {
		n := bytes.Index(raw[from:], of[:])
		if n < 0 {
			break
		}
		at, from = from+n, from+n+1
		if e, ok = decodeEnvelope(raw[at:], of); !ok {
			continue
		}
		s.note(&e)
		if s.last > 0 && e.index == s.last+1 {
			continue // that one is what is damaged
		}
		if s.fits(&e, missing) {
			return at, e, true
		}
	}
	return 0, e, false
}
