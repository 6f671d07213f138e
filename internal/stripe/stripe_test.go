package stripe

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var layouts = []Layout{{6, 3, 1 << 20}, {3, 2, 1 << 20}, {10, 4, 1 << 20}, {2, 1, 1 << 20}, {3, 2, 7}, {1, 1, 1}, {8, 8, 3}}

// spread deals the bytes of a group out one after the other, as the picture says.
func spread(l Layout, group int64) (lengths []int64, at func(int64) (int, int64)) {
	lengths = make([]int64, l.Units())
	units, places := make([]int, group), make([]int64, group)
	for o := range group {
		u := int(o / l.Cell % int64(l.Data))
		units[o], places[o] = u, lengths[u]
		lengths[u]++
	}
	longest := slices.Max(lengths[:l.Data])
	for p := l.Data; p < l.Units(); p++ {
		lengths[p] = longest
	}
	return lengths, func(o int64) (int, int64) { return units[o], places[o] }
}

func TestLayoutDealsBytesOut(t *testing.T) {
	t.Parallel()
	for _, l := range layouts[4:] {
		for group := range 4 * l.Stripe() {
			lengths, at := spread(l, group)
			sum, used := int64(0), 0
			for i, want := range lengths {
				if got := l.UnitLength(group, i); got != want {
					t.Fatalf("%+v, %d bytes: block %d has %d bytes, want %d", l, group, i, got, want)
				}
				sum += want
				if want > 0 {
					used++
				}
			}
			if got := l.Space(group); got != sum {
				t.Errorf("%+v, %d bytes: take %d, want %d", l, group, got, sum)
			}
			if got := l.Used(group); got != used {
				t.Errorf("%+v, %d bytes: %d blocks have any, want %d", l, group, got, used)
			}
			for o := range group {
				unit, within := at(o)
				if u, w := l.At(o); u != unit || w != within {
					t.Fatalf("%+v: byte %d is byte %d of block %d, want %d of %d", l, o, w, u, within, unit)
				}
				if back := l.Offset(unit, within); back != o {
					t.Fatalf("%+v: byte %d of block %d is byte %d of the group, want %d", l, within, unit, back, o)
				}
			}
		}
	}
}

// Figures by hand for HDFS's default policy, beyond 2 GiB too, where Java's own arithmetic of ints would end.
func TestLengthsOfHDFSDefaultPolicy(t *testing.T) {
	t.Parallel()
	const M = 1 << 20
	l := layouts[0]
	for _, c := range []struct {
		group int64
		want  [9]int64
	}{
		{0, [9]int64{}},
		{1, [9]int64{1, 0, 0, 0, 0, 0, 1, 1, 1}},
		{M + 5, [9]int64{M, 5, 0, 0, 0, 0, M, M, M}},
		{6 * M, [9]int64{M, M, M, M, M, M, M, M, M}},
		{6*M + 1, [9]int64{M + 1, M, M, M, M, M, M + 1, M + 1, M + 1}},
		{6*256*M + 2*M + 9, [9]int64{257 * M, 257 * M, 256*M + 9, 256 * M, 256 * M, 256 * M, 257 * M, 257 * M, 257 * M}},
		{6 * 1024 * M, [9]int64{1024 * M, 1024 * M, 1024 * M, 1024 * M, 1024 * M, 1024 * M, 1024 * M, 1024 * M, 1024 * M}},
	} {
		for i, want := range c.want {
			if got := l.UnitLength(c.group, i); got != want {
				t.Errorf("block %d of a group of %d bytes: %d, want %d", i, c.group, got, want)
			}
		}
	}
	if got := l.Safe([]int64{1024*M + 5, 1024 * M, -1, 1024 * M, 1024 * M, 1024 * M, 1025 * M, 3, -1}); got != 6*1024*M {
		t.Errorf("safe length %d", got)
	}
}

func TestPiecesCoverTheRange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(layouts).Draw(t, "layout")
		from := rapid.Int64Range(0, 5*l.Stripe()).Draw(t, "from")
		n := rapid.Int64Range(0, 3*l.Stripe()).Draw(t, "bytes")
		at := from
		for p := range l.Pieces(from, n) {
			if p.Offset != at || p.Length < 1 || p.Offset/l.Cell != (p.Offset+p.Length-1)/l.Cell {
				t.Fatalf("piece %+v at %d", p, at)
			}
			if u, w := l.At(p.Offset); u != p.Unit || w != p.Within {
				t.Fatalf("piece %+v lies in %d at %d", p, u, w)
			}
			at += p.Length
		}
		if at != from+n {
			t.Fatalf("pieces end at %d, want %d", at, from+n)
		}
	})
}

func TestSafeLengthIsWholeStripesThatCanBeRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(layouts).Draw(t, "layout")
		lengths := rapid.SliceOfN(rapid.Int64Range(-1, 4*l.Cell), l.Units(), l.Units()).Draw(t, "lengths")
		stripes := int64(0)
		for {
			have := 0
			for _, n := range lengths {
				if n >= (stripes+1)*l.Cell {
					have++
				}
			}
			if have < l.Data {
				break
			}
			stripes++
		}
		if got := l.Safe(lengths); got != stripes*l.Stripe() {
			t.Fatalf("%+v, %v: %d, want %d stripes", l, lengths, got, stripes)
		}
	})
}

func TestImpossibleLayouts(t *testing.T) {
	t.Parallel()
	for _, l := range []Layout{{}, {0, 1, 1}, {1, 0, 1}, {13, 4, 1}, {6, 3, 0}, {6, 3, -1}, {6, 3, 1<<30 + 1}, {-1, 3, 5}} {
		if l.Validate() == nil {
			t.Errorf("%+v is taken", l)
		}
	}
	for _, l := range layouts {
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
	}
}
