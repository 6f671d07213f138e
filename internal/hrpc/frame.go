package hrpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gohops/hops/internal/security"
)

// errFrame marks a frame that may not be.
var errFrame = errors.New("bad frame")

const (
	firstBuffer = 8 << 10   // what a quiet connection costs
	busyBuffer  = 64 << 10  // what one that fills its buffer gets
	keepBuffer  = 256 << 10 // a larger one is given back when it is empty
)

// frames cuts a stream into frames. Its buffer holds at most twice the bytes that have arrived (firstBuffer at least),
// whatever length a frame announces.
type frames struct {
	r          io.Reader
	buf        []byte
	start, end int // of what has been read and not yet handed out
	limit      int // of a frame's length
	need       int // bytes of the frame at start with its length, if that is known and not all of it has arrived
	skip       int // bytes to come of a frame that is not wanted
	filled     bool

	// account pays for what is larger than firstBuffer; nil: nobody does. paid is how many bytes it holds.
	account *security.Account
	paid    int
}

func newFrames(r io.Reader, limit int) frames {
	return frames{r: r, buf: make([]byte, firstBuffer), limit: limit}
}

// take returns the next n raw bytes if they have arrived. They are valid until the next fill.
func (f *frames) take(n int) ([]byte, bool) {
	if f.end-f.start < n {
		return nil, false
	}
	b := f.buf[f.start : f.start+n]
	f.start += n
	return b, true
}

// next returns the next frame without its length if all of it has arrived. It is valid until the next fill.
func (f *frames) next() (frame []byte, ok bool, err error) {
	if f.need = 0; f.end-f.start < 4 {
		return nil, false, nil
	}
	length := binary.BigEndian.Uint32(f.buf[f.start:])
	if int64(length) > int64(f.limit) {
		return nil, false, fmt.Errorf("%w: %d bytes announced, %d are allowed", errFrame, length, f.limit)
	}
	if f.end-f.start-4 < int(length) {
		f.need = 4 + int(length)
		return nil, false, nil
	}
	f.start += 4
	frame = f.buf[f.start : f.start+int(length) : f.start+int(length)]
	f.start += int(length)
	return frame, true, nil
}

// ready reports whether a whole frame has arrived.
func (f *frames) ready() bool {
	_, _, ok := f.peek(f.start)
	return ok
}

// peek returns the frame that begins at a place of buf without its length, and where it ends, if all of it has arrived.
func (f *frames) peek(at int) (frame []byte, end int, ok bool) {
	if f.end-at < 4 {
		return nil, 0, false
	}
	length := binary.BigEndian.Uint32(f.buf[at:])
	if int64(length) > int64(f.end-at-4) {
		return nil, 0, false
	}
	end = at + 4 + int(length)
	return f.buf[at+4 : end], end, true
}

// partial reports whether bytes of a frame wait for the rest of it.
func (f *frames) partial() bool { return f.end > f.start || f.skip > 0 }

// unpaid is how much the account has to give before the frame that is arriving may take memory.
func (f *frames) unpaid() int {
	if f.need <= len(f.buf) || f.account == nil {
		return 0
	}
	return f.need - f.paid
}

// drop lets go of the frame that is arriving; what comes of it is skipped.
func (f *frames) drop() {
	f.skip = f.need - (f.end - f.start)
	f.start, f.end, f.need = 0, 0, 0
}

// room makes space for what comes next and returns it; took says how much of it was filled.
func (f *frames) room() []byte {
	if f.start == f.end {
		f.start, f.end = 0, 0
		switch {
		case len(f.buf) > keepBuffer:
			f.resize(busyBuffer)
		case f.filled && len(f.buf) < busyBuffer && (f.account == nil || f.account.Try(int64(len(f.buf)))):
			if f.account != nil {
				f.paid += len(f.buf)
			}
			f.resize(2 * len(f.buf))
		}
	}
	if f.start > 0 && (f.end == len(f.buf) || len(f.buf)-f.end < len(f.buf)/4) {
		copy(f.buf, f.buf[f.start:f.end])
		f.end -= f.start
		f.start = 0
	}
	if f.end == len(f.buf) { // one frame fills the buffer: it has earned twice as much
		f.resize(min(2*len(f.buf), f.need))
	}
	return f.buf[f.end:]
}

// resize goes on in a buffer of n bytes, and gives back what was paid for more than that.
func (f *frames) resize(n int) {
	b := make([]byte, n)
	copy(b, f.buf[:f.end])
	f.buf = b
	if keep := max(n-firstBuffer, f.need); f.paid > keep {
		f.account.Give(int64(f.paid - keep))
		f.paid = keep
	}
}

// shrink gives the memory back that a quiet connection does not need.
func (f *frames) shrink() {
	if f.start == f.end && len(f.buf) > firstBuffer {
		f.start, f.end = 0, 0
		f.resize(firstBuffer)
	}
}

// close gives everything back.
func (f *frames) close() {
	f.buf, f.start, f.end = nil, 0, 0
	if f.paid > 0 {
		f.account.Give(int64(f.paid))
		f.paid = 0
	}
}

// took counts n bytes in, and reports whether they fill the room that was made.
func (f *frames) took(n int) (full bool) {
	f.filled = f.end+n == len(f.buf)
	if f.skip > 0 { // the buffer is empty
		skipped := min(n, f.skip)
		f.skip -= skipped
		f.start = f.end + skipped
	}
	f.end += n
	return f.filled
}

// fill reads once. io.EOF is returned at a frame's boundary only.
func (f *frames) fill() error {
	n, err := f.r.Read(f.room())
	f.took(n)
	if n > 0 {
		return nil
	}
	return f.ended(err)
}

// ended is the error for a stream that has ended with err: io.EOF at a frame's boundary only.
func (f *frames) ended(err error) error {
	if errors.Is(err, io.EOF) && f.partial() {
		return io.ErrUnexpectedEOF
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}
