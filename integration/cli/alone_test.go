package cli

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/metadata"
)

// Balancer and mover leave the mark of another one, HDFS's or their own, to who writes it, and take over one that was left behind.
func TestOneBalancerAndOneMoverAtATime(t *testing.T) {
	binary, ctx := process.Binary(t), process.Context(t)
	k := cluster.Start(t, cluster.Config{})
	fs := k.Client("").FS()
	run := func(tool string) (status int, text string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, binary, tool)
		cmd.Env = append(os.Environ(), "HADOOP_CONF_DIR="+k.Conf())
		out, err := cmd.CombinedOutput()
		if ended, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		} else if ok {
			return ended.ExitCode(), string(out)
		}
		return 0, string(out)
	}
	for tool, says := range map[string]string{"balancer": "Another Balancer is running..  Exiting ...", "mover": "Another Mover is running..  Exiting ..."} {
		mark := "/system/" + tool + ".id"
		w, err := fs.Create(ctx, mark, dfs.CreateOptions{Parents: true})
		if err != nil {
			t.Fatal(err)
		}
		if status, text := run(tool); status != 255 || !strings.Contains(text, says) {
			t.Errorf("%s beside another one: status %d: %s", tool, status, text)
		}
		if err := w.Close(); err != nil {
			t.Errorf("the mark of the first %s: %v", tool, err)
		}
		if status, text := run(tool); status != 0 {
			t.Errorf("%s where a mark was left behind: status %d: %s", tool, status, text)
		}
		if _, err := fs.Stat(ctx, mark); !errors.Is(err, metadata.ErrNotExist) {
			t.Errorf("%s has left its mark: %v", tool, err)
		}
	}
}
