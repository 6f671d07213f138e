package server

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// planned is the answer to an OPENMANY as a test looks at it.
type planned struct {
	Names  int
	Groups []plannedGroup
	Empty  []int
	Large  [][2]int64
	Errors []batchread.Problem
}

type plannedGroup struct {
	URL, Datanode  string
	Files, Request int
	Bytes          int64

	files  []uint32
	pieces []batchread.Piece
}

func openMany(t *testing.T, m *member, path, query string, names ...string) (int, string, *planned) {
	t.Helper()
	response, err := http.Post("http://"+m.http+"/webhdfs/v1"+path+"?op=OPENMANY"+query, "", strings.NewReader(strings.Join(names, "\x00")))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, string(b), nil
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	var p planned
	if err := json.Unmarshal(b[8:8+n], &p); err != nil || string(b[:4]) != "HPM1" {
		t.Fatalf("%.300q: %v", b, err)
	}
	b = b[8+n:]
	for i := range p.Groups {
		g := &p.Groups[i]
		for range g.Files {
			g.files = append(g.files, binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
		pool, pieces, err := batchread.ParseRequest(b[:g.Request])
		if err != nil || pool != m.BlockPool() || len(pieces) != g.Files {
			t.Fatalf("group %d: pool %q, %d pieces for %d files, %v", i, pool, len(pieces), g.Files, err)
		}
		g.pieces, b = pieces, b[g.Request:]
	}
	if len(b) != 0 {
		t.Fatalf("%d bytes behind the last group", len(b))
	}
	return response.StatusCode, "", &p
}

// keys are those by which the datanodes check tokens.
func keysOf(m *member) *security.BlockKeys {
	seeds, _ := m.ns.BlockKeys()
	return security.NewBlockKeys(m.config.Credentials.DeriveBlockKeys(seeds))
}

func TestOpenMany(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) {
		c.Properties.Replication = 2
		c.Properties.AccessTimePrecision = 1
	})
	m := c.leader()
	nodes := []*datanode{c.datanode("dn1"), c.datanode("dn2")}
	root := m.caller()
	want := map[string]int64{}
	write := func(path string, length, block int64, open bool) {
		t.Helper()
		fileOn(t, m, root, nodes, path, length, block, open)
		want[path] = length
	}
	var names []string
	for i := range 300 {
		name := fmt.Sprintf("d%d/f%03d", i%3, i)
		write("/a/"+name, int64(i), 1<<20, false)
		names = append(names, name)
	}
	write("/a/large", batchread.MaxBytes+1, 1<<30, false)
	write("/a/two", 3<<20, 2<<20, false)
	write("/a/open", 5, 1<<20, true)
	write("/a/secret", 5, 1<<20, false)
	before := make(chan *metadata.FileStatus, 2)
	m.Stat(root, "/a/d1/f001", func(f *metadata.FileStatus, _ error) { before <- f })
	set := make(chan error, 1)
	m.SetPermission(root, "/a/secret", 0o600, func(err error) { set <- err })
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	names = append(names, "/a/large", "two", "/a/open", "nothing", "d1", "/a/secret", "../a/two", "d2/f299/below")
	code, text, p := openMany(t, m, "/a", "&user.name=ann", names...)
	if code != http.StatusOK || p.Names != len(names) {
		t.Fatalf("%d %s", code, text)
	}
	if !slices.Equal(p.Empty, []int{0}) || !slices.Equal(p.Large, [][2]int64{{300, batchread.MaxBytes + 1}, {301, 3 << 20}}) {
		t.Errorf("empty %v, large %v", p.Empty, p.Large)
	}
	problems := map[int]string{
		302: "AlreadyBeingCreatedException", 303: "FileNotFoundException", 304: "FileNotFoundException", 305: "AccessControlException",
		306: "FileNotFoundException", 307: "AccessControlException",
	}
	for _, e := range p.Errors {
		if problems[e.Index] != e.Exception {
			t.Errorf("%s: %+v, want %s", names[e.Index], e, problems[e.Index])
		}
		delete(problems, e.Index)
	}
	if len(problems) > 0 {
		t.Errorf("no error of %v", problems)
	}
	keys, seen, used := keysOf(m), map[uint32]bool{}, map[string]bool{}
	for _, g := range p.Groups {
		used[g.Datanode] = true
		if !strings.HasPrefix(g.URL, "http://localhost:") || !strings.HasSuffix(g.URL, "/webhdfs/v1/?op=READMANY&user.name=ann") {
			t.Errorf("url %s", g.URL)
		}
		for i, f := range g.files {
			if seen[f] || int64(g.pieces[i].Length) != want["/a/"+names[f]] || g.pieces[i].Offset != 0 {
				t.Errorf("file %d: %+v, seen before: %v", f, g.pieces[i], seen[f])
			}
			seen[f] = true
			if err := keys.Check(g.pieces[i].Token, m.BlockPool(), g.pieces[i].Block.ID, security.ReadBlock, time.Now()); err != nil {
				t.Errorf("token of file %d: %v", f, err)
			}
			if err := keys.Check(g.pieces[i].Token, m.BlockPool(), g.pieces[i].Block.ID, security.WriteBlock, time.Now()); err == nil {
				t.Errorf("the token of file %d lets its bearer write", f)
			}
		}
	}
	if len(seen) != 299 || len(used) != 2 {
		t.Errorf("%d files of %d datanodes", len(seen), len(used))
	}
	// Reading everything again and again is no news to the log.
	m.Stat(root, "/a/d1/f001", func(f *metadata.FileStatus, _ error) { before <- f })
	if was, is := <-before, <-before; was.ATime != is.ATime {
		t.Errorf("the access time went from %v to %v", was.ATime, is.ATime)
	}
	// A datanode that failed is left out; without any other, each file says so.
	first := p.Groups[0].Datanode
	_, _, p = openMany(t, m, "/a", "&user.name=ann&excludedatanodes="+first, names[:300]...)
	if len(p.Errors) > 0 || slices.ContainsFunc(p.Groups, func(g plannedGroup) bool { return g.Datanode == first }) {
		t.Errorf("%s is asked although it is left out, or %v", first, p.Errors)
	}
	if _, _, p = openMany(t, m, "/a", "&user.name=ann&excludedatanodes=localhost", names[1]); len(p.Errors) != 1 || p.Errors[0].Exception != "BlockMissingException" || p.Names != 1 {
		t.Errorf("without any datanode: %+v", p)
	}
	// A path that is as long as a request lets it be is not told back, however many there are.
	if _, _, p = openMany(t, m, "/"+strings.Repeat("l", 5000), "&user.name=ann", "a", strings.Repeat("m", 100_000)); len(p.Errors) != 2 || len(p.Errors[0].Message) > 600 || len(p.Errors[1].Message) > 600 {
		t.Errorf("problems of %d paths: %.2000v", len(p.Errors), p.Errors)
	}
	// No more than is asked for.
	if _, _, p = openMany(t, m, "/a", "&user.name=ann&maxbytes=1000", names[:300]...); p.Names == 0 || p.Names >= 300 {
		t.Errorf("%d names with 1000 bytes", p.Names)
	} else {
		var sum int64
		for _, g := range p.Groups {
			sum += g.Bytes
		}
		if sum > 1000 || sum < 900 {
			t.Errorf("%d bytes", sum)
		}
	}
	if _, _, p = openMany(t, m, "/a", "&user.name=ann&maxbytes=1", "d2/f299", "d1/f001"); p.Names != 1 {
		t.Errorf("a file larger than maxbytes: %d names, and one is the least", p.Names)
	}
	for _, x := range []struct {
		query, body, text string
		code              int
	}{
		{"&user.name=ann", "", "names no path", 400},
		{"&user.name=ann", strings.Repeat("\x00", batchread.MaxNames+1), "is the most", 400},
		{"&user.name=ann", strings.Repeat("x", batchread.MaxNamesBytes+1), "more than", 400},
		{"&user.name=ann&maxbytes=0", "a", "maxbytes", 400},
		{"", "a", "may read, and nothing else", 403},
	} {
		if code, text, _ := openMany(t, m, "/a", x.query, x.body); code != x.code || !strings.Contains(text, x.text) {
			t.Errorf("%s %.10q: %d %s, want %d %q", x.query, x.body, code, text, x.code, x.text)
		}
	}
}

// fileOn makes a file whose replicas the datanodes say to have.
func fileOn(t *testing.T, m *member, c metadata.Caller, nodes []*datanode, path string, length, block int64, open bool) {
	t.Helper()
	got := make(chan error, 1)
	m.Create(c, namenode.CreateRequest{Path: path, Mode: 0o644, Client: "w", Create: true, Parents: true, Replication: len(nodes), BlockSize: block},
		func(_ *metadata.FileStatus, err error) { got <- err })
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	file := namenode.FileRef{Path: path}
	var last *metadata.Block
	for left := length; left > 0; left -= block {
		m.AddBlock(c, namenode.AddBlockRequest{File: file, Client: "w", Previous: last}, func(b *namenode.LocatedBlock, err error) {
			if err == nil {
				last = &b.Block
			}
			got <- err
		})
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		last.Length = min(left, block)
		for _, d := range nodes {
			d.has(*last, pb.ReplicaState_FINALIZED)
		}
		m.knows(t, *last, len(nodes))
	}
	if open {
		return
	}
	eventually(t, path+" is complete", func() bool {
		var complete bool
		m.Complete(c, file, "w", last, func(ok bool, err error) { complete = ok; got <- err })
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		return complete
	})
}
