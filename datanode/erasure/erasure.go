// Package erasure computes parity as HDFS does, and what is lost of a group from what is left.
//
// Reed-Solomon is over GF(2^8) with the polynomial x^8+x^4+x^3+x^2+1 (0x11d). Parity row p, counted from the number k of data blocks on, multiplies
// data block j by the inverse of p xor j: a Cauchy matrix below the identity, that of ISA-L's gf_gen_cauchy1_matrix, which Hadoop's Java and native
// coders share (RSUtil.genCauchyMatrix). XOR is the sum of all data. The tests derive both from these definitions.
package erasure

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/klauspost/reedsolomon"

	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
)

// Errors that callers tell apart.
var (
	// ErrTooFew: too many of a group's internal blocks are lost.
	ErrTooFew = errors.New("too few internal blocks of the group are left")
	// ErrShape: buffers that are no part of one stripe. It is a mistake of the caller, or of who stored them.
	ErrShape = errors.New("not cells of one stripe")
)

// Coder codes and decodes for one policy. Its methods may be called at the same time, keep nothing, and use the calling goroutine only.
type Coder struct {
	layout stripe.Layout
	code   reedsolomon.Encoder
}

// slice is how much of each cell is coded at a time: all inputs and outputs of it fit a processor's cache.
const slice = 64 << 10

// nothing stands for the zeros behind the end of a short cell. Nobody writes to it.
var nothing [slice]byte

// New is the coder of a policy. It costs some microseconds; keep it. Errors: metadata.ErrUnsupported for a code that is not built.
func New(p metadata.ErasurePolicy) (*Coder, error) {
	if err := p.Layout.Validate(); err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	options := []reedsolomon.Option{reedsolomon.WithMaxGoroutines(1)}
	switch {
	case p.Codec == "rs":
		options = append(options, reedsolomon.WithCauchyMatrix())
	case p.Codec == "xor" && p.Layout.Parity == 1:
		sum := make([]byte, p.Layout.Data)
		for i := range sum {
			sum[i] = 1
		}
		options = append(options, reedsolomon.WithCustomMatrix([][]byte{sum}))
	default:
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the code %s with %d data and %d parity blocks (policy %s) is not supported", p.Codec, p.Layout.Data, p.Layout.Parity, p.Name)
	}
	code, err := reedsolomon.New(p.Layout.Data, p.Layout.Parity, options...)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	return &Coder{p.Layout, code}, nil
}

// Layout is the shape of the groups.
func (c *Coder) Layout() stripe.Layout { return c.layout }

// Encode computes the parity of a stripe, or of the same part of each of its cells. Data has all data cells; what one is shorter than the longest
// counts as zeros. Each of the parity buffers is as long as the longest. Errors: ErrShape.
func (c *Coder) Encode(data, parity [][]byte) error {
	if len(data) != c.layout.Data || len(parity) != c.layout.Parity {
		return fmt.Errorf("%d data and %d parity cells for RS of %d and %d: %w", len(data), len(parity), c.layout.Data, c.layout.Parity, ErrShape)
	}
	span := longest(data)
	for i, p := range parity {
		if len(p) != span {
			return fmt.Errorf("parity cell %d has %d bytes, the longest data cell %d: %w", i, len(p), span, ErrShape)
		}
	}
	units := make([][]byte, c.layout.Units())
	for at := 0; at < span; {
		n := part(data, at, span)
		for i, d := range data {
			units[i] = input(d, at, n)
		}
		for i, p := range parity {
			units[c.layout.Data+i] = p[at : at+n]
		}
		if err := c.code.Encode(units); err != nil {
			return fmt.Errorf("encoding: %w", err)
		}
		at += n
	}
	return nil
}

// Reconstruct computes lost cells of a stripe, or the same part of each, from others. Both lists have an element for each internal block of the
// group. Have has what is there, and nil for what is not. A data cell counts as filled up with zeros, so one behind the end of the group is there
// and empty, and worth as much as a full one; a parity cell is as long as the longest of all. Want has a buffer, of the length that the cell has,
// for each one to be computed, and nil else.
//
// Errors: ErrTooFew when fewer are there than the policy has data blocks; ErrShape. Nothing was written then.
func (c *Coder) Reconstruct(have, want [][]byte) error {
	if len(have) != c.layout.Units() || len(want) != c.layout.Units() {
		return fmt.Errorf("%d and %d cells for %d internal blocks: %w", len(have), len(want), c.layout.Units(), ErrShape)
	}
	span, there, asked := max(longest(have), longest(want)), uint32(0), uint32(0)
	for i := range have {
		if have[i] != nil {
			there |= 1 << i
		}
		if want[i] != nil {
			asked |= 1 << i
		}
		for _, cell := range [][]byte{have[i], want[i]} {
			if i >= c.layout.Data && cell != nil && len(cell) != span {
				return fmt.Errorf("parity cell %d has %d bytes, the longest cell %d: %w", i-c.layout.Data, len(cell), span, ErrShape)
			}
		}
	}
	switch {
	case there&asked != 0:
		return fmt.Errorf("internal block %d is there and asked for: %w", bits.TrailingZeros32(there&asked), ErrShape)
	case bits.OnesCount32(there) < c.layout.Data:
		return fmt.Errorf("%d of %d are there, %d are needed: %w", bits.OnesCount32(there), c.layout.Units(), c.layout.Data, ErrTooFew)
	}
	units, required := make([][]byte, len(have)), make([]bool, len(have))
	for at := 0; at < span; {
		n := part(want, at, part(have, at, span)+at)
		for i := range units {
			units[i], required[i] = nil, false
			switch {
			case have[i] != nil:
				units[i] = input(have[i], at, n)
			case len(want[i]) > at:
				// Of length 0, with room: the library writes there.
				units[i], required[i] = want[i][at:at:at+n], true
			}
		}
		if err := c.code.ReconstructSome(units, required); err != nil {
			return fmt.Errorf("decoding: %w", err)
		}
		at += n
	}
	return nil
}

func longest(cells [][]byte) int {
	n := 0
	for _, c := range cells {
		n = max(n, len(c))
	}
	return n
}

// part is how much can be coded at once from at on: up to the next end of a cell, end at the latest.
func part(cells [][]byte, at, end int) int {
	n := min(end-at, slice)
	for _, c := range cells {
		if len(c) > at {
			n = min(n, len(c)-at)
		}
	}
	return n
}

// input is a part of a cell, or the zeros behind its end.
func input(cell []byte, at, n int) []byte {
	if len(cell) <= at {
		return nothing[:n]
	}
	return cell[at : at+n]
}
