package namespace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

// populated is a namespace with something of everything that a command can come upon: files in all states, quotas, lists,
// attributes, answers, leases.
func populated(t testing.TB) *world {
	w := newWorld(t, Config{})
	scribble(w, rand.New(rand.NewPCG(1, 2)), 60)
	do := func(c metadata.Caller, op any) *Result {
		w.now += 1000
		r := w.do(c, op)
		if r.Err != nil {
			t.Fatalf("%T: %v", op, r.Err)
		}
		return r
	}
	do(super, &logpb.Mkdirs{Target: to("/q"), Mode: 0o777})
	do(super, &logpb.SetQuota{Target: to("/q"), Names: 6, Space: 9 << 20})
	do(super, &logpb.Mkdirs{Target: to("/acl"), Mode: 0o777})
	do(super, &logpb.SetACL{Target: to("/acl"), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{
		{Name: "bob", Rights: 7}, {Type: logpb.ACLEntry_GROUP, Name: "staff", Rights: 5}, {Default: true, Name: "alice", Rights: 6},
	}})
	do(super, &logpb.SetStoragePolicy{Target: to("/q"), Policy: 7})
	ids := do(super, &logpb.ReserveIDs{Blocks: 20, Generations: 20}).Reserved
	block := func() *logpb.Block {
		ids.FirstBlock, ids.FirstGeneration = ids.FirstBlock+1, ids.FirstGeneration+1
		return &logpb.Block{Id: int64(ids.FirstBlock - 1), Generation: uint64(ids.FirstGeneration - 1)}
	}
	file := func(path string, blocks int, closed bool) uint64 {
		id := uint64(do(bob, create(path, "writer")).Status.ID)
		var last *logpb.Block
		for range blocks {
			next := block()
			do(bob, &logpb.AddBlock{Inode: id, ClientName: "writer", Previous: last, Block: next})
			last = &logpb.Block{Id: next.Id, Generation: next.Generation, Length: 1 << 20}
		}
		if closed {
			do(bob, &logpb.Complete{Inode: id, ClientName: "writer", Last: last})
		}
		return id
	}
	file("/q/full", 1, true)
	file("/q/open", 1, false)
	file("/acl/long", 3, true)
	file("/acl/other", 1, true)
	file("/acl/cut", 2, true)
	do(bob, &logpb.Truncate{Target: to("/acl/cut"), Length: 1<<20 + 5, ClientName: "cutter", RecoveryId: block().Generation})
	lost := file("/acl/lost", 1, false)
	do(super, &logpb.StartRecovery{Inode: lost, RecoveryId: block().Generation, Holder: "writer"})
	do(bob, storeOf("/q/small", "writer", block(), 11))
	do(bob, storeOf("/acl/body", "writer", block(), 5000))
	do(bob, &logpb.SetXAttr{Target: to("/acl/long"), Create: true, Attribute: &logpb.XAttr{Name: "a", Value: []byte("v")}})
	do(super, &logpb.SetXAttr{Target: to("/acl/long"), Create: true, Attribute: &logpb.XAttr{Namespace: logpb.XAttr_TRUSTED, Name: "a"}})
	do(super, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "pool", Owner: new("bob"), Limit: new(int64(1 << 30))}})
	do(bob, &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new("/q"), Pool: new("pool")}})
	return w
}

