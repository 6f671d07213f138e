package namespace

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// What is remembered of directories is right whatever became of them: a path leads to where it leads without it.
func TestRememberedDirectoriesAreWhereTheirPathsLead(t *testing.T) {
	for name, memory := range map[string]int64{"all in memory": 0, "next to nothing in memory": 1} {
		t.Run(name, func(t *testing.T) { rememberDirectories(t, memory) })
	}
}

func rememberDirectories(t *testing.T, memory int64) {
	ns := fresh(t, mem.New(), memory)
	ns.loading = always
	r := rand.New(rand.NewPCG(7, 9))
	names := []string{"a", "b", "cc", "d"}
	path := func(most int) string {
		p := ""
		for range 1 + r.IntN(most) {
			p += "/" + names[r.IntN(len(names))]
		}
		return p
	}
	// unremembered is what a path leads to without memory. What it notes is forgotten again, which a new one for each path would need half a megabyte for.
	empty := &near{root: ns.root}
	unremembered := func(p string, why intent) (*place, error) {
		if _, at := empty.look(p); at != nil {
			t.Fatalf("%s is remembered where nothing should be", p)
		}
		former := ns.near.Swap(empty)
		got, err := resolved(ns, p, why)
		if ns.near.Swap(former) != empty {
			t.Fatal("the tree has another root")
		}
		if set, _ := empty.look(p); set != nil {
			for i := range set.hashes {
				set.hashes[i].Store(0)
				set.nodes[i].Store(nil)
			}
		}
		return got, err
	}
	index := ns.AppliedIndex()
	var hits int
	rounds := 2000
	if memory > 0 {
		rounds = 600
	}
	if testing.Short() { // for the race detector, which has little to see here
		rounds /= 10
	}
	for range rounds {
		var op any
		switch r.IntN(6) {
		case 0, 1, 2:
			op = &logpb.Mkdirs{Target: to(path(4)), Mode: 0o755, CreateParent: r.IntN(2) == 0}
		case 3:
			op = create(path(4), "c")
		case 4:
			op = &logpb.Rename{Source: to(path(3)), Target: to(path(3)), Legacy: r.IntN(2) == 0}
		default:
			op = &logpb.Delete{Target: to(path(4)), Recursive: true}
		}
		cmd, err := command(super, op).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		index++
		ns.Apply(index, [][]byte{cmd})
		if memory > 0 && index%8 == 0 {
			takeSnapshot(t, ns, io.Discard)
		}
		ns.loading = always
		for range 4 {
			p := path(5)
			if r.IntN(10) == 0 {
				p = "/" + p // slashes mean nothing here
			}
			if r.IntN(10) == 0 {
				p += "/"
			}
			if _, at := ns.approach(newPlace(), p[1:]); at != nil {
				hits++
			}
			ns.Prefetch([][]byte{[]byte(p), []byte(p[1:]), []byte(path(5)), nil, []byte("/"), []byte("//")}) // tells nothing, whatever is there
			statsEach(t, ns, []string{p, path(5), path(3), path(2), p})
			for _, why := range []intent{toUse, toMake} {
				got, gotErr := resolved(ns, p, why)
				want, wantErr := unremembered(p, why)
				if !slices.Equal(got.nodes, want.nodes) || !slices.Equal(got.names, want.names) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
					t.Fatalf("%s leads to %q (%v), without memory to %q (%v)", p, got.names, gotErr, want.names, wantErr)
				}
			}
		}
	}
	if hits < rounds/4 {
		t.Errorf("only %d paths began at a directory that was remembered", hits)
	}
}

// look returns the set in which the directory of a path would be, and that directory, if it is.
func (t *near) look(path string) (set *nearSet, at *inode) {
	dir, _, ok := inDirectory(path[1:])
	if !ok {
		return nil, nil
	}
	hash := hashName(dir)
	return &t.sets[hash>>(64-nearBits)], t.get(hash)
}

// statsEach compares what many paths are answered with together with what each is by itself.
func statsEach(t *testing.T, ns *Namespace, paths []string) {
	t.Helper()
	who := metadata.Caller{User: "bob"}
	rooms := make([]metadata.FileStatus, len(paths))
	for i := range rooms {
		rooms[i].Type = 99 // of the one before
	}
	n := ns.StatEach(rooms, who, paths)
	for i, path := range paths {
		want, err := ns.Stat(who, path)
		switch {
		case i == n && err != nil:
			return
		case i == n || err != nil:
			t.Fatalf("%d of %q were answered together; the next one by itself is %+v, %v", n, paths, want, err)
		case want == nil && rooms[i] != metadata.FileStatus{} || want != nil && rooms[i] != *want:
			t.Fatalf("%s is %+v together with others, %+v by itself", path, rooms[i], want)
		}
	}
}

// StatEach reads nothing from the store, and goes no further than what is in memory.
func TestStatEachStopsAtWhatIsCold(t *testing.T) {
	w := coldDirectory(t, 10)
	paths := []string{"/", "/big", "/big/f0000001x", "/none", "/big/f0000003", "/"}
	rooms := make([]metadata.FileStatus, len(paths))
	if _, err := w.ns.Stat(super, "/big"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ns.Stat(super, "/none"); err != nil {
		t.Fatal(err)
	}
	if n := w.ns.StatEach(rooms, super, paths); n != 4 || rooms[2].Type != metadata.TypeFile || rooms[3].Type != 0 {
		t.Errorf("%d answered, %+v", n, rooms)
	}
	if _, err := w.ns.Stat(super, "/big/f0000003"); err != nil {
		t.Fatal(err)
	}
	if n := w.ns.StatEach(rooms, super, paths); n != len(paths) || rooms[4].Type != metadata.TypeFile {
		t.Errorf("%d answered, %+v", n, rooms)
	}
}

func resolved(ns *Namespace, path string, why intent) (*place, error) {
	p := newPlace()
	who := callerOf(metadata.Caller{User: "bob"})
	err := ns.resolve(p, &who, 0, path[1:], why)
	return p, err
}
