package server

import (
	"flag"
	"os"
	"testing"

	"github.com/gohops/hops/internal/leaktest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// What is parallel here waits most of its time: for elections, and for tokens to expire.
	if err := flag.Set("test.parallel", "16"); err != nil {
		os.Exit(2)
	}
	os.Exit(leaktest.Run(m, leaktest.Raft()))
}
