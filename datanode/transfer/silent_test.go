package transfer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// freezer stands before a datanode as its process does: while it is frozen the kernel takes connections, and bytes until its buffers are full, and nobody reads or answers.
type freezer struct {
	info *hadooppb.DatanodeInfoProto // the datanode's, by this way

	mu     sync.Mutex
	change *sync.Cond
	frozen bool
}

// freeze puts a frozen one before a datanode.
func freeze(t *testing.T, d *node) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	f := &freezer{info: proto.Clone(d.info).(*hadooppb.DatanodeInfoProto), frozen: true}
	f.change = sync.NewCond(&f.mu)
	f.info.Id.XferPort = new(uint32(l.Addr().(*net.TCPAddr).Port))
	trusted.add(dtp.TransferAddr(f.info.GetId(), false))
	var passing sync.WaitGroup
	var ends []net.Conn
	passing.Go(func() {
		for f.runs() {
			front, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", dtp.TransferAddr(d.info.GetId(), false))
			if err != nil {
				front.Close()
				return
			}
			ends = append(ends, front, back)
			passing.Go(func() { f.pass(back, front) })
			passing.Go(func() { f.pass(front, back) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.thaw()
		d.kill() // ends what passes
		passing.Wait()
		for _, c := range ends {
			c.Close()
		}
	})
	return f
}

// runs waits until it is not frozen.
func (f *freezer) runs() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.frozen {
		f.change.Wait()
	}
	return true
}

func (f *freezer) thaw() { f.set(false) }

func (f *freezer) set(frozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = frozen
	f.change.Broadcast()
}

func (f *freezer) pass(to, from net.Conn) {
	b := make([]byte, 64<<10)
	for f.runs() {
		n, err := from.Read(b)
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// soon has the server ask, and leave who says nothing, sooner than it does.
func soon(d *node) *node {
	d.srv.stall, d.srv.word = 200*time.Millisecond, time.Second
	return d
}

// written is a source with finalized replicas of 100 bytes, which fit into all buffers on the way, and of 20 MiB.
func written(t *testing.T) (d *node, sizes map[int64][]byte) {
	d, sizes = soon(startOne(t)), map[int64][]byte{7: pattern(100), 8: pattern(20 << 20)}
	for id, data := range sizes {
		w, err := d.store.Create(block(id, 5, 0), datanode.CreateOptions{})
		check(t, err)
		check(t, w.Write(0, data, nil))
		_, err = w.Finalize()
		check(t, err)
	}
	return d, sizes
}

// A datanode that is frozen before a copy, or an internal block, comes to it is left within seconds, by an error that names it. When it wakes up it has nothing of what was given up, and takes the next copy.
func TestACopyLeavesADatanodeThatIsFrozen(t *testing.T) {
	t.Parallel()
	source, sizes := written(t)
	target := startOne(t)
	f := freeze(t, target)
	name := dtp.TransferAddr(f.info.GetId(), false)
	over := make(chan error, 2*len(sizes))
	for id, data := range sizes {
		go func() {
			over <- source.srv.Replicate(context.Background(), pool, block(id, 5, 0), f.info, hadooppb.StorageTypeProto_DISK, 0, nil)
		}()
		go func() {
			w, err := source.srv.Place(context.Background(), pool, block(id+10, 5, int64(len(data))), f.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
			if err == nil {
				if _, err = w.Write(data); err == nil {
					err = w.Finish()
				}
				_ = w.Close()
			}
			over <- err
		}()
	}
	for range cap(over) {
		select {
		case err := <-over:
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "it says nothing") {
				t.Errorf("it ended with %v", err)
			}
			if at, its := errors.AsType[*TargetError](err); its && at.Target != name {
				t.Errorf("%s is blamed", at.Target)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a datanode that is frozen is waited for")
		}
	}
	f.thaw()
	for id, data := range sizes {
		target.await("what was given up is in nobody's way", func() bool {
			_ = source.srv.Replicate(context.Background(), pool, block(id, 5, 0), f.info, hadooppb.StorageTypeProto_DISK, 0, nil)
			r, there := target.store.Replica(block(id, 5, 0).ID)
			return there && r.State == datanode.Finalized
		})
		target.wantContent(block(id, 5, 0), data)
	}
	target.await("no half of a replica is left", func() bool {
		for id, data := range sizes {
			if r, there := target.store.Replica(block(id+10, 5, 0).ID); there && (r.State != datanode.Finalized || r.Block.Length != int64(len(data))) {
				return false
			}
		}
		return true
	})
	target.heard("replicas that are whole alone", func(n *node) bool {
		for _, c := range n.changes {
			if c.Kind == datanode.Received && c.Block.Length != int64(len(sizes[8])) && c.Block.Length != int64(len(sizes[7])) {
				return false
			}
		}
		return true
	})
}

// A datanode that takes nothing for long, but says something, is waited for; so is one whose disk does not answer, unless others wait for it.
func TestACopyWaitsForADatanodeThatIsBusy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answers, hurried, left bool }{
		"busy":                        {answers: true},
		"busy, and others wait":       {answers: true, hurried: true},
		"its disk is slow":            {},
		"it is slow, and others wait": {hurried: true, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, sizes := written(t)
			source.srv.word = time.Hour // the machine may be busy, too
			packets := security.NewBudget(security.BudgetConfig{Purpose: "packets", Total: 8 << 20, Patience: time.Hour})
			var asked atomic.Int64
			target := startOne(t, func(o *Config) {
				o.Packets = packets
				o.Answers = func(context.Context, metadata.BlockID) bool {
					asked.Add(1)
					return c.answers
				}
			})
			account := packets.Account(uint32(os.Geteuid()))
			held := int64(0)
			for account.Try(smallBuffer / 4) { // not enough is left to read packets with
				held += smallBuffer / 4
			}
			free := func() {
				account.Give(held)
				account.Close()
			}
			over := make(chan error, 1)
			go func() {
				w, err := source.srv.Place(context.Background(), pool, block(8, 5, int64(len(sizes[8]))), target.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, c.hurried)
				if err == nil {
					if _, err = w.Write(sizes[8]); err == nil {
						err = w.Finish()
					}
					_ = w.Close()
				}
				over <- err
			}()
			if c.left {
				if err := <-over; !errors.Is(err, errHungUp) || errors.Is(err, io.EOF) {
					t.Errorf("it ended with %v", err)
				}
				free()
				return
			}
			target.await("it is asked again and again", func() bool { return asked.Load() >= 5 })
			free()
			check(t, <-over)
			target.wantContent(block(8, 5, 0), sizes[8])
		})
	}
}

// A datanode that gets a replica for a balancer leaves a source that is frozen, before it has said anything or in the middle.
func TestReplaceLeavesASourceThatIsFrozen(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]metadata.Block{"before": block(7, 5, 100), "in the middle": block(8, 5, 20<<20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, _ := written(t)
			f := freeze(t, source)
			to := soon(startOne(t, func(c *Config) {
				c.Bandwidth = func() int64 { f.set(true); return 1 << 40 } // it is asked between two writes
			}))
			if b.ID == 8 {
				f.thaw()
			}
			began := time.Now()
			to.wantRefused("a source that is frozen", replaceOp(b, f.info, ""), hadooppb.Status_ERROR, "it says nothing")
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it is waited for, for %v", took)
			}
			to.wantNone(b.ID)
			to.heard("that the place is free", func(n *node) bool { return len(n.srv.replacing) == 0 })
		})
	}
}

