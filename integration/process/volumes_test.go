package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
)

// A datanode gets another disk while it works, the disks are balanced, and the old one is taken out.
func TestVolumesOfADatanode(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if os.Geteuid() != 0 {
		t.Skip("small disks are file systems of their own, which only root can mount")
	}
	dir := Dir(t)
	disk := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=64m"); err != nil {
			t.Skipf("no file system can be mounted here: %v", err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) })
		return path
	}
	first, second := disk("first"), disk("second")
	k := Start(t, processes.Config{
		Dir: dir, Namenodes: 1, Datanodes: 2, Properties: map[string]string{"dfs.replication": "2", "dfs.blocksize": "1048576"},
		Adjust: func(name string, f *config.File) {
			if name == "dn1" {
				f.Datanode.Volumes, f.Datanode.Reserve = []config.Volume{{Path: first, Type: "DISK"}}, 1<<20
				f.Audit.Dir = filepath.Join(dir, "audit")
			}
		},
	})
	fs, h := Dial(t, k.Conf(), "").FS(), k.Hops()
	files := map[string][]byte{}
	for i := range 30 {
		name := fmt.Sprintf("/f%02d", i)
		files[name] = bytes.Repeat([]byte{byte('A' + i)}, 1<<20)
		k.must(fs.WriteFile(Context(t), name, files[name], true))
	}
	whole := func() {
		t.Helper()
		for name, want := range files {
			if got, err := fs.ReadFile(Context(t), name); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
	f, err := k.Server("dn1")
	k.must(err)
	ipc := f.Datanode.IPC
	reconfigure := func(volumes ...config.Volume) string {
		t.Helper()
		f.Datanode.Volumes = volumes
		text, err := yaml.Marshal(*f)
		k.must(err)
		k.must(os.WriteFile(filepath.Join(dir, "dn1.yaml"), text, 0o644))
		h.OK("dfsadmin", "-reconfig", "datanode", ipc, "start")
		status := ""
		k.Await("the end of it", func() error {
			if status = h.OK("dfsadmin", "-reconfig", "datanode", ipc, "status"); !strings.Contains(status, "and finished at") {
				return errors.New(status)
			}
			return nil
		})
		return status
	}
	report := func() string { return h.OK("diskbalancer", "-report", "-node", ipc) }

	if got := h.OK("dfsadmin", "-reconfig", "datanode", ipc, "properties"); got != "Node ["+ipc+"] Reconfigurable properties:\ndfs.datanode.data.dir\n" {
		t.Error(got)
	}
	if got := h.OK("dfsadmin", "-reconfig", "datanode", ipc, "status"); !strings.HasSuffix(got, ": no task was found.\n") {
		t.Error(got)
	}
	if got := h.OK("diskbalancer", "-plan", ipc, "-out", "/plan0"); !strings.HasPrefix(got, "No plan generated. DiskBalancing not needed for node: "+ipc+" threshold used: 10.0") {
		t.Error(got)
	}
	got := reconfigure(config.Volume{Path: first, Type: "DISK"}, config.Volume{Path: second, Type: "DISK"})
	if want := fmt.Sprintf("SUCCESS: Changed property dfs.datanode.data.dir\n\tFrom: \"[DISK]%s\"\n\tTo: \"[DISK]%s,[DISK]%s\"\n", first, first, second); !strings.HasSuffix(got, want) {
		t.Error(got)
	}
	k.Await("two volumes, as the namenode has it", func() error {
		if text := report(); !strings.Contains(text, ": 2 volumes with node data density 0.4") {
			return errors.New(text)
		}
		return nil
	})
	if text := h.OK("diskbalancer", "-report"); !strings.Contains(text, "Reporting top 2 DataNode(s) benefiting from running DiskBalancer.") {
		t.Error(text)
	}

	// A plan that takes its time is cancelled; the next one does not.
	plan := func(dir string, more ...string) string {
		t.Helper()
		out := h.OK(append([]string{"diskbalancer", "-plan", ipc, "-out", dir, "-v"}, more...)...)
		m := regexp.MustCompile(`(?m)^/.*\.plan\.json$`).FindString(out)
		if m == "" || !strings.Contains(out, first+"\t"+second+"\t1") {
			t.Fatal(out)
		}
		return m
	}
	slow := plan("/plan1", "-bandwidth", "1")
	h.OK("diskbalancer", "-execute", slow)
	if text := h.OK("diskbalancer", "-query", ipc, "-v"); !strings.Contains(text, "Plan File: "+slow+"\n") || !strings.Contains(text, "Result: PLAN_UNDER_PROGRESS") || !strings.Contains(text, `"destPath": "`+second+`"`) {
		t.Error(text)
	}
	h.Fails(1, []string{"Executing another plan"}, "diskbalancer", "-execute", slow)
	h.OK("diskbalancer", "-cancel", slow)
	k.Await("the end of it", func() error {
		if r := h.Run("diskbalancer", "-execute", plan("/plan2", "-bandwidth", "1000")); r.Status != 0 {
			h.OK("fs", "-rm", "-r", "-skipTrash", "/plan2")
			return errors.New(r.Stderr)
		}
		return nil
	})
	k.Await("balanced volumes", func() error {
		if text := h.OK("diskbalancer", "-query", ipc); !strings.Contains(text, "Result: PLAN_DONE") {
			return errors.New(text)
		}
		if text := report(); !regexp.MustCompile(`density 0\.[01]`).MatchString(text) {
			return errors.New(text)
		}
		return nil
	})
	whole()
	nobody := h
	nobody.Env = []string{"HADOOP_USER_NAME=nobody"}
	for _, args := range [][]string{{"diskbalancer", "-query", ipc}, {"diskbalancer", "-report"}, {"dfsadmin", "-reconfig", "datanode", ipc, "status"}, {"dfsadmin", "-reconfig", "datanode", ipc, "start"}} {
		if r := nobody.Run(args...); r.Status == 0 || !strings.Contains(r.Stderr, "Superuser privilege is required") {
			t.Errorf("%v by somebody: %d %s%s", args, r.Status, r.Stdout, r.Stderr)
		}
	}

	// The plan is forgotten with a restart, what was moved is where it is.
	k.must(k.Kill("dn1"))
	k.must(k.Cluster.Start("dn1"))
	k.Await("the datanode", func() error {
		if r := h.Run("diskbalancer", "-query", ipc); !strings.Contains(r.Stdout, "Result: NO_PLAN") {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
	k.Ready()
	whole()

	// The old disk goes: what was on it alone is read from the other datanode, and copied again.
	w, err := fs.Create(Context(t), "/open", dfs.CreateOptions{})
	k.must(err)
	_, err = w.Write(bytes.Repeat([]byte("x"), 300_000))
	k.must(err)
	k.must(w.Hflush(Context(t)))
	got = reconfigure(config.Volume{Path: second, Type: "DISK"})
	if !strings.Contains(got, "SUCCESS") {
		t.Error(got)
	}
	_, err = w.Write(bytes.Repeat([]byte("x"), 300_000))
	k.must(errors.Join(err, w.Close()))
	files["/open"] = bytes.Repeat([]byte("x"), 600_000)
	whole()
	if err := syscall.Unmount(first, 0); err != nil {
		t.Errorf("the disk that was taken out is still in use: %v", err)
	}
	k.Await("two replicas of each block", func() error {
		r, err := fs.Report(Context(t))
		if err == nil && (r.Under > 0 || r.Missing > 0) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	whole()
	// And a mistake changes nothing.
	if got := reconfigure(config.Volume{Path: second, Type: "SSD"}, config.Volume{Path: filepath.Join(dir, "nn1"), Type: "DISK"}); !strings.Contains(got, "FAILED: Change property") ||
		!strings.Contains(got, "Changing storage type is not allowed") || !strings.Contains(got, "not a volume, and not empty") {
		t.Error(got)
	}
	whole()
}
