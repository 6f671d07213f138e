// Package leaktest fails a package's tests when goroutines outlive them.
package leaktest

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end: goleak by itself gives them half a second, which on a busy machine is little.
const patience = time.Minute

// Raft are the goroutines that raft leaves: it never answers what it had not taken in yet when it was shut down.
func Raft() goleak.Option {
	return goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error")
}

// Run runs a package's tests, and returns the status to end with: 1 if they passed but have left goroutines behind.
func Run(m *testing.M, known ...goleak.Option) int {
	status := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if status != 0 {
		return status
	}
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(known...)
		if err == nil {
			return 0
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}
