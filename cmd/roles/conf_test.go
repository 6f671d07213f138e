package roles

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
)

// What clients of Hadoop's need to find one, and several.
func TestClientsFindAllServers(t *testing.T) {
	a, err := authority.New("CID-test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := []*x509.Certificate{a.Root()}
	for _, c := range []struct {
		servers int
		host    string
		file    string
		want    []string
		not     string
	}{
		{1, "127.0.0.1", "yarn-site.xml", []string{"yarn.resourcemanager.hostname=127.0.0.1", "yarn.resourcemanager.webapp.address=127.0.0.1:8081"}, "yarn.resourcemanager.ha"},
		{1, "10.0.0.1", "yarn-site.xml", []string{"yarn.resourcemanager.webapp.https.address=10.0.0.1:8081"}, "yarn.resourcemanager.ha"},
		{3, "10.0.0.1", "yarn-site.xml", []string{
			"yarn.resourcemanager.ha.enabled=true", "yarn.resourcemanager.cluster-id=lab", "yarn.resourcemanager.ha.rm-ids=m1,m2,m3", "yarn.resourcemanager.hostname.m2=10.0.0.1",
			"yarn.resourcemanager.webapp.address.m2=10.0.0.1:8082", "yarn.resourcemanager.webapp.https.address.m3=10.0.0.1:8083",
		}, "yarn.resourcemanager.webapp.address="},
		{1, "127.0.0.1", "hdfs-site.xml", []string{"dfs.namenode.rpc-address=127.0.0.1:8021"}, "dfs.ha"},
		{3, "10.0.0.1", "hdfs-site.xml", []string{"dfs.ha.namenodes.lab=m1,m2,m3", "dfs.ha.fencing.methods=shell(/bin/true)"}, "dfs.namenode.rpc-address="},
		{0, "10.0.0.1", "yarn-site.xml", nil, "yarn."},
	} {
		f := &config.File{Cluster: config.Cluster{Name: "lab"}}
		for i := range c.servers {
			id, at := fmt.Sprintf("m%d", i+1), func(port int) string { return fmt.Sprintf("%s:%d", c.host, port+i+1) }
			f.Namenodes = append(f.Namenodes, config.NamenodeMember{ID: id, IPC: at(8020), HTTP: at(9870)})
			f.ResourceManagers = append(f.ResourceManagers, config.ManagerMember{ID: id, HTTP: at(8080)})
		}
		dir := t.TempDir()
		if err := WriteConf(dir, f, roots); err != nil {
			t.Fatal(err)
		}
		conf := &dfs.HadoopConf{Properties: map[string]string{}}
		if err := conf.LoadFile(filepath.Join(dir, c.file)); err != nil {
			t.Fatal(err)
		}
		var all []string
		for name, value := range conf.Properties {
			all = append(all, name+"="+value)
		}
		slices.Sort(all)
		for _, want := range c.want {
			if !slices.Contains(all, want) {
				t.Errorf("%d servers, %s: %s is missing in\n%s", c.servers, c.file, want, strings.Join(all, "\n"))
			}
		}
		if slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, c.not) }) {
			t.Errorf("%d servers, %s: %s is in\n%s", c.servers, c.file, c.not, strings.Join(all, "\n"))
		}
	}
}

// On a full disk nothing can be written, and a server has to start there.
func TestFileWithTheRightContentIsLeftAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "core-site.xml")
	if err := writeFile(name, []byte("same")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(name, []byte("same")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(name); err != nil || !os.SameFile(before, after) {
		t.Fatalf("it was written again: %v", err)
	}
	if err := writeFile(name, []byte("other")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "other" {
		t.Fatalf("%q, %v", got, err)
	}
}

// Clients hear of the Unix-domain socket of this machine's datanode, and of nothing else about it unless the operator says so: Hadoop's
// complain when they cannot do what is asked for.
func TestClientsFindTheSocket(t *testing.T) {
	for _, c := range []struct {
		text string
		want map[string]string
	}{
		{"datanode: {volumes: [{path: /d}]}", map[string]string{}},
		{"datanode: {volumes: [{path: /d}], domain_socket: /run/hops/dn._PORT}", map[string]string{"dfs.domain.socket.path": "/run/hops/dn._PORT"}},
		{"datanode: {volumes: [{path: /d}], domain_socket: none}\nproperties: {dfs.domain.socket.path: /run/hops/dn._PORT}", map[string]string{}},
		{"properties: {dfs.domain.socket.path: /run/hops/dn._PORT, dfs.client.read.shortcircuit: true}", map[string]string{
			"dfs.domain.socket.path": "/run/hops/dn._PORT", "dfs.client.read.shortcircuit": "true",
		}},
	} {
		f, err := config.Parse("hops.yaml", []byte(`
cluster: {name: lab, secret_file: /etc/hops/secret}
namenodes: [{id: nn1, ipc: "127.0.0.1:8020", http: "127.0.0.1:9870", raft: "127.0.0.1:8487", grpc: "127.0.0.1:8486"}]
`+c.text))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := WriteConf(dir, f, nil); err != nil {
			t.Fatal(err)
		}
		conf, err := dfs.LoadHadoopConf(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"dfs.domain.socket.path", "dfs.client.read.shortcircuit", "dfs.client.domain.socket.data.traffic"} {
			if got := conf.Properties[name]; got != c.want[name] {
				t.Errorf("%s: %s is %q, want %q", c.text, name, got, c.want[name])
			}
		}
	}
}
