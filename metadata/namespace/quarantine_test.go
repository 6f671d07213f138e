package namespace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A mistake of the program that shows before a command has changed anything is a refusal, alike on every member: it would
// stop all of them at every start. Behind the first change it stops the member, because nobody can undo half of a command.
func TestPanicBeforeTheFirstChangeIsARefusal(t *testing.T) {
	w := newWorld(t, Config{})
	var seen []string
	w.ns.cfg.OnMistake = func(index uint64, what any, stack []byte) {
		seen = append(seen, fmt.Sprintf("%d: %v", index, what))
		if !strings.Contains(string(stack), "dispatch") {
			t.Errorf("stack %s", stack)
		}
	}
	w.do(super, &logpb.ReserveIDs{Blocks: 5, Generations: 5})
	id := w.do(super, create("/f", "c")).Status.ID
	f := w.ns.inodes[id].file
	before := w.ns.meta
	f.open.state, f.open.truncate = UnderConstruction, 1 // what no command makes of a file without blocks
	var all []string
	for _, op := range []any{
		&logpb.StartRecovery{Inode: uint64(id), Holder: "c", RecoveryId: 1002},
		&logpb.Truncate{Target: to("/f"), Length: 0, ClientName: "d", RecoveryId: 1002},
	} {
		data, err := command(super, op).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		good, err := command(super, &logpb.SetTimes{Target: to("/"), Mtime: 5, Atime: 5}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		results := w.entry(good, data, good)
		for i, r := range results {
			r := r.(*Result)
			if i != 1 && r.Err != nil {
				t.Errorf("the command beside it: %v", r.Err)
			}
			if i == 1 && r.Err != nil {
				all = append(all, r.Err.Error())
				if !errors.Is(r.Err, metadata.ErrIO) || !strings.Contains(r.Err.Error(), "nothing was changed") {
					t.Errorf("%T: %v", op, r.Err)
				}
			}
		}
	}
	f.open.state, f.open.truncate = Complete, 0
	if len(all) != 2 || len(seen) != len(all) || w.ns.meta.nextINode != before.nextINode {
		t.Errorf("refusals %q, told of %q", all, seen)
	}
	w.check()

	w.ns.leases = nil // a file cannot be opened any more, which shows when it is made already
	defer func() {
		if recover() == nil {
			t.Error("half of a command was done, and it goes on")
		}
	}()
	w.do(super, create("/half", "c"))
}

// Something of a newer version anywhere in a command, in whatever message and list, stops the member before anything of
// the entry is applied.
func TestNewerFieldAnywhereStops(t *testing.T) {
	unknown := protoreflect.RawFields{0xfa, 0xff, 0x07, 0x01, 'x'} // field 16383
	ops := new(logpb.Command).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	first, err := command(super, &logpb.Mkdirs{Target: to("/first"), Mode: 0o755}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	for i := range ops.Len() {
		cmd := NewCommand(super, nil, -1, 1)
		fill(cmd.ProtoReflect().Mutable(ops.Get(i)).Message())
		places := 0
		eachMessage(cmd.ProtoReflect(), func(protoreflect.Message) { places++ })
		for place := range places {
			newer := proto.Clone(cmd).(*logpb.Command)
			at, name := 0, ""
			eachMessage(newer.ProtoReflect(), func(m protoreflect.Message) {
				if at == place {
					m.SetUnknown(unknown)
					name = string(m.Descriptor().Name())
				}
				at++
			})
			data, err := proto.Marshal(newer)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, Config{})
			func() {
				defer func() {
					if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "newer version") {
						t.Errorf("%s, in %s: %v", ops.Get(i).Name(), name, p)
					}
				}()
				w.entry(first, data)
			}()
			if w.ns.meta.directories != 1 {
				t.Errorf("%s, in %s: the command before it was applied", ops.Get(i).Name(), name)
			}
		}
	}
}

// fill gives a message all its messages, and one element to each list of messages.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Message() == nil:
		case f.IsList():
			fill(m.Mutable(f).List().AppendMutable().Message())
		default:
			fill(m.Mutable(f).Message())
		}
	}
}

// eachMessage calls fn for a message and those in it.
func eachMessage(m protoreflect.Message, fn func(protoreflect.Message)) {
	fn(m)
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Message() == nil || !m.Has(f):
		case f.IsList():
			for j := range m.Get(f).List().Len() {
				eachMessage(m.Get(f).List().Get(j).Message(), fn)
			}
		default:
			eachMessage(m.Get(f).Message(), fn)
		}
	}
}
