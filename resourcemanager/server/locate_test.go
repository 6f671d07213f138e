package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// tree is a filesystem of directories, and of files with one block of 1 MiB for each of their MiB, on datanode d1 and, the even ones, d2.
type tree struct {
	dirs map[string][]string
	mu   sync.Mutex
	// files whose blocks were asked for, and directories that were listed; closed counts clients.
	files, lists, closed int
	longest              int64
}

func (f *tree) Stat(_ context.Context, name string) (metadata.FileStatus, error) {
	name = strings.TrimRight(name, "/")
	if _, ok := f.dirs[name]; ok {
		return metadata.FileStatus{Type: metadata.TypeDirectory}, nil
	}
	if strings.HasPrefix(name, "/secret") {
		return metadata.FileStatus{}, metadata.Errorf(metadata.ErrPermission, "Permission denied: %s", name)
	}
	if !strings.Contains(name, "file") {
		return metadata.FileStatus{}, metadata.Errorf(metadata.ErrNotExist, "%s is not there", name)
	}
	return metadata.FileStatus{Name: name, Length: 2 << 20, BlockSize: 1 << 20, Type: metadata.TypeFile}, nil
}

func (f *tree) ListPage(_ context.Context, name, after string) (dfs.Page, error) {
	f.mu.Lock()
	f.lists++
	f.mu.Unlock()
	var p dfs.Page
	for _, e := range f.dirs[strings.TrimRight(name, "/")] {
		s := metadata.FileStatus{Name: strings.TrimSuffix(e, "/"), Type: metadata.TypeFile, Length: 2 << 20, BlockSize: 1 << 20}
		switch {
		case strings.HasSuffix(e, "/"):
			s.Type = metadata.TypeDirectory
		case strings.HasPrefix(e, "huge"):
			s.Length = 1 << 50
		case strings.HasPrefix(e, "empty"):
			s.Length = 0
		}
		if p.Entries = append(p.Entries, s); len(p.Entries) == 1000 {
			p.Remaining = 1_000_000
			break
		}
	}
	return p, nil
}

func (f *tree) BlockLocations(_ context.Context, name string, offset, length int64) (out []dfs.BlockLocation, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files++
	f.longest = max(f.longest, length)
	if strings.Contains(name, "unreadable") {
		return nil, metadata.Errorf(metadata.ErrPermission, "Permission denied: %s", name)
	}
	for i := range length >> 20 {
		nodes := []dfs.Datanode{{UUID: "1", Hostname: "d1", IP: "10.0.0.1", Rack: "/r1"}, {UUID: "2", Hostname: "d2", IP: "10.0.0.2", Rack: "/r2"}}
		out = append(out, dfs.BlockLocation{Offset: offset + i<<20, Length: 1 << 20, Datanodes: nodes[:2-i%2]})
	}
	return out, nil
}

func (f *tree) Close() error { f.mu.Lock(); f.closed++; f.mu.Unlock(); return nil }

