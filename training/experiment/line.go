package experiment

import (
	"bytes"
	"strconv"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// Most lines of a journal are reports. They are written and read here, as encoding/json would; other lines, and reports with anything unusual,
// are left to it.

// appendReported appends the line of a report; ok is false if it is unusual.
func (e *Entry) appendReported(b []byte) (_ []byte, ok bool) {
	r := e.Reported
	if r == nil || r.Decision != nil || e.Kind != "reported" {
		return nil, false
	}
	b = strconv.AppendInt(append(b, `{"n":`...), e.N, 10)
	b = strconv.AppendInt(append(b, `,"t":`...), int64(e.Time), 10)
	b = append(append(append(b, `,"kind":"reported","reported":{"trial":"`...), r.Trial.String()...), `","attempt":`...)
	b = strconv.AppendInt(b, int64(r.Attempt), 10)
	if r.Rank != 0 {
		b = strconv.AppendInt(append(b, `,"rank":`...), int64(r.Rank), 10)
	}
	if b, ok = r.Events.AppendJSON(append(b, `,"events":`...)); !ok {
		return nil, false
	}
	if r.LogBytes != 0 {
		b = strconv.AppendInt(append(b, `,"log_bytes":`...), r.LogBytes, 10)
	}
	return append(b, "}}\n"...), true
}

// decodeReported reads what appendReported has written; ok is false if it is anything else.
func decodeReported(line []byte) (_ *Entry, ok bool) {
	e, r := &Entry{Kind: "reported"}, &reported{}
	rest, good := line, true
	is := func(text string) (found bool) {
		if len(rest) >= len(text) && string(rest[:len(text)]) == text {
			rest, found = rest[len(text):], true
		}
		return found
	}
	number := func() int64 {
		i := 0
		for i < len(rest) && i < 19 && '0' <= rest[i] && rest[i] <= '9' {
			i++
		}
		n, err := strconv.ParseInt(string(rest[:i]), 10, 64)
		good = good && err == nil && (rest[0] != '0' || i == 1)
		rest = rest[i:]
		return n
	}
	if !is(`{"n":`) {
		return nil, false
	}
	e.N = number()
	if !good || !is(`,"t":`) {
		return nil, false
	}
	e.Time = training.Millis(number())
	if !good || !is(`,"kind":"reported","reported":{"trial":"`) {
		return nil, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil, false
	}
	id, err := training.ParseTrialID(string(rest[:end]))
	rest = rest[end:]
	if r.Trial = id; err != nil || !is(`","attempt":`) {
		return nil, false
	}
	r.Attempt = int(number())
	if good && is(`,"rank":`) {
		r.Rank = int(number())
	}
	if !good || !is(`,"events":`) {
		return nil, false
	}
	if r.Events, rest, ok = protocol.ParseEvents(rest); !ok {
		return nil, false
	}
	if is(`,"log_bytes":`) {
		r.LogBytes = number()
	}
	if !good || string(bytes.TrimRight(rest, "\n")) != "}}" {
		return nil, false
	}
	e.Reported = r
	return e, true
}
