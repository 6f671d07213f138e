package server

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A datanode says with a beat that a volume is slow: what lies there is read last, also by Hadoop's clients, new blocks go elsewhere, and whoever looks after the cluster sees it.
func TestSlowVolumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	nodes := map[string]*datanode{"dn1": c.datanode("dn1"), "dn2": c.datanode("dn2")}
	lead := c.leader()
	w := lead.begin(t, "/f", "writer", 2)
	var b *hadoop.LocatedBlockProto
	eventually(t, "two datanodes", func() bool {
		var err error
		if b, err = w.addBlock(); err == nil && len(b.Locs) < 2 {
			w.last = nil
			err = w.rpc.Call(t.Context(), clientprotocol.Name, "abandonBlock", &hadoop.AbandonBlockRequestProto{B: b.B, Src: &w.path, Holder: &w.client, FileId: &w.id}, new(hadoop.AbandonBlockResponseProto))
		}
		return err == nil && len(b.GetLocs()) == 2
	})
	block := w.block(100)
	for _, d := range nodes {
		d.has(block, pb.ReplicaState_FINALIZED)
	}
	lead.knows(t, block, 2)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	call := func(method string, request, answer hrpc.Message) {
		t.Helper()
		if err := w.rpc.Call(t.Context(), clientprotocol.Name, method, request, answer); err != nil {
			t.Fatal(err)
		}
	}
	page := func(path string) string {
		t.Helper()
		resp, err := http.Get("http://" + lead.http + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	for _, slow := range []string{"dn1", "dn2"} {
		nodes[slow].slow.Store(true)
		eventually(t, slow+" is told of", func() bool {
			var r hadoop.GetSlowDatanodeReportResponseProto
			call("getSlowDatanodeReport", &hadoop.GetSlowDatanodeReportRequestProto{}, &r)
			return len(r.DatanodeInfoProto) == 1 && r.DatanodeInfoProto[0].Id.GetDatanodeUuid() == slow
		})
		lookAt := &adopting{s: lead.Server}
		if got := lookAt.look([]*adoptee{{inode: metadata.INodeID(w.id), length: 100}}); len(got) != 1 || string(got[0].node.ID) == slow {
			t.Errorf("the bytes of a small file are asked of %v", got)
		}
		var r hadoop.GetBlockLocationsResponseProto
		call("getBlockLocations", &hadoop.GetBlockLocationsRequestProto{Src: &w.path, Offset: ptr(uint64(0)), Length: ptr(uint64(100))}, &r)
		if at := r.Locations.Blocks[0].Locs; len(at) != 2 || at[1].Id.GetDatanodeUuid() != slow {
			t.Errorf("with %s slow it is read at %v", slow, at)
		}
		for range 4 {
			other := lead.begin(t, "/g", "another", 1)
			if b, err := other.addBlock(); err != nil || len(b.Locs) != 1 || b.Locs[0].Id.GetDatanodeUuid() == slow {
				t.Errorf("with %s slow a block goes to %v, %v", slow, b.GetLocs(), err)
			}
			call("delete", &hadoop.DeleteRequestProto{Src: &other.path, Recursive: ptr(false)}, new(hadoop.DeleteResponseProto))
		}
		for path, want := range map[string]string{
			"/metrics": "\nhops_namenode_slow_volumes 1\n", "/jmx": "SlowDiskID", "/api/v1/datanodes": `"slow":true`, "/health": `"slow_volumes":1`,
		} {
			if text := page(path); !strings.Contains(strings.ReplaceAll(text, `": `, `":`), want) {
				t.Errorf("%s does not say %q: %s", path, want, text)
			}
		}
		nodes[slow].slow.Store(false)
		eventually(t, "nothing is slow", func() bool { return strings.Contains(page("/metrics"), "\nhops_namenode_slow_volumes 0\n") })
	}
}
