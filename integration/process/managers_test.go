package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// The leading resource manager of three is killed, twice, while jobs are submitted and containers run: what runs goes on, every
// acknowledged job runs once, and no device or memory is in two containers, by what processes and node managers say.
func TestResourceManagersThatDieUnderLoadLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("seven processes")
	}
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, ResourceManagers: 3, NodeManagers: 2, GPUs: 4, Properties: map[string]string{"dfs.replication": "1"}, Adjust: patient})
	// Each death of a leader is of the one that leads then.
	leader := func() (id string) {
		k.Await("a resource manager that leads", func() error {
			r := k.Hops().Run("resourcemanager", "list", "-c", filepath.Join(filepath.Dir(k.Log("rm1")), "rm1.yaml"))
			for line := range strings.Lines(r.Stdout) {
				if words := strings.Fields(line); len(words) > 2 && words[2] == "active" {
					id = words[0]
					return nil
				}
			}
			return errors.New(r.Stdout + r.Stderr)
		})
		return id
	}
	load, err := bench.NewJobs(t.Context(), bench.JobsOptions{
		Clients:    func(int) (*client.Client, error) { return client.New(client.Config{ConfDir: k.Conf()}) },
		Submitters: 2, Pause: 200 * time.Millisecond, Held: 4, Dir: Dir(t), Patience: Patience, Died: k.Died,
	})
	k.must(err)
	defer func() { k.must(load.Close(t.Context())) }()
	for range 2 {
		dead := leader()
		f, err := load.Failover(t.Context(), func() error { return k.Kill(dead) }, 0, 0)
		k.must(err)
		for _, w := range f.Wrong {
			t.Errorf("after the death of %s: %s", dead, w)
		}
		if f.Acknowledged == 0 || f.Ran == 0 {
			t.Errorf("%+v", f)
		}
		k.must(k.Start(dead))
		k.Await(dead+" to follow", func() error {
			r := k.Hops().Run("resourcemanager", "list", "-c", filepath.Join(filepath.Dir(k.Log("rm1")), "rm1.yaml"), "-o", "json")
			if strings.Contains(r.Stdout, "unreachable") || strings.Count(r.Stdout, `"voter":true`) != 3 || !strings.Contains(r.Stdout, `"state":"active"`) {
				return errors.New(r.Stdout + r.Stderr)
			}
			return nil
		})
	}
}

