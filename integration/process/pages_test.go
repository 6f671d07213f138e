package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// pages lays out three namenodes and so many datanodes, and starts all but those that are named.
func pages(t *testing.T, datanodes int, page string, without ...string) *operator {
	t.Helper()
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel() // they wait most of the time
	dir := Dir(t)
	binary := filepath.Join(dir, "hops")
	text, err := os.ReadFile(Binary(t))
	if err == nil {
		err = os.WriteFile(binary, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	k := Lay(t, processes.Config{
		Binary: binary, Dir: dir, Namenodes: 3, Datanodes: datanodes, Properties: map[string]string{"dfs.replication": "2"},
		Adjust: func(_ string, f *config.File) {
			if f.Namenode != nil {
				f.Namenode.StaleAfter, f.Namenode.DeadAfter, f.Namenode.Heartbeat = 2*time.Second, 4*time.Second, 500*time.Millisecond
			}
		},
	})
	o := &operator{Cluster: k, blocks: pageBlocks(t, "../../docs/how-to/"+page)}
	k.must(k.Start("nn1"))
	k.Await("the cluster's identity", func() error { _, err := os.Stat(k.File().Cluster.Identity); return err })
	for _, name := range k.Names()[1:] {
		if !strings.Contains(strings.Join(without, " "), name) {
			k.must(k.Start(name))
		}
	}
	for _, n := range k.File().Namenodes {
		k.awaitVote(n.ID)
	}
	o.replace = strings.NewReplacer(
		"NN1-RAFT-ADDRESS", k.File().Namenodes[0].Raft, "CLUSTER-ID", o.health("nn1").Cluster,
		"DN1-ADDRESS", k.transfer("dn1"), "NN3-DATA", filepath.Join(dir, "nn3"), "BACKUP", filepath.Join(dir, "backup"))
	return o
}

// transfer is the address of a datanode's data transfer.
func (k *Cluster) transfer(name string) string {
	f, err := k.Server(name)
	k.must(err)
	return f.Datanode.Transfer
}

// listed waits until `hops datanode list` shows so many in a state.
func (o *operator) listed(state string, n int) {
	o.T.Helper()
	o.Await(fmt.Sprintf("%d %s", n, state), func() error {
		r := o.Hops().Run("datanode", "list")
		if r.Status != 0 || strings.Count(r.Stdout, " "+state+" ") != n {
			return fmt.Errorf("status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
		}
		return nil
	})
}

// put writes a file; on a busy machine a datanode may be taken for dead for a while.
func (o *operator) put(text, path string) {
	o.T.Helper()
	o.Await("a file is written", func() error {
		if r := o.Hops().Input(text, "fs", "-put", "-f", "-", path); r.Status != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}

// well waits until `hops doctor` finds no block in need.
func (o *operator) well() {
	o.T.Helper()
	o.Await("no block is missing", func() error {
		r := o.Hops().Run("doctor")
		if !strings.Contains(r.Stdout, "0 missing, 0 under-replicated") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
}

// stop ends servers as an operator does.
func (o *operator) stop(names ...string) {
	o.T.Helper()
	for _, name := range names {
		o.must(o.Signal(name, syscall.SIGTERM))
		<-o.Ended(name)
	}
}

func TestPageOnDatanodesDoesWhatItSays(t *testing.T) {
	o := pages(t, 3, "datanodes.md", "dn3")
	o.listed("live", 2)
	o.put("kept", "/kept")
	o.run("Add one")
	o.listed("live", 3)
	o.stop("dn1")
	o.listed("dead", 1)
	o.well()
	if said := o.run("Remove one"); !strings.Contains(said, "is given up") {
		t.Error(said)
	}
	if said := o.Hops().OK("fs", "-cat", "/kept"); said != "kept" {
		t.Errorf("the file is %q", said)
	}
	o.listed("dead", 0)
	if said := o.Hops().OK("datanode", "list", "-o", "json"); !strings.Contains(said, `"state":"live"`) || !strings.Contains(said, `"type":"DISK"`) {
		t.Error(said)
	}
	Hops{T: t, Conf: o.Conf()}.Fails(2, []string{"takes no argument"}, "datanode", "list", "dn1")
	trouble := &operator{Cluster: o.Cluster, blocks: pageBlocks(t, "../../docs/how-to/troubleshooting.md"), replace: o.replace}
	if len(trouble.blocks[""]) != 2 {
		t.Errorf("the page on troubles begins with %q", trouble.blocks[""])
	}
	o.must(o.Kill("nn2", "nn3"))
	o.Await("nn1 leads no more", func() error {
		h, err := o.ask("nn1")
		if err == nil && h.State == "active" {
			err = errors.New("it does")
		}
		return err
	})
	o.Hops().Fails(1, []string{
		"no server leads, a majority of them must run", o.File().Namenodes[0].IPC + ": it is a standby", o.File().Namenodes[1].IPC, "connection refused",
	}, "fs", "-ls", "/")
	o.must(o.Kill("nn1"))
	Hops{T: t, Conf: o.Conf()}.Fails(3, []string{"no namenode leads"}, "datanode", "list")
}

func TestPageOnUpgradesDoesWhatItSays(t *testing.T) {
	o := pages(t, 3, "upgrade.md")
	o.listed("live", 3)
	fs := Dial(t, o.Conf(), "").FS()
	mkdir(t, fs, "/upgrade")
	h := NewHistory(t, "/upgrade")
	h.Start(func(ctx context.Context) { h.Calls(ctx, 2, fs) })
	h.More(10)
	o.blocks["Before"] = slices.DeleteFunc(o.blocks["Before"], func(line string) bool {
		return strings.HasPrefix(line, "hops cluster backup") // which is of machines that have joined; their page has it
	})
	o.run("Before")
	binary := filepath.Join(filepath.Dir(o.Log("nn1")), "hops")
	text, err := os.ReadFile(binary)
	o.must(err)
	o.must(os.WriteFile(binary+".new", text, 0o755))
	o.must(os.Rename(binary+".new", binary))

	order, leader := []string{}, o.Leader(fs)
	for _, n := range o.File().Namenodes {
		if n.ID != leader {
			order = append(order, n.ID)
		}
	}
	for _, name := range append(order, leader) {
		o.stop(name)
		o.must(o.Start(name))
		o.awaitVote(name)
		o.run("The namenodes")
	}
	for _, name := range []string{"dn1", "dn2", "dn3"} {
		o.stop(name)
		o.must(o.Start(name))
		o.run("The datanodes and node managers")
		o.listed("live", 3)
	}
	h.More(10)
	h.End()
	h.Verify(fs)
	o.run("After")
}

func TestPageOnBackupsDoesWhatItSays(t *testing.T) {
	o := pages(t, 2, "backup.md")
	o.listed("live", 2)
	o.put("in the backup", "/kept")
	o.put("untouched", "/untouched")
	if o.Leader(Dial(t, o.Conf(), "").FS()) == "nn3" {
		o.Hops().Run("namenode", "transfer", "nn1", "-c", o.file("nn1")) // or an election comes first
	}
	o.Await("nn3 has it", func() error {
		r := o.Hops().Run("namenode", "list", "-o", "json", "-c", o.file("nn1"))
		if r.Status != 0 || !strings.Contains(r.Stdout, `"behind":0`) || strings.Contains(r.Stdout, "unreachable") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	lines := o.blocks["Make a backup"]
	o.blocks["Make a backup"] = lines[:1]
	o.run("Make a backup")
	o.stop("nn3")
	o.blocks["Make a backup"] = lines[1:]
	o.run("Make a backup")
	o.awaitVote("nn3")

	o.put("since", "/since")
	o.Hops().OK("fs", "-rm", "-skipTrash", "/kept") // what backups are for
	for _, n := range o.File().Namenodes {
		o.lose(n.ID)
	}
	if said := o.run("Restore"); !strings.Contains(said, "/kept") || strings.Contains(said, "/since") {
		t.Errorf("restored are\n%s", said)
	}
	o.awaitVote("nn1")
	if said := o.Hops().OK("fs", "-cat", "/untouched"); said != "untouched" {
		t.Errorf("the file is %q", said)
	}
}
