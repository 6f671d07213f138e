package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func TestProtectedDirectoriesAreNotRemovedByAccident(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) {
		c.Properties = config.DefaultProperties()
		if err := c.Properties.Set("fs.protected.directories", "/logs, /data/keep"); err != nil {
			t.Fatal(err)
		}
	})
	fs, ctx := c.root(), t.Context()
	for _, d := range []string{"/logs/app", "/data/keep/x", "/data/other", "/logs2/y"} {
		if err := fs.Mkdirs(ctx, d, 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	logs, err := fs.Stat(ctx, "/logs")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/logs": "directory /logs", "/data/keep": "directory /data/keep", "/data": "subdirectory /data/keep",
		fmt.Sprintf("/.reserved/.inodes/%d", logs.ID): "subdirectory /logs",
	} {
		want = "Cannot delete/rename non-empty protected " + want
		if _, err := fs.Delete(ctx, path, true); !errors.Is(err, metadata.ErrPermission) || !strings.Contains(err.Error(), want) {
			t.Errorf("delete %s: %v, want %q", path, err, want)
		}
		if _, err := fs.Rename(ctx, path, "/elsewhere"); !errors.Is(err, metadata.ErrPermission) || !strings.Contains(err.Error(), want) {
			t.Errorf("legacy rename %s: %v, want %q", path, err, want)
		}
		if err := fs.RenameStrict(ctx, path, "/elsewhere"); !errors.Is(err, metadata.ErrPermission) || !strings.Contains(err.Error(), want) {
			t.Errorf("rename %s: %v, want %q", path, err, want)
		}
	}
	// Repeated and trailing slashes mean nothing, whatever a client makes of a path.
	m := c.leader()
	for _, path := range []string{"//logs", "/logs//", "/data//keep", "//data/"} {
		got := make(chan error, 3)
		m.Delete(m.caller(), namenode.Retry{}, path, true, func(_ bool, err error) { got <- err })
		m.Rename(m.caller(), namenode.Retry{}, path, "/elsewhere", func(_ bool, err error) { got <- err })
		m.RenameTo(m.caller(), namenode.Retry{}, path, "/elsewhere", false, false, func(err error) { got <- err })
		for range 3 {
			if err := <-got; !errors.Is(err, metadata.ErrPermission) {
				t.Fatalf("%s was removed: %v", path, err)
			}
		}
	}
	for _, path := range []string{"/logs/app", "/logs", "/data/other", "/logs2"} { // what is in it, and empty ones
		if ok, err := fs.Delete(ctx, path, true); !ok || err != nil {
			t.Errorf("delete %s: %v, %v", path, ok, err)
		}
	}
}
