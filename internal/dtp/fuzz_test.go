package dtp

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The parsers written by hand must agree with the generated ones wherever they accept.

func FuzzPacketHeader(f *testing.F) {
	f.Add(AppendHeader(nil, Header{Offset: 65024, Seqno: 1, DataLen: 512}, 4)[6:])
	f.Add(AppendHeader(nil, Header{Seqno: -1, Sync: true}, 0)[6:])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		var want hadooppb.PacketHeaderProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		if h.Offset != want.GetOffsetInBlock() || h.Seqno != want.GetSeqno() || h.DataLen != int(want.GetDataLen()) ||
			h.Last != want.GetLastPacketInBlock() || h.Sync != want.GetSyncBlock() {
			t.Errorf("got %+v, want %v", h, &want)
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add(AppendAck(nil, &Ack{Seqno: 7, Replies: make([]hadooppb.Status, 3), DownstreamNanos: 9})[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Ack
		if err := a.parse(b); err != nil {
			return
		}
		var want hadooppb.PipelineAckProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		replies := slices.Clone(want.GetReply())
		for i, flag := range want.GetFlag() {
			replies[i] = hadooppb.Status(flag & 0xf)
		}
		if a.Seqno != want.GetSeqno() || a.DownstreamNanos != want.GetDownstreamAckTimeNanos() || !slices.Equal(a.Replies, replies) {
			t.Errorf("got %+v, want %v", a, &want)
		}
	})
}

// FuzzPackets reads whatever comes. Memory may not grow beyond twice what has arrived.
func FuzzPackets(f *testing.F) {
	b := NewBuilder(DefaultChecksum, 1000)
	b.Append(make([]byte, 1000))
	f.Add(b.Finish(Header{}))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0, 25, 1, 2, 3})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewPacketReader(bufio.NewReaderSize(bytes.NewReader(stream), 512))
		for {
			p, err := r.Next()
			if most := max(2*len(stream), 256<<10); cap(r.own) > most {
				t.Fatalf("%d bytes of memory for a stream of %d", cap(r.own), len(stream))
			}
			if err != nil {
				break
			}
			if p.DataLen != len(p.Data) {
				t.Fatalf("%d bytes of data, the header says %d", len(p.Data), p.DataLen)
			}
		}
	})
}

// FuzzPacketBuffer reads a stream both ways, as it comes in pieces: what a PacketReader makes of it, a PacketBuffer does.
func FuzzPacketBuffer(f *testing.F) {
	b := NewBuilder(DefaultChecksum, 1000)
	b.Append(make([]byte, 1000))
	packet := slices.Clone(b.Finish(Header{}))
	last := AppendHeader(nil, Header{Offset: 1000, Seqno: 1, Last: true}, 0)
	f.Add(slices.Concat(packet, packet, last), uint16(7), uint16(100), uint8(1))
	f.Add(slices.Concat(packet, last, packet), uint16(3000), uint16(4096), uint8(3))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0, 25, 1, 2, 3}, uint16(1), uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, piece, home uint16, hold uint8) {
		reader := NewPacketReader(bufio.NewReaderSize(bytes.NewReader(stream), 512))
		buffer := NewPacketBuffer(make([]byte, home))
		rest := stream
		held := 0 // packets since the last Release
		for {
			want, wantErr := reader.Next()
			mark := buffer.Mark()
			got, ok, err := buffer.Next()
			for !ok && err == nil && len(rest) > 0 {
				if buffer.Full() {
					buffer.Release()
					held = 0
				}
				if need := buffer.Grows(); need > MaxPacket || need > 0 && need <= int(home) {
					t.Fatalf("a packet of %d bytes makes a buffer of %d grow", need, home)
				}
				free := buffer.Free()
				if len(free) == 0 {
					t.Fatal("there is no room, and the buffer is not full")
				}
				n := copy(free[:min(len(free), int(piece)+1)], rest)
				rest = rest[n:]
				buffer.Filled(n)
				mark = buffer.Mark()
				got, ok, err = buffer.Next()
			}
			if most := max(int(home), 2*len(stream), 2*minPacket); len(buffer.buf) > most {
				t.Fatalf("%d bytes of memory for a stream of %d", len(buffer.buf), len(stream))
			}
			if (wantErr == nil) != ok || errors.Is(wantErr, ErrProtocol) != errors.Is(err, ErrProtocol) {
				t.Fatalf("the reader says %v, the buffer %v, %v", wantErr, ok, err)
			}
			if !ok {
				return
			}
			if got.Header != want.Header || !bytes.Equal(got.Sums, want.Sums) || !bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Raw, want.Raw) {
				t.Fatalf("the reader read %+v, the buffer %+v", want.Header, got.Header)
			}
			if since := buffer.Since(mark); !bytes.HasSuffix(since, got.Raw) {
				t.Fatalf("%d bytes since the mark do not end with the packet", len(since))
			}
			if held++; held > int(hold)%4 {
				buffer.Release()
				held = 0
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{0, 28, 81, 0})
	f.Add([]byte{0, 28, 80, 0xff, 0xff, 0x3f})
	f.Fuzz(func(_ *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			if _, _, err := ReadOp(r); err != nil {
				return
			}
		}
	})
}

