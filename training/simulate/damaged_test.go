package simulate

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var numbers = regexp.MustCompile(`-?\d+`)

// A journal that was damaged on its way is an error or another story, never a panic.
func TestDamagedJournals(t *testing.T) {
	for _, name := range []string{"gang", "slots", "servers"} {
		text, err := os.ReadFile("../history/testdata/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		whole, err := ReadJournal(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if r := Replay(whole); r.Differs != "" {
			t.Errorf("%s: %+v", name, r)
		}
		lines := strings.SplitAfter(string(text), "\n")
		rapid.Check(t, func(t *rapid.T) {
			i := rapid.IntRange(0, len(lines)-2).Draw(t, "line")
			damaged := append([]string(nil), lines...)
			if found := numbers.FindAllStringIndex(lines[i], -1); rapid.Bool().Draw(t, "number") {
				at := rapid.SampledFrom(found).Draw(t, "at")
				damaged[i] = lines[i][:at[0]] + rapid.SampledFrom([]string{"-1", "0", "7", "99", "9223372036854775807"}).Draw(t, "as") + lines[i][at[1]:]
			} else {
				at := rapid.IntRange(0, len(lines[i])-1).Draw(t, "byte")
				damaged[i] = lines[i][:at] + string(rapid.SampledFrom([]rune(`0{}[]",x`)).Draw(t, "as")) + lines[i][at+1:]
			}
			entries, err := ReadJournal(strings.NewReader(strings.Join(damaged, "")))
			if err != nil {
				return
			}
			Replay(entries)
		})
	}
}
