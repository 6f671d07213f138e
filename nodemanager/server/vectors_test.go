package server

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/jersey/jerseytest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// Every recorded exchange with a node manager of Hadoop 3.4.1 is replayed; the containers of the recording run here, under other ids.
func TestRecordedExchanges(t *testing.T) {
	files, err := filepath.Glob("testdata/yarn/*.http")
	if err != nil || len(files) < 18 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = fake.Simulate(2, "x")
	c.Door = security.NewDoor(security.Config{Hosts: []string{"host.example"}})
	n := run(t, c)
	for i := 1; i <= 3; i++ {
		s := spec(t, i, "sh", "-c", "echo log; for f in AppMaster.stderr prelaunch.out; do echo line > $LOG_DIRS/$f; done; echo > up; exec sleep 100")
		s.User = "alice"
		m.start(s)
		eventually(t, "up", func() bool {
			_, err := os.Stat(filepath.Join(n.store.ContainerDir(nodemanager.ContainerID(s.ContainerId)), "work", "up"))
			return err == nil
		})
		m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	}
	plugin := func(f string) bool { return !strings.Contains(f, "217-") }
	replace := []string{"1795248047013_0002", "1700000000000_0001"}
	optional := map[string][]string{
		// Simulated devices do not tell, and no device tells at which temperatures it ends.
		"231-nm-resources-gpu-plugin": {
			".gpuDeviceInformation.gpus[].gpuUtilizations", ".gpuDeviceInformation.gpus[].gpuMemoryUsage", ".gpuDeviceInformation.gpus[].temperature",
		},
	}
	nobody := jerseytest.Deviation{Status: 500, Why: "what programs print is for their owners: who does not say who they are is answered as others are in YARN"}
	deviations := map[string]jerseytest.Deviation{
		"213-nm-container-log-file-json": nobody, "214-nm-container-am-log-tail": nobody, "223-nm-web-containerlogs-file": nobody,
	}
	jerseytest.Check(t, slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !plugin(f) }), n.url, func(string) {}, optional, deviations, replace...)

	c = baseConfig(t, t.TempDir(), m.address)
	c.Door = security.NewDoor(security.Config{Hosts: []string{"host.example"}})
	without := run(t, c)
	jerseytest.Check(t, slices.DeleteFunc(files, plugin), without.url, func(string) {}, nil, nil, replace...)
}

func TestXMLAndWrongMethods(t *testing.T) {
	m := newManager(t, "")
	n := run(t, baseConfig(t, t.TempDir(), m.address))
	for _, test := range []struct {
		path, accept string
		code         int
		want         string
	}{
		{"/ws/v1/node/containers/zz", "application/xml", 400, "<RemoteException><exception>BadRequestException</exception>"},
		{"/ws/v1/node/apps", "application/xml", 200, "<apps/>"},
		{"/ws/v1/node/auxiliaryservices", "", 400, "Auxiliary services manifest is not enabled"},
	} {
		if code, body, _ := n.get(test.path, test.accept); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s", test.path, code, body)
		}
	}
}
