package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
)

// Head says what a log's directory holds beside the entries.
type Head struct {
	// Term is the member's, and VoteTerm the one in which it voted for Candidate last.
	Term, VoteTerm uint64
	Candidate      string
	// Acked: entries up to it were acknowledged. The log's own entries may say more.
	Acked uint64
	// Segments and Spares are numbers of files, Bytes their size.
	Segments, Spares int
	Bytes            int64
}

// Contents says what the entries of a log are.
type Contents struct {
	// First and Last are of the entries, 0 if there are none; entries up to Acked were acknowledged.
	First, Last, Acked uint64
	// Damage is what is wrong, in words, with the file and the offset in it: an entry that is damaged or missing, a damaged header of a file.
	// Behind Acked it may be an append that was torn by a crash, which the next start of the member cuts off. The last one says so when there
	// are more than maxDamage.
	Damage []string
}

const maxDamage = 1000

// ReadHead reads everything but the entries. It changes nothing and needs no lock.
//
// Errors: fs.ErrNotExist when there is no log; metadata.ErrCorrupt and metadata.ErrUnsupported, of the file state.
func ReadHead(dir string) (Head, error) {
	s, err := readState(dir)
	if err != nil {
		return Head{}, err
	}
	h := Head{Term: s.term, VoteTerm: s.voteTerm, Candidate: string(s.candidate), Acked: s.acked}
	names, err := os.ReadDir(dir)
	if err != nil {
		return h, err
	}
	for _, d := range names {
		if _, ok := sequenceOf(d.Name(), spareSuffix); ok {
			h.Spares++
		} else if _, ok := sequenceOf(d.Name(), segmentSuffix); ok {
			h.Segments++
		} else {
			continue
		}
		if info, err := d.Info(); err == nil {
			h.Bytes += info.Size()
		}
	}
	return h, nil
}

// Read calls fn for each sound entry of the log in dir, until it returns an error. It changes nothing and needs no lock: beside
// the process that writes the log it finds the log as it was at some moment, or an error that says that it was cut meanwhile. bytes
// is what the entry takes in its file. One segment is in memory at a time.
func Read(dir string, fn func(entry *raft.Log, bytes int) error) (Contents, error) {
	var c Contents
	before, err := readState(dir)
	if err != nil {
		return c, err
	}
	entries, err := os.ReadDir(dir) // in the order of their names
	if err != nil {
		return c, err
	}
	var stopped error
	s := survey{state: before, acked: before.acked, visit: func(e *raft.Log, where span) {
		if stopped == nil {
			stopped = fn(e, int(where.size))
		}
	}}
	damaged := func(err error) {
		switch n := len(c.Damage); {
		case n < maxDamage:
			c.Damage = append(c.Damage, err.Error())
		case n == maxDamage:
			c.Damage = append(c.Damage, "and more")
		}
	}
	for _, d := range entries {
		sequence, ok := sequenceOf(d.Name(), segmentSuffix)
		if !ok || stopped != nil {
			continue
		}
		raw, err := readFile(filepath.Join(dir, d.Name()), entriesBegin+envelopeBytes+maxEntry+entriesBegin)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // the log's head goes while it is read
		case errors.Is(err, fs.ErrPermission):
			return c, err
		case err != nil:
			damaged(fmt.Errorf("%s at %d: %w", d.Name(), len(raw), err))
		}
		h, damage := decodeHeader(raw, sequence)
		s.gaps = s.gaps[:0]
		s.segment(raw, h, damage)
		if damage != nil && err == nil {
			damaged(damage)
		}
		if s.head != nil {
			damaged(s.head)
			s.head = nil
		}
		for _, g := range s.gaps {
			damaged(g.damage)
		}
	}
	after, err := readState(dir)
	switch {
	case err != nil:
		return c, err
	case stopped != nil:
		return c, stopped
	case after.epoch != before.epoch, s.refuse != nil && after.term != before.term:
		return c, fmt.Errorf("raft log %s: its end was cut while it was read, or its member started: read it again", dir)
	case s.refuse != nil:
		damaged(s.refuse)
	}
	c.Damage = slices.Compact(c.Damage)
	c.First, c.Last, c.Acked = s.first, s.last, max(s.acked, after.acked)
	if c.Last < s.acked {
		where := ""
		if s.last > 0 {
			where = fmt.Sprintf("%s at %d: ", s.lastFile, s.end)
		}
		damaged(fmt.Errorf("%sthe log ends at entry %d; entries up to %d were acknowledged: a snapshot has the rest, or it is lost", where, c.Last, s.acked))
	}
	return c, nil
}

func readState(dir string) (state, error) {
	path := filepath.Join(dir, stateName)
	raw, err := readFile(path, 2*recordApart)
	if err != nil {
		return state{}, err
	}
	return soundState(path, raw)
}

// readFile reads a regular file of at most so many bytes; of one whose disk fails it returns what stands in front of that.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // a pipe would wait for ever
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is no regular file")}
	case info.Size() > limit:
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has %d bytes, of %d that are possible", info.Size(), limit)}
	}
	return os.ReadFile(path)
}
