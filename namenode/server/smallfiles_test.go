package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// smallBytes are those of a test's file.
func smallBytes(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return data
}

func storing(path string) namenode.CreateRequest {
	return namenode.CreateRequest{Path: path, Mode: 0o644, Client: "c", Create: true, Parents: true, Replication: 3, BlockSize: 1 << 20}
}

// store makes a small file.
func (m *member) store(t *testing.T, r namenode.CreateRequest, data []byte) (*metadata.FileStatus, error) {
	t.Helper()
	type answer struct {
		st  *metadata.FileStatus
		err error
	}
	done := make(chan answer, 1)
	m.StoreFile(m.caller(), r, data, func(st *metadata.FileStatus, err error) { done <- answer{st, err} })
	a := <-done
	return a.st, a.err
}

// whole reads a file with its bytes, or its blocks.
func (m *member) whole(t *testing.T, path string) (*namenode.FileWithData, error) {
	t.Helper()
	type answer struct {
		f   *namenode.FileWithData
		err error
	}
	done := make(chan answer, 1)
	m.FileWithData(m.caller(), namenode.FileWithDataRequest{Path: path}, func(f *namenode.FileWithData, err error) { done <- answer{f, err} })
	a := <-done
	return a.f, a.err
}

func (m *member) locate(t *testing.T, path string) *namenode.LocatedFile {
	t.Helper()
	done := make(chan *namenode.LocatedFile, 1)
	m.Locate(m.caller(), namenode.LocateRequest{Path: path, Length: 1 << 40}, func(f *namenode.LocatedFile, err error) {
		if err != nil {
			t.Error(path, err)
		}
		done <- f
	})
	f := <-done
	if f == nil {
		t.FailNow()
	}
	return f
}

