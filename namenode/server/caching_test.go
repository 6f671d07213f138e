package server

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// caches reports whether the datanode keeps a block in memory.
func (d *datanode) caches(b metadata.Block) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cached[int64(b.ID)] != nil
}

// cachedBy waits until exactly these datanodes keep a block in memory, and the namenode knows.
func (m *member) cachedBy(t *testing.T, b metadata.Block, all []*datanode, n int) (by []*datanode) {
	t.Helper()
	eventually(t, "datanodes keep the block in memory as they should", func() bool {
		by = slices.DeleteFunc(slices.Clone(all), func(d *datanode) bool { return !d.caches(b) })
		known := 0
		for _, r := range m.Datanodes() {
			if r.Alive {
				known += r.Cached
			}
		}
		return len(by) == n && known == n
	})
	return by
}

// The block of a file that a directive wants is ordered into the memory of a datanode, in the answer to a beat; what the datanode says of it is counted;
// when that datanode dies another one gets the order; and when the directive is removed it is told to let go.
func TestCacheDirectivesReachDatanodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	root, ctx := c.root(), t.Context()
	var all []*datanode
	for _, name := range []string{"dn1", "dn2", "dn3"} {
		d := c.datanode(name)
		d.memory.Store(1 << 20)
		all = append(all, d)
	}
	b := m.oneBlock(t, "/hot/f", 2, all[0], all[1])
	pool, path := "p", "/hot"
	if err := root.AddCachePool(ctx, namenode.CachePoolChange{Name: pool}); metadata.KindOf(err) != metadata.ErrUnsupported {
		t.Fatal("before the cluster is raised:", err)
	}
	check(t, m.group.Raise(release.Caching))
	check(t, root.AddCachePool(ctx, namenode.CachePoolChange{Name: pool}))
	id, err := root.AddCacheDirective(ctx, namenode.CacheDirectiveChange{Path: &path, Pool: &pool}, false)
	check(t, err)
	first := m.cachedBy(t, b, all[:2], 1)[0]
	figures := func() (f namenode.CacheFigures) {
		t.Helper()
		found, err := root.CacheDirectives(ctx, namenode.CacheFilter{ID: &id})
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0].CacheFigures
	}
	whole := namenode.CacheFigures{BytesNeeded: 100, BytesCached: 100, FilesNeeded: 1, FilesCached: 1}
	eventually(t, "the directive's figures know of it", func() bool { return figures() == whole })
	l := m.locate(t, "/hot/f").Blocks[0].Locations
	if len(l) != 2 || !slices.ContainsFunc(l, func(l namenode.Location) bool { return l.Cached && string(l.Node.ID) == first.uuid }) {
		t.Errorf("%+v", l)
	}

	first.die()
	second := all[0]
	if first == second {
		second = all[1]
	}
	eventually(t, "the order goes to the other datanode with a replica", func() bool { return second.caches(b) })
	m.cachedBy(t, b, []*datanode{second, all[2]}, 1)
	eventually(t, "the figures know of that", func() bool { return figures() == whole })

	check(t, root.RemoveCacheDirective(ctx, id))
	m.cachedBy(t, b, []*datanode{second, all[2]}, 0)
	if all[2].caches(b) {
		t.Error("a datanode without a replica was asked")
	}
}

// A datanode that says that it has no room is not asked; when it has, the order comes.
func TestCacheOrdersWaitForRoom(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	root, ctx := c.root(), t.Context()
	d := c.datanode("dn1")
	b := m.oneBlock(t, "/hot/f", 1, d)
	check(t, m.group.Raise(release.Caching))
	pool, path := "p", "/hot/f"
	check(t, root.AddCachePool(ctx, namenode.CachePoolChange{Name: pool}))
	_, err := root.AddCacheDirective(ctx, namenode.CacheDirectiveChange{Path: &path, Pool: &pool}, false)
	check(t, err)
	eventually(t, "the directive is known to need it", func() bool {
		found, err := root.CacheDirectives(ctx, namenode.CacheFilter{})
		return err == nil && len(found) == 1 && found[0].BytesNeeded == 100
	})
	if d.caches(b) {
		t.Error("a datanode without memory was asked")
	}
	// Nothing else happens: that there is memory has to be reason enough.
	quiet, index := time.Now(), m.ns.AppliedIndex()
	eventually(t, "the log is quiet for longer than the walks rest", func() bool {
		if i := m.ns.AppliedIndex(); i != index {
			quiet, index = time.Now(), i
		}
		return time.Since(quiet) > 3*cacheScanLeast
	})
	d.memory.Store(1 << 20)
	m.cachedBy(t, b, []*datanode{d}, 1)
}

