package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What one request says about many paths is what Stat says about each, to everybody.
func TestStatManyIsStatOfEach(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	root, ctx := c.root(), t.Context()
	for _, err := range []error{
		root.Mkdirs(ctx, "/d/e", 0o755, true), root.WriteFile(ctx, "/d/f", []byte("12345"), false), root.WriteFile(ctx, "/d/g", nil, false), root.AllowSnapshot(ctx, "/d", true),
		root.Mkdirs(ctx, "/secret/in", 0o755, true), root.WriteFile(ctx, "/secret/f", []byte("1"), false), root.SetPermission(ctx, "/secret", 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := root.CreateSnapshot(ctx, "/d", "s"); err != nil {
		t.Fatal(err)
	}
	if ok, err := root.Delete(ctx, "/d/g", false); err != nil || !ok {
		t.Fatal(ok, err)
	}
	f, err := root.Stat(ctx, "/d/f")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{
		"/", "/d", "/d/", "/d/f", "/nothing", "/d/nothing/below", "/d/f/below", "/d/f/far/below", "/secret", "/secret/f", "/secret/in", "/secret/nothing",
		"/d/.snapshot", "/d/.snapshot/s", "/d/.snapshot/s/g", "/d/.snapshot/s/f", "/d/.snapshot/none", "/d/.snapshot/s/nothing", "/d/e/.snapshot", "/.reserved",
		"/.reserved/.inodes/" + fmt.Sprint(f.ID), "/.reserved/.inodes/1", "/.reserved/raw", "/.reserved/raw/d/f", "/d/f", "relative", "", "/a//b/../../d/f", "/with\x00zero", "/d/" + strings.Repeat("x", 300),
		"/" + strings.Repeat("deep/", 1200), "/" + strings.Repeat("long", 3000), "/\xff",
	}
	kindOf := func(err error) *metadata.Kind {
		if err == nil {
			return nil
		}
		return metadata.KindOf(err)
	}
	kinds := map[string]map[*metadata.Kind]bool{}
	for _, user := range []string{m.config.Door.Daemon(), "bob"} {
		fs, seen := c.client(user), map[*metadata.Kind]bool{}
		got, err := fs.StatMany(ctx, names)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			want, err := fs.Stat(ctx, name)
			if !reflect.DeepEqual(got.Statuses[i], want) || fmt.Sprint(got.Errors[i]) != fmt.Sprint(err) || kindOf(got.Errors[i]) != kindOf(err) {
				t.Errorf("%s, %.60q: %+v, %v; alone %+v, %v", user, name, got.Statuses[i], got.Errors[i], want, err)
			}
			seen[kindOf(err)] = true
		}
		kinds[user] = seen
	}
	for _, kind := range []*metadata.Kind{nil, metadata.ErrNotExist, metadata.ErrPermission, metadata.ErrInvalidPath} {
		if !kinds["bob"][kind] {
			t.Errorf("no path is %v for bob: %v", kind, kinds["bob"])
		}
	}
	if kinds[m.config.Door.Daemon()][metadata.ErrPermission] {
		t.Error("the superuser is refused a path")
	}
	// As many as one likes, in their order.
	names = nil
	for i := range 3000 {
		names = append(names, []string{"/d/f", "/d", fmt.Sprintf("/nothing/%d", i)}[i%3])
	}
	many, err := root.StatMany(ctx, names)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if err := many.Errors[i]; i%3 == 2 && (!errors.Is(err, metadata.ErrNotExist) || !strings.Contains(err.Error(), name)) || i%3 < 2 && (err != nil || many.Statuses[i].Path != name) {
			t.Fatalf("%s: %+v, %v", name, many.Statuses[i], err)
		}
	}
	if many, err := root.StatMany(ctx, nil); err != nil || len(many.Statuses) != 0 || len(many.Errors) != 0 {
		t.Errorf("of no paths: %+v, %v", many, err)
	}
}

