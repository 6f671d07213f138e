package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

func TestErasureCodingOverTheWire(t *testing.T) {
	c := newCluster(t, 1, nil)
	root, alice, ctx := c.root(), c.client("alice"), t.Context()
	for _, dir := range []string{"/d/e", "/user/alice"} {
		if err := root.Mkdirs(ctx, dir, 0o755, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.SetOwner(ctx, "/user/alice", "alice", ""); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error, kind *metadata.Kind, words string) {
		t.Helper()
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q of kind %v", what, err, words, kind)
		}
	}
	fine := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	enabled := func() string {
		t.Helper()
		all, err := root.ErasurePolicies(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range all {
			if p.State == dfs.ErasureEnabled {
				names = append(names, p.Name)
			}
		}
		return fmt.Sprintf("%d of %d: %s", len(names), len(all), strings.Join(names, " "))
	}

	// Before the cluster is raised all is replicated, and says so.
	if got := enabled(); got != "0 of 5: " {
		t.Errorf("before the cluster was raised: %s", got)
	}
	fine("replication, which each directory has", root.SetErasurePolicy(ctx, "/d", namenode.ReplicationPolicy))
	refused("enabling", root.SwitchErasurePolicy(ctx, "RS-6-3-1024k", true), metadata.ErrUnsupported, "level 5")
	refused("setting", root.SetErasurePolicy(ctx, "/d", ""), metadata.ErrInvalidArgument, "Policy 'RS-6-3-1024k' does not match any enabled erasure coding policies: [].")
	refused("unsetting", root.UnsetErasurePolicy(ctx, "/d"), metadata.ErrNoErasureCoding, "No erasure coding policy explicitly set on /d")
	if _, err := root.Create(ctx, "/d/f", dfs.CreateOptions{Policy: "RS-3-2-1024k"}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("a file with a policy: %v", err)
	}

	if err := c.leader().group.Raise(release.ErasureCoding); err != nil {
		t.Fatal(err)
	}
	if got := enabled(); got != "1 of 5: RS-6-3-1024k" {
		t.Errorf("of a new cluster: %s", got)
	}
	refused("enabling by anybody", alice.SwitchErasurePolicy(ctx, "RS-3-2-1024k", true), metadata.ErrPermission, "Superuser privilege is required for operation enableErasureCodingPolicy")
	refused("enabling what is none", root.SwitchErasurePolicy(ctx, "RS-3-2", true), metadata.ErrInvalidArgument, "The policy name RS-3-2 does not exist")
	refused("enabling what is not built", root.SwitchErasurePolicy(ctx, "RS-LEGACY-6-3-1024k", true), metadata.ErrUnsupported, "rs-legacy")
	refused("removing", root.RemoveErasurePolicy(ctx, "RS-3-2-1024k"), metadata.ErrInvalidArgument, "System erasure coding policy RS-3-2-1024k cannot be removed")
	for range 2 {
		fine("enabling", root.SwitchErasurePolicy(ctx, "XOR-2-1-1024k", true))
		fine("enabling", root.SwitchErasurePolicy(ctx, "RS-3-2-1024k", true))
		fine("disabling", root.SwitchErasurePolicy(ctx, "RS-6-3-1024k", false))
	}
	if got := enabled(); got != "2 of 5: RS-3-2-1024k XOR-2-1-1024k" {
		t.Errorf("after changes: %s", got)
	}

	refused("setting what is disabled", root.SetErasurePolicy(ctx, "/d", ""), metadata.ErrInvalidArgument, "enabled erasure coding policies: [RS-3-2-1024k, XOR-2-1-1024k].")
	refused("setting where nothing is", root.SetErasurePolicy(ctx, "/x", "XOR-2-1-1024k"), metadata.ErrNotExist, "Path not found: /x")
	refused("setting without WRITE", alice.SetErasurePolicy(ctx, "/d", "XOR-2-1-1024k"), metadata.ErrPermission, "access=WRITE")
	fine("setting one's own", alice.SetErasurePolicy(ctx, "/user/alice", "RS-3-2-1024k"))
	fine("setting", root.SetErasurePolicy(ctx, "/d", "XOR-2-1-1024k"))
	policy := func(path string) string {
		t.Helper()
		p, err := alice.ErasurePolicy(ctx, path)
		st, statErr := alice.Stat(ctx, path)
		if err != nil || statErr != nil {
			t.Fatal(err, statErr)
		}
		if p == nil {
			if st.Erasure != 0 {
				t.Errorf("%s has no policy and status %d", path, st.Erasure)
			}
			return "none"
		}
		if st.Erasure != p.ID {
			t.Errorf("%s: policy %d, status %d", path, p.ID, st.Erasure)
		}
		return p.Name
	}
	for path, want := range map[string]string{"/": "none", "/d": "XOR-2-1-1024k", "/d/e": "XOR-2-1-1024k", "/user/alice": "RS-3-2-1024k"} {
		if got := policy(path); got != want {
			t.Errorf("%s has the policy %s, want %s", path, got, want)
		}
	}
	_, err := alice.ErasurePolicy(ctx, "/x")
	refused("asking where nothing is", err, metadata.ErrNotExist, "Path not found: /x")
	fine("replication below a policy", root.SetErasurePolicy(ctx, "/d/e", "REPLICATION"))
	if got := policy("/d/e"); got != "none" {
		t.Errorf("replicated: %s", got)
	}
	fine("unsetting", root.UnsetErasurePolicy(ctx, "/d/e"))
	refused("unsetting again", root.UnsetErasurePolicy(ctx, "/d/e"), metadata.ErrNoErasureCoding, "No erasure coding policy explicitly set on /d/e")
	fine("disabling what a directory has", root.SwitchErasurePolicy(ctx, "XOR-2-1-1024k", false))

	for _, x := range []struct {
		path   string
		policy string
		want   string
	}{
		{"/d/1", "", "XOR-2-1-1024k"}, // the directory keeps it
		{"/d/2", namenode.ReplicationPolicy, "none"},
		{"/d/3", "RS-3-2-1024k", "RS-3-2-1024k"},
		{"/4", "RS-3-2-1024k", "RS-3-2-1024k"},
	} {
		w, err := root.Create(ctx, x.path, dfs.CreateOptions{Policy: x.policy, BlockSize: 1 << 20})
		if err != nil {
			t.Errorf("%s: %v", x.path, err)
			continue
		}
		fine(x.path, w.Close())
		sum, err := root.ContentSummary(ctx, x.path)
		if p, _ := metadata.ErasurePolicyNamed(x.want); policy(x.path) != x.want || sum.Erasure != p.ID {
			t.Errorf("%s has the policy %s, want %s; %+v, %v", x.path, policy(x.path), x.want, sum, err)
		}
	}
	_, err = root.Create(ctx, "/d/5", dfs.CreateOptions{Policy: "XOR-2-1-1024k"})
	refused("a file with a disabled policy", err, metadata.ErrInvalidArgument, "[RS-3-2-1024k]")
	_, err = root.Create(ctx, "/d/5", dfs.CreateOptions{BlockSize: 1 << 10})
	refused("blocks that are smaller than a cell", err, metadata.ErrIO, "less than the cell size")
	_, err = root.Append(ctx, "/d/1")
	refused("appending", err, metadata.ErrUnsupported, "NEW_BLOCK")
	if done, err := root.SetReplication(ctx, "/d/1", 2); err != nil || done {
		t.Errorf("the replication of a file with a policy was set: %t, %v", done, err)
	}

	_, err = alice.ErasureTopology(ctx)
	refused("the topology by anybody", err, metadata.ErrPermission, "getECTopologyResultForPolicies")
	_, err = root.ErasureTopology(ctx, "RS")
	refused("the topology for what is none", err, metadata.ErrInvalidArgument, "The given erasure coding policy RS does not exist.")
	for i := range 5 {
		c.datanode(fmt.Sprintf("dn%d", i))
	}
	for policies, want := range map[string]string{
		"":                           "3 racks are required for the erasure coding policies: RS-3-2-1024k. The number of racks is only 1.",
		"RS-6-3-1024k":               "9 DataNodes are required for the erasure coding policies: RS-6-3-1024k. The number of DataNodes is only 5.",
		"RS-3-2-1024k XOR-2-1-1024k": "3 racks are required for the erasure coding policies: RS-3-2-1024k, XOR-2-1-1024k. The number of racks is only 1.",
	} {
		if got, err := root.ErasureTopology(ctx, strings.Fields(policies)...); err != nil || got.Supported || got.Message != want {
			t.Errorf("topology for %q: %+v, %v", policies, got, err)
		}
	}
}
