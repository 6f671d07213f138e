package transfer

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // as Hadoop's balancer signs
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// replaceOp has a datanode get a block from another one, as Hadoop's balancer asks for it.
func replaceOp(b metadata.Block, from *hadooppb.DatanodeInfoProto, hint string) *hadooppb.OpReplaceBlockProto {
	return &hadooppb.OpReplaceBlockProto{
		Header:  &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: tokenFor(grant(b.ID, security.ReplaceBlock|security.CopyBlock))},
		DelHint: &hint, Source: from, StorageType: hadooppb.StorageTypeProto_DISK.Enum(),
	}
}

// replace is the answer to a request, and how often the datanode said before that it is at work.
func (d *node) replace(op *hadooppb.OpReplaceBlockProto) (answer *hadooppb.BlockOpResponseProto, working int) {
	d.t.Helper()
	c := dial(d.t, d)
	defer c.Close()
	check(d.t, dtp.WriteOp(c, dtp.OpReplaceBlock, op))
	for {
		m, err := dtp.ReadResponse(c.r)
		check(d.t, err)
		if m.GetStatus() != hadooppb.Status_IN_PROGRESS {
			return m, working
		}
		working++
	}
}

func (d *node) wantRefused(what string, op *hadooppb.OpReplaceBlockProto, status hadooppb.Status, message string) {
	d.t.Helper()
	if m, _ := d.replace(op); m.GetStatus() != status || !strings.Contains(m.GetMessage(), message) {
		d.t.Errorf("%s: %v, want %v with %q", what, m, status, message)
	}
}

// A replica is got from another datanode with the checksums that its writer wants, and told of with the hint.
func TestReplaceGetsAReplica(t *testing.T) {
	for _, sum := range []dtp.Checksum{dtp.DefaultChecksum, {Type: dtp.CRC32, BytesPer: 512}, {Type: dtp.CRC32C, BytesPer: 1024}} {
		nodes := start(t, 2)
		from, to := nodes[0], nodes[1]
		b, data := block(7, 1001, 300_000), pattern(300_000)
		from.keep(b, data, kept(sum))
		if m, _ := to.replace(replaceOp(b, from.info, "someone")); m.GetStatus() != hadooppb.Status_SUCCESS {
			t.Fatalf("%v: %v", sum, m)
		}
		to.wantContent(b, data)
		rd, err := to.store.Open(b)
		check(t, err)
		if got := rd.Checksum(); got != kept(sum) {
			t.Errorf("its writer wants %v, it has %v", kept(sum), got)
		}
		rd.Close()
		if told := to.changesOf(b.ID); len(told) != 1 || told[0].Kind != datanode.Received || told[0].Instead != "someone" || told[0].Block != b {
			t.Errorf("the namenode hears %+v", told)
		}
		to.wantRefused("once more", replaceOp(b, from.info, ""), hadooppb.Status_ERROR, "already exists")
	}
}

// keep puts a finalized replica on the datanode.
func (d *node) keep(b metadata.Block, data []byte, sum datanode.Checksum) {
	d.t.Helper()
	w, err := d.store.Create(b, datanode.CreateOptions{Checksum: sum})
	check(d.t, err)
	check(d.t, w.Write(0, data, nil))
	_, err = w.Finalize()
	check(d.t, err)
}

func (d *node) changesOf(id metadata.BlockID) []datanode.Change {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.changes), func(c datanode.Change) bool { return c.Block.ID != id })
}

