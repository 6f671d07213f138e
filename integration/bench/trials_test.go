package main

import (
	"slices"
	"testing"
)

func TestGapsAreFromTheEndOfATrialToTheNextBeginning(t *testing.T) {
	gaps, err := gapsOf([]byte("10.5 11.0\n11.25 12\n12.5 12.5\n"))
	if err != nil || !slices.Equal(gaps, []float64{250, 500}) {
		t.Errorf("%v, %v", gaps, err)
	}
	for _, bad := range []string{"10\n", "10 9\n", "10 12\n11 13\n", "x y\n"} {
		if gaps, err := gapsOf([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %v", bad, gaps)
		}
	}
}
