package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/release"
)

// older is the program of the release before: HOPS_OLDER, or one that is built from the commit that older.txt names.
func older(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("HOPS_OLDER"); path != "" {
		return path
	}
	text, err := os.ReadFile("older.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	commit := lines[len(lines)-1]
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) error {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
		return err
	}
	if err := git("cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Fatalf("the release before is not in this clone (git fetch --unshallow): %v", err)
	}
	dir := t.TempDir()
	archive, source, binary := filepath.Join(dir, "source.tar"), filepath.Join(dir, "source"), filepath.Join(dir, "hops")
	if err := errors.Join(git("archive", "-o", archive, commit), os.Mkdir(source, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{
		exec.Command("tar", "-xf", archive, "-C", source),
		exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=older", "-o", binary, "./cmd/hops"),
	} {
		if cmd.Dir = source; cmd.Args[0] == "tar" {
			cmd.Dir = dir
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	return binary
}

// TestRollingUpgrade runs a cluster of the release before under load and replaces its servers by this program, one after the other.
func TestRollingUpgrade(t *testing.T) {
	if os.Getenv("HOPS_UPGRADE") == "" {
		t.Skip("it builds the release before; `make upgrade` runs it")
	}
	before, now := older(t), Binary(t)
	k := Start(t, processes.Config{
		Binary: before, Namenodes: 3, Datanodes: 3, ResourceManagers: 3, NodeManagers: 2,
		Properties: map[string]string{"dfs.replication": "2", "dfs.blocksize": "1MiB"},
	})
	c := Dial(t, k.Conf(), "")
	u := &upgrade{k, c, filepath.Join(filepath.Dir(k.Log("nn1")), "nn1.yaml")}
	filesystem := c.FS()
	mkdir(t, filesystem, "/load")
	h := NewHistory(t, "/load")
	h.Start(
		func(ctx context.Context) { h.Puts(ctx, 1, k.Conf()) },
		func(ctx context.Context) { h.Calls(ctx, 2, filesystem) },
	)
	h.More(20)
	job := startWorker(t, c, 0)
	u.finalized(1, "the cluster is at level 1\n")

	which := map[string]string{before: "the version before", now: "this version"}
	replace := func(name, binary string) {
		t.Helper()
		k.must(k.Signal(name, syscall.SIGTERM))
		<-k.Ended(name)
		u.start(name, binary)
		t.Logf("%s runs %s; 5 more operations acknowledged after %v", name, which[binary], h.More(5))
		job.alive()
	}
	// The followers first, the leader last.
	order := slices.Clone(k.Names())
	leader := k.Leader(filesystem)
	order = append(slices.DeleteFunc(order, func(name string) bool { return strings.HasPrefix(name, "nn") }), leader)
	for _, n := range k.File().Namenodes {
		if n.ID != leader {
			order = slices.Insert(order, 0, n.ID)
		}
	}
	for i, name := range order {
		replace(name, now)
		if i == len(order)/2 {
			u.refused("an older version runs on", ", level 1)")
			h.More(20)
			if status := k.Hops().Run("dfsadmin", "-rollingUpgrade", "prepare"); !strings.Contains(status.Stdout, "Proceed with rolling upgrade:") {
				t.Errorf("prepare: %+v", status)
			}
		}
	}
	t.Logf("everything runs this version:\n%s", u.operator("cluster", "nodes"))
	u.level(0, "before the cluster is raised nothing of a later level is written")

	// The way back, of one of each kind.
	back := []string{"nn1", "rm1", "dn1", "nm1"}
	for _, name := range back {
		replace(name, before)
	}
	u.refused("an older version runs on", ", level 1)", "namenode nn1", "resourcemanager rm1", "datanode", "nodemanager")
	h.More(20)
	for _, name := range back {
		replace(name, now)
	}

	// For good.
	u.finalized(release.Level, fmt.Sprintf("the cluster is at level %d, finalized", release.Level))
	u.finalized(release.Level, fmt.Sprintf("the cluster is at level %d, finalized", release.Level))
	u.level(release.Level, "the resource managers know the versions of nodes")
	if said := k.Hops().OK("dfsadmin", "-rollingUpgrade", "query"); !strings.Contains(said, "There is no rolling upgrade in progress or rolling upgrade has already been finalized.") {
		t.Errorf("query: %s", said)
	}
	h.More(20)
	u.marked("nn2")
	u.marked("rm2")
	for _, name := range []string{"nn2", "rm2", "dn2", "nm2"} {
		k.must(k.Signal(name, syscall.SIGTERM))
		<-k.Ended(name)
		u.tooOld(name, before)
		u.start(name, now)
	}
	h.More(20)
	h.End()
	h.Verify(filesystem)
	job.alive()
	if s := job.finish("0"); !s.Succeeded() {
		t.Errorf("%s: %s %s: %s", job.id, s.State, s.FinalStatus, s.Diagnostics)
	}
}

// upgrade is a cluster that is upgraded.
type upgrade struct {
	*Cluster
	c    *client.Client
	conf string
}

// operator runs a command that takes -c, which succeeds.
func (u *upgrade) operator(args ...string) string {
	u.T.Helper()
	return u.Hops().OK(append(args, "-c", u.conf)...)
}

// start starts a server of a version and waits until it does its work.
func (u *upgrade) start(name, binary string) {
	u.T.Helper()
	u.Install(binary)
	u.must(u.Start(name))
	var address string
	f, err := u.Server(name)
	u.must(err)
	switch name[:2] {
	case "nn":
		for _, n := range f.Namenodes {
			if n.ID == name {
				address = n.HTTP
			}
		}
	case "rm":
		for _, n := range f.ResourceManagers {
			if n.ID == name {
				address = n.HTTP
			}
		}
	case "dn":
		address = f.Datanode.HTTP
	case "nm":
		address = f.NodeManager.HTTP
	}
	u.Await(name, func() error { return ready(address) })
}

// ready is nil when a server does its work.
func ready(address string) error {
	ask := http.Client{Timeout: 5 * time.Second}
	answer, err := ask.Get("http://" + address + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s", answer.StatusCode, text)
	}
	return nil
}

// finalized has the cluster raised.
func (u *upgrade) finalized(level int, says string) {
	u.T.Helper()
	u.Await(fmt.Sprintf("level %d", level), func() error { // a process that has just been started is heard in a moment
		r := u.Hops().Run("cluster", "finalize", "-c", u.conf)
		if r.Status != 0 || !strings.HasPrefix(r.Stdout, says) {
			return fmt.Errorf("%d %s %s", r.Status, r.Stdout, r.Stderr)
		}
		return nil
	})
}

// refused asks for the cluster to be raised, which is refused with words.
func (u *upgrade) refused(words ...string) {
	u.T.Helper()
	u.Await(fmt.Sprintf("a refusal with %q", words), func() error {
		r := u.Hops().Run("cluster", "finalize", "-c", u.conf)
		if r.Status == 0 {
			u.T.Fatalf("it is raised: %s", r.Stdout)
		}
		for _, w := range words {
			if !strings.Contains(r.Stderr, w) {
				return fmt.Errorf("%q is not in %s", w, r.Stderr)
			}
		}
		return nil
	})
}

// level waits until the resource managers say of all nodes of which level they are.
func (u *upgrade) level(want int, why string) {
	u.T.Helper()
	u.Await(why, func() error {
		nodes, err := u.c.Jobs().Nodes(Context(u.T))
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if n.Level != want {
				return fmt.Errorf("node %s has level %d, want %d", n.ID, n.Level, want)
			}
		}
		return nil
	})
}

// marked waits until a member's directory is of the new level.
func (u *upgrade) marked(name string) {
	u.T.Helper()
	u.Await("the mark of "+name, func() error {
		found, err := filepath.Glob(filepath.Join(filepath.Dir(u.Log(name)), name, "raft", "*", "member.json"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%v %w", found, err)
		}
		text, err := os.ReadFile(found[0])
		if err == nil && !strings.Contains(string(text), fmt.Sprintf(`"level":%d`, release.Level)) {
			err = fmt.Errorf("%s", text)
		}
		return err
	})
}

// tooOld starts a server of the version before, which ends with one line, and leaves its data as they are.
func (u *upgrade) tooOld(name, binary string) {
	u.T.Helper()
	data := filepath.Join(filepath.Dir(u.Log(name)), name)
	was := tree(u.T, data)
	log, err := os.ReadFile(u.Log(name))
	u.must(err)
	u.Install(binary)
	u.must(u.Start(name))
	u.MayEnd(name)
	<-u.Ended(name)
	text, err := os.ReadFile(u.Log(name))
	u.must(err)
	said := strings.Split(strings.TrimSpace(string(text[len(log):])), "\n")
	last := said[len(said)-1]
	if !strings.Contains(last, release.ErrOlder.Error()) || !strings.Contains(last, "install the version that") || strings.Contains(string(text[len(log):]), "goroutine ") {
		u.T.Errorf("%s of the version before says:\n%s", name, strings.Join(said, "\n"))
	}
	u.T.Logf("%s of the version before: %s", name, last)
	if name[:2] == "nn" || name[:2] == "rm" {
		if is := tree(u.T, data); is != was {
			u.T.Errorf("%s was\n%s\nis\n%s", data, was, is)
		}
	}
}

// tree are the files of a directory with their sizes and times.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintf(&b, "%s %d %v\n", name, info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
