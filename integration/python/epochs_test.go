package python

import (
	"bufio"
	"fmt"
	"os/exec"
	"testing"

	"github.com/gohops/hops/integration/cluster"
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
	ends := []func(){func() { k.Stop("dn1") }, func() { k.Stop(k.Leader()) }}
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
