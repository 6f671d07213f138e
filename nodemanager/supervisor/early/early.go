// Package early is for the import by the hops program: it makes a process that was started as a supervisor, or as the stage of a
// command, one before the rest of the program is initialized.
//
// Packages are initialized when those that they import are, in the order of their names (cmd/link). A supervisor needs few, so its turn comes
// before that of most of what the program has besides: servers, protocols, tables. Their initialization is most of what the start of a
// process costs here, in time and in memory, and two processes start for each container, one after the other, before its command runs.
// If the order were another one, nothing but that time would be lost.
package early

import (
	"os"

	"github.com/gohops/hops/nodemanager/supervisor"
)

func init() {
	if len(os.Args) < 2 || os.Args[1] != "supervisor" {
		return
	}
	status := make(chan int)
	go func() { status <- supervisor.Main(os.Args[2:]) }() // the goroutine of initialization is bound to a thread
	os.Exit(<-status)
}
