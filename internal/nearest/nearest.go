// Package nearest suggests known names in place of mistyped ones.
package nearest

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Hint suggests the known name nearest to a mistyped one, if any is near.
func Hint(name string, known []string) string {
	best, distance := "", len(name)/2+1
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// Typo is the known name that is nearest to another one and differs from it by two letters at most, the case of letters
// aside; "": there is none, or it is known itself.
func Typo(name string, known []string) string {
	if slices.Contains(known, name) {
		return ""
	}
	best, distance := "", 3
	for _, k := range known {
		if d := editDistance(strings.ToLower(name), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// maxLength bounds the names that are compared, in bytes: what is longer is no mistyped name.
const maxLength = 100

// editDistance is Levenshtein's; without end for names that are too long to be compared.
func editDistance(a, b string) int {
	if len(a) > maxLength || len(b) > maxLength {
		return math.MaxInt
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
