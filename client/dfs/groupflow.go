package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// locatedGroup is a block group and where its internal blocks are.
type locatedGroup struct {
	coder  *erasure.Coder
	layout stripe.Layout
	length int64      // of its data
	units  []*located // by number; nil: it is nowhere
}

// striped reports whether a block is a group.
func striped(b *hadooppb.LocatedBlockProto) bool {
	return metadata.BlockID(b.GetB().GetBlockId()).Striped()
}

// newLocatedGroup finds the internal blocks among the locations of a group. What does not fit the layout is passed over.
func newLocatedGroup(p *hadooppb.LocatedBlockProto, coder *erasure.Coder) *locatedGroup {
	layout := coder.Layout()
	g := &locatedGroup{coder: coder, layout: layout, length: int64(p.GetB().GetNumBytes()), units: make([]*located, layout.Units())}
	for i, at := range p.GetBlockIndices() {
		if int(at) >= len(g.units) || i >= len(p.GetLocs()) {
			continue
		}
		if g.units[at] == nil {
			size := layout.UnitLength(g.length, int(at))
			g.units[at] = &located{size: size, token: p.GetBlockToken(), block: &hadooppb.ExtendedBlockProto{
				PoolId: p.GetB().PoolId, BlockId: new(p.GetB().GetBlockId() + uint64(at)), GenerationStamp: p.GetB().GenerationStamp, NumBytes: new(uint64(size)),
			}}
			if i < len(p.GetBlockTokens()) {
				g.units[at].token = p.GetBlockTokens()[i]
			}
		}
		g.units[at].nodes = append(g.units[at].nodes, p.GetLocs()[i])
	}
	return g
}

// groupFlow reads a range of a block group. As long as all internal blocks that are needed can be had, their cells are handed out one after the
// other as they come from the datanodes. A stripe of which one cannot is read as a whole, as far as it is wanted, from as many others as there are
// data blocks, all at once, and what is missing is computed.
//
//	data blocks that are needed are there    a stream from each, read in turn        cell 0, cell 1, cell 2, ...
//	one of them is lost                      the same streams, and one of parity     stripe, stripe, ...
//
// An internal block is lost to the flow when its datanode fails, has wrong bytes, or is slow while there are others to spare.
type groupFlow struct {
	r     *Reader
	ctx   context.Context
	a     *attempt
	b     *located
	g     *locatedGroup
	coder *erasure.Coder
	pos   int64 // in the group, of the next byte to hand out
	end   int64 // of the range
	units []unitFlow
	ready [][]byte // computed or read in advance, in order
	from  *unitFlow
}

// unitFlow is an internal block of a group that is being read.
type unitFlow struct {
	at   *located
	node *hadooppb.DatanodeInfoProto
	s    unitStream
	lost bool
	// part is what was read of a stripe's cell, from the place lo of the cell on.
	part   []byte
	lo, hi int64
}

// unitStream reads a range of an internal block, and checks every byte of it: a blockStream from its datanode, or a localStream.
type unitStream interface {
	// read returns the next bytes, valid until the next call, and at least one. io.EOF: that was all.
	read() ([]byte, error)
	// unread gives back what was not used of the bytes that read returned last. What was given back of them before lies behind b in memory.
	unread(b []byte)
	// place is where in the internal block the next bytes are, and where the range ends.
	place() (pos, end int64)
	// part ends the stream, whether or not the range is done, and close does when something was wrong with it.
	part()
	close()
}

// errFew: the reason is among the attempt's causes.
var errFew = errors.New("too few internal blocks of the group can be read")

// errExchanged: the file has other blocks in the place of the group.
var errExchanged = errors.New("other blocks have taken the place of the group")

// openGroup prepares to read length bytes at a place of a group; nil: too few of its internal blocks have not failed yet.
func (r *Reader) openGroup(ctx context.Context, a *attempt, b *located, offset, length int64) *groupFlow {
	f := &groupFlow{r: r, ctx: ctx, a: a, b: b, g: b.group, coder: b.group.coder, pos: offset, end: offset + length, units: make([]unitFlow, len(b.group.units))}
	suspects := 0
	for i := range f.units {
		u := &f.units[i]
		if u.at = f.g.units[i]; u.at != nil {
			u.node, _ = r.choose(u.at)
		}
		u.lost = u.node == nil && f.g.layout.UnitLength(f.g.length, i) > 0
		if u.node != nil && r.c.suspected(u.node) {
			suspects++
		}
	}
	if f.spare() < 0 {
		return nil
	}
	for i := range f.units { // silent ones come last
		if u := &f.units[i]; u.node != nil && suspects > 0 && f.spare() > 0 && r.c.suspected(u.node) {
			u.lost = true
		}
	}
	return f
}

