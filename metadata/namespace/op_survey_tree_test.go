package namespace

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// homeOf is a namespace with /home/bob, which has dirs directories of files files each, all of them bob's and in the
// checkpoint only.
func homeOf(t *testing.T, dirs, files int) *world {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob"), Mode: 0o755, CreateParent: true})
	w.do(super, &logpb.SetOwner{Target: to("/home/bob"), Owner: "bob"})
	var entry [][]byte
	for i := range dirs {
		for j := range files {
			data, err := command(bob, create(fmt.Sprintf("/home/bob/t/d%d/f%d", i, j), "c")).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			entry = append(entry, data)
		}
		w.entry(entry...)
		entry = nil
	}
	w.reopen()
	w.ns.loadedMost = 0
	return w
}

// The owner of a large tree deletes it, and nobody waits for as long as it takes to look at all of it: neither in the
// command, on every member, nor beside it.
func TestLargeTreeIsSurveyedBeforeItIsDeleted(t *testing.T) {
	for name, op := range map[string]func(survey uint64) any{
		"delete": func(survey uint64) any {
			return &logpb.Delete{Target: to("/home/bob/t"), Recursive: true, Survey: survey}
		},
		"rename to the trash": func(survey uint64) any {
			return &logpb.Rename{Source: to("/home/bob/t"), Target: to("/home/bob/trash"), ToTrash: true, Survey: survey}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := homeOf(t, 10, 1500)
			r := w.do(bob, op(0))
			if !errors.Is(r.Err, metadata.ErrRetriable) || r.INode == 0 {
				t.Fatalf("without a survey: %+v", r)
			}
			s := w.do(bob, &logpb.SurveyTree{Target: to("/home/bob/t")})
			if s.Err != nil || s.INode != r.INode {
				t.Fatalf("%+v", s)
			}
			if _, err := w.ns.Survey(bob, s.INode); err != nil {
				t.Fatal(err)
			}
			w.snapshot()
			w.open()
			if r := w.do(bob, op(s.Survey)); r.Err != nil || !r.OK {
				t.Fatalf("with a survey: %+v", r)
			}
			if most := w.ns.loadedMost; most > ReclaimDelete+smallDirectory {
				t.Errorf("%d records were read while all others waited", most)
			}
			if len(w.ns.meta.surveys) != 0 {
				t.Error("the survey goes on")
			}
			w.check()
			again := fresh(t, newWorld(t, Config{}).cfg.Store, 0)
			w.replay(again)
			if again.Hash() != w.ns.Hash() {
				t.Error("a member that has everything in memory has another state")
			}
		})
	}
}

