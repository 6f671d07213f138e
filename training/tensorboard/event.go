package tensorboard

import (
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Scalar is one value of a curve. TensorBoard keeps values as 32-bit floats.
type Scalar struct {
	Tag   string
	Value float32
}

// Event is one entry of an event file.
type Event struct {
	Time time.Time
	Step int64
	// Version is set in the first event only: "brain.Event:2".
	Version string
	// Start marks a (re)start: what other files of the run say of Step and later is void.
	Start   bool
	Scalars []Scalar
}

// Version is what the first event of every file says.
const Version = "brain.Event:2"

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
const (
	eventWallTime    = 1
	eventStep        = 2
	eventFileVersion = 3
	eventSummary     = 5
	eventSessionLog  = 7

	summaryValue     = 1
	valueTag         = 1
	valueSimpleValue = 2

	sessionLogStatus = 1
	sessionStart     = 1
)

// appendEvent encodes e as TensorBoard's own writer does: fields in order of their numbers, zeros left out.
func appendEvent(b []byte, e Event) []byte {
	b = protowire.AppendTag(b, eventWallTime, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(float64(e.Time.UnixMicro())/1e6))
	if e.Step != 0 {
		b = protowire.AppendTag(b, eventStep, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(e.Step))
	}
	if e.Version != "" {
		b = protowire.AppendTag(b, eventFileVersion, protowire.BytesType)
		b = protowire.AppendString(b, e.Version)
	}
	if len(e.Scalars) > 0 {
		var summary []byte
		for _, s := range e.Scalars {
			var v []byte
			v = protowire.AppendTag(v, valueTag, protowire.BytesType)
			v = protowire.AppendString(v, s.Tag)
			v = protowire.AppendTag(v, valueSimpleValue, protowire.Fixed32Type) // one of a oneof: written also when 0
			v = protowire.AppendFixed32(v, math.Float32bits(s.Value))
			summary = protowire.AppendTag(summary, summaryValue, protowire.BytesType)
			summary = protowire.AppendBytes(summary, v)
		}
		b = protowire.AppendTag(b, eventSummary, protowire.BytesType)
		b = protowire.AppendBytes(b, summary)
	}
	if e.Start {
		var s []byte
		s = protowire.AppendTag(s, sessionLogStatus, protowire.VarintType)
		s = protowire.AppendVarint(s, sessionStart)
		b = protowire.AppendTag(b, eventSessionLog, protowire.BytesType)
		b = protowire.AppendBytes(b, s)
	}
	return b
}

// fields calls fn for each field of a message, with its number and its raw value (the bytes themselves for a
// length-delimited one).
func fields(b []byte, fn func(n protowire.Number, t protowire.Type, v []byte) error) error {
	for len(b) > 0 {
		n, t, k := protowire.ConsumeTag(b)
		if k < 0 {
			return fmt.Errorf("event: %w: %w", protowire.ParseError(k), ErrCorrupt)
		}
		b = b[k:]
		k = protowire.ConsumeFieldValue(n, t, b)
		if k < 0 {
			return fmt.Errorf("event field %d: %w: %w", n, protowire.ParseError(k), ErrCorrupt)
		}
		v := b[:k]
		if t == protowire.BytesType {
			v, _ = protowire.ConsumeBytes(v)
		}
		if err := fn(n, t, v); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

func parseEvent(b []byte) (Event, error) {
	var e Event
	err := fields(b, func(n protowire.Number, t protowire.Type, v []byte) error {
		switch {
		case n == eventWallTime && t == protowire.Fixed64Type:
			bits, _ := protowire.ConsumeFixed64(v)
			e.Time = time.UnixMicro(int64(math.Round(math.Float64frombits(bits) * 1e6)))
		case n == eventStep && t == protowire.VarintType:
			step, _ := protowire.ConsumeVarint(v)
			e.Step = int64(step)
		case n == eventFileVersion && t == protowire.BytesType:
			e.Version = string(v)
		case n == eventSummary && t == protowire.BytesType:
			return fields(v, func(n protowire.Number, t protowire.Type, v []byte) error {
				if n != summaryValue || t != protowire.BytesType {
					return nil
				}
				s, scalar, err := parseValue(v)
				if scalar {
					e.Scalars = append(e.Scalars, s)
				}
				return err
			})
		case n == eventSessionLog && t == protowire.BytesType:
			return fields(v, func(n protowire.Number, t protowire.Type, v []byte) error {
				if n == sessionLogStatus && t == protowire.VarintType {
					status, _ := protowire.ConsumeVarint(v)
					e.Start = status == sessionStart
				}
				return nil
			})
		}
		return nil // histograms, images, graphs: not ours
	})
	return e, err
}

func parseValue(b []byte) (s Scalar, scalar bool, err error) {
	err = fields(b, func(n protowire.Number, t protowire.Type, v []byte) error {
		switch {
		case n == valueTag && t == protowire.BytesType:
			s.Tag = string(v)
		case n == valueSimpleValue && t == protowire.Fixed32Type:
			bits, _ := protowire.ConsumeFixed32(v)
			s.Value, scalar = math.Float32frombits(bits), true
		}
		return nil
	})
	return s, scalar, err
}

// Writer appends events to a file. It does not buffer: each call is one Write, so that the caller decides when to flush.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter begins a file: it writes the version event.
func NewWriter(w io.Writer, now time.Time) (*Writer, error) {
	t := &Writer{w: w}
	return t, t.Write(Event{Time: now, Version: Version})
}

// Write appends one event.
func (w *Writer) Write(e Event) error {
	w.buf = AppendRecord(w.buf[:0], appendEvent(nil, e))
	_, err := w.w.Write(w.buf)
	return err
}

// Reader reads an event file from its beginning.
type Reader struct {
	records recordReader
}

// NewReader reads from r, which it does not buffer.
func NewReader(r io.Reader) *Reader { return &Reader{recordReader{r: r}} }

// Next is the next event. io.EOF: the file ends here; io.ErrUnexpectedEOF: a writer is in the middle of an event, or
// died there; ErrCorrupt: the file is damaged.
func (r *Reader) Next() (Event, error) {
	b, err := r.records.next()
	if err != nil {
		return Event{}, err
	}
	return parseEvent(b)
}
