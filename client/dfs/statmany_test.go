package dfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// newInfosCluster is a cluster whose namenode has getFileInfos. What change does to an answer the client gets; asked are the paths of the calls.
func newInfosCluster(t *testing.T, change func(*hadooppb.GetFileInfosResponseProto)) (c *cluster, client *Client, asked func() [][]string) {
	c, _ = newCluster(t, 0)
	var mu sync.Mutex
	var calls [][]string
	c.addr = c.serve(security.NewDoor(security.Config{}), func(server *hrpc.Server) {
		c.register(server)
		server.Handle(operatorProtocol, hrpc.Method{
			Name: "getFileInfos", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.GetFileInfosRequestProto) },
			Handle: func(call *hrpc.Call) {
				answer, paths := new(hadooppb.GetFileInfosResponseProto), call.Request.(*hadooppb.GetFileInfosRequestProto).GetPaths()
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, paths)
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, name := range paths {
					one := new(hadooppb.FoundInfoProto)
					switch f := c.files[name]; {
					case strings.HasPrefix(name, "/secret"):
						one.Exception, one.Message = new("org.apache.hadoop.security.AccessControlException"), new("Permission denied: "+name)
					case f != nil:
						one.Fs = c.status(f, "")
					}
					answer.Infos = append(answer.Infos, one)
				}
				change(answer)
				call.Reply(answer)
			},
		})
	})
	return c, c.client(Config{}), func() [][]string { mu.Lock(); defer mu.Unlock(); return calls }
}

func (c *cluster) make(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.mkdirs(name, 0o755)
	}
}

func TestStatMany(t *testing.T) {
	t.Parallel()
	c, client, asked := newInfosCluster(t, func(*hadooppb.GetFileInfosResponseProto) {})
	long := "/" + strings.Repeat("x", 3000)
	c.make("/d", long)
	ctx := t.Context()
	names := []string{"/d", "relative", "/none", "/secret/f", "/d/../d/", "/"}
	for i := range 1000 {
		if names = append(names, fmt.Sprintf("/d/%d", i)); i%2 == 0 {
			c.make(names[len(names)-1])
		}
	}
	for range 10 {
		names = append(names, long)
	}
	got, err := client.StatMany(ctx, names)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		want, err := client.Stat(ctx, name)
		if name == "/secret/f" {
			err = &Error{Op: "stat", Path: name, Kind: metadata.ErrPermission, Message: "Permission denied: " + name}
		}
		if got.Statuses[i] != want || fmt.Sprint(got.Errors[i]) != fmt.Sprint(err) || err != nil && !errors.Is(got.Errors[i], metadata.KindOf(err)) {
			t.Errorf("%.50s: %+v, %v; alone %+v, %v", name, got.Statuses[i], got.Errors[i], want, err)
		}
	}
	calls, paths := asked(), 0
	for _, call := range calls {
		size := 0
		for _, path := range call {
			size += len(path)
		}
		if paths += len(call); len(call) > statPaths || size > statBytes {
			t.Errorf("a call about %d paths of %d bytes", len(call), size)
		}
	}
	if paths != len(names)-1 || len(calls) > 17 {
		t.Errorf("%d calls about %d paths, of %d that are absolute", len(calls), paths, len(names)-1)
	}
	if none, err := client.StatMany(ctx, nil); err != nil || len(none.Statuses) != 0 {
		t.Errorf("of no paths: %+v, %v", none, err)
	}
	if len(asked()) != len(calls) {
		t.Error("no paths are asked about")
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := client.StatMany(ctx, names); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

// An answer that is not one about all paths is an error of all.
func TestStatManyRefusesOtherAnswers(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*hadooppb.GetFileInfosResponseProto){
		"too few":  func(a *hadooppb.GetFileInfosResponseProto) { a.Infos = a.Infos[1:] },
		"too many": func(a *hadooppb.GetFileInfosResponseProto) { a.Infos = append(a.Infos, a.Infos...) },
		"none":     func(a *hadooppb.GetFileInfosResponseProto) { a.Infos = nil },
	} {
		c, client, _ := newInfosCluster(t, change)
		c.make("/d")
		if _, err := client.StatMany(t.Context(), []string{"/d", "/e"}); !errors.Is(err, metadata.ErrIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A server without the call is asked for it once, and then about each path, several at a time.
func TestStatManyWithoutTheCall(t *testing.T) {
	t.Parallel()
	c, client := newCluster(t, 0)
	c.make("/d")
	var mu sync.Mutex
	under, together := 0, make(chan struct{})
	c.before = func(method string, call *hrpc.Call) error {
		if method != "getFileInfo" {
			return nil
		}
		mu.Lock()
		if under++; under == statAlone {
			close(together)
		}
		mu.Unlock()
		select {
		case <-together:
		case <-time.After(limit):
			t.Error("calls wait for each other")
		}
		if call.Request.(*hadooppb.GetFileInfoRequestProto).GetSrc() == "/secret" {
			return metadata.Errorf(metadata.ErrPermission, "not for you")
		}
		return nil
	}
	names := []string{"/d", "/none", "/secret", "relative"}
	for i := range 60 {
		names = append(names, fmt.Sprintf("/d/%d", i))
	}
	c.make(names[4:]...)
	for range 2 {
		got, err := client.StatMany(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		if got.Errors[0] != nil || !got.Statuses[0].IsDir() || !errors.Is(got.Errors[1], metadata.ErrNotExist) || !errors.Is(got.Errors[2], metadata.ErrPermission) || !errors.Is(got.Errors[3], metadata.ErrInvalidPath) {
			t.Errorf("%+v, %v", got.Statuses[0], got.Errors[:4])
		}
		for i := 4; i < len(names); i++ {
			if got.Errors[i] != nil || got.Statuses[i].Path != names[i] {
				t.Errorf("%s: %+v, %v", names[i], got.Statuses[i], got.Errors[i])
			}
		}
		if client.infos.served() {
			t.Error("it would be asked again")
		}
	}
	if n := c.count("getFileInfo"); n != 2*(len(names)-1) {
		t.Errorf("%d calls for twice %d paths", n, len(names)-1)
	}
}
