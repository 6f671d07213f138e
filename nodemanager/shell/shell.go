// Package shell is the wire of a session in a container: a program that a person runs beside the container's own, with its
// standard streams and, if wanted, a terminal. One connection carries frames both ways: a byte that says what it is, the length of
// the data as 4 bytes, most significant first, and the data.
package shell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Protocol is what an HTTP connection is upgraded to.
const Protocol = "hops-exec"

// Kind says what a frame carries.
type Kind byte

// The kinds of frames.
const (
	// Stdin has bytes for the program's standard input; without data it is their end.
	Stdin Kind = 1 + iota
	// Taken says how many bytes of Stdin the program has taken: 4 bytes.
	Taken
	// Stdout and Stderr have what the program wrote. With a terminal there is only Stdout.
	Stdout
	Stderr
	// Resize gives the terminal another size: 2 bytes of rows, 2 bytes of columns.
	Resize
	// Exit is the last frame: 4 bytes of exit status, 128 and the signal for a program that a signal ended, and a text for people,
	// which may be empty.
	Exit
	// Beat says that its sender is there. It has no data.
	Beat
)

const (
	// MaxData bounds the data of a frame, in bytes.
	MaxData = 32 << 10
	// Window is how many bytes of Stdin may be on their way: those that no Taken has answered.
	Window = 256 << 10
	// Every is how often both sides send a Beat; who hears nothing for Patience takes the other one for lost.
	Every    = 5 * time.Second
	Patience = 30 * time.Second

	headerSize = 5
	maxText    = 4 << 10
)

// ErrLost is wrapped by the error of a side that has heard nothing for its patience.
var ErrLost = errors.New("the other side of the session says nothing")

// Size is that of a terminal.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Request says what runs in a session.
type Request struct {
	// Argv[0] without a slash is looked up in the container's PATH.
	Argv []string `json:"argv"`
	// Stdin: the program's standard input comes from the client; otherwise it is empty.
	Stdin bool `json:"stdin,omitempty"`
	// Terminal gives the program a terminal of Size, whose kind is Term; empty: what the container says.
	Terminal bool   `json:"terminal,omitempty"`
	Size     Size   `json:"size,omitzero"`
	Term     string `json:"term,omitempty"`
}

const (
	maxWords   = 4096
	maxCommand = 32 << 10
	maxTerm    = 64
)

// Check says in one line what is wrong with a request.
func (r *Request) Check() error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return errors.New("argv: there is no command to run")
	}
	if len(r.Argv) > maxWords {
		return fmt.Errorf("argv: %d words, %d are allowed", len(r.Argv), maxWords)
	}
	size := 0
	for i, word := range r.Argv {
		size += len(word)
		if strings.ContainsRune(word, 0) {
			return fmt.Errorf("argv: word %d has a zero byte", i)
		}
	}
	if size > maxCommand {
		return fmt.Errorf("argv: %d bytes, %d are allowed: write a script into the container's directory, or send it by standard input", size, maxCommand)
	}
	if len(r.Term) > maxTerm || strings.ContainsFunc(r.Term, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return fmt.Errorf("term: %.100q is no kind of terminal", r.Term)
	}
	return nil
}

// Writer sends frames. It is safe for concurrent use.
type Writer struct {
	mu     sync.Mutex
	to     io.Writer
	buffer []byte
}

// NewWriter makes a Writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Send sends a frame, or several where data is longer than one has.
func (w *Writer) Send(k Kind, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		part := data[:min(len(data), MaxData)]
		w.buffer = append(w.buffer[:0], byte(k), 0, 0, 0, 0)
		binary.BigEndian.PutUint32(w.buffer[1:], uint32(len(part)))
		w.buffer = append(w.buffer, part...)
		if _, err := w.to.Write(w.buffer); err != nil {
			return err
		}
		if data = data[len(part):]; len(data) == 0 {
			return nil
		}
	}
}

// Taken says that n bytes of Stdin were taken.
func (w *Writer) Taken(n int) error {
	return w.Send(Taken, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// Resize sends another size of the terminal.
func (w *Writer) Resize(s Size) error {
	return w.Send(Resize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Columns))
}

// Exit sends the end.
func (w *Writer) Exit(status int, text string) error {
	return w.Send(Exit, append(binary.BigEndian.AppendUint32(nil, uint32(int32(status))), text[:min(len(text), maxText)]...))
}

// Beats sends a Beat every so often until done is closed or nobody takes one.
func (w *Writer) Beats(every time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			if w.Send(Beat, nil) != nil {
				return
			}
		}
	}
}

// Frame is one frame. Data is good until the next one is read.
type Frame struct {
	Kind Kind
	Data []byte
}

// Size is that of a Resize.
func (f Frame) Size() Size {
	return Size{binary.BigEndian.Uint16(f.Data), binary.BigEndian.Uint16(f.Data[2:])}
}

// Count is that of a Taken.
func (f Frame) Count() int { return int(binary.BigEndian.Uint32(f.Data)) }

// Exit is the status and the text of an Exit.
func (f Frame) Exit() (status int, text string) {
	return int(int32(binary.BigEndian.Uint32(f.Data))), strings.ToValidUTF8(string(f.Data[4:]), "?")
}

// Reader reads frames.
type Reader struct {
	from     io.ReadCloser
	patience time.Duration
	buffer   []byte
}

// NewReader makes a Reader that closes from when nothing came for patience; 0: it waits for ever.
func NewReader(from io.ReadCloser, patience time.Duration) *Reader {
	return &Reader{from: from, patience: patience}
}

// Next reads the next frame. io.EOF is the end between two frames; a frame that is none ends the session too.
func (r *Reader) Next() (Frame, error) {
	var header [headerSize]byte
	if err := r.read(header[:]); err != nil {
		return Frame{}, err
	}
	k, n := Kind(header[0]), binary.BigEndian.Uint32(header[1:])
	if least, most := k.lengths(); n < least || n > most {
		return Frame{}, fmt.Errorf("no frame of a session: kind %d with %d bytes", k, n)
	}
	if cap(r.buffer) < int(n) {
		r.buffer = make([]byte, n)
	}
	data := r.buffer[:n]
	if err := r.read(data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return Frame{k, data}, nil
}

// lengths are the bounds of the data of a kind; of one that there is not, none fits.
func (k Kind) lengths() (least, most uint32) {
	switch k {
	case Stdin, Stdout, Stderr:
		return 0, MaxData
	case Taken, Resize:
		return 4, 4
	case Exit:
		return 4, 4 + maxText
	case Beat:
		return 0, 0
	}
	return 1, 0
}

func (r *Reader) read(p []byte) error {
	if r.patience <= 0 {
		_, err := io.ReadFull(r.from, p)
		return err
	}
	lost := time.AfterFunc(r.patience, func() { r.from.Close() })
	_, err := io.ReadFull(r.from, p)
	if !lost.Stop() && err != nil {
		return fmt.Errorf("%w: nothing came for %v", ErrLost, r.patience)
	}
	return err
}
