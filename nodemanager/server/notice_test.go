package server

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A notice is a file that a container's program sees; it goes when orders name it no more, and stays when they say nothing of notices.
func TestANoticeIsAFile(t *testing.T) {
	s, c := told(t)
	is := func(want string) {
		t.Helper()
		s.work.Wait()
		b, err := os.ReadFile(c.noticeFile())
		if want == "" && !os.IsNotExist(err) || !strings.Contains(string(b), want) {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	if err := os.WriteFile(c.noticeFile(), []byte("of before a restart"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.heed(&rmpb.Notices{})
	is("")
	s.heed(&rmpb.Notices{Notices: []*rmpb.Notice{{ContainerId: "c", SinceMs: 1, DeadlineMs: 7, Reason: "others need it"}, {ContainerId: "another"}}})
	is(`{"since":1,"deadline":7,"reason":"others need it"}`)
	s.heed(nil)
	is(`"deadline":7`)
	if info, err := os.Stat(c.noticeFile()); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v %v", info, err)
	}
	s.heed(&rmpb.Notices{})
	is("")
}

// told is a container that runs, and its server.
func told(t *testing.T) (*Server, *container) {
	c := &container{id: "c", dir: t.TempDir(), record: &state.Record{Spec: nodemanager.Spec{ID: "c"}, State: nodemanager.Running}, log: slog.New(slog.DiscardHandler)}
	c.server = &Server{containers: map[nodemanager.ContainerID]*container{"c": c}, config: Config{Credentials: credentials}}
	return c.server, c
}

// The last notice counts, and who reads orders does not wait for a disk that hangs.
func TestANoticeWaitsForItsDiskAlone(t *testing.T) {
	s, c := told(t)
	pipe := c.noticeFile() + ".next.tmp" // who writes it waits until somebody reads
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	say := func(reason string) {
		s.heed(&rmpb.Notices{Notices: []*rmpb.Notice{{ContainerId: "c", Reason: reason}}})
		c.view() // as a report does
	}
	say("first")
	say("second")
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	say("third")
	s.work.Wait()
	if err := os.Remove(c.noticeFile()); err != nil { // the pipe has taken its place
		t.Fatal(err)
	}
	say("fourth")
	s.work.Wait()
	if text, err := os.ReadFile(c.noticeFile()); err != nil || !strings.Contains(string(text), "fourth") {
		t.Errorf("%q, %v", text, err)
	}
}

// A container that an earlier node manager began to prepare is told as it is prepared again, and when other authorities are trusted.
func TestAuthoritiesAreToldFromTwoSides(t *testing.T) {
	s, c := told(t)
	c.account = &account.Account{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if err := c.tellAuthorities(); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		var wg sync.WaitGroup
		for _, tell := range []func() error{c.tellAuthorities, s.TellAuthorities} {
			wg.Go(func() {
				if err := tell(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// Authorities that are told anew are for whoever could read those of before: an adopted container's user is not known here.
func TestAuthoritiesAreToldAgainToWhoeverHasThem(t *testing.T) {
	s, c := told(t)
	file := filepath.Join(c.dir, authorityFile)
	if err := s.TellAuthorities(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that has no use for them: %v", err)
	}
	if err := os.WriteFile(file, []byte("old"), 0o400); err != nil {
		t.Fatal(err)
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = 54321
		if err := os.Chown(file, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.TellAuthorities(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "CERTIFICATE") {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o400 || int(info.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("%v, %v", info, err)
	}
}
