package size

import "testing"

// A size is not negative, and comes back as it is when it is written out.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"0", "128MiB", "64k", " 1.5 GiB ", "8E", "1e300", "-0", "0x10p4", "1_0", "NaN", "9223372036854774784", "0.1b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(Format(n)); n < 0 || err != nil || again != n {
			t.Errorf("%q is %d, written %s, which is %d, %v", text, n, Format(n), again, err)
		}
	})
}
