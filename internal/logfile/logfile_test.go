package logfile

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(f *File, line string) { fmt.Fprintln(f, line) }

func TestFilesEndAndAreFew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		write(a, strings.Repeat("x", 300))
		a.flush()
	}
	files, _ := filepath.Glob(path + "*")
	if len(files) != 4 {
		t.Errorf("files %v", files)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 1000 {
			t.Errorf("%s: %v, %v", f, info, err)
		}
	}
}

// Where a new file cannot be made nothing has moved, and the log goes on when it can.
func TestALogGoesOnAfterANewFileCouldNotBeMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	one := func() {
		write(a, strings.Repeat("x", 600))
		a.flush()
	}
	one()
	if err := os.Mkdir(path+".new", 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	for range 5 {
		one()
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != 2 || a.failed == nil {
		t.Errorf("%v, %v", files, a.failed)
	}
	if err := os.Remove(path + ".new"); err != nil {
		t.Fatal(err)
	}
	one()
	one()
	if files, _ := filepath.Glob(path + "*"); len(files) != 3 || a.failed != nil {
		t.Errorf("%v, %v", files, a.failed)
	}
}

// Each try to move the files on that fails would otherwise cost the oldest one.
func TestAShiftThatFailsIsNotDoneTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	for _, name := range []string{path, path + ".1", path + ".2"} {
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &File{config: Config{Path: path, Keep: 3}}
	for range 5 {
		if err := f.shift(path + ".new"); err == nil {
			t.Fatal("a file that is not there was moved")
		}
	}
	for was, is := range map[string]string{path: path + ".1", path + ".1": path + ".2", path + ".2": path + ".3"} {
		if text, err := os.ReadFile(is); err != nil || string(text) != was {
			t.Errorf("%s: %q, %v, want what was %s", is, text, err, was)
		}
	}
}

// Somebody has moved the file away, and the log begins a new one at the next change of files rather than never.
func TestALogGoesOnWhenItsFileWasTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path, Size: 1000, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			write(a, strings.Repeat("x", 600))
			a.flush()
		}
		if text, err := os.ReadFile(path); err != nil || len(text) == 0 || a.failed != nil {
			t.Fatalf("%q, %v, %v", text, err, a.failed)
		}
	}
}

// What is recorded while the log is being written goes elsewhere than what is being written, also after a time in which nothing was.
func TestWritesDuringAWriteAreNotMixedIntoIt(t *testing.T) {
	a, err := Open(Config{Path: filepath.Join(t.TempDir(), "a.log")})
	if err != nil {
		t.Fatal(err)
	}
	record := func(command string) {
		for range 200 {
			write(a, strings.Repeat(command, 100))
		}
	}
	for range 2 { // both buffers have their size
		record("warm")
		a.flush()
	}
	a.flush()                            // nothing
	a.looked = time.Now().Add(time.Hour) // nobody looks whether the pipe is the file that lies at the path
	a.file.Close()
	pipe, file, err := os.Pipe() // takes 64 KiB, then the write waits
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	a.file = file
	record("first")
	done := make(chan struct{})
	go func() { a.flush(); close(done) }()
	if _, err := io.ReadFull(pipe, make([]byte, 1)); err != nil { // the write has begun, and waits
		t.Fatal(err)
	}
	record("second")
	read := make(chan []byte)
	go func() {
		rest, _ := io.ReadAll(pipe)
		read <- rest
	}()
	<-done
	a.flush()
	file.Close()
	first, second := 0, 0
	for line := range strings.Lines(string(<-read)) {
		if strings.Contains(line, strings.Repeat("first", 99)) && !strings.Contains(line, "second") {
			first++
		}
		if strings.Contains(line, strings.Repeat("second", 100)) && !strings.Contains(line, "first") {
			second++
		}
	}
	if first != 200 || second != 200 {
		t.Errorf("%d and %d lines are whole, want 200 of each", first, second)
	}
}

// A log that cannot be written holds up nobody and takes no more memory than its buffer; it says how much it lost.
func TestALogOnADiskThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path, Lost: func(n int) string { return fmt.Sprintf("%d lines are lost\n", n) }})
	if err != nil {
		t.Fatal(err)
	}
	d := strings.Repeat("x", 4000)
	for range 2000 {
		write(a, d)
	}
	if len(a.pending) > buffered+len(d)+1 || a.lost == 0 {
		t.Fatalf("%d bytes wait, %d lines are lost", len(a.pending), a.lost)
	}
	a.flush()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "lines are lost") {
		t.Fatalf("%v", err)
	}
	if a.file.Close(); a.failed != nil {
		t.Fatal(a.failed)
	}
	write(a, d)
	a.flush() // fails, and says so once
	if a.failed == nil {
		t.Error("a failed write was not noticed")
	}
}

// logrotate moves a file away, or copies and cuts it; nobody has to tell the server.
func TestALogGoesOnWhenLogrotateHasBeenThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	one := func(line string) {
		a.looked = time.Time{} // it has been a while
		write(a, line)
		a.flush()
	}
	one("first")
	if err := os.Rename(path, path+"-20261122"); err != nil {
		t.Fatal(err)
	}
	one("second")
	if text, err := os.ReadFile(path); err != nil || string(text) != "second\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	one("third")
	if text, err := os.ReadFile(path); err != nil || string(text) != "third\n" || a.size != int64(len(text)) {
		t.Errorf("%q, %v, it counts %d bytes", text, err, a.size)
	}
}

func TestALogWritesWhatIsLeftAtItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	a, err := Open(Config{Path: path, Linger: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	write(a, "one")
	write(a, "two")
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "one\ntwo\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// Where it cannot be seen whether the file is still there the open one is written; what a disk does not take is counted.
func TestALogGoesOnWhereItsPathCannotBeFollowed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	failed, again := 0, 0
	a, err := Open(Config{
		Path: filepath.Join(dir, "a.log"), Lost: func(n int) string { return fmt.Sprintln("lost", n) },
		Failed: func(error) { failed++ }, Again: func() { again++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the directory was
		t.Fatal(err)
	}
	for _, line := range []string{"one", "two"} {
		write(a, line)
		a.flush()
	}
	good := a.file
	if a.file, err = os.Open(filepath.Join(dir+".moved", "a.log")); err != nil { // takes nothing
		t.Fatal(err)
	}
	for _, line := range []string{"three", "four", "five"} {
		write(a, line)
	}
	a.flush()
	a.flush()
	a.file.Close()
	a.file = good
	write(a, "six")
	a.flush()
	if text, err := os.ReadFile(filepath.Join(dir+".moved", "a.log")); err != nil || string(text) != "one\ntwo\nsix\nlost 3\n" {
		t.Errorf("%q %v", text, err)
	}
	if failed != 1 || again != 0 {
		t.Errorf("said %d times that it cannot be written, %d times that it can", failed, again)
	}
}
