package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestAReaderEndsWhereOnlyAHoleIsLeft: a program that makes its log longer without printing keeps nobody busy who reads it, and what it
// prints behind that is found.
func TestAReaderEndsWhereOnlyAHoleIsLeft(t *testing.T) {
	const long, block = 1 << 30, 16 << 10
	text := strings.Repeat("0123456789abcde\n", block/16)
	for name, lengthen := range map[string]func(f *os.File) error{
		"truncate":  func(f *os.File) error { return f.Truncate(long) },
		"fallocate": func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, long) },
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(text); err != nil {
				t.Fatal(err)
			}
			if err := lengthen(f); err != nil {
				t.Skip("no such file here:", err)
			}
			if at, err := f.Seek(2*block, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
				t.Skip("the filesystem does not tell holes:", at, err)
			}
			if got := readInTime(t, &section{logReader{f, true}, 0, long}); got != text {
				t.Errorf("%d bytes, want %d", len(got), len(text))
			}
			if got := readInTime(t, &section{logReader{f, true}, 2 * block, long}); got != "" {
				t.Errorf("%d bytes of the hole", len(got))
			}
			if _, err := f.WriteAt([]byte(text), long); err != nil {
				t.Fatal(err)
			}
			if got, want := readInTime(t, &section{logReader{f, true}, 0, long + block}), text+text[16:]; got != want {
				t.Errorf("%d bytes, want %d", len(got), len(want))
			}
			// A line that ends where a hole begins, and something behind that.
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2*block, long-2*block); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(strings.Repeat("a", block-1)+"\n"), 4*block); err != nil {
				t.Fatal(err)
			}
			if got, want := readInTime(t, &section{logReader{f, true}, 2 * block, long + block}), text[16:]; got != want {
				t.Errorf("%d bytes, want %d", len(got), len(want))
			}
		})
	}
}

// readInTime reads everything, or ends the test.
func readInTime(t *testing.T, r io.Reader) string {
	t.Helper()
	text, failed := make(chan string, 1), make(chan error, 1)
	go func() {
		all, err := io.ReadAll(r)
		failed <- err
		text <- string(all)
	}()
	select {
	case err := <-failed:
		if err != nil {
			t.Fatal(err)
		}
		return <-text
	case <-time.After(time.Minute):
		t.Fatal("the reader goes on without end")
		return ""
	}
}
