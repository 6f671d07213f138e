package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// open finds the files and reads all of them.
func (j *Journal) open() error {
	names, err := j.disk.List(j.cfg.Dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	var logs []uint64
	for _, name := range names {
		if strings.HasSuffix(name, temporary) {
			if err := j.disk.Remove(filepath.Join(j.cfg.Dir, name)); err != nil {
				return err
			}
		}
		if sequence, ok := sequenceOf(name, segmentSuffix); ok {
			logs = append(logs, sequence)
			j.pool.sequence = max(j.pool.sequence, sequence)
		}
		if sequence, ok := sequenceOf(name, spareSuffix); ok {
			j.pool.sequence = max(j.pool.sequence, sequence)
			if err := j.openSpare(sequence); err != nil {
				return err
			}
		}
	}
	j.state, err = openState(j.disk, j.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(logs) > 0 {
			return metadata.Errorf(metadata.ErrCorrupt, "there is a log but no file %s: this member has forgotten whom it voted for", stateName)
		}
		if j.cfg.Voted {
			return metadata.Errorf(metadata.ErrCorrupt, "there is neither a log nor a file %s: this member has forgotten whom it voted for and what it acknowledged", stateName)
		}
		j.state, err = createState(j.disk, j.cfg.Dir)
	}
	if err != nil {
		return err
	}
	return j.recover(logs)
}

// openSpare takes a file that is kept for later, or removes it if it is of no use.
func (j *Journal) openSpare(sequence uint64) error {
	path := j.pool.path(sequence, spareSuffix)
	f, err := j.disk.Open(path)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if size != j.pool.size || j.pool.short() {
		return errors.Join(f.Close(), j.disk.Remove(path))
	}
	j.pool.spares = append(j.pool.spares, &segment{header: header{sequence: sequence}, file: f, size: size})
	return nil
}

// recover reads the whole log, decides what is a torn tail and what is corruption, and joins log and snapshot.
func (j *Journal) recover(sequences []uint64) (err error) {
	survey, idle, err := j.survey(sequences)
	defer func() {
		if err != nil {
			for _, s := range idle {
				s.file.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	if survey.lost != nil {
		return fmt.Errorf("%w; it has entries behind entry %d, which may have been acknowledged", survey.lost, survey.last)
	}
	first, last, covered := survey.first, survey.last, j.covered
	var headBad bool
	var headEnd uint64 // the last damaged entry that the snapshot covers
	for _, g := range survey.gaps {
		if g.from <= covered.Index {
			headBad, headEnd = true, min(g.to, covered.Index)
			if g.from = covered.Index + 1; g.from > g.to {
				continue
			}
		}
		if g.from <= survey.acked {
			return fmt.Errorf("%w; entries up to %d were acknowledged", g.damage, survey.acked)
		}
		j.log.Warn("cutting torn tail of raft log", "from", g.from, "to", last, "acknowledged", survey.acked, "cause", g.damage)
		if last = g.from - 1; last < first {
			first, last = 0, 0
		}
		break
	}
	state := j.state.current()
	if reached := max(last, covered.Index); reached < survey.acked {
		return errors.Join(metadata.Errorf(metadata.ErrCorrupt, "the log ends at entry %d, but entries up to %d were acknowledged", reached, survey.acked), survey.cause)
	}
	if got := j.termOf(state.acked); got != 0 && state.ackedTerm != 0 && got != state.ackedTerm {
		return metadata.Errorf(metadata.ErrCorrupt, "entry %d has term %d, but was acknowledged with term %d", state.acked, got, state.ackedTerm)
	}
	coveredTerm := j.termOf(covered.Index)
	conflict := coveredTerm != 0 && coveredTerm != covered.Term
	switch {
	case last == 0:
	case last < covered.Index, conflict, headBad && last == covered.Index:
		// The member stopped between installing a snapshot and dropping the log that it replaces, or all that is
		// damaged lies in the snapshot too.
		j.log.Info("dropping raft log that a snapshot replaces", "from", first, "to", last, "snapshot", covered.Index)
		last = 0
	case headBad:
		j.log.Warn("dropping damaged head of raft log that a snapshot replaces", "from", first, "to", headEnd)
		first = headEnd + 1
	case first > covered.Index+1 && survey.acked <= covered.Index:
		j.log.Warn("cutting torn tail of raft log", "from", covered.Index+1, "to", last, "acknowledged", survey.acked)
		last = 0
	case first > covered.Index+1:
		return metadata.Errorf(metadata.ErrCorrupt, "the log begins at entry %d, but the newest snapshot ends at %d", first, covered.Index)
	}
	return j.settle(first, last, survey.acked, idle)
}

// survey reads the segments. Those that hold no entry are idle.
func (j *Journal) survey(sequences []uint64) (s *survey, idle []*segment, err error) {
	state := j.state.current()
	s = &survey{state: state, acked: state.acked}
	var to *segment
	s.visit = func(e *raft.Log, where span) {
		if len(to.entries) == 0 {
			to.base = e.Index
		}
		// What is missing in between is found at its index, and damaged.
		for to.base+uint64(len(to.entries)) < e.Index {
			to.entries = append(to.entries, span{at: where.at})
		}
		to.entries = append(to.entries, where)
		j.cache.append(e)
	}
	slices.Sort(sequences)
	for _, sequence := range sequences {
		f, err := j.disk.Open(j.pool.path(sequence, segmentSuffix))
		if err != nil {
			return nil, idle, err
		}
		to = &segment{header: header{sequence: sequence}, file: f}
		raw, err := readAll(f)
		if err != nil {
			return nil, idle, errors.Join(err, f.Close())
		}
		h, damage := decodeHeader(raw, sequence)
		if errors.Is(damage, metadata.ErrUnsupported) {
			return nil, idle, errors.Join(damage, f.Close())
		}
		if damage == nil {
			to.header = h
		}
		to.size = min(int64(len(raw)), math.MaxUint32)
		s.segment(raw, h, damage)
		if len(to.entries) == 0 {
			idle = append(idle, to)
		} else {
			j.segments = append(j.segments, to)
		}
	}
	return s, idle, s.refuse
}

// maxSegment is the size of the largest file that the pool makes.
const maxSegment = entriesBegin + (envelopeBytes+maxEntry+entriesBegin-1)/entriesBegin*entriesBegin

func readAll(f File) ([]byte, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxSegment {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "a segment of %d bytes is none of this program's", size)
	}
	raw := make([]byte, size)
	if n, err := f.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if n < len(raw) {
		raw = raw[:n]
	}
	return raw, nil
}

// termOf is the term of an entry that the survey has found, 0 if it has not.
func (j *Journal) termOf(index uint64) uint64 {
	if e, err := j.fetch(index); err == nil {
		return e.Term
	}
	return 0
}

// settle makes entries first to last the log, durably: what follows them in the files is void from now on. After kill -9
// the last append may be in the page cache alone, and raft will take it for stored.
func (j *Journal) settle(first, last, acked uint64, idle []*segment) error {
	var term uint64
	if last > 0 {
		term = j.termOf(last)
	}
	idle = append(idle, j.trimLocked(first, last)...)
	if err := j.rewrite(acked); err != nil {
		return err
	}
	if last == 0 {
		j.cache = cache{limit: j.cache.limit}
	} else {
		j.cache.drop(last+1, math.MaxUint64)
	}
	j.cache.own()
	for _, s := range j.segments {
		for i, e := range s.entries {
			if s.base+uint64(i) > j.covered.Index {
				j.appended.Add(int64(e.size) - envelopeBytes)
			}
		}
	}
	// What is void now has to go before the next epoch begins, in which it would look like entries again.
	if n := len(j.segments); n > 0 {
		tail := j.segments[n-1]
		if err := errors.Join(tail.file.Sync(), tail.clearRest()); err != nil {
			return err
		}
	}
	if err := j.retire(idle, len(j.segments)); err != nil {
		return err
	}
	if len(idle) > 0 {
		if err := j.disk.SyncDir(j.cfg.Dir); err != nil {
			return err
		}
	}
	j.acked = last // all of it has been read back and is durable
	mark := Covered{last, term}
	if j.covered.Index > last { // not less: without this snapshot the member must not start
		mark = j.covered
	}
	return j.state.cutBehind(last, mark)
}

// rewrite writes the entries of the last segment that lie behind acked once more. If fdatasync failed in a former life they
// may be in the page cache alone, in pages that count as clean, which no fdatasync makes durable (Rebello et al., ATC'20).
func (j *Journal) rewrite(acked uint64) error {
	if len(j.segments) == 0 {
		return nil
	}
	tail := j.segments[len(j.segments)-1]
	if tail.last() <= acked {
		return nil
	}
	from := int64(tail.entries[max(acked+1, tail.base)-tail.base].at)
	raw := make([]byte, tail.end()-from)
	if _, err := tail.file.ReadAt(raw, from); err != nil {
		return err
	}
	_, err := tail.file.WriteAt(raw, from)
	return err
}
