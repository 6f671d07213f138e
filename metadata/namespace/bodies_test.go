package namespace

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// memBodies is a Bodies in memory.
type memBodies struct {
	mu     sync.Mutex
	all    map[metadata.BlockID][]byte
	synced map[metadata.BlockID][]byte
	bad    map[metadata.BlockID]bool
	lacked []metadata.BlockID
	err    error // of Sync
	holds  int
}

func newMemBodies() *memBodies {
	return &memBodies{all: map[metadata.BlockID][]byte{}, synced: map[metadata.BlockID][]byte{}, bad: map[metadata.BlockID]bool{}}
}

func (b *memBodies) Put(id metadata.BlockID, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.all[id]; !ok {
		b.all[id] = body
	}
}

func (b *memBodies) Get(id metadata.BlockID) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	body, ok := b.all[id]
	switch {
	case b.bad[id]:
		return nil, fmt.Errorf("body %d: %w", id, metadata.ErrCorrupt)
	case !ok:
		return nil, fs.ErrNotExist
	}
	return body, nil
}

func (b *memBodies) GetMany(ids []metadata.BlockID, each func(i int, body []byte, err error)) {
	for i := len(ids) - 1; i >= 0; i-- {
		body, err := b.Get(ids[i])
		each(i, body, err)
	}
}

func (b *memBodies) Has(id metadata.BlockID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.all[id]
	return ok
}

func (b *memBodies) Lack(id metadata.BlockID, _ int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.all[id]; !ok || b.bad[id] {
		b.lacked = append(b.lacked, id)
	}
}

func (b *memBodies) Removed(metadata.BlockID, int) {}

func (b *memBodies) Hold() func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.holds--
	})
}

func (b *memBodies) Sync() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.synced = maps.Clone(b.all)
	}
	return b.err
}

// crash is what a power cut leaves: what was synced, and some of the rest.
func (b *memBodies) crash(r *rand.Rand) *memBodies {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := newMemBodies()
	for _, id := range slices.Sorted(maps.Keys(b.all)) {
		if _, ok := b.synced[id]; ok || r != nil && r.IntN(2) == 0 {
			left.all[id] = b.all[id]
		}
	}
	left.synced = maps.Clone(left.all)
	return left
}

// compact drops what is not live.
func (b *memBodies) compact(ns *Namespace) error {
	b.mu.Lock()
	ids, held := slices.Sorted(maps.Keys(b.all)), b.holds > 0
	b.mu.Unlock()
	if held {
		return nil
	}
	live, err := ns.LiveBodies(ids)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, id := range ids {
		if !live[i] {
			delete(b.all, id)
			delete(b.synced, id)
		}
	}
	return nil
}

func (b *memBodies) ids() []metadata.BlockID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.all))
}

// bytesOf are the bytes that tests put into a body.
func bytesOf(id int64, length int64) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(id*31 + int64(i)*7 + int64(i)>>8)
	}
	return data
}

// storeOf makes a small file of the bytes of a body.
func storeOf(path, client string, b *logpb.Block, length int64) *logpb.Store {
	data := bytesOf(b.Id, length)
	return &logpb.Store{Create: create(path, client), Body: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: length}, Crc: sumOf(data), Data: data, ByDefault: true}
}

// keepOf makes a small file of one with these blocks.
func keepOf(path string, blocks []metadata.Block, b *logpb.Block, length int64) *logpb.KeepFile {
	data := bytesOf(b.Id, length)
	return &logpb.KeepFile{
		Target: to(path), Blocks: BlocksSum(blocks), Body: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: length}, Crc: sumOf(data), Data: data, ByDefault: true,
	}
}

// keepHere is keepOf that has the body take the place of the block.
func keepHere(path string, blocks []metadata.Block, b *logpb.Block, length int64) *logpb.KeepFile {
	op := keepOf(path, blocks, b, length)
	if op.InPlace = true; len(blocks) == 1 {
		op.Data = bytesOf(int64(blocks[0].ID), length)
		op.Crc = sumOf(op.Data)
	}
	return op
}

// blocksOf are the blocks of a file; none: there is no file.
func (w *world) blocksOf(path string) []metadata.Block {
	id, err := w.ns.Resolve(super, path)
	if err != nil {
		return nil
	}
	f, _ := w.ns.FileByID(id)
	if f == nil {
		return nil
	}
	return f.Blocks
}

// cutOf cuts a small file inside of its body.
func cutOf(path string, body metadata.Block, b *logpb.Block, length int64) *logpb.Truncate {
	data := bytesOf(int64(b.Id), length)
	return &logpb.Truncate{Target: to(path), Length: length, ClientName: "c1", RecoveryId: b.Generation, NewBlock: b.Id, CutBody: int64(body.ID), Data: data, Crc: sumOf(data)}
}

// cutting cuts a file, inside of a body as well.
func (w *world) cutting(path string, length int64, b *logpb.Block) *logpb.Truncate {
	op := &logpb.Truncate{Target: to(path), Length: length, ClientName: "c1", RecoveryId: b.Generation}
	id, err := w.ns.Resolve(super, path)
	f, ok := w.ns.FileByID(id)
	if err != nil || !ok {
		return op
	}
	stays := length
	for i, one := range f.Blocks {
		if stays > 0 && stays < one.Length && f.IsBody(i) {
			op = cutOf(path, one, b, stays)
			op.Length = length
		}
		if stays < one.Length {
			break
		}
		stays -= one.Length
	}
	return op
}

// checkBodies reads the bodies of all files below a path, in snapshots too if the path is in one, and returns their ids that are not in records.
func checkBodies(t failer, ns *Namespace, path string) map[metadata.BlockID]bool {
	t.Helper()
	l, err := ns.ListWithBlocks(super, path, "", 1000)
	if err != nil || l == nil {
		t.Fatal(path, l, err)
	}
	found := map[metadata.BlockID]bool{}
	for i, e := range l.Entries {
		f := l.Files[i]
		if f == nil {
			maps.Copy(found, checkBodies(t, ns, join(path, e.Name)))
			continue
		}
		for _, b := range f.Blocks {
			if !b.Small {
				continue
			}
			r, err := ns.FindBody(b.Block.ID, b.Block.Generation)
			if err != nil || r == nil || r.Block != b.Block {
				t.Fatal(path, e.Name, f.Blocks, r, err)
			}
			data, err := ns.ReadBody(*r)
			if err != nil || !bytes.Equal(data, bytesOf(int64(b.Block.ID), b.Block.Length)) {
				t.Fatal(path, e.Name, b, len(data), err)
			}
			if r.Data == nil {
				found[b.Block.ID] = true
			}
			if other, err := ns.FindBody(b.Block.ID, b.Block.Generation+1); other != nil || err != nil {
				t.Fatal("a body of another generation", other, err)
			}
		}
	}
	return found
}
