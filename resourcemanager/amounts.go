package resourcemanager

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// MaxAmounts bounds the resources that one node or one container has beside memory, vcores and GPUs.
const MaxAmounts = 16

// Amounts are counts of resources beside memory, vcores and GPUs: what the configuration of a node manager says that its machine has.
// YARN calls them resource types. They can be compared with ==, and the zero value is none; an amount of zero is the same as none.
type Amounts struct{ text string } // name=amount, in the order of names, with commas

type amount struct {
	name string
	n    int64
}

func (a Amounts) list() []amount {
	if a.text == "" {
		return nil
	}
	parts := strings.Split(a.text, ",")
	out := make([]amount, len(parts))
	for i, p := range parts {
		name, digits, _ := strings.Cut(p, "=")
		n, _ := strconv.ParseInt(digits, 10, 64)
		out[i] = amount{name, n}
	}
	return out
}

func amountsOf(list []amount) Amounts {
	var b strings.Builder
	for _, a := range list {
		if a.n == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.name)
		b.WriteByte('=')
		b.WriteString(strconv.FormatInt(a.n, 10))
	}
	return Amounts{b.String()}
}

// NewAmounts takes amounts by name.
//
// Error: metadata.ErrInvalidArgument for a name that is none, see ValidResourceName, or that of a resource which is no other; for an
// amount below 0; and for more than MaxAmounts.
func NewAmounts(byName map[string]int64) (Amounts, error) {
	if len(byName) > MaxAmounts {
		return Amounts{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d resources beside memory, vcores and GPUs: at most %d", len(byName), MaxAmounts)
	}
	var list []amount
	for name, n := range byName {
		switch {
		case !ValidResourceName(name):
			return Amounts{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.100q is no name of a resource: up to 64 letters, digits, '.', '_', '-', and one '/' after a prefix", name)
		case slices.Contains(builtIn, name):
			return Amounts{}, metadata.Errorf(metadata.ErrInvalidArgument, "%s has a field of its own and is none of the other resources", name)
		case n < 0 || n > math.MaxInt32:
			return Amounts{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d of %s is not between 0 and %d", n, name, math.MaxInt32)
		}
		list = append(list, amount{name, n})
	}
	slices.SortFunc(list, func(a, b amount) int { return cmp.Compare(a.name, b.name) })
	return amountsOf(list), nil
}

// builtIn are the names that Resource has fields for, and those by which people know these.
var builtIn = []string{MemoryName, VCoresName, GPUName, "memory", "gpu", "gpus"}

// ValidResourceName reports whether a name can be that of a resource: as YARN's, a name with or without a prefix, such as fpga or
// example.com/fpga.
func ValidResourceName(s string) bool {
	prefix, name, ok := strings.Cut(s, "/")
	if !ok {
		return validResourceWord(s)
	}
	return validResourceWord(prefix) && validResourceWord(name)
}

func validResourceWord(s string) bool {
	if s == "" || len(s) > 64 || !isAlphanumeric(rune(s[0])) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !isAlphanumeric(r) && r != '.' && r != '_' && r != '-' })
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// All yields the amounts that are not zero, in the order of names.
func (a Amounts) All() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, x := range a.list() {
			if !yield(x.name, x.n) {
				return
			}
		}
	}
}

// Get is how much there is of a resource; 0: none.
func (a Amounts) Get(name string) int64 {
	for _, x := range a.list() {
		if x.name == name {
			return x.n
		}
	}
	return 0
}

// Map is all amounts by name; nil when there are none.
func (a Amounts) Map() map[string]int64 {
	if a.text == "" {
		return nil
	}
	out := map[string]int64{}
	for name, n := range a.All() {
		out[name] = n
	}
	return out
}

// IsZero reports whether there are none.
func (a Amounts) IsZero() bool { return a.text == "" }

// merge joins two lists by name.
func (a Amounts) merge(b Amounts, f func(x, y int64) int64) Amounts {
	x, y := a.list(), b.list()
	var out []amount
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0].name < y[0].name:
			out = append(out, amount{x[0].name, f(x[0].n, 0)})
			x = x[1:]
		case len(x) == 0 || y[0].name < x[0].name:
			out = append(out, amount{y[0].name, f(0, y[0].n)})
			y = y[1:]
		default:
			out = append(out, amount{x[0].name, f(x[0].n, y[0].n)})
			x, y = x[1:], y[1:]
		}
	}
	return amountsOf(out)
}

// Add returns a + b.
func (a Amounts) Add(b Amounts) Amounts {
	switch {
	case b.text == "":
		return a
	case a.text == "":
		return b
	}
	return a.merge(b, func(x, y int64) int64 { return x + y })
}

// Sub returns a - b; amounts may become negative.
func (a Amounts) Sub(b Amounts) Amounts {
	if b.text == "" {
		return a
	}
	return a.merge(b, func(x, y int64) int64 { return x - y })
}

// Times returns n * a.
func (a Amounts) Times(n int) Amounts {
	if a.text == "" {
		return a
	}
	return a.merge(Amounts{}, func(x, _ int64) int64 { return x * int64(n) })
}

// Max returns the larger of each amount.
func (a Amounts) Max(b Amounts) Amounts {
	if a == b || b.text == "" && !a.negative() {
		return a
	}
	return a.merge(b, func(x, y int64) int64 { return max(x, y) })
}

// FitsIn reports whether every amount of a is at most that of b.
func (a Amounts) FitsIn(b Amounts) bool {
	if a.text == "" && !b.negative() {
		return true
	}
	fits := true
	a.merge(b, func(x, y int64) int64 {
		fits = fits && x <= y
		return 0
	})
	return fits
}

func (a Amounts) negative() bool { return strings.Contains(a.text, "=-") }
