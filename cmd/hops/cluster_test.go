package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/security"
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

// Servers at an address of the machine that is not the one which connections come from take TLS alone, as from elsewhere.
func TestAMachineKnowsItsServersAtAnyAddress(t *testing.T) {
	before := toServers.Transport
	t.Cleanup(func() { toServers.Transport = before })
	a, err := authority.New("CID-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Self("m1", []authority.Role{authority.Datanode}, []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := func(netip.Addr, netip.Addr) bool { return false }
	m := &machineSetup{dir: t.TempDir(), here: elsewhere}
	if err := i.Create(m.file("identity.pem")); err != nil {
		t.Fatal(err)
	}
	member, err := i.Member(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	door := security.NewDoor(security.Config{Member: member, Here: elsewhere})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- door.ServeHTTP(ctx, l, security.HTTP{Doorway: security.Doorway{Name: "http"}, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if err := m.know(); err != nil {
		t.Fatal(err)
	}
	for who, c := range map[string]struct {
		client *http.Client
		want   int
	}{"the machine": {m.probe, 200}, "its commands": {toServers, 200}, "in plain": {http.DefaultClient, 403}} {
		answer, err := c.client.Get("http://" + l.Addr().String() + "/readyz")
		if err != nil {
			t.Errorf("%s: %v", who, err)
			continue
		}
		if answer.Body.Close(); answer.StatusCode != c.want {
			t.Errorf("%s: %s", who, answer.Status)
		}
	}
}

// A machine whose name stands for loopback, as many distributions write it into /etc/hosts, is told before a token is used.
func TestAMachineWhoseNameIsLoopback(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{host, "ip6-localhost", "localhost.localdomain"} {
		found, err := net.LookupHost(name)
		if err != nil || slices.ContainsFunc(found, func(a string) bool { return !net.ParseIP(a).IsLoopback() }) {
			continue
		}
		m := &machineSetup{dir: filepath.Join(t.TempDir(), "etc"), address: name, roles: []authority.Role{authority.Datanode}}
		if err := m.fresh(); err == nil || !strings.Contains(err.Error(), "at which only this machine reaches itself: correct /etc/hosts") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(m.dir); err == nil {
			t.Error("a directory is left")
		}
		return
	}
	t.Skip("no name stands for loopback here")
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