// What cannot be got leaves nothing behind, and nothing is got of strangers, of what is damaged, or as something else than it is.
func TestReplaceThatIsRefused(t *testing.T) {
	nodes := start(t, 2)
	from, to := nodes[0], nodes[1]
	b, data := block(7, 1001, 300_000), pattern(300_000)
	from.keep(b, data, datanode.DefaultChecksum)
	open := block(8, 1001, 100)
	w, err := from.store.Create(open, datanode.CreateOptions{})
	check(t, err)
	check(t, w.Write(0, data[:100], nil))
	w.Acked(100)
	defer w.Close()

	stranger := &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("localhost"), DatanodeUuid: new("stranger"), XferPort: new(uint32(1)), InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
	}}
	to.wantRefused("a stranger", replaceOp(b, stranger, ""), hadooppb.Status_ERROR, "stranger")
	for what, wrong := range map[string]metadata.Block{
		"the beginning":   {ID: b.ID, Generation: b.Generation, Length: 1000},
		"an older one":    {ID: b.ID, Generation: b.Generation - 1, Length: b.Length},
		"nothing":         {ID: b.ID, Generation: b.Generation},
		"more than it is": {ID: b.ID, Generation: b.Generation, Length: b.Length + 1},
		"another":         {ID: 9, Generation: 1001, Length: 10},
		"an open one":     open,
	} {
		to.wantRefused(what, replaceOp(wrong, from.info, ""), hadooppb.Status_ERROR, "")
		to.wantNone(wrong.ID)
	}
	to.wantRefused("a long hint", replaceOp(b, from.info, strings.Repeat("x", 1000)), hadooppb.Status_ERROR, "hint")
	id := replaceOp(b, from.info, "")
	id.Header.Token = tokenFor(grant(b.ID, anyMode&^security.ReplaceBlock))
	to.wantRefused("a token for all else", id, hadooppb.Status_ERROR_ACCESS_TOKEN, "not REPLACE")
	flip(t, from.dir+"/blocks/00/00/blk_7", 123_456)
	to.wantRefused("a damaged one", replaceOp(b, from.info, ""), hadooppb.Status_ERROR, "")
	to.wantNone(b.ID)
	from.heard("of the damage", func(n *node) bool { return slices.Contains(n.suspects, b.ID) })
}

// Replicas that are got to a disk that does not answer are refused, and take nobody's place.
func TestReplaceLeavesADiskThatDoesNotAnswer(t *testing.T) {
	freed := make(chan struct{})
	free := sync.OnceFunc(func() { close(freed) })
	from, to := startOne(t), startOne(t, func(c *Config) {
		c.Silent = func(id metadata.BlockID) bool { return id < 100 }
		c.Bandwidth = func() int64 { <-freed; return 1 << 40 } // it is asked between two writes
	})
	t.Cleanup(free)
	var all sync.WaitGroup
	for id := range int64(maxReplacing + 3) {
		b := block(id, 1001, 1000)
		from.keep(b, pattern(1000), datanode.DefaultChecksum)
		all.Go(func() {
			to.wantRefused("a disk that hangs", replaceOp(b, from.info, ""), hadooppb.Status_ERROR, "does not answer")
		})
	}
	all.Wait()
	to.heard("that the places are free", func(n *node) bool { return len(n.srv.replacing) == 0 })
	free()
	b := block(100, 1001, 1000)
	from.keep(b, pattern(1000), datanode.DefaultChecksum)
	if m, _ := to.replace(replaceOp(b, from.info, "")); m.GetStatus() != hadooppb.Status_SUCCESS {
		t.Error(m)
	}
}

// A balancer hears that the datanode is at work before it loses its patience. When it goes the work ends and nothing of it stays.
func TestReplaceTakesItsTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds")
	}
	slow := func(c *Config) {
		c.Read, c.Bandwidth = 12*time.Second, func() int64 { return 1 << 20 }
	}
	from, to := startOne(t, slow), startOne(t, slow)
	b, data := block(7, 1001, 3<<20), pattern(3<<20)
	from.keep(b, data, datanode.DefaultChecksum)
	m, working := to.replace(replaceOp(b, from.info, ""))
	if m.GetStatus() != hadooppb.Status_SUCCESS || working == 0 {
		t.Errorf("%v after %d signs of life", m, working)
	}
	to.wantContent(b, data)

	big := block(9, 1001, 32<<20)
	from.keep(big, pattern(32<<20), datanode.DefaultChecksum)
	c := dial(t, to)
	check(t, dtp.WriteOp(c, dtp.OpReplaceBlock, replaceOp(big, from.info, "")))
	if m, err := dtp.ReadResponse(c.r); err != nil || m.GetStatus() != hadooppb.Status_IN_PROGRESS {
		t.Fatalf("%v, %v", m, err)
	}
	c.Close()
	to.heard("the end of it", func(n *node) bool { return len(n.srv.replacing) == 0 })
	to.wantNone(big.ID)
}

