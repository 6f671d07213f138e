package dfs

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What steps say goes to the namenode as it is, and what it says of one comes back as the error of that step.
func TestPublish(t *testing.T) {
	t.Parallel()
	var got *hadooppb.PublishRequestProto
	answer := new(hadooppb.PublishResponseProto)
	c, _ := newCluster(t, 0)
	c.addr = c.serve(security.NewDoor(security.Config{}), func(server *hrpc.Server) {
		c.register(server)
		server.Handle(operatorProtocol, hrpc.Method{
			Name: "publish", Right: security.ByPath, New: func() hrpc.Message { return new(hadooppb.PublishRequestProto) },
			Handle: func(call *hrpc.Call) {
				got = call.Request.(*hadooppb.PublishRequestProto)
				call.Reply(answer)
			},
		})
	})
	client := c.client(Config{})
	tag := metadata.XAttr{Namespace: metadata.XAttrTrusted, Name: "a", Value: []byte("1")}
	steps := []Step{
		RenameStep{From: "/a/", To: "/b/../c", Overwrite: true},
		DeleteStep{Path: "/d", Recursive: true, IfThere: true},
		SetXAttrStep{Path: "/e", Attribute: tag, Flags: XAttrCreate | XAttrReplace},
		RemoveXAttrStep{Path: "/f", Attribute: tag},
		SnapshotStep{Dir: "/g", Name: "s"},
	}
	answer.Snapshot = new("/g/.snapshot/s")
	if path, err := client.Publish(t.Context(), steps...); err != nil || path != "/g/.snapshot/s" {
		t.Fatal(path, err)
	}
	var told []string
	for _, s := range got.Steps {
		told = append(told, strings.TrimSpace(strings.Join([]string{s.GetKind().String(), s.GetSrc(), s.GetDst(), s.GetXattr().GetName(), string(s.GetXattr().GetValue()), s.GetName()}, " ")))
	}
	want := "RENAME /a /c|DELETE /d|SET_XATTR /e  a 1|REMOVE_XATTR /f  a|CREATE_SNAPSHOT /g    s"
	if strings.Join(told, "|") != want || !got.Steps[0].GetOverwrite() || !got.Steps[1].GetRecursive() || !got.Steps[1].GetIfThere() || got.Steps[2].GetFlag() != 3 {
		t.Errorf("%q, %v", told, got)
	}
	*answer = hadooppb.PublishResponseProto{Failed: new(uint32(2)), Exception: new("org.apache.hadoop.security.AccessControlException"), Message: new("step 2 of 5 (delete /d): no")}
	_, err := client.Publish(t.Context(), steps...)
	if failed, ok := errors.AsType[*PublishError](err); !ok || failed.Step != 2 || !errors.Is(err, metadata.ErrPermission) || err.Error() != "publish: step 2 of 5 (delete /d): no" {
		t.Errorf("%+v", err)
	}
	for i, bad := range []Step{
		RenameStep{From: "a", To: "/b"}, RenameStep{From: "/a", To: "b"}, DeleteStep{}, SetXAttrStep{Path: "a"}, RemoveXAttrStep{Path: "/a\x00"}, SnapshotStep{Dir: "a"},
	} {
		got = nil
		_, err := client.Publish(t.Context(), steps[0], bad)
		if failed, ok := errors.AsType[*PublishError](err); !ok || failed.Step != 2 || !errors.Is(err, metadata.ErrInvalidPath) || got != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A server without the call is asked once; steps are not done one after the other in its place.
func TestPublishWithoutTheCall(t *testing.T) {
	t.Parallel()
	c, client := newCluster(t, 0)
	var calls atomic.Int32
	c.before = func(string, *hrpc.Call) error { calls.Add(1); return nil }
	c.make("/a")
	for range 2 {
		_, err := client.Publish(t.Context(), RenameStep{From: "/a", To: "/b"})
		if !errors.Is(err, metadata.ErrUnsupported) || !strings.Contains(err.Error(), "not supported until all namenodes run a version of hops that has it") {
			t.Error(err)
		}
	}
	if client.publishes.served() || calls.Load() > 0 {
		t.Errorf("it would be asked again, or was asked for %d other things", calls.Load())
	}
}
