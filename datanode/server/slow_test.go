package server

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// pair is a datanode with two disks in memory, /a of type DISK and /b of type SSD, of which calls can hang.
type pair struct {
	*Server
	t    *testing.T
	n    *fakeNamenode
	disk *faulty.FS
	ssd  string // the second one's uuid
	// stuck counts the calls that hang, or have hung.
	stuck atomic.Int64
	lost  sync.WaitGroup
	freed chan struct{}
	free  func()
	stop  func() error
}

func newPair(t *testing.T, timeout time.Duration, change func(*Config)) *pair {
	credentials := securitytest.Credentials(t)
	p := &pair{t: t, n: startNamenode(t, credentials, "lab"), disk: faulty.New(mem.New(1 << 28)), freed: make(chan struct{})}
	cfg := configOf(t, credentials, "", p.n)
	cfg.Volumes, cfg.FS, cfg.DiskTimeout = []Volume{{Path: "/a"}, {Path: "/b", Type: "SSD"}}, p.disk, timeout
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	if change != nil {
		change(&cfg)
	}
	p.Server, p.stop = runDatanode(t, cfg)
	p.free = sync.OnceFunc(func() {
		p.disk.Set(nil)
		close(p.freed)
		p.lost.Wait()
	})
	t.Cleanup(p.free) // before the datanode ends
	waitReady(t, p.Server)
	for _, v := range p.store.Volumes() { // else it may read what is written later, and be the one that waits for a disk
		within(t, "the scrubber has had its first pass", func() bool { at, _ := p.scrub.Status(v.ID); return at.Done })
	}
	p.ssd = p.store.Volumes()[1].ID
	return p
}

// hang has calls of a kind hang on the first disk; an empty kind: all.
func (p *pair) hang(call string) {
	p.disk.Set(func(op faulty.Op) error {
		if (call == "" || op.Call == call) && strings.HasPrefix(op.Name, "/a") {
			p.stuck.Add(1)
			<-p.freed
		}
		return nil
	})
}

// keep writes a finalized block on a disk of a type.
func (p *pair) keep(id int64, typ datanode.StorageType, size int) metadata.Block {
	p.t.Helper()
	b := metadata.Block{ID: metadata.BlockID(id), Generation: 1001}
	w, err := p.store.Create(b, datanode.CreateOptions{Type: typ})
	check(p.t, err)
	check(p.t, w.Write(0, []byte(strings.Repeat("x", size)), nil))
	r, err := w.Finalize()
	check(p.t, err)
	return r.Block
}

// The namenodes hear of a slow volume before the next beat is due, and that it is slow no more.
func TestNamenodesHearOfASlowVolumeAtOnce(t *testing.T) {
	p := newPair(t, 30*time.Second, func(c *Config) { c.Heartbeat = time.Hour })
	slow := func() string {
		p.n.mu.Lock()
		defer p.n.mu.Unlock()
		out := ""
		for _, v := range p.n.beats[p.UUID()].GetVolumes() {
			out += fmt.Sprintf("%s %t %t; ", v.Type, v.Slow, v.Failed)
		}
		return out
	}
	p.hang("write")
	p.lost.Go(func() { // it may be given up meanwhile
		w, err := p.store.Create(metadata.Block{ID: 7, Generation: 1}, datanode.CreateOptions{Type: datanode.Disk})
		if err == nil {
			_ = w.Write(0, make([]byte, 100_000), nil)
			_ = w.Close()
		}
	})
	within(t, "a volume is slow", func() bool { return slow() == "DISK true false; SSD false false; " })
	p.free()
	within(t, "it is as before", func() bool { return slow() == "DISK false false; SSD false false; " })
}

