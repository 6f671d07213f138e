package nearest

import (
	"strings"
	"testing"
)

func TestATypoIsTheNearestNameWhateverTheCase(t *testing.T) {
	known := []string{"r_max", "r_min", "trials", "dfs.blocksize"}
	for name, want := range map[string]string{
		"trails": "trials", "r_mim": "r_min", "TRIALS": "trials", "dfs.blockSize": "dfs.blocksize", "trials": "", "anything": "", "": "",
		strings.Repeat("r", 1<<20): "",
	} {
		if got := Typo(name, known); got != want {
			t.Errorf("Typo(%.20q) = %q, want %q", name, got, want)
		}
	}
}

func TestAHintIsGivenWhenHalfOfTheNameFits(t *testing.T) {
	known := []string{"list", "report", "doctor"}
	for name, want := range map[string]string{"lst": " (did you mean list?)", "docter": " (did you mean doctor?)", "xyz": "", strings.Repeat("l", 1<<20): ""} {
		if got := Hint(name, known); got != want {
			t.Errorf("Hint(%.20q) = %q, want %q", name, got, want)
		}
	}
}
