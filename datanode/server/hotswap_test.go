package server

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/internal/diskplan"
	"github.com/gohops/hops/metadata"
)

// A volume whose disk does not answer, and that is not given up yet, can be given back: whoever waits for the disk loses it, and all others go on.
func TestAVolumeThatHangsIsGivenBack(t *testing.T) {
	for _, call := range []string{"open", "rename", "remove", "syncdir", "read", "write", "sync", ""} {
		t.Run("call "+call, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, 24*time.Hour, nil)
			for id := range int64(6) {
				p.keep(100+id, datanode.Disk, 100+int(id%2)*100_000)
				p.keep(200+id, datanode.SSD, 100+int(id%2)*100_000)
			}
			b := func(id int64) metadata.Block { return metadata.Block{ID: metadata.BlockID(id), Generation: 1001} }
			w, err := p.store.Create(b(300), datanode.CreateOptions{Type: datanode.Disk})
			check(t, err)
			check(t, w.Write(0, make([]byte, 100_001), nil))
			w.Acked(100_001)
			p.hang(call)
			for _, do := range []func(){
				func() { _ = w.Write(100_001, make([]byte, 1_000_000), nil); _, _ = w.Finalize() },
				func() { _ = p.store.Delete(b(100)); _ = p.store.Delete(b(101)) },
				func() {
					for _, id := range []int64{102, 103} {
						if r, err := p.store.Open(b(id)); err == nil {
							_, _ = r.ReadAt(make([]byte, 100), 0)
							_ = r.Close()
						}
					}
				},
				func() {
					if w, err := p.store.Append(metadata.Block{ID: 105, Generation: 1001, Length: 100_100}, 1002, false); err == nil {
						_ = w.Close()
					}
				},
				func() { _ = p.store.CheckSizes(104) },
			} {
				p.lost.Go(do)
			}
			within(t, "a call hangs", func() bool { return p.stuck.Load() > 0 })
			done := make(chan error, 1)
			go func() { done <- p.change([]blockstore.VolumeConfig{{Path: "/b", Type: datanode.SSD}}) }()
			select {
			case err := <-done:
				check(t, err)
			case <-time.After(30 * time.Second):
				p.free()
				t.Fatal("giving the volume back waits for its disk:", <-done)
			}
			if v := p.store.Volumes(); len(v) != 1 || v[0].Path != "/b" {
				t.Errorf("%+v", v)
			}
			p.keep(400, datanode.SSD, 1000)
			within(t, "a new block is told of", func() bool { return p.n.heard(p.Server, "RECEIVED 400_1001") })
			for _, id := range []int64{100, 105, 300} {
				if _, there := p.store.Replica(b(id).ID); there {
					t.Errorf("block %d is still here", id)
				}
			}
			p.free()
			within(t, "it comes back", func() bool {
				return p.change([]blockstore.VolumeConfig{{Path: "/a", Type: datanode.Disk}, {Path: "/b", Type: datanode.SSD}}) == nil && len(p.store.Volumes()) == 2
			})
			if _, there := p.store.Replica(b(103).ID); !there {
				t.Error("a replica that was there is gone")
			}
		})
	}
}

// A plan of the disk balancer goes on with what a disk that does not answer has nothing to do with, and says what became of the rest.
func TestBalancingGoesOnBesideAHungDisk(t *testing.T) {
	p := newPair(t, 10*time.Second, func(c *Config) { c.Volumes = []Volume{{Path: "/a"}, {Path: "/b"}, {Path: "/c"}} })
	for id := range int64(30) {
		p.keep(100+id, datanode.Disk, 100_000)
	}
	all := p.store.Volumes()
	plan := diskplan.Plan{NodeUUID: p.UUID(), Time: time.Now().UnixMilli()}
	for _, from := range []int{0, 1} {
		plan.Steps = append(plan.Steps, diskplan.Step{
			Source: diskplan.Volume{UUID: all[from].ID, Path: all[from].Path}, Destination: diskplan.Volume{UUID: all[2].ID, Path: "/c"}, Bytes: 300_000, Bandwidth: 1000,
		})
	}
	text, err := json.Marshal(plan)
	check(t, err)
	p.hang("")
	check(t, p.balancer.Submit(diskplan.ID(text), diskplan.Version, "plan", text, false))
	within(t, "what the disk has nothing to do with is moved", func() bool {
		now := p.balancer.Status()
		return now.Work[1].Item.Blocks >= 2 && now.Work[1].Item.Message == ""
	})
	within(t, "the plan ends", func() bool { return p.balancer.Status().Result == diskplan.Done })
	if w := p.balancer.Status().Work[0]; w.Item.Message != "Volume /a was given up." {
		t.Errorf("%+v", w)
	}
}
