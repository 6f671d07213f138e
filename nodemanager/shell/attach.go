package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Streams are the near ends of a session.
type Streams struct {
	// Stdin is read until it ends; nil: nothing is read. A read may still wait when Attach has returned.
	Stdin io.Reader
	// Stdout and Stderr take what the program writes.
	Stdout, Stderr io.Writer
	// Resize tells sizes of the terminal; may be nil.
	Resize <-chan Size
}

// Attach is the client's side of a session, until the program has ended: its exit status, and a text for people, which is mostly
// empty. It closes conn. An error means that the session broke off, which ends the program.
func Attach(ctx context.Context, conn io.ReadWriteCloser, s Streams) (status int, text string, err error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	done := make(chan struct{})
	defer close(done)
	out := NewWriter(conn)
	go out.Beats(Every, done)
	w := newWindow()
	defer w.close()
	if s.Stdin != nil {
		go sendInput(s.Stdin, out, w)
	}
	if s.Resize != nil {
		go func() {
			for {
				select {
				case <-done:
					return
				case size, ok := <-s.Resize:
					if !ok || out.Resize(size) != nil {
						return
					}
				}
			}
		}()
	}
	in := NewReader(conn, Patience)
	for {
		f, err := in.Next()
		if err != nil {
			switch {
			case ctx.Err() != nil:
				err = ctx.Err()
			case errors.Is(err, io.EOF):
				err = errors.New("its node manager was stopped, or the container has ended")
			}
			return 0, "", fmt.Errorf("the session broke off: %w", err)
		}
		switch f.Kind {
		case Stdout:
			_, err = s.Stdout.Write(f.Data)
		case Stderr:
			_, err = s.Stderr.Write(f.Data)
		case Taken:
			w.give(f.Count())
		case Exit:
			status, text := f.Exit()
			return status, text, nil
		case Beat:
		case Stdin, Resize:
			err = fmt.Errorf("the node sends frames of kind %d", f.Kind)
		}
		if err != nil {
			return 0, "", err
		}
	}
}

// sendInput sends what comes, no faster than the program takes it.
func sendInput(from io.Reader, out *Writer, w *window) {
	buffer := make([]byte, MaxData)
	for {
		room := w.wait()
		if room == 0 {
			return
		}
		n, err := from.Read(buffer[:min(room, len(buffer))])
		if n > 0 {
			w.take(n)
			if out.Send(Stdin, buffer[:n]) != nil {
				return
			}
		}
		if err != nil { // whatever it is, nothing more comes
			_ = out.Send(Stdin, nil)
			return
		}
	}
}

// window counts what may be sent.
type window struct {
	mu     sync.Mutex
	more   *sync.Cond
	room   int
	closed bool
}

func newWindow() *window {
	w := &window{room: Window}
	w.more = sync.NewCond(&w.mu)
	return w
}

// wait waits until there is room; 0: there will be none.
func (w *window) wait() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.room == 0 && !w.closed {
		w.more.Wait()
	}
	if w.closed {
		return 0
	}
	return w.room
}

func (w *window) take(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room -= n
}

// give: no node makes it more than it was.
func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = min(Window, w.room+min(n, Window))
	w.more.Broadcast()
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.more.Broadcast()
}
