package badger

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// residentTables is how many KiB of tables below dir are resident.
func residentTables(t *testing.T, dir string) (sum int) {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	ours := false
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); !strings.HasSuffix(f[0], ":") {
			ours = len(f) > 5 && strings.HasPrefix(f[5], dir) && filepath.Ext(f[5]) == ".sst"
		} else if n := 0; ours && f[0] == "Rss:" {
			fmt.Sscan(f[1], &n)
			sum += n
		}
	}
	return sum
}

func largeValue(i, round int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d-%d ", i, round), 300) }

func putRound(t *testing.T, s *Store, keys, round int) {
	b := s.Batch(uint64(round))
	for i := range keys {
		i = i * 7919 % keys
		if err := b.Put(fmt.Appendf(nil, "%06d", i), largeValue(i, round)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
}

// checkRound reads all of a round.
func checkRound(t *testing.T, s *Store, keys, round int) {
	v := s.View(uint64(round))
	defer v.Close()
	n := 0
	if err := v.Scan(nil, nil, func(key, got []byte) bool {
		if !bytes.Equal(key, fmt.Appendf(nil, "%06d", n)) || !bytes.Equal(got, largeValue(n, round)) {
			t.Errorf("round %d, key %s, number %d: %.20q", round, key, n, got)
		}
		n++
		return true
	}); err != nil || n != keys {
		t.Errorf("round %d: %d keys, %v", round, n, err)
	}
}

// What was read is resident until it is unmapped, and is read as well afterwards.
func TestUnmap(t *testing.T) {
	for _, apart := range []string{"", "0"} {
		t.Run("apart "+apart, func(t *testing.T) { unmap(t, apart) })
	}
}

func unmap(t *testing.T, apart string) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Apart: apart, Logger: slog.New(slog.DiscardHandler)}
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	putRound(t, s, 4000, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, opt); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	checkRound(t, s, 4000, 1)
	if n := residentTables(t, dir); n < 4096 {
		t.Errorf("%d KiB of tables are resident after all was read", n)
	}
	if mapped() < 4096<<10 {
		t.Errorf("%d bytes of files are resident", mapped())
	}
	if err := s.unmap(); err != nil {
		t.Fatal(err)
	}
	if n := residentTables(t, dir); n != 0 {
		t.Errorf("%d KiB of tables are still resident", n)
	}
	checkRound(t, s, 4000, 1)
}

// Tables are unmapped again and again while others write, merge and read: nothing that is read differs.
func TestUnmapBesideTheWork(t *testing.T) {
	for _, apart := range []string{"", "0"} {
		t.Run("apart "+apart, func(t *testing.T) { unmapBesideTheWork(t, apart) })
	}
}

func unmapBesideTheWork(t *testing.T, apart string) {
	s, err := Open(t.TempDir(), Options{Memtable: 8 << 20, Apart: apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if err := s.unmap(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for round := 1; round <= 10; round++ {
		putRound(t, s, 4000, round)
		s.Discard(uint64(round - 1))
		checkRound(t, s, 4000, round)
	}
	close(stop)
	beside.Wait()
}
