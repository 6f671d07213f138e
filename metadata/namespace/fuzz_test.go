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
		&logpb.RollBlockKeys{Seeds: seeds(2, 1), Keep: 5},
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
		if _, err := new(Namespace).decode(data); err != nil {
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

// records splits fuzzed bytes into records in ascending order of keys: length of key, key, length of value, value.
func fuzzRecords(data []byte) map[string][]byte {
	records := map[string][]byte{}
	take := func() []byte {
		if len(data) == 0 {
			return nil
		}
		n := min(int(data[0]), len(data)-1)
		field := data[1 : 1+n]
		data = data[1+n:]
		return field
	}
	for len(data) > 0 {
		key, value := take(), take()
		if len(key) > 0 && classKnown(key[0]) {
			records[string(key)] = value
		}
	}
	return records
}

// A stream with good sums and wild records is refused, or read with errors: it never brings a reader down.
func FuzzSnapshotOfWildRecords(f *testing.F) {
	w := newWorld(f, Config{})
	scribble(w, rand.New(rand.NewPCG(7, 8)), 12)
	w.snapshot()
	var seed []byte
	view := w.cfg.Store.View(w.index)
	view.Scan(nil, nil, func(key, value []byte) bool {
		if key[0] != classMarker && len(value) < 256 {
			seed = append(append(append(append(seed, byte(len(key))), key...), byte(len(value))), value...)
		}
		return true
	})
	view.Close()
	f.Add(seed)
	marker := w.ns.meta.marker()
	marker.Index = w.index
	f.Fuzz(func(t *testing.T, data []byte) {
		store := mem.New()
		b := store.Batch(w.index)
		sum := w.ns.meta.hash()
		for key, value := range fuzzRecords(data) {
			if hashed([]byte(key)) {
				sum += hashRecord([]byte(key), value)
			}
			if err := b.Put([]byte(key), value); err != nil {
				t.Fatal(err)
			}
		}
		m := logpb.Marker{
			Version: marker.Version, Index: marker.Index, Now: marker.Now, NextInode: marker.NextInode, NextBlock: marker.NextBlock,
			NextGeneration: marker.NextGeneration, NextRetry: marker.NextRetry, Files: marker.Files,
			Directories: marker.Directories, Blocks: marker.Blocks, Hash: sum,
		}
		var buf bytes.Buffer
		view := store.View(w.index)
		defer view.Close()
		if _, err := writeStream(&buf, view, marshal(nil, &m)); err != nil {
			t.Fatal(err)
		}
		ns := fresh(t, mem.New(), 0)
		if err := ns.Restore(&buf); err != nil {
			if !errors.Is(err, metadata.ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		ns.Check()
		ns.Stat(bob, "/a/b")
		ns.ContentSummary(super, "/")
		ns.List(super, "/a", "", 0)
		ns.Leases()
		for id := metadata.INodeID(0); id < 16400; id += 5 {
			ns.FileByID(id)
		}
		ns.BlockOwner(metadata.FirstBlockID)
		ns.EachBlock(func(BlockOwner) bool { return true })
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
