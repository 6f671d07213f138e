package server

import (
	"sync"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

// Ids are reserved in ranges, one log entry each, and handed out without a commit. What a leader has left when it
// steps down is lost; nobody else gets it.
const (
	reserveBlocks      = 10000
	reserveGroups      = 2000
	reserveGenerations = 20000
)

// ids are the block ids and generations that belong to one reign.
type ids struct {
	mu      sync.Mutex
	have    namespace.IDRange
	groups  bool // a group was wanted: from then on they are reserved too
	asked   bool
	waiting []func(error)
}

func (x *ids) empty() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.have.FirstGeneration == x.have.EndGeneration
}

// idKind is what an id is taken for.
type idKind uint8

const (
	noID idKind = iota // a generation only
	blockID
	groupID
)

// newBlock takes an id and a generation for a new block or group.
func (s *Server) newBlock(r *reign, kind idKind, done func(metadata.Block, error)) {
	s.take(r, kind, func(id metadata.BlockID, g metadata.Generation, err error) {
		done(metadata.Block{ID: id, Generation: g}, err)
	})
}

// newGeneration takes a generation.
func (s *Server) newGeneration(r *reign, done func(metadata.Generation, error)) {
	s.take(r, noID, func(_ metadata.BlockID, g metadata.Generation, err error) { done(g, err) })
}

// take calls done with ids, at once if there are any, else when more have been reserved.
func (s *Server) take(r *reign, kind idKind, done func(metadata.BlockID, metadata.Generation, error)) {
	x := &r.ids
	x.mu.Lock()
	x.groups = x.groups || kind == groupID
	if x.have.FirstGeneration == x.have.EndGeneration || kind == blockID && x.have.FirstBlock == x.have.EndBlock ||
		kind == groupID && x.have.FirstGroup == x.have.EndGroup {
		x.waiting = append(x.waiting, func(err error) {
			if err != nil {
				done(0, 0, err)
				return
			}
			s.take(r, kind, done)
		})
		x.mu.Unlock()
		s.reserve(r)
		return
	}
	var id metadata.BlockID
	switch kind {
	case blockID:
		id = x.have.FirstBlock
		x.have.FirstBlock++
	case groupID:
		id = x.have.FirstGroup
		x.have.FirstGroup += metadata.GroupStep
	}
	g := x.have.FirstGeneration
	x.have.FirstGeneration++
	low := x.have.EndBlock-x.have.FirstBlock < reserveBlocks/2 || x.have.EndGeneration-x.have.FirstGeneration < reserveGenerations/2 ||
		x.groups && x.have.EndGroup-x.have.FirstGroup < reserveGroups/2*metadata.GroupStep
	x.mu.Unlock()
	if low {
		s.reserve(r)
	}
	done(id, g, nil)
}

// reserve asks for the next ranges, unless that is under way. The first range of a new cluster also settles its name and
// who owns "/".
func (s *Server) reserve(r *reign) {
	x := &r.ids
	x.mu.Lock()
	if x.asked {
		x.mu.Unlock()
		return
	}
	x.asked = true
	groups := int64(0) // members that do not know of them stop at one
	if x.groups {
		groups = reserveGroups
	}
	x.mu.Unlock()

	cluster := s.config.ClusterID
	if cluster == "" {
		cluster = newClusterID()
	}
	cmd := &logpb.Command{Op: &logpb.Command_ReserveIds{ReserveIds: &logpb.ReserveIDs{
		Blocks: reserveBlocks, Generations: reserveGenerations, Groups: groups,
		Owner: s.config.Door.Daemon(), Group: s.config.Door.Supergroup(), ClusterId: cluster,
	}}}
	s.send(cmd, func(result *namespace.Result, err error) {
		if err == nil {
			s.setCluster(s.ns.ClusterID())
			s.soft.mu.Lock()
			s.soft.m.SetHorizon(result.Reserved.EndBlock - 1)
			s.soft.m.SetGroupHorizon(result.Reserved.EndGroup - metadata.GroupStep)
			s.soft.mu.Unlock()
		}
		x.mu.Lock()
		x.asked = false
		if err == nil {
			x.have = *result.Reserved // the few left of the range before are given up
		}
		waiting := x.waiting
		x.waiting = nil
		x.mu.Unlock()
		for _, w := range waiting {
			w(err)
		}
	})
}
