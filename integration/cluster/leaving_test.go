package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/namenode"
)

// A datanode is decommissioned, stopped and nothing is missing; its namenode was restarted meanwhile.
func TestADecommissionedDatanodeIsNotMissed(t *testing.T) {
	k := Start(t, Config{Datanodes: 3})
	fs := k.Client("").FS()
	ctx := process.Context(t)
	content := map[string][]byte{}
	for i := range 9 {
		name := fmt.Sprintf("/f%d", i)
		content[name] = bytes.Repeat([]byte{byte('a' + i)}, 100_000+i)
		w, err := fs.Create(ctx, name, dfs.CreateOptions{Replication: 1 + i%2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content[name]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dn1 := k.Server("dn1").Datanode.Transfer
	if _, err := fs.SetDatanodes(ctx, dfs.Decommissioned, 0, dn1); err != nil {
		t.Fatal(err)
	}
	k.Stop("nn1")
	k.Start("nn1")
	k.Await(dn1+" is decommissioned", func(ctx context.Context) error {
		nodes, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if fmt.Sprintf("%s:%d", n.IP, n.TransferPort) == dn1 && n.Admin == namenode.Decommissioned {
				return nil
			}
		}
		return fmt.Errorf("not yet: %+v", nodes)
	})
	k.Stop("dn1")
	for name, want := range content {
		r, err := fs.Open(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}