// raised is the namenode that leads, when all have the level of small files.
func (c *cluster) raised() *member {
	c.t.Helper()
	for _, m := range c.nodes {
		if err := m.group.Raise(release.SmallFiles); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.leader()
}

// known tells all namenodes of each other.
func (c *cluster) known() {
	c.t.Helper()
	var servers config.Servers
	for _, m := range c.nodes {
		servers.Namenodes = append(servers.Namenodes, config.NamenodeMember{ID: m.config.ID, GRPC: m.grpc})
	}
	eventually(c.t, "the namenodes are noted", func() bool { return c.leader().roster.SetServers(c.t.Context(), servers) == nil })
}

// A small file is stored by one call, read with its status, found by its block id on every namenode, and nobody waits for a datanode, of which there is none.
func TestSmallFileFromStoreToEnd(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	if _, err := m.store(t, storing("/early"), smallBytes(1, 1)); metadata.KindOf(err) != metadata.ErrUnsupported || !strings.Contains(err.Error(), "need level 6") {
		t.Error(err)
	}
	keep := namenode.KeepFileRequest{Path: "/early", Data: smallBytes(1, 1)}
	if err := m.do(func(done func(error)) { m.KeepFile(m.caller(), keep, done) }); metadata.KindOf(err) != metadata.ErrUnsupported || !strings.Contains(err.Error(), "need level 6") {
		t.Fatal(err)
	}
	m = c.raised()
	for _, size := range []int{0, 1, 1024, 1025, 5000, metadata.MaxBody} {
		path, data := fmt.Sprintf("/d/%d", size), smallBytes(size, 1)
		st, err := m.store(t, storing(path), data)
		if err != nil || st.Length != int64(size) || st.UnderConstruction {
			t.Fatal(size, st, err)
		}
		f, err := m.whole(t, path)
		if err != nil || !f.Whole || !bytes.Equal(f.Data, data) || f.Status.ID != st.ID || len(f.Blocks) != 0 {
			t.Fatal(size, f, err)
		}
		l := m.locate(t, path)
		if size == 0 {
			if len(l.Blocks) != 0 {
				t.Fatal(l.Blocks)
			}
			continue
		}
		if len(l.Blocks) != 1 || !l.Blocks[0].Small || len(l.Blocks[0].Locations) != 1 || !namenode.IsDoor(l.Blocks[0].Locations[0].Node.ID) || l.Blocks[0].Corrupt || l.Blocks[0].Token.Identifier == nil || !l.Last.Small {
			t.Fatalf("%+v", l)
		}
		b := l.Blocks[0].Block
		got, err := m.Body(t.Context(), b.ID, b.Generation)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatal(size, err)
		}
		if _, err := m.Body(t.Context(), b.ID, b.Generation+1); metadata.KindOf(err) != metadata.ErrReplicaNotFound {
			t.Error(err)
		}
	}
	if st := m.Statistics(); st.Missing != 0 || st.UnderReplicated != 0 {
		t.Errorf("%+v", st)
	}
	_, text := m.fsck(t, m.config.Door.Daemon(), "path", "/", "files", "1", "blocks", "1")
	if !strings.Contains(text, "[on the namenodes]") || !strings.Contains(text, "HEALTHY") || strings.Contains(text, "MISSING") {
		t.Error(text)
	}
	id := fmt.Sprintf("blk_%d", m.locate(t, "/d/5000").Blocks[0].Block.ID)
	if _, text := m.fsck(t, m.config.Door.Daemon(), "path", "/", "blockId", id); !strings.HasSuffix(text, "Block replica on the namenodes is HEALTHY\n") {
		t.Error(text)
	}

	// What is no small file goes to datanodes.
	for what, try := range map[string]func() error{
		"one byte more": func() error { _, err := m.store(t, storing("/more"), smallBytes(metadata.MaxBody+1, 1)); return err },
		"one byte more to be kept": func() error {
			r := namenode.KeepFileRequest{Path: "/d/5000", Data: smallBytes(metadata.MaxBody+1, 1)}
			return m.do(func(done func(error)) { m.KeepFile(m.caller(), r, done) })
		},
		"more than is set": func() error {
			m.config.SmallFileLimit = 100
			defer func() { m.config.SmallFileLimit = 0 }()
			_, err := m.store(t, storing("/more"), smallBytes(101, 1))
			return err
		},
		"a small block": func() error {
			r := storing("/block")
			r.BlockSize = 100
			_, err := m.store(t, r, smallBytes(101, 1))
			return err
		},
		"a policy": func() error {
			r := storing("/coded")
			r.Policy = "RS-6-3-1024k"
			_, err := m.store(t, r, smallBytes(101, 1))
			return err
		},
		"where it is off": func() error {
			if err := m.do(func(done func(error)) { m.SetSmallFiles(m.caller(), "/d", namenode.SmallFilesOff, done) }); err != nil {
				t.Fatal(err)
			}
			_, err := m.store(t, storing("/d/e/f"), smallBytes(5, 1))
			return err
		},
	} {
		if err := try(); metadata.KindOf(err) != metadata.ErrUnsupported || !strings.Contains(err.Error(), "to datanodes") {
			t.Errorf("%s: %v", what, err)
		}
	}
	policy := func(path string) (p namenode.SmallFilePolicy, own bool) {
		if err := m.do(func(done func(error)) {
			m.SmallFilesAt(m.caller(), path, func(at namenode.SmallFilePolicy, o bool, err error) { p, own = at, o; done(err) })
		}); err != nil {
			t.Fatal(err)
		}
		return p, own
	}
	if p, own := policy("/d/5000"); p != namenode.SmallFilesOff || own {
		t.Error(p, own)
	}
	if p, own := policy("/d"); p != namenode.SmallFilesOff || !own {
		t.Error(p, own)
	}
	if err := m.do(func(done func(error)) { m.SetSmallFiles(m.caller(), "/d", namenode.SmallFilesInherit, done) }); err != nil {
		t.Fatal(err)
	}
	if p, own := policy("/d"); p != namenode.SmallFilesOn || own {
		t.Error(p, own)
	}

	// A cut inside of the body, at once; and one to nothing.
	for _, length := range []int64{3000, 700, 0} {
		var ok bool
		if err := m.do(func(done func(error)) {
			m.Truncate(m.caller(), namenode.Retry{}, "/d/5000", length, "c", func(closed bool, err error) { ok = closed; done(err) })
		}); err != nil || !ok {
			t.Fatal(length, ok, err)
		}
		f, err := m.whole(t, "/d/5000")
		if err != nil || !f.Whole || !bytes.Equal(f.Data, smallBytes(5000, 1)[:length]) {
			t.Fatal(length, f, err)
		}
	}
}

// do waits for a call.
func (m *member) do(call func(done func(error))) error {
	done := make(chan error, 1)
	call(func(err error) { done <- err })
	return <-done
}

