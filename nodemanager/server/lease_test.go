package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestAnOutageOfTheResourceManagersEndsOnlyFencedContainers(t *testing.T) {
	t.Parallel()
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	c := baseConfig(t, work, m.address)
	c.NodeID = nodeName(10)
	n := run(t, c)
	free, strict := spec(t, 2, "sh", "-c", `echo $$ > main.pid; exec sleep 100`), spec(t, 3, "sh", "-c", `echo $$ > main.pid; exec sleep 100`)
	strict.Fencing = rmpb.Fencing_FENCING_STRICT
	m.start(free)
	m.start(strict)
	goesOn := pidIn(t, work, 2, "main.pid")
	m.until("the strict one has begun", func(r *rmpb.NodeReport) bool { // a machine under load may end it at once
		return find(r, strict.ContainerId).GetState() >= rmpb.ContainerStatus_RUNNING
	})
	m.set(func() { m.silent = true })
	eventually(t, "the node has no lease", func() bool { return !n.leaseHolds() })
	if !lives(goesOn) {
		t.Error("a container without fencing was ended by an outage")
	}
	// The same for the one that an outage and a restart of the node manager come together for.
	n.close(false)
	m.forget()
	c.HTTP = baseConfig(t, work).HTTP
	run(t, c)
	m.set(func() { m.silent = false })
	m.untilState(free.ContainerId, rmpb.ContainerStatus_RUNNING)
	if got := m.untilState(strict.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 {
		t.Errorf("%v", got)
	}
	if !lives(goesOn) {
		t.Error("a container without fencing was ended by an outage")
	}
}

// A disk that takes no write: the record of a new container does not get through.
func TestADiskThatHangsKeepsNobodyElsesLease(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	n := run(t, baseConfig(t, work, m.address))
	other := spec(t, 2, "sleep", "100")
	m.start(other)
	m.untilState(other.ContainerId, rmpb.ContainerStatus_RUNNING)
	late := spec(t, 3, "true")
	dir := filepath.Join(work, "containers", late.ContainerId)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "record.json.tmp") // who writes it waits until somebody reads
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f, err := os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	m.start(late)
	before := n.currentLease()
	eventually(t, "the lease goes on past its old end", func() bool { return n.currentLease().Term > before.Kill })
	if got := find(m.report(), other.ContainerId); got.GetState() != rmpb.ContainerStatus_RUNNING {
		t.Errorf("another's container is %v", got)
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: late.ContainerId, ExitStatus: -100, Reason: "released"}}})
	m.untilState(late.ContainerId, rmpb.ContainerStatus_STOPPING)
}

func TestANewTermIsObeyedThoughItCannotBeWritten(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	eventually(t, "the first term is written", func() bool { return n.store.RecordedTerm() == 1 })
	obstacle := filepath.Join(work, "node.json.tmp")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	before := n.currentLease()
	m.set(func() { m.term = 7 })
	m.more(3)
	eventually(t, "lease extended by the new term", func() bool { return n.currentLease().Term > before.Term && n.store.Term() == 7 })
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the term is written when that is possible", func() bool {
		text, err := os.ReadFile(filepath.Join(work, "node.json"))
		return err == nil && string(text) != "" && n.store.RecordedTerm() == 7
	})
}

// shortLease ends within a test, but not while a busy machine starts a container. Tests that wait for its end do so together.
const shortLease = 12 * time.Second

