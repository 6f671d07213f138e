package size

import "testing"

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