// Who reads many blocks gets those of a disk that answers, and hears which are on one that does not; nobody else is put there to wait, and nothing is kept when it answers.
func TestReadManyGoesOnBesideAHungDisk(t *testing.T) {
	p := newPair(t, 10*time.Second, nil)
	var pieces []batchread.Piece
	for i, size := range []int{100, 100_000, 50_000, 200, 70_000, 300} {
		typ := []datanode.StorageType{datanode.SSD, datanode.Disk}[i%2]
		b := p.keep(int64(100+i), typ, size)
		pieces = append(pieces, pieceOf(p.Server, int64(b.ID), 1001, 0, size))
	}
	read := func() (answered []int, problems []batchread.Problem) {
		t.Helper()
		resp, body := readMany(t, p.Server, "BP-lab", pieces...)
		got, problems, err := batchread.ParseAnswer(body)
		if err != nil {
			t.Fatalf("%d %v", resp.StatusCode, err)
		}
		for i, g := range got {
			if g != nil {
				answered = append(answered, i)
				if string(g) != strings.Repeat("x", pieces[i].Length) {
					t.Errorf("piece %d is wrong", i)
				}
			}
		}
		return answered, problems
	}
	if got, problems := read(); len(got) != 6 {
		t.Fatalf("%v %v", got, problems)
	}
	p.hang("read")
	for range 3 {
		got, problems := read()
		if fmt.Sprint(got) != "[0 2 4]" || len(problems) != 3 || problems[0].Index != 1 || problems[1].Index != 3 || problems[2].Index != 5 {
			t.Errorf("pieces %v, problems %v", got, problems)
		}
		if n := p.stuck.Load(); n != 1 {
			t.Errorf("%d wait for the disk", n)
		}
	}
	p.free()
	within(t, "nobody waits any more, and no memory is taken", func() bool { return p.readers.any.Load() == 0 && security.Answers().Used() == 0 })
	within(t, "all is there", func() bool {
		got, _ := read()
		return len(got) == 6
	})
}

// Computing goes on although a disk to which internal blocks were to go does not answer, at whatever call, and leaves nothing of these when it does.
func TestComputingGoesOnBesideAHungDisk(t *testing.T) {
	for _, call := range []string{"open", "write", "sync", "rename", "syncdir"} {
		t.Run(call, func(t *testing.T) {
			p := newPair(t, 10*time.Second, nil)
			const length = 3 << 20
			policy, units := stripes(t, "RS-3-2-1024k", length)
			order := func(k int64, typ datanode.StorageType) (*pb.Rebuild, metadata.Block) {
				group := metadata.Block{ID: metadata.FirstGroupID + metadata.BlockID(k)*metadata.GroupStep, Generation: 1001, Length: length}
				o := &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(policy.ID), Targets: []*pb.Part{{Unit: 3, Node: p.id, Type: uint32(typ)}}}
				for i := range 3 {
					if _, there := p.store.Replica(group.ID.Internal(i)); !there {
						w, err := p.store.Create(metadata.Block{ID: group.ID.Internal(i), Generation: 1001}, datanode.CreateOptions{Type: datanode.SSD})
						check(t, err)
						check(t, w.Write(0, units[i], nil))
						_, err = w.Finalize()
						check(t, err)
					}
					o.Sources = append(o.Sources, &pb.Part{Unit: uint32(i), Node: p.id})
				}
				return o, metadata.Block{ID: group.ID.Internal(3), Generation: 1001, Length: policy.Layout.UnitLength(length, 3)}
			}
			good, made := order(100, datanode.SSD)
			var lost []metadata.Block
			p.hang(call)
			for k := range int64(rebuildWorkers) {
				o, unit := order(k, datanode.Disk)
				lost = append(lost, unit)
				within(t, "a worker has begun", func() bool {
					p.n.order(p.Server, &pb.Orders{Rebuild: []*pb.Rebuild{o}})
					return p.rebuilt.tasks.Load() > k
				})
			}
			within(t, "a call hangs", func() bool { return p.stuck.Load() > 0 })
			within(t, "another group is computed", func() bool {
				p.n.order(p.Server, &pb.Orders{Rebuild: []*pb.Rebuild{good}})
				return p.n.heard(p.Server, fmt.Sprintf("RECEIVED %d_1001", made.ID))
			})
			if contents(t, p.Server, made) != string(units[3]) {
				t.Error("computed wrong")
			}
			p.free()
			for _, b := range lost {
				within(t, "what was begun is done, or gone", func() bool {
					r, there := p.store.Replica(b.ID)
					return !there || r.State == datanode.Finalized
				})
			}
		})
	}
}

