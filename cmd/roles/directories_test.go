package roles_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
)

func TestSystemDirectoriesComeBack(t *testing.T) {
	k := cluster.Start(t, cluster.Config{Properties: map[string]string{"fs.protected.directories": ""}}) // nobody makes them meanwhile
	fs, err := dfs.New(roles.DirectoriesConfig(k.File(), slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	ctx := t.Context()
	if err := roles.MakeDirectories(ctx, fs, config.SystemDirectories); err != nil {
		t.Fatal(err)
	}
	if err := fs.SetPermission(ctx, "/tmp", 0o700); err != nil { // an administrator's choice
		t.Fatal(err)
	}
	for _, dir := range []string{"/logs", "/Projects"} {
		if ok, err := fs.Delete(ctx, dir, true); !ok || err != nil {
			t.Fatalf("remove %s, which is empty: %v %v", dir, ok, err)
		}
	}
	if err := roles.MakeDirectories(ctx, fs, []string{"/logs", "/tmp"}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]metadata.Mode{"/logs": 0o1777, "/tmp": 0o700, "/user": 0o755, fs.Home(): 0o755} {
		if st, err := fs.Stat(ctx, dir); err != nil || st.Mode != want {
			t.Errorf("%s: %v, %v, want mode %o", dir, st, err, want)
		}
	}
	if _, err := fs.Stat(ctx, "/Projects"); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("one that is not protected came back: %v", err)
	}
}
