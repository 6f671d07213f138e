package resourcemanager

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// drawn is some amounts, also as the map that they are compared with.
func drawn(r *rand.Rand) (Amounts, map[string]int64) {
	m := map[string]int64{}
	for _, name := range []string{"a", "b", "example.com/c"} {
		if n := r.Int64N(4); n > 0 {
			m[name] = n
		}
	}
	a, err := NewAmounts(m)
	if err != nil {
		panic(err)
	}
	return a, m
}

func TestAmountsAreAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a, x := drawn(r)
		b, y := drawn(r)
		each := func(what string, got Amounts, f func(x, y int64) int64) {
			t.Helper()
			want := map[string]int64{}
			for _, name := range []string{"a", "b", "example.com/c"} {
				if n := f(x[name], y[name]); n != 0 {
					want[name] = n
				}
			}
			if have := got.Map(); !maps.Equal(have, want) {
				t.Fatalf("%v %s %v: %v, want %v", x, what, y, have, want)
			}
		}
		each("+", a.Add(b), func(x, y int64) int64 { return x + y })
		each("-", a.Sub(b), func(x, y int64) int64 { return x - y })
		each("max", a.Max(b), func(x, y int64) int64 { return max(x, y) })
		each("*", a.Times(3), func(x, _ int64) int64 { return 3 * x })
		fits := true
		for name := range x {
			fits = fits && x[name] <= y[name]
		}
		if a.FitsIn(b) != fits || (a == b) != maps.Equal(x, y) || !a.Sub(a).IsZero() || a.Sub(b).Add(b) != a {
			t.Fatalf("%v and %v: fits %v, equal %v", x, y, a.FitsIn(b), a == b)
		}
		if !fits && a.Sub(b).FitsIn(Amounts{}) || a.Sub(b).Max(Amounts{}).FitsIn(Amounts{}) != fits {
			t.Fatalf("%v - %v and nothing", x, y)
		}
	}
}

func TestAmountsThatAreNone(t *testing.T) {
	for _, bad := range []map[string]int64{
		{"": 1},
		{"a b": 1},
		{"a=1": 1},
		{"a,b": 1},
		{"a/b/c": 1},
		{"/a": 1},
		{"vcores": 1},
		{"yarn.io/gpu": 1},
		{"memory-mb": 1},
		{"gpus": 1},
		{"a": -1},
		{"a": 1 << 40},
		{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "j": 1, "k": 1, "l": 1, "m": 1, "n": 1, "o": 1, "p": 1, "q": 1},
	} {
		if a, err := NewAmounts(bad); err == nil {
			t.Errorf("%v: %v", bad, a)
		}
	}
	if a, err := NewAmounts(map[string]int64{"fpga": 0}); err != nil || a != (Amounts{}) {
		t.Error(a, err)
	}
	r := Resource{Memory: 512 * MiB, VCores: 1}
	r.Other, _ = NewAmounts(map[string]int64{"fpga": 2, "example.com/nic": 1})
	if got := r.String(); got != "<memory:512, vCores:1, example.com/nic: 1, fpga: 2>" {
		t.Error(got)
	}
}