// Recoveries of blocks on a disk that does not answer hold up no others.
func TestRecoveriesGoOnBesideAHungDisk(t *testing.T) {
	p := newPair(t, 24*time.Hour, nil)
	p.peerTime = 24 * time.Hour
	orderOf := func(id int64) *pb.Recover {
		return &pb.Recover{Block: &pb.Block{Id: id, Generation: 1001}, RecoveryId: 2001, Replicas: []*pb.DatanodeID{p.id}}
	}
	var orders pb.Orders
	p.hang("write")
	for id := int64(1); id <= 3*recoverWorkers; id++ {
		w, err := p.store.Create(metadata.Block{ID: metadata.BlockID(id), Generation: 1001}, datanode.CreateOptions{Type: datanode.Disk})
		check(t, err)
		p.lost.Go(func() {
			_ = w.Write(0, make([]byte, 100_000), nil)
			_ = w.Close()
		})
		orders.Recover = append(orders.Recover, orderOf(id))
	}
	within(t, "all writers wait", func() bool { return p.stuck.Load() == 3*recoverWorkers })
	w, err := p.store.Create(metadata.Block{ID: 77, Generation: 1001}, datanode.CreateOptions{Type: datanode.SSD})
	check(t, err)
	check(t, w.Write(0, make([]byte, 1000), nil))
	w.Acked(1000)
	orders.Recover = append(orders.Recover, orderOf(77), orderOf(78)) // of the last one nothing is here
	orders.Term, orders.Leader = 1, true
	p.all()[0].obey(&orders)
	committed := func(id int64) bool {
		p.n.mu.Lock()
		defer p.n.mu.Unlock()
		for _, c := range p.n.commits {
			if c.Block.Id == id {
				return true
			}
		}
		return false
	}
	within(t, "the others are recovered", func() bool { return committed(77) && committed(78) })
	if committed(1) {
		t.Error("the disk has answered")
	}
	p.free()
	within(t, "so are those that waited", func() bool { return committed(1) && committed(3*recoverWorkers) })
}

