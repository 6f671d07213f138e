package dfs

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
)

func TestWhoFollowsAFileAsksForItsLengthByOneConnection(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	var dialled atomic.Int32
	var last atomic.Pointer[net.Conn]
	client := cluster.client(Config{Replication: 1, Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if addr == cluster.nodes[0].ipc {
			dialled.Add(1)
			last.Store(&conn)
		}
		return conn, err
	}})
	w, err := client.Create(t.Context(), "/f", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	open := func(want, connections int) {
		t.Helper()
		r, err := client.Open(t.Context(), "/f")
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if r.Size() != int64(want) || int(dialled.Load()) != connections {
			t.Errorf("%d bytes and %d connections, want %d and %d", r.Size(), dialled.Load(), want, connections)
		}
	}
	for i := range 3 {
		if _, err := w.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		if err := w.Hflush(t.Context()); err != nil {
			t.Fatal(err)
		}
		open(10*(i+1), 1)
	}
	// One that is broken is no error, whether that shows before the call or by it.
	(*last.Load()).Close()
	open(30, 2)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if conn := client.ipc.take(cluster.nodes[0].ipc); conn != nil {
		t.Error("a connection is kept by a client that is closed")
	}
}
