package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/training/controller"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == filesCommand {
		os.Exit(filesMain(os.Args[2:]))
	}
	Main(m)
}

func TestAClusterInOneProcessRunsAJob(t *testing.T) {
	started := time.Now()
	k := Start(t, Config{NodeManager: true, GPUs: "sim:2"})
	t.Logf("ready after %v", time.Since(started))
	c := k.Client("")
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
	defer cancel()
	id, err := c.Jobs().Submit(ctx, client.Job{Argv: []string{"sh", "-c", "echo on $CUDA_VISIBLE_DEVICES"}, Resources: client.JobResources{GPUs: 1}}, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Jobs().Wait(ctx, id, nil)
	if err != nil || !s.Succeeded() {
		t.Fatalf("%+v, %v", s, err)
	}
	k.Await("the log", func(ctx context.Context) error {
		r, err := c.Jobs().Logs(ctx, id)
		if err != nil {
			return err
		}
		defer r.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(r); err != nil {
			return err
		}
		if !strings.Contains(text.String(), "on GPU-") {
			return fmt.Errorf("the log is %q", text.String())
		}
		return nil
	})
}

func TestAClusterOfThreeNamenodesOutlivesItsLeaderAndADatanode(t *testing.T) {
	k := Start(t, Config{Namenodes: 3, Datanodes: 3, Properties: map[string]string{"dfs.replication": "2"}})
	fs := k.ordinary()                                                   // whose files are on datanodes
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
	defer cancel()
	write := func(name string) {
		t.Helper()
		if err := fs.WriteFile(ctx, name, []byte(name), false); err != nil {
			t.Fatal(err)
		}
	}
	write("/tmp/a")
	leader := k.Leader()
	k.Stop(leader)
	k.Stop("dn2")
	write("/tmp/b")
	k.Start(leader)
	k.Start("dn2")
	k.Ready()
	write("/tmp/c")
	for _, name := range []string{"/tmp/a", "/tmp/b", "/tmp/c"} {
		if got, err := fs.ReadFile(ctx, name); err != nil || string(got) != name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	k.Await("three datanodes, and two live replicas of everything", func(ctx context.Context) error {
		live, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
		if err == nil && len(live) != 3 {
			err = fmt.Errorf("%d datanodes live", len(live))
		}
		if err != nil {
			return err
		}
		stats, err := fs.FsStats(ctx)
		if err == nil && (stats.UnderReplicated != 0 || stats.MissingBlocks != 0) {
			err = fmt.Errorf("%+v", stats)
		}
		return err
	})
}

// The controller of an experiment that is killed writes the end into the journal that it has open.
func TestJournalOutlivesTheContextOfItsOpening(t *testing.T) {
	k := Start(t, Config{})
	client := k.Client("").FS()
	fs := controller.DFS(client)
	open := map[string]func(context.Context) (controller.FileWriter, error){
		"create": func(ctx context.Context) (controller.FileWriter, error) { return fs.Create(ctx, "/tmp/journal", false) },
		"append": func(ctx context.Context) (controller.FileWriter, error) { return fs.Append(ctx, "/tmp/journal") },
	}
	want := ""
	for _, how := range []string{"create", "append"} {
		ctx, cancel := context.WithTimeout(t.Context(), Patience)
		w, err := open[how](ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write([]byte(how + " begun\n"))
		if err == nil {
			err = w.Hflush(ctx)
		}
		cancel()
		if err == nil {
			_, err = w.Write([]byte(how + " ended\n"))
		}
		if err == nil {
			err = w.Hsync(t.Context())
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		want += how + " begun\n" + how + " ended\n"
	}
	if got, err := client.ReadFile(t.Context(), "/tmp/journal"); err != nil || string(got) != want {
		t.Errorf("the journal is %q: %v", got, err)
	}
}