// A disk that hangs at some call, and is neither slow nor given up yet, is the trouble of those who call it: beats, reports, orders, writers and readers of the other disk go on.
func TestADiskThatHangsAtACallHoldsUpNobodyElse(t *testing.T) {
	for _, call := range []string{"open", "rename", "remove", "mkdir", "stat", "syncdir", "usage", "read", "write", "sync", "truncate", "punch", "size", ""} {
		t.Run("call "+call, func(t *testing.T) {
			p := newPair(t, 24*time.Hour, nil)
			n := p.n
			for id := range int64(20) { // packed, and in files
				p.keep(100+id, datanode.Disk, 100+int(id%2)*100_000)
				p.keep(200+id, datanode.SSD, 100+int(id%2)*100_000)
			}
			putOn := func(id int64, typ datanode.StorageType) datanode.Writer {
				w, err := p.store.Create(metadata.Block{ID: metadata.BlockID(id), Generation: 1001}, datanode.CreateOptions{Type: typ})
				check(t, err)
				check(t, w.Write(0, make([]byte, 100_001), nil))
				w.Acked(100_001)
				return w
			}
			open := []datanode.Writer{putOn(300, datanode.Disk), putOn(301, datanode.Disk), putOn(302, datanode.Disk), putOn(303, datanode.Disk)}
			p.hang(call)
			b := func(id int64) metadata.Block { return metadata.Block{ID: metadata.BlockID(id), Generation: 1001} }
			for _, do := range []func(){
				func() { _, _ = open[0].Finalize() },
				func() { _ = open[1].Sync() },
				func() { _ = open[2].Write(100_001, make([]byte, 10_000_000), nil) },
				func() { _ = open[3].Close() },
				func() { _ = p.store.Delete(b(100)); _ = p.store.Delete(b(101)) },
				func() { _ = p.store.Discard(b(102)); _ = p.store.Discard(b(103)) },
				func() {
					for _, id := range []int64{104, 105} {
						if r, err := p.store.Open(b(id)); err == nil {
							_, _ = r.ReadAt(make([]byte, 100), 0)
							_ = r.Close()
						}
					}
				},
				func() { _ = p.store.CheckSizes(107) },
				func() {
					if _, err := p.store.InitRecovery(b(109), 2001); err == nil {
						_, _ = p.store.UpdateReplica(b(109), 2001, 50_000)
					}
				},
				func() { _ = p.store.Move(t.Context(), b(111), datanode.SSD, nil) },
				func() { _ = p.store.Move(t.Context(), b(201), datanode.Disk, nil) },
				func() {
					w, err := p.store.Append(metadata.Block{ID: 113, Generation: 1001, Length: 100_100}, 1002, false)
					if err == nil {
						_ = w.Close()
					}
				},
				func() {
					w, err := p.store.Create(b(0x70500), datanode.CreateOptions{Type: datanode.Disk, Temporary: true})
					if err == nil {
						_ = w.Close()
					}
				},
			} {
				p.lost.Go(do)
			}
			orders := &pb.Orders{Term: 1, Leader: true}
			for id := range int64(20) {
				orders.Verify = append(orders.Verify, wireBlock(b(100+id)))
			}
			for _, id := range []int64{115, 116, 117, 118} {
				orders.Delete = append(orders.Delete, wireBlock(b(id)))
			}
			p.all()[0].obey(orders)
			if call == "usage" {
				p.lost.Go(func() { p.store.Volumes() })
			}
			within(t, "a call hangs", func() bool { return p.stuck.Load() > 0 })

			beats := func() *pb.Beat {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.beats[p.UUID()]
			}
			for range 3 {
				last := beats()
				within(t, "another beat", func() bool { return beats() != last })
			}
			var fresh []int64
			for id, size := int64(400), 100; len(fresh) < 2; id++ {
				w, err := p.store.Create(b(id), datanode.CreateOptions{Type: datanode.SSD})
				if err != nil || w.Replica().Volume != p.ssd { // a busy machine may not ask the disk how full it is within a second
					if err == nil {
						p.lost.Go(func() { _ = w.Close() })
					}
					continue
				}
				check(t, w.Write(0, make([]byte, size), nil))
				_, err = w.Finalize()
				check(t, err)
				fresh, size = append(fresh, id), 100_000
			}
			within(t, "new blocks are told of", func() bool {
				return n.heard(p.Server, fmt.Sprintf("RECEIVED %d_1001", fresh[0])) && n.heard(p.Server, fmt.Sprintf("RECEIVED %d_1001", fresh[1]))
			})
			for _, id := range append([]int64{202, 203}, fresh...) {
				r, err := p.store.Open(b(id))
				check(t, err)
				_, err = r.ReadAt(make([]byte, 100), 0)
				check(t, err)
				check(t, r.Close())
			}
			w, err := p.store.Append(metadata.Block{ID: 205, Generation: 1001, Length: 100_100}, 1002, false)
			check(t, err)
			check(t, w.Write(100_100, make([]byte, 1000), nil))
			_, err = w.Finalize()
			check(t, err)
			p.all()[0].obey(&pb.Orders{Term: 1, Leader: true, Delete: []*pb.Block{wireBlock(b(206)), wireBlock(b(207))}, Verify: []*pb.Block{wireBlock(b(208)), wireBlock(b(209))}})
			within(t, "orders are carried out", func() bool {
				return n.heard(p.Server, "DELETED 206_1001") && n.heard(p.Server, "DELETED 207_1001") && n.heard(p.Server, "VERIFIED 208_1001") && n.heard(p.Server, "VERIFIED 209_1001")
			})
			n.mu.Lock()
			clear(n.named)
			n.mu.Unlock()
			p.all()[0].reportNow()
			within(t, "what is on the other disk is reported", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.named[fresh[0]] && n.named[219]
			})
			if h := p.health(); len(h.Volumes) != 2 || h.Volumes[0].Failed != "" {
				t.Errorf("%+v", h)
			}
			p.free()
			within(t, "what waited is done", func() bool { return n.heard(p.Server, "DELETED 100_1001") && n.heard(p.Server, "DELETED 118_1001") })
		})
	}
}
