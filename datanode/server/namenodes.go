package server

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/metadata"
)

// The list of namenodes may change while the datanode works: it begins with the configuration's, and SetNamenodes replaces
// it. Each namenode has a session; one that leaves the list loses it.

// all are the sessions, one a namenode, in the order of the list. Nobody modifies the slice.
func (s *Server) all() []*session { return *s.sessions.Load() }

// SetNamenodes replaces the list of namenodes, host:port each. It is for the leader's orders and for clients of WebHDFS from
// now on; namenodes that are in both lists notice nothing. A namenode of another cluster that comes with a later list is
// refused and said, but does not end the datanode, which others keep working. It may be called from several goroutines.
func (s *Server) SetNamenodes(grpc, ipc []string) error {
	if len(grpc) == 0 || len(grpc) != len(ipc) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the list of namenodes has %d gRPC and %d IPC addresses", len(grpc), len(ipc))
	}
	s.listMu.Lock()
	defer s.listMu.Unlock()
	before := s.all()
	var after []*session
	for _, addr := range grpc {
		i := slices.IndexFunc(before, func(n *session) bool { return n.addr == addr })
		if i >= 0 {
			after = append(after, before[i])
			continue
		}
		n, err := newSession(s, addr, s.incarnation)
		if err != nil {
			return fmt.Errorf("namenode %s: %w", addr, err) // those made are unused, and connect to nothing
		}
		n.late = true
		after = append(after, n)
	}
	if slices.Equal(before, after) && slices.Equal(*s.ipc.Load(), ipc) {
		return nil
	}
	s.log.Info("list of namenodes changed", "namenodes", grpc)
	s.sessions.Store(&after)
	ipc = slices.Clone(ipc)
	s.ipc.Store(&ipc)
	s.clients.renew()
	poke(s.listed)
	return nil
}

// speak keeps a session with each namenode of the list until ctx is done, or one of them ends the datanode.
func (s *Server) speak(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	running := map[*session]context.CancelFunc{}
	for {
		list := s.all()
		for n, end := range running {
			if !slices.Contains(list, n) {
				end()
				delete(running, n)
			}
		}
		for _, n := range list {
			if running[n] != nil {
				continue
			}
			own, end := context.WithCancel(ctx)
			running[n] = end
			g.Go(func() error {
				defer end()
				defer s.trust.forget(n.addr)
				defer n.conn.Close()
				return n.run(own)
			})
		}
		select {
		case <-s.listed:
		case <-ctx.Done():
			return g.Wait()
		}
	}
}
