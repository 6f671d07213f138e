package namespace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// goldenLog was written by a program of a level. It has a line with the index and the hash of the state that its entries make, and then the entries: each a
// varint of how many commands it has, and each of these behind a varint of its length. A member that replays what a version before wrote has to come to
// the state that that one's members have, whatever this program does better: so a change of what a command means takes a new command, or a field of it, and a level.
func goldenLog(level int) string { return filepath.Join("testdata", fmt.Sprintf("log-%d", level)) }

func TestGoldenLogsMakeTheirStates(t *testing.T) {
	if *update {
		w := everyCommand(t)
		index, hash := w.ns.StateHash()
		b := fmt.Appendf(nil, "%d %016x\n", index, hash)
		for _, entry := range w.log {
			b = binary.AppendUvarint(b, uint64(len(entry)))
			for _, command := range entry {
				b = append(binary.AppendUvarint(b, uint64(len(command))), command...)
			}
		}
		if err := os.WriteFile(goldenLog(release.Level), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for level := 6; level <= release.Level; level++ {
		t.Run(fmt.Sprint(level), func(t *testing.T) { testGoldenLog(t, level) })
	}
}

func testGoldenLog(t *testing.T, level int) {
	raw, err := os.ReadFile(goldenLog(level))
	if err != nil {
		t.Fatal(err)
	}
	line, rest, _ := bytes.Cut(raw, []byte("\n"))
	var last, hash uint64
	if _, err := fmt.Sscanf(string(line), "%d %x", &last, &hash); err != nil {
		t.Fatal(err)
	}
	varint := func() int {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)) {
			t.Fatalf("%d bytes before the end: no number", len(rest))
		}
		rest = rest[size:]
		return int(n)
	}
	warm := newWorld(t, Config{}).ns
	store := mem.New()
	cold := newWorld(t, Config{Store: store, Memory: 1, Bodies: warm.cfg.Bodies})
	done := map[string]int{}
	for index := uint64(1); len(rest) > 0; index++ {
		entry := make([][]byte, varint())
		for i := range entry {
			size := varint()
			entry[i], rest = rest[:size], rest[size:]
		}
		for i, a := range warm.Apply(index, entry) {
			c := new(logpb.Command)
			if err := c.UnmarshalVT(entry[i]); err != nil {
				t.Fatal(err)
			}
			if r, _ := a.(*Result); r != nil && r.Err == nil {
				done[operationOf(c)]++
			}
		}
		cold.ns.Apply(index, entry)
		if index%50 == 0 {
			cold.snapshot()
			cold.open()
		}
	}
	for _, ns := range []*Namespace{warm, cold.ns} {
		checkSound(t, ns)
		if index, got := ns.StateHash(); index != last || got != hash {
			t.Errorf("at %d the state's hash is %016x; the program that wrote the log had %016x at %d", index, got, hash, last)
		}
	}
	if level < release.Level {
		return
	}
	for i := range operations.Len() {
		if name := string(operations.Get(i).Name()); done[name] == 0 {
			t.Errorf("nothing in the log does %s", name)
		}
	}
}