// Who waits for memory that no datanode has is told so.
func TestPinSaysThatNobodyHasMemory(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	check(t, m.group.Raise(release.Caching))
	m.oneBlock(t, "/hot/f", 1, c.datanode("dn1"))
	check(t, c.root().AddCachePool(t.Context(), namenode.CachePoolChange{Name: "default"}))
	ctx, interrupt := context.WithTimeout(t.Context(), limit)
	defer interrupt()
	for said := false; !said; { // it does not wait where the namenode has not looked yet
		if ctx.Err() != nil {
			t.Fatal("it waits without a word of why")
		}
		told, stderr := io.Pipe()
		go func() {
			s := &shell.Shell{Stdout: io.Discard, Stderr: stderr, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
				return c.root(), "hdfs://here", nil
			}}
			s.Run(ctx, []string{"-pin", "-w", "/hot/f"})
			stderr.Close()
		}()
		for lines := bufio.NewScanner(told); lines.Scan(); {
			if strings.Contains(lines.Text(), "no datanode may keep anything in memory") {
				said = true
				interrupt()
			}
		}
	}
}

// hops fs -pin keeps files in memory and waits for it, -unpin lets them go.
func TestPinAndUnpinByTheShell(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	check(t, m.group.Raise(release.Caching))
	d := c.datanode("dn1")
	d.memory.Store(1 << 20)
	b := m.oneBlock(t, "/hot/f", 1, d)
	run := func(args ...string) (status int, out, errs string) {
		var stdout, stderr bytes.Buffer
		s := &shell.Shell{Stdout: &stdout, Stderr: &stderr, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
			return c.root(), "hdfs://here", nil
		}}
		return s.Run(t.Context(), args), stdout.String(), stderr.String()
	}
	if status, out, errs := run("-pin", "/hot/f"); status != shell.ExitError || !strings.Contains(errs, "default") {
		t.Error("without a pool:", status, out, errs)
	}
	check(t, c.root().AddCachePool(t.Context(), namenode.CachePoolChange{Name: "default"}))
	const pinned = "Pinned /hot/f: cache directive 1 in pool default\n"
	if status, out, errs := run("-pin", "-w", "/hot/f"); status != shell.ExitOK || !strings.HasPrefix(out, pinned) || !strings.HasSuffix(out, " done\n") {
		t.Fatal(status, out, errs)
	}
	if !d.caches(b) {
		t.Error("it is not in memory")
	}
	if status, out, errs := run("-pin", "/hot/f"); status != shell.ExitOK || out != pinned {
		t.Error("twice:", status, out, errs)
	}
	if status, out, errs := run("-unpin", "/hot/f"); status != shell.ExitOK || out != "Unpinned /hot/f: cache directive 1\n" {
		t.Error(status, out, errs)
	}
	m.cachedBy(t, b, []*datanode{d}, 0)
	if status, out, errs := run("-unpin", "/hot/f"); status != shell.ExitError || !strings.Contains(errs, "there is no cache directive for this path") {
		t.Error("twice:", status, out, errs)
	}

	// A directive outlives what was at its path, and is ended by it.
	check(t, c.root().WriteFile(t.Context(), "/hot/gone", nil, false))
	if status, out, errs := run("-pin", "/hot/gone"); status != shell.ExitOK {
		t.Fatal(status, out, errs)
	}
	_, err := c.root().Delete(t.Context(), "/hot/gone", false)
	check(t, err)
	if status, out, errs := run("-unpin", "/hot/gone"); status != shell.ExitOK || out != "Unpinned /hot/gone: cache directive 2\n" {
		t.Error("after the file:", status, out, errs)
	}

	// Nobody has memory any more. Who waits is told when the directive ends, by hand or with its time.
	d.memory.Store(0)
	for _, x := range []struct {
		says string
		end  func(id int64) error
	}{
		{"Did not find requested id", func(id int64) error { return c.root().RemoveCacheDirective(t.Context(), id) }},
		{"has expired", func(id int64) error {
			return c.root().ModifyCacheDirective(t.Context(), id, namenode.CacheDirectiveChange{Expires: &metadata.Expiration{Millis: 1, Relative: true}}, false)
		}},
	} {
		type ended struct {
			status    int
			out, errs string
		}
		waited := make(chan ended, 1)
		go func() {
			status, out, errs := run("-pin", "-w", "/hot/f")
			waited <- ended{status, out, errs}
		}()
		eventually(t, "the directive is there", func() bool {
			found, err := c.root().CacheDirectives(t.Context(), namenode.CacheFilter{})
			return err == nil && len(found) == 1 && found[0].BytesNeeded == 100 && x.end(found[0].ID) == nil
		})
		select {
		case e := <-waited:
			if e.status != shell.ExitError || !strings.Contains(e.errs, x.says) {
				t.Errorf("%s: %+v", x.says, e)
			}
		case <-time.After(limit):
			t.Fatalf("it waits for a directive that %s", x.says)
		}
	}
}
