package cluster

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/client/dfs"
)

// A file with erasure coding outlives as many datanodes as its policy says, and, once what they had was computed elsewhere, as many again. Its checksum stays what it was.
func TestGroupsAreComputedWhenDatanodesDie(t *testing.T) {
	k := Start(t, Config{Datanodes: 7})
	fs := k.Client("").FS()
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience) // of the whole test
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(fs.SwitchErasurePolicy(ctx, "RS-3-2-1024k", true))
	must(fs.Mkdirs(ctx, "/ec", 0o755, true))
	must(fs.SetErasurePolicy(ctx, "/ec", "RS-3-2-1024k"))
	data := make([]byte, 13<<20+777)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	w, err := fs.Create(ctx, "/ec/f", dfs.CreateOptions{BlockSize: 4 << 20})
	must(err)
	_, err = w.Write(data)
	must(err)
	must(w.Close())
	sum, err := fs.Checksum(ctx, "/ec/f")
	must(err)
	k.Await("the namenode knows all that is there", func(ctx context.Context) error { return k.grouped(ctx, fs, "/ec/f") })
	for _, dead := range [][]string{{"dn1", "dn4"}, {"dn2", "dn3"}} {
		for _, name := range dead {
			k.Stop(name)
		}
		got, err := fs.ReadFile(ctx, "/ec/f")
		must(err)
		if !bytes.Equal(got, data) {
			t.Fatalf("without %v other bytes are read", dead)
		}
		again, err := fs.Checksum(ctx, "/ec/f")
		must(err)
		if fmt.Sprint(again) != fmt.Sprint(sum) {
			t.Fatalf("without %v the checksum is %v, and was %v", dead, again, sum)
		}
		if dead[0] != "dn1" { // three are left, which are no five
			break
		}
		k.Await("all groups are whole on five datanodes", func(ctx context.Context) error {
			live, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
			if err == nil && len(live) != 5 {
				err = fmt.Errorf("%d datanodes live", len(live))
			}
			if err != nil {
				return err
			}
			stats, err := fs.FsStats(ctx)
			if err == nil && (stats.UnderReplicated != 0 || stats.MissingBlocks != 0) {
				err = fmt.Errorf("%+v", stats)
			}
			return err
		})
	}
}

// grouped is an error unless all blocks of each group of a file, of RS-3-2 in cells of 1 MiB, are known: datanodes tell of them a little after they have them.
func (k *Cluster) grouped(ctx context.Context, fs *dfs.Client, path string) error {
	blocks, err := fs.BlockLocations(ctx, path, 0, 1<<40)
	for _, b := range blocks {
		if want := min((b.Length+1<<20-1)>>20, 3) + 2; err == nil && b.Block.ID.Striped() && len(b.Datanodes) != int(want) {
			err = fmt.Errorf("%d of %d blocks are known: %+v", len(b.Datanodes), want, b)
		}
	}
	return err
}
