package authority

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// members are both ends of a connection over a socket.
func members(t *testing.T) (s, c *Conn) {
	t.Helper()
	a := newAuthority(t, cluster)
	nn, dn := newMember(t, a, start, "m1", Namenode), newMember(t, a, start, "m2", Datanode)
	s, c, serverErr, clientErr := meet(t, accept(t, nn, Door{}), connect(t, dn, Door{}))
	if err := errors.Join(serverErr, clientErr); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// TestReadsAndWritesOfAnySize sends bytes in pieces of all sizes, and reads them in others, with and without waiting.
func TestReadsAndWritesOfAnySize(t *testing.T) {
	t.Parallel()
	s, c := members(t)
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		sent := make([]byte, 3<<20)
		for i := range sent {
			sent[i] = byte(r.Uint32())
		}
		size := func() int { return 1 + r.IntN(1<<r.IntN(20)) }
		var sizes []int
		for left := len(sent); left > 0; left -= sizes[len(sizes)-1] {
			sizes = append(sizes, min(left, size()))
		}
		failed := make(chan error, 1)
		go func() {
			for rest := sent; len(sizes) > 0; sizes = sizes[1:] {
				var err error
				if n := sizes[0]; n%2 == 0 {
					_, err = s.Write(rest[:n])
				} else {
					_, err = s.WriteBuffers(&net.Buffers{rest[:n/2], rest[n/2 : n]})
				}
				if err != nil {
					failed <- err
					return
				}
				rest = rest[sizes[0]:]
			}
			failed <- nil
		}()
		var got []byte
		buf := make([]byte, 1<<20)
		for len(got) < len(sent) {
			p := buf[:size()]
			read := c.Read
			if r.IntN(3) == 0 {
				read = c.ReadNow
			}
			n, err := read(p)
			if err != nil {
				t.Fatalf("seed %d, after %d bytes: %v", seed, len(got), err)
			}
			got = append(got, p[:n]...)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, sent) {
			t.Fatalf("seed %d: other bytes came", seed)
		}
	}
	if n, err := c.ReadNow(make([]byte, 10)); n != 0 || err != nil {
		t.Fatalf("nothing was sent: %d bytes, %v", n, err)
	}
}

// TestAReadTakesAllRecords sends records, and waits until they are there.
func TestAReadTakesAllRecords(t *testing.T) {
	t.Parallel()
	s, c := members(t)
	for range 100 {
		if _, err := s.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	var got []byte
	buf := make([]byte, 1<<20)
	reads := 0
	for {
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		reads++
	}
	if len(got) != 1000 {
		t.Fatalf("%d bytes of 1000 came", len(got))
	}
	if reads == 100 {
		t.Error("each read took one record")
	}
	if _, err := c.ReadNow(buf); !errors.Is(err, io.EOF) {
		t.Errorf("the end is told as %v", err)
	}
}

// TestHalfARecordIsNoError: the rest of it comes later, after reads without waiting, and one with a deadline.
func TestHalfARecordIsNoError(t *testing.T) {
	t.Parallel()
	s, c := members(t)
	s.socket.hold()
	if _, err := s.Conn.Write(bytes.Repeat([]byte("x"), record)); err != nil {
		t.Fatal(err)
	}
	whole := *s.socket.buf
	half := len(whole) / 2
	if _, err := s.socket.Conn.Write(whole[:half]); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2*record)
	for range 100 {
		if n, err := c.ReadNow(buf); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	var timeout net.Error
	if n, err := c.Read(buf); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatal(n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
	if _, err := s.socket.Conn.Write(whole[half:]); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); n != record || err != nil {
		t.Fatal(n, err)
	}
}
