package server

import (
	"os"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A notice is a file that a container's program sees; it goes when orders name it no more, and stays when they say nothing of notices.
func TestANoticeIsAFile(t *testing.T) {
	c := &container{id: "c", dir: t.TempDir(), record: &state.Record{Spec: nodemanager.Spec{ID: "c"}, State: nodemanager.Running}}
	s := &Server{containers: map[nodemanager.ContainerID]*container{"c": c}}
	is := func(want string) {
		t.Helper()
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