// Files and directories are added up; what is missing, or may not be read, is said and does not hide the rest; and however much there is, the look
// ends.
func TestWhereFilesLie(t *testing.T) {
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprintf("file%d", i)
	}
	f := &tree{dirs: map[string][]string{"/d": {"a file", "empty", "sub/"}, "/d/sub": {"b file", "unreadable"}, "/many": many, "/huge": {"huge"}}}
	for i := range 300 { // directories in directories
		f.dirs["/deep"+strings.Repeat("/x", i)] = []string{"x/"}
	}
	var users []string
	l := dfsLocations(func(user string) (locator, error) { users = append(users, user); return f, nil })
	bytes := func(list []DataNode) string {
		out := ""
		for _, d := range list {
			out += fmt.Sprintf("%s %s %s %d; ", d.Host, d.IP, d.Rack, d.Bytes>>20)
		}
		return strings.TrimSuffix(out, "; ")
	}
	for _, x := range []struct{ paths, want, err string }{
		{"/file", "d1 10.0.0.1 /r1 2; d2 10.0.0.2 /r2 1", ""},
		{"/file /gone", "d1 10.0.0.1 /r1 2; d2 10.0.0.2 /r2 1", "/gone is not there"},
		{"/secret", "", "Permission denied: /secret"},
		{"/d/", "d1 10.0.0.1 /r1 4; d2 10.0.0.2 /r2 2", "Permission denied: /d/sub/unreadable"},
		{"/many /many", "d1 10.0.0.1 /r1 2000; d2 10.0.0.2 /r2 1000", ""},
		{"/huge", "d1 10.0.0.1 /r1 1000; d2 10.0.0.2 /r2 500", ""},
		{"/deep", "", ""},
	} {
		f.files, f.lists = 0, 0
		got, err := l.Locate(t.Context(), "ann", strings.Fields(x.paths))
		if bytes(got) != x.want || fmt.Sprint(err) != x.err && (err != nil) != (x.err != "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %s, %v", x.paths, bytes(got), err)
		}
		if f.files > maxLocatedFiles || f.lists > maxLocatedDirs || f.longest > maxLocatedBlocks<<20 {
			t.Errorf("%s: %d files, %d lists, %d bytes", x.paths, f.files, f.lists, f.longest)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Locate(ctx, "ann", []string{"/many"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if f.closed != len(users) || users[0] != "ann" {
		t.Errorf("%d of %d clients are closed", f.closed, len(users))
	}
}

// fakeLocations is a filesystem that says what a test wants.
type fakeLocations struct {
	locate func(ctx context.Context, user string, paths []string) ([]DataNode, error)
	asked  atomic.Int64
}

func (f *fakeLocations) Locate(ctx context.Context, user string, paths []string) ([]DataNode, error) {
	f.asked.Add(1)
	return f.locate(ctx, user, paths)
}

// A job runs where its data is, if there is room; its asks wait until that is known, and no longer than for a moment if it is not to be found.
func TestAJobNearItsData(t *testing.T) {
	answers := make(chan []DataNode)
	files := &fakeLocations{}
	files.locate = func(ctx context.Context, user string, paths []string) ([]DataNode, error) {
		if user != "ann" || len(paths) != 1 {
			return nil, fmt.Errorf("%s asks for %v", user, paths)
		}
		if paths[0] != "/data" {
			return nil, metadata.Errorf(metadata.ErrNotExist, "%s is not there", paths[0])
		}
		select {
		case nodes := <-answers:
			return nodes, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c := raised(t, 1, func(config *Config) { config.Locations, config.locateTime = files, time.Hour })
	nodes := []*fakeNode{c.node("n1:1", 0, programs(c, untilStopped)), c.node("n2:1", 0, programs(c, untilStopped)), c.node("n3:1", 0, programs(c, untilStopped))}
	c.awaitOpen(nodes...)
	document := func(path string, memory int64) map[string]any {
		return map[string]any{"argv": []string{"train"}, "resources": map[string]any{"memory": memory}, "near": map[string]any{"paths": []string{path}, "wait": "1h"}}
	}
	id := c.submit("ann", document("/data", 12<<30))
	eventually(t, "the look to be said", func() bool {
		list := c.leader().Waiting(id)
		return len(list) == 1 && list[0].Reason.Code == rm.ReasonLocality && list[0].Reason.Text == "looks up where /data lies"
	})
	select { // the filesystem knows the third node by its address
	case answers <- []DataNode{{Host: "n2.example.com", IP: "n3", Rack: "/r3", Bytes: 10}, {Host: "elsewhere", Rack: "/r9", Bytes: 5}}:
	case <-t.Context().Done():
	}
	eventually(t, "the container", func() bool { return len(nodes[2].running(false)) == 1 })
	second := c.submit("ann", document("/data", 12<<30)) // another application, which is looked up anew; the third node is full
	select {
	case answers <- []DataNode{{Host: "n3", Bytes: 10}}:
	case <-t.Context().Done():
	}
	eventually(t, "the delay to be said", func() bool {
		list := c.leader().Waiting(second)
		return len(list) == 1 && strings.HasPrefix(list[0].Reason.Text, "waits for room on host n3:1, where its data is, until ")
	})
	lost := c.submit("ann", document("/gone", 1<<30))
	c.await(lost, rm.StateRunning)
	eventually(t, "its container", func() bool {
		return len(nodes[0].running(false))+len(nodes[1].running(false))+len(nodes[2].running(false)) == 2
	})
	nowhere := document("/gone", 1<<30)
	nowhere["placement"] = map[string]any{"attributes": map[string]string{"zone": "a"}}
	waits := c.submit("ann", nowhere)
	eventually(t, "the problem to be said", func() bool {
		list := c.leader().Waiting(waits)
		return len(list) == 1 && list[0].Reason.Code == rm.ReasonAttributes && strings.HasSuffix(list[0].Reason.Text, "; near: not resolved: /gone is not there")
	})
	for _, bad := range []string{`{"paths":["data"]}`, `{"wait":"1s"}`, `{"racks":["r1"]}`} {
		var problem map[string]any
		if code, _ := c.http("POST", "/api/v1/jobs", "ann", `{"argv":["x"],"near":`+bad+`}`, &problem); code != 400 || !strings.Contains(fmt.Sprint(problem), "near: ") {
			t.Errorf("%s: %d %v", bad, code, problem)
		}
	}
	if n := files.asked.Load(); n != 4 {
		t.Errorf("the filesystem was asked %d times for four jobs", n)
	}
	var planned struct {
		Waits []struct{ Reason rm.Reason }
	}
	if code, _ := c.http("POST", "/api/v1/jobs?dry_run=true", "ann", nowhere, &planned); code != 200 || len(planned.Waits) != 1 || !strings.Contains(planned.Waits[0].Reason.Text, "near: not resolved") {
		t.Errorf("%d %+v", code, planned)
	}
	if files.asked.Load() == 4 {
		t.Error("the filesystem was not asked for the dry run")
	}
}

// A filesystem that does not answer holds no job up beyond its time.
func TestASlowFilesystem(t *testing.T) {
	files := &fakeLocations{locate: func(ctx context.Context, _ string, _ []string) ([]DataNode, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c := raised(t, 1, func(config *Config) { config.Locations, config.locateTime = files, 50*time.Millisecond })
	n := c.node("n1:1", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	id := c.submit("ann", map[string]any{"argv": []string{"train"}, "instances": 2, "resources": map[string]any{"memory": 10 << 30}, "near": map[string]any{"paths": []string{"/data"}}})
	eventually(t, "a container in spite of that", func() bool { return len(n.running(false)) == 1 })
	eventually(t, "the reason of the other one", func() bool {
		list := c.leader().Waiting(id)
		return len(list) == 1 && strings.HasSuffix(list[0].Reason.Text, "; near: not resolved: the filesystem has not said in time where they lie")
	})
}

// Many looks at once are bounded, for each user, and end with the reign.
func TestManyLooks(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most = max(most, now)
	}
	files := &fakeLocations{locate: func(ctx context.Context, _ string, _ []string) ([]DataNode, error) {
		count(1)
		defer count(-1)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c := raised(t, 1, func(config *Config) { config.Locations, config.locateTime = files, time.Hour })
	n := c.node("n1:1", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	r := c.leader().reign.Load()
	look := func(user string, app int64, path string) located {
		return r.finder.look(&rm.Application{ID: rm.ApplicationID{Cluster: 1, Sequence: app}, User: user}, []string{path})
	}
	refused := 0
	for app := range int64(10) {
		for i := range 101 {
			if at := look("ann", 1000+app, fmt.Sprint("/", i)); at.done {
				refused++
			}
		}
	}
	if refused < 10*101-lookupsWaiting/2 || look("bob", 2000, "/x").done {
		t.Errorf("%d are refused", refused)
	}
	mu.Lock()
	if most > lookupsAtOnce/2+1 {
		t.Errorf("%d at once", most)
	}
	mu.Unlock()
	id := c.submit("ann", map[string]any{"argv": []string{"train"}, "near": map[string]any{"paths": []string{"/data"}}})
	eventually(t, "the container in spite of that", func() bool { return len(n.running(false)) == 1 })
	if c.job(id).State != rm.StateRunning {
		t.Error("it has ended")
	}
	ask := &pb.Ask{AskId: "w", Count: 1, Held: true, Resources: &pb.Resources{Memory: 1 << 30, Vcores: 1}, StrictLocality: true, Near: &pb.Near{Paths: []string{"/data"}}}
	w, err := wantedAsk(ask)
	if err == nil {
		_, err = c.leader().wanted(id, &w)
	}
	if err == nil || !strings.Contains(err.Error(), "paths are a preference") {
		t.Error(err)
	}
}
