package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	dnserver "github.com/gohops/hops/datanode/server"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func policyOfFile(t *testing.T, rpc *hrpc.Client, path string) string {
	t.Helper()
	var answer hadoop.GetStoragePolicyResponseProto
	if err := rpc.Call(t.Context(), clientprotocol.Name, "getStoragePolicy", &hadoop.GetStoragePolicyRequestProto{Path: &path}, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.StoragePolicy.GetName()
}

// What was made to be lazily persisted is removed when a block is nowhere, at the second look, and nothing else, and not while somebody who may have it is away.
func TestLostLazilyPersistedFilesAreRemoved(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: log})
	must(t, err)
	c := newCluster(t, 1, func(c *Config) { c.Properties.LazyScrubInterval = 0; c.Door.SetAudit(audit) })
	dn := c.datanode("dn1")
	m := c.leader()
	fs, ctx := c.root(), t.Context()
	must(t, fs.Mkdirs(ctx, "/lazy", 0o755, true))
	must(t, fs.SetStoragePolicy(ctx, "/lazy", "LAZY_PERSIST"))
	blocks := map[string]metadata.Block{}
	for i, path := range []string{"/lazy/gone", "/lazy/whole", "/lazy/damaged", "/hot"} {
		w := m.begin(t, path, fmt.Sprint("writer", i), 1)
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		blocks[path] = w.block(10)
		dn.has(blocks[path], pb.ReplicaState_FINALIZED)
		if ok, err := w.complete(); err != nil || !ok {
			t.Fatal(path, ok, err)
		}
	}
	early := time.Now().Add(-time.Hour) // as if the namenode had been up for longer than a death takes
	m.started.Store(&early)
	for _, path := range []string{"/lazy/gone", "/hot"} {
		dn.tell(pb.BlockChange_DELETED, wireBlock(blocks[path]))
	}
	dn.tell(pb.BlockChange_CORRUPT, wireBlock(blocks["/lazy/damaged"]))
	eventually(t, "three blocks are missing", func() bool { return m.Statistics().Missing == 3 })
	exists := func(path string) bool { _, err := fs.Stat(ctx, path); return err == nil }
	r := m.reign.Load()

	m.scrubLazy(r)
	if !exists("/lazy/gone") {
		t.Fatal("it is removed at the first look")
	}
	must(t, m.SetSafeMode(true))
	m.scrubLazy(r)
	must(t, m.SetSafeMode(false))
	m.scrubLazy(r) // which is the first one again
	if !exists("/lazy/gone") {
		t.Fatal("it is removed at the first look after safe mode")
	}
	other := c.datanode("dn2")
	other.die()
	m.scrubLazy(r)
	m.scrubLazy(r)
	if !exists("/lazy/gone") {
		t.Fatal("it is removed while a datanode is away that may have it")
	}
	must(t, m.await(func(done func(error)) {
		m.send(&logpb.Command{Op: &logpb.Command_ForgetDatanode{ForgetDatanode: &logpb.ForgetDatanode{Uuid: "dn2"}}}, func(_ *namespace.Result, err error) { done(err) })
	}))
	eventually(t, "dn2 is forgotten", func() bool { return m.allHere() })
	m.scrubLazy(r)
	m.scrubLazy(r)
	for path, want := range map[string]bool{"/lazy/gone": false, "/lazy/whole": true, "/lazy/damaged": true, "/hot": true} {
		if exists(path) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
	if n := m.lazyRemoved.Load(); n != 1 {
		t.Errorf("%d are counted", n)
	}
	over, end := context.WithCancel(ctx)
	end()
	must(t, audit.Run(over)) // which writes what there is
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "\tcmd=scrubLazyPersist\tsrc=/lazy/gone\tdst=null\t") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestFilesAreMadeToBeLazilyPersisted(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.raised()
	fs, ctx := c.root(), t.Context()
	for path, lazy := range map[string]bool{"/lazy": true, "/usual": false} {
		w, err := fs.Create(ctx, path, dfs.CreateOptions{LazyPersist: lazy})
		must(t, err)
		must(t, w.Close())
		want := "HOT"
		if lazy {
			want = "LAZY_PERSIST"
		}
		if got := policyOfFile(t, m.rpc(t), path); got != want {
			t.Errorf("%s: %s", path, got)
		}
		id, err := m.ns.Resolve(m.myself(), path)
		must(t, err)
		if f, _ := m.ns.FileByID(id); f == nil || (f.Policy == lazyPolicy) != lazy {
			t.Errorf("%s: %+v", path, f)
		}
	}
}

// A file of the policy is written to memory, saved, and there when the machine has lost its memory.
func TestMemoryIsSavedAndLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.raised()
	memory := dnserver.Volume{Path: filepath.Join(c.dir, "memory"), Type: "RAM_DISK"}
	stop := c.realDatanode("dn", memory)
	fs, ctx := c.root(), t.Context()
	data := bytes.Repeat([]byte("lazy"), 100_000)
	w, err := fs.Create(ctx, "/f", dfs.CreateOptions{LazyPersist: true, Replication: 1})
	must(t, err)
	_, err = w.Write(data)
	must(t, err)
	must(t, w.Close())
	synced, err := fs.Create(ctx, "/synced", dfs.CreateOptions{LazyPersist: true, Replication: 1})
	must(t, err)
	_, err = synced.Write(data)
	must(t, err)
	must(t, synced.Hsync(ctx))
	must(t, synced.Close())
	on := func(path string) string {
		blocks, err := c.located(c.nodes[0].config.Door.Daemon(), path)
		must(t, err)
		if len(blocks.Blocks) != 1 || len(blocks.Blocks[0].StorageTypes) != 1 {
			return fmt.Sprint(blocks)
		}
		return blocks.Blocks[0].StorageTypes[0].String()
	}
	if got := on("/f"); got != "RAM_DISK" {
		t.Fatal("it is written to", got)
	}
	if got := on("/synced"); got != "DISK" {
		t.Fatal("what was synced is on", got)
	}
	eventually(t, "it is saved", func() bool {
		found, err := filepath.Glob(filepath.Join(c.dir, "dn", "blocks", "*", "*", "*.meta"))
		must(t, err)
		return len(found) == 2
	})
	if got := on("/f"); got != "RAM_DISK" {
		t.Fatal("it is on", got, "when it was saved")
	}
	stop()
	must(t, os.RemoveAll(memory.Path))
	c.realDatanode("dn", memory)
	for _, path := range []string{"/f", "/synced"} {
		eventually(t, path+" is on the disk", func() bool { return on(path) == "DISK" })
		r, err := fs.Open(ctx, path)
		must(t, err)
		got, err := io.ReadAll(r)
		must(t, err)
		must(t, r.Close())
		if !bytes.Equal(got, data) {
			t.Errorf("%s has %d other bytes", path, len(got))
		}
	}
}
