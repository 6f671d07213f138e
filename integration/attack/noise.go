package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// floodStats keeps o.Calls stats under way on each connection, and takes the answers: a user with much work.
func floodStats(ctx context.Context, _ *part, o floodOrder) (sent, error) {
	batch := []byte{}
	const calls = 100
	for i := range calls {
		batch = append(batch, callFrame(int32(i), "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: &o.Path})...)
	}
	return connections(ctx, o.Addr, o.Connections, 300*time.Millisecond, func(c *net.TCPConn, counted net.Conn) error {
		if _, err := counted.Write(greeting(o.User)); err != nil {
			return err
		}
		places := make(chan struct{}, max(1, o.Calls/calls)) // a batch each
		var g errgroup.Group
		g.Go(func() error {
			for ctx.Err() == nil {
				select {
				case places <- struct{}{}:
				case <-ctx.Done():
					return nil
				}
				if _, err := counted.Write(batch); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			defer c.Close()
			r := bufio.NewReaderSize(c, 64<<10)
			for n := 1; ; n++ {
				var length [4]byte
				if _, err := io.ReadFull(r, length[:]); err != nil {
					return err
				}
				if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint32(length[:]))); err != nil {
					return err
				}
				if n%calls == 0 {
					<-places
				}
			}
		})
		return g.Wait()
	})
}

// stats: what one user's flood does to another one's stats.
func stats(ctx context.Context, s *scene, r *result) error {
	o := floodOrder{Addr: s.namenode(0).IPC, User: nameOf(attackerID), Connections: 8, Calls: 4000, Path: "/scene/probe"}
	err := s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.stat(), s.newStat()}, attackers: []order{{"stats", o}},
		length: s.length(20 * time.Second), settle: s.settling(),
	})
	for i, w := range r.Beside {
		r.found("%s: median %s, in calm %s", w.Name, duration(w.Median), duration(r.Calm[i].Median))
	}
	return err
}

// noiseOrder is to trouble ports.
type noiseOrder struct{ Addrs []string }

// garble sends random bytes, again and again.
func garble(ctx context.Context, _ *part, o noiseOrder) (sent, error) {
	return onEach(ctx, o.Addrs, func(ctx context.Context, addr string) (sent, error) {
		return connections(ctx, addr, 4, 50*time.Millisecond, func(c *net.TCPConn, counted net.Conn) error {
			noise := make([]byte, 4<<10)
			rand.Read(noise) // never fails
			_, _ = counted.Write(noise)
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = io.Copy(io.Discard, c) // how it ends is counted
			return nil
		})
	})
}

// crawl sends the beginning of something sensible, a byte a second.
func crawl(ctx context.Context, _ *part, o noiseOrder) (sent, error) {
	request := append([]byte("GET /"), make([]byte, 1000)...)
	for i := 5; i < len(request); i++ {
		request[i] = 'x'
	}
	return onEach(ctx, o.Addrs, func(ctx context.Context, addr string) (sent, error) {
		return connections(ctx, addr, 200, time.Second, func(_ *net.TCPConn, counted net.Conn) error {
			for i := range request {
				if _, err := counted.Write(request[i : i+1]); err != nil {
					return nil // it was dropped, which is counted
				}
				pause(ctx, time.Second)
			}
			return errors.New("a request that came in a thousand seconds was awaited")
		})
	})
}

// onEach does the same on all addresses at once.
func onEach(ctx context.Context, addrs []string, f func(context.Context, string) (sent, error)) (sent, error) {
	answers := make(chan sent, len(addrs))
	var g errgroup.Group
	for _, addr := range addrs {
		g.Go(func() error {
			one, err := f(ctx, addr)
			answers <- one
			return err
		})
	}
	err := g.Wait()
	close(answers)
	var total sent
	for one := range answers {
		total.Bytes += one.Bytes
		total.Connections += one.Connections
		total.Dropped += one.Dropped
	}
	return total, err
}

// ports are those of all servers.
func (s *scene) everyPort() ([]string, error) {
	var out []string
	for _, n := range s.k.File().Namenodes {
		out = append(out, n.IPC, n.HTTP, n.GRPC, n.Raft)
	}
	for _, m := range s.k.File().ResourceManagers {
		out = append(out, m.HTTP, m.GRPC, m.Raft)
	}
	for _, name := range s.k.Names() {
		f, err := s.k.Server(name)
		if err != nil {
			return nil, err
		}
		if d := f.Datanode; d != nil {
			out = append(out, d.Transfer, d.HTTP, d.IPC, d.GRPC)
		}
		if n := f.NodeManager; n != nil {
			out = append(out, n.HTTP)
		}
	}
	return out, nil
}

// noise: garbage, and requests that never end, on every port.
func noise(ctx context.Context, s *scene, r *result) error {
	addrs, err := s.everyPort()
	if err != nil {
		return err
	}
	o := noiseOrder{Addrs: addrs}
	return s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.newStat(), s.webHDFS(), s.newWrite(), s.managerList()}, attackers: []order{{"garble", o}, {"crawl", o}},
		length: s.length(40 * time.Second), settle: s.settling(),
	})
}
