package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const mib = 1 << 20

// resident reads a field of /proc/PID/status in bytes, VmRSS or VmHWM; 0 when the process has gone.
func resident(pid int, field string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	return statusField(string(text), field)
}

// statusField finds a field of such a file, which counts in KiB.
func statusField(status, field string) int64 {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			if words := strings.Fields(value); len(words) > 0 {
				kib, _ := strconv.ParseInt(words[0], 10, 64)
				return kib << 10
			}
		}
	}
	return 0
}

// memory watches the resident memory of a process.
type memory struct {
	pid   int
	start int64

	mu   sync.Mutex
	peak int64
	last int64

	stop func()
}

const sampling = 50 * time.Millisecond

// watchMemory begins. tooMuch is called, from another goroutine, at each sample above the start by ceiling.
func watchMemory(pid int, ceiling int64, tooMuch func(grown int64)) *memory {
	// Resetting the peak needs the process to be ours; where it is not allowed the samples have to do.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	m := &memory{pid: pid, start: resident(pid, "VmRSS")}
	m.peak, m.last = m.start, m.start
	m.stop = sample(sampling, func() {
		now := resident(pid, "VmRSS")
		if now == 0 {
			return
		}
		m.mu.Lock()
		m.last = now
		m.peak = max(m.peak, now)
		m.mu.Unlock()
		if now-m.start > ceiling {
			tooMuch(now - m.start)
		}
	})
	return m
}

// sample calls f from another goroutine, again and again, until stop is called, which waits for the last one.
func sample(every time.Duration, f func()) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				f()
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

// settle waits until the process has given the memory back, to within 64 MiB, or for a time.
func (m *memory) settle(patience time.Duration) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(sampling) {
		m.mu.Lock()
		back := m.last-m.start < 64*mib
		m.mu.Unlock()
		if back || resident(m.pid, "VmRSS") == 0 {
			return
		}
	}
}

// end returns how far the process grew, and what it kept of that.
func (m *memory) end() (grown, kept int64) {
	m.stop()
	peak := max(m.peak, resident(m.pid, "VmHWM"))
	return max(0, peak-m.start), max(0, m.last-m.start)
}