// said is a connection whose peer has said all that it will.
type said struct {
	net.Conn
	r *bytes.Reader
}

func (s said) Read(p []byte) (int, error) { return s.r.Read(p) }
func (said) Write(p []byte) (int, error)  { return len(p), nil }

// FuzzAccept: nobody gets through a handshake without the password.
func FuzzAccept(f *testing.F) {
	hello, _ := AppendMessage([]byte{0xde, 0xad, 0xbe, 0xef}, success([]byte{}))
	f.Add(hello)
	response, _ := AppendMessage(hello, success([]byte(`username="YQ==",realm="0",nonce="x",nc=00000001,cnonce="y",digest-uri="hdfs/0",response=00,qop=auth`)))
	f.Add(response)
	f.Fuzz(func(t *testing.T, b []byte) {
		password := func([]byte) ([]byte, error) { return []byte("secret"), nil }
		c := said{r: bytes.NewReader(b)}
		_, _, err := Accept(c, bufio.NewReader(c), Acceptor{
			Qualities: []sasl.Quality{sasl.Authentication, sasl.Privacy}, Password: password,
			EncryptionKey: func(int32, string, []byte) ([]byte, error) { return []byte("secret"), nil },
		})
		if err == nil {
			t.Fatal("let in")
		}
		_, _ = Secure(said{r: bytes.NewReader(b)}, TokenSecret([]byte("a"), []byte("b"), []sasl.Quality{sasl.Privacy}))
	})
}

// FuzzWrapped: what a peer sends on a protected connection ends in an error, whatever it is.
func FuzzWrapped(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 1, 2, 3, 4})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		a := sasl.NewAcceptor(sasl.AcceptorConfig{Server: "0", Qualities: []sasl.Quality{sasl.Integrity}, Lookup: func(string) (string, sasl.Identity, error) {
			return "p", sasl.Identity{}, nil
		}})
		i := sasl.NewInitiator(sasl.InitiatorConfig{Server: "0", Name: "n", Password: "p", Qualities: []sasl.Quality{sasl.Integrity}})
		challenge, _, _ := a.Step(nil)
		response, _, _ := i.Step(challenge)
		if _, done, err := a.Step(response); err != nil || !done {
			t.Fatal(err)
		}
		c := said{r: bytes.NewReader(b)}
		w := &wrappedConn{Conn: c, from: bufio.NewReader(c), layer: a.Layer()}
		if n, err := w.Read(make([]byte, 10)); err == nil {
			t.Fatalf("%d bytes of a forged message", n)
		}
	})
}
