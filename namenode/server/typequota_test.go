package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// A quota of a type of volumes is set, shown and kept to over the wire, with HDFS's exception.
func TestQuotasOfStorageTypes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.datanode("dn1")
	lead, root, ctx := c.leader(), c.root(), t.Context()
	check(t, root.Mkdirs(ctx, "/q/d", 0o755, true))
	if err := root.SetTypeQuota(ctx, "/q", namenode.SSD, 1<<30); !errors.Is(err, metadata.ErrUnsupported) {
		t.Fatalf("before the cluster is raised: %v", err)
	}
	check(t, lead.group.Raise(release.TypeQuotas))
	check(t, root.SetTypeQuota(ctx, "/q", namenode.SSD, 1000))
	check(t, root.SetTypeQuota(ctx, "/q", namenode.Archive, 2000))
	check(t, root.SetStoragePolicy(ctx, "/q", "ONE_SSD"))
	_, err := lead.begin(t, "/q/d/f", "writer", 2).addBlock()
	remote, ok := errors.AsType[*hrpc.RemoteError](err)
	if words := "Quota by storage type : SSD on path : /q is exceeded. quota = 1000 B but space consumed = 1 MB"; !ok || remote.Class != hdfs.TypeQuotaExceeded || !strings.HasPrefix(remote.Message, words) {
		t.Fatalf("%v, want %s", err, words)
	}
	check(t, root.SetTypeQuota(ctx, "/q", namenode.SSD, 1<<30))
	if _, err := lead.begin(t, "/q/d/g", "another writer", 2).addBlock(); err != nil {
		t.Fatal(err)
	}
	got, err := root.TypeQuotas(ctx, "/q")
	if want := (dfs.TypeQuota{Quota: 1 << 30, Consumed: 1 << 20}); err != nil || got["SSD"] != want || got["ARCHIVE"] != (dfs.TypeQuota{Quota: 2000}) || got["DISK"] != (dfs.TypeQuota{Quota: -1, Consumed: 1 << 20}) {
		t.Fatalf("%v, %v", got, err)
	}
	check(t, root.SetTypeQuota(ctx, "/q", namenode.SSD, metadata.QuotaUnset))
	check(t, root.SetTypeQuota(ctx, "/q", namenode.Archive, metadata.QuotaUnset))
	if got, err := root.TypeQuotas(ctx, "/q"); err != nil || len(got) > 0 {
		t.Fatalf("%v, %v", got, err)
	}
	for kind, space := range map[namenode.StorageType]int64{namenode.RAMDisk: 5, namenode.SSD: -7} {
		if err := root.SetTypeQuota(ctx, "/q", kind, space); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%v: %v", kind, err)
		}
	}
	if err := c.client("alice").SetTypeQuota(ctx, "/q", namenode.SSD, 5); !errors.Is(err, metadata.ErrPermission) {
		t.Error(err)
	}
}