func TestKilledNodeManagerLeavesNothingAfterItsLease(t *testing.T) {
	t.Parallel()
	m, work := newManager(t, ""), t.TempDir()
	t.Cleanup(func() { supervisorsEnd(t, work) })
	m.lease = shortLease
	start := func() *exec.Cmd {
		cmd := exec.Command(self(t), "nodemanager", work, m.address)
		cmd.Stderr = testWriter{t}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	nm := start()
	s := spec(t, 2, "sh", "-c", `trap '' TERM; echo $$ > main.pid; "$SELF" orphan; while :; do sleep 0.02; done`)
	s.Fencing = rmpb.Fencing_FENCING_STRICT
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main, orphan := pidIn(t, work, 2, "main.pid"), pidIn(t, work, 2, "orphan.pid")
	held := func() supervisor.Instant {
		st, err := supervisor.NewClient(filepath.Join(work, "containers", containerName(2))).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Lease.Kill
	}
	first := held()
	eventually(t, "a renewal reaches the container", func() bool { return held() > first })
	nm.Process.Kill()
	nm.Wait()
	eventually(t, "the tree is gone", func() bool { return !lives(main) && !lives(orphan) })
	m.forget()
	start()
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "lease") {
		t.Errorf("%v", got)
	}
}

func TestPartitionedNodeEndsItsContainersBeforeTheLease(t *testing.T) {
	t.Parallel()
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", `echo $$ > main.pid; exec sleep 100`)
	s.Fencing = rmpb.Fencing_FENCING_STRICT
	m.start(s)
	main := pidIn(t, work, 2, "main.pid")
	m.set(func() { m.silent = true })
	eventually(t, "gone", func() bool { return !lives(main) })
	m.set(func() { m.silent = false })
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "lease") {
		t.Errorf("%v", got)
	}
}

func TestLeaderIsFoundAndOldTermsAreNotObeyed(t *testing.T) {
	first, second := newManager(t, ""), newManager(t, "")
	first.standby = "not the leader; try " + second.address
	n := run(t, baseConfig(t, t.TempDir(), first.address, "127.0.0.1:1", second.address))
	<-n.Ready()
	second.until("report", func(r *rmpb.NodeReport) bool { return r.GetSequence() > 0 })
	second.set(func() { second.term = 5 })
	s := spec(t, 2, "sleep", "100")
	second.start(s)
	second.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	// The old leader speaks again, with its old term.
	second.set(func() { second.standby = "gone" })
	first.set(func() { first.standby, first.term = "", 4 })
	first.until("report", func(r *rmpb.NodeReport) bool { return r.GetSequence() > 0 })
	before := n.currentLease()
	first.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -100}}})
	if got := find(first.more(2), s.ContainerId); got.GetState() != rmpb.ContainerStatus_RUNNING {
		t.Errorf("an order of an old term was obeyed: %v", got)
	}
	if n.currentLease() != before {
		t.Error("an acknowledgement of an old term extended the lease")
	}
	first.set(func() { first.term = 6 })
	eventually(t, "lease extended by the new term", func() bool { return n.currentLease().Term > before.Term })
}

// TestNothingStartsWithoutALease: a container that was being localized when the node manager was killed.
func TestNothingStartsWithoutALease(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	s := spec(t, 2, "sleep", "100")
	store, err := state.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Create(&state.Record{Spec: specOf(s), State: nodemanager.Localizing, Boot: state.BootID()}); err != nil {
		t.Fatal(err)
	}
	store.Close()
	m.silent = true
	run(t, baseConfig(t, work, m.address))
	if got := find(m.more(5), s.ContainerId); got.GetState() != rmpb.ContainerStatus_LOCALIZING {
		t.Errorf("without a lease: %v", got)
	}
	m.set(func() { m.silent = false })
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
}

func TestLeaseDeadlinesLieBeforeItsEnd(t *testing.T) {
	for _, d := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 10 * time.Second, time.Minute} {
		l := deadlines(supervisor.Instant(time.Hour), d)
		begin := supervisor.Instant(time.Hour) - supervisor.Instant(d)
		if !(l.Term < l.Kill && l.Kill < supervisor.Instant(time.Hour)) || l.Term.Sub(begin) < d*7/10 {
			t.Errorf("%v: term after %v, kill after %v", d, l.Term.Sub(begin), l.Kill.Sub(begin))
		}
	}
}
