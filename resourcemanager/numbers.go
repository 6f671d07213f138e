package resourcemanager

// MaxNumber bounds the numbers of a Numbers: a command has no more instances.
const MaxNumber = 10_000

// Numbers is a set of numbers from 0 to below MaxNumber, a bit each; nil is empty. It is not changed in place.
type Numbers []byte

// Has reports whether a number is in the set.
func (s Numbers) Has(n int) bool { return n >= 0 && n/8 < len(s) && s[n/8]&(1<<(n%8)) != 0 }

// With returns the set with one number more; one that is out of range is left out.
func (s Numbers) With(n int) Numbers {
	if n < 0 || n >= MaxNumber || s.Has(n) {
		return s
	}
	out := make(Numbers, max(len(s), n/8+1))
	copy(out, s)
	out[n/8] |= 1 << (n % 8)
	return out
}

// List lists the numbers, the smallest first.
func (s Numbers) List() []int32 {
	var out []int32
	for n := range 8 * len(s) {
		if s.Has(n) {
			out = append(out, int32(n))
		}
	}
	return out
}