// What is appended to a small file goes to a block on datanodes behind its body, which stays where it is.
func TestAppendToASmallFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	d := c.datanode("dn1")
	eventually(t, "safe mode is over", func() bool { return m.SafeMode() == "" })
	if _, err := m.store(t, storing("/f"), smallBytes(3000, 2)); err != nil {
		t.Fatal(err)
	}
	var last *namenode.LocatedBlock
	if err := m.do(func(done func(error)) {
		m.Append(m.caller(), namenode.AppendRequest{Path: "/f", Client: "w"}, func(l *namenode.LocatedBlock, _ *metadata.FileStatus, err error) { last = l; done(err) })
	}); err != nil || last != nil {
		t.Fatal(last, err)
	}
	add := func() (l *namenode.LocatedBlock) {
		if err := m.do(func(done func(error)) {
			m.AddBlock(m.caller(), namenode.AddBlockRequest{File: namenode.FileRef{Path: "/f"}, Client: "w"}, func(b *namenode.LocatedBlock, err error) { l = b; done(err) })
		}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := add()
	if again := add(); again.Block.ID != first.Block.ID { // its client has not heard of the first
		t.Fatal(first.Block, again.Block)
	}
	if f, err := m.whole(t, "/f"); err != nil || f.Whole || len(f.Blocks) != 2 { // the block may have bytes that nobody has told of yet
		t.Fatalf("%+v %v", f, err)
	}
	b := first.Block
	b.Length = 77
	d.has(b, pb.ReplicaState_FINALIZED)
	eventually(t, "the file is closed", func() bool {
		closed := false
		err := m.do(func(done func(error)) {
			m.Complete(m.caller(), namenode.FileRef{Path: "/f"}, "w", &b, func(ok bool, err error) { closed = ok; done(err) })
		})
		if err != nil {
			t.Fatal(err)
		}
		return closed
	})
	f, err := m.whole(t, "/f")
	if err != nil || f.Whole || len(f.Blocks) != 2 || !f.Blocks[0].Small || f.Blocks[1].Small || f.Blocks[1].Offset != 3000 || len(f.Blocks[1].Locations) != 1 || f.Length != 3077 {
		t.Fatalf("%+v %v", f, err)
	}
	got, err := m.Body(t.Context(), f.Blocks[0].Block.ID, f.Blocks[0].Block.Generation)
	if err != nil || !bytes.Equal(got, smallBytes(3000, 2)) {
		t.Fatal(err)
	}
}

// Three namenodes: what was stored is there when the leader is killed, and a namenode that has lost its bodies gets them from another one, and keeps them.
func TestSmallFilesOfThree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.raised()
	var blocks []metadata.Block
	for i := range 20 {
		path := fmt.Sprintf("/f%d", i)
		r := storing(path)
		r.Overwrite = true // whoever leads by then is asked again, and does not know the request
		eventually(t, path+" is stored", func() bool {
			lead = c.leader()
			_, err := lead.store(t, r, smallBytes(2000+i, byte(i)))
			return err == nil
		})
		var f *namenode.FileWithData
		eventually(t, path+" is found", func() bool {
			var err error
			f, err = c.leader().whole(t, path)
			return err == nil && f.Whole
		})
		id, ok := lead.ns.FileByID(f.Status.ID)
		if !ok {
			t.Fatal("no file ", path)
		}
		blocks = append(blocks, id.Blocks[0])
	}
	lead = c.leader()
	last := blocks[len(blocks)-1]
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" has the last body", func() bool {
			r, err := m.ns.FindBody(last.ID, last.Generation)
			if err != nil || r == nil {
				return false
			}
			data, err := m.ns.ReadBody(*r)
			return err == nil && bytes.Equal(data, smallBytes(2019, 19))
		})
	}
	at := 0
	for i, m := range c.nodes {
		if m == lead {
			at = i
		}
	}
	lead.stop()
	c.nodes[at] = c.nodes[(at+1)%3] // nobody asks it meanwhile
	next := c.leader()
	for i := range blocks {
		var f *namenode.FileWithData
		eventually(t, "a file is read", func() bool {
			var err error
			next = c.leader()
			f, err = next.whole(t, fmt.Sprintf("/f%d", i))
			return err == nil
		})
		if !f.Whole || !bytes.Equal(f.Data, smallBytes(2000+i, byte(i))) {
			t.Fatal(i)
		}
	}
	// It comes back with a checkpoint, and without the files that its bodies were in.
	if err := os.RemoveAll(filepath.Join(c.dir, c.members[at].ID, "data", "smallfiles")); err != nil {
		t.Fatal(err)
	}
	c.start(at)
	c.await(at)
	back := c.nodes[at]
	c.known()
	eventually(t, "it has applied all, and knows the others", func() bool {
		servers, err := back.roster.Servers()
		return back.ns.AppliedIndex() >= next.ns.AppliedIndex() && err == nil && len(servers.Namenodes) == 3
	})
	for i, b := range blocks {
		eventually(t, "a body is read", func() bool { // another namenode may take longer than it is given to send it
			data, err := back.Body(t.Context(), b.ID, b.Generation)
			if err == nil && !bytes.Equal(data, smallBytes(2000+i, byte(i))) {
				t.Fatal(i, "has other bytes")
			}
			return err == nil
		})
		if !back.bodies.Has(b.ID) {
			t.Errorf("body %v was not kept", b)
		}
	}
	t.Logf("%d bodies came from other namenodes", back.mended.Load())
}

