package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// onTypes counts the replicas' files of more than a few bytes by the type of the volume that they are on.
func (k *Cluster) onTypes() map[string]int {
	k.t.Helper()
	found := map[string]int{}
	for _, name := range k.names {
		if !strings.HasPrefix(name, "dn") {
			continue
		}
		for _, kind := range k.config.Types {
			root := filepath.Join(k.Dir, name, kind, "blocks")
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() && !strings.Contains(d.Name(), ".") {
					found[kind]++
				}
				if os.IsNotExist(err) { // it goes while we look
					return nil
				}
				return err
			})
			if err != nil {
				k.t.Fatal(err)
			}
		}
	}
	return found
}

func TestFilesMoveFromTierToTierWhileTheyAreRead(t *testing.T) {
	const size, block = 5<<20 + 123_456, 1 << 20
	k := Start(t, Config{Datanodes: 4, Types: []string{"DISK", "SSD", "ARCHIVE"}, Properties: map[string]string{"dfs.replication": "3"}})
	client := k.Client("").FS()
	ctx, cancel := context.WithTimeout(t.Context(), 8*Patience) // of the whole test
	defer cancel()
	want := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(want)
	if err := client.Mkdirs(ctx, "/tmp/tiers/deep", 0o755, true); err != nil {
		t.Fatal(err)
	}
	const files, blocks = 2, 2 * 6
	for i := range files {
		w, err := client.Create(ctx, fmt.Sprintf("/tmp/tiers/deep/%d", i), dfs.CreateOptions{BlockSize: block, Replication: 3})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	settled := func(kind string) {
		t.Helper()
		k.Await("all replicas on "+kind, func(context.Context) error {
			if got := k.onTypes(); got[kind] != 3*blocks || len(got) != 1 {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	settled("DISK") // a datanode that was late is made up for
	// Somebody reads all the time.
	var stop atomic.Bool
	var reads atomic.Int64
	var g sync.WaitGroup
	for i := range files {
		g.Go(func() {
			for !stop.Load() {
				got, err := client.ReadFile(ctx, fmt.Sprintf("/tmp/tiers/deep/%d", i))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("a reader got %d bytes: %v", len(got), err)
					return
				}
				reads.Add(1)
			}
		})
	}
	defer g.Wait()
	defer stop.Store(true)
	// satisfied asks until nothing is left: blocks that wait for a datanode to be declared dead are given up meanwhile.
	satisfied := func() {
		t.Helper()
		for {
			s, err := client.Tier(ctx, "/tmp/tiers", true)
			for err == nil && s.Waiting {
				s, err = client.Tier(ctx, "/tmp/tiers", false)
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.Known && s.Stuck == 0 {
				return
			}
		}
	}
	policy := func(name string) {
		t.Helper()
		if err := client.SetStoragePolicy(ctx, "/tmp/tiers", name); err != nil {
			t.Fatal(err)
		}
	}
	policy("ALL_SSD")
	if err := client.SatisfyStoragePolicy(ctx, "/tmp/tiers"); err != nil {
		t.Fatal(err)
	}
	satisfied()
	settled("SSD")
	before, err := client.Tier(ctx, "/tmp/tiers", false)
	if err != nil || before.Waiting || before.Replicas < 3*blocks || before.Failed != 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	// A datanode dies in the middle of the next move.
	policy("COLD")
	if err := client.SatisfyStoragePolicy(ctx, "/tmp/tiers"); err != nil {
		t.Fatal(err)
	}
	k.Await("a part of it", func(ctx context.Context) error {
		s, err := client.Tier(ctx, "/tmp/tiers", false)
		if err == nil && s.Waiting && s.Replicas < before.Replicas+3 {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	k.Stop("dn2")
	satisfied()
	k.Start("dn2")
	k.Await("enough replicas of everything", func(ctx context.Context) error {
		stats, err := client.FsStats(ctx)
		if err == nil && (stats.UnderReplicated != 0 || stats.MissingBlocks != 0) {
			err = fmt.Errorf("%+v", stats)
		}
		return err
	})
	satisfied()
	settled("ARCHIVE")
	// The end is read by a reader that began after it.
	for seen := reads.Load(); reads.Load() < seen+2*files && !t.Failed(); time.Sleep(time.Millisecond) {
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d reads", reads.Load())
}
