package server

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// fsck asks as HDFS's client does, with pairs of the query.
func (m *member) fsck(t *testing.T, user string, pairs ...string) (status int, text string) {
	t.Helper()
	query := url.Values{"ugi": {user}}
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.http+"/fsck?"+query.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestFsckTellsWhatIsWrongInHDFSsWords(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	one, two := c.datanode("dn-1"), c.datanode("dn-2")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	lead.oneBlock(t, "/d/good", 2, one, two)
	lacks := lead.oneBlock(t, "/d/lacks", 3, one, two)
	lost := lead.oneBlock(t, "/d/lost", 1, one)
	damaged := lead.oneBlock(t, "/d/damaged", 1, two)
	report := func(pairs ...string) string {
		t.Helper()
		status, text := lead.fsck(t, super, pairs...)
		if status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		return text
	}
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%q is missing in\n%s", w, text)
			}
		}
	}
	text := report("path", "/d")
	has(text, "FSCK started by "+super+" (auth:SIMPLE) from /127.0.0.1 for path /d at ",
		"\n/d/lacks:  Under replicated "+lead.BlockPool()+":blk_", ". Target Replicas is 3 but found 2 live replica(s), 0 decommissioned replica(s), 0 decommissioning replica(s).\n",
		"\nStatus: HEALTHY\n Number of data-nodes:\t2\n Number of racks:\t\t1\n Total dirs:\t\t\t1\n",
		" Total blocks (validated):\t4 (avg. block size 100 B)\n Minimally replicated blocks:\t4 (100.0 %)\n", " Under-replicated blocks:\t1 (25.0 %)\n",
		" Average block replication:\t1.5\n", " Missing replicas:\t\t1 (14.285714 %)\n", "\n\nThe filesystem under path '/d' is HEALTHY\n")

	one.tell(pb.BlockChange_DELETED, wireBlock(lost))
	two.tell(pb.BlockChange_CORRUPT, wireBlock(damaged))
	eventually(t, "both are known", func() bool { s := lead.Statistics(); return s.Missing == 2 && s.Corrupt == 1 })
	text = report("path", "/")
	has(text, "\n/d/damaged: CORRUPT blockpool "+lead.BlockPool()+" block blk_", "\n/d/damaged: CORRUPT 1 blocks of total size 100 B.",
		"\n/d/lost: MISSING 1 blocks of total size 100 B.", "\nStatus: CORRUPT\n", "\n  UNDER MIN REPL'D BLOCKS:\t2 (50.0 %)\n",
		"\n  CORRUPT FILES:\t2\n  MISSING BLOCKS:\t1\n  MISSING SIZE:\t\t100 B\n  CORRUPT BLOCKS: \t1\n", "\n Missing blocks:\t\t1\n Corrupt blocks:\t\t1\n",
		"\n\nThe filesystem under path '/' is CORRUPT\n")
	text = report("path", "/d", "files", "1", "blocks", "1", "replicadetails", "1", "openforwrite", "1")
	has(text, "\n/d <dir>\n", "/d/good 100 bytes, replicated: replication=2, 1 block(s):  OK\n0. ", " len=100 Live_repl=2  [DatanodeInfoWithStorage[127.0.0.1:", ",DISK](LIVE)",
		"/d/lost 100 bytes, replicated: replication=1, 1 block(s):  MISSING 1 blocks of total size 100 B\n", " len=100 MISSING!\n", "(CORRUPT)")
	text = report("path", "/d", "listcorruptfileblocks", "1")
	has(text, "Cookie:\t1\n", "\t/d/lost\n", "\t/d/damaged\n", "\n\nThe filesystem under path '/d' has 2 CORRUPT files\n")
	has(report("path", "/d", "listcorruptfileblocks", "1", "startblockafter", "1"), "has no more CORRUPT files")
	has(report("path", "/else", "listcorruptfileblocks", "1"), "has no CORRUPT files")
	has(report("path", "/nowhere"), "\n\nPath '/nowhere' does not exist\n")
	has(report("path", "/", "blockId", "blk_1 nonsense blk_"+blockNumber(lacks)), "Block blk_1 does not exist\n", "Incorrect blockId format: nonsense\n",
		"Block belongs to: /d/lacks\nNo. of Expected Replica: 3\nNo. of live Replica: 2\n", "Block replica on datanode/rack: localhost/default-rack is HEALTHY\n")

	// Who may do what.
	if err := c.root().SetPermission(t.Context(), "/d", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		who    string
		pairs  []string
		status int
		words  string
	}{
		{"a user, of a directory that is not theirs", []string{"path", "/d"}, 200, "Permission denied: user=alice"},
		{"a user, for blocks of anybody", []string{"path", "/", "listcorruptfileblocks", "1"}, 403, "Superuser privilege is required for operation fsck"},
		{"a user, for a block by its id", []string{"blockId", "blk_" + blockNumber(lacks)}, 403, "Superuser privilege is required for operation fsck"},
	} {
		t.Run(r.who, func(t *testing.T) {
			if status, text := lead.fsck(t, "alice", r.pairs...); status != r.status || !strings.Contains(text, r.words) {
				t.Errorf("%d %q, want %d %q", status, text, r.status, r.words)
			}
		})
	}
	has(report("path", "/d", "delete", "1"), "\n\nThe filesystem under path '/d' is CORRUPT\n")
	has(report("path", "/d"), "\n Total files:\t2\n", "\n\nThe filesystem under path '/d' is HEALTHY\n")
}

func TestAFollowerChecksNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.leader()
	for _, m := range c.nodes {
		if m != lead {
			if status, text := m.fsck(t, lead.config.Door.Daemon(), "path", "/"); status != http.StatusMisdirectedRequest || !strings.Contains(text, "not supported in state standby") {
				t.Errorf("%s: %d %s", m.config.ID, status, text)
			}
		}
	}
}

func blockNumber(b metadata.Block) string { return strconv.FormatInt(int64(b.ID), 10) }

// A file that is replaced while it is looked at is not the one that lacks blocks, and stays.
func TestFsckRemovesNothingThatWasReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn-1")
	lead := c.leader()
	caller := lead.caller()
	walk := func() (*fsckRun, *strings.Builder) {
		var said strings.Builder
		return &fsckRun{Server: lead.Server, ctx: t.Context(), caller: caller, w: bufio.NewWriter(&said), path: "/", remove: true}, &said
	}
	look := func(path string) *namespace.FileBlocks {
		t.Helper()
		file, err := lead.ns.Blocks(caller, path, 0, 1<<62)
		must(t, err)
		return file
	}
	// Between the look at its blocks, and that at their replicas.
	lead.oneBlock(t, "/replaced", 1, dn)
	stale := look("/replaced")
	must(t, lead.remove(caller, "/replaced"))
	lead.oneBlock(t, "/replaced", 1, dn)
	f, said := walk()
	f.judge("/replaced", stale)
	f.w.Flush()
	if f.totals.missingBlocks+f.totals.corruptFiles > 0 || strings.Contains(said.String(), "MISSING") {
		t.Errorf("a file that is gone counts: %+v\n%s", f.totals, said)
	}
	look("/replaced")
	// And between that and its removal.
	lead.oneBlock(t, "/lost", 1, dn)
	stale = look("/lost")
	must(t, lead.remove(caller, "/lost"))
	lead.oneBlock(t, "/lost", 1, dn)
	f, said = walk()
	one := &fsckFile{fsckRun: f, sums: &f.totals, path: "/lost", replication: 1, missing: 1}
	one.end(stale)
	f.w.Flush()
	if look("/lost"); !strings.Contains(said.String(), "/lost: not deleted") {
		t.Errorf("%s", said)
	}
}

func (m *member) remove(c metadata.Caller, path string) error {
	done := make(chan error, 1)
	m.Delete(c, namenode.Retry{}, path, false, func(_ bool, err error) { done <- err })
	return <-done
}
