package supervisor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// FuzzConversation says anything to a supervisor. Each line that is short enough gets one answer of one line, the lease
// never moves back, and a stop once asked for stays and comes within the longest grace.
func FuzzConversation(f *testing.F) {
	for _, r := range []request{
		{Op: "status"},
		{Op: "renew", Lease: &Lease{Term: 1, Kill: 2}},
		{Op: "signal", Signal: 15},
		{Op: "wait"},
		{Op: "stop", Stop: &StopRequest{Status: -100, Reason: "x", Grace: time.Second}},
		{Op: "stop", Stop: &StopRequest{Grace: 1<<63 - 1}},
	} {
		line, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(append(line, '\n'), line...))
	}
	f.Add([]byte("\n{}\n[]\nnull\n\"\xff\"\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &supervisor{
			launch: Launch{Container: id, Grace: time.Second}, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1),
			ended: make(chan struct{}), exit: &Exit{Container: id}, lease: Lease{Term: 100, Kill: 200},
		}
		before := s.lease
		close(s.ended)
		ours, theirs := net.Pipe()
		go s.talk(theirs)
		go func() {
			_, _ = ours.Write(said) // fails when a line is too long or after a wait
			_, _ = ours.Write([]byte("\n"))
		}()
		lines, in := bytes.Split(said, []byte("\n")), bufio.NewReader(ours)
		for _, line := range lines {
			if len(line) >= maxLine-1 {
				break // nobody says what becomes of a line of just that length
			}
			a, err := readAnswer(in)
			if err != nil {
				t.Fatalf("%.200q was not answered: %v", line, err)
			}
			if n := btoi(a.Error != "") + btoi(a.Status != nil) + btoi(a.Exit != nil); n != 1 {
				t.Errorf("%.200q was answered with %+v", line, a)
			}
			if a.Status != nil && a.Status.Lease.Term < before.Term {
				t.Errorf("the lease moved back from %v to %v", before, a.Status.Lease)
			} else if a.Status != nil {
				before = a.Status.Lease
			}
			if a.Exit != nil {
				break
			}
		}
		ours.Close()
		if c := s.currentCause(); c != nil && c.killAt > Now().Add(nodemanager.MaxGrace) {
			t.Errorf("SIGKILL comes in %v", c.killAt.Sub(Now()))
		} else if c != nil && c.killAt < 0 {
			t.Errorf("SIGKILL came %v ago", Now().Sub(c.killAt))
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzAnswer hears anything from a supervisor: an answer or an error, after a bounded number of bytes.
func FuzzAnswer(f *testing.F) {
	for _, a := range []answer{{Error: "x"}, {Status: &Status{Main: 7, Stuck: []int{1}}}, {Exit: &Exit{Status: -109}}} {
		line, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, '\n'))
	}
	f.Fuzz(func(t *testing.T, heard []byte) {
		from := &counting{Reader: io.MultiReader(bytes.NewReader(heard), endless{})}
		_, err := readAnswer(bufio.NewReader(from))
		if i := bytes.IndexByte(heard, '\n'); i < 0 && err == nil {
			t.Error("an answer without an end")
		}
		if limit := max(len(heard), maxLine) + 16<<10; from.n > limit {
			t.Errorf("%d bytes were read", from.n)
		}
		var e Exit
		if json.Unmarshal(heard, &e) == nil {
			if text, err := json.Marshal(e); err != nil || !json.Valid(text) {
				t.Errorf("%+v: %v", e, err)
			}
		}
	})
}

// endless never ends its line.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}

// FuzzStat reads /proc/<pid>/stat of a program that calls itself anything.
func FuzzStat(f *testing.F) {
	f.Add("sh", 1, uint64(7))
	f.Add(") S 1 (", 99, uint64(1<<63))
	f.Add("\n 0 0)", -1, uint64(0))
	f.Fuzz(func(t *testing.T, name string, parent int, start uint64) {
		text := fmt.Sprintf("12 (%s) Z %d %s%d 0\n", name, parent, strings.Repeat("0 ", 17), start)
		p, ok := parseStat(12, []byte(text))
		if want := (process{12, parent, start, true, 1}); !ok || p != want {
			t.Errorf("%q is %+v, %v; want %+v", text, p, ok, want)
		}
		parseStat(12, []byte(name))
	})
}