// What takes the right away while the tree is looked at, or afterwards, ends the survey; what does not, does not.
func TestWhatEndsASurvey(t *testing.T) {
	w := homeOf(t, 2, 800)
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/shared"), Mode: 0o777})
	w.do(super, &logpb.SetPermission{Target: to("/home/bob/t/shared"), Mode: 0o777})
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/sticky"), Mode: 0o777})
	w.do(super, &logpb.SetPermission{Target: to("/home/bob/t/sticky"), Mode: 0o1777})
	w.do(bob, create("/home/bob/t/sticky/bobs", "c"))
	w.do(super, &logpb.Mkdirs{Target: to("/away/full/sub"), Mode: 0o777, CreateParent: true})
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/closed"), Mode: 0o700})
	w.snapshot()
	for name, test := range map[string]struct {
		c    metadata.Caller
		ops  []any
		ends bool
	}{
		"nothing":                                  {bob, nil, false},
		"a file of his":                            {bob, []any{create("/home/bob/t/d0/x", "c")}, false},
		"a directory of his":                       {bob, []any{&logpb.Mkdirs{Target: to("/home/bob/t/d0/x"), Mode: 0o755}}, false},
		"a file of another where everybody may":    {alice, []any{create("/home/bob/t/shared/x", "c")}, false},
		"an empty directory of another":            {alice, []any{&logpb.Mkdirs{Target: to("/home/bob/t/shared/x"), Mode: 0o700}}, false},
		"one that gets an entry":                   {alice, []any{&logpb.Mkdirs{Target: to("/home/bob/t/shared/x"), Mode: 0o700}, create("/home/bob/t/shared/x/y", "c")}, true},
		"a file of another in a sticky directory":  {alice, []any{create("/home/bob/t/sticky/x", "c")}, true},
		"a file in an empty directory not his":     {super, []any{create("/home/bob/t/closed/x", "c")}, true},
		"a tree that comes in":                     {super, []any{&logpb.Rename{Source: to("/away/full"), Target: to("/home/bob/t/d0/full")}}, true},
		"a mode":                                   {bob, []any{&logpb.SetPermission{Target: to("/home/bob/t/d0"), Mode: 0o500}}, true},
		"an owner":                                 {super, []any{&logpb.SetOwner{Target: to("/home/bob/t/d1"), Owner: "alice"}}, true},
		"an owner of a file in a sticky directory": {super, []any{&logpb.SetOwner{Target: to("/home/bob/t/sticky/bobs"), Owner: "alice"}}, true},
		"a list of rights":                         {bob, []any{&logpb.SetACL{Target: to("/home/bob/t/d0"), Change: logpb.SetACL_SET, Entries: []*logpb.ACLEntry{{}, {Type: logpb.ACLEntry_GROUP}, {Type: logpb.ACLEntry_OTHER}}}}, true},
		"something elsewhere":                      {super, []any{&logpb.SetPermission{Target: to("/away/full"), Mode: 0}, create("/away/full/x", "c")}, false},
		"the tree itself elsewhere":                {bob, []any{&logpb.Rename{Source: to("/home/bob/t"), Target: to("/home/bob/u")}}, false},
		"its own end":                              {bob, []any{&logpb.SurveyTree{Target: to("/"), End: 1}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, cfg: w.cfg, now: w.now, index: w.index}
			w.cfg.OnMistake = mistake(t)
			w.open()
			s := w.do(bob, &logpb.SurveyTree{Target: to("/home/bob/t")})
			if s.Err != nil || s.Survey != 1 {
				t.Fatalf("%+v", s)
			}
			if _, err := w.ns.Survey(bob, s.INode); err != nil {
				t.Fatal(err)
			}
			for _, op := range test.ops {
				if r := w.do(test.c, op); r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			r := w.do(bob, &logpb.Delete{Target: &logpb.Target{Base: uint64(s.INode)}, Recursive: true, Survey: s.Survey})
			if ended := r.Err != nil; ended != test.ends || ended && !errors.Is(r.Err, metadata.ErrRetriable) && !errors.Is(r.Err, metadata.ErrPermission) {
				t.Errorf("%+v", r)
			}
			w.check()
		})
	}
}

// A survey is for one caller, one tree and ten minutes; the look at the tree finds what the command would.
func TestSurveysAreForOneTree(t *testing.T) {
	w := homeOf(t, 2, 800)
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/d1/closed"), Mode: 0o700})
	w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/d1/closed/x"), Mode: 0o755})
	begin := func() *Result {
		t.Helper()
		s := w.do(bob, &logpb.SurveyTree{Target: to("/home/bob/t")})
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		return s
	}
	s := begin()
	if _, err := w.ns.Survey(bob, s.INode); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("a directory that is not his: %v", err)
	}
	w.do(super, &logpb.Delete{Target: to("/home/bob/t/d1/closed"), Recursive: true})
	refused := func(what string, c metadata.Caller, path string, survey uint64) {
		t.Helper()
		if r := w.do(c, &logpb.Delete{Target: to(path), Recursive: true, Survey: survey}); !errors.Is(r.Err, metadata.ErrRetriable) && !errors.Is(r.Err, metadata.ErrPermission) {
			t.Errorf("%s: %+v", what, r)
		}
	}
	refused("another's", alice, "/home/bob/t", begin().Survey)
	refused("of a part", bob, "/home/bob", begin().Survey)
	s = begin()
	w.now += metadata.Time(surveyExpiry) + 1
	refused("old", bob, "/home/bob/t", s.Survey)
	for range 2 * maxSurveys {
		begin()
	}
	if n := len(w.ns.meta.surveys); n != maxSurveys {
		t.Errorf("%d surveys", n)
	}
	w.reopen()
	w.check()
	for path, want := range map[string]*metadata.Kind{"/nope": metadata.ErrNotExist, "/home/bob/t/d0/f0": metadata.ErrNotDirectory} {
		if r := w.do(bob, &logpb.SurveyTree{Target: to(path)}); !errors.Is(r.Err, want) {
			t.Errorf("%s: %v", path, r.Err)
		}
	}
}

