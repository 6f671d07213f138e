package shell

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// FuzzReader reads anything: frames within their bounds, which sent again are the same bytes, or an error.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, err := range []error{
		w.Send(Stdin, []byte("hello")), w.Send(Stdin, nil), w.Taken(5), w.Resize(Size{24, 80}), w.Send(Beat, nil), w.Send(Stderr, []byte{0}), w.Exit(137, "ended"),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Add([]byte{3, 0, 0, 0x80, 1})
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReader(io.NopCloser(bytes.NewReader(text)), 0)
		var again bytes.Buffer
		w := NewWriter(&again)
		for {
			f, err := r.Next()
			if err != nil {
				break
			}
			if len(f.Data) > MaxData {
				t.Fatalf("%d bytes", len(f.Data))
			}
			switch f.Kind {
			case Resize:
				err = w.Resize(f.Size())
			case Taken:
				err = w.Taken(f.Count())
			default:
				if f.Kind == Exit {
					f.Exit()
				}
				err = w.Send(f.Kind, f.Data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(text, again.Bytes()) {
			t.Errorf("read %q of %q", again.Bytes(), text)
		}
	})
}

func TestWhatIsNoFrameEndsTheSession(t *testing.T) {
	for _, text := range []string{"\x09\x00\x00\x00\x00", "\x00\x00\x00\x00\x00", "\x01\xff\xff\xff\xff", "\x05\x00\x00\x00\x03abc", "\x07\x00\x00\x00\x01a", "\x06\x00\x00\x00\x00"} {
		if _, err := NewReader(io.NopCloser(strings.NewReader(text)), 0).Next(); err == nil || !strings.Contains(err.Error(), "no frame of a session") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := NewReader(io.NopCloser(strings.NewReader("\x01\x00\x00\x00\x03ab")), 0).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut frame: %v", err)
	}
}

func TestAReaderGivesUpWhoSaysNothing(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if _, err := NewReader(ours, time.Millisecond).Next(); !errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
	if _, err := theirs.Write([]byte{1}); err == nil {
		t.Error("the connection is open")
	}
}

func TestRequestsAreChecked(t *testing.T) {
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Argv: []string{"sh", "-c", "a\nb", ""}, Terminal: true, Term: "xterm-256color"}, ""},
		{Request{}, "no command"},
		{Request{Argv: []string{""}}, "no command"},
		{Request{Argv: []string{"a", "b\x00"}}, "word 1 has a zero byte"},
		{Request{Argv: []string{strings.Repeat("x", maxCommand+1)}}, "bytes"},
		{Request{Argv: make([]string, maxWords+1)}, "no command"},
		{Request{Argv: append([]string{"x"}, make([]string, maxWords)...)}, "4097 words"},
		{Request{Argv: []string{"a"}, Term: "a b"}, "no kind of terminal"},
		{Request{Argv: []string{"a"}, Term: "a\nLD_PRELOAD=x"}, "no kind of terminal"},
	} {
		err := c.r.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60v: %v, want %q", c.r, err, c.want)
		}
	}
}

// A program that takes no input holds its client back, which is heard all the same.
func TestInputIsSentNoFasterThanItIsTaken(t *testing.T) {
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		status, text, err := Attach(context.Background(), ours, Streams{Stdin: bytes.NewReader(make([]byte, 2*Window)), Stdout: io.Discard, Stderr: io.Discard})
		if err == nil && (status != -1 || text != "bye") {
			err = errors.New(text)
		}
		done <- err
	}()
	in, out := NewReader(theirs, 0), NewWriter(theirs)
	read := func(n int) {
		for n > 0 {
			f, err := in.Next()
			if err != nil || f.Kind == Stdin && (len(f.Data) == 0 || len(f.Data) > n) {
				t.Fatalf("%v, %d bytes of %d", err, len(f.Data), n)
			}
			if f.Kind == Stdin {
				n -= len(f.Data)
			}
		}
	}
	read(Window)
	if err := out.Taken(1000); err != nil {
		t.Fatal(err)
	}
	read(1000)
	if err := out.Taken(1 << 31); err != nil { // it never sends more than a window
		t.Fatal(err)
	}
	read(Window - 1000)
	f, err := in.Next()
	for err == nil && f.Kind == Beat { // of a machine that is slow
		f, err = in.Next()
	}
	if err != nil || f.Kind != Stdin || len(f.Data) != 0 {
		t.Fatalf("no end of the input: %v %v", f, err)
	}
	if err := out.Exit(-1, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
