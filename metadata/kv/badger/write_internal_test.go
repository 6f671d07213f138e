package badger

import (
	"cmp"
	"encoding/binary"
	"expvar"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

var (
	writeFiles  = flag.Int("files", 1_000_000, "how many files BenchmarkWrite's store has before")
	writeRounds = flag.Int("rounds", 12, "how many checkpoints BenchmarkWrite writes then")
	xL0         = flag.Int("l0", 3, "")
	xBase       = flag.Int("base", 128, "")
	xTable      = flag.Int("table", 4, "")
	xMem        = flag.Int("mem", 32, "")
	xMult       = flag.Int("mult", 10, "")
	xAgain      = flag.Bool("again", false, "")
	xBlock      = flag.Int("block", 4, "")
	xSort       = flag.Bool("sort", true, "")
	xNoI        = flag.Int("pagei", 0, "")
)

func BenchmarkWrite(b *testing.B) {
	s := &Store{dir: b.TempDir(), opt: Options{Memtable: int64(*xMem) << 20, Logger: slog.New(slog.DiscardHandler)}, closing: make(chan struct{})}
	opt := s.options(s.path(current))
	opt.MetricsEnabled = true
	opt.NumLevelZeroTables, opt.NumLevelZeroTablesStall = *xL0, *xL0+6
	opt.BaseLevelSize = int64(*xBase) << 20
	opt.BaseTableSize = int64(*xTable) << 20
	opt.LevelSizeMultiplier = *xMult
	opt.BlockSize = *xBlock << 10
	db, err := badger.OpenManaged(opt)
	if err != nil {
		b.Fatal(err)
	}
	s.db = db
	defer s.Close()
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	settled := func() time.Duration {
		for before := used(); ; {
			time.Sleep(150 * time.Millisecond)
			now := used()
			if now-before < 10*time.Millisecond {
				return now
			}
			before = now
		}
	}
	metric := func(name string) (sum int64) {
		switch v := expvar.Get(name).(type) {
		case *expvar.Int:
			return v.Value()
		case *expvar.Map:
			v.Do(func(kv expvar.KeyValue) { sum += kv.Value.(*expvar.Int).Value() })
		}
		return sum
	}
	const each = 270_000
	value := make([]byte, 62)
	ts := uint64(0)
	files := 0
	dir := func(f int) uint64 { return uint64(1000 + f/65536*66000 + f%64) }
	name := func(f int) string { return fmt.Sprintf("f%d", f) }
	seed := 0
	write := func(again bool) {
		ts += 10000
		batch := s.Batch(ts)
		put := func(k, v []byte) {
			if err := batch.Put(k, v); err != nil {
				b.Fatal(err)
			}
		}
		// the directories above, all over
		for i := range uint64(20) {
			put(binary.BigEndian.AppendUint64([]byte{'d'}, i), value)
		}
		if again {
			var fs []int
			for range each {
				seed++
				f := int(uint64(seed) * 2654435761 % uint64(files))
				fs = append(fs, f)
			}
			if *xSort {
				slices.SortFunc(fs, func(a, b int) int {
					if c := cmp.Compare(dir(a), dir(b)); c != 0 {
						return c
					}
					return strings.Compare(name(a), name(b))
				})
				fs = slices.Compact(fs)
			}
			for _, f := range fs {
				put(append(binary.BigEndian.AppendUint64([]byte{'d'}, dir(f)), name(f)...), value)
			}
		} else {
			var order [64][]int
			first := files
			for ; files < first+each; files++ {
				order[files%64] = append(order[files%64], files)
			}
			if !*xSort {
				order = [64][]int{}
				for f := first; f < files; f++ {
					order[0] = append(order[0], f)
				}
			}
			for _, o := range order {
				for _, f := range o {
					put(append(binary.BigEndian.AppendUint64([]byte{'d'}, dir(f)), name(f)...), value)
				}
			}
			if *xNoI > 0 {
				for f := first; f < files; f += *xNoI {
					put(binary.BigEndian.AppendUint64([]byte{'i'}, uint64(f)), make([]byte, 20**xNoI))
				}
			} else {
				for f := first; f < files; f++ {
					put(binary.BigEndian.AppendUint64([]byte{'i'}, uint64(f)), append(make([]byte, 8), name(f)...))
				}
			}
		}
		if err := batch.Flush(); err != nil {
			b.Fatal(err)
		}
		_ = s.Sync()
		if ts > 30000 {
			s.Discard(ts - 20000)
		}
	}
	for files < *writeFiles {
		write(false)
	}
	start := settled()
	l0, merged, user := metric("badger_write_bytes_l0"), metric("badger_write_bytes_compaction"), metric("badger_write_bytes_user")
	b.ResetTimer()
	for range *writeRounds {
		write(*xAgain)
	}
	cpu := settled() - start
	n := float64(*writeRounds * each)
	b.ReportMetric(float64(cpu.Nanoseconds())/n, "cpu-ns/file")
	b.ReportMetric(float64(metric("badger_write_bytes_l0")-l0)/n, "l0-B/file")
	b.ReportMetric(float64(metric("badger_write_bytes_user")-user)/n, "user-B/file")
	b.ReportMetric(float64(metric("badger_write_bytes_compaction")-merged)/n, "merged-B/file")
	for _, l := range db.Levels() {
		if l.NumTables > 0 {
			b.Logf("L%d %d tables %d MB", l.Level, l.NumTables, l.Size>>20)
		}
	}
}
