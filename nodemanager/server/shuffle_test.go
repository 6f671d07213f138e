package server

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager/hadoop"
	"github.com/gohops/hops/nodemanager/shuffle"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// What maps leave stays when their containers have gone, over a restart of the node manager too, until the application has ended.
func TestOutputsOfMapsStayUntilTheirApplicationHasEnded(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	start := func() *node {
		c := baseConfig(t, work, m.address)
		var err error
		if c.Shuffle, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		return run(t, c)
	}
	n := start()
	app, err := rm.ParseApplicationID(appID)
	if err != nil {
		t.Fatal(err)
	}
	y := (*yarnNode)(n.Server)
	job := token.Token{Identifier: []byte("job"), Password: []byte("secret"), Kind: "mapreduce.job"}.Writable()
	if _, err := y.Service(app, "ann", "spark_shuffle", job); err != hadoop.ErrNoService {
		t.Errorf("%v", err)
	}
	settle, err := y.Service(app, "ann", shuffle.Service, job)
	if err != nil {
		t.Fatal(err)
	}
	settle(true)
	if got := y.Services()[shuffle.Service]; !slices.Equal(got, shuffle.Meta(n.shufflePort())) || len(got) != 4 {
		t.Errorf("%v", got)
	}
	s := spec(t, 2, "mkdir -p $LOCAL_DIRS/output; echo x > $LOCAL_DIRS/output/file.out")
	s.Dialect = "yarn"
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	kept := func(r *rmpb.NodeReport) bool {
		return len(r.GetContainers()) == 0 && slices.Equal(r.GetKept(), []string{appID})
	}
	m.until("the application is kept", kept)
	output := filepath.Join(work, "apps", appID, "output", "file.out")
	if _, err := os.Stat(output); err != nil {
		t.Error(err)
	}
	n.close(false)
	m.forget()
	start()
	m.until("the application is kept by the next node manager", kept)
	if _, err := os.Stat(output); err != nil {
		t.Error(err)
	}
	m.order(&rmpb.NodeOrders{Ended: []string{appID, "nonsense", "application_1_0099"}})
	m.until("nothing is kept", func(r *rmpb.NodeReport) bool { return len(r.GetKept()) == 0 })
	eventually(t, "the directory is gone", func() bool {
		_, err := os.Stat(filepath.Join(work, "apps", appID))
		return os.IsNotExist(err)
	})
	if entries, _ := os.ReadDir(filepath.Join(work, "shuffle")); len(entries) > 0 {
		t.Errorf("%v", entries)
	}
}
