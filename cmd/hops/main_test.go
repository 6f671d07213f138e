package main

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(tellsSlack) != "" {
		tellSlack()
		return
	}
	askTime, electionTime = time.Minute, time.Minute // a server of these tests that is slow is there all the same
	os.Exit(m.Run())
}
