package roles

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/internal/config"
)

// Resource managers and node managers hear of servers by the file as by the cluster, and clients that are made from then on use the new ones.
func TestListsOfServersAreFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hops.yaml")
	synctest.Test(t, func(t *testing.T) {
		b := &Builder{Path: path, Logger: slog.New(slog.DiscardHandler), membership: &membership{}}
		var got config.Servers
		parts := b.followLists(func(now config.Servers) error {
			got = now
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- parts[0].Run(ctx) }()
		for _, at := range []string{"127.0.0.1:1", "127.0.0.1:11"} {
			text := `cluster: {name: lab, secret_file: /s}
namenodes: [{id: a, ipc: "` + at + `", http: "127.0.0.1:2", grpc: "127.0.0.1:3", raft: "127.0.0.1:4"}]
resourcemanagers: [{id: r, http: "127.0.0.1:5", grpc: "127.0.0.1:6", raft: "127.0.0.1:7"}]
`
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * followEvery)
			synctest.Wait()
			if len(got.Namenodes) != 1 || got.Namenodes[0].IPC != at || len(got.ResourceManagers) != 1 || b.ipc()[0] != at {
				t.Errorf("%+v, clients at %v, want %s", got, b.ipc(), at)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// A changed list counts when two looks have seen the same file; a file with mistakes, or half of one, changes nothing.
func TestListOfNamenodesIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hops.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	member := func(id string) string {
		return `  - {id: ` + id + `, ipc: "127.0.0.1:1", http: "127.0.0.1:2", grpc: "127.0.0.1:3", raft: "127.0.0.1:4"}` + "\n"
	}
	head := "cluster: {name: lab, secret_file: /s}\nnamenodes:\n"
	synctest.Test(t, func(t *testing.T) {
		var got []string
		b := &Builder{Path: path, Logger: slog.New(slog.DiscardHandler)}
		parts := b.follow(func(f *config.File) error {
			ids := ""
			for _, n := range f.Namenodes {
				ids += n.ID
			}
			got = append(got, ids)
			return nil
		})
		write(head + member("a"))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- parts[0].Run(ctx) }()
		after := func(d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if len(got) != len(want) || len(got) > 0 && got[len(got)-1] != want[len(want)-1] {
				t.Fatalf("lists %q, want %q", got, want)
			}
		}
		after(followEvery*3, "a")
		write(head + member("a") + member("b"))
		after(followEvery*3, "a", "ab")
		write(head + "  - {id: a, ipc")
		after(followEvery*3, "a", "ab")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		after(followEvery*3, "a", "ab")
		write(head + member("b"))
		after(followEvery*3, "a", "ab", "b")
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	if parts := (&Builder{}).follow(nil); len(parts) != 0 {
		t.Errorf("hops dev has no file to follow: %v", parts)
	}
}
