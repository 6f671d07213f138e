package raftstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

func TestStrangersAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(g *GroupConfig) { g.Cluster = "c1" }
	c.prepare = func(h *Host) { h.headerTimeout = patience }
	c.start("a")
	addr := c.nodes["m1"].addr
	greet := func(credentials security.Credentials, group, cluster string) error {
		s := &streams{host: &Host{cfg: HostConfig{Credentials: credentials, Role: authority.Namenode}}, group: group, lineage: func() string { return cluster }, open: map[net.Conn]struct{}{}}
		conn, err := s.Dial(raft.ServerAddress(addr), patience)
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := greet(c.credentials, "a", "c1"); err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"does not carry group":                   greet(c.credentials, "b", ""),
		"belongs to cluster c1":                  greet(c.credentials, "a", "c2"),
		"the certificate is not of this cluster": greet(securitytest.Credentials(t), "a", "c1"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	// Somebody with the secret and no manners.
	for _, first := range []string{"GET / HTTP/1.1\r\n\r\n", streamMagic + "\x02\x01a\x00", streamMagic + "\x01\xff"} {
		conn, err := c.credentials.Key().Dial(ctx(t), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(first))
		conn.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(time.Now().Add(patience))
		if first[:4] != streamMagic[:4] || first[8] != 1 {
			if b, err := io.ReadAll(conn); err != nil && len(b) > 0 {
				t.Errorf("%q was answered with %q", first, b)
			}
		}
		conn.Close()
	}
	c.propose("a", set("x", 1))
}

func TestStopDoesNotWaitForSilentConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.prepare = func(h *Host) { h.headerTimeout = time.Hour }
	c.start("a")
	c.leader("a")
	for range 5 {
		conn, err := net.Dial("tcp", c.nodes["m1"].addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	c.stop("m1")
}

func TestHostEndsWhenItsListenerDoes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	nd := c.host("m1")
	nd.host.cfg.Listener.Close()
	select {
	case err := <-nd.ended:
		if err == nil || !strings.Contains(err.Error(), "raft listener") {
			t.Fatalf("ended with %v", err)
		}
		nd.ended <- nil
	case <-time.After(patience):
		t.Fatal("the host runs on without a listener")
	}
}

func FuzzHeader(f *testing.F) {
	var b bytes.Buffer
	if err := writeHeader(&b, questionMagic, "namespace", "cluster"); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(streamMagic + "\x01\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		kind, group, cluster, err := readHeader(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeHeader(&again, kind, group, cluster); err != nil || !bytes.HasPrefix(raw, again.Bytes()) {
			t.Fatalf("%q, %q from %q", group, cluster, raw)
		}
	})
}

func FuzzBatch(f *testing.F) {
	f.Add(encodeBatch([]*proposal{{command: []byte("a")}, {command: nil}, {command: make([]byte, 300)}}))
	f.Add([]byte{batchVersion, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, raw []byte) {
		commands, err := decodeBatch(1, raw)
		if err != nil {
			return
		}
		size := 0
		for _, c := range commands {
			size += len(c)
		}
		if size > len(raw) {
			t.Fatalf("%d bytes of commands in %d", size, len(raw))
		}
	})
}

func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	w, _ := newFrameWriter(&b, 7)
	w.Write([]byte("state"))
	w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) { verifyFrames(bytes.NewReader(raw)) })
}

// Connections of somebody who knows no secret, more than there are places, made again whenever they are dropped, keep no
// member from voting: a new leader is there and takes commands.
func TestStrangersDoNotHoldUpAnElection(t *testing.T) {
	for _, who := range []struct {
		name string
		uid  uint32
	}{{"of another user", 4294000000}, {"of the servers' user", uint32(os.Geteuid())}} {
		t.Run(who.name, func(t *testing.T) {
			attacker := net.IPv4(127, 0, 0, 2)
			c := newCluster(t, 3)
			c.configure = func(h *HostConfig) {
				h.Door = security.NewDoor(security.Config{Logger: h.Logger, Owner: func(a security.ConnAddrs) (uint32, error) {
					if a.Remote.(*net.TCPAddr).IP.Equal(attacker) {
						return who.uid, nil
					}
					return uint32(os.Geteuid()), nil
				}})
			}
			c.start("a")
			c.propose("a", set("x", 1))
			ctx, end := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			defer wait.Wait()
			defer end()
			attack := func(addr string) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: attacker}}
				for ctx.Err() == nil {
					conn, err := d.DialContext(ctx, "tcp", addr)
					if err != nil {
						return // the member that is stopped
					}
					unblock := context.AfterFunc(ctx, func() { conn.Close() })
					io.Copy(io.Discard, conn) // until it is dropped
					unblock()
					conn.Close()
				}
			}
			for _, nd := range c.nodes {
				for range 300 {
					wait.Go(func() { attack(nd.addr) })
				}
			}
			leader := c.leader("a").host.ID()
			c.stop(leader)
			c.propose("a", set("x", 2), leader)
		})
	}
}

// lineWriter tells of each line of a log as long as somebody listens.
type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}

// A listener that was shut down, as those of a process that is about to end are, accepts nothing any more: the host ends, and does not fill the log.
func TestAHostEndsWithAListenerThatWasShutDown(t *testing.T) {
	t.Parallel()
	credentials, _, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(lineWriter, 1)
	h, err := NewHost(HostConfig{
		ID: "m1", Listener: l, Dir: t.TempDir(), Door: security.NewDoor(security.Config{}), Credentials: credentials, Role: authority.Namenode, Reserve: -1,
		Logger: slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn})), WriteDeadline: busyDisk,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("it ends with %v", err)
		}
	case line := <-said:
		t.Errorf("it goes on, and says %s", line)
		stop()
		<-ended
	}
}
