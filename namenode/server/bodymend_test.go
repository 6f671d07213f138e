package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// noise are bytes that are in no other file.
func noise(n int) []byte {
	r, data := rand.New(rand.NewPCG(3, 9)), make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// damage turns a byte of a body in the segments of a namenode, which finds out when it reads it next.
func (m *member) damage(t *testing.T, data []byte) {
	t.Helper()
	must(t, m.bodies.Sync())
	found := 0
	for _, path := range m.segments(t) {
		content, err := os.ReadFile(path)
		must(t, err)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		for from := 0; ; {
			at := bytes.Index(content[from:], data)
			if at < 0 {
				break
			}
			from += at + len(data)
			found++
			_, err := f.WriteAt([]byte{data[len(data)-1] ^ 1}, int64(from-1))
			must(t, err)
		}
		must(t, f.Close())
	}
	if found == 0 {
		t.Fatalf("%s does not have it", m.config.ID)
	}
}

// finds has the namenode know that a body is damaged.
func (m *member) finds(t *testing.T, b metadata.Block) {
	t.Helper()
	if _, err := m.bodies.Get(b.ID); !errors.Is(err, metadata.ErrCorrupt) || m.bodies.Has(b.ID) {
		t.Fatal(m.config.ID, err)
	}
}

// level waits until all namenodes have applied what the leader has, and know each other by the addresses that servers says.
func (c *cluster) level(t *testing.T, servers config.Servers) {
	t.Helper()
	eventually(t, "the namenodes are noted", func() bool { return c.leader().roster.SetServers(t.Context(), servers) == nil })
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" has applied all and knows the others", func() bool {
			s, err := m.roster.Servers()
			return err == nil && m.ns.AppliedIndex() >= c.leader().ns.AppliedIndex() && len(s.Namenodes) == len(servers.Namenodes) && s.Namenodes[0].GRPC == servers.Namenodes[0].GRPC
		})
	}
}

func (c *cluster) servers() (s config.Servers) {
	for _, m := range c.nodes {
		s.Namenodes = append(s.Namenodes, config.NamenodeMember{ID: m.config.ID, GRPC: m.grpc})
	}
	return s
}

// silence is the address of a process that takes connections and says nothing.
func silence(t *testing.T) string {
	t.Helper()
	l := listen(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, c := range conns {
					c.Close()
				}
				return
			}
			conns = append(conns, conn)
		}
	}()
	return l.Addr().String()
}

// A namenode that hangs keeps nobody from what another one has, is asked last from then on, and costs a list of files what it costs one.
func TestBodiesBesideANamenodeThatHangs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.raised()
	const files = 40
	blocks := c.storeMany(t, files)
	servers := c.servers()
	servers.Namenodes[0].GRPC = silence(t)
	c.level(t, servers)
	sick := c.nodes[1]
	for i := range files {
		sick.damage(t, scrubBytes(i))
	}
	read := func(i int) error {
		data, err := sick.Body(t.Context(), blocks[i].ID, blocks[i].Generation)
		if err == nil && !bytes.Equal(data, scrubBytes(i)) {
			t.Fatal("other bytes")
		}
		return err
	}
	eventually(t, "the namenode behind the one that hangs is asked", func() bool { return read(0) == nil })
	if !sick.bodies.Has(blocks[0].ID) {
		t.Error("it was not kept")
	}
	if _, silent := sick.silent.Load("nn1"); !silent {
		t.Error("who hangs is not known to")
	}
	peers, err := sick.bodyPeers()
	must(t, err)
	defer peers.close()
	if turn := sick.inTurn(peers); len(turn) != 2 || turn[0].id != "nn3" || turn[1].id != "nn1" {
		t.Error("who hangs is not asked last")
	}
	// None of the others answers: a list of files is told so after as long as one file is.
	servers.Namenodes[2].GRPC = silence(t)
	c.level(t, servers)
	eventually(t, "nn3 is gone", func() bool {
		s, err := sick.roster.Servers()
		return err == nil && s.Namenodes[2].GRPC == servers.Namenodes[2].GRPC
	})
	many := func(ctx context.Context) (failed int) {
		sound := 0
		refs := make([]namespace.BodyRef, 0, files)
		for _, b := range blocks[1:] {
			r, err := sick.ns.FindBody(b.ID, 0)
			if err != nil || r == nil {
				t.Fatal(err)
			}
			refs = append(refs, *r)
		}
		err := sick.readBodies(ctx, "user", refs, func(_ int, _ []byte, err error) {
			if err != nil {
				failed++
			} else {
				sound++
			}
			if ctx.Err() == nil && (metadata.KindOf(err) != metadata.ErrCorrupt || !errors.Is(err, errUnanswered)) {
				t.Error(err)
			}
		})
		switch {
		case err == nil:
			return failed
		case ctx.Err() == nil:
			t.Error(err)
		}
		return len(refs) - sound // who has gone hears nothing
	}
	began := time.Now()
	if n := many(t.Context()); n != files-1 {
		t.Errorf("%d of %d cannot be read", n, files-1)
	}
	if took := time.Since(began); took > files/2*mendTime {
		t.Errorf("%d bodies that nobody gives take %v", files-1, took)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if n := many(gone); n != files-1 {
		t.Errorf("%d of %d could be read for who has gone", files-1-n, files-1)
	}
}

