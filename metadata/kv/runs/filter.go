package runs

import (
	"encoding/binary"
	"math/bits"
)

// filter is a Bloom filter over the keys of a run: ten bits a key and six probes, so that one absent key in a hundred
// is looked for in vain.
type filter []byte

const (
	bitsPerKey = 10
	probes     = 6
)

func newFilter(keys uint64) filter { return make(filter, keys*bitsPerKey/8+8) }

func (f filter) set(h uint64) {
	step := bits.RotateLeft64(h, 31) | 1
	for range probes {
		bit, _ := bits.Mul64(h, uint64(len(f))*8)
		f[bit>>3] |= 1 << (bit & 7)
		h += step
	}
}

func (f filter) has(h uint64) bool {
	if len(f) == 0 {
		return true
	}
	step := bits.RotateLeft64(h, 31) | 1
	for range probes {
		bit, _ := bits.Mul64(h, uint64(len(f))*8)
		if f[bit>>3]&(1<<(bit&7)) == 0 {
			return false
		}
		h += step
	}
	return true
}

// hash is stable: filters lie on disk. It folds eight bytes at a time by 128-bit multiplication (after wyhash).
func hash(b []byte) uint64 {
	h := 0x9e3779b97f4a7c15 ^ uint64(len(b))
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h^binary.LittleEndian.Uint64(b), 0xa0761d6478bd642f)
	}
	var tail uint64
	for i, c := range b {
		tail |= uint64(c) << (8 * i)
	}
	return mix(mix(h^tail, 0xe7037ed1a0b428db), 0x8ebc6af09c88c6e3)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
