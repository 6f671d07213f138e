package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. In text it is a plain number or one with a unit: 128MiB, 64k, 1g. Units are powers of
// 1024, as Hadoop reads them.
type Size int64

var units = []struct {
	suffix string
	bytes  Size
}{{"E", 1 << 60}, {"P", 1 << 50}, {"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}

// ParseSize reads a size.
func ParseSize(text string) (Size, error) {
	s := strings.ToUpper(strings.TrimSpace(text))
	if rest, ok := strings.CutSuffix(s, "IB"); ok {
		s = rest
	} else {
		s = strings.TrimSuffix(s, "B")
	}
	factor := Size(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 0 || n*float64(factor) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size (examples: 134217728, 128MiB, 1g)", text)
	}
	if whole, err := strconv.ParseInt(s, 10, 64); err == nil {
		return Size(whole) * factor, nil
	}
	return Size(n * float64(factor)), nil
}

// String is the shortest exact form: 128MiB, 1000.
func (s Size) String() string {
	for _, u := range units {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d%siB", s/u.bytes, u.suffix)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// UnmarshalText reads a size in a configuration file.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := ParseSize(string(text))
	if err != nil {
		return err
	}
	*s = n
	return nil
}

// MarshalText writes a size into a configuration file.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
