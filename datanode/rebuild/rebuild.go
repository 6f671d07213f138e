// Package rebuild computes internal blocks of a block group from others, some of each at a time, so that the memory it takes does not depend on
// their length. Sources that fail, or are slow while others wait, are replaced by others in the middle.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/metadata"
)

// Slice is how much of each internal block is read, computed and written at a time. A Job takes that much memory for each internal block that it
// reads or makes. It is a multiple of the chunk, so that a source which takes over begins at the start of one.
const Slice = 256 << 10

// slow is how long a slice may take at first while there are sources that are not used, and patient how long it may take at last.
const (
	slow    = 5 * time.Second
	patient = time.Minute
)

// Job is what is to be computed.
type Job struct {
	// Group has the id of the group and the length of its data.
	Group metadata.Block
	Coder *erasure.Coder
	// Sources are the internal blocks that can be read, those that should be read in front. Targets among them are not read.
	Sources []int
	// Open reads n bytes of an internal block from an offset on. It has to see to it that they are right. It is called from several goroutines, and
	// both it and the reads return soon when the context is done.
	Open func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error)
	// Targets are made from their beginnings to their ends.
	Targets []Target
	// Slow is how long a slice may take before its source is replaced, twice as long after each time that one was; 0 is 5 s.
	Slow time.Duration
	// Pace is asked before so many bytes are read, and may wait; nil: as fast as it goes.
	Pace func(ctx context.Context, n int64) error
	// Failed is told why a source is not used any more; may be nil.
	Failed func(unit int, err error)
}

// Target is an internal block to be computed.
type Target struct {
	Unit int
	// Length is how much of it, from its beginning on, is wanted; negative: all.
	Length int64
	io.Writer
}

// errSlow is why a source is replaced that has not failed.
var errSlow = errors.New("it is slow")

// Run computes until all targets are complete. What was written of a target is the beginning of it in any case. The errors in the list are those of
// writing to the targets, in their order; the others go on. The last one is for all targets that have none of their own: erasure.ErrTooFew,
// with what the sources said.
func (j *Job) Run(ctx context.Context) ([]error, error) {
	failed := make([]error, len(j.Targets))
	r, err := newRun(j, failed)
	if err != nil {
		return failed, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.close()
	defer cancel()
	for off := int64(0); ; off += Slice {
		n := r.left(off)
		if n == 0 {
			return failed, nil
		}
		if err := r.gather(ctx, off, min(n, Slice)); err != nil {
			return failed, fmt.Errorf("group %d: %w", j.Group.ID, err)
		}
		if err := r.compute(off, min(n, Slice)); err != nil {
			return failed, fmt.Errorf("group %d: %w", j.Group.ID, err)
		}
	}
}

// run is a Job under way.
type run struct {
	*Job
	failed []error // of targets
	units  int
	data   int
	lanes  []*lane // the sources
	have   [][]byte
	want   [][]byte
	made   []*[]byte // the memory for targets
	why    []error   // of sources that are gone
	// patience is Slow, and doubles whenever a source was replaced: perhaps all are slow.
	patience time.Duration
	// results has room for one of every lane: each reads once at a time.
	results chan result
}

// lane is a source.
type lane struct {
	unit   int
	length int64
	use    use
	stream io.ReadCloser
	stop   context.CancelFunc // ends the stream
	ctx    context.Context    //nolint:containedctx // of the stream, which lives longer than a call
	memory *[]byte
}

// use is what a source is doing.
type use uint8

const (
	spare use = iota
	used
	reading
	replaced // it was slow, and its goroutine has not ended yet
	gone
)

type result struct {
	*lane
	err error
}

var memory = sync.Pool{New: func() any { return new(make([]byte, Slice)) }}

func newRun(j *Job, failed []error) (*run, error) {
	layout := j.Coder.Layout()
	r := &run{Job: j, failed: failed, units: layout.Units(), data: layout.Data}
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, "computing internal blocks of group %v: "+format, append([]any{j.Group}, args...)...)
	}
	if !j.Group.ID.Striped() || j.Group.ID.Group() != j.Group.ID || j.Group.Length < 0 {
		return nil, bad("it is not a group")
	}
	var seen uint32
	for _, t := range j.Targets {
		if t.Unit < 0 || t.Unit >= r.units || seen>>t.Unit&1 != 0 {
			return nil, bad("internal block %d of %d is asked for, or twice", t.Unit, r.units)
		}
		if t.Length > layout.UnitLength(j.Group.Length, t.Unit) {
			return nil, bad("%d bytes of internal block %d, which has %d", t.Length, t.Unit, layout.UnitLength(j.Group.Length, t.Unit))
		}
		seen |= 1 << t.Unit
	}
	for _, unit := range j.Sources {
		if unit < 0 || unit >= r.units {
			return nil, bad("internal block %d of %d as a source", unit, r.units)
		}
		if length := layout.UnitLength(j.Group.Length, unit); seen>>unit&1 == 0 && length > 0 {
			r.lanes = append(r.lanes, &lane{unit: unit, length: length})
		}
		seen |= 1 << unit
	}
	r.have, r.want, r.made = make([][]byte, r.units), make([][]byte, r.units), make([]*[]byte, r.units)
	r.results = make(chan result, len(r.lanes))
	if r.patience = j.Slow; r.patience <= 0 {
		r.patience = slow
	}
	return r, nil
}

