package server

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// A command whose path led elsewhere when it was applied is carried out by its path, and its caller hears nothing of that.
func TestWhatWasResolvedTooEarlyIsDoneByItsPath(t *testing.T) {
	m := newCluster(t, 1, nil).nodes[0]
	if err := m.group.Raise(release.Resolved); err != nil {
		t.Fatal(err)
	}
	caller := m.caller()
	mkdirs := func(path string, parents bool) <-chan error {
		done := make(chan error, 1)
		m.Mkdirs(caller, namenode.MkdirsRequest{Path: path, Mode: 0o755, Parents: parents}, func(err error) { done <- err })
		return done
	}
	n := 0
	eventually(t, "a command is stale", func() bool {
		n++
		dir := fmt.Sprintf("/a%d", n)
		if err := <-mkdirs(dir+"/b/c", true); err != nil {
			t.Fatal(err)
		}
		renamed := make(chan error, 1)
		m.Rename(caller, namenode.Retry{}, dir, dir+"x", func(ok bool, err error) {
			if err == nil && !ok {
				err = errors.New("not renamed")
			}
			renamed <- err
		})
		was, is := mkdirs(dir+"/b/c/d", false), mkdirs(dir+"x/b/c/d", false)
		if err := <-renamed; err != nil {
			t.Fatal(err)
		}
		if err := <-was; metadata.KindOf(err) != metadata.ErrNotExist || err.Error() != "Parent directory doesn't exist: "+dir+"/b/c" {
			t.Fatal(err)
		}
		if err := <-is; err != nil {
			t.Fatal(err)
		}
		if n == 1 { // the first one is stale in any case
			m.paths.Store(0)
		}
		return m.paths.Load() > 0
	})
}