// A copy that the target refuses, at its opening or at its end, has not come about, and it says why.
func TestACopyThatIsRefused(t *testing.T) {
	t.Parallel()
	source, sizes := written(t)
	for id, data := range sizes {
		target := startOne(t)
		other := data[:50]
		target.keep(block(id, 4, 50), other, datanode.DefaultChecksum)
		for range 2 { // the first one may find the connection reset
			err := source.srv.Replicate(context.Background(), pool, block(id, 5, 0), target.info, hadooppb.StorageTypeProto_DISK, 0, nil)
			if _, its := errors.AsType[*TargetError](err); !its || !strings.Contains(err.Error(), "already exists") {
				t.Errorf("a copy of %d bytes that the target refuses at its opening ended with %v", len(data), err)
			}
		}
		target.wantContent(block(id, 4, 50), other)

		full := startOne(t, func(c *Config) { c.Store = &endless{c.Store} })
		err := source.srv.Replicate(context.Background(), pool, block(id, 5, 0), full.info, hadooppb.StorageTypeProto_DISK, 0, nil)
		if _, its := errors.AsType[*TargetError](err); !its || !strings.Contains(err.Error(), errNoEnd.Error()) {
			t.Errorf("a copy of %d bytes that the target refuses at its end ended with %v", len(data), err)
		}
		full.wantNone(block(id, 5, 0).ID)
	}
}

