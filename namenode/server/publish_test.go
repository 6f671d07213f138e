package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A job's new version takes the place of the old one with all that belongs to it, or nothing happens and the error says why.
func TestPublish(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.Properties.Protected = []string{"/kept"} })
	root, ctx := c.root(), t.Context()
	for _, err := range []error{
		root.Mkdirs(ctx, "/data/current", 0o777, true), root.Mkdirs(ctx, "/data/next", 0o777, true), root.Mkdirs(ctx, "/kept/d", 0o755, true), root.Mkdirs(ctx, "/bobs", 0o755, true), root.SetOwner(ctx, "/bobs", "bob", ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	version := metadata.XAttr{Name: "version", Value: []byte("2")}
	steps := []dfs.Step{
		dfs.RenameStep{From: "/data/current", To: "/data/old"},
		dfs.RenameStep{From: "/data/next", To: "/data/current"},
		dfs.SetXAttrStep{Path: "/data/current", Attribute: version, Flags: dfs.XAttrCreate},
		dfs.DeleteStep{Path: "/data/old", Recursive: true},
		dfs.SnapshotStep{Dir: "/data", Name: "v2"},
	}
	if _, err := root.Publish(ctx, steps...); !errors.Is(err, metadata.ErrUnsupported) || !strings.Contains(err.Error(), "hops cluster finalize") {
		t.Errorf("before the cluster was raised: %v", err)
	}
	m := c.raised()
	if err := root.WriteFile(ctx, "/data/next/f", []byte("2"), false); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, by *dfs.Client, step int, kind *metadata.Kind, text string, steps ...dfs.Step) {
		t.Helper()
		_, err := by.Publish(ctx, steps...)
		failed, ok := errors.AsType[*dfs.PublishError](err)
		if !errors.Is(err, kind) || ok != (step > 0) || ok && failed.Step != step || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %v in step %d", what, err, kind, step)
		}
		if l, err := root.List(ctx, "/data"); err != nil || len(l) != 2 {
			t.Fatalf("%s: %v, %v", what, l, err)
		}
	}
	refused("no snapshots", root, 5, metadata.ErrSnapshot, "step 5 of 5 (snapshot of /data): Directory is not a snapshottable directory", steps...)
	refused("a step's path", root, 2, metadata.ErrInvalidPath, "step 2 of 2: publish relative: path is not absolute", steps[0], dfs.DeleteStep{Path: "relative"})
	refused("a protected directory", root, 2, metadata.ErrPermission, "step 2 of 2: Cannot delete/rename non-empty protected directory /kept", steps[0], dfs.DeleteStep{Path: "/kept", Recursive: true})
	refused("somebody else", c.client("bob"), 2, metadata.ErrPermission, "step 2 of 2 (rename /data/current to /bobs/c): Permission denied: user=bob",
		dfs.SetXAttrStep{Path: "/bobs", Attribute: version, Flags: dfs.XAttrCreate}, dfs.RenameStep{From: "/data/current", To: "/bobs/c"})
	refused("no steps", root, 0, metadata.ErrInvalidArgument, "there are no steps")
	refused("too many", root, 0, metadata.ErrInvalidArgument, "there are 300 steps, and 256 is the most", make300(steps[0])...)
	refused("what is not there", root, 2, metadata.ErrNotExist, "File does not exist: /data/none", steps[0], dfs.DeleteStep{Path: "/data/none"})
	err := m.operator(t, m.config.Door.Daemon(), "publish", &hadoop.PublishRequestProto{Steps: []*hadoop.PublishStepProto{{Src: ptr("/data")}}}, new(hadoop.PublishResponseProto))
	if err == nil || !strings.Contains(err.Error(), "step 1 of 1 is none that this namenode knows") {
		t.Errorf("a step of a later version: %v", err)
	}
	if err := m.SetSafeMode(true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	m.Publish(m.caller(), namenode.Retry{}, []namenode.PublishStep{{What: namenode.PublishDelete, Path: "/data/next", Recursive: true}}, func(_ string, err error) { done <- err })
	if err := <-done; !errors.Is(err, metadata.ErrSafeMode) {
		t.Errorf("in safe mode: %v", err)
	}
	if err := m.SetSafeMode(false); err != nil {
		t.Fatal(err)
	}

	if err := root.AllowSnapshot(ctx, "/data", true); err != nil {
		t.Fatal(err)
	}
	snapshot, err := root.Publish(ctx, append([]dfs.Step{dfs.DeleteStep{Path: "/data/none", IfThere: true}}, steps...)...)
	if err != nil || snapshot != "/data/.snapshot/v2" {
		t.Fatal(snapshot, err)
	}
	for _, dir := range []string{"/data", snapshot} {
		if data, err := root.ReadFile(ctx, dir+"/current/f"); err != nil || string(data) != "2" {
			t.Errorf("%s: %q, %v", dir, data, err)
		}
		if a, err := root.XAttrs(ctx, dir+"/current"); err != nil || len(a) != 1 || string(a[0].Value) != "2" {
			t.Errorf("%s: %v, %v", dir, a, err)
		}
		if l, err := root.List(ctx, dir); err != nil || len(l) != 1 {
			t.Errorf("%s: %v, %v", dir, l, err)
		}
	}
	if _, err := root.Publish(ctx, dfs.RemoveXAttrStep{Path: "/data/current", Attribute: version}, dfs.RenameStep{From: "/data/current/f", To: "/data/f"}); err != nil {
		t.Error(err)
	}
}