// applySoundly applies entries to the namespace of a snapshot twice: by a member with everything in memory, and by one with
// hardly anything. Both have to answer alike, end in one state, which is sound, and write a snapshot of it.
func applySoundly(t *testing.T, stream []byte, entries ...[][]byte) {
	t.Helper()
	warm, cold := restore(t, stream), fresh(t, mem.New(), 1)
	if err := cold.Restore(bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	index := warm.AppliedIndex()
	for i, entry := range entries {
		answers, again := warm.Apply(index+uint64(i)+1, entry), cold.Apply(index+uint64(i)+1, entry)
		for j, a := range answers {
			if a, b := answered(a), answered(again[j]); a != b {
				t.Errorf("one member answers %s, the other %s", a, b)
			}
		}
	}
	checkSound(t, warm)
	checkSound(t, cold)
	if warm.Hash() != cold.Hash() {
		t.Error("two members have different states")
	}
	var buf bytes.Buffer
	takeSnapshot(t, warm, &buf)
	if restored := restore(t, buf.Bytes()); restored.Hash() != warm.Hash() {
		t.Error("the snapshot is of another state")
	}
}

// answered is a result as its proposer sees it.
func answered(result any) string {
	r := result.(*Result)
	if r.Err != nil {
		return r.Err.Error()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Whatever decodes as a command can be applied: it is refused or leaves a sound namespace, and never panics.
func FuzzCommand(f *testing.F) {
	seed := populated(f)
	for _, commands := range seed.log {
		for _, data := range commands {
			f.Add(data)
		}
	}
	for _, op := range []any{
		&logpb.SetOwner{Target: to("/a"), Owner: "bob"}, &logpb.SetPermission{Target: to("/a"), Mode: 0o777},
		&logpb.SetReplication{Target: to("/acl/long"), Replication: 2}, &logpb.RenewLease{ClientName: "writer"},
		&logpb.CommitRecovery{Block: &logpb.Block{Id: int64(metadata.FirstBlockID)}, RecoveryId: 1005, Close: true},
		&logpb.UpdatePipeline{ClientName: "writer", OldBlock: &logpb.Block{Id: int64(metadata.FirstBlockID)}, NewBlock: &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: 1007}},
		&logpb.Fsync{Inode: 16387, ClientName: "writer", LastBlockLength: 5}, &logpb.Append{Target: to("/acl/long"), ClientName: "x"},
		&logpb.AbandonBlock{Inode: 16387, ClientName: "writer"}, &logpb.Reclaim{Limit: 7},
		&logpb.Concat{Target: to("/acl/long"), Sources: []*logpb.Target{to("/acl/other")}},
		&logpb.RemoveXAttr{Target: to("/acl/long"), Name: "a"}, &logpb.Delete{Target: to("/q"), Recursive: true},
		&logpb.RollBlockKeys{Seeds: seeds(2, 1), Keep: 5}, &logpb.ForgetDatanode{Uuid: "dn1"},
		&logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: "a", Value: []byte("1")}, {Name: "b", Remove: true}}, AtLeast: 7},
		&logpb.RollTokenKey{Seed: seeds(1, 1)[0]}, &logpb.IssueToken{Renewer: "yarn", RealUser: "oozie", Expires: 1 << 40, MaxDate: 1 << 41, MaxTokens: 5, MaxOfUser: 5},
		&logpb.RenewToken{Sequence: 1, Expires: 1 << 40}, &logpb.CancelToken{Sequence: 1}, &logpb.ExpireTokens{},
		&logpb.Rename{Source: to("/.reserved/.inodes/16387"), Target: to("/z")},
		publishOf(replaceOf("/acl/long", "/acl/other"), &logpb.Delete{Target: to("/q/full")}, attributeOf("/acl/other", "b", "1"), &logpb.RemoveXAttr{Target: to("/acl/other"), Name: "b"}),
		publishOf(&logpb.Delete{Target: to("/q"), Recursive: true}, renameOf("/acl/long", "/q"), &logpb.RemoveXAttr{Target: to("/q"), Name: "none"}),
	} {
		data, err := command(bob, op).MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	stream := seed.snapshot()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := new(Namespace).decode(data, new(logpb.Command)); err == nil || isAnswer(err) {
			applySoundly(t, stream, [][]byte{data}, [][]byte{data})
		}
	})
}

// Commands of every shape that the schema allows, with numbers and names that mean something to the namespace, a few in one
// entry after the other. The fuzzer chooses the shapes.
func FuzzCommands(f *testing.F) {
	seed := populated(f)
	stream := seed.snapshot()
	for i := range byte(64) {
		tape := make([]byte, 96)
		r := rand.New(rand.NewPCG(uint64(i), 9))
		for j := range tape {
			tape[j] = byte(r.Uint32())
		}
		f.Add(tape)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := chooser{tape: data}
		var entries [][][]byte
		for len(c.tape) > 0 && len(entries) < 8 {
			entry := make([][]byte, 1+c.next()%3)
			for i := range entry {
				cmd := &logpb.Command{Now: 2_000_000}
				c.message(cmd.ProtoReflect())
				encoded, err := cmd.MarshalVT()
				if err != nil {
					t.Fatal(err)
				}
				if err := new(Namespace).decode(encoded, new(logpb.Command)); err != nil && !isAnswer(err) {
					t.Fatal(err) // nothing of it is newer
				}
				entry[i] = encoded
			}
			entries = append(entries, entry)
		}
		applySoundly(t, stream, entries...)
	})
}

// chooser makes messages by the bytes of a tape; at its end all bytes are 0.
type chooser struct{ tape []byte }

func (c *chooser) next() byte {
	if len(c.tape) == 0 {
		return 0
	}
	b := c.tape[0]
	c.tape = c.tape[1:]
	return b
}

