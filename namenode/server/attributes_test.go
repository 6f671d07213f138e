package server

import (
	"errors"
	"reflect"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func TestAttributesTravelOverTheWire(t *testing.T) {
	c := newCluster(t, 1, nil)
	fs, ctx := c.root(), t.Context()
	if err := fs.Mkdirs(ctx, "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	colour := metadata.XAttr{Name: "colour", Value: []byte("red")}
	if err := fs.SetXAttr(ctx, "/d", colour, dfs.XAttrCreate); err != nil {
		t.Fatal(err)
	}
	if err := fs.SetXAttr(ctx, "/d", colour, dfs.XAttrCreate); !errors.Is(err, metadata.ErrIO) {
		t.Errorf("made twice: %v", err)
	}
	if all, err := fs.XAttrs(ctx, "/d"); err != nil || len(all) != 1 || all[0].FullName() != "user.colour" || string(all[0].Value) != "red" {
		t.Errorf("attributes %v, %v", all, err)
	}
	if all, err := fs.ListXAttrs(ctx, "/d"); err != nil || len(all) != 1 {
		t.Errorf("names %v, %v", all, err)
	}
	if err := fs.RemoveXAttr(ctx, "/d", colour); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.XAttrs(ctx, "/d", colour); !errors.Is(err, metadata.ErrNoAttribute) {
		t.Errorf("read after removal: %v", err)
	}

	alice := metadata.ACLEntry{Type: metadata.ACLUser, Name: "alice", Rights: metadata.Read | metadata.Write | metadata.Execute}
	if err := fs.ModifyACL(ctx, "/d", []metadata.ACLEntry{alice}); err != nil {
		t.Fatal(err)
	}
	if acl, err := fs.ACL(ctx, "/d"); err != nil || len(acl.Entries) != 2 || acl.Entries[0] != alice || acl.Mode != 0o775 {
		t.Errorf("list %+v, %v", acl, err)
	}
	if st, err := fs.Stat(ctx, "/d"); err != nil || !st.ACL {
		t.Errorf("status %+v, %v", st, err)
	}
	if err := c.client("alice").Mkdirs(ctx, "/d/hers", 0o700, true); err != nil {
		t.Error(err)
	}
	if err := c.client("bob").Mkdirs(ctx, "/d/his", 0o700, true); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("bob: %v", err)
	}
	if err := fs.SetACL(ctx, "/d", []metadata.ACLEntry{alice}); !errors.Is(err, metadata.ErrACL) {
		t.Errorf("a list without the owner: %v", err)
	}

	if err := c.client("alice").SetQuota(ctx, "/d", 2, metadata.QuotaKeep); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("alice sets a quota: %v", err)
	}
	if err := fs.SetQuota(ctx, "/d", 2, metadata.QuotaKeep); err != nil {
		t.Fatal(err)
	}
	if err := fs.Mkdirs(ctx, "/d/more", 0o755, true); !errors.Is(err, metadata.ErrNamespaceQuota) {
		t.Errorf("beyond the quota: %v", err)
	}
	want := metadata.QuotaUsage{Names: 2, NameQuota: 2, Space: 0, SpaceQuota: -1}
	if u, err := fs.QuotaUsage(ctx, "/d"); err != nil || !reflect.DeepEqual(u, want) {
		t.Errorf("usage %+v, %v", u, err)
	}
	if _, err := fs.CreateSnapshot(ctx, "/d", "s"); !errors.Is(err, metadata.ErrSnapshot) {
		t.Errorf("snapshot: %v", err)
	}
}

func TestTruncateInsideABlockWaitsForItsReplicas(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	w := c.leader().begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(w.block(1000), pb.ReplicaState_FINALIZED)
	eventually(t, "the file is closed", func() bool {
		w.block(1000)
		done, err := w.complete()
		return err == nil && done
	})
	fs, ctx := c.root(), t.Context()
	if _, err := fs.Truncate(ctx, "/f", 1001); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("beyond the end: %v", err)
	}
	done, err := fs.Truncate(ctx, "/f", 300)
	if err != nil || done {
		t.Fatalf("truncate: %t, %v", done, err)
	}
	eventually(t, "the file is shorter", func() bool {
		st, err := fs.Stat(ctx, "/f")
		closed, cerr := fs.IsFileClosed(ctx, "/f")
		return err == nil && cerr == nil && closed && st.Length == 300
	})
	dn.received("cut the replica", func(o *pb.Orders) bool { return len(o.Recover) == 1 && o.Recover[0].Truncate == 301 })
	if done, err = fs.Truncate(ctx, "/f", 0); err != nil || !done {
		t.Fatalf("truncate to nothing: %t, %v", done, err)
	}
}
