package badger

import (
	"cmp"
	"encoding/binary"
	"expvar"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

var (
	benchFiles  = flag.Int("files", 1_000_000, "how many files BenchmarkWrite's store has before")
	benchRounds = flag.Int("rounds", 12, "how many checkpoints BenchmarkWrite writes")
	benchApart  = flag.String("apart", "i", "the classes of BenchmarkWrite's store that are apart")
	benchDelete = flag.Bool("delete", false, "BenchmarkWrite deletes files all over the store in place of writing new ones")
	benchAgain  = flag.Bool("again", false, "BenchmarkWrite writes files all over the store again in place of new ones")
)

// BenchmarkWrite writes records like those of the namespace's files, two for each, in checkpoints of 270,000 files. merged-B/file is what the
// store writes again when it merges tables, the same on a busy machine as on an idle one; how it grows with the number of files, and what
// that costs, is what the options of levels decide.
//
//	go test -run '^$' -bench Write -benchtime 1x ./metadata/kv/badger -args -files 10000000
//
// With -again it writes entries all over the store again, with -delete it deletes files all over it.
func BenchmarkWrite(b *testing.B) {
	s := &Store{dir: b.TempDir(), opt: Options{Memtable: 32 << 20, Apart: *benchApart, Logger: slog.New(slog.DiscardHandler)}, closing: make(chan struct{})}
	defer s.Close()
	for _, class := range append([]byte{0}, classes(*benchApart)...) {
		opt := s.options(s.path(current), class)
		opt.MetricsEnabled = true
		if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
			b.Fatal(err)
		}
		db, err := badger.OpenManaged(opt)
		if err != nil {
			b.Fatal(err)
		}
		s.db = append(s.db, database{class, db})
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	settled := func() time.Duration {
		for before := used(); ; {
			time.Sleep(200 * time.Millisecond)
			now := used()
			if now-before < 10*time.Millisecond {
				return now
			}
			before = now
		}
	}
	metric := func(name string) (sum float64) {
		switch v := expvar.Get(name).(type) {
		case *expvar.Int:
			return float64(v.Value())
		case *expvar.Map:
			v.Do(func(kv expvar.KeyValue) { sum += float64(kv.Value.(*expvar.Int).Value()) })
		}
		return sum
	}

	const each = 270_000
	type file struct {
		number int
		entry  []byte
	}
	entry := func(parent uint64, name string) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{'d'}, parent), name...)
	}
	value := make([]byte, 62)
	files, changed, at := 0, 0, uint64(0)
	write := func(again, gone bool) {
		at += 10_000
		batch := s.Batch(at)
		put := func(k, v []byte) {
			if err := batch.Put(k, v); err != nil {
				b.Fatal(err)
			}
		}
		remove := func(k []byte) {
			if err := batch.Delete(k); err != nil {
				b.Fatal(err)
			}
		}
		for i := range uint64(20) { // the directories above
			put(entry(i, "d"), value)
		}
		all := make([]file, each)
		for i := range all {
			n := files + i
			if again || gone {
				n = int(uint64(changed+i) * 2654435761 % uint64(files))
			}
			all[i] = file{n, entry(uint64(1000+n/65536*66000+n%64), fmt.Sprintf("f%d", n))}
		}
		slices.SortFunc(all, func(x, y file) int { return slices.Compare(y.entry, x.entry) }) // from the last, as the namespace does
		all = slices.CompactFunc(all, func(x, y file) bool { return x.number == y.number })
		for _, f := range all {
			if gone {
				remove(f.entry)
			} else {
				put(f.entry, value)
			}
		}
		if again || gone {
			changed += each
		} else {
			files += each
		}
		if !again {
			slices.SortFunc(all, func(x, y file) int { return cmp.Compare(y.number, x.number) })
		}
		for _, f := range all {
			inode := binary.BigEndian.AppendUint64([]byte{'i'}, uint64(f.number))
			if gone {
				remove(inode)
			} else if !again {
				put(inode, f.entry[1:])
			}
		}
		if err := batch.Flush(); err != nil {
			b.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			b.Fatal(err)
		}
		s.Discard(at - min(at, 20_000)) // two versions stay
	}
	for files < *benchFiles {
		write(false, false)
	}
	start, tables, merged := settled(), metric("badger_write_bytes_l0"), metric("badger_write_bytes_compaction")
	b.ResetTimer()
	for range *benchRounds {
		write(*benchAgain, *benchDelete)
	}
	cpu, n := settled()-start, float64(*benchRounds*each)
	b.ReportMetric(float64(cpu.Nanoseconds())/n, "cpu-ns/file")
	b.ReportMetric((metric("badger_write_bytes_l0")-tables)/n, "written-B/file")
	b.ReportMetric((metric("badger_write_bytes_compaction")-merged)/n, "merged-B/file")
	for _, d := range s.db {
		for _, l := range d.Levels() {
			if l.NumTables > 0 {
				b.Logf("%q level %d: %d tables, %d MiB", d.class, l.Level, l.NumTables, l.Size>>20)
			}
		}
	}
}
