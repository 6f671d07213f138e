package shell

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestMeterSaysHowFarACopyIs(t *testing.T) {
	m := &meter{}
	m.add(3 << 20)
	m.file()
	if got, want := m.line(2*time.Second), "1 files  3 MB  1.5 MB/s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.expect(4, 12<<20)
	if got, want := m.line(2*time.Second), "1 of 4 files  3 MB of 12 MB  25%  1.5 MB/s  6s left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var none *meter // no terminal
	none.add(1)
	none.file()
	none.clear()
	none.end()
}

// What is printed does not stand behind the line, and no line is left.
func TestMeterLeavesNothingOnTheTerminal(t *testing.T) {
	var out bytes.Buffer
	m := &meter{w: &out}
	m.show("12345")
	m.show("12")
	m.clear()
	if want := "\r12345\r12   \r  \r"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	if m.clear(); strings.TrimSpace(out.String()) != "" {
		t.Errorf("%q", out.String())
	}
}