// Under a quota the tree's usage is counted by the survey, for the superuser as well, and not when it changed since.
func TestLargeTreeUnderAQuotaIsCountedBeforeItIsDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		c    metadata.Caller
		op   any
		ends bool
	}{
		"owner":                  {bob, nil, false},
		"superuser":              {super, nil, false},
		"a file more":            {bob, create("/home/bob/t/d0/x", "c"), true},
		"a file that moves":      {bob, &logpb.Rename{Source: to("/home/bob/t/d0/f1"), Target: to("/home/bob/t/d2/g")}, true},
		"a file more elsewhere":  {bob, create("/home/bob/x", "c"), false},
		"the same usage":         {super, &logpb.SetTimes{Target: to("/home/bob/t/d0"), Mtime: 7, Atime: 7}, false},
		"another quota":          {super, &logpb.SetQuota{Target: to("/"), Names: 1 << 40, Space: metadata.QuotaKeep}, true},
		"replicas of empty file": {bob, &logpb.SetReplication{Target: to("/home/bob/t/d0/f1"), Replication: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := homeOf(t, 3, 1500)
			if r := w.do(super, &logpb.SetQuota{Target: to("/home/bob"), Names: 10_000, Space: metadata.QuotaKeep, Count: true}); r.Err != nil {
				t.Fatal(r.Err)
			}
			w.reopen()
			w.ns.loadedMost = 0
			if r := w.do(test.c, &logpb.Delete{Target: to("/home/bob/t"), Recursive: true}); !errors.Is(r.Err, metadata.ErrRetriable) || r.INode == 0 {
				t.Fatalf("without a survey: %+v", r)
			}
			s := w.do(test.c, &logpb.SurveyTree{Target: to("/home/bob/t")})
			u, err := w.ns.Survey(test.c, s.INode)
			if want := (Usage{Names: 1 + 3 + 3*1500}); s.Err != nil || err != nil || u != want {
				t.Fatalf("%+v, %+v, %v", s, u, err)
			}
			if test.op != nil {
				if r := w.do(test.c, test.op); r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			r := w.do(test.c, &logpb.Delete{Target: to("/home/bob/t"), Recursive: true, Survey: s.Survey, Names: u.Names, Space: u.Space})
			if r.OK == test.ends || r.OK == (r.INode != 0) {
				t.Errorf("%+v", r)
			}
			if most := w.ns.loadedMost; most > ReclaimDelete+smallDirectory {
				t.Errorf("%d records were read while all others waited", most)
			}
			w.check() // counts what quotas say is used
		})
	}
}

// So is one that moves across the border of a quota, by either rename.
func TestLargeTreeIsCountedBeforeItCrossesAQuota(t *testing.T) {
	for name, legacy := range map[string]bool{"rename": true, "rename2": false} {
		t.Run(name, func(t *testing.T) {
			w := homeOf(t, 3, 1500)
			w.do(super, &logpb.Mkdirs{Target: to("/limited"), Mode: 0o777})
			w.do(super, &logpb.SetPermission{Target: to("/limited"), Mode: 0o777})
			if r := w.do(super, &logpb.SetQuota{Target: to("/limited"), Names: 10_000, Space: metadata.QuotaKeep}); r.Err != nil {
				t.Fatal(r.Err)
			}
			w.reopen()
			w.ns.loadedMost = 0
			move := &logpb.Rename{Source: to("/home/bob/t"), Target: to("/limited/t"), Legacy: legacy}
			r := w.do(bob, move)
			if !errors.Is(r.Err, metadata.ErrRetriable) || r.INode == 0 {
				t.Fatalf("without a survey: %+v", r)
			}
			s := w.do(bob, &logpb.SurveyTree{Target: to("/home/bob/t")})
			u, err := w.ns.Survey(bob, s.INode)
			if s.Err != nil || err != nil {
				t.Fatal(s.Err, err)
			}
			move.Survey, move.Names, move.Space = s.Survey, u.Names, u.Space
			if r := w.do(bob, move); r.Err != nil || !r.OK {
				t.Errorf("with a survey: %+v", r)
			}
			if q, err := w.ns.QuotaUsage(super, "/limited"); err != nil || q.Names != 1+u.Names {
				t.Errorf("%+v, %v", q, err)
			}
			if most := w.ns.loadedMost; most > smallDirectory {
				t.Errorf("%d records were read while all others waited", most)
			}
			w.check()
		})
	}
}

