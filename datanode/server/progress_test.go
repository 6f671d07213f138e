package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// The namenode hears with each beat how far orders have come, and which wait; it decides by that which of them it gives up.
func TestBeatsTellHowFarOrdersHaveCome(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	d, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, d)
	told := func(which func(*pb.Beat) []*pb.Progress) string {
		n.mu.Lock()
		defer n.mu.Unlock()
		var all []string
		for _, p := range which(n.beats[d.UUID()]) {
			all = append(all, fmt.Sprintf("%d_%d %d%% %t", p.Block.Id, p.Block.Generation, p.Percent, p.Waits))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	copies, rebuilds := (*pb.Beat).GetCopies, (*pb.Beat).GetRebuilds
	release, sent := make(chan struct{}), make(chan int64)
	over := sync.OnceFunc(func() { close(sent); close(release) })
	defer over()
	for i := range replicateWorkers + 1 {
		id := metadata.BlockID(7 + i)
		put(t, d, int64(id), 1001, "data")
		if i == replicateWorkers {
			within(t, "all workers have work", func() bool { return strings.Count(told(copies), "false") == replicateWorkers })
		}
		d.replicas.add(job{block: id, generation: 1001}, func(_ context.Context, p *progress) {
			if p.total.Store(1000); id == 7 {
				for more := range sent {
					p.add(more)
				}
			}
			<-release
		})
	}
	d.rebuilds.add(job{block: metadata.FirstGroupID, generation: 1002}, func(context.Context, *progress) { <-release })
	for _, want := range []int{0, 41, 100} {
		within(t, "the copies are told of", func() bool {
			all := []string{fmt.Sprintf("7_1001 %d%% false", want), fmt.Sprintf("%d_1001 0%% true", 7+replicateWorkers)}
			for i := 1; i < replicateWorkers; i++ {
				all = append(all, fmt.Sprintf("%d_1001 0%% false", 7+i))
			}
			slices.Sort(all)
			return told(copies) == strings.Join(all, ", ")
		})
		if want < 100 {
			sent <- 419 + int64(want)*20
		}
	}
	within(t, "the computing is told of", func() bool { return told(rebuilds) == fmt.Sprintf("%d_1002 0%% false", metadata.FirstGroupID) })
	over()
	within(t, "nothing is under way", func() bool { return told(copies) == "" && told(rebuilds) == "" })
}

// What is counted comes to a hundred percent of the order.
func TestOrdersCountWhatTheyDo(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	for range 3 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	b := put(t, nodes[0], 7, 1001, strings.Repeat("data", 50_000))
	p, units := stripes(t, "RS-3-2-1024k", 4<<20)
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: 4 << 20}
	rebuild := &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(p.ID), Targets: []*pb.Part{{Unit: 3, Node: nodes[0].id}, {Unit: 4, Node: nodes[1].id}}}
	for i, d := range nodes {
		put(t, d, int64(group.ID.Internal(i)), 1001, string(units[i]))
		rebuild.Sources = append(rebuild.Sources, &pb.Part{Unit: uint32(i), Node: d.id})
	}
	for name, c := range map[string]struct {
		do   func(*progress)
		want int64
	}{
		"copy": {func(p *progress) {
			nodes[0].replicate(t.Context(), b, each(&pb.Replicate{Block: wireBlock(b), Targets: []*pb.DatanodeID{nodes[1].id}})[0], p)
		}, b.Length},
		"move": {func(p *progress) {
			ssd := &pb.Replicate{Block: wireBlock(b), Targets: []*pb.DatanodeID{nodes[0].id}, Types: []uint32{uint32(datanode.SSD)}}
			nodes[0].replicate(t.Context(), b, ssd, p)
		}, b.Length},
		"rebuild": {func(p *progress) { nodes[0].rebuild(t.Context(), rebuild, p) }, int64(len(units[3]) + len(units[4]))},
	} {
		var p progress
		c.do(&p)
		// A copy sends headers and checksums too, less than one percent.
		if done, total := p.done.Load(), p.total.Load(); total != c.want || done < total || done > total+total/50 || p.tell(job{}).Percent != 100 {
			t.Errorf("%s: %d of %d, want %d", name, done, total, c.want)
		}
	}
}
