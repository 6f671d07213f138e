package size

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "134217728": 128 << 20, "128MiB": 128 << 20, "128mb": 128 << 20, "64k": 64 << 10, "1g": 1 << 30, " 2 GiB ": 2 << 30,
		"1.5GiB": 3 << 29, "7E": 7 << 60, "9223372036854774784": 9223372036854774784,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "B", "k", "-1", "3QiB", "8E", "1e300", "NaN", "inf", "1 2", "9223372036854775807k"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1000: "1000", 1 << 30: "1GiB", 3 << 29: "1536MiB", 7 << 60: "7EiB"} {
		if got := Format(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
		if back, err := Parse(Format(n)); err != nil || back != n {
			t.Errorf("%d comes back as %d, %v", n, back, err)
		}
	}
}

func TestAbout(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 40: "5.0 TiB"} {
		if got := About(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// Conditions narrow a range, whatever their order.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		conditions string
		least      int64 // -1: open
		most       int64
	}{
		{"+1k", 1025, -1}, {"-1k", -1, 1023}, {"1k", 1024, 1024}, {"0", 0, 0}, {"+1k +2k", 2049, -1}, {"+1k -1m", 1025, 1<<20 - 1}, {"-2 -5 +0", 1, 1}, {"-0", -1, -1},
	} {
		var least, most *int64
		for _, text := range strings.Fields(c.conditions) {
			if err := Bound(text, &least, &most); err != nil {
				t.Fatal(err)
			}
		}
		value := func(p *int64) int64 {
			if p == nil {
				return -1
			}
			return *p
		}
		if value(least) != c.least || value(most) != c.most {
			t.Errorf("%s: %d to %d", c.conditions, value(least), value(most))
		}
	}
	for _, text := range []string{"", "+", "-", "+-1", "--1", "x", "+1x"} {
		if err := Bound(text, new(*int64), new(*int64)); err == nil {
			t.Errorf("%q", text)
		}
	}
}
