package runs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// A run is an immutable file of records in ascending order of keys, each key once. FORMAT.md has the layout.
const (
	runMagic     = "HOPSRUN1"
	footerBytes  = 52
	sumBytes     = 4
	blockTarget  = 8 << 10
	maxBlock     = blockTarget + kv.MaxKey + kv.MaxValue + 64
	writeBuffer  = 256 << 10
	writtenAhead = 1 << 20 // what may lie in the page cache only while a run is written
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(path, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", path, fmt.Sprintf(format, args...), metadata.ErrCorrupt)
}

// runWriter makes a run from records that come in ascending order.
type runWriter struct {
	path    string
	f       *os.File
	out     []byte // not yet handed to the file
	written int64  // bytes handed to the file
	started int64  // bytes whose way to the disk has begun
	block   []byte
	last    []byte // the last key
	count   uint64
	index   []byte
	filter  filter
	hashes  []uint64 // of the keys, while the size of the filter is not known
}

// newRunWriter begins the file path. expect is an upper bound of how many records come, 0 when nobody knows.
func newRunWriter(path string, expect uint64) (*runWriter, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	w := &runWriter{path: path, f: f, out: make([]byte, 0, writeBuffer), block: make([]byte, 0, 2*blockTarget)}
	if expect > 0 {
		w.filter = newFilter(expect)
	}
	return w, nil
}

// add appends a record; its key is above the last one's.
func (w *runWriter) add(key, value []byte, deleted bool) error {
	if w.count > 0 && bytes.Compare(key, w.last) <= 0 {
		return corrupt(w.path, "key %q comes after %q", key, w.last)
	}
	shared := 0
	if len(w.block) == 0 {
		w.index = binary.AppendUvarint(w.index, uint64(len(key)))
		w.index = append(w.index, key...)
	} else {
		for limit := min(len(key), len(w.last)); shared < limit && key[shared] == w.last[shared]; {
			shared++
		}
	}
	b := binary.AppendUvarint(w.block, uint64(shared))
	b = binary.AppendUvarint(b, uint64(len(key)-shared))
	if deleted {
		b = append(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(value))+1)
	}
	b = append(b, key[shared:]...)
	if !deleted {
		b = append(b, value...)
	}
	w.block = b
	w.last = append(w.last[:0], key...)
	w.count++
	if h := hash(key); w.filter != nil {
		w.filter.set(h)
	} else {
		w.hashes = append(w.hashes, h)
	}
	if len(b) >= blockTarget {
		return w.endBlock()
	}
	return nil
}

func (w *runWriter) endBlock() error {
	if len(w.block) == 0 {
		return nil
	}
	w.index = binary.AppendUvarint(w.index, uint64(len(w.block)))
	err := w.summed(w.block)
	w.block = w.block[:0]
	runtime.Gosched() // a checkpoint is in no hurry: whoever waits for the processor goes first
	return err
}

// summed writes b and its checksum.
func (w *runWriter) summed(b []byte) error {
	w.out = append(w.out, b...)
	w.out = binary.LittleEndian.AppendUint32(w.out, crc32.Checksum(b, castagnoli))
	if len(w.out) < writeBuffer-2*blockTarget {
		return nil
	}
	return w.hand()
}

