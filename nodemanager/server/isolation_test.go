package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestAContainerSeesNeitherTheSecretNorOtherContainers(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	c := baseConfig(t, work, m.address)
	hidden := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(hidden, []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Hidden = []string{hidden}
	n := run(t, c)
	<-n.Ready()
	if n.protection.exposed != "" {
		t.Skip(n.protection.exposed)
	}
	other := spec(t, 1, "sleep", "100")
	m.start(other)
	m.untilState(other.ContainerId, rmpb.ContainerStatus_RUNNING)
	s := spec(t, 2, "sh", "-c", "cat "+hidden+"; cat ../../*_000001/token; ls ../.. "+work+"/cache; cat $HOPS_TOKEN")
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	out, err := os.ReadFile(filepath.Join(work, "containers", s.ContainerId, "logs", "stdout"))
	if want := "../..:\n" + s.ContainerId + "\ns3cret\n"; string(out) != want || err != nil {
		t.Errorf("it sees %q, %v, want %q", out, err, want)
	}
}

func TestWhoseContainersRunWhere(t *testing.T) {
	c := baseConfig(t, t.TempDir(), "127.0.0.1:1")
	defer c.HTTP.Close()
	known := map[string]*account.Account{
		"ann": {Name: "ann", UID: 5001, GID: 5001}, "daemon": {Name: "daemon", UID: 2, GID: 2}, "toor": {Name: "toor", GID: 7},
	}
	c.FindAccount = func(_ context.Context, name string) (*account.Account, error) {
		if a := known[name]; a != nil {
			return a, nil
		}
		return nil, fmt.Errorf("user %s: %w", name, account.ErrUnknown)
	}
	root, user := protection{users: true}, protection{}
	hidden := protection{users: true, unreachable: "users cannot reach their containers, because /x has mode 0700: chmod o+x /x"}
	for _, test := range []struct {
		policy Isolation
		p      protection
		rules  account.Rules
		user   string
		uid    uint32 // 0: the node manager's own
		want   string
	}{
		{IsolationAuto, root, account.Rules{}, "ann", 5001, ""},
		{IsolationAuto, root, account.Rules{}, me(), 0, ""},
		{IsolationAuto, root, account.Rules{Banned: []string{me()}}, me(), 0, "is banned from containers"},
		{IsolationAuto, root, account.Rules{}, "eve", 0, "user eve: no such user on node : containers run as their users"},
		{IsolationAuto, root, account.Rules{}, "hdfs", 0, "user hdfs is banned from containers"},
		{IsolationAuto, root, account.Rules{}, "daemon", 0, "user daemon has user id 2 on this node, and containers run from 1000 on"},
		{IsolationAuto, root, account.Rules{Allowed: []string{"daemon"}}, "daemon", 2, ""},
		{IsolationAuto, root, account.Rules{Allowed: []string{"toor"}}, "toor", 0, "no container runs as root"},
		{IsolationAuto, hidden, account.Rules{}, "ann", 0, "chmod o+x /x"},
		{IsolationAuto, user, account.Rules{}, "ann", 0, "not as root, so it runs containers of " + me() + " only: start it as root for those of ann"},
		{IsolationAuto, user, account.Rules{}, me(), 0, ""},
		{IsolationAny, root, account.Rules{}, "eve", 0, ""},
		{IsolationOff, user, account.Rules{}, "eve", 0, ""},
	} {
		s := &Server{config: c, protection: test.p}
		s.config.Isolation, s.config.Accounts = test.policy, test.rules
		if test.user == "hdfs" && me() == "hdfs" {
			continue
		}
		a, err := s.accountOf(t.Context(), nodemanager.User(test.user))
		uid := uint32(0)
		if a != nil && err == nil {
			uid = a.UID
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) || uid != test.uid {
			t.Errorf("%+v: runs as %d, %v", test, uid, err)
		}
	}
}

func TestHealthSaysWhatIsNotEnforced(t *testing.T) {
	c := baseConfig(t, t.TempDir(), "127.0.0.1:1")
	defer c.HTTP.Close()
	for _, test := range []struct {
		policy Isolation
		p      protection
		want   string
	}{
		{IsolationAuto, protection{users: true}, ""},
		{IsolationAuto, protection{users: true, exposed: "of root's own containers"}, ""},
		{IsolationAuto, protection{users: true, shared: "no namespaces"}, "see the machine's processes, /tmp and /dev: no namespaces"},
		{IsolationAuto, protection{users: true, unreachable: "chmod"}, "only containers of " + me() + " run here: chmod"},
		{IsolationAuto, protection{}, "only containers of " + me() + " run here, because the node manager does not run as root"},
		{IsolationAuto, protection{exposed: "no namespaces"}, "not isolated from the servers' files: no namespaces"},
		{IsolationAny, protection{}, "containers of all users run as " + me()},
		{IsolationAny, protection{exposed: "no namespaces"}, "can read the cluster's secret"},
	} {
		s := &Server{config: c, protection: test.p}
		s.config.Isolation = test.policy
		if note := s.isolationNote(); (test.want == "") != (note == "") || !strings.Contains(note, test.want) {
			t.Errorf("%+v: health says %q", test, note)
		}
	}
}
