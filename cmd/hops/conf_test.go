package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Where nothing names a cluster, the user's `hops dev` that runs is it, else the one of the machine's servers.
func TestTheConfigurationOfTheMachineIsFound(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HADOOP_CONF_DIR", "")
	old := machineConf
	machineConf = filepath.Join(home, "machine")
	defer func() { machineConf = old }()
	site := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "core-site.xml"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := findConf(""); err == nil || !strings.Contains(err.Error(), "no cluster is configured") {
		t.Errorf("nothing: %v", err)
	}
	site(machineConf)
	find := func(what, want string) {
		t.Helper()
		if dir, err := findConf(""); err != nil || dir != want {
			t.Errorf("%s: %s, %v", what, dir, err)
		}
	}
	find("a server's machine", machineConf)
	dev := filepath.Join(home, "hops", "dev")
	site(filepath.Join(dev, "conf"))
	lock, err := os.Create(filepath.Join(dev, devLock))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	find("a hops dev that has ended", machineConf)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	find("a hops dev that runs", filepath.Join(dev, "conf"))
	t.Setenv("HADOOP_CONF_DIR", filepath.Join(home, "nowhere"))
	if _, err := findConf(""); err == nil || !strings.Contains(err.Error(), "HADOOP_CONF_DIR") {
		t.Errorf("what is named is not there: %v", err)
	}
}
