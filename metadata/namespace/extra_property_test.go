package namespace

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// TestQuotasAndListsKeepTheirBooks runs random operations that quotas count or that attributes and lists follow, on a
// namespace and on one that has hardly anything in memory. After each the two have one hash; in the end the quotas hold
// what a count of the trees gives, and every list is one.
func TestQuotasAndListsKeepTheirBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &machine{w: newWorldIn(t), m: newModel(), store: mem.New(), mirror: newMirror()}
		s.w.ns.cfg.OnEvents = s.mirror.take
		s.cold = s.openCold(t, s.store)
		path := func(label string) string { return drawPath(t, label) }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			s.extraStep(t, path)
			if a, b := s.w.ns.Hash(), s.cold.Hash(); a != b {
				t.Fatalf("hashes differ: %016x, %016x", a, b)
			}
			if errs := s.w.ns.Check(); len(errs) > 0 {
				t.Fatal(errors.Join(errs...))
			}
		}
		if errs := s.cold.Check(); len(errs) > 0 {
			t.Fatal(errors.Join(errs...))
		}
		s.mirror.compare(t, s.w.ns)
	})
}

func (s *machine) extraStep(t *rapid.T, path func(string) string) {
	c := drawCaller(t)
	one := path("path")
	switch rapid.SampledFrom([]string{
		"mkdirs", "mkdirs", "create", "store", "store", "keep", "keep", "small files", "write", "write", "append", "quota", "type quota", "rename", "rename2", "delete", "setrep",
		"truncate", "recovered", "concat", "xattr", "no xattr", "acl", "no acl", "policy", "place", "erasure",
	}).Draw(t, "operation") {
	case "mkdirs":
		s.do(t, c, &logpb.Mkdirs{Target: to(one), Mode: uint32(drawMode(t)), CreateParent: true, Unmasked: new(uint32(0o777))})
	case "create":
		op := create(one, "c1")
		op.Overwrite, op.CreateParent, op.Unmasked = true, true, new(uint32(0o666))
		op.Replication = rapid.Uint32Range(1, 3).Draw(t, "replication")
		s.do(t, c, op)
	case "store":
		op := storeOf(one, "c1", s.block(t), rapid.SampledFrom([]int64{0, 9, 2000}).Draw(t, "length"))
		op.Create.Overwrite, op.Create.Unmasked = true, new(uint32(0o666))
		op.Create.Replication = rapid.Uint32Range(1, 3).Draw(t, "replication")
		s.do(t, c, op)
	case "keep":
		blocks, length := s.w.blocksOf(one), int64(0)
		for _, b := range blocks {
			length += b.Length
		}
		if length <= metadata.MaxBody {
			s.do(t, c, keepHere(one, blocks, s.block(t), length))
		}
	case "small files":
		s.do(t, c, &logpb.SetStoragePolicy{Target: to(one), SmallFiles: rapid.Uint32Range(1, 3).Draw(t, "small files")})
	case "write", "recovered":
		for _, l := range s.w.ns.Leases() {
			f, ok := s.w.ns.FileByID(l.Files[0])
			if !ok {
				continue
			}
			var last *logpb.Block
			if n := len(f.Blocks); n > 0 {
				b := f.Blocks[n-1]
				last = &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: max(b.Length, rapid.Int64Range(0, 1<<20).Draw(t, "length"))}
			}
			switch {
			case f.Truncating:
				s.do(t, super, &logpb.CommitRecovery{Block: last, RecoveryId: uint64(f.RecoveryID), Length: f.TruncateTo, Close: true})
			case rapid.Bool().Draw(t, "close"):
				s.do(t, super, &logpb.Complete{Inode: uint64(f.Status.ID), ClientName: f.Holder, Last: last})
			default:
				b := s.block(t)
				if f.Status.Erasure != 0 && rapid.IntRange(0, 3).Draw(t, "replicated") > 0 {
					b.Id = int64(s.do(t, super, &logpb.ReserveIDs{Groups: 1}).Reserved.FirstGroup)
				}
				s.do(t, super, &logpb.AddBlock{Inode: uint64(f.Status.ID), ClientName: f.Holder, Previous: last, Block: b})
			}
			return
		}
	case "append":
		s.do(t, c, &logpb.Append{Target: to(one), ClientName: "c1", NewBlock: rapid.Bool().Draw(t, "new block")})
	case "quota":
		s.do(t, super, &logpb.SetQuota{
			Target: to(one), Names: rapid.SampledFrom([]int64{-1, 1, 3, 6, 100}).Draw(t, "names"),
			Space: rapid.SampledFrom([]int64{-1, -1, 0, 3 << 20, 9 << 20}).Draw(t, "space"),
		})
	case "type quota":
		s.do(t, super, &logpb.SetQuota{
			Target: to(one), Type: rapid.SampledFrom([]uint32{1, 2, 2, 3, 4}).Draw(t, "type"),
			TypeSpace: rapid.SampledFrom([]int64{-1, 0, 1 << 20, 3 << 20, 1 << 30, 1 << 30}).Draw(t, "bytes"),
		})
	case "policy":
		s.do(t, c, &logpb.SetStoragePolicy{Target: to(one), Policy: rapid.SampledFrom([]uint32{0, 2, 5, 7, 10, 12, 15}).Draw(t, "policy")})
	case "place":
		ids := rapid.SliceOfN(rapid.Uint64Range(uint64(metadata.RootID), uint64(metadata.RootID)+20), 0, 4).Draw(t, "files")
		s.do(t, super, &logpb.PlaceFiles{Inodes: ids})
		for _, id := range ids {
			if n := s.w.ns.inodes[metadata.INodeID(id)]; n != nil && n.file != nil && n.attached() && n.placed() != n.placing() {
				t.Fatalf("inode %d obeys policy %d, not %d", id, n.placed(), n.placing())
			}
		}
	case "erasure":
		s.do(t, c, &logpb.SetErasurePolicy{Target: to(one), Policy: rapid.SampledFrom([]uint32{0, 1, 1 + 1, 1 + 2, 1 + 4}).Draw(t, "erasure")})
	case "rename":
		s.do(t, c, &logpb.Rename{Source: to(one), Target: to(path("to")), Legacy: true})
	case "rename2":
		s.do(t, c, &logpb.Rename{Source: to(one), Target: to(path("to")), Overwrite: true})
	case "delete":
		s.do(t, c, &logpb.Delete{Target: to(one), Recursive: true})
	case "setrep":
		s.do(t, c, &logpb.SetReplication{Target: to(one), Replication: rapid.Uint32Range(1, 4).Draw(t, "replication")})
	case "truncate":
		length := int64(0)
		if st, err := s.w.ns.Stat(super, one); err == nil && st != nil {
			length = rapid.Int64Range(0, st.Length).Draw(t, "length")
		}
		s.do(t, c, s.w.cutting(one, length, s.block(t)))
	case "concat":
		s.do(t, c, &logpb.Concat{Target: to(one), Sources: []*logpb.Target{to(path("first")), to(path("second"))}})
	case "xattr":
		s.do(t, c, &logpb.SetXAttr{
			Target: to(one), Create: true, Replace: true,
			Attribute: &logpb.XAttr{Name: rapid.SampledFrom(testNames).Draw(t, "name"), Value: []byte("v")},
		})
	case "no xattr":
		s.do(t, c, &logpb.RemoveXAttr{Target: to(one), Name: rapid.SampledFrom(testNames).Draw(t, "name")})
	case "acl", "no acl":
		var entries []*logpb.ACLEntry
		for range rapid.IntRange(0, 5).Draw(t, "entries") {
			entries = append(entries, &logpb.ACLEntry{
				Default: rapid.Bool().Draw(t, "default"), Type: logpb.ACLEntry_Type(rapid.Int32Range(0, 3).Draw(t, "type")),
				Name:   rapid.SampledFrom([]string{"", "", "alice", "staff"}).Draw(t, "who"),
				Rights: rapid.Uint32Range(0, 7).Draw(t, "rights"),
			})
		}
		s.do(t, c, &logpb.SetACL{Target: to(one), Change: logpb.SetACL_Change(rapid.Int32Range(0, 4).Draw(t, "change")), Entries: entries})
	}
}
