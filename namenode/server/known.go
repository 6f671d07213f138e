package server

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/namenode"
)

// Every datanode that has registered is an item of the register. So each namenode knows, also after all of them were started anew, of those that have
// not come back: who looks for what is missing sees who is missing, and can have them decommissioned, or forgotten, by name. The block manager
// knows nothing of them: they have said nothing.

const (
	// known is the prefix of these items, by uuid.
	known = "known/"
	// maxKnown is how many there are at most, and knownAtOnce how many one command brings.
	maxKnown    = 20_000
	knownAtOnce = 64
)

// knownNode is the item of a datanode: where it was when it registered last.
type knownNode struct {
	IP       string `json:"ip"`
	Host     string `json:"host"`
	Transfer uint32 `json:"transfer"`
	HTTP     uint32 `json:"http"`
	IPC      uint32 `json:"ipc"`
	GRPC     uint32 `json:"grpc"`
	Machine  string `json:"machine,omitempty"`
}

func knownOf(n *namenode.Node) knownNode {
	return knownNode{n.IP, n.Host, n.TransferPort, n.HTTPPort, n.IPCPort, n.GRPCPort, n.Machine}
}

// knowing is what this namenode has read, and noted, of the items.
type knowing struct {
	nodes   atomic.Pointer[map[string]knownNode] // by uuid
	version uint64                               // of the register; only the duties, as what follows
	noted   uint64                               // the membership of datanodes of which nothing is left to note
	asking  atomic.Bool                          // a command is under way
	full    bool                                 // it was said that there are too many
}

// readKnown reads the items when the register has changed.
func (s *Server) readKnown() {
	k := &s.known
	version := s.ns.RegisterVersion() // before it is read: a change in between is seen the next time
	if k.nodes.Load() != nil && k.version == version {
		return
	}
	nodes := map[string]knownNode{}
	for name, value := range s.ns.Items(known) {
		var n knownNode
		if err := json.Unmarshal(value, &n); err != nil {
			s.log.Error("an item of the register cannot be read", "item", name, "error", err)
			continue
		}
		nodes[strings.TrimPrefix(name, known)] = n
	}
	k.version = version
	k.nodes.Store(&nodes)
}

// noteKnown has the register name the datanodes that live, where they are.
func (s *Server) noteKnown() {
	k := &s.known
	s.soft.mu.Lock()
	membership := s.soft.m.Membership()
	s.soft.mu.Unlock()
	if membership == k.noted || k.asking.Load() {
		return
	}
	s.readKnown()
	nodes := *k.nodes.Load()
	s.soft.mu.Lock()
	reports := s.soft.m.Nodes()
	s.soft.mu.Unlock()
	var changes []*logpb.ItemChange
	added := 0
	for _, r := range reports {
		id := string(r.Node.ID)
		was, ok := nodes[id]
		if !r.Alive || ok && was == knownOf(r.Node) {
			continue
		}
		if !ok {
			if len(nodes)+added >= maxKnown {
				if !k.full {
					s.log.Warn("so many datanodes have been here that no more are remembered: forget those that never come back (`hops datanode forget`)", "known", len(nodes))
				}
				k.full = true
				continue
			}
			added++
		}
		_, version := s.ns.Item(known + id)
		if changes = append(changes, itemChange(known+id, knownOf(r.Node), version)); len(changes) == knownAtOnce {
			break
		}
	}
	if len(changes) == 0 {
		k.noted = membership
		return
	}
	k.asking.Store(true)
	s.proposeItems(changes, func(bool, error) { k.asking.Store(false) }) // what was not done is seen the next time
}

// seen are the datanodes that this namenode has heard of since it started.
func (s *Server) seen() []namenode.NodeReport {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return s.soft.m.Nodes()
}

// missing are the datanodes that it has not heard of, which it knows by the register, once it has run for as long as a death takes. Those whose machine is no member
// any more are among them.
func (s *Server) missing(seen []namenode.NodeReport) (ids []string) {
	nodes, began := s.known.nodes.Load(), s.started.Load()
	if nodes == nil || began == nil || time.Since(*began) < s.config.DeadAfter {
		return nil
	}
	here := make(map[string]bool, len(seen))
	for _, r := range seen {
		here[string(r.Node.ID)] = true
	}
	given := s.ns.Forgotten() // which takes no lock
	for id := range *nodes {
		if !here[id] && !slices.Contains(given, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unseen describes missing datanodes, but for those whose machine is no member any more. It waits for the lock of the namespace.
func (s *Server) unseen(missing []string) (out []namenode.NodeReport) {
	nodes, began := s.known.nodes.Load(), s.started.Load()
	for _, id := range missing {
		k, known := (*nodes)[id]
		if !known {
			continue
		}
		n := &namenode.Node{
			ID: namenode.NodeID(id), IP: k.IP, Host: k.Host, TransferPort: k.Transfer, HTTPPort: k.HTTP, IPCPort: k.IPC, GRPCPort: k.GRPC, Machine: k.Machine,
			Rack: s.racks.Lookup(k.IP),
		}
		if m, ok := s.roster.Machine(k.Machine); ok && !m.Removed.IsZero() {
			continue // its machine is no member any more
		}
		n.Admin = s.wishFor(n)
		out = append(out, namenode.NodeReport{Node: n, LastBeat: *began})
	}
	slices.SortFunc(out, func(a, b namenode.NodeReport) int { return strings.Compare(string(a.Node.ID), string(b.Node.ID)) })
	return out
}

// wishFor is what an operator wants of a datanode that is not there, which it has become by that.
func (s *Server) wishFor(n *namenode.Node) namenode.AdminState {
	now := time.Now()
	var w wish
	if value, _ := s.ns.Item(wishes + string(n.ID)); value != nil && json.Unmarshal(value, &w) == nil && !w.over(now) {
		return w.Admin
	}
	return s.admin.list.Load().Wish(n, now.UnixMilli())
}
