package server

import (
	"strings"
	"testing"
	"time"

	hdfspb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestOneBalancerAtATime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.datanode("dn-1")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	ask := func(user, session string, threshold float64, stop bool, include ...string) string {
		t.Helper()
		err := lead.operator(t, user, "balance", &hdfspb.BalanceRequestProto{Session: &session, Threshold: &threshold, Stop: &stop, Include: include}, new(hdfspb.BalanceResponseProto))
		if err != nil {
			return err.Error()
		}
		return ""
	}
	// second asks while the first one goes on, however long it took to say that here.
	second := func() string {
		b := &lead.balancer
		b.mu.Lock()
		b.session, b.until = "one", time.Now().Add(time.Hour)
		b.mu.Unlock()
		return ask(super, "two", 10, false)
	}
	for _, r := range []struct {
		who, got, words string
	}{
		{"a user", ask("alice", "x", 10, false), "Superuser privilege is required for operation balance"},
		{"the superuser, with a threshold of nothing", ask(super, "x", 0, false), "a threshold of 1 to 100 percent"},
		{"the superuser, without a session", ask(super, "", 10, false), "want a session"},
		{"the superuser, of no name", ask(super, "x", 10, false, "a:b:c"), "neither HOST nor HOST:PORT"},
		{"the first", ask(super, "one", 10, false), ""},
		{"the first, again", ask(super, "one", 10, false), ""},
		{"a second", second(), "Another Balancer is running.."},
		{"the first, which ends", ask(super, "one", 10, true), ""},
		{"the second", ask(super, "two", 10, false), ""},
	} {
		if (r.got == "") != (r.words == "") || !strings.Contains(r.got, r.words) {
			t.Errorf("%s: %q, want %q", r.who, r.got, r.words)
		}
	}
	// Nobody keeps it going.
	lead.endBalance(time.Now().Add(2 * balanceFor))
	if got := ask(super, "three", 10, false); got != "" {
		t.Errorf("after one that has gone: %q", got)
	}
}
