package server

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// What is parallel here waits most of its time: for elections, and for tokens to expire.
	if err := flag.Set("test.parallel", "16"); err != nil {
		os.Exit(2)
	}
	// raft leaves futures unanswered that come while it is shut down: a barrier of a leader that is stopped as soon as it was elected.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}
