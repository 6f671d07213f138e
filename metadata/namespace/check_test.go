package namespace

import (
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Check finds what is seeded into a namespace, in memory and in the checkpoint.
func TestCheckFindsSeededDamage(t *testing.T) {
	at := func(ns *Namespace, path string) *inode {
		id, err := ns.Resolve(super, path)
		if err != nil {
			t.Fatal(err)
		}
		return ns.inodes[id]
	}
	const first = metadata.FirstBlockID
	for name, test := range map[string]struct {
		damage func(w *world)
		want   string
	}{
		"entry count":        {func(w *world) { at(w.ns, "/d").dir.entries++ }, "says it has"},
		"unannounced":        {func(w *world) { at(w.ns, "/d").mode = 0o700 }, "without being announced"},
		"mode":               {func(w *world) { at(w.ns, "/d").mode = 0o4755 }, "has mode"},
		"wrong parent":       {func(w *world) { at(w.ns, "/d/f").parent = at(w.ns, "/e") }, "is not the entry"},
		"cycle":              {func(w *world) { at(w.ns, "/d").parent = at(w.ns, "/d/sub") }, "below itself"},
		"below a file":       {func(w *world) { at(w.ns, "/d/sub").parent = at(w.ns, "/d/f") }, "is a file"},
		"lost inode":         {func(w *world) { delete(w.ns.inodes, at(w.ns, "/d").id) }, "which is missing"},
		"dead inode":         {func(w *world) { at(w.ns, "/d/f").dead = true }, "is dead"},
		"name":               {func(w *world) { at(w.ns, "/d/f").name = "" }, "has the name"},
		"id never given":     {func(w *world) { w.ns.meta.nextINode = at(w.ns, "/d/f").id }, "never given out"},
		"two owners":         {func(w *world) { f := at(w.ns, "/d/g").file; f.blocks = at(w.ns, "/d/f").file.blocks; f.length = 5 }, "belongs to inode"},
		"block never given":  {func(w *world) { w.ns.meta.nextBlock = first }, "not of a reserved range"},
		"negative length":    {func(w *world) { at(w.ns, "/d/f").file.blocks[0].Length = -1 }, "negative length"},
		"length":             {func(w *world) { at(w.ns, "/d/f").file.length++ }, "its blocks"},
		"replication":        {func(w *world) { at(w.ns, "/d/f").file.replication = 0 }, "has replication"},
		"block map":          {func(w *world) { w.ns.blocks[first] = at(w.ns, "/d/g") }, "leads to inode"},
		"block map extra":    {func(w *world) { w.ns.blocks[first+70] = at(w.ns, "/d/g") }, "does not have it"},
		"lease lost":         {func(w *world) { delete(w.ns.leases, "writer") }, "has no lease"},
		"lease too much":     {func(w *world) { w.ns.leases["writer"].files[at(w.ns, "/d/f").id] = struct{}{} }, "does not have open"},
		"lease without":      {func(w *world) { delete(w.ns.leases["writer"].files, at(w.ns, "/d/g").id) }, "whose lease does not have it"},
		"lease changed":      {func(w *world) { w.ns.leases["writer"].renewed++ }, "without being announced"},
		"open without block": {func(w *world) { at(w.ns, "/d/g").file.open.state = UnderConstruction }, "has no block"},
		"recovery":           {func(w *world) { at(w.ns, "/d/h").file.open.state = UnderRecovery }, "under recovery"},
		"retry changed": {func(w *world) {
			w.ns.retries.chunks[0].what[0]++
		}, "are not those of their record"},
		"retry lost":               {func(w *world) { clear(w.ns.retries.clients) }, "is not found"},
		"retry record":             {func(w *world) { w.ns.pending[idKey(classRetry, 0)] = []byte{1} }, "makes no sense"},
		"counters":                 {func(w *world) { w.ns.meta.files++ }, "are counted"},
		"hash":                     {func(w *world) { w.ns.published++ }, "state hash"},
		"no trash":                 {func(w *world) { delete(w.ns.inodes, reclaimID) }, "missing"},
		"checkpoint: inode record": {func(w *world) { w.cold(idKey(classINode, uint64(at(w.ns, "/d/f").id)), nil) }, "leads to"},
		"checkpoint: block record": {func(w *world) { w.cold(idKey(classBlock, uint64(first)), nil) }, "record of block"},
		"checkpoint: entry gone":   {func(w *world) { w.cold(entryKey(at(w.ns, "/d").id, "f"), nil) }, "is of something that is not there"},
		"checkpoint: noise":        {func(w *world) { w.cold(entryKey(at(w.ns, "/d").id, "f"), []byte{0xff}) }, "reading the checkpoint"},
		"checkpoint: stray block":  {func(w *world) { w.cold(idKey(classBlock, uint64(first+99)), make([]byte, 8)) }, "is of something that is not there"},
		"checkpoint: stray entry":  {func(w *world) { w.cold(entryKey(99999, "x"), w.raw("/d/f")) }, "is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.do(super, &logpb.ReserveIDs{Blocks: 50, Generations: 50})
			w.do(super, &logpb.Mkdirs{Target: to("/d/sub"), Mode: 0o755, CreateParent: true})
			w.do(super, &logpb.Mkdirs{Target: to("/e"), Mode: 0o755})
			f := w.do(super, create("/d/f", "c")).Status.ID
			w.do(super, &logpb.AddBlock{Inode: uint64(f), ClientName: "c", Block: &logpb.Block{Id: int64(first), Generation: 1001}})
			w.do(super, &logpb.Complete{Inode: uint64(f), ClientName: "c", Last: &logpb.Block{Id: int64(first), Generation: 1001, Length: 5}})
			w.do(super, create("/d/g", "writer"))
			h := w.do(super, create("/d/h", "writer")).Status.ID
			w.do(super, &logpb.AddBlock{Inode: uint64(h), ClientName: "writer", Block: &logpb.Block{Id: int64(first) + 1, Generation: 1002}})
			cmd := command(super, &logpb.Delete{Target: to("/e")})
			cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), 1
			w.apply(cmd)
			w.do(super, &logpb.Mkdirs{Target: to("/e"), Mode: 0o755})
			w.check()
			test.damage(w)
			found := false
			for _, err := range w.ns.Check() {
				found = found || strings.Contains(err.Error(), test.want)
			}
			if !found {
				t.Errorf("found %v, want one with %q", w.ns.Check(), test.want)
			}
		})
	}
}

// cold stops the namespace, changes a record of its checkpoint, and starts it.
func (w *world) cold(key string, value []byte) {
	w.reopen()
	overwrite(w.t.(*testing.T), w.cfg.Store, w.index, key, value)
	w.open()
}

func (w *world) raw(path string) []byte {
	id, err := w.ns.Resolve(super, path)
	if err != nil {
		w.t.Fatal(err)
	}
	var enc encoder
	_, value := enc.entry(w.ns.inodes[id])
	return value
}