// spare is how many internal blocks may still be lost.
func (f *groupFlow) spare() int {
	n := -f.g.layout.Data
	for i := range f.units {
		if !f.units[i].lost {
			n++
		}
	}
	return n
}

func (f *groupFlow) during(a *attempt) { f.a = a }
func (f *groupFlow) until() int64      { return f.b.end() }

// failed has nothing to add to too few internal blocks, each of which was blamed when it failed, nor to other blocks in the place of the group, which are read from where the reader is.
// Anything else would not go away.
func (f *groupFlow) failed(err error) error {
	if errors.Is(err, errFew) || errors.Is(err, errExchanged) {
		return nil
	}
	return err
}

// read returns the next bytes.
func (f *groupFlow) read() ([]byte, error) {
	for {
		if len(f.ready) > 0 {
			data := f.ready[0]
			f.ready = f.ready[1:]
			f.pos += int64(len(data))
			return data, nil
		}
		f.from = nil
		if f.pos >= f.end {
			f.settle()
			return nil, io.EOF
		}
		unit, within := f.g.layout.At(f.pos)
		stripeEnd := min(f.pos-f.pos%f.g.layout.Stripe()+f.g.layout.Stripe(), f.end)
		if f.needsLost(f.pos, stripeEnd) {
			if err := f.readStripe(f.pos, stripeEnd); err != nil {
				return nil, f.over(err)
			}
			continue
		}
		u := &f.units[unit]
		data, err := f.direct(u, within, min(f.g.layout.Cell-within%f.g.layout.Cell, f.end-f.pos))
		if err == nil {
			f.from = u
			f.pos += int64(len(data))
			return data, nil
		}
		if err := f.lose(u, u.at, err); err != nil {
			return nil, f.over(err)
		}
	}
}

// over gives the flow up.
func (f *groupFlow) over(err error) error {
	f.close()
	return err
}

// needsLost reports whether a range within a stripe has bytes of an internal block that is lost.
func (f *groupFlow) needsLost(from, to int64) bool {
	for p := range f.g.layout.Pieces(from, to-from) {
		if f.units[p.Unit].lost {
			return true
		}
	}
	return false
}

// direct returns up to n bytes of an internal block from its stream.
func (f *groupFlow) direct(u *unitFlow, within, n int64) ([]byte, error) {
	if err := f.seek(u, within, f.unitEnd(u.number(f), false)); err != nil {
		return nil, err
	}
	data, err := u.s.read()
	if err != nil {
		return nil, unexpected(err)
	}
	if int64(len(data)) > n {
		u.s.unread(data[n:])
		data = data[:n]
	}
	return data, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (u *unitFlow) number(f *groupFlow) int {
	return int(metadata.BlockID(u.at.block.GetBlockId()).Unit())
}

// unitEnd is up to where a stream of an internal block is asked for: what the range needs of it, and with others what computing may need.
func (f *groupFlow) unitEnd(unit int, others bool) int64 {
	l := f.g.layout
	length := l.UnitLength(f.g.length, unit)
	if f.end == f.g.length {
		return length
	}
	if !others {
		return min(l.UnitLength(f.end, unit), length)
	}
	last := (f.end - 1) / l.Stripe()
	return min(last*l.Cell+min(f.end-last*l.Stripe(), l.Cell), length)
}

// seek has the stream of an internal block stand at a place.
func (f *groupFlow) seek(u *unitFlow, within, end int64) error {
	if s := u.s; s != nil {
		for {
			pos, stop := s.place()
			if pos == within && stop > within {
				return nil
			}
			if pos >= within || within >= stop || within-pos > skipAhead {
				break
			}
			data, err := s.read()
			if err != nil {
				break
			}
			if over := pos + int64(len(data)) - within; over > 0 {
				s.unread(data[int64(len(data))-over:])
			}
		}
		f.part(u)
	}
	return f.open(u, within, end)
}

// part lets go of an internal block's stream.
func (f *groupFlow) part(u *unitFlow) {
	if u.s != nil {
		u.s.part()
		u.s = nil
	}
}

// open opens a range of an internal block, by descriptors if it is on this machine, otherwise by asking its datanode. One that is slow with its answer is passed over if there are
// others to spare.
func (f *groupFlow) open(u *unitFlow, from, end int64) error {
	if !f.b.open {
		if s := f.r.localStream(f.ctx, u.at, u.node, from, end-from); s != nil {
			u.s = s
			return nil
		}
	}
	c := f.r.c
	ctx, overtake := context.WithCancelCause(f.ctx)
	defer overtake(nil)
	looked := make(chan struct{})
	timer := time.AfterFunc(c.hedging.delay(), func() {
		defer close(looked)
		if f.dispensable(u) {
			overtake(errOvertaken)
		}
	})
	s, err := c.openStream(ctx, u.at, u.node.GetId(), from, end-from)
	if !timer.Stop() {
		<-looked // at the units, which may change from here on
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errOvertaken) {
			err = errOvertaken
		}
		return err
	}
	u.s = s
	if p := s.peer; p != nil {
		s.until(f.ctx)
		p.slow, p.slowAfter = func() {
			if f.dispensable(u) {
				p.interrupt(errOvertaken)
			}
		}, c.hedging.delay()
	}
	return nil
}