// What is on the datanode already goes to another of its volumes.
func TestReplaceWithin(t *testing.T) {
	var moved []datanode.StorageType
	d := startOne(t)
	id := d.info.GetId().GetDatanodeUuid()
	at := startOne(t, func(c *Config) {
		c.UUID = id
		c.Move = func(_ context.Context, _ metadata.Block, kind datanode.StorageType, pace func(int64) error) error {
			moved = append(moved, kind)
			if kind == datanode.Archive {
				return errors.New("there is no such volume")
			}
			return pace(10)
		}
	})
	b := block(7, 1001, 10)
	op := replaceOp(b, d.info, "")
	op.StorageType = hadooppb.StorageTypeProto_SSD.Enum()
	if m, _ := at.replace(op); m.GetStatus() != hadooppb.Status_SUCCESS {
		t.Error(m)
	}
	op.StorageType = hadooppb.StorageTypeProto_ARCHIVE.Enum()
	at.wantRefused("no such volume", op, hadooppb.Status_ERROR, "no such volume")
	if !slices.Equal(moved, []datanode.StorageType{datanode.SSD, datanode.Archive}) {
		t.Error(moved)
	}
}

// A key that Hadoop's balancer is given has a replica moved, and opens nothing.
func TestMoveKeyOnlyMoves(t *testing.T) {
	nodes := start(t, 2)
	b, data := block(7, 1001, 5000), pattern(5000)
	nodes[0].keep(b, data, datanode.DefaultChecksum)
	key, _ := trusted.keys.MoveKey()
	signed := security.NewBlockKeys([]security.BlockKey{key}).Sign(grant(b.ID, anyMode), time.Now().Add(time.Hour))
	mac := hmac.New(sha1.New, key.Key)
	mac.Write(signed.Identifier)
	signed.Password = mac.Sum(nil)
	token := tokenProto(signed)
	h := &hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: token}, ClientName: new("c")}
	for what, q := range requests(h, nodes[0].info) {
		if q.mode == security.ReplaceBlock {
			continue
		}
		c := dial(t, nodes[1])
		check(t, dtp.WriteOp(c, q.op, q.m))
		if m, err := dtp.ReadResponse(c.r); err != nil || m.GetStatus() != hadooppb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("%s: %v, %v", what, m, err)
		}
		c.Close()
	}
	op := replaceOp(b, nodes[0].info, "")
	op.Header.Token = token
	if m, _ := nodes[1].replace(op); m.GetStatus() != hadooppb.Status_SUCCESS {
		t.Fatal(m)
	}
	nodes[1].wantContent(b, data)
}

// A mistake of this program in a request ends that request, and not the datanode.
func TestAPanicEndsItsRequest(t *testing.T) {
	nodes := start(t, 1)
	b, data := block(7, 1001, 5000), pattern(5000)
	nodes[0].keep(b, data, datanode.DefaultChecksum)
	d := startOne(t, func(c *Config) { c.Store = panicking{c.Store} })
	d.keep(b, data, datanode.DefaultChecksum)
	c := dial(t, d)
	check(t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header(block(666, 1001, 1), "c"), Offset: new(uint64(0)), Len: new(uint64(1))}))
	if m, err := dtp.ReadResponse(c.r); err == nil {
		t.Errorf("it is answered %v", m)
	}
	d.wantRefused("one that panics", replaceOp(block(666, 1001, 5000), nodes[0].info, ""), hadooppb.Status_ERROR, "")
	moved := startOne(t, func(c *Config) {
		c.UUID = nodes[0].info.GetId().GetDatanodeUuid()
		c.Move = func(context.Context, metadata.Block, datanode.StorageType, func(int64) error) error {
			panic("as asked")
		}
	})
	moved.wantRefused("one that panics while it works", replaceOp(b, nodes[0].info, ""), hadooppb.Status_ERROR, errPanicked.Error())
	moved.heard("that its place is free", func(n *node) bool { return len(n.srv.replacing) == 0 })
	d.wantContent(b, data)
}

// panicking is a store with one bad block.
type panicking struct{ datanode.BlockStore }

func (s panicking) Open(b metadata.Block) (datanode.Reader, error) {
	if b.ID == 666 {
		panic("as asked")
	}
	return s.BlockStore.Open(b)
}