// message fills m, leaving out a field now and then.
func (c *chooser) message(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	if op := m.Descriptor().Oneofs().ByName("op"); op != nil {
		choice := op.Fields().Get(int(c.next()) % op.Fields().Len())
		c.message(m.Mutable(choice).Message())
	}
	for i := range fields.Len() {
		field := fields.Get(i)
		switch oneof := field.ContainingOneof(); {
		case oneof != nil && !oneof.IsSynthetic(), c.next()%8 == 7:
		case field.IsList():
			list := m.Mutable(field).List()
			for range c.next() % 4 {
				if field.Message() != nil {
					c.message(list.AppendMutable().Message())
				} else {
					list.Append(c.value(field))
				}
			}
		case field.Message() != nil:
			c.message(m.Mutable(field).Message())
		case field.Name() == "now", field.Name() == "log_time":
		default:
			m.Set(field, c.value(field))
		}
	}
	sound := c.next()%8 != 7
	switch op := m.Interface().(type) { // mostly what came is what was sent
	case *logpb.Store:
		if sound && op.Body != nil {
			op.Body.Length, op.Crc = int64(len(op.Data)), sumOf(op.Data)
		}
	case *logpb.KeepFile:
		if sound && op.Body != nil {
			op.Body.Length, op.Crc = int64(len(op.Data)), sumOf(op.Data)
		}
	case *logpb.Truncate:
		if sound {
			op.Crc = sumOf(op.Data)
		}
	}
}

var (
	wildPaths = []string{
		"a", "a/b", "b/c/d", "q", "q/full", "q/open", "q/new", "acl", "acl/long", "acl/other", "acl/cut", "acl/lost", "acl/new/x", "q/small", "acl/body",
		"", "/", "a//b", "..", ".reserved", ".reserved/.inodes/16385", ".snapshot", "new/.snapshot", "a:b", "\xff", strings.Repeat("n", 256),
	}
	wildNames = []string{
		"bob", "alice", "staff", "writer", "cutter", RecoveryHolder, "client1", "client2", "a", "", "hops", "supergroup", "\x00", strings.Repeat("n", 256),
	}
	wildLengths = []int64{0, 1, 5, -1, 1 << 20, 1<<20 + 1, maxLength, maxLength + 1, math.MaxInt64, math.MinInt64, 511, 512, 1 << 16, 1 << 32}
)