// Who has not applied as much as who asks cannot say that there is no such body.
func TestBodyOfTheFuture(t *testing.T) {
	c := newCluster(t, 3, nil)
	lead := c.raised()
	b := c.storeMany(t, 1)[0]
	c.level(t, c.servers())
	peers, err := lead.bodyPeers()
	must(t, err)
	defer peers.close()
	for _, n := range peers {
		ask := func(id metadata.BlockID, applied uint64) codes.Code {
			var code codes.Code
			eventually(t, n.id+" answers", func() bool {
				_, err := pb.NewMembershipClient(n.conn).Body(t.Context(), &pb.BodyRequest{Id: int64(id), Applied: applied})
				code = status.Code(err)
				return code != codes.Unavailable || strings.Contains(err.Error(), "was applied")
			})
			return code
		}
		if code := ask(b.ID, 1<<60); code != codes.OK {
			t.Error("what is here:", code)
		}
		if code := ask(b.ID+100, lead.ns.AppliedIndex()); code != codes.NotFound {
			t.Error("what is not:", code)
		}
		if code := ask(b.ID+100, 1<<60); code != codes.Unavailable {
			t.Error("what is not here yet:", code)
		}
	}
	for err, lost := range map[error]bool{
		metadata.Errorf(metadata.ErrCorrupt, "x"): true, fmt.Errorf("x: %w", metadata.ErrCorrupt): true,
		fmt.Errorf("%w: %w", metadata.Errorf(metadata.ErrCorrupt, "x"), errUnanswered): false, fmt.Errorf("%w: %w", metadata.Errorf(metadata.ErrCorrupt, "x"), syscall.EIO): false,
		fmt.Errorf("body: %w", syscall.EMFILE): false, metadata.Errorf(metadata.ErrReplicaNotFound, "x"): false, context.Canceled: false,
	} {
		if bodyLost(err) != lost {
			t.Errorf("%v: a proof that it is lost: %t", err, !lost)
		}
	}
}

// A namenode that has not come to the entry of a file has its body later: fsck deletes nothing meanwhile.
func TestBodiesThatAreNotAppliedEverywhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.raised()
	c.datanode("dn1")
	eventually(t, "safe mode is over", func() bool { return lead.SafeMode() == "" })
	c.level(t, c.servers())
	at := slices.Index(c.nodes, lead)
	late, third := c.nodes[(at+1)%3], c.nodes[(at+2)%3]
	must(t, lead.do(func(done func(error)) {
		lead.Create(lead.caller(), namenode.CreateRequest{Path: "/open", Mode: 0o644, Client: "w", Create: true, Replication: 1, BlockSize: 1 << 20}, func(_ *metadata.FileStatus, err error) { done(err) })
	}))
	eventually(t, "all have the file", func() bool { return late.ns.AppliedIndex() >= lead.ns.AppliedIndex() })
	late.soft.mu.Lock() // for which Apply waits with the next block
	held := true
	release := func() {
		if held {
			held = false
			late.soft.mu.Unlock()
		}
	}
	defer release()
	must(t, lead.do(func(done func(error)) {
		lead.AddBlock(lead.caller(), namenode.AddBlockRequest{File: namenode.FileRef{Path: "/open"}, Client: "w"}, func(_ *namenode.LocatedBlock, err error) { done(err) })
	}))
	data := noise(5000)
	if _, err := lead.store(t, storing("/x"), data); err != nil {
		t.Fatal(err)
	}
	x := lead.locate(t, "/x").Blocks[0].Block
	eventually(t, "the third has it", func() bool { return third.bodies.Has(x.ID) })
	if r, err := late.ns.FindBody(x.ID, 0); r != nil || err != nil {
		t.Fatal("it is applied: this shows nothing", r, err)
	}
	for _, m := range []*member{lead, third} {
		m.damage(t, data)
		m.finds(t, x)
	}
	code, text := lead.fsck(t, lead.config.Door.Daemon(), "path", "/x", "delete", "1")
	if code != http.StatusOK || !strings.Contains(text, errUnanswered.Error()) {
		t.Errorf("%d %s", code, text)
	}
	if st, err := lead.ns.Stat(lead.caller(), "/x"); err != nil || st == nil {
		t.Fatal("the file is gone", err)
	}
	release()
	eventually(t, "it comes from who was late", func() bool {
		got, err := lead.Body(t.Context(), x.ID, x.Generation)
		return err == nil && bytes.Equal(got, data)
	})
}

