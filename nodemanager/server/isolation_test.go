package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
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
	if n.exposed != "" {
		t.Skip(n.exposed)
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

func TestWithoutIsolationOnlyTheServersUserRuns(t *testing.T) {
	c := baseConfig(t, t.TempDir(), "127.0.0.1:1")
	defer c.HTTP.Close()
	for _, test := range []struct {
		policy  Isolation
		exposed string
		user    string
		refused bool
	}{
		{IsolationAuto, "", "eve", false},
		{IsolationAuto, "no namespaces", "eve", true},
		{IsolationAuto, "no namespaces", me(), false},
		{IsolationAny, "no namespaces", "eve", false},
		{IsolationOff, "configured", "eve", false},
	} {
		s := &Server{config: c, exposed: test.exposed}
		s.config.Isolation = test.policy
		err := s.checkIsolation(nodemanager.User(test.user))
		if (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "could read the secret of the cluster") {
			t.Errorf("%+v: %v", test, err)
		}
		if note := s.isolationNote(); (note == "") != (test.exposed == "") {
			t.Errorf("%+v: health says %q", test, note)
		}
	}
}