// wanted is how long a target gets.
func (j *Job) wanted(t Target) int64 {
	if t.Length >= 0 {
		return t.Length
	}
	return j.Coder.Layout().UnitLength(j.Group.Length, t.Unit)
}

// left is how many bytes from off on are wanted of the target that is longest.
func (r *run) left(off int64) int64 {
	n := int64(0)
	for i, t := range r.Targets {
		if r.failed[i] == nil {
			n = max(n, r.wanted(t)-off)
		}
	}
	return n
}

// gather fills have for n bytes from off on with as many cells as are needed.
func (r *run) gather(ctx context.Context, off, n int64) error {
	layout := r.Coder.Layout()
	needed := r.data
	clear(r.have)
	for i := range r.data { // ends before: zeros, which nobody has to read
		if layout.UnitLength(r.Group.Length, i) <= off {
			r.have[i] = nothing
			needed--
		}
	}
	for _, l := range r.lanes {
		if l.length <= off {
			l.end(gone)
		}
	}
	if r.Pace != nil {
		if err := r.Pace(ctx, int64(needed)*n); err != nil {
			return err
		}
	}
	filled, waiting := 0, 0
	defer func() { // whoever reads still was replaced, or nobody wants it any more
		for _, l := range r.lanes {
			if l.use == reading {
				l.use = replaced
				l.stop()
			}
		}
		for ; waiting > 0; waiting-- {
			(<-r.results).end(spare)
		}
	}()
	// Those that were used before go on, others take the places that are free.
	begin := func(which use) bool {
		for _, l := range r.lanes {
			if l.use == which {
				r.begin(ctx, l, off, min(n, l.length-off))
				waiting++
				return true
			}
		}
		return false
	}
	active := 0
	for active < needed && begin(used) {
		active++
	}
	for _, l := range r.lanes {
		if l.use == used { // one more than is needed, since another internal block has ended
			l.end(spare)
		}
	}
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	for {
		for active < needed && begin(spare) {
			active++
		}
		if active < needed && waiting == active-filled { // those that were replaced may come back
			err := fmt.Errorf("%w: %d of %d that are needed can be read", erasure.ErrTooFew, active, needed)
			if len(r.why) > 0 {
				err = fmt.Errorf("%w: %w", err, errors.Join(r.why...))
			}
			return err
		}
		if filled == needed {
			return nil
		}
		select {
		case x := <-r.results:
			waiting--
			switch {
			case x.use == replaced:
				x.end(spare) // behind those that have not been tried, and perhaps faster another time
				r.lanes = append(slices.DeleteFunc(r.lanes, func(l *lane) bool { return l == x.lane }), x.lane)
			case x.err != nil:
				x.end(gone)
				active--
				r.lost(x.unit, x.err)
				if ctx.Err() != nil {
					return ctx.Err()
				}
			default:
				x.use = used
				r.have[x.unit] = (*x.memory)[:min(n, x.length-off)]
				filled++
			}
		case <-timer.C:
			late := slices.DeleteFunc(slices.Clone(r.lanes), func(l *lane) bool { return l.use != reading })
			for _, l := range late { // and nobody who begins now
				if !begin(spare) {
					break
				}
				l.use = replaced
				l.stop()
				if r.patience = min(2*r.patience, patient); r.Failed != nil {
					r.Failed(l.unit, errSlow)
				}
			}
			timer.Reset(r.patience)
		}
	}
}

// nothing is the part of a cell behind its end.
var nothing = []byte{}

func (r *run) lost(unit int, err error) {
	r.why = append(r.why, fmt.Errorf("internal block %d: %w", unit, err))
	if r.Failed != nil {
		r.Failed(unit, err)
	}
}

// begin has a lane read n bytes from off on.
func (r *run) begin(ctx context.Context, l *lane, off, n int64) {
	l.use = reading
	if l.memory == nil {
		l.memory = memory.Get().(*[]byte)
		l.ctx, l.stop = context.WithCancel(ctx)
	}
	rest := min(l.length, off+r.left(off)) - off
	go func() {
		var err error
		if l.stream == nil {
			l.stream, err = r.Open(l.ctx, l.unit, off, rest)
		}
		if err == nil {
			_, err = io.ReadFull(l.stream, (*l.memory)[:n])
		}
		r.results <- result{l, err}
	}()
}

// end gives back what a lane has, which does not read.
func (l *lane) end(to use) {
	l.use = to
	if l.memory != nil {
		l.stop()
		memory.Put(l.memory)
		l.memory = nil
	}
	if l.stream != nil {
		_ = l.stream.Close()
		l.stream = nil
	}
}

func (r *run) close() {
	for _, l := range r.lanes {
		l.end(gone)
	}
	for _, m := range r.made {
		if m != nil {
			memory.Put(m)
		}
	}
}

// compute makes what the targets lack of n bytes from off on, and writes it.
func (r *run) compute(off, n int64) error {
	clear(r.want)
	for i, t := range r.Targets {
		if length := min(n, r.wanted(t)-off); length > 0 && r.failed[i] == nil {
			if r.made[t.Unit] == nil {
				r.made[t.Unit] = memory.Get().(*[]byte)
			}
			r.want[t.Unit] = (*r.made[t.Unit])[:length]
		}
	}
	if err := r.Coder.Reconstruct(r.have, r.want); err != nil {
		return err
	}
	for i, t := range r.Targets {
		if made := r.want[t.Unit]; made != nil {
			if _, err := t.Write(made); err != nil {
				r.failed[i] = err
			}
		}
	}
	return nil
}
