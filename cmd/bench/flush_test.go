package bench

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

func TestTailTakesTheTimeFromTheReturnOfEachFlush(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	f := &tail{at: 200}
	f.flushed(400, at(10))
	f.flushed(600, at(12))
	f.saw(400, at(15)) // the first alone
	f.saw(1000, at(20))
	f.flushed(800, at(21)) // seen before the flush had returned
	f.flushed(1000, at(22))
	if want := []time.Duration{5 * time.Millisecond, 8 * time.Millisecond, 0, 0}; !slices.Equal(f.seen, want) || len(f.ends) > 0 {
		t.Errorf("seen after %v, want %v; %d flushes are left", f.seen, want, len(f.ends))
	}
}

func TestCheckerFindsAWrongByte(t *testing.T) {
	data := bytes.Repeat(pattern(), 3)
	var c checker
	for _, n := range []int{1, 1 << 20, 12345} { // pieces that cross the pattern's end
		if _, err := c.Write(data[c.at : c.at+int64(n)]); err != nil {
			t.Fatal(err)
		}
	}
	piece := bytes.Clone(data[c.at : c.at+100])
	piece[99]++
	if _, err := c.Write(piece); err == nil {
		t.Error("a wrong byte was not found")
	}
}
