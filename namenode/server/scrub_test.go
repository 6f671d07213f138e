package server

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// scrubFiles are those of a test, of 2 to 18 KiB.
const scrubFiles = 300

func scrubBytes(i int) []byte { return smallBytes(2000+i*53, byte(i)) }

// storeMany makes the first of the files, and returns their bodies, which are in segments of each namenode then.
func (c *cluster) storeMany(t *testing.T, files int) (blocks []metadata.Block) {
	t.Helper()
	answers := make(chan error, files)
	lead := c.leader()
	for i := range files {
		lead.StoreFile(lead.caller(), storing(fmt.Sprintf("/d/f%d", i)), scrubBytes(i), func(_ *metadata.FileStatus, err error) { answers <- err })
	}
	for range files {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	for i := range files {
		blocks = append(blocks, lead.locate(t, fmt.Sprintf("/d/f%d", i)).Blocks[0].Block)
	}
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" has all", func() bool { return m.ns.AppliedIndex() >= lead.ns.AppliedIndex() })
		if err := m.bodies.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	return blocks
}

// segmentHeader is how long the header of a segment is, which nobody reads while the store is open.
const segmentHeader = 48

// segments are the files with the bodies of a namenode.
func (m *member) segments(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.config.Dir, "smallfiles", "*.bodies"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	return paths
}

// rot flips bits in the segments of a namenode, each in another place.
func (m *member) rot(t *testing.T, bits int) {
	t.Helper()
	paths := m.segments(t)
	r := rand.New(rand.NewPCG(7, 7))
	hit := map[string]bool{}
	for len(hit) < bits {
		path := paths[r.IntN(len(paths))]
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		at, b := r.Int64N(info.Size()), []byte{0}
		if at >= segmentHeader && !hit[fmt.Sprint(path, at)] {
			hit[fmt.Sprint(path, at)] = true
			if _, err = f.ReadAt(b, at); err == nil {
				b[0] ^= 1 << r.IntN(8)
				_, err = f.WriteAt(b, at)
			}
		}
		if f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// scrubbed waits for a pass that begins from here on.
func (m *member) scrubbed(t *testing.T) {
	t.Helper()
	before := m.scrub.passes.Load()
	eventually(t, "everything is scrubbed", func() bool { return m.scrub.passes.Load() >= before+2 })
}

// A thousand bits turn in the segments of a namenode. Nobody reads; they are found, and every body that they have cost comes from another namenode.
func TestRotIsFoundAndHealed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(conf *Config) { conf.ScrubEvery, conf.ScrubRate = 50*time.Millisecond, 1<<40 })
	c.raised()
	blocks := c.storeMany(t, scrubFiles)
	c.known()
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" knows the others", func() bool {
			servers, err := m.roster.Servers()
			return err == nil && len(servers.Namenodes) == 3
		})
	}
	sick := c.nodes[0]
	sick.rot(t, 1000)
	sick.scrubbed(t)
	// What no other namenode gave at once is found again by the next pass: more may be found than come.
	eventually(t, "damage is healed, and counted", func() bool {
		return len(sick.bodies.Damaged(1)) == 0 && sick.mended.Load() >= scrubFiles/2 && sick.scrub.lost.Load() == 0
	})
	found := sick.scrub.damaged.Load()
	for i, b := range blocks {
		if data, err := sick.bodies.Get(b.ID); err != nil || !bytes.Equal(data, scrubBytes(i)) {
			t.Fatal(i, err)
		}
	}
	if found < scrubFiles/2 {
		t.Errorf("%d were found damaged, %d came from others", found, sick.mended.Load())
	}
	t.Logf("%d of %d bodies were damaged", found, scrubFiles)
}

