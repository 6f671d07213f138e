package server

import (
	"flag"
	"os"
	"testing"

	"github.com/gohops/hops/internal/leaktest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// What is parallel here waits most of its time: for elections, and for tokens to expire. Less of it is at once where it computes longer, as with the
	// race detector.
	parallel := "16"
	if testing.Short() {
		parallel = "8"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		os.Exit(2)
	}
	os.Exit(leaktest.Run(m, leaktest.Raft()))
}
