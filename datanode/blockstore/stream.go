package blockstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// Write implements datanode.Writer.
//
//	stored before      |■■■■■■■■|■■■■■■■■|■■■■□□□□|        length at □
//	next packet                          |    ▲▲▲▲|        off = length, one sum over the new bytes
//	or, after hflush                     |▲▲▲▲▲▲▲▲|▲▲▲     off at the chunk's start, sums over whole chunks
func (w *writer) Write(off int64, data, sums []byte) error {
	defer w.lock().io.Unlock()
	if err := w.ready(); err != nil {
		return err
	}
	return w.write(datanode.Piece{Off: off, Data: data, Sums: sums})
}

// write is Write with r.io held.
func (w *writer) write(p datanode.Piece) error {
	off, data, sums := p.Off, p.Data, p.Sums
	r := w.r()
	// Only the owner changes length and lastCRC, so they cannot move below.
	r.mu.Lock()
	length, last, table := r.length, r.open.lastCRC, tableOf(r.open.sum)
	r.mu.Unlock()
	stop := off + int64(len(data))
	if off < 0 || off > length {
		return metadata.Errorf(metadata.ErrInvalidArgument, "write to block %d at %d leaves a gap: the replica has %d bytes", r.id, off, length)
	}
	if sums != nil && off%chunk != 0 && off/chunk != (stop-1)/chunk {
		return metadata.Errorf(metadata.ErrInvalidArgument, "write to block %d from %d to %d begins inside a chunk and crosses its end", r.id, off, stop)
	}
	if sums != nil {
		if err := verifyPiece(table, p); err != nil {
			return fmt.Errorf("write to block %d at %d: %w", r.id, off, err)
		}
	}
	if stop <= length {
		return nil
	}
	// From here on: fresh bytes go to length; first is the start of the chunk that length lies in.
	first := length - length%chunk
	fresh := data[length-off:]
	switch {
	case sums == nil || off%chunk != 0:
		sums = w.computed(table, last, length, fresh)
	case first < length: // the chunk comes again: its bytes must be the ones that are here
		if crc32.Checksum(data[first-off:length-off], table) != last {
			return fmt.Errorf("write to block %d at %d: the chunk is repeated with other bytes: %w", r.id, off, metadata.ErrCorrupt)
		}
		fallthrough
	default:
		sums = sums[(first-off)/chunk*4:]
	}
	w.pieces = append(w.pieces[:0], fresh)
	e := endOf(stop, sums)
	if err := w.put(length, stop, sums); err != nil {
		return fmt.Errorf("write to block %d: %w", r.id, err)
	}
	w.grown(length, stop, e)
	return nil
}

// endOf is the end of a packet at off, with its checksums.
func endOf(off int64, sums []byte) end {
	e := end{off: off}
	if off%chunk != 0 {
		e.crc = binary.BigEndian.Uint32(sums[len(sums)-4:])
	}
	return e
}

