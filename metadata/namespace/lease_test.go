package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// The name under which a client writes is told in errors; it lets nobody but its user write.
func TestFileIsWrittenByTheUserWhoOpenedIt(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/bob"), Mode: 0o777, CreateParent: true})
	st := w.do(bob, create("/bob/f", "client1")).Status
	v := w.do(super, &logpb.ReserveIDs{Blocks: 10, Generations: 10}).Reserved
	b := &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}
	id := uint64(st.ID)
	add := &logpb.AddBlock{Inode: id, ClientName: "client1", Block: b}
	if r := w.do(bob, add); r.Err != nil {
		t.Fatal(r.Err)
	}
	w.reopen() // the user is in the record
	block := blockOf(b)
	next := &logpb.Block{Id: b.Id, Generation: b.Generation + 1}
	for name, op := range map[string]any{
		"addBlock": add, "abandonBlock": &logpb.AbandonBlock{Inode: id, ClientName: "client1", Block: b},
		"fsync":          &logpb.Fsync{Inode: id, ClientName: "client1", LastBlockLength: 5},
		"updatePipeline": &logpb.UpdatePipeline{ClientName: "client1", OldBlock: b, NewBlock: next},
		"complete":       &logpb.Complete{Inode: id, ClientName: "client1", Last: b},
	} {
		if r := w.do(alice, op); metadata.KindOf(r.Err) != metadata.ErrPermission || r.OK {
			t.Errorf("%s by another user: %v, %v", name, r.OK, r.Err)
		}
	}
	for user, want := range map[*metadata.Caller]bool{&alice: false, &bob: true, &super: true} {
		if err := w.ns.CheckLease(*user, st.ID, "client1"); (err == nil) != want {
			t.Errorf("%s: %v", user.User, err)
		}
		if err := w.ns.CheckPipeline(*user, block, "client1"); (err == nil) != want {
			t.Errorf("%s: %v", user.User, err)
		}
	}
	if r := w.do(bob, &logpb.Complete{Inode: id, ClientName: "client1", Last: b}); !r.OK {
		t.Errorf("complete: %v", r.Err)
	}
	w.check()
}
