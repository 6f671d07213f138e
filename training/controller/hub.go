package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// hubEvents is how many events are held for watchers that come back; one that was away longer gets a reset.
const hubEvents = 20_000

// watchBeat is how often a silent stream gets a comment, so that a dead connection is found.
const watchBeat = 15 * time.Second

// hub keeps the newest events for those who watch the experiment.
type hub struct {
	mu     sync.Mutex
	events []experiment.StreamEvent
	floor  int64         // ids at or below are not held (completely)
	more   chan struct{} // closed when events are added
	closed bool
}

func newHub(floor int64) *hub { return &hub{floor: floor, more: make(chan struct{})} }

// publish adds events. Those of one id come in one call.
func (h *hub) publish(events []experiment.StreamEvent) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, events...)
	if len(h.events) > 2*hubEvents {
		n := len(h.events) - hubEvents
		h.floor = h.events[n-1].ID
		h.events = slices.Clone(h.events[n:])
	}
	close(h.more)
	h.more = make(chan struct{})
}

// close ends all streams after what they have not sent yet.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.more)
		h.more = make(chan struct{})
	}
}

// since lists the events after an id; ok is false when they are not all held.
func (h *hub) since(id int64) (events []experiment.StreamEvent, more <-chan struct{}, closed, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id < h.floor {
		return nil, h.more, h.closed, false
	}
	i, _ := slices.BinarySearchFunc(h.events, id+1, func(e experiment.StreamEvent, id int64) int { return int(e.ID - id) })
	return h.events[i:], h.more, h.closed, true
}

// serve writes the stream to one watcher. reset makes the whole status, with the id of its last event.
func (h *hub) serve(w http.ResponseWriter, r *http.Request, reset func() protocol.ExperimentStatus) {
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	at := int64(-1)
	if v := r.Header.Get("Last-Event-ID"); v != "" {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			at = n
		}
	}
	var b bytes.Buffer
	send := func() bool {
		_ = control.SetWriteDeadline(time.Now().Add(30 * time.Second))
		_, err := w.Write(b.Bytes())
		b.Reset()
		return err == nil && control.Flush() == nil
	}
	for {
		events, more, closed, ok := h.since(at)
		if at < 0 || !ok {
			s := reset()
			at = s.Event
			encodeEvent(&b, protocol.EventReset, at, true, s)
			if !send() {
				return
			}
			continue
		}
		for i, e := range events {
			encodeEvent(&b, e.Name, e.ID, i == len(events)-1 || events[i+1].ID != e.ID, e.Data)
			at = e.ID
			if b.Len() > 64<<10 && !send() {
				return
			}
		}
		if b.Len() > 0 && !send() {
			return
		}
		if closed {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-more:
		case <-time.After(watchBeat):
			b.WriteString(": still here\n\n")
			if !send() {
				return
			}
		}
	}
}

// encodeEvent writes one event; only the last one of an id carries it, so that a stream that breaks between two of the
// same id repeats both.
func encodeEvent(b *bytes.Buffer, name string, id int64, last bool, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(strconv.Quote(err.Error()))
	}
	if last {
		fmt.Fprintf(b, "id: %d\n", id)
	}
	fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, text)
}