// hand gives the file what has gathered, and sees to it that little of it waits for the disk at the end: a large sync
// would hold up the log's.
func (w *runWriter) hand() error {
	n, err := w.f.Write(w.out)
	w.written += int64(n)
	w.out = w.out[:0]
	if err != nil {
		return err
	}
	if w.written-w.started >= writtenAhead {
		before := w.started
		w.started = w.written
		if before > 0 {
			_ = unix.SyncFileRange(int(w.f.Fd()), 0, before, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
		}
		_ = unix.SyncFileRange(int(w.f.Fd()), before, w.written-before, unix.SYNC_FILE_RANGE_WRITE) // fsync follows and reports
	}
	return nil
}

// finish makes the run durable but for its name, and opens it.
func (w *runWriter) finish() (*run, error) {
	r, err := w.end()
	if err != nil {
		w.cancel()
		return nil, err
	}
	return r, nil
}

func (w *runWriter) end() (*run, error) {
	if err := w.endBlock(); err != nil {
		return nil, err
	}
	if w.filter == nil {
		w.filter = newFilter(w.count)
		for _, h := range w.hashes {
			w.filter.set(h)
		}
	}
	data := uint64(w.written) + uint64(len(w.out))
	if err := w.summed(w.index); err != nil {
		return nil, err
	}
	if err := w.summed(w.filter); err != nil {
		return nil, err
	}
	footer := append(make([]byte, 0, footerBytes), runMagic...)
	for _, n := range []uint64{w.count, data, uint64(len(w.index)), uint64(len(w.filter))} {
		footer = binary.LittleEndian.AppendUint64(footer, n)
	}
	footer = binary.LittleEndian.AppendUint64(footer, 0) // reserved
	footer = binary.LittleEndian.AppendUint32(footer, crc32.Checksum(footer, castagnoli))
	w.out = append(w.out, footer...)
	if err := w.hand(); err != nil {
		return nil, err
	}
	if err := w.f.Sync(); err != nil {
		return nil, err
	}
	if err := w.f.Close(); err != nil {
		return nil, err
	}
	return openRun(w.path)
}

// cancel removes what was written.
func (w *runWriter) cancel() {
	w.f.Close()
	os.Remove(w.path)
}

// run is an open run. It is closed when nobody holds it any more.
type run struct {
	path   string
	name   string
	at     uint64 // the timestamp of its records
	f      *os.File
	size   int64
	count  uint64
	keys   []byte   // the first key of every block, one behind the other
	ends   []uint32 // where those keys end
	offset []int64  // of every block; one more is the end of the last
	filter filter
	holds  atomic.Int32
}

func openRun(path string) (_ *run, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r := &run{path: path, name: info.Name(), f: f, size: info.Size()}
	r.holds.Store(1)
	var footer [footerBytes]byte
	if r.size < footerBytes {
		return nil, corrupt(path, "%d bytes", r.size)
	}
	if _, err := f.ReadAt(footer[:], r.size-footerBytes); err != nil {
		return nil, err
	}
	sum := binary.LittleEndian.Uint32(footer[footerBytes-sumBytes:])
	if string(footer[:8]) != runMagic || crc32.Checksum(footer[:footerBytes-sumBytes], castagnoli) != sum {
		return nil, corrupt(path, "footer")
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(footer[8+8*i:]) }
	r.count = number(0)
	data, index, bits := number(1), number(2), number(3)
	if all := uint64(r.size) - footerBytes; data > all || index > all || bits > all || data+index+bits+2*sumBytes != all {
		return nil, corrupt(path, "lengths do not add up")
	}
	raw := make([]byte, index)
	if err := r.readSummed(raw, int64(data)); err != nil {
		return nil, err
	}
	r.filter = make(filter, bits)
	if err := r.readSummed(r.filter, int64(data+index+sumBytes)); err != nil {
		return nil, err
	}
	return r, r.parseIndex(raw, int64(data))
}

func (r *run) parseIndex(raw []byte, data int64) error {
	at := int64(0)
	r.keys = make([]byte, 0, len(raw))
	for len(raw) > 0 {
		size, n := binary.Uvarint(raw)
		if n <= 0 || size > uint64(len(raw)-n) {
			return corrupt(r.path, "index")
		}
		r.keys = append(r.keys, raw[n:n+int(size)]...)
		raw = raw[n+int(size):]
		length, n := binary.Uvarint(raw)
		if n <= 0 || length == 0 || length > maxBlock {
			return corrupt(r.path, "index")
		}
		raw = raw[n:]
		r.ends = append(r.ends, uint32(len(r.keys)))
		r.offset = append(r.offset, at)
		at += int64(length) + sumBytes
	}
	r.offset = append(r.offset, at)
	if at != data {
		return corrupt(r.path, "blocks end at %d, not %d", at, data)
	}
	return nil
}

// readSummed fills b from offset at and compares the checksum behind it.
func (r *run) readSummed(b []byte, at int64) error {
	if _, err := r.f.ReadAt(b, at); err != nil {
		return err
	}
	var sum [sumBytes]byte
	if _, err := r.f.ReadAt(sum[:], at+int64(len(b))); err != nil {
		return err
	}
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(sum[:]) {
		return corrupt(r.path, "checksum of %d bytes at %d", len(b), at)
	}
	return nil
}

// blocks is how many there are.
func (r *run) blocks() int { return len(r.ends) }

func (r *run) firstKey(block int) []byte {
	start := uint32(0)
	if block > 0 {
		start = r.ends[block-1]
	}
	return r.keys[start:r.ends[block]]
}

// find is the block in which key would be; -1 when key is below all.
func (r *run) find(key []byte) int {
	return sort.Search(r.blocks(), func(i int) bool { return bytes.Compare(r.firstKey(i), key) > 0 }) - 1
}

// read returns a block's records, in buf when they fit.
func (r *run) read(block int, buf []byte) ([]byte, error) {
	size := int(r.offset[block+1] - r.offset[block])
	if cap(buf) < size {
		buf = make([]byte, max(size, blockTarget+512))
	}
	buf = buf[:size]
	if _, err := r.f.ReadAt(buf, r.offset[block]); err != nil {
		return nil, fmt.Errorf("%s: block %d: %w", r.path, block, err)
	}
	b := buf[:size-sumBytes]
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(buf[size-sumBytes:]) {
		return nil, corrupt(r.path, "checksum of block %d", block)
	}
	return b, nil
}

func (r *run) hold() { r.holds.Add(1) }

func (r *run) release() {
	if r.holds.Add(-1) == 0 {
		r.f.Close()
	}
}

// cursor walks over a run. next has to be called before the first record.
type cursor struct {
	run     *run
	rank    int // among the runs of a merge; the greatest is the newest
	block   int // the next to be read
	buf     []byte
	rest    []byte
	key     []byte
	value   []byte // in buf
	deleted bool
}

// next moves to the next record; false at the end.
func (c *cursor) next() (bool, error) {
	for len(c.rest) == 0 {
		if c.block >= c.run.blocks() {
			return false, nil
		}
		b, err := c.run.read(c.block, c.buf)
		if err != nil {
			return false, err
		}
		c.buf, c.rest = b, b
		c.block++
	}
	shared, n := binary.Uvarint(c.rest)
	rest := c.rest[max(n, 0):]
	unshared, m := binary.Uvarint(rest)
	rest = rest[max(m, 0):]
	length, k := binary.Uvarint(rest)
	rest = rest[max(k, 0):]
	value := max(length, 1) - 1
	if n <= 0 || m <= 0 || k <= 0 || shared > uint64(len(c.key)) || unshared > uint64(len(rest)) || value > uint64(len(rest))-unshared {
		return false, corrupt(c.run.path, "record in block %d", c.block-1)
	}
	c.key = append(c.key[:shared], rest[:unshared]...)
	c.value, c.deleted = rest[unshared:unshared+value], length == 0
	c.rest = rest[unshared+value:]
	return true, nil
}

// seek moves to the first record that is not below key; false when there is none.
func (c *cursor) seek(key []byte) (bool, error) {
	c.block, c.rest = max(c.run.find(key), 0), nil
	for {
		ok, err := c.next()
		if err != nil || !ok || bytes.Compare(c.key, key) >= 0 {
			return ok, err
		}
	}
}

// cursors are kept because of their buffers.
var cursors = sync.Pool{New: func() any { return new(cursor) }}

func newCursor(r *run, rank int) *cursor {
	c := cursors.Get().(*cursor)
	*c = cursor{run: r, rank: rank, buf: c.buf[:0], key: c.key[:0]}
	return c
}

func (c *cursor) close() {
	c.run, c.rest, c.value = nil, nil, nil
	if cap(c.buf) > 4*blockTarget {
		c.buf = nil
	}
	cursors.Put(c)
}

// get looks one key up.
func (r *run) get(key []byte, h uint64) (value []byte, deleted, found bool, err error) {
	if !r.filter.has(h) {
		return nil, false, false, nil
	}
	c := newCursor(r, 0)
	defer c.close()
	ok, err := c.seek(key)
	if err != nil || !ok || !bytes.Equal(c.key, key) {
		return nil, false, false, err
	}
	return bytes.Clone(c.value), c.deleted, true, nil
}
