// Package stripe is the arithmetic of HDFS's striped layout: where a byte of a block group lies, and how long the group's internal blocks are.
//
// A group has Data internal blocks with data, numbered from 0, and behind them Parity ones. Its bytes go round the data blocks in cells:
//
//	          block 0   block 1   block 2 │ block 3   block 4        RS-3-2, a group of 6 cells and a bit
//	stripe 0  cell 0    cell 1    cell 2  │ parity    parity
//	stripe 1  cell 3    cell 4    cell 5  │ parity    parity
//	stripe 2  cell 6 ½  -         -       │ parity½   parity½
//
// Only the last stripe may be short. Its cells count as filled up with zeros, which nobody stores; a parity cell is as long as the stripe's
// first one, which is the longest.
package stripe

import "fmt"

// Layout is the shape of a group.
type Layout struct {
	// Data and Parity count the internal blocks.
	Data, Parity int
	// Cell is the length of a cell in bytes.
	Cell int64
}

// MaxUnits is how many internal blocks a group has at most: their numbers are the four low bits of block ids.
const MaxUnits = 16

// Validate says what is wrong with a layout.
func (l Layout) Validate() error {
	switch {
	case l.Data < 1 || l.Parity < 1 || l.Data+l.Parity > MaxUnits:
		return fmt.Errorf("a group of %d data and %d parity blocks: at least 1 of each and %d together are possible", l.Data, l.Parity, MaxUnits)
	case l.Cell < 1 || l.Cell > 1<<30:
		return fmt.Errorf("a cell of %d bytes: 1 to %d are possible", l.Cell, 1<<30)
	}
	return nil
}

// Units is the number of internal blocks.
func (l Layout) Units() int { return l.Data + l.Parity }

// Stripe is how many bytes of data a full stripe has.
func (l Layout) Stripe() int64 { return int64(l.Data) * l.Cell }

// UnitLength is how long internal block i is in a group with so many bytes of data (StripedBlockUtil.getInternalBlockLength).
func (l Layout) UnitLength(group int64, i int) int64 {
	full, rest := group/l.Stripe(), group%l.Stripe()
	if i < l.Data {
		rest -= int64(i) * l.Cell
	}
	return full*l.Cell + min(max(rest, 0), l.Cell)
}

// Span is how long the longest internal blocks are, the parity ones among them.
func (l Layout) Span(group int64) int64 { return l.UnitLength(group, 0) }

// Used is how many of the internal blocks have any bytes.
func (l Layout) Used(group int64) int {
	if group <= 0 {
		return 0
	}
	return int(min((group+l.Cell-1)/l.Cell, int64(l.Data))) + l.Parity
}

// Space is how many bytes all internal blocks take together (StripedBlockUtil.spaceConsumedByStripedBlock).
func (l Layout) Space(group int64) int64 { return group + int64(l.Parity)*l.Span(group) }

// Capacity is how many bytes of data a group of internal blocks of a length has room for.
func (l Layout) Capacity(block int64) int64 { return block * int64(l.Data) }

// At is where a byte of the group lies: in which internal block, and where in it.
func (l Layout) At(offset int64) (unit int, within int64) {
	cell := offset / l.Cell
	return int(cell % int64(l.Data)), cell/int64(l.Data)*l.Cell + offset%l.Cell
}

// Offset is which byte of the group lies in a data block at a place. At is its inverse.
func (l Layout) Offset(unit int, within int64) int64 {
	return within/l.Cell*l.Stripe() + int64(unit)*l.Cell + within%l.Cell
}

// Piece is a part of a cell.
type Piece struct {
	// Unit is the internal block, and Within the place in it.
	Unit   int
	Within int64
	// Offset is the place in the group.
	Offset int64
	Length int64
}

// Pieces are the parts of cells that n bytes of the group from offset on consist of, in order.
func (l Layout) Pieces(offset, n int64) func(yield func(Piece) bool) {
	return func(yield func(Piece) bool) {
		for n > 0 {
			unit, within := l.At(offset)
			length := min(n, l.Cell-offset%l.Cell)
			if !yield(Piece{unit, within, offset, length}) {
				return
			}
			offset, n = offset+length, n-length
		}
	}
}

// Safe is how many bytes of data a group surely has whose internal blocks were found with these lengths, -1 for one that was not: those of the
// stripes of which at least Data cells are whole (StripedBlockUtil.getSafeLength). The lengths are in the order of the blocks.
func (l Layout) Safe(lengths []int64) int64 {
	// The Data-th longest block decides.
	for full := int64(-1); ; {
		next, enough := int64(-1), 0
		for _, n := range lengths {
			if cells := n / l.Cell; n >= 0 && cells > full {
				enough++
				if next < 0 || cells < next {
					next = cells
				}
			}
		}
		if enough < l.Data {
			return max(full, 0) * l.Stripe()
		}
		full = next
	}
}
