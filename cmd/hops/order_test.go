package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFlagsMayFollowArguments(t *testing.T) {
	app := newApp(nil, io.Discard, io.Discard)
	for _, c := range [][2]string{
		{"hops job status ID -o json", "hops job status -o json ID"},
		{"hops job status -o json ID", "hops job status -o json ID"},
		{"hops job status ID --output=json --user ann", "hops job status --output=json --user ann ID"},
		{"hops app -status ID -o json", "hops app -status ID -o json"},
		{"hops node -list -all -o json", "hops node -list -all -o json"},
		{"hops job run python3 train.py --lr 3 -o", "hops job run python3 train.py --lr 3 -o"},
		{"hops job run --gpus 1 -- python3 -o x", "hops job run --gpus 1 -- python3 -o x"},
		{"hops job status ID -- -o json", "hops job status ID -- -o json"},
		{"hops job status - -o json", "hops job status -o json -"},
		{"hops nonsense x -o json", "hops nonsense x -o json"},
		{"hops", "hops"},
	} {
		if got := flagsFirst(app, strings.Fields(c[0])); !slices.Equal(got, strings.Fields(c[1])) {
			t.Errorf("%s: %v, want %s", c[0], got, c[1])
		}
	}
}
