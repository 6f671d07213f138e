package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// bandwidth is the item of what dfsadmin -setBalancerBandwidth said last.
const bandwidth = "balancer/bandwidth"

// standFirst is after how long a namenode that is to lead stands for election, and standAgain after how long at least again: it takes twice the lease if that is
// longer, because voters keep their votes back while the leader before may rely on them, and who stands again gives up those that are on their way.
const standFirst, standAgain = 500 * time.Millisecond, 4 * time.Second

// leadPatience is how long a change of who leads may take.
const leadPatience = 20 * time.Second

// keepers are the files whose last block keeps a datanode from being let go; nil if that is not asked.
func (s *Server) keepers(asked bool) map[metadata.INodeID]bool {
	if !asked {
		return nil
	}
	s.soft.mu.Lock()
	blocks := s.soft.m.Keeping()
	s.soft.mu.Unlock()
	out := map[metadata.INodeID]bool{}
	for _, b := range blocks {
		if o, ok := s.ns.BlockOwner(b.Block); ok {
			out[o.INode] = true
		}
	}
	return out
}

// SaveNamespace implements namenode.Cluster.
func (s *Server) SaveNamespace(done func(error)) {
	if s.Active() && s.waiting() == "" {
		done(metadata.Errorf(metadata.ErrIO, "Safe mode should be turned ON in order to create namespace image."))
		return
	}
	go func() { done(s.group.Save()) }()
}

// Transfer implements namenode.Cluster.
func (s *Server) Transfer(c metadata.Caller, to string, done func(error)) {
	_, err := s.leading()
	if err == nil && !c.Superuser {
		err = metadata.NeedsSuperuser(c.User, "transferLeadership")
	}
	id := to
	for _, p := range s.config.Peers {
		if to != "" && p.IPC == to {
			id = p.ID
		}
	}
	if err != nil || id == s.config.ID {
		done(err)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), leadPatience)
		defer cancel()
		s.log.Info("leadership is handed over by an operator", "to", id, "by", c.User)
		done(s.group.TransferLeadership(ctx, id))
	}()
}

// Lead implements namenode.Cluster.
func (s *Server) Lead(c metadata.Caller, done func(error)) {
	if !c.Superuser {
		done(metadata.NeedsSuperuser(c.User, "transitionToActive"))
		return
	}
	if s.Active() {
		done(nil)
		return
	}
	go func() {
		s.log.Info("told by an operator to lead", "by", c.User)
		deadline := time.NewTimer(leadPatience)
		defer deadline.Stop()
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		// Who lacks an entry that others have is not elected: if leadership has just changed, the new leader's come first.
		again := max(standAgain, 2*s.config.Timers.Lease)
		for stood := time.Now().Add(standFirst - again); !s.Active(); {
			if time.Since(stood) >= again {
				if err := s.group.Stand(); err != nil {
					done(err)
					return
				}
				stood = time.Now()
			}
			select {
			case <-look.C:
			case <-s.stopped:
				done(metadata.Errorf(metadata.ErrRetriable, "%s stops", s.config.ID))
				return
			case <-deadline.C:
				done(metadata.Errorf(metadata.ErrRetriable, "%s was not elected within %v: the others do not vote for it, perhaps because it lags behind", s.config.ID, leadPatience))
				return
			}
		}
		done(nil)
	}()
}

// SetBalancerBandwidth implements namenode.Cluster.
func (s *Server) SetBalancerBandwidth(n int64, done func(error)) {
	if n <= 0 {
		done(metadata.Errorf(metadata.ErrInvalidArgument, "Balancer bandwidth must be greater than zero."))
		return
	}
	_, version := s.ns.Item(bandwidth)
	s.proposeItems([]*logpb.ItemChange{itemChange(bandwidth, n, version)}, func(ok bool, err error) {
		if err == nil && !ok {
			err = metadata.Errorf(metadata.ErrRetriable, "others change the same at the same time: try again")
		}
		done(err)
	})
}

// balancing is the bandwidth of the balancer as of a version of the register. It does not change.
type balancing struct {
	version uint64
	rate    int64
}

