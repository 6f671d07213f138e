package config

import "github.com/gohops/hops/internal/size"

// Size is a number of bytes. In text it is as internal/size reads it: 128MiB, 64k, 1g.
type Size int64

// ParseSize reads a size.
func ParseSize(text string) (Size, error) {
	n, err := size.Parse(text)
	return Size(n), err
}

// String is the shortest exact form: 128MiB, 1000.
func (s Size) String() string { return size.Format(int64(s)) }

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