// hops fs -publish does what lines say, all of it or nothing.
func TestPublishByTheShell(t *testing.T) {
	c := newCluster(t, 1, nil)
	m, root, ctx := c.raised(), c.root(), t.Context()
	user := m.config.Door.Daemon()
	for _, err := range []error{root.Mkdirs(ctx, "/d/next 1", 0o755, true), root.Mkdirs(ctx, "/d/current", 0o755, true), root.AllowSnapshot(ctx, "/d", true), root.Mkdirs(ctx, "/user/"+user+"/x", 0o755, true)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(lines string, args ...string) (status int, out, errs string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		s := &shell.Shell{Stdin: strings.NewReader(lines), Stdout: &stdout, Stderr: &stderr, Dial: func(string, map[string]string) (*dfs.Client, string, error) { return c.root(), "hdfs://test", nil }}
		status = s.Run(ctx, args)
		return status, stdout.String(), stderr.String()
	}
	for lines, want := range map[string]string{
		"":                      "there is nothing to do",
		"# nothing\n\n":         "there is nothing to do",
		"mv /a /b":              `line 1: "mv" is none of rename, rm, setfattr and createSnapshot`,
		"rm /a\nrename /a":      "line 2: rename takes [-f], a path and where it is to be",
		"rm -z /a":              "line 1: rm has no option -z",
		"rm '/a":                "line 1: a quote ' does not end",
		"setfattr /a":           "line 1: setfattr takes -n NAME",
		"setfattr -n":           "line 1: setfattr -n needs a value",
		"setfattr -n colour /a": "line 1: ",
		"rm /d/current\nrm /no": "step 2 of 2 (delete /no): File does not exist: /no",
		"rm -f /d/current\nrename '/d/next 1' /none/x": "step 2 of 2 (rename /d/next 1 to /none/x): rename destination parent /none/x not found.",
	} {
		if status, out, errs := run(lines, "-publish", "-"); status == shell.ExitOK || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q, %q, want %q", lines, status, out, errs, want)
		}
	}
	if status, _, errs := run("", "-publish", "/no/such/file"); status != shell.ExitError || !strings.Contains(errs, "no such file") {
		t.Errorf("status %d, %q", status, errs)
	}
	file := filepath.Join(t.TempDir(), "steps")
	lines := "# a version\nrm -r -f /d/old\nrename /d/current /d/old\nrename \"/d/next 1\" /d/current\nsetfattr -n user.version -v 0x37 /d/current\nsetfattr -n user.note -v 'two words' /d/current\n" +
		"setfattr -x user.note /d/current\nrm -r x\nrename -f /d/old /d/older\ncreateSnapshot /d v7\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := run("", "-publish", file); status != shell.ExitOK || out != "Created snapshot /d/.snapshot/v7\n" || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	if a, err := root.XAttrs(ctx, "/d/.snapshot/v7/current"); err != nil || len(a) != 1 || string(a[0].Value) != "7" {
		t.Errorf("%v, %v", a, err)
	}
	if l, err := root.List(ctx, "/user/"+user); err != nil || len(l) != 0 {
		t.Errorf("%v, %v", l, err)
	}
}

