package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// fakeLogTree is files by name, with when they were changed; their directories are there by that, as old as the newest below.
type fakeLogTree struct {
	files  map[string]metadata.Time
	denied string // cannot be removed
}

func (t *fakeLogTree) List(_ context.Context, dir string) ([]metadata.FileStatus, error) {
	found := map[string]metadata.FileStatus{}
	for name, at := range t.files {
		rest, ok := strings.CutPrefix(name, dir+"/")
		if !ok {
			continue
		}
		first, _, deeper := strings.Cut(rest, "/")
		e := metadata.FileStatus{Name: first, MTime: at}
		if deeper {
			e.Type, e.MTime = metadata.TypeDirectory, max(at, found[first].MTime)
		}
		found[first] = e
	}
	if len(found) == 0 {
		return nil, metadata.Errorf(metadata.ErrNotExist, "%s", dir)
	}
	return slices.Collect(maps.Values(found)), nil
}

func (t *fakeLogTree) Remove(_ context.Context, dir string) error {
	if dir == t.denied {
		return errors.New("not now")
	}
	maps.DeleteFunc(t.files, func(name string, _ metadata.Time) bool { return strings.HasPrefix(name, dir+"/") })
	return nil
}

func TestLogsAreRemovedWhenTheyAreOldAndNobodysAnyMore(t *testing.T) {
	tree := &fakeLogTree{files: map[string]metadata.Time{}}
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:45454", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	live := c.submit("ann", map[string]any{"argv": []string{"train"}})
	ended := c.submit("ann", map[string]any{"argv": []string{"train"}})
	c.await(ended, rm.StateRunning)
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+ended.String(), "ann", nil, nil); code != http.StatusAccepted {
		t.Fatal(code)
	}
	c.await(ended, rm.StateKilled)
	eventually(t, "the end of its containers", func() bool { return c.job(ended).Live == 0 })
	c.await(live, rm.StateRunning)

	now := time.Now()
	forgotten := rm.ApplicationID{Cluster: live.Cluster, Sequence: 7777}
	half := rm.ApplicationID{Cluster: live.Cluster, Sequence: 8888}
	stranger := rm.ApplicationID{Cluster: live.Cluster + 1, Sequence: 1}
	stuck := rm.ApplicationID{Cluster: live.Cluster, Sequence: 9999}
	put := func(user string, id rm.ApplicationID, age time.Duration) {
		for i := range 2 {
			tree.files[path.Join("/logs", user, id.String(), fmt.Sprintf("container_%d", i), "stdout")] = metadata.TimeOf(now.Add(-age))
		}
	}
	const old = 1000 * time.Hour
	put("ann", live, old)
	put("ann", ended, old)
	put("bob", forgotten, old)
	put("bob", half, old)
	tree.files[path.Join("/logs/bob", half.String(), "container_1", "stderr")] = metadata.TimeOf(now.Add(-time.Hour))
	put("bob", stranger, old)
	put("bob", stuck, old)
	tree.files["/logs/bob/notes/mine.txt"] = 1
	tree.files["/logs/a-file"] = 1
	tree.denied = path.Join("/logs/bob", stuck.String())
	kept := func() []string {
		dirs := map[string]bool{}
		for name := range tree.files {
			dirs[strings.Join(strings.SplitN(name, "/", 5)[:min(4, strings.Count(name, "/")+1)], "/")] = true
		}
		return slices.Sorted(maps.Keys(dirs))
	}
	want := func(list ...string) []string { slices.Sort(list); return list }
	of := func(user string, id rm.ApplicationID) string { return path.Join("/logs", user, id.String()) }

	sweeper := &Server{config: c.leader().config, state: c.leader().state} // which alone has the tree: a leader looks after a minute
	sweeper.config.LogTree, sweeper.config.LogRetention = tree, 24*time.Hour
	removed, err := sweeper.removeOldLogs(t.Context(), now)
	if removed != 1 || err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("%d removed, %v", removed, err)
	}
	if got := kept(); !slices.Equal(got, want("/logs/a-file", "/logs/bob/notes", of("ann", live), of("ann", ended), of("bob", half), of("bob", stranger), of("bob", stuck))) {
		t.Errorf("kept %q", got)
	}
	tree.denied = ""
	// A clock of ours that is far ahead alone removes nothing that is young by the file system's.
	if removed, err := sweeper.removeOldLogs(t.Context(), now.Add(1000*time.Hour)); removed != 1 || err != nil {
		t.Errorf("with a wrong clock: %d removed, %v, want the one that could not be removed before", removed, err)
	}
	tree.files["/logs/carl/notes/new.txt"] = metadata.TimeOf(now.Add(25 * time.Hour))
	removed, err = sweeper.removeOldLogs(t.Context(), now.Add(25*time.Hour)) // the ended one has ended that long ago
	if removed != 2 || err != nil {
		t.Errorf("%d removed, %v", removed, err)
	}
	if got := kept(); !slices.Equal(got, want("/logs/a-file", "/logs/bob/notes", "/logs/carl/notes", of("ann", live), of("bob", stranger))) {
		t.Errorf("kept %q", got)
	}
}
