package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// abandoned is a file of 77 synced bytes whose writer and only datanode, dn1, are gone; the namenode was started again since if
// restart is set. It is under recovery, and waits.
func abandoned(t *testing.T, c *cluster, restart bool) metadata.INodeID {
	t.Helper()
	dn1 := c.datanode("dn1")
	w := c.leader().begin(t, "/wal", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(77)
	dn1.has(metadata.Block{ID: b.ID, Generation: b.Generation}, pb.ReplicaState_RBW)
	m := c.leader()
	got := make(chan error, 1)
	m.Fsync(m.caller(), namenode.FileRef{Path: "/wal"}, "writer", -1, func(err error) { got <- err })
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if !restart {
		dn1.die()
	} else {
		dn1.stop()
		c.nodes[0].stop()
		c.start(0)
		c.await(0)
		m = c.leader()
	}
	c.datanode("dn2") // has reported, and has nothing
	eventually(t, "the namenode is out of safe mode", func() bool { return m.SafeMode() == "" })
	recoverLease(t, c)
	id, err := m.ns.Resolve(m.caller(), "/wal")
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := m.ns.FileByID(id); !ok || !f.UnderConstruction || f.LastState != namespace.UnderRecovery {
		t.Fatalf("the file is not under recovery: %+v", f)
	}
	return id
}

// Nothing is known of what a datanode had that never comes back, until an operator says that it never does.
func TestAForgottenDatanodeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"died while the namenode ran": false, "not heard of since the namenode started": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, func(c *Config) {
				if restart { // the namenode waits for so long
					c.StaleAfter, c.DeadAfter = 5*time.Second, 20*time.Second
				}
			})
			id := abandoned(t, c, restart)
			m := c.leader()
			super := m.config.Door.Daemon()
			refused := func(status int, words, node, user string) {
				t.Helper()
				if got, why := m.operate(t, "DELETE", "/api/v1/datanodes/"+node, user); got != status || !strings.Contains(why, words) {
					t.Fatalf("forget %s by %s: %d %q, want %d and %q", node, user, got, why, status, words)
				}
			}
			refused(403, "alice is not a superuser", "dn1", "alice")
			refused(409, "datanode dn2 lives", "dn2", super)
			refused(400, "no datanode dn9", "dn9", super)
			eventually(t, "dn1 can be forgotten", func() bool {
				status, why := m.operate(t, "DELETE", "/api/v1/datanodes/dn1", super)
				if status != http.StatusOK && !strings.Contains(why, "lives") && !strings.Contains(why, "wait") {
					t.Fatalf("forget: %d %s", status, why)
				}
				return status == http.StatusOK
			})
			eventually(t, "the file is closed without the block", func() bool {
				f, ok := m.ns.FileByID(id)
				return ok && !f.UnderConstruction && len(f.Blocks) == 0
			})
			if slices.ContainsFunc(m.Datanodes(), func(r namenode.NodeReport) bool { return r.Node.ID == "dn1" }) {
				t.Error("dn1 is still listed")
			}
			if d := c.datanode("dn1"); !slices.ContainsFunc(m.Datanodes(), func(r namenode.NodeReport) bool { return string(r.Node.ID) == d.uuid && r.Alive }) {
				t.Error("dn1 has come back and is not listed")
			}
			eventually(t, "dn1 is not forgotten any more", func() bool { return len(m.ns.Forgotten()) == 0 })
		})
	}
}

// Every leader knows, also one that was started since.
func TestForgottenDatanodesOutliveTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	d := c.datanode("dn1")
	c.datanode("dn2")
	d.die()
	var lead *member
	eventually(t, "dn1 is forgotten by its address", func() bool {
		lead = c.leader()
		status, why := lead.operate(t, "DELETE", "/api/v1/datanodes/127.0.0.1:"+d.address(), lead.config.Door.Daemon())
		if status != http.StatusOK && status != http.StatusMisdirectedRequest {
			t.Fatalf("forget: %d %s", status, why)
		}
		return status == http.StatusOK
	})
	eventually(t, "no namenode lists dn1", func() bool {
		for _, m := range c.nodes {
			if slices.ContainsFunc(m.Datanodes(), func(r namenode.NodeReport) bool { return r.Node.ID == "dn1" }) {
				return false
			}
		}
		return true
	})
	for i, m := range c.nodes {
		if m == lead {
			m.stop()
			c.start(i)
			c.await(i)
		}
	}
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" knows", func() bool { return slices.Equal(m.ns.Forgotten(), []string{"dn1"}) })
	}
	next := c.leader()
	eventually(t, "the next leader does not wait for dn1", func() bool {
		next.soft.mu.Lock()
		defer next.soft.mu.Unlock()
		return slices.Equal(next.soft.m.Late([]string{"dn1", "dn7"}), []string{"dn7"})
	})
}

func (d *datanode) address() string { return strconv.Itoa(int(d.port)) }
