package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
)

// A server with a certificate of another cluster is not ready: it says once, at the top of its voice, what is wrong and what to
// do. With the right one it is ready when a namenode, or a resource manager, has taken it.
func TestServerOfAnotherClusterIsNotReady(t *testing.T) {
	dir := Dir(t)
	wrong := filepath.Join(dir, "wrong")
	other, err := authority.New("CID-other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := other.Self("elsewhere", authority.Roles, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Create(wrong); err != nil {
		t.Fatal(err)
	}
	k := Lay(t, processes.Config{Dir: dir, Namenodes: 1, Datanodes: 2, NodeManagers: 2, Adjust: func(name string, f *config.File) {
		if name == "dn2" || name == "nm2" {
			f.Cluster.Identity = wrong
		}
	}})
	k.must(k.StartAll())
	log := func(name string) string {
		text, err := os.ReadFile(k.Log(name))
		k.must(err)
		return string(text)
	}
	for name, ready := range map[string]string{"nn1": "namenode ready in ", "dn1": "datanode ready in ", "rm1": "resourcemanager ready in ", "nm1": "nodemanager ready in "} {
		k.Await(name, func() error {
			if !strings.Contains(log(name), ready) {
				return fmt.Errorf("it says\n%s", log(name))
			}
			return nil
		})
	}
	for _, name := range []string{"dn2", "nm2"} {
		refusal := "level=ERROR msg=\"this server is not one of the cluster's"
		k.Await(name, func() error {
			if !strings.Contains(log(name), refusal) || !strings.Contains(log(name), "the certificate is not of this cluster") {
				return fmt.Errorf("it says\n%s", log(name))
			}
			return nil
		})
		time.Sleep(300 * time.Millisecond) // it tries again meanwhile, and must not repeat itself
		if text := log(name); strings.Count(text, refusal) != 1 || strings.Contains(text, "ready in") {
			t.Errorf("%s says\n%s", name, text)
		}
	}
}
