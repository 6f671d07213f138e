package raftstore

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/release"
)

// machine is a state machine of string registers. Commands: "set key value", "get key" (through the log), "cas key old
// new". The result is the register's value before the command.
type machine struct {
	mu       sync.Mutex
	index    uint64
	values   map[string]string
	applied  []uint64 // indexes of all entries applied live, for tests of order and of replay
	restored int
	unknown  string // a command that it does not know; empty: there is none
	// gate, if not nil, is closed when Apply goes on.
	gate atomic.Pointer[chan struct{}]
}

func newMachine() *machine { return &machine{values: make(map[string]string)} }

func (m *machine) Apply(index uint64, commands [][]byte) []any {
	if gate := m.gate.Load(); gate != nil {
		<-*gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.index {
		return nil
	}
	m.index = index
	m.applied = append(m.applied, index)
	results := make([]any, len(commands))
	for i, c := range commands {
		f := strings.Fields(string(c))
		if m.unknown != "" && f[0] == m.unknown {
			panic(fmt.Errorf("entry %d: %w", index, release.ErrOlder))
		}
		results[i] = m.values[f[1]]
		switch {
		case f[0] == "set", f[0] == "cas" && m.values[f[1]] == f[2]:
			m.values[f[1]] = f[len(f)-1]
		}
	}
	return results
}

func (m *machine) AppliedIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

func (m *machine) get(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key]
}

type machineState struct {
	Index  uint64
	Values map[string]string
}

func (m *machine) Freeze() (Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(machineState{m.index, m.values}); err != nil {
		return nil, err
	}
	return &machineSnapshot{m.index, b.Bytes()}, nil
}

type machineSnapshot struct {
	index uint64
	data  []byte
}

func (s *machineSnapshot) Index() uint64 { return s.index }

func (s *machineSnapshot) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s.data)
	return int64(n), err
}

func (s *machineSnapshot) Release() {}

func (m *machine) Restore(r io.Reader) error {
	var state machineState
	if err := gob.NewDecoder(r).Decode(&state); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index, m.values = state.Index, state.Values
	if m.values == nil {
		m.values = make(map[string]string)
	}
	m.restored++
	return nil
}

func set(key string, value any) []byte { return fmt.Appendf(nil, "set %s %v", key, value) }

// late is a machine that is behind.
type late struct {
	*machine
	until chan struct{} // nil: it is not
	asked int
}

func (l *late) Behind() <-chan struct{} {
	l.asked++
	return l.until
}

// An entry waits while the state machine is behind: until it has caught up, for some time at most, and no longer than the group lives.
func TestEntriesWaitForAMachineThatIsBehind(t *testing.T) {
	t.Parallel()
	m := &late{machine: newMachine()}
	f := &fsm{group: &Group{dying: make(chan struct{})}, machine: m}
	f.holdBack(time.Hour)
	m.until = make(chan struct{})
	began := time.Now()
	if f.holdBack(heldBack); time.Since(began) < heldBack {
		t.Errorf("it waited for %v, not %v", time.Since(began), heldBack)
	}
	time.AfterFunc(time.Millisecond, func() { close(m.until) })
	f.holdBack(time.Hour)
	m.until = make(chan struct{})
	close(f.group.dying)
	f.holdBack(time.Hour)
	if m.asked != 4 {
		t.Errorf("asked %d times", m.asked)
	}
	h := &late{machine: newMachine(), until: make(chan struct{})}
	c := newCalmCluster(t, 1)
	g, err := c.host("m1").host.Open(c.config("a", true), h)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it leads", func() bool { return g.Leadership().Leader })
	for i := range 3 {
		if _, err := g.Propose(ctx(t), set("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if h.asked < 3 {
		t.Errorf("%d of 3 entries asked", h.asked)
	}
}
