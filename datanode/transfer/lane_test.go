package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
)

// Bytes arrive as they were sent, however they were handed over and taken.
func TestLaneKeepsBytesInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		near, far := newLane()
		_ = far.SetReadDeadline(time.Now().Add(time.Minute))
		sent := make([]byte, random.IntN(3<<20))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		seeds := [2]uint64{random.Uint64(), random.Uint64()}
		go func() {
			defer near.Close()
			random := rand.New(rand.NewPCG(seeds[0], 0))
			rest := sent
			for len(rest) > 0 {
				a := min(len(rest), random.IntN(200<<10))
				if b := min(len(rest), a+random.IntN(70<<10)); random.IntN(2) == 0 {
					_ = near.Lend([][]byte{rest[:a], nil, rest[a:b]})
					rest = rest[b:]
				} else {
					_, _ = near.Write(rest[:a])
					rest = rest[a:]
				}
			}
			_ = near.SetReadDeadline(time.Now().Add(time.Minute))
			_, _ = near.Read(make([]byte, 1)) // what was lent is gone with Close
		}()
		random := rand.New(rand.NewPCG(seeds[1], 0))
		var got []byte
		for len(got) < len(sent) {
			p := make([]byte, 1+random.IntN(100<<10))
			take := far.in.read
			if random.IntN(3) == 0 {
				take = far.in.gather
			}
			n, err := take(p)
			if err != nil {
				t.Fatalf("after %d of %d bytes: %v", len(got), len(sent), err)
			}
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, sent) {
			t.Fatal("other bytes came than were sent")
		}
		far.Close()
	}
}

// What was copied outlives Close, as an answer before a server hangs up does. What was lent does not: its owner uses the memory again.
func TestLaneAfterClose(t *testing.T) {
	near, far := newLane()
	_, _ = far.Write([]byte("refused"))
	far.Close()
	if got, err := io.ReadAll(near); string(got) != "refused" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := near.Lend([][]byte{{1}}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("lending to who has hung up: %v", err)
	}
	near, far = newLane()
	memory := []byte("packet")
	_ = near.Lend([][]byte{memory})
	near.Close()
	if n, err := far.Read(make([]byte, 8)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes that were lent by who has hung up, %v", n, err)
	}
	if _, err := near.Read(make([]byte, 8)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading after Close: %v", err)
	}
}

// A packet is taken as it lies, and only as a whole; what is copied behind it outlives Close.
func TestLanePackets(t *testing.T) {
	near, far := newLane()
	p := packetOf(dtp.Header{Seqno: 3}, []byte("data"))
	_ = near.Lend([][]byte{p, p[:9], p[9:]})
	if got, ok := far.in.packet(); !ok || got.Seqno != 3 || &got.Data[0] != &p[len(p)-4] {
		t.Errorf("%+v, %v", got, ok)
	}
	if got, ok := far.in.packet(); ok || far.in.packets(1) {
		t.Errorf("a part of a packet was taken for one: %+v", got)
	}
	if n, err := io.ReadFull(far, make([]byte, len(p))); n != len(p) || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	_ = near.Lend([][]byte{p})
	if _, ok := far.in.packet(); !ok {
		t.Error("no packet")
	}
	_, _ = near.Write([]byte("last words"))
	near.Close()
	if got, err := io.ReadAll(far); string(got) != "last words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, ok := far.in.packet(); ok || far.in.packets(1) {
		t.Error("a packet after the end")
	}
}

// Who waits is let go by a deadline, and by Close from another goroutine.
func TestLaneDeadlines(t *testing.T) {
	near, far := newLane()
	_ = near.SetDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := near.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	_ = near.SetDeadline(time.Time{})
	_, _ = near.Write([]byte{1})
	_ = near.SetDeadline(time.Now().Add(10 * time.Millisecond))
	if n, err := near.Write(make([]byte, 3*laneRoom)); !errors.Is(err, os.ErrDeadlineExceeded) || n > 2*laneRoom {
		t.Errorf("write of more than there is room for: %d bytes, %v", n, err)
	}
	_ = far.SetReadDeadline(time.Now().Add(time.Minute))
	if err := far.in.something(); err != nil {
		t.Errorf("something to read: %v", err)
	}
	_ = near.SetDeadline(time.Time{})
	done := make(chan error)
	go func() {
		_, err := near.Read(make([]byte, 8))
		done <- err
	}()
	near.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read: %v", err)
	}
}

// A connection within the process is served as any other, but for proofs of who is there, and ends with the server.
func TestWithin(t *testing.T) {
	s := New(Config{Prove: func(net.Conn) bool { return true }, Unwelcome: func(net.Conn, bool) error { return errors.New("not asked") }})
	if s.Within() != nil {
		t.Fatal("a server that does not run is connected to")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()
	var c net.Conn
	for c == nil {
		c = s.Within()
	}
	cancel()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s.Within() != nil {
		t.Error("a server that has ended is connected to")
	}
}