var errNoEnd = errors.New("nothing is finished on this disk")

// endless stores replicas and finishes none.
type endless struct{ datanode.BlockStore }

func (s *endless) Create(b metadata.Block, o datanode.CreateOptions) (datanode.Writer, error) {
	w, err := s.BlockStore.Create(b, o)
	return endlessWriter{w}, err
}

type endlessWriter struct{ datanode.Writer }

func (endlessWriter) Finalize() (datanode.Replica, error) { return datanode.Replica{}, errNoEnd }

// A target that closes the connection without a word, as those of earlier releases do when they have the copy and any does that ends, is asked whether it has it.
func TestACopyThatEndsWithoutAWord(t *testing.T) {
	t.Parallel()
	source, sizes := written(t)
	for id, data := range sizes {
		target := startOne(t)
		wordless := dumb(t, target)
		err := source.srv.Replicate(context.Background(), pool, block(id, 5, 0), wordless, hadooppb.StorageTypeProto_DISK, 0, nil)
		if _, its := errors.AsType[*TargetError](err); !its {
			t.Errorf("a copy of %d bytes that the target does not have ended with %v", len(data), err)
		}
		target.keep(block(id, 5, 0), data, datanode.DefaultChecksum)
		check(t, source.srv.Replicate(context.Background(), pool, block(id, 5, 0), wordless, hadooppb.StorageTypeProto_DISK, 0, nil))
	}
}

// dumb stands before a datanode, takes what is written there for it, and says nothing. Everything else passes.
func dumb(t *testing.T, d *node) *hadooppb.DatanodeInfoProto {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	info := proto.Clone(d.info).(*hadooppb.DatanodeInfoProto)
	info.Id.XferPort = new(uint32(l.Addr().(*net.TCPAddr).Port))
	trusted.add(dtp.TransferAddr(info.GetId(), false))
	var serving sync.WaitGroup
	serve := func(front net.Conn) {
		defer front.Close()
		r := bufio.NewReader(front)
		op, request, err := dtp.ReadOp(r)
		if err != nil {
			t.Error(err)
			return
		}
		if op == dtp.OpWriteBlock {
			for in := dtp.NewPacketReader(r); ; {
				if p, err := in.Next(); err != nil || p.Last {
					return
				}
			}
		}
		back, err := net.Dial("tcp", dtp.TransferAddr(d.info.GetId(), false))
		if err == nil {
			defer back.Close()
			err = dtp.WriteOp(back, op, request)
		}
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(front, back)
	}
	serving.Go(func() {
		for {
			front, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(front) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		d.kill()
		serving.Wait()
	})
	return info
}

// A copy that the target has already counts: the target says so, and announces it again, as who ordered it does not know of it. One that is not the same is refused.
func TestACopyThatIsThere(t *testing.T) {
	t.Parallel()
	source, sizes := written(t)
	for id, data := range sizes {
		target := startOne(t)
		target.keep(block(id, 5, 0), data, datanode.DefaultChecksum)
		target.mu.Lock()
		before := len(target.changes)
		target.mu.Unlock()
		if err := source.srv.Replicate(t.Context(), pool, block(id, 5, 0), target.info, hadooppb.StorageTypeProto_DISK, 0, nil); err != nil {
			t.Errorf("a copy of %d bytes that is there ended with %v", len(data), err)
		}
		target.mu.Lock()
		changes := slices.Clone(target.changes[before:])
		target.mu.Unlock()
		if want := block(id, 5, int64(len(data))); len(changes) != 1 || changes[0].Kind != datanode.Received || changes[0].Block != want {
			t.Errorf("the target has announced %v, want %v once more", changes, want)
		}
		target.wantContent(block(id, 5, 0), data)

		w, err := source.srv.Place(t.Context(), pool, block(id, 5, int64(len(data))), target.info, hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
		check(t, err)
		if n, err := w.Write(data); err != nil || n != len(data) {
			t.Errorf("of an internal block of %d bytes that is there %d were written, %v", len(data), n, err)
		}
		check(t, w.Finish())
		check(t, w.Close())

		shorter := startOne(t)
		shorter.keep(block(id, 5, 0), data[:50], datanode.DefaultChecksum)
		if err := source.srv.Replicate(t.Context(), pool, block(id, 5, 0), shorter.info, hadooppb.StorageTypeProto_DISK, 0, nil); err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("a copy of %d bytes of which 50 are there ended with %v", len(data), err)
		}
	}
}
