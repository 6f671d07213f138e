package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// balanced is a cluster of four datanodes on disks of 64 MiB, two on each of two racks. The first of each rack have all the blocks.
type balanced struct {
	*Cluster
	fs    *dfs.Client
	files map[string][]byte
}

// A disk that fills must be small: a file system of its own, which takes root.
func startUnbalanced(t *testing.T, namenodes int) *balanced {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if os.Geteuid() != 0 {
		t.Skip("small disks are file systems of their own, which only root can mount")
	}
	dir := Dir(t)
	disks, racks := map[string]string{}, ""
	for i := 1; i <= 4; i++ {
		name := fmt.Sprintf("dn%d", i)
		disks[name] = filepath.Join(dir, "disk-"+name)
		if err := os.MkdirAll(disks[name], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", disks[name], "tmpfs", 0, "size=64m"); err != nil {
			t.Skipf("no file system can be mounted here: %v", err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(disks[name], syscall.MNT_DETACH) }) // after the servers' end: theirs was registered later
		racks += fmt.Sprintf("127.0.0.1%d /r%d\n", i, 2-i%2)
	}
	table := filepath.Join(dir, "racks")
	if err := os.WriteFile(table, []byte(racks), 0o644); err != nil {
		t.Fatal(err)
	}
	k := Lay(t, processes.Config{
		Dir: dir, Namenodes: namenodes, Datanodes: 4,
		Properties: map[string]string{"dfs.replication": "2", "dfs.blocksize": "1048576", "net.topology.table.file.name": table},
		Adjust: func(name string, f *config.File) {
			if f.Datanode == nil {
				return
			}
			f.Datanode.Volumes, f.Datanode.Reserve = []config.Volume{{Path: disks[name], Type: "DISK"}}, 1<<20
			f.Datanode.Transfer = strings.Replace(f.Datanode.Transfer, "127.0.0.1:", "127.0.0.1"+name[2:]+":", 1)
		},
	})
	for _, name := range k.Names() {
		if name == "dn3" || name == "dn4" {
			continue
		}
		k.must(k.Cluster.Start(name))
		k.Await("the cluster's identity", func() error { // the first one makes it
			_, err := os.Stat(k.File().Cluster.Identity)
			return err
		})
	}
	b := &balanced{Cluster: k, files: map[string][]byte{}}
	k.configured()
	b.fs = Dial(t, k.Conf(), "").FS()
	b.nodes(2)
	for i := range 28 {
		name := fmt.Sprintf("/f%02d", i)
		b.files[name] = bytes.Repeat([]byte{byte('A' + i)}, 1<<20)
		b.Await(name, func() error { return b.fs.WriteFile(Context(t), name, b.files[name], true) })
	}
	b.Await("two replicas of each block", func() error { // lest they be made on the others
		r, err := b.fs.Report(Context(t))
		if err == nil && r.Under > 0 {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	k.must(k.Cluster.Start("dn3"))
	k.must(k.Cluster.Start("dn4"))
	b.nodes(4)
	b.Await("two full datanodes and two empty ones", func() error {
		used, err := b.used()
		if err == nil && (used["dn1"] < 40 || used["dn2"] < 40 || used["dn3"] > 5 || used["dn4"] > 5) {
			err = fmt.Errorf("used: %v %%", used)
		}
		return err
	})
	return b
}

// nodes waits for so many datanodes whose racks are known.
func (b *balanced) nodes(want int) {
	b.T.Helper()
	b.Await(fmt.Sprintf("%d datanodes", want), func() error {
		nodes, err := b.fs.Datanodes(Context(b.T), dfs.LiveDatanodes)
		if err == nil && (len(nodes) != want || slices.ContainsFunc(nodes, func(n dfs.Datanode) bool { return !strings.HasPrefix(n.Rack, "/r") })) {
			err = fmt.Errorf("%+v", nodes)
		}
		if err == nil {
			err = b.leaderKnows(want)
		}
		return err
	})
}

// used are the parts of their capacity that the live datanodes use, in percent.
func (b *balanced) used() (map[string]float64, error) {
	nodes, err := b.fs.Datanodes(Context(b.T), dfs.LiveDatanodes)
	if err == nil && len(nodes) == 0 {
		err = errors.New("no datanode")
	}
	out := map[string]float64{}
	for _, n := range nodes {
		out["dn"+strings.TrimPrefix(n.IP, "127.0.0.1")] = 100 * float64(n.Used) / float64(n.Capacity)
	}
	return out, err
}

// whole checks that every byte is there, in two replicas on two racks, and that the datanodes are within 10 % of their mean.
func (b *balanced) whole() {
	b.T.Helper()
	b.Await("two replicas of each block, on datanodes that are as full as each other", func() error {
		r, err := b.fs.Report(Context(b.T))
		if err != nil {
			return err
		}
		used, err := b.used()
		if err != nil {
			return err
		}
		low, high, sum := 100.0, 0.0, 0.0
		for _, u := range used {
			low, high, sum = min(low, u), max(high, u), sum+u
		}
		mean := sum / float64(len(used))
		if r.Under+r.Missing+r.Corrupt+r.PendingDelete > 0 || len(used) != 4 || high > mean+10.5 || low < mean-10.5 { // what is no block counts too
			return fmt.Errorf("%+v, used: %v %%", r, used)
		}
		for name := range b.files {
			at, err := b.fs.BlockLocations(Context(b.T), name, 0, 1<<30)
			if err != nil {
				return err
			}
			for _, l := range at {
				if len(l.Datanodes) != 2 || l.Datanodes[0].Rack == l.Datanodes[1].Rack {
					return fmt.Errorf("%s is at %+v", name, l.Datanodes)
				}
			}
		}
		return nil
	})
	for name, want := range b.files {
		if got, err := b.fs.ReadFile(Context(b.T), name); err != nil || !bytes.Equal(got, want) {
			b.T.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if said := b.Hops().OK("fsck", "/"); !strings.Contains(said, "is HEALTHY") {
		b.T.Error(said)
	}
}

// running is a `hops balancer` under way.
type running struct {
	cmd   *exec.Cmd
	said  bytes.Buffer // after ended
	ended chan struct{}
}

func (b *balanced) begin(args ...string) *running {
	b.T.Helper()
	r := &running{cmd: exec.Command(Binary(b.T), append([]string{"balancer"}, args...)...), ended: make(chan struct{})}
	r.cmd.Env = Environ(b.T, b.Conf())
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	b.must(r.cmd.Start())
	go func() {
		_ = r.cmd.Wait() // its status is in the process's state
		close(r.ended)
	}()
	b.T.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// end waits for its end.
func (r *running) end() (status int, said string) {
	<-r.ended
	return r.cmd.ProcessState.ExitCode(), r.said.String()
}

// moving waits until blocks have come to a datanode.
func (b *balanced) moving(to string) {
	b.T.Helper()
	b.Await("blocks that are moved", func() error {
		used, err := b.used()
		if err == nil && used[to] < 1 {
			err = fmt.Errorf("used: %v %%", used)
		}
		return err
	})
}

// table are the lines of a balancer that went well, as HDFS's prints them; the last column but one is how many blocks were moved.
var table = regexp.MustCompile(`^Time Stamp               Iteration#  Bytes Already Moved  Bytes Left To Move  Bytes Being Moved  NameNode
([A-Z][a-z]{2} \d+, \d{4}, \d+:\d\d:\d\d [AP]M +\d+ +[\d.]+ [KMG]?B +[\d.]+ [KMG]?B +[\d.]+ [KMG]?B +\d+  hdfs://\S+
)+The cluster is balanced. Exiting...
[A-Z][a-z]{2} \d+, \d{4}, \d+:\d\d:\d\d [AP]M +Balancing took [\d.]+ (seconds|minutes)
$`)

func TestBalancerEvensOutDatanodesAndKeepsReplicasAndRacks(t *testing.T) {
	t.Parallel() // they wait more than they work
	b := startUnbalanced(t, 1)
	for range 2 { // the second one finds nothing to do
		said := b.Hops().OK("balancer", "-threshold", "10")
		t.Log(said)
		if !table.MatchString(said) {
			t.Errorf("%q", said)
		}
		b.whole()
	}
}

func TestBalancerHeedsBandwidthIsAloneAndEndsWhenInterrupted(t *testing.T) {
	t.Parallel() // they wait more than they work
	b := startUnbalanced(t, 1)
	const rate = 256 << 10
	b.Hops().OK("dfsadmin", "-setBalancerBandwidth", fmt.Sprint(rate))
	began := time.Now()
	first := b.begin("-threshold", "10")
	b.moving("dn3")
	second := b.Hops().Run("balancer")
	if second.Status != 255 || !strings.Contains(second.Stdout, "Another Balancer is running..  Exiting ...") {
		t.Errorf("a second balancer: status %d: %s%s", second.Status, second.Stdout, second.Stderr)
	}
	b.must(first.cmd.Process.Signal(syscall.SIGINT))
	if status, said := first.end(); status != 250 || !strings.Contains(said, "Balancing took") { // -6
		t.Errorf("a balancer that is interrupted: status %d: %s", status, said)
	}
	// Two datanodes give: they have sent no more than they may, however long that took.
	used, err := b.used()
	b.must(err)
	most := 2 * rate * (time.Since(began).Seconds() + 1)
	if came := (used["dn3"] + used["dn4"]) / 100 * (64 << 20); came > most {
		t.Errorf("%.0f bytes came in a time in which %.0f could", came, most)
	}
	b.Hops().OK("dfsadmin", "-setBalancerBandwidth", fmt.Sprint(100<<20))
	if said := b.Hops().OK("balancer", "-threshold", "10"); !table.MatchString(said) {
		t.Errorf("the one after it: %s", said)
	}
	b.whole()
}

func TestBalancerLosesNothingWithTheLeader(t *testing.T) {
	t.Parallel() // they wait more than they work
	b := startUnbalanced(t, 3)
	b.Hops().OK("dfsadmin", "-setBalancerBandwidth", fmt.Sprint(2<<20)) // so that the end of the leader comes into the middle
	r := b.begin("-threshold", "10")
	b.moving("dn3")
	leader := b.Leader(b.fs)
	b.must(b.Kill(leader))
	status, said := r.end()
	if status != 0 || !strings.Contains(said, "The cluster is balanced. Exiting...") {
		t.Errorf("the balancer ends with %d and says\n%s", status, said)
	}
	b.must(b.Cluster.Start(leader))
	b.whole()
}

func TestBalancerLosesNothingWithADatanode(t *testing.T) {
	t.Parallel() // they wait more than they work
	b := startUnbalanced(t, 1)
	b.Hops().OK("dfsadmin", "-setBalancerBandwidth", fmt.Sprint(2<<20))
	r := b.begin("-threshold", "10", "-idleiterations", "2")
	b.moving("dn3")
	b.must(b.Kill("dn3"))
	b.Await("its end to be noticed", func() error {
		used, err := b.used()
		if err == nil && len(used) != 3 {
			err = fmt.Errorf("%v", used)
		}
		return err
	})
	b.must(b.Cluster.Start("dn3"))
	status, said := r.end() // done, or it says why not
	if status != 0 && !regexp.MustCompile(`(No block can be moved|No block has been moved for 2 iterations)\. Exiting\.\.\.`).MatchString(said) {
		t.Errorf("the balancer ends with %d and says\n%s", status, said)
	}
	b.nodes(4)
	b.Hops().OK("dfsadmin", "-setBalancerBandwidth", fmt.Sprint(100<<20))
	b.Await("a balancer that goes on", func() error {
		if r := b.Hops().Run("balancer", "-threshold", "10", "-idleiterations", "1"); r.Status != 0 {
			return fmt.Errorf("status %d: %s%s", r.Status, r.Stdout, r.Stderr)
		}
		return nil
	})
	b.whole()
}
