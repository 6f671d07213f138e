package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// An operator may give up a datanode that never comes back (`hops datanode forget`). Files whose last block it may have are under
// recovery until then, because what it has may be all there is of bytes that were promised to be kept.

// forgetDatanode serves one of memberRoutes: the id is a uuid, or host:port of the data transfer.
func (s *Server) forgetDatanode(ctx context.Context, r *http.Request) error {
	reign, err := s.leading()
	if err != nil {
		return err
	}
	id, err := s.deadDatanode(reign, r.PathValue("id"), time.Now())
	if err != nil {
		return err
	}
	err = s.await(func(done func(error)) {
		s.send(&logpb.Command{Op: &logpb.Command_ForgetDatanode{ForgetDatanode: &logpb.ForgetDatanode{Uuid: string(id)}}},
			func(_ *namespace.Result, err error) { done(err) })
	})
	if err != nil {
		return err
	}
	s.forgotten()
	if value, version := s.ns.Item(known + string(id)); value != nil {
		remove := &logpb.ChangeRegister{Changes: []*logpb.ItemChange{itemChange(known+string(id), nil, version)}}
		if done, err := s.changeRegister(ctx, remove); err != nil || !done {
			s.log.Warn("a datanode that was given up is listed as dead still: forget it again", "node", id, "error", err)
		}
	}
	for _, inode := range s.waitingFor(string(id)) { // now, not when their recovery is overdue
		s.recover(reign, inode, namespace.RecoveryHolder, nil)
	}
	return nil
}

// deadDatanode finds the dead datanode that name means: one of the list, or one that has not been heard of since this namenode
// started and that an open file names.
func (s *Server) deadDatanode(r *reign, name string, now time.Time) (namenode.NodeID, error) {
	var dead, alive []namenode.NodeID
	for _, n := range s.Datanodes() {
		port := strconv.FormatUint(uint64(n.Node.TransferPort), 10)
		if name != string(n.Node.ID) && name != n.Node.TransferAddr() && name != net.JoinHostPort(n.Node.Host, port) {
			continue
		}
		if n.Alive {
			alive = append(alive, n.Node.ID)
		} else {
			dead = append(dead, n.Node.ID)
		}
	}
	switch {
	case len(dead) == 1:
		return dead[0], nil
	case len(dead) > 1:
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "several dead datanodes had the address %s: give the id of one, %v", name, dead)
	case len(alive) > 0:
		return "", metadata.Errorf(metadata.ErrRetriable, "datanode %s lives: stop it for good first, and wait until it is dead (%v without a beat)", name, s.config.DeadAfter)
	case len(s.waitingFor(name)) == 0:
		return "", metadata.Errorf(metadata.ErrInvalidArgument, "no datanode %s is dead, or named by a file under recovery: the namenode's log says for which datanodes a recovery waits", name)
	}
	if wait := s.config.DeadAfter - now.Sub(r.began); wait > 0 {
		return "", metadata.Errorf(metadata.ErrRetriable, "datanode %s has not been heard of since this namenode leads, and may be on its way: wait %v and ask again", name, wait.Round(time.Second))
	}
	return namenode.NodeID(name), nil
}

// waitingFor lists the files under recovery that name a datanode.
func (s *Server) waitingFor(id string) []metadata.INodeID {
	return slices.DeleteFunc(s.ns.LeaseFiles(namespace.RecoveryHolder), func(inode metadata.INodeID) bool {
		f, ok := s.ns.FileByID(inode)
		return !ok || !slices.Contains(f.Nodes, id)
	})
}

// forgotten tells the block manager which datanodes the log says are given up. It looks with the lock held: who looked last is the last to say.
func (s *Server) forgotten() {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	ids := s.ns.Forgotten() // which takes no lock
	if slices.Equal(ids, s.soft.given) {
		return
	}
	s.soft.given = ids
	nodes := make([]namenode.NodeID, len(ids))
	for i, id := range ids {
		nodes[i] = namenode.NodeID(id)
	}
	s.soft.m.Forget(nodes)
	s.log.Info("datanodes given up for good", "datanodes", strings.Join(ids, " "))
}

// recall has the log say that datanodes which were given up have come back: when they die again, they are waited for.
func (s *Server) recall(r *reign) {
	s.soft.mu.Lock()
	back := s.soft.m.Returned()
	s.soft.mu.Unlock()
	if len(back) == 0 || !r.recalling.CompareAndSwap(false, true) {
		return
	}
	id := string(back[0])
	s.send(&logpb.Command{Op: &logpb.Command_ForgetDatanode{ForgetDatanode: &logpb.ForgetDatanode{Uuid: id, Recalled: true}}},
		func(_ *namespace.Result, err error) {
			r.recalling.Store(false)
			if err != nil {
				s.log.Warn("a datanode that was given up has come back, which is not recorded yet", "node", id, "error", err)
				return
			}
			s.log.Info("a datanode that was given up has come back", "node", id)
		})
}
