package runs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"runtime"
	"slices"

	"github.com/gohops/hops/metadata/kv"
)

// batch sorts what it is given, a chunk at a time, and writes runs of it: one, when the chunks follow each other.
type batch struct {
	store  *Store
	at     uint64
	data   []byte
	items  []item
	writer *runWriter
	made   []*run
	done   bool
}

// item is a record in batch.data.
type item struct {
	lead   uint64 // bytes 1 to 8 of the key, most of what tells keys of one class apart
	at     uint32
	key    uint32
	value  uint32
	delete bool
}

func (b *batch) Put(key, value []byte) error {
	if err := kv.CheckSize(key, value); err != nil {
		return err
	}
	return b.add(key, value, false)
}

func (b *batch) Delete(key []byte) error {
	if err := kv.CheckSize(key, nil); err != nil {
		return err
	}
	return b.add(key, nil, true)
}

func (b *batch) add(key, value []byte, deleted bool) error {
	size := len(key) + len(value)
	if len(b.data) > 0 && len(b.data)+size > b.store.opt.Chunk {
		if err := b.spill(); err != nil {
			return err
		}
	}
	i := item{at: uint32(len(b.data)), key: uint32(len(key)), value: uint32(len(value)), delete: deleted}
	if len(key) >= 9 {
		i.lead = binary.BigEndian.Uint64(key[1:])
	}
	b.data = append(append(b.data, key...), value...)
	b.items = append(b.items, i)
	return nil
}

func (b *batch) keyOf(i *item) []byte { return b.data[i.at : i.at+i.key] }

func (b *batch) compare(x, y item) int {
	p, q := b.keyOf(&x), b.keyOf(&y)
	if p[0] == q[0] && len(p) >= 9 && len(q) >= 9 && x.lead != y.lead {
		return cmp.Compare(x.lead, y.lead)
	}
	return bytes.Compare(p, q)
}

// spill writes the chunk.
func (b *batch) spill() error {
	if len(b.items) == 0 {
		return nil
	}
	// A few at a time, so that others get the processor in between; what is in order already costs little.
	const portion = 4096
	for rest := b.items; len(rest) > 0; {
		part := rest[:min(len(rest), portion)]
		rest = rest[len(part):]
		slices.SortFunc(part, b.compare)
		runtime.Gosched()
	}
	if len(b.items) > portion && !slices.IsSortedFunc(b.items, b.compare) {
		b.items = b.mergePortions(b.items, portion)
	}
	if b.writer != nil && bytes.Compare(b.keyOf(&b.items[0]), b.writer.last) <= 0 {
		if err := b.endRun(); err != nil {
			return err
		}
	}
	if b.writer == nil {
		var err error
		if b.writer, err = newRunWriter(b.store.newPath(), 0); err != nil {
			return err
		}
	}
	for n := range b.items {
		i := &b.items[n]
		value := b.data[i.at+i.key : i.at+i.key+i.value]
		if err := b.writer.add(b.keyOf(i), value, i.delete); err != nil {
			return err
		}
	}
	b.data, b.items = b.data[:0], b.items[:0]
	return nil
}

// mergePortions merges sorted portions of items, pair by pair.
func (b *batch) mergePortions(items []item, portion int) []item {
	other := make([]item, 0, len(items))
	for ; portion < len(items); portion *= 2 {
		other = other[:0]
		for start := 0; start < len(items); start += 2 * portion {
			middle := min(start+portion, len(items))
			x, y := items[start:middle], items[middle:min(middle+portion, len(items))]
			for len(x) > 0 && len(y) > 0 {
				if b.compare(x[0], y[0]) <= 0 {
					other, x = append(other, x[0]), x[1:]
				} else {
					other, y = append(other, y[0]), y[1:]
				}
			}
			other = append(append(other, x...), y...)
			runtime.Gosched()
		}
		items, other = other, items
	}
	return items
}

func (b *batch) endRun() error {
	w := b.writer
	b.writer = nil
	r, err := w.finish()
	if err != nil {
		return err
	}
	r.at = b.at
	b.made = append(b.made, r)
	return nil
}

// finish returns the runs, on disk but not in the manifest.
func (b *batch) finish() ([]*run, error) {
	if err := b.spill(); err != nil {
		return nil, err
	}
	if b.writer != nil {
		if err := b.endRun(); err != nil {
			return nil, err
		}
	}
	made := b.made
	b.made, b.data, b.items, b.done = nil, nil, nil, true
	return made, nil
}

func (b *batch) Flush() error {
	made, err := b.finish()
	if err == nil {
		if err = b.store.insert(made); err != nil {
			b.store.drop(made)
		}
	}
	return err
}

func (b *batch) Cancel() {
	if b.done {
		return
	}
	b.done = true
	if b.writer != nil {
		b.writer.cancel()
		b.writer = nil
	}
	b.store.drop(b.made)
	b.made, b.data, b.items = nil, nil, nil
}
