package server

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestAnOutageOfTheResourceManagersEndsOnlyFencedContainers(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	m.lease = shortLease
	n := run(t, baseConfig(t, work, m.address))
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
	m.set(func() { m.last = nil })
	run(t, baseConfig(t, work, m.address))
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