// A directory that gets a quota is counted so as well; what changes in it meanwhile voids the count, although no quota was
// there that would have been charged. One that never stands still is counted by the command.
func TestLargeTreeIsCountedBeforeItGetsAQuota(t *testing.T) {
	begin := create("/home/bob/t/d0/open", "c")
	for name, test := range map[string]struct {
		c    metadata.Caller
		op   any
		ends bool
	}{
		"nothing":               {super, nil, false},
		"a file more":           {bob, create("/home/bob/t/d0/x", "c"), true},
		"a file less":           {bob, &logpb.Delete{Target: to("/home/bob/t/d0/f1")}, true},
		"a directory less":      {super, &logpb.Delete{Target: to("/home/bob/t/e"), Recursive: true}, true},
		"a tree that goes away": {super, &logpb.Rename{Source: to("/home/bob/t/e"), Target: to("/e")}, true},
		"a tree that comes":     {super, &logpb.Rename{Source: to("/full"), Target: to("/home/bob/t/full")}, true},
		"more replicas":         {bob, &logpb.SetReplication{Target: to("/home/bob/t/d0/open"), Replication: 5}, true},
		"a file elsewhere":      {bob, create("/home/bob/x", "c"), false},
		"a mode":                {super, &logpb.SetPermission{Target: to("/home/bob/t/d0"), Mode: 0o700}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := homeOf(t, 3, 1500)
			w.do(super, &logpb.Mkdirs{Target: to("/home/bob/t/e/sub"), Mode: 0o755, CreateParent: true})
			w.do(super, &logpb.Mkdirs{Target: to("/full/sub"), Mode: 0o755, CreateParent: true})
			ids := w.do(super, &logpb.ReserveIDs{Blocks: 10, Generations: 10}).Reserved
			file := w.do(bob, begin).Status.ID
			block := &logpb.Block{Id: int64(ids.FirstBlock), Generation: uint64(ids.FirstGeneration)}
			if r := w.do(bob, &logpb.AddBlock{Inode: uint64(file), ClientName: "c", Block: block}); r.Err != nil {
				t.Fatal(r.Err)
			}
			w.reopen()
			w.ns.loadedMost = 0
			op := &logpb.SetQuota{Target: to("/home/bob/t"), Names: 10_000, Space: metadata.QuotaKeep}
			if r := w.do(super, op); !errors.Is(r.Err, metadata.ErrRetriable) || r.INode == 0 {
				t.Fatalf("without a survey: %+v", r)
			}
			s := w.do(super, &logpb.SurveyTree{Target: to("/home/bob/t")})
			u, err := w.ns.Survey(super, s.INode)
			if s.Err != nil || err != nil {
				t.Fatal(s.Err, err)
			}
			if test.op != nil {
				if r := w.do(test.c, test.op); r.Err != nil || !r.OK {
					t.Fatalf("%+v", r)
				}
			}
			op.Survey, op.UsedNames, op.UsedSpace = s.Survey, u.Names, u.Space
			r := w.do(super, op)
			if r.OK == test.ends || r.OK == (r.INode != 0) {
				t.Errorf("%+v", r)
			}
			if most := w.ns.loadedMost; most > ReclaimDelete+smallDirectory {
				t.Errorf("%d records were read while all others waited", most)
			}
			if !r.OK {
				op.Survey, op.Count = 0, true
				if r := w.do(super, op); r.Err != nil || !r.OK {
					t.Errorf("counted by the command: %+v", r)
				}
			}
			w.check() // counts what quotas say is used
		})
	}
}