// The wire has limits, and what is large waits for room and is answered all the same.
func TestStatManyLimits(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	if err := c.root().Mkdirs(t.Context(), "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	user := m.config.Door.Daemon()
	ask := func(paths ...string) ([]*hadoop.FoundInfoProto, error) {
		var answer hadoop.GetFileInfosResponseProto
		err := m.operator(t, user, "getFileInfos", &hadoop.GetFileInfosRequestProto{Paths: paths}, &answer)
		return answer.GetInfos(), err
	}
	for _, n := range []int{0, 1, 128, 129, 1024} {
		paths := slices.Repeat([]string{"/d", "/" + strings.Repeat("n", 200)}, n)[:n]
		infos, err := ask(paths...)
		if err != nil || len(infos) != n {
			t.Fatalf("%d paths: %d answers, %v", n, len(infos), err)
		}
		for i, info := range infos {
			if there := i%2 == 0; (info.Fs != nil) != there || info.Exception != nil || there && info.Fs.GetFileType() != hadoop.HdfsFileStatusProto_IS_DIR {
				t.Fatalf("%d paths, %s: %v", n, paths[i], info)
			}
		}
	}
	if _, err := ask(slices.Repeat([]string{"/d"}, 1025)...); err == nil || !strings.Contains(err.Error(), "1025 paths, and 1024 is the most") {
		t.Errorf("too many paths: %v", err)
	}
	// Room for a large answer is asked for before it is made, and none is asked for a small one.
	for _, n := range []int{1, 1024} {
		var asked int64
		got := make(chan error, 1)
		full := metadata.Errorf(metadata.ErrRetriable, "no room")
		m.StatMany(m.caller(), namenode.StatManyRequest{Paths: slices.Repeat([]string{"/d"}, n), Admit: func(n int64) error { asked = n; return full }},
			func(_ []namenode.Found, err error) { got <- err })
		if err := <-got; n == 1 && (err != nil || asked != 0) || n > 1 && (!errors.Is(err, metadata.ErrRetriable) || asked < 1024*entrySize) {
			t.Errorf("%d paths: %v, room for %d bytes was asked for", n, err, asked)
		}
	}
}

// Namenodes that do not lead answer it as they answer Stat.
func TestStatManyOfObservers(t *testing.T) {
	t.Parallel()
	const standby, retriable = "org.apache.hadoop.ipc.StandbyException", "org.apache.hadoop.ipc.RetriableException"
	c := newCluster(t, 3, nil)
	lead := c.leader()
	other := c.nodes[slices.IndexFunc(c.nodes, func(m *member) bool { return m.Server != lead.Server })]
	a := &aligned{t: t, seen: math.MinInt64}
	own := func(m *member, n int) (string, []*hadoop.FoundInfoProto) {
		a.protocol = clientprotocol.OperatorName
		defer func() { a.protocol = "" }()
		answer := new(hadoop.GetFileInfosResponseProto)
		class := a.call(m, "getFileInfos", &hadoop.GetFileInfosRequestProto{Paths: slices.Repeat([]string{"/d", "/none"}, n)}, answer)
		return class, answer.GetInfos()
	}
	if class := a.call(lead, "mkdirs", &hadoop.MkdirsRequestProto{Src: ptr("/d"), Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &hadoop.MkdirsResponseProto{}); class != "" {
		t.Fatal(class)
	}
	for _, n := range []int{1, 500} {
		eventually(t, "the other namenode answers", func() bool {
			switch class, infos := own(other, n); {
			case class == standby || class == retriable: // it does not observe yet, or the machine is busy
				return false
			case class != "" || len(infos) != 2*n || infos[0].Fs == nil || infos[1].Fs != nil:
				t.Fatal(class, len(infos))
			}
			return true
		})
	}
	if err := other.operator(t, "ann", "getFileInfos", &hadoop.GetFileInfosRequestProto{Paths: []string{"/d"}}, new(hadoop.GetFileInfosResponseProto)); err == nil || !strings.Contains(err.Error(), "StandbyException") && !errors.Is(err, metadata.ErrStandby) {
		t.Errorf("a client that does not say what it has seen: %v", err)
	}
}

// Of each of many paths the audit log says whether the caller was let, as of one.
func TestManyPathsAreInTheAuditLog(t *testing.T) {
	for _, reads := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "audit.log")
		audit, err := security.OpenAudit(security.AuditConfig{Path: path, Reads: reads})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		written := make(chan error, 1)
		go func() { written <- audit.Run(ctx) }()
		c := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) })
		m, root := c.raised(), c.root()
		for _, err := range []error{
			root.Mkdirs(t.Context(), "/d", 0o755, true), root.Mkdirs(t.Context(), "/secret", 0o755, true), root.WriteFile(t.Context(), "/d/f", []byte("1"), false), root.WriteFile(t.Context(), "/secret/f", []byte("2"), false), root.SetPermission(t.Context(), "/secret", 0o700),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		paths := []string{"/d/f", "/secret/f", "/none", "/secret/g", "relative"}
		if err := m.operator(t, "bob", "getFileInfos", &hadoop.GetFileInfosRequestProto{Paths: paths}, new(hadoop.GetFileInfosResponseProto)); err != nil {
			t.Fatal(err)
		}
		if err := m.operator(t, "bob", "openManyWithData", &hadoop.OpenManyWithDataRequestProto{Paths: paths}, new(hadoop.OpenManyWithDataResponseProto)); err != nil {
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
			if f := strings.Split(decision, "\t"); len(f) > 7 && strings.HasPrefix(f[1], "ugi=bob ") {
				got = append(got, strings.Join([]string{f[0], f[3], f[4], f[7]}, " "))
				if _, reason, _ := strings.Cut(decision, "\treason="); (f[0] == "allowed=false") != strings.Contains(reason, "Permission denied: user=bob") {
					t.Errorf("%q", decision)
				}
			}
		}
		want := []string{
			"allowed=true cmd=getfileinfo src=/d/f proto=rpc", "allowed=false cmd=getfileinfo src=/secret/f proto=rpc",
			"allowed=true cmd=getfileinfo src=/none proto=rpc", "allowed=false cmd=getfileinfo src=/secret/g proto=rpc",
			"allowed=true cmd=open src=/d/f proto=rpc", "allowed=false cmd=open src=/secret/f proto=rpc",
		}
		if !reads {
			want = slices.DeleteFunc(want, func(line string) bool { return strings.HasPrefix(line, "allowed=true") })
		}
		if !slices.Equal(got, want) {
			t.Errorf("reads %v: got\n%s\nwant\n%s", reads, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
