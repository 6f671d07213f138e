package namespace

import (
	"bytes"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

func TestSmoke(t *testing.T) {
	store := mem.New()
	ns, err := Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup"})
	if err != nil {
		t.Fatal(err)
	}
	su := &logpb.Caller{User: "hops", Superuser: true}
	index := uint64(0)
	do := func(c *logpb.Command) *Result {
		index++
		c.Now = int64(index * 1000)
		c.Caller = su
		b, _ := c.MarshalVT()
		return ns.Apply(index, [][]byte{b})[0].(*Result)
	}
	tgt := func(p string) *logpb.Target { x, _ := TargetOf(p); return x }
	t.Log(do(&logpb.Command{Op: &logpb.Command_ReserveIds{ReserveIds: &logpb.ReserveIDs{Blocks: 100, Generations: 100}}}))
	t.Log(do(&logpb.Command{Op: &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: tgt("/a/b"), Mode: 0o755, CreateParent: true}}}))
	r := do(&logpb.Command{Op: &logpb.Command_Create{Create: &logpb.Create{Target: tgt("/a/b/f"), ClientName: "c", Create: true, Replication: 3, BlockSize: 1 << 20, Mode: 0o644}}})
	t.Log(r.Err, r.Status)
	a := do(&logpb.Command{Op: &logpb.Command_AddBlock{AddBlock: &logpb.AddBlock{Inode: uint64(r.Status.ID), ClientName: "c", Block: &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: 1001}}}})
	t.Log(a.Err, a.Block)
	snap, err := ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	e := do(&logpb.Command{Op: &logpb.Command_Complete{Complete: &logpb.Complete{Inode: uint64(r.Status.ID), ClientName: "c", Last: &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: 1001, Length: 77}}}})
	t.Log(e.Err, e.OK)
	var buf bytes.Buffer
	if _, err := snap.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	snap.Release()
	ns2, err := Open(Config{Store: store.Crash(nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(ns2.AppliedIndex(), ns2.Counts())
	ns3, _ := Open(Config{Store: mem.New()})
	if err := ns3.Restore(&buf); err != nil {
		t.Fatal(err)
	}
	l, err := ns3.List(metadata.Caller{User: "x"}, "/a/b", "", 0)
	t.Log(l, err, ns3.Hash() == ns2.Hash())
	t.Log(ns3.Blocks(metadata.Caller{User: "x"}, "/a/b/f", 0, 100))
	t.Log(ns.Blocks(metadata.Caller{User: "x"}, "/a/b/f", 0, 100))
	t.Log(ns.ContentSummary(metadata.Caller{User: "x"}, "/"))
}
