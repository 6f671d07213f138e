package erasure

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
)

// times multiplies in GF(2^8) with the polynomial 0x11d, bit by bit.
func times(a, b byte) byte {
	sum, x := 0, int(a)
	for ; b > 0; b >>= 1 {
		if b&1 != 0 {
			sum ^= x
		}
		if x <<= 1; x > 0xff {
			x ^= 0x11d
		}
	}
	return byte(sum)
}

func inverse(a byte) byte {
	for b := 1; b < 256; b++ {
		if times(a, byte(b)) == 1 {
			return byte(b)
		}
	}
	panic("0 has no inverse")
}

// factors is the definition of the code: what data block j is multiplied by in parity block p.
func factors(p metadata.ErasurePolicy) [][]byte {
	rows := make([][]byte, p.Layout.Parity)
	for i := range rows {
		for j := range p.Layout.Data {
			if p.Codec == "xor" {
				rows[i] = append(rows[i], 1)
			} else {
				rows[i] = append(rows[i], inverse(byte(p.Layout.Data+i)^byte(j)))
			}
		}
	}
	return rows
}

// byDefinition is the parity of a stripe, byte by byte.
func byDefinition(p metadata.ErasurePolicy, data [][]byte) [][]byte {
	out := make([][]byte, p.Layout.Parity)
	for i, row := range factors(p) {
		out[i] = make([]byte, longest(data))
		for j, d := range data {
			for at, b := range d {
				out[i][at] ^= times(row[j], b)
			}
		}
	}
	return out
}

func built(t testing.TB, each func(p metadata.ErasurePolicy, c *Coder)) {
	for _, p := range metadata.ErasurePolicies() {
		if !p.Built() {
			continue
		}
		c, err := New(p)
		if err != nil {
			t.Fatal(err)
		}
		each(p, c)
	}
}

// cells are random ones of a stripe of so many bytes, with a small cell.
func cells(l stripe.Layout, group int64, seed uint64) [][]byte {
	random := rand.New(rand.NewPCG(seed, uint64(group)))
	out := make([][]byte, l.Data)
	for i := range out {
		out[i] = make([]byte, l.UnitLength(group, i))
		for j := range out[i] {
			out[i][j] = byte(random.Uint32())
		}
	}
	return out
}

func encoded(t testing.TB, c *Coder, data [][]byte) [][]byte {
	t.Helper()
	all := append([][]byte{}, data...)
	for range c.layout.Parity {
		all = append(all, make([]byte, longest(data)))
	}
	if err := c.Encode(all[:len(data)], all[len(data):]); err != nil {
		t.Fatal(err)
	}
	return all
}

