package metadata

import (
	"fmt"
	"io"
)

// BlockKey is one of the keys of a cluster that sign block tokens. IDs count up and are never used again.
type BlockKey struct {
	ID   int32
	Seed KeySeed
}

// KeySeed is what a key is derived from, together with the cluster's secret. It never shows itself: neither in what is
// formatted, nor in what is marshalled as text or JSON.
type KeySeed string

// KeySeedSize is the size of a seed, in bytes.
const KeySeedSize = 32

const hiddenSeed = "(hidden)"

// Format implements fmt.Formatter, for every verb.
func (KeySeed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenSeed) }

// MarshalText implements encoding.TextMarshaler.
func (KeySeed) MarshalText() ([]byte, error) { return []byte(hiddenSeed), nil }
