package search

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// step carries out a drawn operation, which may be refused.
func (m *member) step(t testing.TB, r *rand.Rand) {
	t.Helper()
	c := []metadata.Caller{super, super, alice, bob}[r.IntN(4)]
	p := drawnPath(r)
	switch r.IntN(14) {
	case 0, 1:
		m.do(t, c, &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(t, p), Mode: []uint32{0o755, 0o700, 0o711, 0o744, 0o777}[r.IntN(5)], CreateParent: true}})
	case 2, 3, 4:
		m.file(t, c, p, int64(r.IntN(7)-1))
	case 5:
		if r.IntN(3) > 0 {
			m.file(t, c, p, int64(r.IntN(6)))
			break
		}
		m.do(t, c, &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(t, p), Recursive: true}})
	case 6, 7:
		m.do(t, c, &logpb.Command_Rename{Rename: &logpb.Rename{Source: target(t, p), Target: target(t, drawnPath(r)), Legacy: r.IntN(2) == 0, Overwrite: true}})
	case 8, 9:
		m.tag(t, c, p, []string{"team", "t", "tea"}[r.IntN(3)], tagValues[r.IntN(len(tagValues))])
	case 10:
		m.do(t, c, &logpb.Command_RemoveXattr{RemoveXattr: &logpb.RemoveXAttr{Target: target(t, p), Name: "team"}})
	case 11:
		if r.IntN(2) == 0 {
			m.do(t, super, &logpb.Command_SetOwner{SetOwner: &logpb.SetOwner{Target: target(t, p), Owner: []string{"alice", "bob"}[r.IntN(2)]}})
			break
		}
		m.do(t, super, &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: target(t, p), Mode: []uint32{0o755, 0o700, 0o711, 0o744, 0o777}[r.IntN(5)]}})
	case 12:
		m.do(t, super, &logpb.Command_SetAcl{SetAcl: &logpb.SetACL{
			Target: target(t, p), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "bob", Rights: uint32(r.IntN(8))}},
		}})
	case 13:
		switch r.IntN(3) {
		case 0:
			m.file(t, super, "/a/a", 4)
			m.file(t, super, "/a/b", 1)
			m.do(t, super, &logpb.Command_Concat{Concat: &logpb.Concat{Target: target(t, "/a/a"), Sources: []*logpb.Target{target(t, "/a/b")}}})
		case 1:
			m.do(t, super, &logpb.Command_Truncate{Truncate: &logpb.Truncate{Target: target(t, p), ClientName: "c", Length: 0}})
		case 2:
			m.do(t, super, &logpb.Command_ChangeSnapshots{ChangeSnapshots: &logpb.ChangeSnapshots{Target: target(t, "/a"), Change: logpb.ChangeSnapshots_ALLOW}})
			m.do(t, super, &logpb.Command_ChangeSnapshots{ChangeSnapshots: &logpb.ChangeSnapshots{Target: target(t, "/a"), Change: logpb.ChangeSnapshots_CREATE, Name: fmt.Sprint("s", r.Int())}})
		}
	}
}

// What the index answers is what a walk of the namespace finds, for every caller and whatever was done, with stops, kills and power cuts of the namenode, and
// where the index was made anew between.
func TestAnswersAreThoseOfAWalk(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			m := newMember(t)
			for range 300 {
				switch r.IntN(40) {
				case 0:
					if err := m.checkpoint(); err != nil {
						t.Fatal(err)
					}
				case 1, 2, 3:
					m.catchUp(t)
					m.compare(t, r, 10, "caught up")
				case 4:
					m.catchUp(t)
					m.flush(t)
				case 5:
					m.x.Rebuild()
				case 6:
					m.restart(t, r)
				case 7:
					m.x.sweep.active, m.x.sweep.from = true, ""
					for m.x.sweep.active && !m.x.wanted {
						m.catchUp(t)
						if _, err := m.x.sweepSome(); err != nil {
							t.Fatal(err)
						}
						m.flush(t)
					}
				default:
					m.step(t, r)
				}
			}
			m.catchUp(t)
			m.compare(t, r, 300, "in the end")
			m.checkWhole(t)
		})
	}
}

// restart ends the process, by a stop, a kill or a power cut, and begins another one.
func (m *member) restart(t testing.TB, r *rand.Rand) {
	t.Helper()
	switch r.IntN(3) {
	case 0:
		m.x.finish()
		m.feed.Close()
		m.index = m.index.(*mem.Store).Crash(nil)
	case 1:
		m.index = m.index.(*mem.Store).Crash(nil)
	case 2:
		m.index = m.index.(*mem.Store).Crash(r)
	}
	copied := filepath.Join(t.TempDir(), "feed")
	if err := os.CopyFS(copied, os.DirFS(m.dir)); err != nil {
		t.Fatal(err)
	}
	m.feed.Close()
	m.dir, m.store = copied, m.store.(*mem.Store).Crash(nil)
	m.open(t)
}

// checkWhole holds the index against itself: every key belongs to what a record says, all of them are there, and they are counted.
func (m *member) checkWhole(t testing.TB) {
	t.Helper()
	var want, got []string
	entries := int64(0)
	err := m.content(func(key, value []byte) {
		if key[0] == classMarker {
			return
		}
		got = append(got, string(key))
		if key[0] == classINode {
			n, err := decode(value)
			if err != nil {
				t.Fatal(err)
			}
			entries++
			want = append(want, string(key))
			n.each(idOf(key), func(key string) { want = append(want, key) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || entries != m.x.entries {
		t.Fatalf("%d entries, counted as %d\n%q\nwant\n%q", entries, m.x.entries, got, want)
	}
}