func make300(step dfs.Step) []dfs.Step {
	steps := make([]dfs.Step, 300)
	for i := range steps {
		steps[i] = step
	}
	return steps
}

// Readers, of whichever namenode, never see half of a publish, while leaders hand over to each other; each is done once.
func TestNobodySeesHalfOfAPublish(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.raised()
	root, ctx := c.root(), t.Context()
	const versions = 60
	for i := range versions + 1 {
		if err := root.Mkdirs(ctx, fmt.Sprintf("/data/next-%02d/%02d", i, i), 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	attribute := func(i int) metadata.XAttr { return metadata.XAttr{Name: "version", Value: fmt.Appendf(nil, "%02d", i)} }
	if _, err := root.Publish(ctx, dfs.RenameStep{From: "/data/next-00", To: "/data/current"}, dfs.SetXAttrStep{Path: "/data/current", Attribute: attribute(0), Flags: dfs.XAttrCreate}); err != nil {
		t.Fatal(err)
	}
	reading, stop := context.WithCancel(ctx)
	var readers sync.WaitGroup
	seen := make([]int, 4)
	for i := range seen {
		readers.Go(func() {
			fs := c.client("bob")
			for reading.Err() == nil {
				l, err := fs.List(reading, "/data")
				if err != nil {
					if reading.Err() == nil {
						t.Error(err)
					}
					return
				}
				if len(l) == 0 || l[0].Name != "current" || len(l) > 1 && !strings.HasPrefix(l[1].Name, "next-") {
					t.Errorf("a reader sees %v", l)
					return
				}
				if len(l) > versions+1-seen[i] {
					t.Errorf("a reader sees %d after %d versions", len(l), seen[i])
				}
				seen[i] = versions + 1 - len(l)
				a, err := fs.XAttrs(reading, "/data/current")
				if reading.Err() == nil && (err != nil || len(a) != 1) {
					t.Errorf("a reader finds the attributes %v: %v", a, err)
					return
				}
			}
		})
	}
	publish := func(i int) error {
		_, err := root.Publish(ctx, dfs.RenameStep{From: "/data/current", To: "/data/old"}, dfs.RenameStep{From: fmt.Sprintf("/data/next-%02d", i), To: "/data/current"},
			dfs.SetXAttrStep{Path: "/data/current", Attribute: attribute(i), Flags: dfs.XAttrCreate}, dfs.DeleteStep{Path: "/data/old", Recursive: true})
		return err
	}
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		former := lead
		for range 2 {
			before := former
			former = c.handOver(t, func(m *member) bool { return m != before }, "")
		}
	}()
	over := false
	for i := 1; i <= versions; i++ {
		if err := publish(i); err != nil {
			t.Errorf("version %d: %v", i, err)
			break
		}
		// One that fails, in between.
		if _, err := root.Publish(ctx, dfs.RenameStep{From: "/data/current", To: "/data/old"}, dfs.RenameStep{From: "/data/none", To: "/data/current"}); !errors.Is(err, metadata.ErrNotExist) {
			t.Errorf("version %d: one that cannot be: %v", i, err)
		}
		if i == versions/2 && !over {
			<-handed
			over = true
		}
	}
	<-handed
	stop()
	readers.Wait()
	l, err := root.List(ctx, "/data/current")
	if err != nil || len(l) != 1 || l[0].Name != fmt.Sprint(versions) {
		t.Errorf("at the end: %v, %v", l, err)
	}
}

// Large trees of a user are looked at beside the commands, for each step that needs it, and not published when something in them is not theirs.
func TestPublishLargeTrees(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	bob := metadata.Caller{User: "bob", Host: "127.0.0.1"}
	wait := func(n int, call func(done func(error))) (last error) {
		t.Helper()
		got := make(chan error, n)
		call(func(err error) { got <- err })
		for range n {
			if err := <-got; err != nil {
				last = err
			}
		}
		return last
	}
	root, ctx := c.root(), t.Context()
	for _, dir := range []string{"/bob", "/limited"} {
		for _, err := range []error{root.Mkdirs(ctx, dir, 0o755, true), root.SetOwner(ctx, dir, "bob", "")} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := wait(1, func(done func(error)) { m.SetQuota(m.caller(), "/limited", 10_000, metadata.QuotaKeep, done) }); err != nil {
		t.Fatal(err)
	}
	const dirs = 2500
	if err := wait(3*dirs, func(done func(error)) {
		for i := range dirs {
			for _, tree := range []string{"old", "new", "other"} {
				m.Mkdirs(bob, namenode.MkdirsRequest{Path: fmt.Sprintf("/bob/%s/%d/%d", tree, i%10, i), Mode: 0o755, Parents: true}, done)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	publish := func() (failed int, err error) {
		err = wait(1, func(done func(error)) {
			m.Publish(bob, namenode.Retry{}, []namenode.PublishStep{
				{What: namenode.PublishRename, Path: "/bob/new", To: "/limited/new"},
				{What: namenode.PublishDelete, Path: "/bob/old", Recursive: true},
				{What: namenode.PublishDelete, Path: "/bob/other", Recursive: true},
			}, func(_ string, err error) { done(err) })
		})
		if e, ok := errors.AsType[*namenode.PublishError](err); ok {
			failed = e.Step
		}
		return failed, err
	}
	if err := root.Mkdirs(ctx, "/bob/other/3/closed/x", 0o700, true); err != nil {
		t.Fatal(err)
	}
	if failed, err := publish(); !errors.Is(err, metadata.ErrPermission) || failed != 3 {
		t.Errorf("with a directory that is not his: step %d, %v", failed, err)
	}
	if _, err := root.Delete(ctx, "/bob/other/3/closed", true); err != nil {
		t.Fatal(err)
	}
	if failed, err := publish(); err != nil {
		t.Errorf("step %d: %v", failed, err)
	}
	if u, err := m.ns.QuotaUsage(m.caller(), "/limited"); err != nil || u.Names != 2+10+dirs {
		t.Errorf("its usage: %+v, %v", u, err)
	}
	if l, err := root.List(ctx, "/bob"); err != nil || len(l) != 0 {
		t.Errorf("%v, %v", l, err)
	}
}

// Many steps may be about large trees, but not so many that others find no survey any more.
func TestPublishManyLargeTrees(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	root, ctx := c.root(), t.Context()
	for _, dir := range []string{"/a/tree", "/limited"} {
		if err := root.Mkdirs(ctx, dir, 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	quota := make(chan error, 1)
	m.SetQuota(m.caller(), "/limited", 10_000, metadata.QuotaKeep, func(err error) { quota <- err })
	if err := <-quota; err != nil {
		t.Fatal(err)
	}
	const entries = 1100
	made := make(chan error, entries)
	for i := range entries {
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: fmt.Sprintf("/a/tree/%d", i), Mode: 0o755}, func(err error) { made <- err })
	}
	for range entries {
		if err := <-made; err != nil {
			t.Fatal(err)
		}
	}
	from, to := "/a/tree", "/limited/tree"
	there := func(times int) (steps []dfs.Step) {
		for range times {
			steps = append(steps, dfs.RenameStep{From: from, To: to}, dfs.RenameStep{From: to, To: from})
		}
		return steps
	}
	if _, err := root.Publish(ctx, there(publishSurveys/2)...); err != nil {
		t.Errorf("%d large steps: %v", publishSurveys, err)
	}
	_, err := root.Publish(ctx, there(publishSurveys)...)
	if failed, ok := errors.AsType[*dfs.PublishError](err); !ok || failed.Step != publishSurveys+1 || !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), "publish fewer") {
		t.Errorf("%d large steps: %v", 2*publishSurveys, err)
	}
	if l, err := root.List(ctx, from); err != nil || len(l) != entries {
		t.Errorf("%d entries, %v", len(l), err)
	}
}

// Each step is in the audit log as what it does by itself; of one that is refused its step.
func TestPublishesAreInTheAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan error, 1)
	go func() { written <- audit.Run(ctx) }()
	c := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) })
	c.raised()
	root := c.root()
	for _, err := range []error{root.Mkdirs(t.Context(), "/d", 0o777, true), root.SetPermission(t.Context(), "/d", 0o777), root.AllowSnapshot(t.Context(), "/d", true), root.SetOwner(t.Context(), "/d", "bob", "")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bob, tag := c.client("bob"), metadata.XAttr{Name: "a", Value: []byte("1")}
	if err := bob.Mkdirs(t.Context(), "/d/e", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Publish(t.Context(), dfs.RenameStep{From: "/d/e", To: "/d/f"}, dfs.SetXAttrStep{Path: "/d/f", Attribute: tag, Flags: dfs.XAttrCreate},
		dfs.RemoveXAttrStep{Path: "/d/f", Attribute: tag}, dfs.DeleteStep{Path: "/d/f"}, dfs.SnapshotStep{Dir: "/d", Name: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Publish(t.Context(), dfs.SetXAttrStep{Path: "/d", Attribute: tag, Flags: dfs.XAttrCreate}, dfs.RenameStep{From: "/d", To: "/f"}); !errors.Is(err, metadata.ErrPermission) {
		t.Fatal(err)
	}
	if _, err := bob.Publish(t.Context(), dfs.DeleteStep{Path: "/d/none"}); !errors.Is(err, metadata.ErrNotExist) { // no decision about bob
		t.Fatal(err)
	}
	stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		_, decision, _ := strings.Cut(strings.TrimSpace(line), "audit: ")
		if f := strings.Split(decision, "\t"); len(f) > 7 && strings.HasPrefix(f[1], "ugi=bob ") && f[3] != "cmd=mkdirs" {
			got = append(got, strings.Join([]string{f[0], f[3], f[4], f[5], f[7]}, " "))
			if _, reason, _ := strings.Cut(decision, "\treason="); (f[0] == "allowed=false") != strings.Contains(reason, "step 2 of 2 (rename /d to /f): Permission denied: user=bob") {
				t.Errorf("%q", decision)
			}
		}
	}
	want := []string{
		"allowed=true cmd=rename src=/d/e dst=/d/f proto=rpc", "allowed=true cmd=setXAttr src=/d/f dst=null proto=rpc", "allowed=true cmd=removeXAttr src=/d/f dst=null proto=rpc",
		"allowed=true cmd=delete src=/d/f dst=null proto=rpc", "allowed=true cmd=createSnapshot src=/d dst=/d/.snapshot/s proto=rpc",
		"allowed=false cmd=rename src=/d dst=/f proto=rpc",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// PUBLISH of WebHDFS is the same, and done once for each requestid.
func TestPublishOverHTTP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan error, 1)
	go func() { written <- audit.Run(ctx) }()
	c := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) })
	m, root := c.raised(), c.root()
	for _, err := range []error{
		root.Mkdirs(t.Context(), "/d", 0o755, true), root.SetOwner(t.Context(), "/d", "bob", ""), root.AllowSnapshot(t.Context(), "/d", true),
		c.client("bob").Mkdirs(t.Context(), "/d/next", 0o755, true), c.client("bob").Mkdirs(t.Context(), "/d/current", 0o755, true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ask := func(dir, query, text string) (int, string) {
		t.Helper()
		response, err := http.Post("http://"+m.http+"/webhdfs/v1"+dir+"?op=PUBLISH&user.name=bob"+query, "application/json", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(b)
	}
	for _, bad := range []struct {
		query, text string
		code        int
		want        string
	}{
		{"", `{"steps": [`, 400, "the body is no JSON of steps"},
		{"", `{"steps": []} 7`, 400, "something follows them"},
		{"", `{"steps": []}`, 400, "there are no steps"},
		{"", `{"steps": [{"link": {}}]}`, 400, `unknown field`},
		{"", `{"steps": [{"delete": {"path": "next"}}, {}]}`, 400, "step 2 of 2: it is one of rename, delete, setXAttr, removeXAttr and createSnapshot"},
		{"", `{"steps": [{"setXAttr": {"path": "next", "name": "colour"}}]}`, 400, "step 1 of 1: An XAttr name must be prefixed"},
		{"", `{"steps": [{"setXAttr": {"path": "next", "name": "user.a", "flag": "MAYBE"}}]}`, 403, "XAttrSetFlag.MAYBE"},
		{"", `{"steps": [{"delete": {"path": "next"}}, {"delete": {"path": "none"}}]}`, 404, "step 2 of 2 (delete /d/none): File does not exist: /d/none"},
		{"", `{"steps": [{"delete": {"path": "next"}}, {"rename": {"source": "current", "destination": "/c"}}]}`, 403, "step 2 of 2 (rename /d/current to /c): Permission denied: user=bob"},
		{"", `{"steps": [{"delete": {"recursive": true}}]}`, 400, "step 1 of 1: a delete takes a path"},
		{"", `{"steps": [{"rename": {"source": "", "destination": "/d/x"}}]}`, 400, "step 1 of 1: a rename takes a source and a destination"},
		{"", `{"steps": [{"rename": {"source": "next"}}]}`, 400, "step 1 of 1: a rename takes a source and a destination"},
		{"&requestid=7", `{"steps": [{"delete": {"path": "next"}}]}`, 400, "32 hexadecimal digits"},
		{"", `{"steps": [{"delete": {"path": "` + strings.Repeat("x", 1<<20) + `"}}]}`, 400, "the body has more than 1048576 bytes"},
	} {
		if code, answer := ask("/d", bad.query, bad.text); code != bad.code || !strings.Contains(answer, bad.want) {
			t.Errorf("%.100s: %d %s, want %d %s", bad.text, code, answer, bad.code, bad.want)
		}
	}
	text := `{"steps": [{"delete": {"path": "none", "ifThere": true}}, {"rename": {"source": "current", "destination": "/d/old"}}, {"rename": {"source": "next", "destination": "current", "overwrite": true}},
		{"setXAttr": {"path": "current", "name": "user.version", "value": "0x37"}}, {"delete": {"path": "old", "recursive": true}}, {"createSnapshot": {"path": "", "name": "v7"}}]}`
	for range 2 {
		code, answer := ask("/d", "&requestid=00112233445566778899aabbccddeeff", text)
		if code != 200 || answer != `{"Publish":{"steps":6,"snapshot":"/d/.snapshot/v7"}}` {
			t.Errorf("%d %s", code, answer)
		}
	}
	if code, answer := ask("/", "", `{"steps": [{"removeXAttr": {"path": "d/current", "name": "user.version"}}]}`); code != 200 || answer != `{"Publish":{"steps":1,"snapshot":null}}` {
		t.Errorf("%d %s", code, answer)
	}
	if a, err := root.XAttrs(t.Context(), "/d/.snapshot/v7/current"); err != nil || len(a) != 1 || string(a[0].Value) != "7" {
		t.Errorf("%v, %v", a, err)
	}
	stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(lines)) {
		_, decision, _ := strings.Cut(strings.TrimSpace(line), "audit: ")
		if f := strings.Split(decision, "\t"); len(f) > 7 && strings.HasPrefix(f[1], "ugi=bob ") && f[7] == "proto=webhdfs" {
			got = append(got, strings.Join([]string{f[0], f[3], f[4], f[5]}, " "))
		}
	}
	once := []string{
		"allowed=true cmd=delete src=/d/none dst=null", "allowed=true cmd=rename src=/d/current dst=/d/old", "allowed=true cmd=rename src=/d/next dst=/d/current",
		"allowed=true cmd=setXAttr src=/d/current dst=null", "allowed=true cmd=delete src=/d/old dst=null", "allowed=true cmd=createSnapshot src=/d dst=/d/.snapshot/v7",
	}
	want := slices.Concat([]string{"allowed=false cmd=rename src=/d/current dst=/c"}, once, once, []string{"allowed=true cmd=removeXAttr src=/d/current dst=null"})
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