// crowd makes the group forget how its log began: who has no state takes another member's.
func (c *cluster) crowd(t *testing.T, name string) {
	t.Helper()
	for turn := range 3 {
		lead := c.leader()
		const files = 130
		answers := make(chan error, files)
		for i := range files {
			r := storing(fmt.Sprintf("/%s/%d/%d", name, turn, i))
			lead.StoreFile(lead.caller(), r, smallBytes(metadata.MaxBody, byte(i)), func(_ *metadata.FileStatus, err error) { answers <- err })
		}
		for range files {
			must(t, <-answers)
		}
		for _, m := range c.nodes {
			eventually(t, m.config.ID+" has all", func() bool { return m.ns.AppliedIndex() >= lead.ns.AppliedIndex() })
			must(t, m.group.Save())
		}
	}
}

// A namenode that begins anew takes another one's state, in which a body is damaged that it has had itself: it is not lost.
func TestBodiesOfAStateThatWasLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	lead := c.raised()
	data := noise(5000)
	if _, err := lead.store(t, storing("/x"), data); err != nil {
		t.Fatal(err)
	}
	x := lead.locate(t, "/x").Blocks[0].Block
	c.level(t, c.servers())
	c.crowd(t, "crowd")
	lead = c.leader()
	at := 1 - slices.Index(c.nodes, lead)
	sick := c.nodes[at]
	eventually(t, "both have it", func() bool { return sick.bodies.Has(x.ID) })
	must(t, sick.bodies.Sync())
	lead.damage(t, data)
	must(t, sick.Server.store.Condemn())
	sick.stop()
	c.start(at)
	c.await(at)
	sick = c.nodes[at]
	if n := sick.ns.BodyGaps(); n != 1 {
		t.Fatalf("%d bodies did not come: this shows nothing", n)
	}
	c.level(t, c.servers())
	eventually(t, "the former bodies have been looked through", func() bool {
		_, err := os.Lstat(sick.formerDir())
		return errors.Is(err, os.ErrNotExist)
	})
	if !sick.bodies.Has(x.ID) || len(sick.bodies.Damaged(1)) != 0 {
		t.Error("what it had itself was not taken")
	}
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" reads it", func() bool {
			got, err := m.Body(t.Context(), x.ID, x.Generation)
			return err == nil && bytes.Equal(got, data)
		})
	}
}

// A body that the sender of a state lacks comes from a third namenode, without anybody reading it.
func TestBodiesThatASenderLacks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.raised()
	data := noise(5000)
	if _, err := lead.store(t, storing("/x"), data); err != nil {
		t.Fatal(err)
	}
	x := lead.locate(t, "/x").Blocks[0].Block
	c.level(t, c.servers())
	c.crowd(t, "crowd")
	lead = c.leader()
	first := slices.Index(c.nodes, lead)
	at, away := (first+1)%3, (first+2)%3
	sick, third := c.nodes[at], c.nodes[away]
	eventually(t, "all have it", func() bool { return sick.bodies.Has(x.ID) && third.bodies.Has(x.ID) })
	must(t, third.bodies.Sync())
	lead.damage(t, data)
	must(t, sick.Server.store.Condemn())
	sick.stop()
	third.stop() // so that the leader is the sender
	must(t, os.RemoveAll(sick.bodiesDir()))
	c.nodes[away] = lead
	c.start(at)
	c.await(at)
	sick = c.nodes[at]
	if n := sick.ns.BodyGaps(); n != 1 || sick.bodies.Has(x.ID) {
		t.Fatalf("%d bodies did not come: this shows nothing", n)
	}
	if d := sick.bodies.Damaged(10); !slices.Contains(d, x.ID) {
		t.Error("nobody knows what did not come:", d)
	}
	c.start(away)
	c.await(away)
	c.level(t, c.servers())
	b := &scrubbing{Server: sick.Server, lost: map[metadata.BlockID]struct{}{}, bad: map[metadata.BlockID]struct{}{}}
	eventually(t, "it comes", func() bool {
		b.mend(t.Context())
		return sick.bodies.Has(x.ID)
	})
	got, err := sick.bodies.Get(x.ID)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatal(err)
	}
}
