package python

import (
	"bufio"
	"fmt"
	"os/exec"
	"testing"

	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
)

// Epochs are whole and in order while a datanode ends, and then the namenode that leads.
func TestEpochsWhileServersEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("servers")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	k := cluster.Start(t, cluster.Config{Namenodes: 3, Datanodes: 2})
	cmd, out := command(t, k, "epochs.py")
	cmd.Stdout = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, done := bufio.NewScanner(pipe), false
	copied := func() error { // a write ends well with one replica, and on a busy machine a datanode may have been given up on the way
		stats, err := k.Client("").FS().FsStats(process.Context(t))
		if err == nil && stats.UnderReplicated > 0 {
			err = fmt.Errorf("%d blocks have one replica", stats.UnderReplicated)
		}
		return err
	}
	ends := []func(){func() { process.Eventually(t, "two replicas of each block", copied); k.Stop("dn1") }, func() { k.Stop(k.Leader()) }}
	for lines.Scan() {
		switch lines.Text() {
		case "READ":
			ends[0]()
			ends = ends[1:]
			if _, err := fmt.Fprintln(in, "ended"); err != nil {
				t.Fatal(err)
			}
		case "DONE":
			done = true
		}
	}
	if err := cmd.Wait(); err != nil || !done {
		t.Fatalf("%v\n%s", err, out)
	}
}
