package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
)

// With as many failed volumes as it tolerates a datanode goes on. With one more it ends, when the namenode has heard of it; with all of them, if nothing
// is said of how many it tolerates, it stays.
func TestMoreVolumesFailThanAreTolerated(t *testing.T) {
	one := 1
	for name, tolerated := range map[string]*int{"one": &one, "not said": nil} {
		t.Run(name, func(t *testing.T) {
			credentials := securitytest.Credentials(t)
			n := startNamenode(t, credentials, "lab")
			dir, disk := t.TempDir(), faulty.New(vfs.OS)
			var volumes []Volume
			for _, v := range []string{"a", "b", "c"} {
				volumes = append(volumes, Volume{Path: filepath.Join(dir, v)})
			}
			d, err := New(Config{
				Volumes: volumes, Reserve: -1, FS: disk, Tolerated: tolerated, Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t),
				NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{n.addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
				Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
			check(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- d.Run(ctx) }()
			stopped := false
			t.Cleanup(func() {
				cancel()
				if !stopped {
					<-done
				}
			})
			waitReady(t, d)
			told := func() int {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.failed
			}
			next := metadata.BlockID(1)
			lose := func(letter string, failed int) {
				t.Helper()
				path := filepath.Join(dir, letter)
				disk.Set(func(op faulty.Op) error {
					if op.Name == path || strings.HasPrefix(op.Name, path+"/") {
						return syscall.EIO
					}
					return nil
				})
				within(t, "its failure is noticed", func() bool {
					if failures(d.volumes()) == failed {
						return told() == failed
					}
					if w, err := d.store.Create(metadata.Block{ID: next, Generation: 1}, datanode.CreateOptions{}); err == nil {
						_ = w.Write(0, make([]byte, 100_000), nil) // fails on that disk, perhaps
						_, _ = w.Finalize()
					}
					next++
					return false
				})
			}
			lose("a", 1)
			select {
			case err := <-done:
				stopped = true
				t.Fatalf("with one volume that has failed it ends: %v", err)
			case <-time.After(10 * time.Millisecond):
			}
			lose("b", 2)
			if tolerated == nil {
				lose("c", 3)
				if err := d.store.Tolerable(); err == nil {
					t.Error("a store without a volume is well")
				}
				return // and the end of the context, not of the datanode
			}
			err, stopped = <-done, true
			if err == nil || !strings.Contains(err.Error(), "no more than 1 volumes may fail (failed_volumes_tolerated): 2 of 3 volumes do not work") {
				t.Errorf("it ended with: %v", err)
			}
		})
	}
}