// WriteAll implements datanode.Writer.
func (w *writer) WriteAll(pieces []datanode.Piece) (int, error) {
	defer w.lock().io.Unlock()
	for done := 0; done < len(pieces); {
		if err := w.ready(); err != nil {
			return done, err
		}
		n := w.run(pieces[done:])
		if n < 2 { // nothing to gain, or not so simple
			if err := w.write(pieces[done]); err != nil {
				return done, err
			}
			done++
			continue
		}
		if err := w.writeRun(pieces[done : done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(pieces), nil
}

// run is how many of the pieces can be written as one: each begins at the end of the one before, where a chunk begins, and
// matches its checksums.
func (w *writer) run(pieces []datanode.Piece) int {
	if len(pieces) == 1 {
		return 1
	}
	w.r().mu.Lock()
	at, table := w.r().length, tableOf(w.r().open.sum)
	w.r().mu.Unlock()
	for i, p := range pieces {
		if p.Off != at || at%chunk != 0 || len(p.Data) == 0 || p.Sums == nil || verifyPiece(table, p) != nil {
			return i
		}
		at += int64(len(p.Data))
	}
	return len(pieces)
}

// writeRun stores what run has counted. r.io is held.
func (w *writer) writeRun(pieces []datanode.Piece) error {
	r := w.r()
	w.pieces, w.scratch = w.pieces[:0], w.scratch[:0]
	for _, p := range pieces {
		w.pieces, w.scratch = append(w.pieces, p.Data), append(w.scratch, p.Sums...)
	}
	length, last := pieces[0].Off, pieces[len(pieces)-1]
	stop := last.Off + int64(len(last.Data))
	if err := w.put(length, stop, w.scratch); err != nil {
		return fmt.Errorf("write to block %d: %w", r.id, err)
	}
	for _, p := range pieces {
		stop := p.Off + int64(len(p.Data))
		w.grown(p.Off, stop, endOf(stop, p.Sums))
	}
	return nil
}

// grown counts a packet that is stored. r.io is held.
func (w *writer) grown(length, stop int64, e end) {
	r := w.r()
	r.vol.used.Add(stop - length + sumsSize(stop) - sumsSize(length))
	r.mu.Lock()
	r.length = stop
	r.open.lastCRC = e.crc
	r.open.ends = append(r.open.ends, e)
	part := min(r.open.expect, stop-length)
	r.open.expect -= part
	r.mu.Unlock()
	r.vol.expected.Add(-part)
}

const (
	// writebackStep is how many bytes are collected before their writeback begins: small enough that the fsync at close
	// finds little, large enough to make long writes.
	writebackStep = 8 << 20
	// writebackUnit: what lies behind a multiple of it is still being filled.
	writebackUnit = 64 << 10
	// allocateStep is how much room a file gets at a time that has grown to allocateFrom.
	allocateStep = 16 << 20
	allocateFrom = 4 << 20
)

// allocate sees to room on the disk for what is expected, at least up to stop. What is too much is given back by
// finalize or closeFiles, and after a crash by the cut at start. r.io is held.
func (w *writer) allocate(length, stop int64) {
	if length < allocateFrom || stop <= w.allocated {
		return
	}
	w.r().mu.Lock()
	most := length + w.r().open.expect
	w.r().mu.Unlock()
	from := max(w.allocated, length)
	if n := min(allocateStep, most-from); n > 0 {
		w.data.Allocate(from, n)
		w.allocated = from + n
	}
}

// giveBack frees the room that was allocated in vain. r.io is held.
func (w *writer) giveBack() error {
	r := w.r()
	r.mu.Lock()
	length, gone := r.length, r.gone
	r.mu.Unlock()
	if w.allocated <= length || gone || r.vol.failed.Load() != nil { // the file may be another replica's by now
		return nil
	}
	w.allocated = 0
	return r.vol.check(w.data.Truncate(length))
}

// writeback has the disk begin with what will not change any more, unless nobody waits for that at the end: who writes faster than the disk would
// wait here. r.io is held.
func (w *writer) writeback(stop int64) {
	if stop-w.flushed < writebackStep || w.store.cfg.Unsynced && !w.r().mustLast() {
		return
	}
	stop -= stop % writebackUnit
	w.data.Writeback(w.flushed, stop-w.flushed)
	w.flushed = stop
}

// put stores w.pieces behind the first length bytes, up to stop, and their checksums: in a pack if there is nothing yet,
// little comes, and its checksums are the usual ones. r.io is held.
func (w *writer) put(length, stop int64, sums []byte) error {
	r := w.r()
	if w.data == nil && length == 0 && r.suffix == 0 && len(w.pieces) == 1 && stop <= r.vol.packLimit && w.Checksum() == datanode.DefaultChecksum {
		at, err := r.vol.addRecord(r.id, r.gen, sums, w.pieces[0])
		if err == nil {
			r.mu.Lock()
			r.packed = at
			r.mu.Unlock()
		}
		clear(w.pieces)
		return err
	}
	if err := w.openFiles(); err != nil {
		return err
	}
	w.allocate(length, stop)
	err := w.data.WriteAllAt(w.pieces, length)
	clear(w.pieces)
	if err != nil {
		return r.vol.check(err)
	}
	if _, err := w.sums.WriteAt(sums, sumOffset(length)); err != nil {
		return r.vol.check(err)
	}
	w.writeback(stop)
	return nil
}

// verifyPiece compares the data of a piece with its checksums, unless they were made of it.
func verifyPiece(table *crc32.Table, p datanode.Piece) error {
	if p.Summed && int64(len(p.Sums)) == 4*chunksOf(int64(len(p.Data))) {
		return nil
	}
	return verify(table, p.Data, p.Sums)
}

// verify compares data with sums, chunks counted from data's start.
func verify(table *crc32.Table, data, sums []byte) error {
	if int64(len(sums)) != 4*chunksOf(int64(len(data))) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%d bytes of data with %d bytes of checksums", len(data), len(sums))
	}
	for i := 0; len(data) > 0; i++ {
		n := min(chunk, len(data))
		if crc32.Checksum(data[:n], table) != binary.BigEndian.Uint32(sums[4*i:]) {
			return fmt.Errorf("chunk %d does not match its checksum: %w", i, metadata.ErrCorrupt)
		}
		data = data[n:]
	}
	return nil
}

// computed returns the checksums of the chunks that fresh touches when it follows length bytes, the last chunk of which
// has checksum last.
func (w *writer) computed(table *crc32.Table, last uint32, length int64, fresh []byte) []byte {
	w.scratch = w.scratch[:0]
	crc, room := uint32(0), chunk
	if length%chunk != 0 {
		crc, room = last, int(chunk-length%chunk)
	}
	for len(fresh) > 0 {
		n := min(room, len(fresh))
		w.scratch = binary.BigEndian.AppendUint32(w.scratch, crc32.Update(crc, table, fresh[:n]))
		fresh, crc, room = fresh[n:], 0, chunk
	}
	return w.scratch
}
