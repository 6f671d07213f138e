package namespace

import (
	"bytes"
	"fmt"
	"testing"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// coldDirectory is a namespace with a directory of n files and a few directories in the checkpoint only, and a file and a
// deletion since.
func coldDirectory(t *testing.T, n int) *world {
	w := newWorld(t, Config{})
	var entry [][]byte
	for i := range n {
		op := any(&logpb.Mkdirs{Target: to(fmt.Sprintf("/big/d%07d", i)), Mode: 0o755, CreateParent: true})
		if i%1000 != 0 {
			op = create(fmt.Sprintf("/big/f%07d", i), "c")
		}
		data, err := command(super, op).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if entry = append(entry, data); len(entry) == 1000 || i == n-1 {
			w.entry(entry...)
			entry = nil
		}
	}
	w.reopen()
	w.do(super, create("/big/f0000001x", "c"))
	w.do(super, &logpb.Delete{Target: to("/big/f0000002")})
	w.ns.loadedMost = 0
	return w
}

// Whoever lists, or counts, a large directory that is not in memory holds up nobody for longer than some hundred records take.
func TestColdDirectoryIsReadInTurns(t *testing.T) {
	const files = 20_000
	for name, read := range map[string]func(*testing.T, *world){
		"list": func(t *testing.T, w *world) {
			var names []string
			for after := ""; ; {
				l, err := w.ns.List(super, "/big", after, 1000)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range l.Entries {
					names = append(names, e.Name)
				}
				if l.Remaining == 0 {
					break
				}
				after = names[len(names)-1]
			}
			if len(names) != files || names[0] != "d0000000" || names[20] != "f0000001" || names[21] != "f0000001x" || names[22] != "f0000003" {
				t.Errorf("%d names: %q ...", len(names), names[:min(len(names), 24)])
			}
		},
		"a page in the middle, from an inode": func(t *testing.T, w *world) {
			id, err := w.ns.Resolve(super, "/big/f0010003")
			if err != nil {
				t.Fatal(err)
			}
			l, err := w.ns.List(super, "/big", fmt.Sprintf("/.reserved/.inodes/%d", id), 1000)
			if err != nil || len(l.Entries) != 1000 || l.Entries[0].Name != "f0010004" || l.Remaining < 1 {
				t.Errorf("%v, %+v", err, l)
			}
		},
		"summary": func(t *testing.T, w *world) {
			sum, err := w.ns.ContentSummary(super, "/big")
			if err != nil || sum.Files != files-20 || sum.Directories != 21 {
				t.Errorf("%+v, %v", sum, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := coldDirectory(t, files)
			read(t, w)
			if most := w.ns.loadedMost; most > smallDirectory {
				t.Errorf("%d records were read while all others waited", most)
			}
			w.check()
		})
	}
}

// A directory of few entries comes into memory as a whole, however large its records are.
func TestSmallDirectoryOfLargeRecords(t *testing.T) {
	w := newWorld(t, Config{Memory: 64 << 20})
	for i := range 12 {
		path := fmt.Sprintf("/d/f%d", i)
		w.do(super, create(path, "c"))
		for j := range 30 {
			if r := w.do(super, &logpb.SetXAttr{Target: to(path), Create: true, Attribute: &logpb.XAttr{
				Namespace: logpb.XAttr_USER, Name: fmt.Sprint("a", j), Value: bytes.Repeat([]byte{1}, 16000),
			}}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	w.reopen()
	l, err := w.ns.List(super, "/d", "", 0)
	if err != nil || len(l.Entries) != 12 {
		t.Fatal(l, err)
	}
	if n := w.ns.Counts().Misses; n > 20 {
		t.Errorf("%d reads of the checkpoint for one listing", n)
	}
}

// A directory of few files with large attributes is small by its number of entries only: it is listed in pages, and does not come into memory
// as a whole.
func TestHeavyDirectoryIsListedInPages(t *testing.T) {
	w := newWorld(t, Config{Memory: 1 << 20})
	const files, attributes = 12, 30
	w.do(super, &logpb.Mkdirs{Target: to("/heavy"), Mode: 0o755})
	for f := range files {
		path := fmt.Sprintf("/heavy/f%02d", f)
		if r := w.do(super, create(path, "c")); r.Err != nil {
			t.Fatal(r.Err)
		} else {
			w.do(super, &logpb.Complete{Inode: uint64(r.Status.ID), ClientName: "c"})
		}
		for a := range attributes {
			x := &logpb.XAttr{Name: fmt.Sprintf("user.a%02d", a), Value: make([]byte, 16<<10-16)}
			if r := w.do(super, &logpb.SetXAttr{Target: to(path), Create: true, Attribute: x}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	w.snapshot()
	w.reopen()
	for range 2 {
		l, err := w.ns.List(super, "/heavy", "", 1000)
		if err != nil || len(l.Entries) != files || l.Remaining != 0 {
			t.Fatalf("%+v, %v", l, err)
		}
	}
	if _, noted := w.ns.view.notes.get(heavyKey(w.do(super, &logpb.SurveyTree{Target: to("/heavy")}).INode)); !noted {
		t.Error("the directory was not found to be heavy")
	}
	if c := w.ns.Counts(); c.ResidentBytes > 3<<20 {
		t.Errorf("%d bytes are resident", c.ResidentBytes)
	}
	if r := w.do(super, &logpb.Delete{Target: to("/heavy"), Recursive: true}); r.Err != nil || !r.OK {
		t.Fatal(r.Err)
	}
	w.check()
}

// Who reads while a large tree is taken apart, and while what an entry has changed is hashed, gets turns and sees whole states.
func TestReadersGetTurnsWhileTreesAreTakenApart(t *testing.T) {
	for _, memory := range []int64{0, 1 << 16} {
		w := newWorld(t, Config{Memory: memory})
		const files = 4000
		entry := [][]byte{}
		for i := range files {
			data, err := command(super, create(fmt.Sprintf("/d/%d/f%05d", i%3, i), "c")).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			entry = append(entry, data)
		}
		for _, r := range w.entry(entry...) {
			data, err := command(super, &logpb.Complete{Inode: uint64(r.(*Result).Status.ID), ClientName: "c"}).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			entry = append(entry, data)
		}
		w.entry(entry[files:]...)
		w.do(super, &logpb.Mkdirs{Target: to("/stays"), Mode: 0o755})
		w.snapshot()
		w.reopen()
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if st, err := w.ns.Stat(super, "/stays"); st == nil || err != nil {
					t.Errorf("Stat: %v, %v", st, err)
				}
				if l, err := w.ns.List(super, "/d/1", "", 100); err != nil || l != nil && len(l.Entries) != 100 {
					t.Errorf("List: %v, %v", l, err)
				}
			}
		}()
		r := w.do(super, &logpb.SurveyTree{Target: to("/d")})
		if _, err := w.ns.Survey(super, r.INode); err != nil {
			t.Fatal(err)
		}
		if r := w.do(super, &logpb.Delete{Target: to("/d"), Recursive: true, Survey: r.Survey}); r.Err != nil || !r.OK {
			t.Fatal(r.Err)
		}
		if n := w.ns.Counts().Files; n < files-ReclaimDelete-ReclaimStep {
			t.Errorf("%d files are left", n)
		}
		w.do(super, &logpb.Reclaim{Limit: 2000})
		w.do(super, &logpb.Reclaim{Limit: 2000})
		close(stop)
		<-ended
		if c := w.ns.Counts(); c.Reclaiming > 0 || c.Files > 0 {
			t.Errorf("%+v", c)
		}
		w.check()
	}
}
