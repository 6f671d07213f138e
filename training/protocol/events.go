package protocol

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/gohops/hops/training"
)

// Reports are most of what a controller reads and writes, and encoding/json takes ten times as long for them as what is done with them. What
// is written here is what it would write, byte for byte; what is read is the usual form, and everything else is left to it.

// Events are the events of a report, in the order in which they were made.
type Events []MetricEvent

// AppendJSON appends the events as encoding/json writes them without HTML escapes; ok is false if one has a name or a value that is not plain.
func (e Events) AppendJSON(b []byte) (_ []byte, ok bool) {
	if e == nil {
		return append(b, "null"...), true
	}
	b = append(b, '[')
	var names []string
	for i, event := range e {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"seq":`...), event.Seq, 10)
		b = strconv.AppendInt(append(b, `,"step":`...), event.Step, 10)
		b = strconv.AppendInt(append(b, `,"t":`...), int64(event.Time), 10)
		b = append(b, `,"metrics":`...)
		if event.Metrics == nil {
			b = append(b, "null}"...)
			continue
		}
		names = slices.AppendSeq(names[:0], maps.Keys(event.Metrics))
		slices.Sort(names)
		b = append(b, '{')
		for n, name := range names {
			m := event.Metrics[name]
			if !plain(name) || !m.Finite() {
				return nil, false
			}
			if n > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, '"'), name...), `":`...)
			b = strconv.AppendFloat(b, m.Value, 'g', -1, 64)
		}
		b = append(b, "}}"...)
	}
	return append(b, ']'), true
}

// plain says whether a string stands in JSON as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// ParseReport reads the body of a report.
func ParseReport(body []byte) (r Report, err error) {
	s := scanner{b: body}
	if s.object(func(key []byte) bool {
		switch string(key) {
		case "rank":
			r.Rank = int(s.whole())
		case "events":
			r.Events = s.events()
		case "log_bytes":
			r.LogBytes = s.whole()
		case "idle_ms":
			r.IdleMS = s.whole()
		default:
			return false
		}
		return true
	}) && s.end() {
		return r, nil
	}
	r = Report{}
	return r, json.Unmarshal(body, &r)
}

// ParseEvents reads the events at the beginning of b, as AppendJSON has written them, and returns what stands behind; ok is false if they
// are not in the usual form.
func ParseEvents(b []byte) (e Events, rest []byte, ok bool) {
	s := scanner{b: b}
	e = s.events()
	return e, s.b[min(s.i, len(b)):], !s.bad
}

// scanner reads JSON of the usual form: known keys, each once, numbers as people write them, strings without escapes. It is bad from the
// first thing on that is not so.
type scanner struct {
	b    []byte
	i    int
	bad  bool
	name string // the last one of a metric: most are the same
}

// next is the next byte that is no blank, 0 at the end.
func (s *scanner) next() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// take goes on behind a byte that has to come.
func (s *scanner) take(c byte) bool {
	if s.bad || s.next() != c {
		s.bad = true
		return false
	}
	s.i++
	return true
}

func (s *scanner) end() bool { return !s.bad && s.next() == 0 && s.i == len(s.b) }

// object reads one, with a value for each key. One with a key twice is bad, and so is one with more keys than are compared here.
func (s *scanner) object(value func(key []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.next() == '}' {
		s.i++
		return true
	}
	var seen [8][]byte
	for n := 0; ; n++ {
		key := s.text()
		if s.bad || n == len(seen) || slices.ContainsFunc(seen[:n], func(k []byte) bool { return string(k) == string(key) }) || !s.take(':') || !value(key) || s.bad {
			s.bad = true
			return false
		}
		seen[n] = key
		if s.next() == '}' {
			s.i++
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// text reads a string without escapes.
func (s *scanner) text() []byte {
	if !s.take('"') {
		return nil
	}
	for from := s.i; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[from : s.i-1]
		case c < ' ' || c > '~' || c == '\\':
			s.bad = true
			return nil
		}
	}
	s.bad = true
	return nil
}

// number reads the characters of one; fraction says whether it is more than digits.
func (s *scanner) number() (text []byte, fraction bool) {
	s.next()
	from := s.i
	digits := func() bool {
		n := s.i
		for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
			s.i++
		}
		return s.i > n
	}
	at := func(chars ...byte) bool {
		if s.i < len(s.b) && slices.Contains(chars, s.b[s.i]) {
			s.i++
			return true
		}
		return false
	}
	at('-')
	first := s.i
	s.bad = s.bad || !digits() || s.b[first] == '0' && s.i > first+1
	if at('.') {
		fraction = true
		s.bad = s.bad || !digits()
	}
	if at('e', 'E') {
		fraction = true
		at('+', '-')
		s.bad = s.bad || !digits()
	}
	return s.b[from:s.i], fraction
}

func (s *scanner) whole() int64 {
	text, fraction := s.number()
	if s.bad || fraction || len(text) > 18 { // which fits
		s.bad = true
		return 0
	}
	n, negative := int64(0), text[0] == '-'
	if negative {
		text = text[1:]
	}
	for _, c := range text {
		n = 10*n + int64(c-'0')
	}
	if negative {
		return -n
	}
	return n
}

func (s *scanner) metric() training.Metric {
	text, _ := s.number()
	if s.bad {
		return training.Metric{}
	}
	f, err := strconv.ParseFloat(string(text), 64)
	s.bad = err != nil
	return training.M(f)
}

func (s *scanner) events() Events {
	if !s.take('[') {
		return nil
	}
	out := Events{}
	if s.next() == ']' {
		s.i++
		return out
	}
	for {
		var e MetricEvent
		s.object(func(key []byte) bool {
			switch string(key) {
			case "seq":
				e.Seq = s.whole()
			case "step":
				e.Step = s.whole()
			case "t":
				e.Time = training.Millis(s.whole())
			case "metrics":
				e.Metrics = make(map[string]training.Metric, 1)
				s.object(func(name []byte) bool {
					if string(name) != s.name {
						s.name = string(name)
					}
					e.Metrics[s.name] = s.metric()
					return true
				})
			default:
				return false
			}
			return true
		})
		if s.bad {
			return nil
		}
		out = append(out, e)
		if s.next() == ']' {
			s.i++
			return out
		}
		if !s.take(',') {
			return nil
		}
	}
}
