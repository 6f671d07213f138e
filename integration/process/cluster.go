package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/metadata"
)

// Cluster is a cluster of processes within a test.
type Cluster struct {
	*processes.Cluster
	T testing.TB
}

// Start lays out a cluster, starts all servers, and waits until files can be written and, if there are node managers,
// jobs be submitted. At the end of the test it is stopped; a server that ended by itself, or a process that is left, fails
// the test.
func Start(t testing.TB, c processes.Config) *Cluster {
	t.Helper()
	k := Lay(t, c)
	k.must(k.StartAll())
	k.Ready()
	return k
}

// Lay is Start without starting anything.
func Lay(t testing.TB, c processes.Config) *Cluster {
	t.Helper()
	if c.Binary == "" {
		c.Binary = Binary(t)
	}
	if c.Dir == "" {
		c.Dir = Dir(t)
	}
	if c.Name == "" {
		c.Name = "test"
	}
	made, err := processes.New(c)
	if err != nil {
		t.Fatal(err)
	}
	k := &Cluster{made, t}
	t.Cleanup(func() {
		if err := k.Died(); err != nil {
			t.Error(err)
		}
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
		patience := Patience
		if t.Failed() {
			patience = 0
		}
		for _, pid := range k.Gone(patience) {
			if !t.Failed() {
				t.Errorf("process %d is left: %s", pid, processes.Command(pid))
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			for _, name := range k.Names() {
				t.Logf("the end of %s's log:\n%s", name, processes.Tail(k.Log(name), 25))
			}
		}
	})
	return k
}

func (k *Cluster) must(err error) {
	k.T.Helper()
	if err != nil {
		k.T.Fatal(err)
	}
}

// Await is Eventually that ends at once when a server has died.
func (k *Cluster) Await(what string, check func() error) {
	k.T.Helper()
	k.must(k.Cluster.Await(Patience, what, check))
}

// configured waits until the first namenode has written the clients' configuration.
func (k *Cluster) configured() {
	k.T.Helper()
	k.Await("the configuration of clients", func() error {
		conf, err := dfs.LoadHadoopConf(k.Conf())
		if err == nil && conf.DefaultFS() == "" {
			err = errors.New("not written yet")
		}
		for _, file := range []string{"core-site.xml", "hdfs-site.xml", "yarn-site.xml"} { // in any order, by the release before
			if err == nil {
				_, err = os.Stat(filepath.Join(k.Conf(), file))
			}
		}
		return err
	})
}

// Ready waits until all servers are there: every datanode registered, no safe mode, every node manager registered.
func (k *Cluster) Ready() {
	k.T.Helper()
	k.configured()
	c := Dial(k.T, k.Conf(), "")
	count := map[string]int{}
	for _, name := range k.Names() {
		if k.PID(name) != 0 { // others are started later
			count[name[:2]]++
		}
	}
	k.Await("the filesystem", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := k.leaderKnows(count["dn"])
		if err == nil {
			_, err = c.FS().Stat(ctx, "/tmp")
		}
		if err == nil {
			var safe bool
			if safe, err = c.FS().SafeMode(ctx, dfs.SafeModeGet); err == nil && safe {
				err = fmt.Errorf("in safe mode")
			}
		}
		return err
	})
	if count["nm"] == 0 {
		return
	}
	k.Await("the resource manager", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		nodes, err := c.Jobs().Nodes(ctx)
		if err == nil && len(nodes) < count["nm"] {
			err = fmt.Errorf("%d of %d node managers have registered", len(nodes), count["nm"])
		}
		return err
	})
}

// Hops runs commands against the cluster.
func (k *Cluster) Hops() Hops { return Hops{T: k.T, Conf: k.Conf()} }

// leaderKnows is an error unless the namenode that leads, the one that chooses datanodes, knows so many that live: a standby answers for itself.
func (k *Cluster) leaderKnows(datanodes int) error {
	for _, n := range k.File().Namenodes {
		h, err := k.ask(n.ID)
		switch {
		case err != nil || h.State != "active":
		case h.Live < datanodes:
			return fmt.Errorf("%d of %d datanodes have registered", h.Live, datanodes)
		default:
			return nil
		}
	}
	return errors.New("no namenode leads")
}

// Leader is the namenode that leads, waited for.
func (k *Cluster) Leader(c *dfs.Client) string {
	k.T.Helper()
	leader := ""
	k.Await("a leader", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, s := range c.HAState(ctx) {
			for _, n := range k.File().Namenodes {
				if s.State == "active" && n.IPC == s.Address {
					leader = n.ID
					return nil
				}
			}
		}
		return fmt.Errorf("no namenode leads")
	})
	return leader
}

type operatorHealth struct {
	Cluster, State string
	Joining        bool
	Live           int `json:"live_datanodes"`
}

// ask fetches /health of a namenode.
func (k *Cluster) ask(name string) (h operatorHealth, err error) {
	for _, n := range k.File().Namenodes {
		if n.ID != name {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience/2)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/health", nil)
		if err != nil {
			return h, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return h, err
		}
		defer answer.Body.Close()
		return h, json.NewDecoder(answer.Body).Decode(&h)
	}
	return h, fmt.Errorf("there is no namenode %s", name)
}

// AwaitMember waits until a namenode answers and is a member: one that was reinstalled answers before a leader has found it.
func (k *Cluster) AwaitMember(fs *dfs.Client, ipc string) {
	k.T.Helper()
	k.Await("namenode "+ipc, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Patience/2)
		defer cancel()
		for _, s := range fs.HAState(ctx) {
			if s.Address == ipc {
				return errors.Join(s.Err, k.member(ipc))
			}
		}
		return fmt.Errorf("not among the namenodes")
	})
}

// member is nil for a namenode that is not about to join.
func (k *Cluster) member(ipc string) error {
	for _, n := range k.File().Namenodes {
		if n.IPC != ipc {
			continue
		}
		h, err := k.ask(n.ID)
		if err == nil && h.Joining {
			err = fmt.Errorf("%s is about to join", n.ID)
		}
		return err
	}
	return nil
}

// AwaitDatanodes waits until so many datanodes take new blocks: a small file gets as many replicas.
func (k *Cluster) AwaitDatanodes(fs *dfs.Client, n int) {
	k.T.Helper()
	serial := 0
	k.Await(fmt.Sprintf("%d datanodes", n), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Patience/2)
		defer cancel()
		serial++
		name := fmt.Sprintf("/tmp/probe-%s-%d", metadata.TimeOf(time.Now()).Time().Format("150405.000"), serial)
		w, err := fs.Create(ctx, name, dfs.CreateOptions{Replication: n})
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte("probe")); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		blocks, err := fs.BlockLocations(ctx, name, 0, 5)
		if err == nil && (len(blocks) != 1 || len(blocks[0].Datanodes) != n) {
			err = fmt.Errorf("a file of %d replicas has %v", n, blocks)
		}
		return err
	})
}
