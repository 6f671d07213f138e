package server

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // as Hadoop's balancer signs
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What Hadoop's balancer does: it asks what a datanode has, has another one get a replica of that with a token that it signs itself, and leaves the rest to the namenode.
func TestABalancerOfHadoopMovesAReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	for _, id := range []string{"dn0", "dn1", "dn2"} {
		c.realDatanode(id)
	}
	ctx := t.Context()
	data := bytes.Repeat([]byte("moved "), 100_000)
	fs := c.root()
	f, err := fs.Create(ctx, "/f", dfs.CreateOptions{Replication: 2})
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	m := c.leader()
	rpc := m.rpc(t)
	call := func(method string, request, answer hrpc.Message) error {
		return rpc.Call(ctx, clientprotocol.NamenodeName, method, request, answer)
	}
	var version hadoop.VersionResponseProto
	if err := call("versionRequest", &hadoop.VersionRequestProto{}, &version); err != nil || version.Info.GetBlockPoolID() != m.BlockPool() || version.Info.StorageInfo.GetClusterID() != m.ClusterID() {
		t.Fatalf("%v, %v", &version, err)
	}
	var finalized hadoop.IsUpgradeFinalizedResponseProto
	var rolling hadoop.IsRollingUpgradeResponseProto
	if err := call("isUpgradeFinalized", &hadoop.IsUpgradeFinalizedRequestProto{}, &finalized); err != nil || !finalized.GetIsUpgradeFinalized() {
		t.Errorf("%v, %v", &finalized, err)
	}
	if err := call("isRollingUpgrade", &hadoop.IsRollingUpgradeRequestProto{}, &rolling); err != nil || rolling.GetIsRollingUpgrade() {
		t.Errorf("%v, %v", &rolling, err)
	}
	var given hadoop.GetBlockKeysResponseProto
	if err := call("getBlockKeys", &hadoop.GetBlockKeysRequestProto{}, &given); err != nil {
		t.Fatal(err)
	}
	keys := given.Keys
	if !keys.GetIsBlockTokenEnabled() || int32(keys.CurrentKey.GetKeyId()) >= 0 || !slices.ContainsFunc(keys.AllKeys, func(k *hadoop.BlockKeyProto) bool { return k.GetKeyId() == keys.CurrentKey.GetKeyId() }) ||
		int64(keys.CurrentKey.GetExpiryDate()) < time.Now().Add(m.config.BlockTokenLifetime).UnixMilli() {
		t.Errorf("keys %v", keys)
	}

	at := func() []*hadoop.DatanodeInfoProto {
		l, err := c.located(m.config.Door.Daemon(), "/f")
		if err != nil {
			t.Fatal(err)
		}
		return l.Blocks[0].Locs
	}
	eventually(t, "both replicas are known", func() bool { return len(at()) == 2 })
	both := at()
	from, other := both[0], both[1]
	ask := func(of *hadoop.DatanodeInfoProto, change func(*hadoop.GetBlocksRequestProto)) ([]*hadoop.BlockWithLocationsProto, error) {
		r := &hadoop.GetBlocksRequestProto{Datanode: of.Id, Size: ptr(uint64(1 << 30)), MinBlockSize: ptr(uint64(1))}
		if change != nil {
			change(r)
		}
		var answer hadoop.GetBlocksResponseProto
		err := call("getBlocks", r, &answer)
		return answer.GetBlocks().GetBlocks(), err
	}
	var blocks []*hadoop.BlockWithLocationsProto
	eventually(t, "the block may be moved", func() bool { blocks, err = ask(from, nil); return err != nil || len(blocks) > 0 })
	if err != nil || len(blocks) != 1 || blocks[0].Block.GetNumBytes() != uint64(len(data)) || len(blocks[0].DatanodeUuids) != 2 || len(blocks[0].StorageUuids) != 2 || len(blocks[0].StorageTypes) != 2 {
		t.Fatalf("%v, %v", blocks, err)
	}
	for what, v := range map[string]struct {
		change func(*hadoop.GetBlocksRequestProto)
		want   int
		fails  string
	}{
		"hot, but all there is": {change: func(r *hadoop.GetBlocksRequestProto) { r.TimeInterval = ptr(uint64(3_600_000)) }, want: 1},
		"too small":             {change: func(r *hadoop.GetBlocksRequestProto) { r.MinBlockSize = ptr(uint64(len(data) + 1)) }},
		"another type":          {change: func(r *hadoop.GetBlocksRequestProto) { r.StorageType = hadoop.StorageTypeProto_SSD.Enum() }},
		"its type":              {change: func(r *hadoop.GetBlocksRequestProto) { r.StorageType = hadoop.StorageTypeProto_DISK.Enum() }, want: 1},
		"nothing asked for":     {change: func(r *hadoop.GetBlocksRequestProto) { r.Size = ptr(uint64(0)) }, fails: "Unexpected not positive size: 0"},
		"nobody": {change: func(r *hadoop.GetBlocksRequestProto) {
			r.Datanode = &hadoop.DatanodeIDProto{IpAddr: ptr("10.0.0.1"), HostName: ptr("h"), DatanodeUuid: ptr("none"), XferPort: ptr(uint32(9)), InfoPort: ptr(uint32(0)), IpcPort: ptr(uint32(0))}
		}, fails: "Datanode 10.0.0.1:9 not found."},
	} {
		got, err := ask(from, v.change)
		if len(got) != v.want || (err != nil) != (v.fails != "") || err != nil && !strings.Contains(err.Error(), v.fails) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}

	nodes, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(nodes, func(n dfs.Datanode) bool {
		return n.UUID != from.Id.GetDatanodeUuid() && n.UUID != other.Id.GetDatanodeUuid()
	})
	target := &hadoop.DatanodeInfoProto{Id: &hadoop.DatanodeIDProto{
		IpAddr: &nodes[i].IP, HostName: &nodes[i].Hostname, DatanodeUuid: &nodes[i].UUID, XferPort: ptr(uint32(nodes[i].TransferPort)), InfoPort: ptr(uint32(0)), IpcPort: ptr(uint32(0)),
	}}
	b := blocks[0].Block
	key := security.BlockKey{ID: int32(keys.CurrentKey.GetKeyId()), Key: keys.CurrentKey.KeyBytes}
	token := security.NewBlockKeys([]security.BlockKey{key}).Sign(security.BlockGrant{Pool: m.BlockPool(), Block: metadata.BlockID(b.GetBlockId()), Modes: security.ReplaceBlock | security.CopyBlock}, time.Now().Add(time.Hour))
	mac := hmac.New(sha1.New, key.Key)
	mac.Write(token.Identifier)
	signed := &hadoop.TokenProto{Identifier: token.Identifier, Password: mac.Sum(nil), Kind: ptr(security.BlockTokenKind), Service: ptr("")}
	answer, _ := speak(t, target, dtp.OpReplaceBlock, &hadoop.OpReplaceBlockProto{
		Header:  &hadoop.BaseHeaderProto{Block: &hadoop.ExtendedBlockProto{PoolId: ptr(m.BlockPool()), BlockId: b.BlockId, GenerationStamp: b.GenStamp, NumBytes: b.NumBytes}, Token: signed},
		DelHint: from.Id.DatanodeUuid, Source: from,
	})
	if answer.GetStatus() != hadoop.Status_SUCCESS {
		t.Fatal(answer)
	}
	want := []string{other.Id.GetDatanodeUuid(), nodes[i].UUID}
	slices.Sort(want)
	eventually(t, "it is at the target in place of the source", func() bool {
		var now []string
		for _, l := range at() {
			now = append(now, l.Id.GetDatanodeUuid())
		}
		slices.Sort(now)
		return slices.Equal(now, want)
	})
	if got, err := fs.ReadFile(ctx, "/f"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}

	alice, err := hrpc.Dial(ctx, m.ipc, hrpc.DialConfig{Protocol: clientprotocol.NamenodeName, User: "alice", DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	for method, request := range map[string]hrpc.Message{
		"getBlockKeys": &hadoop.GetBlockKeysRequestProto{}, "isUpgradeFinalized": &hadoop.IsUpgradeFinalizedRequestProto{},
		"isRollingUpgrade": &hadoop.IsRollingUpgradeRequestProto{}, "getBlocks": &hadoop.GetBlocksRequestProto{Datanode: from.Id, Size: ptr(uint64(1))},
	} {
		if err := alice.Call(ctx, clientprotocol.NamenodeName, method, request, &hadoop.GetBlockKeysResponseProto{}); err == nil || !strings.Contains(err.Error(), "Superuser privilege is required") {
			t.Errorf("%s by alice: %v", method, err)
		}
	}
}
