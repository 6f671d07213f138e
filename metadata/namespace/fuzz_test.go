package namespace

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Whatever decodes as a command can be applied: it is refused or leaves a sound namespace, and never panics.
func FuzzCommand(f *testing.F) {
	seed := newWorld(f, Config{})
	scribble(seed, rand.New(rand.NewPCG(1, 2)), 60)
	for _, commands := range seed.log {
		for _, data := range commands {
			f.Add(data)
		}
	}
	for _, op := range []any{
		&logpb.SetOwner{Target: to("/a"), Owner: "bob"}, &logpb.SetPermission{Target: to("/a"), Mode: 0o777},
		&logpb.SetReplication{Target: to("/a"), Replication: 2}, &logpb.RenewLease{ClientName: "client1"},
		&logpb.StartRecovery{Inode: 16387, RecoveryId: 1005, Holder: "client1"},
		&logpb.CommitRecovery{Block: &logpb.Block{Id: int64(metadata.FirstBlockID)}, RecoveryId: 1005, Close: true},
		&logpb.UpdatePipeline{ClientName: "client1", OldBlock: &logpb.Block{Id: int64(metadata.FirstBlockID)}, NewBlock: &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: 1007}},
		&logpb.Fsync{Inode: 16387, ClientName: "client1", LastBlockLength: 5}, &logpb.Append{Target: to("/a"), ClientName: "x"},
		&logpb.AbandonBlock{Inode: 16387, ClientName: "client1"}, &logpb.Reclaim{Limit: 7},
		&logpb.Rename{Source: to("/.reserved/.inodes/16387"), Target: to("/z")},
	} {
		data, err := command(bob, op).MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	var base bytes.Buffer
	takeSnapshot(f, seed.ns, &base)
	stream := base.Bytes()
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := decode(data); err != nil {
			return
		}
		ns := restore(t, stream)
		index := ns.AppliedIndex()
		ns.Apply(index+1, [][]byte{data})
		ns.Apply(index+2, [][]byte{data})
		checkSound(t, ns)
		hash := ns.Hash()
		var buf bytes.Buffer
		takeSnapshot(t, ns, &buf)
		if again := restore(t, buf.Bytes()); again.Hash() != hash {
			t.Error("the snapshot is of another state")
		}
	})
}

// A stream that is not one is refused as corrupt, without a panic and without taking more memory than a frame.
func FuzzSnapshot(f *testing.F) {
	w := newWorld(f, Config{})
	f.Add([]byte{})
	w.do(super, &logpb.Mkdirs{Target: to("/a"), Mode: 0o755})
	f.Add(w.snapshot())
	scribble(w, rand.New(rand.NewPCG(3, 4)), 40)
	f.Add(w.snapshot())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := newStreamReader(bytes.NewReader(data))
		for err == nil {
			_, _, err = r.next()
		}
		if r != nil && cap(r.frame) > maxFrame+frameTarget {
			t.Errorf("a frame of %d bytes", cap(r.frame))
		}
		ns := fresh(t, mem.New(), 0)
		rerr := ns.Restore(bytes.NewReader(data))
		if rerr == nil && err == io.EOF {
			checkSound(t, ns)
		} else if !errors.Is(rerr, metadata.ErrCorrupt) {
			t.Errorf("restoring: %v, reading: %v", rerr, err)
		}
	})
}

// Records of a checkpoint are refused or understood.
func FuzzEntryRecord(f *testing.F) {
	var enc encoder
	w := newWorld(f, Config{})
	scribble(w, rand.New(rand.NewPCG(5, 6)), 40)
	for _, n := range w.ns.inodes {
		_, value := enc.entry(n)
		f.Add(bytes.Clone(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n, err := decodeEntry("x", []byte("key"), value)
		if err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		n.status()
	})
}
