package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
)

// The scripts run the program against one cluster, side by side; each keeps to a directory of its own, $REMOTE.
func TestScripts(t *testing.T) {
	binary := process.Binary(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	k := cluster.Start(t, cluster.Config{NodeManager: true, GPUs: "sim:2", Search: true, Executable: binary})
	fs := k.Client("").FS()
	live, err := fs.Datanodes(t.Context(), dfs.LiveDatanodes)
	if err != nil || len(live) == 0 {
		t.Fatalf("%d datanodes: %v", len(live), err)
	}
	datanode := live[0]
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			remote := "/tmp/" + filepath.Base(e.WorkDir)
			e.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
			e.Setenv("HADOOP_CONF_DIR", k.Conf())
			e.Setenv("CONF", k.Conf())
			e.Setenv("BINARY", binary)
			e.Setenv("FS", "hdfs://"+k.File().Namenodes[0].IPC)
			e.Setenv("NAMENODE_HTTP", k.File().Namenodes[0].HTTP)
			e.Setenv("NAMENODE_GRPC", k.File().Namenodes[0].GRPC)
			e.Setenv("DATANODE_HTTP", net.JoinHostPort(datanode.IP, strconv.Itoa(datanode.HTTPPort)))
			e.Setenv("DATANODE_TRANSFER", net.JoinHostPort(datanode.IP, strconv.Itoa(datanode.TransferPort)))
			e.Setenv("REMOTE", remote)
			e.Setenv("ME", me.Username)
			e.Setenv("HOME", os.Getenv("HOME"))
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
			e.Setenv("TZ", "UTC")
			return fs.Mkdirs(process.Context(t), remote, 0o755, true)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "eventually": eventually},
	})
}

// exits STATUS COMMAND... runs a command that ends with a status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENT ...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := run(ts, args[1:]); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// eventually COMMAND... runs a command until it ends with status 0.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually COMMAND [ARGUMENT ...]")
	}
	for deadline := time.Now().Add(cluster.Patience); run(ts, args) != 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf("%v does not succeed", args)
		}
	}
}

func run(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", fmt.Errorf("%v: %w", args, err))
	}
	return 0
}
