package server

import (
	"iter"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// What the balancer, mover and disk balancer of Hadoop ask for: they choose what is moved, and have datanodes do it. The namenode goes on to decide what is deleted.

// MoveKey implements namenode.Moves.
func (s *Server) MoveKey(c metadata.Caller) (namenode.MoveKey, error) {
	if _, err := s.leading(); err != nil {
		return namenode.MoveKey{}, err
	}
	if !c.Superuser {
		return namenode.MoveKey{}, metadata.NeedsSuperuser(c.User, "getBlockKeys")
	}
	key, there := s.currentTrust().keys.MoveKey()
	if !there {
		return namenode.MoveKey{}, metadata.Errorf(metadata.ErrRetriable, "the cluster has no keys of block tokens yet")
	}
	return namenode.MoveKey{BlockKey: key, Interval: s.config.BlockKeyInterval, Life: s.config.BlockTokenLifetime}, nil
}

const (
	// hostedBytes is about what the description of a block takes in an answer, and while it is made.
	hostedBytes = 512
	// hostedPerLook is at how many blocks a request looks before it lets others have their turn.
	hostedPerLook = 2000
)

// Hosted implements namenode.Moves.
func (s *Server) Hosted(c metadata.Caller, r namenode.HostedRequest, done func([]namenode.HostedBlock, error)) {
	s.read(&c, func(err error) {
		if err == nil {
			err = s.hostedRefused(&c, &r)
		}
		if err != nil {
			done(nil, err)
			return
		}
		s.aside(c.User, r.Admit, namenode.MaxHosted*hostedBytes, func(err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(s.hosted(&r, time.Now()))
		})
	})
}

func (s *Server) hostedRefused(c *metadata.Caller, r *namenode.HostedRequest) error {
	switch {
	case !c.Superuser:
		return metadata.NeedsSuperuser(c.User, "getBlocks")
	case r.Size <= 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "Unexpected not positive size: %d", r.Size)
	case r.Min < 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "Unexpected not positive size: %d", r.Min)
	}
	return s.safe.check(s)
}

func (s *Server) hosted(r *namenode.HostedRequest, now time.Time) ([]namenode.HostedBlock, error) {
	s.soft.mu.Lock()
	_, known := s.soft.m.Node(r.Node)
	all := s.soft.m.Hosted(r.Node, r.Type)
	s.soft.mu.Unlock()
	if !known {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Datanode %s not found.", r.Name)
	}
	var out, hot []namenode.HostedBlock
	left := r.Size
	next, stop := iter.Pull(all)
	defer stop()
	for more := true; more && left > 0 && len(out) < namenode.MaxHosted; {
		var some []namenode.HostedBlock
		s.soft.mu.Lock()
		for looked, size := 0, int64(0); looked < hostedPerLook && size < left && len(out)+len(some) < namenode.MaxHosted; looked++ {
			var id metadata.BlockID
			if id, more = next(); !more {
				break
			}
			if b, ok := s.soft.m.Movable(id, r.Node, r.Min); ok {
				some = append(some, b)
				size += b.Block.Length
			}
		}
		s.soft.mu.Unlock()
		for _, b := range some {
			if r.Hot > 0 && s.hotBlock(b.Block.ID, now.Add(-r.Hot)) {
				if len(hot) < namenode.MaxHosted {
					hot = append(hot, b)
				}
				continue
			}
			out = append(out, b)
			left -= b.Block.Length
		}
	}
	for _, b := range hot {
		if left <= 0 || len(out) == namenode.MaxHosted {
			break
		}
		out = append(out, b)
		left -= b.Block.Length
	}
	return out, nil
}

// hotBlock reports whether the file of a block was read or changed since a time.
func (s *Server) hotBlock(id metadata.BlockID, since time.Time) bool {
	owner, ok := s.ns.BlockOwner(id)
	if !ok {
		return false
	}
	f, ok := s.ns.FileByID(owner.INode)
	return ok && max(f.Status.MTime, f.Status.ATime) >= metadata.TimeOf(since)
}
