package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAReaderPassesOverWhatIsCut: no byte of a hole is read as if it had been printed, and what follows begins with a line.
func TestAReaderPassesOverWhatIsCut(t *testing.T) {
	all := lines(20_000) // 109 kB
	name := filepath.Join(t.TempDir(), "stdout")
	if err := os.WriteFile(name, []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := func(from, to int64) string {
		text, err := io.ReadAll(&section{logReader{f, true}, from, to})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := read(0, int64(len(all))); got != all {
		t.Fatalf("%d bytes of a file that is whole", len(got))
	}
	const block = 16 << 10 // a multiple of any filesystem's here
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, block, 3*block)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		t.Skip("no holes here:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	next := 4*block + int64(strings.IndexByte(all[4*block:], '\n')) + 1
	for from, want := range map[int64]string{
		0: all[:block] + all[next:], block - 5: all[block-5:block] + all[next:], block + 1: all[next:], next + 7: all[next+7:], int64(len(all)): "",
	} {
		if got := read(from, int64(len(all))); got != want {
			t.Errorf("from %d: %d bytes, want %d", from, len(got), len(want))
		}
	}
	if got := read(0, 2*block); got != all[:block] {
		t.Errorf("up to the middle of the hole: %d bytes", len(got))
	}
}
