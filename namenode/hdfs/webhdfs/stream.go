package webhdfs

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// stream writes a JSON answer bit by bit, with the bytes that json.Encoder would write of all of it. The first error stays.
type stream struct {
	w       http.ResponseWriter
	buf     bytes.Buffer
	encoder *json.Encoder
	more    bool // an element has been written
	err     error
}

// streamBuffer is how much is written at a time.
const streamBuffer = 32 << 10

func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w}
	s.encoder = json.NewEncoder(&s.buf)
	s.encoder.SetEscapeHTML(false)
	return s
}

// text adds what is before the elements of a list, or behind them.
func (s *stream) text(t string) { s.buf.WriteString(t) }

// element adds one of a list.
func (s *stream) element(v any) {
	if s.more {
		s.buf.WriteByte(',')
	}
	s.more = true
	if err := s.encoder.Encode(v); err != nil && s.err == nil {
		s.err = err
	}
	s.buf.Truncate(s.buf.Len() - 1) // the end of the line
	if s.buf.Len() >= streamBuffer {
		s.send()
	}
}

// send hands what has been written to the client, which has patience to take it.
func (s *stream) send() {
	if s.err == nil {
		within(s.w, patience)
		_, s.err = s.w.Write(s.buf.Bytes())
	}
	s.buf.Reset()
}

// close sends what is left.
func (s *stream) close() error {
	s.send()
	within(s.w, 0)
	return s.err
}

// within limits how long the client may take nothing of the answer; 0: not at all.
func within(w http.ResponseWriter, d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(at) // a recorder in a test has none
}