// The factors as the definition gives them, and what Hadoop 3.4.3's RSRawEncoder and XORRawEncoder made of the same data: one byte in each cell, and 4,099.
func TestParityIsHadoops(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"RS-6-3-1024k":  "7aba47a78ef4" + "ba7aa747f48e" + "ad9ddd983daa",
		"XOR-2-1-1024k": "0101",
	} {
		p, _ := metadata.ErasurePolicyNamed(name)
		if got := hex.EncodeToString(bytes.Join(factors(p), nil)); got != want {
			t.Errorf("factors of %s: %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]struct{ small, sum string }{
		"RS-6-3-1024k":  {"d465d9", "f4b49a7f01a9627c4861afbddc78aea98f5af68c8c925595eaf83e3a491dec86"},
		"RS-3-2-1024k":  {"ac79", "07833ad663aa3098c430145029ce28892ebd258fbcfb0ca63add3d91b2d08a15"},
		"RS-10-4-1024k": {"6cb7c148", "adfb0f4c967c1d334091db966b9dca4b95fa52093f31b4720c8178fe2a60fbc9"},
		"XOR-2-1-1024k": {"27", "b9d204720b66cf610a03aa66d3b4648f72c69c5ec0781660bdaf66b4b1816593"},
	} {
		p, _ := metadata.ErasurePolicyNamed(name)
		c, err := New(p)
		if err != nil {
			t.Fatal(err)
		}
		small, large, x := make([][]byte, p.Layout.Data), make([][]byte, p.Layout.Data), uint32(1)
		for i := range small {
			small[i], large[i] = []byte{byte(1 + 37*i)}, make([]byte, 4099)
			for j := range large[i] {
				x = x*1103515245 + 12345
				large[i][j] = byte(x >> 16)
			}
		}
		if got := hex.EncodeToString(bytes.Join(encoded(t, c, small)[len(small):], nil)); got != want.small {
			t.Errorf("parity of %s: %s, want %s", name, got, want.small)
		}
		if got := sha256.Sum256(bytes.Join(encoded(t, c, large)[len(large):], nil)); hex.EncodeToString(got[:]) != want.sum {
			t.Errorf("parity of %s for cells of 4,099 bytes: %x, want %s", name, got, want.sum)
		}
	}
}

// Each factor by itself: the parity of a stripe whose only byte that is not 0 is a 1 is a column of the matrix.
func TestParityIsThatOfTheDefinition(t *testing.T) {
	t.Parallel()
	built(t, func(p metadata.ErasurePolicy, c *Coder) {
		for j := range p.Layout.Data {
			data := make([][]byte, p.Layout.Data)
			for i := range data {
				data[i] = make([]byte, 256)
			}
			for b := range 256 {
				data[j][b] = byte(b)
			}
			want := byDefinition(p, data)
			for i, got := range encoded(t, c, data)[p.Layout.Data:] {
				if !bytes.Equal(got, want[i]) {
					t.Errorf("%s: data block %d in parity block %d: %x, want %x", p.Name, j, i, got, want[i])
				}
			}
		}
	})
}

// Every loss that a policy survives, in a full stripe and in short ones; one more is refused.
func TestEveryLossIsMended(t *testing.T) {
	t.Parallel()
	built(t, func(p metadata.ErasurePolicy, c *Coder) {
		small := p.Layout
		small.Cell = 24
		for _, group := range []int64{1, 23, 24, 25, small.Stripe() - 25, small.Stripe() - 1, small.Stripe()} {
			data := cells(small, group, uint64(p.ID))
			all := encoded(t, c, data)
			for i, want := range byDefinition(p, data) {
				if !bytes.Equal(all[p.Layout.Data+i], want) {
					t.Fatalf("%s, %d bytes: parity block %d: %x, want %x", p.Name, group, i, all[p.Layout.Data+i], want)
				}
			}
			for lost := range uint32(1) << p.Layout.Units() {
				if n := bits.OnesCount32(lost); n > p.Layout.Parity+1 {
					continue
				}
				have, want := make([][]byte, len(all)), make([][]byte, len(all))
				for i := range all {
					if lost&(1<<i) == 0 {
						have[i] = all[i]
					} else {
						want[i] = make([]byte, len(all[i]))
					}
				}
				err := c.Reconstruct(have, want)
				if bits.OnesCount32(lost) > p.Layout.Parity {
					if !errors.Is(err, ErrTooFew) {
						t.Fatalf("%s, %d bytes, lost %b: %v", p.Name, group, lost, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s, %d bytes, lost %b: %v", p.Name, group, lost, err)
				}
				for i, got := range want {
					if got != nil && !bytes.Equal(got, all[i]) {
						t.Fatalf("%s, %d bytes, lost %b: block %d is %x, want %x", p.Name, group, lost, i, got, all[i])
					}
				}
			}
		}
	})
}

// Cells of HDFS's size, coded by parts; only some of what is lost is asked for, and a part of the cells at a time.
func TestCellsOfRealSize(t *testing.T) {
	t.Parallel()
	built(t, func(p metadata.ErasurePolicy, c *Coder) {
		data := cells(p.Layout, 2*p.Layout.Cell-12345, 7)
		all := encoded(t, c, data)
		for i, want := range byDefinition(p, [][]byte{data[0], data[1]}[:min(2, len(data))]) {
			if !bytes.Equal(all[p.Layout.Data+i], want) {
				t.Errorf("%s: parity block %d differs", p.Name, i)
			}
		}
		have, want := make([][]byte, len(all)), make([][]byte, len(all))
		const from, to = 100_000, 300_000
		for i := range all {
			if i != 1 {
				have[i] = all[i][min(from, len(all[i])):min(to, len(all[i]))]
			}
		}
		want[1] = make([]byte, to-from)
		if p.Layout.Parity > 1 {
			have[0] = nil // lost, and nobody asks
		}
		if err := c.Reconstruct(have, want); err != nil || !bytes.Equal(want[1], data[1][from:to]) {
			t.Errorf("%s: the middle of a cell is not what it was: %v", p.Name, err)
		}
	})
}

func FuzzReconstruct(f *testing.F) {
	f.Add(uint8(0), uint32(70_000), uint32(1), uint64(1))
	f.Add(uint8(1), uint32(1<<19), uint32(6), uint64(2))
	f.Add(uint8(2), uint32(12), uint32(0xf), uint64(3))
	f.Add(uint8(3), uint32(1<<17+3), uint32(4), uint64(4))
	var policies []metadata.ErasurePolicy
	var coders []*Coder
	built(f, func(p metadata.ErasurePolicy, c *Coder) { policies, coders = append(policies, p), append(coders, c) })
	f.Fuzz(func(t *testing.T, which uint8, size, lost uint32, seed uint64) {
		p, c := policies[int(which)%len(policies)], coders[int(which)%len(policies)]
		l := p.Layout
		l.Cell = 1 + int64(seed%(100<<10))
		data := cells(l, int64(size)%(l.Stripe()+1), seed)
		all := encoded(t, c, data)
		have, want := make([][]byte, len(all)), make([][]byte, len(all))
		left := 0
		for i := range all {
			if lost&(1<<i) == 0 {
				have[i] = append([]byte{}, all[i]...)
				left++
			} else if seed&(1<<i) == 0 {
				want[i] = make([]byte, len(all[i]))
			}
		}
		switch err := c.Reconstruct(have, want); {
		case left < l.Data:
			if !errors.Is(err, ErrTooFew) && longest(all) > 0 && !errors.Is(err, ErrShape) {
				t.Fatalf("%d of %d left: %v", left, len(all), err)
			}
		case err != nil:
			if longest(have) == longest(all) || longest(want) == longest(all) {
				t.Fatal(err)
			}
		default:
			for i := range all {
				if want[i] != nil && !bytes.Equal(want[i], all[i]) || have[i] != nil && !bytes.Equal(have[i], all[i]) {
					t.Fatalf("block %d differs", i)
				}
			}
		}
	})
}

func TestMistakesAreRefused(t *testing.T) {
	t.Parallel()
	p, _ := metadata.ErasurePolicyNamed("RS-3-2-1024k")
	c, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	b := func(n int) []byte { return make([]byte, n) }
	for what, err := range map[string]error{
		"too few data cells":                 c.Encode([][]byte{b(1), b(1)}, [][]byte{b(1), b(1)}),
		"too few parity cells":               c.Encode([][]byte{b(1), b(1), b(1)}, [][]byte{b(1)}),
		"a short parity cell":                c.Encode([][]byte{b(2), b(1), b(1)}, [][]byte{b(2), b(1)}),
		"too few blocks":                     c.Reconstruct(make([][]byte, 4), make([][]byte, 4)),
		"a block that is there and wanted":   c.Reconstruct([][]byte{b(2), b(2), b(2), nil, nil}, [][]byte{b(2), nil, nil, nil, nil}),
		"a parity cell that was cut":         c.Reconstruct([][]byte{nil, b(2), b(2), b(1), nil}, [][]byte{b(2), nil, nil, nil, nil}),
		"a parity cell that is asked to cut": c.Reconstruct([][]byte{b(2), b(2), b(2), nil, nil}, [][]byte{nil, nil, nil, b(1), nil}),
		"a data cell that is too long":       c.Reconstruct([][]byte{nil, b(2), b(3), b(2), nil}, [][]byte{b(2), nil, nil, nil, nil}),
	} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", what, err)
		}
	}
	legacy, _ := metadata.ErasurePolicyNamed("RS-LEGACY-6-3-1024k")
	if _, err := New(legacy); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("rs-legacy: %v", err)
	}
	if _, err := New(metadata.ErasurePolicy{Name: "none"}); err == nil {
		t.Error("a policy of no blocks is taken")
	}
}

func BenchmarkEncode(b *testing.B) {
	built(b, func(p metadata.ErasurePolicy, c *Coder) {
		b.Run(p.Name, func(b *testing.B) {
			data := cells(p.Layout, p.Layout.Stripe(), 1)
			all := encoded(b, c, data)
			b.SetBytes(p.Layout.Stripe())
			for b.Loop() {
				if err := c.Encode(all[:p.Layout.Data], all[p.Layout.Data:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

func BenchmarkReconstruct(b *testing.B) {
	built(b, func(p metadata.ErasurePolicy, c *Coder) {
		b.Run(p.Name, func(b *testing.B) {
			all := encoded(b, c, cells(p.Layout, p.Layout.Stripe(), 1))
			want := make([][]byte, len(all))
			for i := range p.Layout.Parity {
				want[i], all[i] = make([]byte, p.Layout.Cell), nil
			}
			b.SetBytes(p.Layout.Stripe())
			for b.Loop() {
				if err := c.Reconstruct(all, want); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