// dispensable reports whether one that is slow can be passed over, and takes what that costs.
func (f *groupFlow) dispensable(u *unitFlow) bool {
	if f.spare() <= 0 || !f.r.c.hedging.begin(f.r.c.suspected(u.node)) {
		return false
	}
	f.r.c.hedging.end()
	return true
}

// lose takes note of an internal block that failed, with the token in asked. Errors: the context's; errFew; errExchanged and what the namenode says when a token has to be renewed.
func (f *groupFlow) lose(u *unitFlow, asked *located, cause error) error {
	if u.s != nil {
		u.s.close()
		u.s = nil
	}
	switch {
	case f.ctx.Err() != nil:
		return f.ctx.Err()
	case errors.Is(cause, errAbandoned): // its datanode is asked, unless it would wait for the same disk
		u.lost = errors.Is(cause, errSlowDisk) && f.spare() > 0
		return nil
	case errors.Is(cause, errOvertaken):
		f.r.c.suspect(u.node, u.at.block, u.at.token, true)
	case refusedToken(cause) && u.at != asked: // it is another one by now
		return nil
	case refusedToken(cause) && !f.a.renewed:
		return f.renew()
	default:
		f.r.blame(f.a, u.at, u.node, cause)
		if u.node, _ = f.r.choose(u.at); u.node != nil {
			return nil
		}
	}
	u.lost = true
	if f.spare() < 0 {
		return errFew
	}
	return nil
}

// renew asks for the locations again: tokens have expired, which is nobody's fault. What the flow knows of places, internal blocks and their code is of this group: with another block in its
// place it is at its end. Errors: errFew, errExchanged; the namenode's.
func (f *groupFlow) renew() error {
	f.a.renewed = true
	b, err := f.r.at(f.ctx, f.b.offset, true)
	if err != nil {
		return err
	}
	if b.group == nil || b.block.GetBlockId() != f.b.block.GetBlockId() {
		return errExchanged
	}
	f.b, f.g = b, b.group
	for i := range f.units {
		u := &f.units[i]
		again := f.g.units[i]
		if again == nil || u.lost {
			continue
		}
		u.at = again
		if u.s != nil { // what comes of it is its datanode's, which it stays with
			if at := slices.IndexFunc(again.nodes, func(n *hadooppb.DatanodeInfoProto) bool {
				return n.GetId().GetDatanodeUuid() == u.node.GetId().GetDatanodeUuid()
			}); at >= 0 {
				u.node = again.nodes[at]
				continue
			}
			f.part(u)
		}
		u.node, _ = f.r.choose(again)
		u.lost = u.node == nil
	}
	if f.spare() < 0 {
		return errFew
	}
	return nil
}

