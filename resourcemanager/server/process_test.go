package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata/raftstore"
)

// memberVariable of the environment makes a process of this test binary a resource manager, one that can be killed.
const memberVariable = "HOPS_TEST_MEMBER"

// memberConfig is what the process needs of the test cluster.
type memberConfig struct {
	Authority []byte
	Secret    string // file
	Index     int
	Peers     []Peer
	Raft      []raftstore.Member
	Dirs      []string
	Timers    raftstore.Timers
}

// process starts a member, which must not run, in a process of its own. It ends with the test, or with Kill.
func (c *testCluster) process(i int, timers raftstore.Timers) *exec.Cmd {
	c.t.Helper()
	text, err := c.authority.Marshal()
	if err != nil {
		c.t.Fatal(err)
	}
	config := memberConfig{
		Authority: text, Secret: filepath.Join(c.t.TempDir(), "secret"), Index: i, Peers: c.peers, Raft: c.raft, Dirs: c.dirs, Timers: timers,
	}
	if err := security.StoreSecret(config.Secret, c.credentials.Reveal()); err != nil {
		c.t.Fatal(err)
	}
	b, err := json.Marshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), memberVariable+"="+string(b))
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		in.Close()
		command.Process.Kill()
		command.Wait()
	})
	return command
}

// memberProcess is all that the other process does.
func memberProcess(text string) int {
	t := processTB{}
	var config memberConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	a, err := authority.Parse(config.Authority)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := a.Self("test", authority.Roles, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := identity.Member(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	own.Raise(release.Level)
	secret, err := security.LoadSecret(config.Secret)
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{
		t: t, credentials: security.Credentials{Secret: secret, Member: own}, authority: a, door: security.NewDoor(security.Config{}), lease: time.Minute,
		tune:  func(c *Config) { c.Timers = config.Timers },
		peers: config.Peers, raft: config.Raft, dirs: config.Dirs, live: make([]*member, len(config.Peers)),
	}
	c.start(config.Index)
	io.Copy(io.Discard, os.Stdin) // until the test ends
	c.kill(config.Index)
	return 0
}

// processTB is what the harness needs of a test, in a process without one.
type processTB struct{ testing.TB }

func (processTB) Helper()                   {}
func (processTB) Output() io.Writer         { return os.Stderr }
func (processTB) Errorf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (processTB) Context() context.Context  { return context.Background() }
func (processTB) Fatal(a ...any) {
	fmt.Fprintln(os.Stderr, a...)
	os.Exit(1)
}
func (t processTB) Fatalf(f string, a ...any) { t.Fatal(fmt.Sprintf(f, a...)) }