// dead ends all servers of a machine at once.
func (m *machines) dead(n int) {
	m.t.Helper()
	name := fmt.Sprint("m", n)
	killed := m.pids(name)
	for _, pid := range killed {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.eventually("the end of "+name, func() error {
		left := m.pids(name)
		for _, pid := range killed { // one that ends has lost its environment before its sockets are closed
			if !processes.Ended(pid) {
				left = append(left, pid)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// burnt is dead, with its disks.
func (m *machines) burnt(n int) {
	m.t.Helper()
	m.dead(n)
	if err := os.RemoveAll(filepath.Join(m.dir, fmt.Sprint("m", n))); err != nil {
		m.t.Fatal(err)
	}
}

// nodes waits until so many node managers are known to the resource manager that a machine knows.
func (m *machines) nodes(n, want int) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%d node managers", want), func() error {
		c, err := client.New(client.Config{ConfDir: filepath.Join(m.etc(n), "conf")})
		if err != nil {
			return err
		}
		defer c.Close()
		nodes, err := c.Jobs().Nodes(Context(m.t))
		if err == nil && len(nodes) != want {
			err = fmt.Errorf("%d nodes", len(nodes))
		}
		return err
	})
}

// A cluster begins without a resource manager, gets one, loses it on purpose, gets another one, and loses that with its disks.
func TestTheFirstAndTheLastResourceManager(t *testing.T) {
	m := newMachines(t)
	m.init("namenode")
	refuse := func(name, want string, r Result) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			if r.Status == 0 || !strings.Contains(r.Stderr, want) {
				t.Errorf("%d %s%s; want %s", r.Status, r.Stdout, r.Stderr, want)
			}
		})
	}
	joins := func(n int, token, roles string) {
		t.Helper()
		if r := m.join(n, token, "--roles", roles); r.Status != 0 {
			t.Fatalf("m%d as %s: %d\n%s%s", n, roles, r.Status, r.Stdout, r.Stderr)
		}
	}
	refuse("a node manager where no resource manager is", "this cluster has no resource manager, which node managers report to", m.join(3, m.token("--roles", "nodemanager"), "--roles", "nodemanager"))
	joins(2, m.token("--roles", "resourcemanager"), "resourcemanager")
	joins(3, m.token("--roles", "nodemanager"), "nodemanager")
	m.nodes(3, 1)

	refuse("the last one is removed", "m2 runs the last resource manager, with which the applications and their history go", m.run("cluster", "remove", "-c", m.yaml(1), "m2"))
	m.good("cluster", "remove", "-c", m.yaml(1), "--last-resourcemanager", "m2")
	m.eventually("the node manager knows that there is none", func() error {
		if log := m.log(3, "nodemanager"); !strings.Contains(log, "the cluster has no resource manager") {
			return errors.New(log)
		}
		return nil
	})
	m.dead(2)
	joins(4, m.token("--roles", "resourcemanager"), "resourcemanager")
	m.nodes(3, 1) // who has obeyed the first one

	m.burnt(4)
	said := m.good("cluster", "replace", "-c", m.yaml(1), "m4")
	if !strings.Contains(said, "Its resource manager was the last: the new one begins without applications") {
		t.Errorf("replace says %s", said)
	}
	_, line, _ := strings.Cut(said, "--token ")
	token, _, _ := strings.Cut(line, " ")
	joins(4, token, "resourcemanager")
	m.nodes(3, 1)

	// Of two, one is lost for good: there is no majority any more.
	joins(5, m.token("--roles", "resourcemanager"), "resourcemanager")
	m.eventually("to recover one of two that run is refused, which it is for its lock alone until it has heard that the other one is in", func() error {
		r := m.run("resourcemanager", "recover", "--sole-survivor", "-c", m.yaml(4))
		if r.Status == 0 {
			t.Fatalf("it is recovered beside another one: %s", r.Stdout)
		}
		if want := "the others are not lost, something answers at the addresses of m5"; !strings.Contains(r.Stderr, want) {
			return fmt.Errorf("%d %s; want %s", r.Status, r.Stderr, want)
		}
		return nil
	})
	m.burnt(5)
	refuse("to recover one that runs", "in use by another process", m.run("resourcemanager", "recover", "--sole-survivor", "-c", m.yaml(4)))
	m.dead(4)
	refuse("to recover without a word", "give --sole-survivor", m.run("resourcemanager", "recover", "-c", m.yaml(4)))
	m.good("resourcemanager", "recover", "--sole-survivor", "-c", m.yaml(4))
	m.serve(4, "resourcemanager")
	m.nodes(3, 1)
	m.good("cluster", "replace", "-c", m.yaml(1), "m5")
}

