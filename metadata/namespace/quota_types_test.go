package namespace

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	typeDisk, typeSSD, typeArchive         = 1, 2, 3
	coldPolicy, oneSSDPolicy, allSSDPolicy = 2, 10, 12
)

// limitType limits a type of volumes below a directory; metadata.QuotaUnset: not.
func limitType(path string, kind uint32, limit int64) *logpb.SetQuota {
	return &logpb.SetQuota{Target: to(path), Type: kind, TypeSpace: limit}
}

func setPolicy(path string, policy uint32) *logpb.SetStoragePolicy {
	return &logpb.SetStoragePolicy{Target: to(path), Policy: policy}
}

// typesUsed is what a directory uses of the types that are limited.
func (w *world) typesUsed(path string) string {
	w.t.Helper()
	u, err := w.ns.QuotaUsage(super, path)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, q := range u.Types {
		if q.Quota >= 0 {
			out = append(out, fmt.Sprintf("%s %d/%d", q.Name, q.Consumed, q.Quota))
		}
	}
	return strings.Join(out, " ")
}

// What counts is what the policy wants that a file's blocks obey: each replica on the type that stands for it. It follows appends, replications, policies, deletions, and moves.
func TestQuotasOfTypesCountWhatPoliciesWant(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/q/ssd"), Mode: 0o755, CreateParent: true})
	w.must(&logpb.Mkdirs{Target: to("/out"), Mode: 0o755})
	w.must(setPolicy("/q/ssd", allSSDPolicy))
	w.file("/q/plain", 100)
	w.file("/q/ssd/fast", 10, 20) // replication 3 as all
	used := func(want string) {
		t.Helper()
		if got := w.typesUsed("/q"); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		w.check()
	}
	replicas := func() int64 {
		st, err := w.ns.Stat(super, "/q/plain")
		if err != nil {
			t.Fatal(err)
		}
		return int64(st.Replication)
	}()
	w.must(limitType("/q", typeSSD, 1<<30))
	used(fmt.Sprintf("SSD %d/%d", 30*replicas, 1<<30))
	w.must(limitType("/q", typeDisk, 1<<31))
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 100*replicas, 1<<31, 30*replicas, 1<<30))
	w.must(setPolicy("/q/plain", oneSSDPolicy))
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 100*(replicas-1), 1<<31, 30*replicas+100, 1<<30))
	w.must(setPolicy("/q/ssd", coldPolicy)) // of a directory: nothing moves, nothing is counted anew
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 100*(replicas-1), 1<<31, 30*replicas+100, 1<<30))
	w.must(&logpb.SetReplication{Target: to("/q/plain"), Replication: 5})
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 400, 1<<31, 30*replicas+100, 1<<30))
	st, err := w.ns.Stat(super, "/q/ssd/fast")
	if err != nil {
		t.Fatal(err)
	}
	w.must(&logpb.PlaceFiles{Inodes: []uint64{uint64(st.ID)}})
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 400, 1<<31, 100, 1<<30))
	w.reopen()
	w.must(&logpb.Rename{Source: to("/q/plain"), Target: to("/out/plain")})
	used(fmt.Sprintf("DISK %d/%d SSD %d/%d", 0, 1<<31, 0, 1<<30))
	// What would be too much is refused, and changes nothing.
	w.must(&logpb.Mkdirs{Target: to("/lim"), Mode: 0o755})
	w.must(limitType("/lim", typeSSD, 99))
	r := w.do(super, &logpb.Rename{Source: to("/out/plain"), Target: to("/lim/plain")})
	if words := "Quota by storage type : SSD on path : /lim is exceeded. quota = 99 B but space consumed = 100 B"; r.Err == nil || r.Err.Error() != words || metadata.KindOf(r.Err) != metadata.ErrTypeQuota {
		t.Fatalf("%v, want %s", r.Err, words)
	}
	w.must(setPolicy("/lim", allSSDPolicy))
	open := w.must(create("/lim/open", "writer")).Status
	id := w.must(&logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
	block := &logpb.Block{Id: int64(id.FirstBlock), Generation: uint64(id.FirstGeneration)}
	w.refused(metadata.ErrTypeQuota, &logpb.AddBlock{Inode: uint64(open.ID), ClientName: "writer", Block: block})
	w.must(setPolicy("/lim/open", coldPolicy)) // what is written from now on is
	w.must(&logpb.AddBlock{Inode: uint64(open.ID), ClientName: "writer", Block: block})
	w.must(limitType("/out", typeSSD, 100))
	w.must(setPolicy("/out/plain", allSSDPolicy)) // as in HDFS a policy is not refused
	w.refused(metadata.ErrTypeQuota, &logpb.SetReplication{Target: to("/out/plain"), Replication: 6})
	if got := w.typesUsed("/out"); got != "SSD 500/100" {
		t.Fatal(got)
	}
	for _, op := range []*logpb.SetQuota{limitType("/out", 4, 5), limitType("/out", 9, 5), limitType("/out", typeSSD, -2), limitType("/out", typeSSD, metadata.QuotaKeep)} {
		w.refused(metadata.ErrInvalidArgument, op)
	}
	if r := w.do(bob, limitType("/out", typeSSD, 5)); metadata.KindOf(r.Err) != metadata.ErrPermission {
		t.Fatal(r.Err)
	}
	// Other limits of the same directories stay, and go by themselves.
	w.must(&logpb.SetQuota{Target: to("/out"), Names: 10, Space: metadata.QuotaKeep})
	w.must(limitType("/out", typeSSD, metadata.QuotaUnset))
	if u, err := w.ns.QuotaUsage(super, "/out"); err != nil || u.Types != nil || u.NameQuota != 10 || u.Space != 500 {
		t.Fatalf("%+v, %v", u, err)
	}
	w.must(&logpb.SetQuota{Target: to("/out"), Names: metadata.QuotaUnset, Space: metadata.QuotaKeep})
	w.must(limitType("/q", typeSSD, metadata.QuotaUnset))
	w.must(limitType("/q", typeDisk, metadata.QuotaUnset))
	w.must(limitType("/lim", typeSSD, metadata.QuotaUnset))
	if m := w.ns.meta; m.quotas != 0 || m.typeQuotas != 0 {
		t.Fatalf("%d quotas, %d of types are left", m.quotas, m.typeQuotas)
	}
	w.check()
}

