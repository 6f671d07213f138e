package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/internal/config"
)

// D4R: a disk of a datanode that has two is pulled out while it works, and put back.
func TestD4R(t *testing.T) {
	r := begin(t, "D4R", "a disk pulled out of a datanode that has two")
	dir := process.Dir(t)
	hidden, slot := filepath.Join(dir, "disk"), filepath.Join(dir, "slot")
	r.mount(hidden, 256<<20)
	r.must(os.Mkdir(slot, 0o755))
	put := func() { r.must(unix.Mount(hidden, slot, "", unix.MS_BIND, "")) }
	put()
	t.Cleanup(func() { _ = unix.Unmount(slot, unix.MNT_DETACH) })
	s := r.start(processes.Config{
		Dir: dir, Namenodes: 1, Datanodes: 3, Properties: properties("2"),
		Adjust: func(name string, f *config.File) {
			if name == "dn1" {
				f.Datanode.Volumes = append(f.Datanode.Volumes, config.Volume{Path: filepath.Join(slot, "volume"), Type: "DISK"})
			}
		},
	})
	f, err := s.k.Server("dn1")
	s.must(err)
	h := s.k.Hops()
	failed := func() string {
		text := h.OK("datanode", "list", "-o", "json")
		if strings.Contains(text, "volume "+filepath.Join(slot, "volume")+" failed") {
			return text
		}
		return ""
	}
	var copied, back worst
	for range *repeats {
		s.warm()
		s.must(unix.Unmount(slot, unix.MNT_DETACH))
		s.until("the volume is given up", func() error {
			if failed() == "" {
				return errors.New("no volume has failed")
			}
			return nil
		})
		s.history.More(60)
		copied.add(s.healthy(2 * process.Patience))
		// Without the disk there is an empty directory in its place, which is not taken for it.
		reread := func() string {
			h.OK("dfsadmin", "-reconfig", "datanode", f.Datanode.IPC, "start")
			said := ""
			s.until("the configuration is read", func() error {
				if said = h.OK("dfsadmin", "-reconfig", "datanode", f.Datanode.IPC, "status"); !strings.Contains(said, "and finished at") {
					return errors.New(said)
				}
				return nil
			})
			return said
		}
		if said := reread(); !strings.Contains(said, "FAILED: Change property") || !strings.Contains(said, "is its disk not mounted") {
			t.Errorf("with an empty slot: %s", said)
		}
		put()
		began := time.Now()
		if said := reread(); strings.Contains(said, "FAILED") {
			t.Error(said)
		}
		if text := failed(); text != "" {
			t.Errorf("the disk is back: %s", text)
		}
		s.history.More(60)
		s.healthy(2 * process.Patience)
		back.add(time.Since(began))
	}
	s.note("all replicas there again without it: %s; with it: %s", copied, back)
	s.settled()
}

// D8: a copy of a datanode's disk is started as another datanode.
func TestD8(t *testing.T) {
	s := begin(t, "D8", "a copy of a datanode's disk in another datanode").start(processes.Config{
		Namenodes: 1, Datanodes: 4, Later: []string{"dn4"}, Properties: properties("2"),
	})
	s.warm()
	dir := filepath.Dir(s.k.Log("dn1"))
	// Of files that change meanwhile it is what a snapshot of a disk is.
	out, err := exec.Command("cp", "-a", filepath.Join(dir, "dn1"), filepath.Join(dir, "dn4")).CombinedOutput()
	if err != nil {
		t.Logf("%v: %s", err, out)
	}
	s.must(s.k.Start("dn4"))
	refused := func() error {
		text, err := os.ReadFile(s.k.Log("dn4"))
		if err == nil && !strings.Contains(string(text), "are a copy of its") {
			err = errors.New("the copy is not refused")
		}
		return err
	}
	s.until("a refusal", refused)
	s.history.More(200)
	port := func(name string) string {
		f, err := s.k.Server(name)
		s.must(err)
		return f.Datanode.Transfer
	}
	lives := func(name string) error {
		text := s.k.Hops().OK("dfsadmin", "-report", "-live")
		for _, other := range []string{"dn1", "dn4"} {
			if strings.Contains(text, "Name: "+port(other)) != (other == name) {
				return fmt.Errorf("%s lives, or does not: %s", other, text)
			}
		}
		return nil
	}
	s.must(lives("dn1"))
	s.healthy(process.Patience)
	// The copy is taken when the original is gone.
	s.must(s.k.Kill("dn1"))
	s.until("the copy is taken", func() error { return lives("dn4") })
	s.healthy(2 * process.Patience)
	s.note("refused while the other one lived, then taken")
	s.settled()
}