var operations = (&logpb.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()

func operationOf(c *logpb.Command) string {
	field := c.ProtoReflect().WhichOneof(operations.Get(0).ContainingOneof())
	if field == nil {
		return ""
	}
	return string(field.Name())
}

// everyCommand is a namespace whose log has each command, carried out at least once, and many that are refused.
func everyCommand(t *testing.T) *world {
	w := populated(t)
	scribble(w, rand.New(rand.NewPCG(6, 6)), 400)
	must := func(ops ...any) {
		t.Helper()
		for _, op := range ops {
			w.now += 1000
			w.must(op)
		}
	}
	ref := func(b metadata.Block) *logpb.Block {
		return &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
	}
	const mib = 1 << 20
	must(&logpb.Mkdirs{Target: to("/every"), Mode: 0o755})
	// A writer, whose pipeline changes, who dies, and whose file is recovered.
	id, b := uint64(w.must(create("/every/written", "c")).Status.ID), w.block()
	must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: b, Nodes: []string{"a", "b", "c"}}, &logpb.AbandonBlock{Inode: id, ClientName: "c", Block: b})
	b = w.block()
	renewed := &logpb.Block{Id: b.Id, Generation: w.block().Generation, Length: 77}
	must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: b, Nodes: []string{"a", "b", "c"}}, &logpb.Fsync{Inode: id, ClientName: "c", LastBlockLength: 77},
		&logpb.UpdatePipeline{ClientName: "c", OldBlock: b, NewBlock: renewed, Nodes: []string{"a", "c"}}, &logpb.RenewLease{ClientName: "c"})
	recovery := w.block().Generation
	must(&logpb.StartRecovery{Inode: id, RecoveryId: recovery, Holder: "c"}, &logpb.CommitRecovery{Block: renewed, RecoveryId: recovery, Length: 99, Close: true})
	w.file("/every/one", mib, mib)
	w.file("/every/two", mib, 5)
	w.file("/every/three", mib, 7)
	must(&logpb.Append{Target: to("/every/two"), ClientName: "c"}, &logpb.Complete{Inode: w.inode("/every/two"), ClientName: "c", Last: ref(w.blocks("/every/two")[1])},
		&logpb.Concat{Target: to("/every/one"), Sources: []*logpb.Target{to("/every/two")}}, &logpb.Truncate{Target: to("/every/three"), Length: mib, ClientName: "c", RecoveryId: w.block().Generation},
		&logpb.SetOwner{Target: to("/every/one"), Owner: "bob", Group: "staff"}, &logpb.SetPermission{Target: to("/every/one"), Mode: 0o640},
		&logpb.SetTimes{Target: to("/every/one"), Mtime: 5, Atime: -1}, &logpb.SetReplication{Target: to("/every/one"), Replication: 2},
		attributeOf("/every/one", "user.a", "1"), &logpb.RemoveXAttr{Target: to("/every/one"), Name: "user.a"},
		&logpb.SetStoragePolicy{Target: to("/every"), Policy: 12}, &logpb.PlaceFiles{Inodes: []uint64{w.inode("/every/one")}})
	// A small file, and one that becomes small.
	w.file("/every/small", 1000)
	must(storeOf("/every/body", "c", w.block(), 2000), keepOf("/every/small", w.blocks("/every/small"), w.block(), 1000))
	// Erasure coding: the open end of a file becomes a group, and a file with replicas becomes one without.
	must(&logpb.Mkdirs{Target: to("/ec/stage"), Mode: 0o755, CreateParent: true}, erasure("/ec", rs32))
	ec, tail := w.openEnd("/ec/f", 2*mib)
	tail.Length = 300
	w.striped("/ec/stage/end", 300)
	must(&logpb.SealTail{Inode: ec, ClientName: "c", Tail: tail, Source: w.inode("/ec/stage/end")})
	w.striped("/ec/stage/whole", mib)
	must(&logpb.ConvertFile{Target: to("/every/three"), Blocks: BlocksSum(w.blocks("/every/three")), Source: w.inode("/ec/stage/whole")})
	// Snapshots, a publish, deletions.
	must(snapshotChange("/every", allowSnapshots), snapshotChange("/every", createSnapshot, "first"),
		publishOf(renameOf("/every/one", "/every/other"), &logpb.Delete{Target: to("/every/body")}, attributeOf("/every/other", "user.state", "done"), snapshotChange("/every", createSnapshot, "second")),
		&logpb.Rename{Source: to("/every/small"), Target: to("/small")}, snapshotChange("/every", deleteSnapshot, "first"),
		&logpb.Delete{Target: to("/ec/stage"), Recursive: true}, &logpb.SurveyTree{Target: to("/every")}, &logpb.Reclaim{Limit: 100})
	must(&logpb.SetSafeMode{On: true}, &logpb.SetSafeMode{}, &logpb.ForgetDatanode{Uuid: "dn1"},
		&logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: "a", Value: []byte("1")}}},
		&logpb.RollBlockKeys{After: w.ns.NewestBlockKey(), Seeds: seeds(2, 1), Keep: 5}, &logpb.RollTokenKey{After: w.ns.TokenFigures(0).NewestKey, Seed: seeds(1, 7)[0]})
	// Tokens and what is kept in memory.
	issued := w.must(&logpb.IssueToken{Renewer: "hops", Expires: int64(w.now) + 5000, MaxDate: int64(w.now) + 90_000, MaxTokens: 100, MaxOfUser: 100}).Token
	must(&logpb.RenewToken{Sequence: issued.Sequence, Issued: int64(issued.Issued), Expires: int64(w.now) + 8000},
		&logpb.CancelToken{Sequence: issued.Sequence, Issued: int64(issued.Issued)}, &logpb.ExpireTokens{})
	must(&logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "every", Mode: new(uint32(0o755))}}, &logpb.ModifyCachePool{Pool: &logpb.CachePoolInfo{Name: "every", Limit: new(int64(mib))}})
	kept := w.must(&logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new("/every"), Pool: new("every")}}).Directive
	must(&logpb.ModifyCacheDirective{Id: kept, Directive: &logpb.CacheDirectiveInfo{Replication: new(int32(2))}}, &logpb.RemoveCacheDirective{Id: kept}, &logpb.RemoveCachePool{Name: "every"})
	w.check()
	return w
}
