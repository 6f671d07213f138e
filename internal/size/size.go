// Package size reads and writes numbers of bytes as people do: 128MiB, 64k, 1g. Units are powers of 1024, as Hadoop
// reads them, with B or without: everywhere in hops, so that the same words mean the same memory in a job, a study and
// a configuration.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var units = []struct {
	suffix string
	bytes  int64
}{{"E", 1 << 60}, {"P", 1 << 50}, {"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}

// Parse reads a size: a number that is not negative, whole or not, with a unit or without.
func Parse(text string) (int64, error) {
	s := strings.ToUpper(strings.TrimSpace(text))
	if rest, ok := strings.CutSuffix(s, "IB"); ok {
		s = rest
	} else {
		s = strings.TrimSuffix(s, "B")
	}
	factor := int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n*float64(factor) < math.MaxInt64) { // NaN is neither
		return 0, fmt.Errorf("%.40q is not a size (examples: 134217728, 128MiB, 1g)", text)
	}
	if whole, err := strconv.ParseInt(s, 10, 64); err == nil {
		return whole * factor, nil
	}
	return int64(n * float64(factor)), nil
}

// Format is the shortest exact form: 128MiB, 1000.
func Format(bytes int64) string {
	for _, u := range units {
		if bytes >= u.bytes && bytes%u.bytes == 0 {
			return fmt.Sprintf("%d%siB", bytes/u.bytes, u.suffix)
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// About is a size for people: 12.3 GiB.
func About(bytes int64) string {
	for _, u := range units {
		if bytes >= u.bytes {
			return fmt.Sprintf("%.1f %siB", float64(bytes)/float64(u.bytes), u.suffix)
		}
	}
	return strconv.FormatInt(bytes, 10) + " B"
}

// Bound reads a condition on sizes: +size is for more than it, -size for less, size alone for exactly as much. It narrows a range of which both ends are
// part; nil is an open end.
func Bound(text string, least, most **int64) error {
	rest, sign := text, byte(0)
	if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
		rest, sign = text[1:], text[0]
	}
	n, err := Parse(rest)
	if err != nil || strings.HasPrefix(rest, "+") || strings.HasPrefix(rest, "-") {
		return fmt.Errorf("%.40q is not a condition on sizes (examples: +1g, -64k, 0)", text)
	}
	raise := func(n int64) {
		if *least == nil || **least < n {
			*least = &n
		}
	}
	lower := func(n int64) {
		if *most == nil || **most > n {
			*most = &n
		}
	}
	switch sign {
	case '+':
		raise(n + 1)
	case '-':
		lower(n - 1)
	default:
		raise(n)
		lower(n)
	}
	return nil
}
