package server

import (
	"context"
	"net/http"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Holds is what a machine's datanodes have, as `hops cluster remove` wants to know before it takes the machine out.
type Holds struct {
	Datanodes []HeldDatanode `json:"datanodes"`
	// Blocks of which they have replicas, and Only those of which no living datanode of another machine has one.
	Blocks int `json:"blocks"`
	Only   int `json:"only"`
}

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
	machine := r.PathValue("id")
	out := Holds{Datanodes: []HeldDatanode{}}
	var nodes []namenode.NodeID
	for _, d := range s.Datanodes() {
		if d.Node.Machine == machine {
			nodes = append(nodes, d.Node.ID)
			out.Datanodes = append(out.Datanodes, HeldDatanode{d.Node.TransferAddr(), d.Alive, d.Node.Admin.Word()})
		}
	}
	var blocks []metadata.BlockID
	for _, id := range nodes {
		s.soft.mu.Lock()
		blocks = append(blocks, s.soft.m.BlocksOf(id)...)
		s.soft.mu.Unlock()
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
	return out, nil
}
