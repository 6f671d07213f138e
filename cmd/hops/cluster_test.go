package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/internal/config"
)

func TestRootOperatesAsTheServersUser(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HADOOP_USER_NAME", "")
	dir := t.TempDir()
	check := func(name, dir, want string) {
		t.Helper()
		if got, err := operator(name, dir); err != nil || got != want {
			t.Errorf("operator(%q, %q) = %q, %v; want %q", name, dir, got, err, want)
		}
	}
	check("", dir, me.Username)
	check("ann", dir, "ann")
	check("", filepath.Join(dir, "missing"), me.Username)
	t.Run("root", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("not root: the owner of a directory cannot be changed")
		}
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Skip(err)
		}
		uid, err := strconv.Atoi(nobody.Uid)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, -1); err != nil {
			t.Fatal(err)
		}
		check("", dir, "nobody")
		check("ann", dir, "ann")
	})
}

func TestAMachineDoesNotGuessItsAddress(t *testing.T) {
	if got, err := addressTowards("[fe80::1]:9"); err == nil { // on which network?
		t.Errorf("%q on the way to nowhere", got)
	}
	if got, err := addressTowards("127.0.0.1:9"); err != nil || got != "127.0.0.1" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDirectoriesAboveContainersAreReachable(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := t.TempDir()
	if err := makeReachable(filepath.Join(root, "a", "b")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	private := filepath.Join(root, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := makeReachable(private); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("what is there has changed: %v, %v", info.Mode(), err)
	}
}

// Who may not speak to the leader is told why, not that nobody leads.
func TestWhyNoLeaderIsKnown(t *testing.T) {
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"nn1","state":"standby"}`))
	}))
	defer standby.Close()
	h := askNamenode(context.Background(), config.NamenodeMember{ID: "nn1", HTTP: strings.TrimPrefix(standby.URL, "http://")})
	if h.err != nil {
		t.Fatal(h.err)
	}
	gone := askNamenode(context.Background(), config.NamenodeMember{ID: "nn2", HTTP: "127.0.0.1:1"})
	if err := notLed([]namenodeHealth{h, gone}); !strings.Contains(err.Error(), "nn2 does not") {
		t.Error(err)
	}
	if err := notLed([]namenodeHealth{h}); !strings.Contains(err.Error(), "hops namenode list") {
		t.Error(err)
	}
}
