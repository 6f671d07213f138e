package server

import (
	"net/http"
	"testing"
	"time"

	"github.com/gohops/hops/namenode"
)

// report is what the namenode says of a datanode; nil: nothing.
func (m *member) report(uuid string) *namenode.NodeReport {
	for _, r := range m.Datanodes() {
		if string(r.Node.ID) == uuid {
			return &r
		}
	}
	return nil
}

// A datanode that does not come back after all namenodes were started anew is listed as dead, is decommissioned and forgotten by name, and is not
// listed before it had time to come.
func TestDatanodesThatDoNotComeBackAreListed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(c *Config) { c.StaleAfter, c.DeadAfter = 2*time.Second, 4*time.Second })
	gone := c.datanode("d1")
	stays := c.datanode("d2")
	was := *c.leader().report("d1").Node
	eventually(t, "both are known", func() bool {
		n := 0
		for range c.leader().ns.Items(known) {
			n++
		}
		return n == 2
	})
	gone.stop()
	stays.stop()
	c.nodes[0].stop()
	c.start(0)
	c.await(0)
	c.datanode("d2")
	m := c.leader()
	if r := m.report("d1"); r != nil && time.Since(*m.started.Load()) < m.config.DeadAfter {
		t.Errorf("it is dead before it had time to come: %+v", r)
	}
	eventually(t, "the one that is gone is listed", func() bool { return m.report("d1") != nil })
	if r := m.report("d1"); r.Alive || r.Node.TransferAddr() != was.TransferAddr() || r.Node.Host != was.Host || r.Node.HTTPPort != was.HTTPPort || r.Node.Machine != was.Machine ||
		time.Since(r.LastBeat) < m.config.DeadAfter {
		t.Errorf("%+v, and was %+v", r, was)
	}
	eventually(t, "the other one lives", func() bool { r := m.report("d2"); return r != nil && r.Alive })
	if n := len(m.Datanodes()); n != 2 {
		t.Errorf("%d datanodes: %+v", n, m.Datanodes())
	}
	super := m.config.Door.Daemon()
	if status, why := m.operate(t, "DELETE", "/api/v1/datanodes/"+was.TransferAddr(), super); status != http.StatusOK {
		t.Fatalf("%d %s", status, why)
	}
	eventually(t, "it is forgotten", func() bool { return m.report("d1") == nil })
	if value, _ := m.ns.Item(known + "d1"); value != nil {
		t.Errorf("%s", value)
	}
	// One that comes back after that is as known as before.
	c.datanode("d1")
	eventually(t, "it is known again", func() bool { value, _ := m.ns.Item(known + "d1"); return value != nil })
}
