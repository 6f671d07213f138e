package journal

import (
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkAppend appends entries of 8 KiB as a leader at work does, in a log whose head goes after every 64 MiB, and
// reports what one takes and the processor time of this process. TMPDIR says on what disk.
func BenchmarkAppend(b *testing.B) {
	j, err := Open(Config{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	const every = 8 << 10 // entries, 64 MiB
	data := make([]byte, 8<<10)
	index := uint64(0)
	appendOne := func() {
		index++
		if err := j.StoreLog(&raft.Log{Index: index, Term: 1, Data: data}); err != nil {
			b.Fatal(err)
		}
		if index%every == 0 {
			if err := j.DeleteRange(1, index-every/2); err != nil {
				b.Fatal(err)
			}
			j.Keep(index - every/2)
		}
	}
	for range 2 * every { // until the files have been used once
		appendOne()
	}
	took := make([]time.Duration, 0, b.N)
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		appendOne()
		took = append(took, time.Since(began))
	}
	b.StopTimer()
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(used)/float64(b.N)/1000, "cpu-µs/op")
}