// The machine of the only namenode and the only resource manager is lost. A backup brings back what had run and what runs; ids that were
// given out since are not given again, and the node manager obeys.
func TestApplicationsAreInABackup(t *testing.T) {
	m := newMachines(t)
	m.init("namenode,datanode,resourcemanager")
	if r := m.join(2, m.token("--roles", "nodemanager"), "--roles", "nodemanager"); r.Status != 0 {
		t.Fatal(r.Stdout, r.Stderr)
	}
	m.dead(2) // its containers are to be those of whoever runs the tests
	text, err := os.ReadFile(m.yaml(2))
	if err == nil {
		err = os.WriteFile(m.yaml(2), append(bytes.Replace(text, []byte("nodemanager:\n"), []byte("nodemanager:\n  isolation: any\n  min_user_id: 1\n  allowed_system_users: [root]\n"), 1), '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.serve(2, "nodemanager")
	m.nodes(2, 1)
	c := Dial(t, filepath.Join(m.etc(2), "conf"), "")
	end := filepath.Join(Dir(t), "end")
	submit := func(script string) string {
		t.Helper()
		id, err := c.Jobs().Submit(Context(t), client.Job{Name: "job", Argv: []string{"sh", "-c", script}, Resources: client.JobResources{Memory: "16MiB", VCores: 1}}, "")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	state := func(id, want string) {
		t.Helper()
		m.eventually(id+" to be "+want, func() error {
			s, err := c.Jobs().Get(Context(t), id)
			if err == nil && s.Phase != want {
				err = fmt.Errorf("%s %s: %s %+v\n%s", s.State, s.Phase, s.Diagnostics, s.PendingReason, m.log(2, "nodemanager"))
			}
			return err
		})
	}
	ended, runs := submit("true"), submit("while [ ! -e "+end+" ]; do sleep 0.05; done")
	state(ended, "SUCCEEDED")
	state(runs, "RUNNING")
	file := filepath.Join(m.dir, "backup")
	if said := m.good("cluster", "backup", file, "-c", m.yaml(1)); !strings.Contains(said, "applications at entry") {
		t.Errorf("backup says %s", said)
	}
	since := submit("sleep 1000")
	state(since, "RUNNING")

	m.burnt(1)
	said := m.good("cluster", "restore", file)
	if !strings.Contains(said, "its only namenode and resource manager") {
		t.Errorf("restore says %s", said)
	}
	m.serve(1, "namenode")
	m.serve(1, "resourcemanager")
	m.nodes(2, 1)
	// Blocks of logs went with the only datanode, and in safe mode no application gets a token.
	m.eventually("the end of safe mode", func() error {
		if r := (Hops{T: t, Conf: filepath.Join(m.etc(1), "conf")}).Run("dfsadmin", "-safemode", "leave"); r.Status != 0 {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
	state(ended, "SUCCEEDED")
	if list, err := c.Jobs().List(Context(t)); err != nil || slices.ContainsFunc(list, func(s client.JobStatus) bool { return s.ID == since }) || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	again := submit("true")
	if again == since {
		t.Errorf("%s was given out twice", again)
	}
	state(again, "SUCCEEDED")
	state(runs, "RUNNING")
	if err := os.WriteFile(end, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	state(runs, "SUCCEEDED")
	m.eventually("what nobody knows of is stopped", func() error {
		if left := processes.Find("HOPS_APPLICATION_ID="+since, "sleep 1000"); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})

	t.Run("a restore by itself", func(t *testing.T) {
		m.dead(1)
		for _, lost := range []string{m.etc(1), filepath.Join(m.dir, "m1", "data", "namenode")} {
			if err := os.RemoveAll(lost); err != nil {
				t.Fatal(err)
			}
		}
		if said := m.good("cluster", "restore", file); !strings.Contains(said, "its only namenode. ") || !strings.Contains(said, "has the data of a resource manager, who knows more of the applications than the backup: it stays") {
			t.Errorf("beside a resource manager's data: %s", said)
		}
		for _, tried := range []struct {
			name, want string
			args       []string
		}{
			{"over the data of a resource manager", "has the data of a resource manager, and nothing is overwritten", []string{"resourcemanager", "restore", file, "-c", m.yaml(1)}},
			{"where none is configured", "has no section resourcemanager", []string{"resourcemanager", "restore", file, "-c", m.yaml(2)}},
		} {
			if r := m.run(tried.args...); r.Status == 0 || !strings.Contains(r.Stderr, tried.want) {
				t.Errorf("%s: %d %s%s", tried.name, r.Status, r.Stdout, r.Stderr)
			}
		}
		if err := os.RemoveAll(filepath.Join(m.dir, "m1", "data", "resourcemanager")); err != nil {
			t.Fatal(err)
		}
		m.good("resourcemanager", "restore", file, "-c", m.yaml(1))
		m.serve(1, "namenode")
		m.serve(1, "resourcemanager")
		state(ended, "SUCCEEDED")
	})
}