// A namenode that does not answer may have what the others have lost: fsck deletes nothing for that, and it is looked for again soon.
func TestBodiesThatOnlyAnAbsentNamenodeHas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.raised()
	const files = 30 // for each of which fsck makes connections of its own, again and again
	c.storeMany(t, files)
	c.known()
	eventually(t, "the others are known", func() bool {
		servers, err := lead.roster.Servers()
		return err == nil && len(servers.Namenodes) == 3
	})
	at := slices.Index(c.nodes, lead)
	absent := (at + 1) % 3
	c.nodes[absent].stop()
	lead.rot(t, 1000)
	c.nodes[(at+2)%3].rot(t, 1000)
	for pass := lead.bodies.NewPass(time.Now()); !pass.Done; {
		if _, err := lead.bodies.Scrub(t.Context(), &pass, func(int64) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	b := &scrubbing{Server: lead.Server}
	if b.mend(t.Context()); len(b.lost) == 0 || time.Until(b.mendAt) > scrubRest {
		t.Errorf("%d bodies are lost, and looked for again in %v", len(b.lost), time.Until(b.mendAt))
	}
	eventually(t, "as many files are kept as bodies are lost", func() bool { // once the one that is there has had time to answer for all
		b.mend(t.Context())
		status, text := lead.fsck(t, lead.config.Door.Daemon(), "path", "/", "delete", "1")
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		return len(b.lost) > 0 && strings.Count(text, errUnanswered.Error()) == len(b.lost)
	})
	if _, text := lead.fsck(t, lead.config.Door.Daemon(), "path", "/"); !strings.Contains(text, fmt.Sprintf(" Total files:\t%d\n", files)) {
		t.Errorf("not all files are there:\n%s", text)
	}
	c.start(absent)
	c.await(absent)
	c.known()
	eventually(t, "all is healed", func() bool {
		b.mend(t.Context())
		return len(lead.bodies.Damaged(1)) == 0 && len(b.lost) == 0
	})
}

// A namenode alone: what is damaged is named, not healed, and never served.
func TestRotThatNobodyCanHeal(t *testing.T) {
	c := newCluster(t, 1, func(conf *Config) { conf.ScrubEvery, conf.ScrubRate = 50*time.Millisecond, 1<<40 })
	m := c.raised()
	blocks := c.storeMany(t, scrubFiles)
	m.rot(t, 1000)
	m.scrubbed(t)
	eventually(t, "what is lost is known", func() bool {
		n := m.scrub.lost.Load()
		return n > scrubFiles/2 && n == int64(len(m.bodies.Damaged(scrubFiles)))
	})
	m.scrubbed(t)
	if known := int64(len(m.bodies.Damaged(scrubFiles))); m.scrub.damaged.Load() != known {
		t.Errorf("%d bodies are damaged, %d were counted in several passes", known, m.scrub.damaged.Load())
	}
	damaged := map[int]bool{}
	for i, b := range blocks {
		path := fmt.Sprintf("/d/f%d", i)
		f, err := m.whole(t, path)
		switch {
		case err == nil && (!f.Whole || !bytes.Equal(f.Data, scrubBytes(i))):
			t.Fatal("a wrong byte of ", path)
		case err == nil:
			continue
		case metadata.KindOf(err) != metadata.ErrCorrupt:
			t.Fatal(path, err)
		}
		if damaged[i] = true; m.bodies.Has(b.ID) {
			t.Error(path, "is said to be here")
		}
		if _, err := m.Body(t.Context(), b.ID, b.Generation); metadata.KindOf(err) != metadata.ErrCorrupt {
			t.Error(path, err)
		}
	}
	if n := m.scrub.lost.Load(); n != int64(len(damaged)) {
		t.Errorf("%d bodies are said to be lost, %d cannot be read", n, len(damaged))
	}
	if w := m.Server.report().Warnings; !strings.Contains(fmt.Sprint(w), fmt.Sprintf("%d small files are damaged here", len(damaged))) {
		t.Error(w)
	}
	_, text := m.fsck(t, m.config.Door.Daemon(), "path", "/")
	for i := range blocks {
		if named := strings.Contains(text, fmt.Sprintf("/d/f%d:", i)); named != damaged[i] {
			t.Errorf("/d/f%d is damaged: %t; fsck says so: %t", i, damaged[i], named)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// A namenode alone, whose disk could not read a body for a moment: it is sound again as soon as it is looked at, though nobody reads it and no other namenode gives it.
func TestWhatCanBeReadAgainIsNotLost(t *testing.T) {
	t.Parallel()
	m := newCluster(t, 1, nil).raised()
	data := noise(5000)
	if _, err := m.store(t, storing("/x"), data); err != nil {
		t.Fatal(err)
	}
	block := m.locate(t, "/x").Blocks[0].Block
	must(t, m.bodies.Sync())
	was := map[string][]byte{}
	for _, path := range m.segments(t) {
		content, err := os.ReadFile(path)
		must(t, err)
		was[path] = content
	}
	m.damage(t, data)
	m.finds(t, block)
	b := &scrubbing{Server: m.Server, lost: map[metadata.BlockID]struct{}{}, bad: map[metadata.BlockID]struct{}{}}
	b.mend(t.Context())
	if len(b.lost) != 1 || m.bodies.Has(block.ID) {
		t.Fatalf("%d are lost: this shows nothing", len(b.lost))
	}
	for path, content := range was {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt(content, 0)
		must(t, err)
		must(t, f.Close())
	}
	r, err := m.ns.FindBody(block.ID, 0)
	must(t, err)
	b.reading = make(chan struct{}) // the disk is silent
	if b.readAgain(t.Context(), r) {
		t.Error("another read was begun while the disk has not answered the last one")
	}
	close(b.reading)
	b.mend(t.Context())
	if len(b.lost) != 0 || !m.bodies.Has(block.ID) || m.mended.Load() != 0 {
		t.Errorf("%d are lost", len(b.lost))
	}
	must(t, m.bodies.Sync())
}
