package client

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// A program of a container has what the container was given: its token signs what goes to resource managers elsewhere, and a login that
// lies about is nothing to it.
func TestWhatAProgramOfAContainerIsKnownBy(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", filepath.Join(dir, "none"))
	t.Setenv("HOPS_RM", "rm1:8088")
	t.Setenv("HOPS_CONTAINER_ID", "container_1_0001_01_000002")
	t.Setenv("HOPS_TOKEN", filepath.Join(dir, "token"))
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "the container's token (HOPS_TOKEN)") {
		t.Errorf("no token: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, of := range map[string]*http.Client{"resource managers": c.rest.http, "what is behind them": c.rest.proxied} {
		if s, ok := of.Transport.(*security.Signing); !ok || s.Token != "secret" || s.Container != "container_1_0001_01_000002" {
			t.Errorf("%s: %+v", name, of.Transport)
		}
	}
	if f, err := login.Chosen(); f != nil || err != nil {
		t.Errorf("a login in a container: %v, %v", f, err)
	}
	t.Setenv("HOPS_CONTAINER_ID", "")
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "and no file is there") {
		t.Errorf("outside: %v", err)
	}
}

// On a machine of a cluster nothing has to be said.
func TestAServersMachineHasAConfiguration(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	for _, name := range []string{"HADOOP_CONF_DIR", "HOPS_LOGIN", "HOPS_RM", "HOPS_CONTAINER_ID"} {
		t.Setenv(name, "")
	}
	old := machineConf
	machineConf = filepath.Join(dir, "conf")
	defer func() { machineConf = old }()
	c, err := New(Config{})
	if err != nil || c.HasFS() == nil {
		t.Fatalf("no configuration: %v", err)
	}
	c.Close()
	if err := os.Mkdir(machineConf, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, property := range map[string][2]string{"core": {"fs.defaultFS", "hdfs://127.0.0.1:4711"}, "yarn": {"yarn.resourcemanager.webapp.address", "127.0.0.1:8088"}} {
		text := "<configuration><property><name>" + property[0] + "</name><value>" + property[1] + "</value></property></configuration>"
		if err := os.WriteFile(filepath.Join(machineConf, name+"-site.xml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = New(Config{}); err != nil || c.HasFS() != nil || len(c.ResourceManagers()) != 1 || c.FS().Active() != "127.0.0.1:4711" {
		t.Fatalf("%v, %v", err, c)
	}
	c.Close()
}
