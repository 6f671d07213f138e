package server

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Holds is what a machine's datanodes have, as `hops cluster remove` wants to know before it takes the machine out.
type Holds struct {
	Datanodes []HeldDatanode `json:"datanodes"`
	// Blocks of which they have replicas, and Only those of which no living datanode of another machine has one.
	Blocks int `json:"blocks"`
	Only   int `json:"only"`
	// Missing are all blocks of the cluster of which no replica is known, where the machine may have some: a datanode of it is dead, whose
	// blocks are not known any more, or it has the role and no datanode of it is known. Lost are the first of them, by their names.
	Missing int64    `json:"missing,omitempty"`
	Lost    []string `json:"lost,omitempty"`
}

// mostLost is how many missing blocks are named.
const mostLost = 5

// HeldDatanode is one of the datanodes of a machine.
type HeldDatanode struct {
	Address string `json:"address"`
	Alive   bool   `json:"alive"`
	// State is the word for its service, as `hops datanode list` has it.
	State string `json:"state"`
}

// blocksPerLook is at how many blocks a request looks before it lets others have their turn.
const blocksPerLook = 10_000

// holds serves one of clusterRoutes.
func (s *Server) holds(ctx context.Context, r *http.Request) (any, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	if s.listing.Load() {
		return nil, metadata.Errorf(metadata.ErrRetriable, "what datanodes hold is not known yet. %s", s.waiting())
	}
	machine := r.PathValue("id")
	out := Holds{Datanodes: []HeldDatanode{}}
	var nodes []namenode.NodeID
	unknown := false
	for _, d := range s.Datanodes() {
		if d.Node.Machine == machine {
			unknown = unknown || !d.Alive
			nodes = append(nodes, d.Node.ID)
			out.Datanodes = append(out.Datanodes, HeldDatanode{d.Node.TransferAddr(), d.Alive, d.Node.Admin.Word()})
		}
	}
	if len(nodes) == 0 {
		m, joined := s.roster.Machine(machine)
		unknown = joined && slices.Contains(m.Roles, authority.Datanode)
	}
	var blocks []metadata.BlockID
	for _, id := range nodes {
		s.soft.mu.Lock()
		all := s.soft.m.BlocksOf(id)
		s.soft.mu.Unlock()
		found, err := s.inTurns(ctx, all)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, found...)
	}
	slices.Sort(blocks)
	blocks = slices.Compact(blocks)
	out.Blocks = len(blocks)
	for some := range slices.Chunk(blocks, blocksPerLook) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.soft.mu.Lock()
		out.Only += s.soft.m.OnlyOn(nodes, some)
		s.soft.mu.Unlock()
	}
	if unknown {
		s.soft.mu.Lock()
		out.Missing = s.soft.m.Statistics().Missing
		lost := s.soft.m.Lost(math.MinInt64, mostLost)
		s.soft.mu.Unlock()
		for _, id := range lost {
			out.Lost = append(out.Lost, fmt.Sprintf("blk_%d", id))
		}
	}
	return out, nil
}

// inTurns collects what the block manager goes through, and lets others have their turn.
func (s *Server) inTurns(ctx context.Context, all iter.Seq[metadata.BlockID]) (out []metadata.BlockID, err error) {
	next, stop := iter.Pull(all)
	defer stop()
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.soft.mu.Lock()
		for range blocksPerLook {
			var id metadata.BlockID
			if id, more = next(); !more {
				break
			}
			out = append(out, id)
		}
		s.soft.mu.Unlock()
	}
	return out, nil
}