// Block ids begin anew with a cluster: what an earlier one has left in the directory is not taken for what has the same id now.
func TestBodiesOfAnEarlierClusterAreForgotten(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	if _, err := m.store(t, storing("/f"), smallBytes(5000, 1)); err != nil {
		t.Fatal(err)
	}
	before := m.locate(t, "/f").Blocks[0].Block
	m.stop()
	for _, part := range []string{"raft", "data/checkpoint", "data/feed"} {
		if err := os.RemoveAll(filepath.Join(c.dir, "nn1", part)); err != nil {
			t.Fatal(err)
		}
	}
	c.start(0)
	c.await(0)
	m = c.raised()
	if m.bodies.Has(before.ID) {
		t.Error("a body of the earlier cluster is there")
	}
	if _, err := m.store(t, storing("/g"), smallBytes(5000, 2)); err != nil {
		t.Fatal(err)
	}
	if after := m.locate(t, "/g").Blocks[0].Block; after.ID != before.ID {
		t.Fatalf("%v and %v: this shows nothing", before, after)
	}
	f, err := m.whole(t, "/g")
	if err != nil || !f.Whole || !bytes.Equal(f.Data, smallBytes(5000, 2)) {
		t.Fatal(err)
	}
}

// A backup has all bodies, those that the namenode that makes it has lost too, or there is none.
func TestBackupsHaveAllBodies(t *testing.T) {
	c := newCluster(t, 3, nil)
	lead := c.raised()
	for i := range 5 {
		if _, err := lead.store(t, storing(fmt.Sprintf("/f%d", i)), smallBytes(2000+i, byte(i))); err != nil {
			t.Fatal(err)
		}
	}
	c.known()
	eventually(t, "all namenodes are known, and have everything", func() bool {
		servers, err := lead.roster.Servers()
		for _, m := range c.nodes {
			if m.ns.AppliedIndex() < lead.ns.AppliedIndex() {
				return false
			}
		}
		return err == nil && len(servers.Namenodes) == 3
	})
	lose := func(m *member) {
		t.Helper()
		must(t, m.bodies.Sync())
		for _, path := range m.segments(t) {
			info, err := os.Stat(path)
			must(t, err)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt(make([]byte, info.Size()-segmentHeader), segmentHeader)
			must(t, err)
			must(t, f.Close())
		}
	}
	lose(lead)
	tries := 0
	eventually(t, "a backup has what is missing here from the others", func() bool { // of who does not answer in time the next try asks again
		tries++
		_, err := lead.wholeBackup()
		if err != nil && !strings.Contains(err.Error(), "it would lack the bytes") {
			t.Fatal(err)
		}
		return err == nil
	})
	if n := lead.mended.Load(); n < 5 || tries == 1 && n != 5 {
		t.Errorf("%d bodies came from others", n)
	}
	var blocks []metadata.Block
	for i := range 5 {
		blocks = append(blocks, lead.locate(t, fmt.Sprintf("/f%d", i)).Blocks[0].Block)
	}
	for _, m := range c.nodes {
		lose(m)
	}
	if err := lead.do(func(done func(error)) {
		lead.Mkdirs(lead.caller(), namenode.MkdirsRequest{Path: "/new", Mode: 0o755}, done)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := lead.wholeBackup(); err == nil || !strings.Contains(err.Error(), "5 small files") {
		t.Error("a backup without bodies:", err)
	}
	// They are there again, and nothing else has changed.
	for i, b := range blocks {
		if !lead.bodies.Offer(b.ID, smallBytes(2000+i, byte(i))) {
			t.Fatal(b, "is not taken")
		}
	}
	if _, err := lead.wholeBackup(); err != nil {
		t.Error("a backup with bodies that have come back:", err)
	}
}