// A file that is renamed to below another policy counts for what it obeys, and is not placed by the new one where the quota has no room for it.
func TestARenameGetsAroundNoQuotaOfTypes(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ssd"), Mode: 0o755})
	w.must(&logpb.Mkdirs{Target: to("/disk"), Mode: 0o755})
	w.must(setPolicy("/ssd", allSSDPolicy))
	w.must(limitType("/ssd", typeSSD, 100))
	w.must(limitType("/ssd", typeDisk, 300))
	for _, name := range []string{"a", "b", "c"} {
		w.file("/disk/"+name, 15) // replication 3 as all
		w.must(&logpb.Rename{Source: to("/disk/" + name), Target: to("/ssd/" + name)})
	}
	w.file("/disk/large", 100)
	w.refused(metadata.ErrTypeQuota, &logpb.Rename{Source: to("/disk/large"), Target: to("/ssd/large"), Overwrite: true}) // it stays on disks, and that is limited, too
	want := func(used string) {
		t.Helper()
		if got := w.typesUsed("/ssd"); got != used {
			t.Fatalf("%q, want %q", got, used)
		}
		w.check()
	}
	want("DISK 135/300 SSD 0/100")
	place := func(roomy int, over int64) {
		t.Helper()
		dir, err := w.ns.Stat(super, "/ssd")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.ns.Files(dir.ID, func(files []PlacedFile) error {
			files = slices.DeleteFunc(files, func(f PlacedFile) bool { return !f.Stale })
			ids, no, err := w.ns.Placeable(append(files, PlacedFile{INode: metadata.RootID}, PlacedFile{INode: 1 << 40}))
			if err != nil || len(ids) != roomy || no != over {
				t.Fatalf("%v of %v, %d blocks not, %v", ids, files, no, err)
			}
			w.must(&logpb.PlaceFiles{Inodes: ids})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	place(2, 1) // all together, not each
	want("DISK 45/300 SSD 90/100")
	w.must(limitType("/ssd", typeSSD, 134))
	place(0, 1)
	w.must(limitType("/", typeSSD, 135)) // each quota above counts
	w.must(limitType("/ssd", typeSSD, 135))
	place(1, 0)
	want("DISK 0/300 SSD 135/135")
	w.must(setPolicy("/ssd", oneSSDPolicy))
	place(3, 0) // what gives room back needs none
	want("DISK 90/300 SSD 45/135")
}

// A tree with quotas that do not count types is counted for one that does, and trees across the border of one, also by a survey.
func TestTreesAreCountedByTypes(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/a/b/c"), Mode: 0o755, CreateParent: true})
	w.must(&logpb.SetQuota{Target: to("/a/b"), Names: 100, Space: metadata.QuotaKeep})
	w.must(setPolicy("/a", allSSDPolicy))
	w.file("/a/b/c/f", 10)
	w.must(limitType("/a", typeSSD, 1<<30))
	if got := w.typesUsed("/a"); got != fmt.Sprintf("SSD 30/%d", 1<<30) {
		t.Fatal(got)
	}
	w.must(&logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.must(limitType("/d", typeArchive, 1))
	w.must(&logpb.Rename{Source: to("/a/b"), Target: to("/d/b")})
	if a, d := w.typesUsed("/a"), w.typesUsed("/d"); a != fmt.Sprintf("SSD 0/%d", 1<<30) || d != "ARCHIVE 0/1" {
		t.Fatal(a, d)
	}
	for _, back := range []bool{true, false} { // with what a survey counts, and with what one of an older program would
		s := w.must(&logpb.SurveyTree{Target: to("/d/b")})
		u, err := w.ns.Survey(super, s.INode)
		if err != nil || u.Names != 3 || u.Space != 30 || u.Types[onSSD] != 30 {
			t.Fatalf("%+v, %v", u, err)
		}
		op := &logpb.Rename{Source: to("/d/b"), Target: to("/a/b"), Survey: s.Survey, Names: u.Names, Space: u.Space, Types: u.Types[:]}
		if !back {
			op.Types = nil
		}
		w.must(op)
		w.check()
		w.must(&logpb.Rename{Source: to("/a/b"), Target: to("/d/b")})
		w.check()
	}
	w.reopen()
	w.must(&logpb.Delete{Target: to("/d/b"), Recursive: true})
	w.check()
	// Quotas go with their directories, whether these have entries or not.
	w.must(&logpb.Delete{Target: to("/d")})
	w.check()
	w.must(&logpb.Mkdirs{Target: to("/a/x"), Mode: 0o755})
	w.must(limitType("/a/x", typeDisk, 1))
	w.must(&logpb.Delete{Target: to("/a"), Recursive: true})
	w.must(&logpb.Reclaim{Limit: 100})
	w.check()
	if m := w.ns.meta; m.quotas != 0 || m.typeQuotas != 0 {
		t.Fatalf("%d quotas, %d of types are left", m.quotas, m.typeQuotas)
	}
}

// What comes with its bytes, or takes the place of others, is checked beforehand.
func TestQuotasOfTypesLimitSmallFilesAndConversions(t *testing.T) {
	w := newWorld(t, Config{})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/q"), Mode: 0o777})
	w.mustBy(super, &logpb.SetQuota{Target: to("/q"), Type: typeDisk, TypeSpace: 6000})
	w.mustBy(bob, storeOf("/q/a", "c", w.block(), 1000)) // three times
	w.refusedBy(bob, metadata.ErrTypeQuota, storeOf("/q/b", "c", w.block(), 1001))
	replace := storeOf("/q/a", "c", w.block(), 2000)
	replace.Create.Overwrite = true
	w.mustBy(bob, replace)
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/q"), Policy: 12})
	w.mustBy(bob, storeOf("/q/ssd", "c", w.block(), 5000)) // whose type has no limit
	beside := create("/beside", "c")
	beside.Replication = 4
	id := uint64(w.mustBy(super, beside).Status.ID)
	b := w.block()
	w.do(super, &logpb.AddBlock{Inode: id, ClientName: "c", Block: b})
	b.Length = 2000
	w.mustBy(super, &logpb.Complete{Inode: id, ClientName: "c", Last: b})
	w.refusedBy(super, metadata.ErrTypeQuota, &logpb.ConvertFile{Target: to("/q/a"), Blocks: BlocksSum(w.infoOf("/q/a").Blocks), Source: id})
	w.check()
}

func (w *world) refusedBy(c metadata.Caller, kind *metadata.Kind, op any) {
	w.t.Helper()
	if r := w.do(c, op); metadata.KindOf(r.Err) != kind {
		w.t.Errorf("%T: %v", op, r.Err)
	}
}
