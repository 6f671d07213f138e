package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// strangersOrder is to keep connections open on addresses.
type strangersOrder struct {
	Addrs []string
	// Connections on each of them.
	Connections int
	// Hello is sent on each.
	Hello []byte
	// Again is how soon a dropped one is made again, in milliseconds.
	Again int
}

// strangers holds connections that say little or nothing. What comes is read and forgotten.
func strangers(ctx context.Context, _ *part, o strangersOrder) (sent, error) {
	answers := make(chan sent, len(o.Addrs))
	for _, addr := range o.Addrs {
		go func() {
			one, _ := connections(ctx, addr, o.Connections, time.Duration(o.Again)*time.Millisecond, func(c *net.TCPConn, counted net.Conn) error {
				if len(o.Hello) > 0 {
					if _, err := counted.Write(o.Hello); err != nil {
						return nil
					}
				}
				_, _ = io.Copy(io.Discard, c) // how a held connection ends is counted, not told
				return nil
			})
			answers <- one
		}()
	}
	var total sent
	for range o.Addrs {
		one := <-answers
		total.Bytes += one.Bytes
		total.Connections += one.Connections
		total.Dropped += one.Dropped
	}
	return total, nil
}

// noLeader is how long a failover may take before it counts as none.
const noLeader = 20 * time.Second

// raftPorts holds connections to every Raft port while the leader dies.
func raftPorts(connections int) func(context.Context, *scene, *result) error {
	return func(ctx context.Context, s *scene, r *result) error {
		const rounds = 3
		calm, err := s.failovers(ctx, rounds)
		if err != nil {
			return err
		}
		o := strangersOrder{Connections: connections, Again: 50}
		for _, n := range s.k.File().Namenodes {
			o.Addrs = append(o.Addrs, n.Raft)
		}
		a, err := s.start(attackerID, "strangers", o)
		if err != nil {
			return err
		}
		pause(ctx, 2*time.Second) // until the places are taken
		attacked, err := s.failovers(ctx, rounds)
		var total sent
		if err = errors.Join(err, a.end(&total)); err != nil {
			return err
		}
		r.sent(total)
		name := "first write after the leader's death"
		r.Calm = []waits{{Name: name, Done: len(calm), Worst: slices.Max(calm)}}
		r.Beside = []waits{{Name: name, Done: len(attacked), Worst: slices.Max(attacked)}}
		r.found("calm %s; attacked %s", durations(calm), durations(attacked))
		if worst := slices.Max(attacked); worst >= noLeader.Seconds()*1000 {
			r.missed("no leader within %s", duration(worst))
		}
		return nil
	}
}

func durations(ms []float64) string {
	var out []string
	for _, d := range ms {
		out = append(out, duration(d))
	}
	return strings.Join(out, " ")
}

// failovers kills the leader some times, with all namenodes there before each, and returns how many milliseconds passed
// until the next acknowledged write. One without a leader is the last.
func (s *scene) failovers(ctx context.Context, rounds int) ([]float64, error) {
	var out []float64
	for range rounds {
		leader, err := s.standing(ctx)
		if err != nil {
			return out, err
		}
		var others []string
		for _, n := range s.k.File().Namenodes {
			if n.ID != leader {
				others = append(others, n.IPC)
			}
		}
		started := time.Now()
		if err := s.kill(leader); err != nil {
			return out, err
		}
		ok := firstWrite(ctx, others, noLeader)
		out = append(out, float64(time.Since(started).Milliseconds()))
		if err := s.restart(leader); err != nil {
			return out, err
		}
		if !ok {
			return out, nil
		}
	}
	return out, nil
}

// standing waits until all namenodes answer, and returns the one that leads.
func (s *scene) standing(ctx context.Context) (leader string, err error) {
	err = s.k.Await(40*time.Second, "all namenodes", func() error {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		leader = ""
		for _, st := range s.fs.HAState(attempt) {
			switch {
			case st.State == "active":
				for _, n := range s.k.File().Namenodes {
					if n.IPC == st.Address {
						leader = n.ID
					}
				}
			case st.State != "standby":
				return errors.Join(fmt.Errorf("%s is %q", st.Address, st.State), st.Err)
			}
		}
		if leader == "" {
			return errors.New("none of them leads")
		}
		return nil
	})
	return leader, err
}

// firstWrite asks the namenodes one after the other until one has made a directory.
func firstWrite(ctx context.Context, addrs []string, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	clients := make([]*hrpc.Client, len(addrs))
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	path := fmt.Sprintf("/scene/free/first-%d", time.Now().UnixNano())
	for i := 0; ctx.Err() == nil; i = (i + 1) % len(addrs) {
		if clients[i] == nil {
			c, err := dialIPC(ctx, addrs[i], ownName())
			if err != nil {
				pause(ctx, 5*time.Millisecond)
				continue
			}
			clients[i] = c
		}
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		var made hadooppb.MkdirsResponseProto
		err := clients[i].Call(attempt, clientProtocol, "mkdirs", &hadooppb.MkdirsRequestProto{
			Src: &path, Masked: &hadooppb.FsPermissionProto{Perm: new(uint32(0o755))}, CreateParent: new(true),
		}, &made)
		cancel()
		if err == nil && made.GetResult() {
			return true
		}
		if _, refused := errors.AsType[*hrpc.RemoteError](err); !refused {
			clients[i].Close()
			clients[i] = nil
		}
		pause(ctx, 5*time.Millisecond)
	}
	return false
}
