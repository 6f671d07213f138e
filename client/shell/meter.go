package shell

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// meter shows on a terminal how far copies are: files, bytes, speed and, when it is known how much there is to do, what is
// left. A nil meter does nothing.
type meter struct {
	files, bytes   atomic.Int64
	allFiles, all  atomic.Int64 // to do; 0: not known yet
	w              io.Writer
	began          time.Time
	stop, finished chan struct{}

	mu   sync.Mutex
	wide int // what stands on the line
}

// meterEvery is how often the line changes, and what takes no longer shows none.
const meterEvery = 250 * time.Millisecond

// newMeter begins to show, if there is a terminal. The caller calls end.
func (s *Shell) newMeter() *meter {
	if s.Progress == nil {
		return nil
	}
	m := &meter{w: s.Progress, began: time.Now(), stop: make(chan struct{}), finished: make(chan struct{})}
	go func() {
		defer close(m.finished)
		tick := time.NewTicker(meterEvery)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.show(m.line(time.Since(m.began)))
			}
		}
	}()
	return m
}

func (m *meter) add(n int) {
	if m != nil && n > 0 {
		m.bytes.Add(int64(n))
	}
}

func (m *meter) file() {
	if m != nil {
		m.files.Add(1)
	}
}

// expect adds to what there is to do.
func (m *meter) expect(files, bytes int64) {
	if m != nil {
		m.allFiles.Add(files)
		m.all.Add(bytes)
	}
}

// line is what the terminal shows after some time.
func (m *meter) line(after time.Duration) string {
	files, bytes, allFiles, all := m.files.Load(), m.bytes.Load(), m.allFiles.Load(), m.all.Load()
	speed := float64(bytes) / max(after.Seconds(), 1e-3)
	var b strings.Builder
	if allFiles >= files && allFiles > 0 {
		fmt.Fprintf(&b, "%d of %d files", files, allFiles)
	} else {
		fmt.Fprintf(&b, "%d files", files)
	}
	known := all >= bytes && all > 0
	if known {
		fmt.Fprintf(&b, "  %s of %s  %d%%", bytesText(bytes), bytesText(all), bytes*100/all)
	} else {
		fmt.Fprintf(&b, "  %s", bytesText(bytes))
	}
	fmt.Fprintf(&b, "  %s/s", bytesText(int64(speed)))
	if known && speed > 0 {
		left := time.Duration(float64(all-bytes) / speed * float64(time.Second))
		fmt.Fprintf(&b, "  %s left", min(left, 1000*time.Hour).Round(time.Second))
	}
	return b.String()
}

// bytesText is a size for people: 340 MB.
func bytesText(n int64) string {
	text := human(n)
	if strings.Contains(text, " ") {
		return text + "B"
	}
	return text + " B"
}

// show replaces the line.
func (m *meter) show(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(m.w, "\r%-*s", m.wide, text)
	m.wide = len(text)
}

// clear takes the line away, before something else is printed.
func (m *meter) clear() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wide > 0 {
		fmt.Fprintf(m.w, "\r%s\r", strings.Repeat(" ", m.wide))
		m.wide = 0
	}
}

// end takes the line away.
func (m *meter) end() {
	if m == nil {
		return
	}
	close(m.stop)
	<-m.finished
	m.clear()
}