// balancerBandwidth is how many bytes a second a datanode sends at most for the balancer. The register is read when it has changed: each beat asks for this, also while the namespace
// is locked by who waits for a disk.
func (s *Server) balancerBandwidth() int64 {
	version := s.ns.RegisterVersion() // before it is read: a change in between is seen the next time
	if b := s.balancing.Load(); b != nil && b.version == version {
		return b.rate
	}
	b := &balancing{version: version, rate: int64(s.config.Properties.BalanceBandwidth)}
	if value, _ := s.ns.Item(bandwidth); value != nil {
		var n int64
		if json.Unmarshal(value, &n) == nil && n > 0 {
			b.rate = n
		}
	}
	s.balancing.Store(b)
	return b.rate
}

// MetaSave implements namenode.Cluster (FSNamesystem.metaSave). The file is DIR/metasave/NAME of the leader's data.
func (s *Server) MetaSave(name string, done func(error)) {
	if name == "" || len(name) > 255 || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		done(metadata.Errorf(metadata.ErrInvalidArgument, "metasave %q: want the name of a file, without a directory", name))
		return
	}
	if !s.saving.CompareAndSwap(false, true) {
		done(metadata.Errorf(metadata.ErrRetriable, "another metasave is being written"))
		return
	}
	go func() {
		defer s.saving.Store(false)
		done(s.metaSave(name))
	}()
}

func (s *Server) metaSave(name string) (err error) {
	dir := filepath.Join(s.config.Dir, "metasave")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if bad := f.Close(); err == nil {
			err = bad
		}
	}()
	w := bufio.NewWriter(f)
	counts, nodes, st := s.ns.Counts(), s.Datanodes(), s.Statistics()
	live := 0
	for _, n := range nodes {
		if n.Alive {
			live++
		}
	}
	fmt.Fprintf(w, "%d files and directories, %d blocks = %d total filesystem objects\n", counts.Files+counts.Directories, counts.Blocks, counts.Files+counts.Directories+counts.Blocks)
	fmt.Fprintf(w, "Live Datanodes: %d\nDead Datanodes: %d\n", live, len(nodes)-live)
	fmt.Fprintf(w, "Metasave: Blocks waiting for reconstruction: %d\n", st.UnderReplicated+st.Missing)
	s.soft.mu.Lock()
	ids := s.soft.m.Unhealthy()
	s.soft.mu.Unlock()
	for page := range slices.Chunk(ids, lostStep) {
		var found []blockmanager.BlockReport
		s.soft.mu.Lock()
		for _, id := range page {
			if b, ok := s.soft.m.Describe(id); ok && !b.Healthy() {
				found = append(found, b)
			}
		}
		s.soft.mu.Unlock()
		for _, b := range found {
			path, _ := s.ns.FileOfBlock(b.ID)
			fmt.Fprintf(w, "%s: blk_%d_%d%s (replicas: live: %d decommissioning and decommissioned: %d maintenance: %d corrupt: %d excess: %d wanted: %d)\n",
				path, b.ID, b.Generation, map[bool]string{true: " MISSING"}[b.Readable == 0], b.Live, b.Readable-b.Live, b.Away, b.Corrupt, b.Doomed, b.Want)
		}
	}
	fmt.Fprintf(w, "Metasave: Blocks waiting deletion: %d\n", st.PendingDeletion)
	fmt.Fprintf(w, "Metasave: Number of datanodes: %d\n", len(nodes))
	for i := range nodes {
		n := &nodes[i]
		word := map[bool]string{true: "IN", false: "DEAD"}[n.Alive]
		if n.Node.Admin != namenode.Normal {
			word = n.Node.Admin.String()
		}
		fmt.Fprintf(w, "%s %s %d(%s) %d(%s) %d(%s) %s\n", n.Node.TransferAddr(), word, n.Capacity(), size.About(n.Capacity()), n.Used(), size.About(n.Used()),
			n.Remaining(), size.About(n.Remaining()), n.LastBeat.Format(time.UnixDate))
	}
	return w.Flush()
}
