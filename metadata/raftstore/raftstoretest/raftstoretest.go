// Package raftstoretest makes groups for the tests of state machines and services.
package raftstoretest

import (
	"net"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata/raftstore"
)

// Single runs a group of one member over the state machine in a temporary directory until the test ends. It returns when
// the member leads.
func Single(t testing.TB, machine raftstore.StateMachine) *raftstore.Group {
	t.Helper()
	return SingleIn(t, t.TempDir(), machine)
}

// SingleIn is Single in a directory of the caller's: a second call after Group.Close is a restart.
func SingleIn(t testing.TB, dir string, machine raftstore.StateMachine) *raftstore.Group {
	t.Helper()
	host := Host(t, "one", dir)
	group, err := host.Open(raftstore.GroupConfig{Name: "test", Bootstrap: true, SegmentBytes: 1 << 20}, machine)
	if err != nil {
		t.Fatal(err)
	}
	AwaitLeader(t, group)
	return group
}

// Host returns a host on a loopback port of its own, with a secret of its own. A group of several members needs one
// secret: see raftstore.HostConfig.
func Host(t testing.TB, id, dir string) *raftstore.Host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: id, Listener: l, Dir: dir, Door: security.NewDoor(security.Config{}), Credentials: securitytest.Credentials(t), Role: authority.Namenode, Reserve: -1,
		WriteDeadline: time.Hour, // others use the disk
		OnFatal:       func(err error) { t.Errorf("the Raft store failed: %v", err) },
	})
	if err != nil {
		l.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("close the Raft host: %v", err)
		}
	})
	return host
}

// AwaitLeader waits until the group's member leads.
func AwaitLeader(t testing.TB, g *raftstore.Group) {
	t.Helper()
	ready := make(chan struct{})
	closed := false
	g.Watch(func(l raftstore.Leadership) {
		if l.Leader && !closed {
			closed = true
			close(ready)
		}
	})
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatalf("no leader after a minute: %+v", g.Status())
	}
}
