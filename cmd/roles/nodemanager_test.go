package roles

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gohops/hops/internal/config"
)

func TestTheNodeManagerKnowsItsNeighbours(t *testing.T) {
	dir := t.TempDir()
	f := &config.File{
		Cluster: config.Cluster{SecretFile: dir + "/secret", Conf: dir + "/nn/conf"}, Namenode: &config.Namenode{Data: dir + "/nn"},
		ResourceManager: &config.ResourceManager{Data: dir + "/rm"}, Audit: config.Audit{Dir: dir + "/audit"},
		Datanode: &config.Datanode{Volumes: []config.Volume{{Path: dir + "/d1"}, {Path: dir + "/d2"}}},
	}
	b := &Builder{File: f, Executable: "/bin/hops", volumes: []string{dir + "/d3"}}
	hidden, shown, err := b.serverFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"secret", "nn", "rm", "audit", "d1", "d2", "d3"} {
		if !slices.Contains(hidden, filepath.Join(dir, path)) {
			t.Errorf("%s is not hidden from containers", path)
		}
	}
	if !slices.Equal(shown, []string{"/bin/hops", dir + "/nn/conf"}) {
		t.Errorf("shown: %q", shown)
	}
	if got := b.neighbour(); got != "" {
		t.Errorf("before there is a datanode: %q", got)
	}
	if err := os.Mkdir(dir+"/d2", 0o700); err != nil {
		t.Fatal(err)
	}
	version := "layoutVersion=1\ndatanodeUuid=d-n\nstorageUuid=DS-1\nclusterId=\nblockPool=\ncrc32c=822eeaea\n"
	if err := os.WriteFile(dir+"/d2/VERSION", []byte(version), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.neighbour(); got != "d-n" {
		t.Errorf("the datanode of this machine is %q", got)
	}
}
