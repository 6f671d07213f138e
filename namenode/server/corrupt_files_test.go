package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// lostFiles asks as Hadoop's CorruptFileBlockIterator does: with the cookie of the answer before, until one has no files.
func lostFiles(t *testing.T, rpc *hrpc.Client, path string, page int) []string {
	t.Helper()
	var all []string
	request := &hadoop.ListCorruptFileBlocksRequestProto{Path: &path}
	for {
		var answer hadoop.ListCorruptFileBlocksResponseProto
		if err := rpc.Call(t.Context(), clientprotocol.Name, "listCorruptFileBlocks", request, &answer); err != nil {
			t.Fatalf("listCorruptFileBlocks %s: %v", path, err)
		}
		files := answer.Corrupt.Files
		if len(files) > page {
			t.Fatalf("%d files in one answer, want %d at most", len(files), page)
		}
		if len(files) == 0 {
			return all
		}
		all = append(all, files...)
		request.Cookie = answer.Corrupt.Cookie
	}
}

func TestFilesWithoutAGoodReplicaAreListed(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.Properties.CorruptFilesReturned = 2 })
	dn := c.datanode("dn1")
	m := c.leader()
	if err := c.root().Mkdirs(t.Context(), "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	var blocks []metadata.Block
	for i, path := range []string{"/a", "/d/b", "/d/c", "/d/e", "/dd", "/whole"} {
		w := m.begin(t, path, fmt.Sprint("writer", i), 1)
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		b := w.block(10)
		dn.has(b, pb.ReplicaState_FINALIZED)
		if ok, err := w.complete(); err != nil || !ok {
			t.Fatalf("complete %s: %t, %v", path, ok, err)
		}
		blocks = append(blocks, b)
	}
	rpc := m.rpc(t)
	if got := lostFiles(t, rpc, "/", 2); len(got) != 0 {
		t.Fatalf("of whole files: %v", got)
	}
	for _, b := range blocks[:5] {
		dn.tell(pb.BlockChange_CORRUPT, wireBlock(b))
	}
	eventually(t, "five blocks are missing", func() bool { return m.Statistics().Missing == 5 })

	for path, want := range map[string]string{
		"/": "/a /d/b /d/c /d/e /dd", "/d": "/d/b /d/c /d/e", "/d/": "/d/b /d/c /d/e", "/d/c": "/d/c", "/whole": "", "/nothing": "",
	} {
		got := lostFiles(t, rpc, path, 2)
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("below %s: %v, want %s", path, got, want)
		}
	}

	// What is whole again, and what was deleted, is not listed.
	dn.tell(pb.BlockChange_VERIFIED, wireBlock(blocks[0]))
	if ok, err := c.root().Delete(t.Context(), "/d", true); err != nil || !ok {
		t.Fatal(ok, err)
	}
	eventually(t, "one block is missing", func() bool { return m.Statistics().Missing == 1 })
	if got := lostFiles(t, rpc, "/", 2); !slices.Equal(got, []string{"/dd"}) {
		t.Errorf("afterwards: %v, want /dd", got)
	}

	bad := &hadoop.ListCorruptFileBlocksRequestProto{Path: ptr("/"), Cookie: ptr("yesterday")}
	err := rpc.Call(t.Context(), clientprotocol.Name, "listCorruptFileBlocks", bad, &hadoop.ListCorruptFileBlocksResponseProto{})
	if err == nil || !strings.Contains(err.Error(), `cookie "yesterday"`) {
		t.Errorf("a cookie that is none: %v", err)
	}
	alice, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: "alice", DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	err = alice.Call(t.Context(), clientprotocol.Name, "listCorruptFileBlocks", &hadoop.ListCorruptFileBlocksRequestProto{Path: ptr("/")}, &hadoop.ListCorruptFileBlocksResponseProto{})
	if err == nil || !strings.Contains(err.Error(), "Superuser privilege is required") {
		t.Errorf("asked by alice: %v", err)
	}
}

// In the safe mode of the start every block whose datanode has not reported yet would be listed.
func TestFilesWithoutAGoodReplicaAreNotListedAtTheStart(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	w := c.leader().begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(w.block(10), pb.ReplicaState_FINALIZED)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	dn.stop()
	c.nodes[0].stop()
	c.start(0)
	c.await(0)
	err := c.leader().rpc(t).Call(t.Context(), clientprotocol.Name, "listCorruptFileBlocks",
		&hadoop.ListCorruptFileBlocksRequestProto{Path: ptr("/")}, &hadoop.ListCorruptFileBlocksResponseProto{})
	if err == nil || !strings.Contains(err.Error(), "have not all been reported") {
		t.Fatalf("in the safe mode of the start: %v", err)
	}
}