// readStripe reads what is wanted of a stripe, a range of the group, and computes what of it is lost.
func (f *groupFlow) readStripe(from, to int64) error {
	l := f.g.layout
	base := from / l.Stripe() * l.Cell // where the stripe begins in each internal block
	type span struct{ lo, hi int64 }
	wanted := make([]span, len(f.units))
	for p := range l.Pieces(from, to-from) {
		wanted[p.Unit] = span{p.Within - base, p.Within - base + p.Length}
	}
	cellLength := func(unit int) int64 { return min(max(l.UnitLength(f.g.length, unit)-base, 0), l.Cell) }
	for i := range f.units {
		f.dropPart(&f.units[i])
	}
	for {
		lost := span{l.Cell, 0}
		for i := range l.Data {
			if w := wanted[i]; w.hi > w.lo && f.units[i].lost {
				lost = span{min(lost.lo, w.lo), max(lost.hi, w.hi)}
			}
		}
		if lost.hi == 0 { // it is another flow's, or came back
			return nil
		}
		// Those that are wanted anyhow, and others until there are enough.
		var sources []*unitFlow
		chosen := make([]bool, len(f.units))
		enough := 0
		for round := range 2 {
			for i := range f.units {
				u, w := &f.units[i], wanted[i]
				own := w.hi > w.lo
				if u.lost || own != (round == 0) || round == 1 && enough >= l.Data {
					continue
				}
				enough++
				chosen[i] = true
				lo, hi := lost.lo, min(lost.hi, cellLength(i))
				if own {
					lo, hi = min(lo, w.lo), max(hi, w.hi)
				}
				if hi <= lo { // behind the end of the group: zeros
					f.dropPart(u)
					u.part, u.lo, u.hi = []byte{}, lo, lo
					continue
				}
				if u.part == nil || u.lo != lo || u.hi != hi {
					f.dropPart(u)
					u.lo, u.hi = lo, hi
					sources = append(sources, u)
				}
			}
		}
		if enough < l.Data {
			return errFew
		}
		asked := make([]*located, len(sources))
		for i, u := range sources {
			asked[i] = u.at
		}
		failures := f.readParts(sources, base)
		var failure error
		failed := false
		for _, refused := range [...]bool{false, true} { // tokens last: when they are renewed the datanodes may be others
			for i, err := range failures {
				if err == nil || refusedToken(err) != refused {
					continue
				}
				failed = true
				if err = f.lose(sources[i], asked[i], err); err != nil && failure == nil {
					failure = err
				}
				if failure != nil && refused {
					break
				}
			}
			if failure != nil {
				return failure
			}
		}
		if failed {
			continue
		}
		have, want := make([][]byte, len(f.units)), make([][]byte, len(f.units))
		for i := range f.units {
			u := &f.units[i]
			switch {
			case chosen[i]:
				lo, hi := min(max(lost.lo, u.lo), u.hi), min(lost.hi, u.hi)
				have[i] = u.part[lo-u.lo : max(hi, lo)-u.lo]
			case u.lost && wanted[i].hi > wanted[i].lo:
				f.dropPart(u)
				u.lo, u.hi = lost.lo, min(lost.hi, cellLength(i))
				u.part = f.r.c.cell(l.Cell)[:u.hi-u.lo]
				want[i] = u.part
			}
		}
		if err := f.coder.Reconstruct(have, want); err != nil {
			return &Error{Op: "read", Path: f.r.path, Kind: metadata.ErrIO, Message: fmt.Sprintf("block group %d: %v", int64(f.b.block.GetBlockId()), err)}
		}
		for i, w := range wanted[:l.Data] {
			if u := &f.units[i]; w.hi > w.lo {
				f.ready = append(f.ready, u.part[w.lo-u.lo:w.hi-u.lo])
			}
		}
		return nil
	}
}

// readParts reads the parts of a stripe from several datanodes at once. The errors are in the order of the sources.
func (f *groupFlow) readParts(sources []*unitFlow, base int64) []error {
	errs := make([]error, len(sources))
	var reading sync.WaitGroup
	for i, u := range sources {
		u.part = f.r.c.cell(f.g.layout.Cell)[:u.hi-u.lo]
		read := func() {
			for n := 0; n < len(u.part) && errs[i] == nil; {
				if errs[i] = f.seek(u, base+u.lo+int64(n), f.unitEnd(u.number(f), true)); errs[i] != nil {
					return
				}
				var data []byte
				if data, errs[i] = u.s.read(); errs[i] != nil {
					errs[i] = unexpected(errs[i])
					return
				}
				m := copy(u.part[n:], data)
				if m < len(data) {
					u.s.unread(data[m:])
				}
				n += m
			}
		}
		if i == len(sources)-1 {
			read()
		} else {
			reading.Go(read)
		}
	}
	reading.Wait()
	for i, err := range errs {
		if err != nil {
			f.dropPart(sources[i])
		}
	}
	return errs
}

// dropPart gives the buffer of a part back.
func (f *groupFlow) dropPart(u *unitFlow) {
	if cap(u.part) > 0 {
		f.r.c.putCell(u.part)
	}
	u.part = nil
}

// unread gives back what was not used of the bytes that read returned last.
func (f *groupFlow) unread(b []byte) {
	f.pos -= int64(len(b))
	if f.from != nil { // there may be more of the packet behind it
		f.from.s.unread(b)
		return
	}
	f.ready = append([][]byte{b}, f.ready...)
}

// settle ends the flow if it has nothing more to give.
func (f *groupFlow) settle() bool {
	if f.pos < f.end || len(f.ready) > 0 {
		return false
	}
	f.close()
	return true
}

// close lets go of all streams.
func (f *groupFlow) close() {
	f.ready = nil
	for i := range f.units {
		u := &f.units[i]
		f.part(u)
		f.dropPart(u)
	}
}