func (c *chooser) value(field protoreflect.FieldDescriptor) protoreflect.Value {
	b := int(c.next())
	number := wildLengths[b%len(wildLengths)]
	switch field.Name() { // mostly one that is there
	case "inode", "base":
		number = int64(metadata.RootID) + int64(b%64)
	case "id":
		number = int64(metadata.FirstBlockID) + int64(b%48)
	case "cut_body", "new_block":
		number = int64(metadata.FirstBlockID) + int64(b%48)
	case "small_files":
		number = int64(b % 5)
	case "generation", "recovery_id":
		number = int64(metadata.FirstGeneration) + int64(b%64)
	case "mode", "unmasked":
		number = int64(b)<<4 | 0o444
	case "replication", "rights", "policy":
		number = int64(b % 18)
	case "block_size":
		number = int64(b%4) << 20
	}
	if b > 0xf0 {
		number = wildLengths[int(c.next())%len(wildLengths)]
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		if field.Name() == "path" {
			return protoreflect.ValueOfString(wildPaths[b%len(wildPaths)])
		}
		return protoreflect.ValueOfString(wildNames[b%len(wildNames)])
	case protoreflect.BytesKind:
		if field.Name() == "seeds" && b&1 != 0 {
			return protoreflect.ValueOfBytes(bytes.Repeat([]byte{byte(b)}, 32))
		}
		return protoreflect.ValueOfBytes(bytes.Repeat([]byte{byte(b) & 1}, min(b&^1, 16)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(b&1 != 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(b%7 - 1))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Sint32Kind, protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	}
	panic("no value for a field of kind " + field.Kind().String())
}

// A stream that is not one is refused as corrupt, without a panic and without taking more memory than a frame.
func FuzzSnapshot(f *testing.F) {
	w := newWorld(f, Config{})
	f.Add([]byte{})
	w.do(super, &logpb.Mkdirs{Target: to("/a"), Mode: 0o755})
	f.Add(w.snapshot())
	scribble(w, rand.New(rand.NewPCG(3, 4)), 40)
	f.Add(w.snapshot())
	f.Fuzz(func(t *testing.T, data []byte) {
		in, buf := bytes.NewReader(data), []byte(nil)
		_, _, err := readHeader(in)
		for err == nil {
			_, _, err = readFrame(in, &buf)
		}
		if cap(buf) > maxFrame {
			t.Errorf("a frame of %d bytes", cap(buf))
		}
		ns := fresh(t, mem.New(), 0)
		switch rerr := ns.Restore(bytes.NewReader(data)); {
		case rerr == nil && errors.Is(err, io.EOF):
			checkSound(t, ns)
		case !errors.Is(rerr, metadata.ErrCorrupt) && !errors.Is(rerr, metadata.ErrUnsupported):
			t.Errorf("restoring: %v, reading: %v", rerr, err)
		}
	})
}

// A stream with good sums and wild records, as a faulty program would write it, is refused, or read with errors: it never
// brings a reader down, and the log can be applied to it or stops there with what is wrong.
func FuzzSnapshotOfWildRecords(f *testing.F) {
	w := populated(f)
	w.snapshot()
	var base []record
	view := w.cfg.Store.View(w.index)
	view.Scan(nil, nil, func(key, value []byte) bool {
		if key[0] != classMarker {
			base = append(base, record{bytes.Clone(key), bytes.Clone(value)})
		}
		return true
	})
	view.Close()
	marker := w.ns.meta.marker()
	marker.Index = w.index
	log := w.log[len(w.log)-12:] // to be applied to it again, and some more
	for _, path := range []string{"/acl/long", "/acl/other", "/acl/cut", "/acl/lost", "/q/full", "/q/open", "/acl", "/q", "/a", "/b/c"} {
		for _, op := range []any{
			&logpb.SetReplication{Target: to(path), Replication: 2}, &logpb.SetPermission{Target: to(path), Mode: 0o770},
			&logpb.SetACL{Target: to(path), Change: logpb.SetACL_REMOVE_DEFAULT}, &logpb.SetTimes{Target: to(path), Mtime: 1, Atime: 1},
			&logpb.SetXAttr{Target: to(path), Create: true, Replace: true, Attribute: &logpb.XAttr{Name: "b"}},
			&logpb.SetQuota{Target: to(path), Names: 100, Space: metadata.QuotaKeep}, create(path+"/x", "wild"), create(path, "wild"),
			&logpb.Append{Target: to(path), ClientName: "wild"}, &logpb.Truncate{Target: to(path), Length: 3, ClientName: "wild", RecoveryId: 1030},
			&logpb.Concat{Target: to(path), Sources: []*logpb.Target{to("/acl/other")}}, &logpb.Rename{Source: to(path), Target: to(path + "2"), Legacy: true},
			publishOf(&logpb.Rename{Source: to(path + "2"), Target: to(path)}, attributeOf(path, "p", "1"), &logpb.Delete{Target: to("/acl/other")}, ifThere{}, &logpb.RemoveXAttr{Target: to(path), Name: "none"}),
			&logpb.Delete{Target: to(path + "2"), Recursive: true},
		} {
			data, err := command(super, op).MarshalVT()
			if err != nil {
				f.Fatal(err)
			}
			log = append(log, [][]byte{data})
		}
	}
	for _, lease := range w.ns.Leases() {
		for _, id := range lease.Files {
			for _, op := range []any{
				&logpb.Fsync{Inode: uint64(id), ClientName: lease.Holder, LastBlockLength: 9}, &logpb.AbandonBlock{Inode: uint64(id), ClientName: lease.Holder, Block: &logpb.Block{}},
				&logpb.StartRecovery{Inode: uint64(id), Holder: lease.Holder, RecoveryId: 1031}, &logpb.Complete{Inode: uint64(id), ClientName: lease.Holder},
			} {
				data, err := command(super, op).MarshalVT()
				if err != nil {
					f.Fatal(err)
				}
				log = append(log, [][]byte{data})
			}
		}
	}
	// Changes of the records at single places: record, kind of change, two bytes more.
	for i := range byte(len(base)) {
		for kind := range byte(wildChanges) {
			f.Add([]byte{i, kind, i * 7, kind ^ 1, i + 1, kind, 1, 2})
		}
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		m := proto.Clone(&marker).(*logpb.Marker)
		records := wildRecords(base, changes, m)
		store := mem.New()
		b := store.Batch(m.Index)
		sum := uint64(0)
		for _, r := range records {
			if hashed(r.key) {
				sum += hashRecord(r.key, r.value)
			}
			if err := b.Put(r.key, r.value); err != nil {
				t.Fatal(err)
			}
		}
		meta := metaOf(m)
		m.Hash = sum + meta.hash()
		var stream bytes.Buffer
		v := &version{ns: &Namespace{cfg: Config{Store: store}}, ref: raftstore.Reference{Index: m.Index}, marker: marshal(nil, m)}
		if _, err := v.WriteTo(&stream); errors.Is(err, metadata.ErrCorrupt) {
			return // who writes a version looks for the bodies in it
		} else if err != nil {
			t.Fatal(err)
		}
		for _, memory := range []int64{0, 1} {
			ns := fresh(t, mem.New(), memory)
			if err := ns.Restore(bytes.NewReader(stream.Bytes())); err != nil {
				if !errors.Is(err, metadata.ErrCorrupt) {
					t.Error(err)
				}
				return
			}
			if memory == 0 {
				readAll(ns)
			}
			replayWild(t, ns, log)
		}
	})
}

// wildChanges is how many kinds of changes wildRecords knows.
const wildChanges = 7

// wildRecords changes records, in the order of keys, as four bytes after the other say.
func wildRecords(base []record, changes []byte, m *logpb.Marker) []record {
	records := map[string][]byte{}
	for _, r := range base {
		records[string(r.key)] = r.value
	}
	for ; len(changes) >= 4 && len(records) > 0; changes = changes[4:] {
		r := base[int(changes[0])%len(base)]
		at, to := int(changes[2]), changes[3]
		key, value := string(r.key), records[string(r.key)]
		other := base[at%len(base)]
		switch changes[1] % wildChanges {
		case 0:
			delete(records, key)
		case 1:
			if len(value) > 0 {
				value = bytes.Clone(value)
				value[at%len(value)] = to
				records[key] = value
			}
		case 2:
			if len(value) > 0 {
				records[key] = value[:at%len(value)]
			}
		case 3:
			records[key] = other.value
		case 4: // the same thing in a second place
			records[string(other.key[:min(len(other.key), 9)])+"x"] = value
		case 5: // a field more, or once more
			records[key] = append(protowire.AppendTag(bytes.Clone(value), protowire.Number(1+at%15), protowire.VarintType), to&0x7f)
		case 6:
			for i, field := range []*uint64{&m.NextInode, &m.NextGeneration, &m.Files, &m.Directories, &m.Blocks, &m.Quotas, &m.NextRetry} {
				if i == at%7 {
					*field = uint64(to) * 80
				}
			}
		}
	}
	out := make([]record, 0, len(records))
	for _, key := range slices.Sorted(maps.Keys(records)) {
		out = append(out, record{[]byte(key), records[key]})
	}
	return out
}

// readAll asks a namespace for everything; it may answer with errors.
func readAll(ns *Namespace) {
	for _, path := range []string{"/", "/a", "/a/b", "/q", "/q/full", "/q/open", "/acl", "/acl/long", "/acl/cut", "/acl/lost"} {
		for _, c := range []metadata.Caller{bob, super} {
			ns.Stat(c, path)
			ns.List(c, path, "", 0)
			ns.ListWithBlocks(c, path, "", 0)
			ns.Blocks(c, path, 0, math.MaxInt64)
			ns.ContentSummary(c, path)
			ns.QuotaUsage(c, path)
			ns.ACL(c, path)
			ns.XAttrs(c, path, nil)
		}
	}
	for id := range metadata.INodeID(64) {
		ns.FileByID(metadata.RootID + id)
		ns.BlockOwner(metadata.FirstBlockID + metadata.BlockID(id))
	}
	ns.Leases()
	ns.EachBlock(func(BlockOwner) bool { return true })
	ns.Check()
}

// replayWild applies entries to a namespace that may be damaged. A panic that says so is the end that is meant for it.
func replayWild(t *testing.T, ns *Namespace, entries [][][]byte) {
	defer func() {
		if p := recover(); p != nil && !strings.HasPrefix(fmt.Sprint(p), "namespace: cannot apply") {
			t.Errorf("%v\n%s", p, debug.Stack())
		}
	}()
	for _, entry := range entries {
		ns.Apply(ns.AppliedIndex()+1, entry)
	}
}

// Records of a checkpoint are refused or understood.
func FuzzEntryRecord(f *testing.F) {
	var enc encoder
	w := newWorld(f, Config{})
	scribble(w, rand.New(rand.NewPCG(5, 6)), 40)
	for _, n := range w.ns.inodes {
		_, value := enc.entry(n)
		f.Add(bytes.Clone(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n, err := decodeEntry("x", []byte("key"), value)
		if err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		n.status()
	})
}
