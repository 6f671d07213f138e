package hrpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The parsers written by hand must agree with the generated ones wherever they accept.

func FuzzRequestHeader(f *testing.F) {
	f.Add(header(2, 0, 7))
	f.Add(header(-1, -1, -33))
	f.Add(appendRequestHeader(nil, 1<<30, 5, []byte("0123456789abcdef")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseRequestHeader(b)
		if err != nil {
			return
		}
		var want hadooppb.RpcRequestHeaderProto
		if err := want.UnmarshalVT(looked(b)); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		if h.callID != want.GetCallId() || h.retry != want.GetRetryCount() || !bytes.Equal(h.clientID, want.GetClientId()) {
			t.Errorf("got %+v, want %v", h, &want)
		}
		if want.RpcKind != nil && h.kind != int32(want.GetRpcKind()) || want.RpcOp != nil && h.op != int32(want.GetRpcOp()) {
			t.Errorf("got %+v, want %v", h, &want)
		}
	})
}

// FuzzHeaders parses the headers of two calls of one connection, and the first one again: each must be what it is alone.
func FuzzHeaders(f *testing.F) {
	id := []byte("0123456789abcdef")
	f.Add(appendRequestHeader(nil, 1, -1, id), appendRequestHeader(nil, 1<<30, -1, id))
	f.Add(appendRequestHeader(nil, 1, -1, id), appendRequestHeader(nil, 2, 1, []byte("another's client")))
	f.Add(appendRequestHeader(nil, 1, -1, id), appendRequestHeader(nil, -4, -1, id))
	again := append(appendRequestHeader(nil, 1, -1, id), 3<<3, 18) // its number a second time
	f.Add(again, append(appendRequestHeader(nil, 2, -1, id), 3<<3, 18))
	f.Add(append(appendRequestHeader(nil, 1, -1, id), 8<<3, 9), append(appendRequestHeader(nil, 3, -1, id), 8<<3, 9))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var s headers
		for _, b := range [][]byte{first, second, first, second} {
			want, wrong := parseRequestHeader(b)
			b = bytes.Clone(b)
			h, err := s.parse(b)
			if (err == nil) != (wrong == nil) {
				t.Fatalf("%v, and %v alone", err, wrong)
			}
			if err == nil && !reflect.DeepEqual(h, want) {
				t.Fatalf("%+v, and %+v alone", h, want)
			}
			clear(b) // the next frame takes its place
		}
	})
}

// looked are the fields of a request header that are looked at. What is in the others, who traces and what else the caller
// wants to be known, is nobody's business here, not even whether it is a message.
func looked(b []byte) (out []byte) {
	f := fields{rest: b}
	for {
		from := f.rest
		ok, err := f.next()
		if !ok || err != nil {
			return out
		}
		if f.number <= 5 {
			out = append(out, from[:len(from)-len(f.rest)]...)
		}
	}
}

// FuzzElements counts the elements of what decodes as a request: the count must not be less than what was decoded.
func FuzzElements(f *testing.F) {
	add := func(kind uint8, m interface{ MarshalVT() ([]byte, error) }) {
		b, err := m.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, b)
	}
	add(0, &hadooppb.ConcatRequestProto{Trg: new("/t"), Srcs: make([]string, 20)})
	block := &hadooppb.LocatedBlockProto{
		B: &hadooppb.ExtendedBlockProto{PoolId: new("p"), BlockId: new(uint64(1)), GenerationStamp: new(uint64(2))}, Offset: new(uint64), Corrupt: new(bool),
		BlockToken: &hadooppb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: new(""), Service: new("")},
	}
	add(1, &hadooppb.ReportBadBlocksRequestProto{Blocks: []*hadooppb.LocatedBlockProto{block, block}})
	add(2, &hadooppb.AddBlockRequestProto{Src: new("/f"), ClientName: new("c"), FavoredNodes: []string{"a", "b"}})
	f.Add(uint8(0), []byte{0x7b, 0x08, 0x01, 0x7c, 0x0a, 0x02, '/', 't', 0x12, 0x00}) // an unknown group first
	f.Add(uint8(0), []byte{0x0a, 0x80, 0x00, 0x92, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 0x00})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		kinds := []func() Message{
			func() Message { return new(hadooppb.ConcatRequestProto) },
			func() Message { return new(hadooppb.ReportBadBlocksRequestProto) },
			func() Message { return new(hadooppb.AddBlockRequestProto) },
			func() Message { return new(hadooppb.ModifyAclEntriesRequestProto) },
			func() Message { return new(hadooppb.CreateRequestProto) },
		}
		m := kinds[int(kind)%len(kinds)]()
		err := m.UnmarshalVT(b) // what it made of it before it failed is memory too
		if counted, made := elements(b, maxDepth, len(b)), populated(m.(proto.Message).ProtoReflect()); counted < made {
			t.Errorf("counted %d elements, %d were decoded (%v)", counted, made, err)
		}
		if counted := elements(b, maxDepth, 10); counted > 10+maxDepth+1 {
			t.Errorf("counted %d elements, 10 were enough", counted)
		}
	})
}

// populated counts the elements of lists and the messages in a message. Numbers in packed lists count as nothing: they take
// little more room than they have on the wire.
func populated(m protoreflect.Message) (n int) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				n += 1 + populated(v.List().Get(i).Message())
			}
		case field.IsList() && (field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind):
			n += v.List().Len()
		case !field.IsList() && field.Message() != nil:
			n += 1 + populated(v.Message())
		}
		return true
	})
	return n
}

func FuzzCallHeader(f *testing.F) {
	f.Add(appendCallHeader(nil, nn, "getFileInfo"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseCallHeader(b)
		if err != nil {
			return
		}
		var want hadooppb.RequestHeaderProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		if string(h.method) != want.GetMethodName() || string(h.protocol) != want.GetDeclaringClassProtocolName() || h.version != want.GetClientProtocolVersion() {
			t.Errorf("got %+v, want %v", h, &want)
		}
	})
}

func FuzzResponseHeader(f *testing.F) {
	f.Add(unhex(f, absentHex)[5:31])
	f.Add(appendResponseHeader(nil, &responseHeader{callID: -33, status: 2, class: "c", message: "m", detail: 15, clientID: []byte{1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseResponseHeader(b)
		if err != nil {
			return
		}
		var want hadooppb.RpcResponseHeaderProto
		if err := want.UnmarshalVT(b); err != nil {
			t.Fatalf("accepted what the generated parser refuses: %v", err)
		}
		if h.callID != int32(want.GetCallId()) || h.status != want.GetStatus() || h.class != want.GetExceptionClassName() || h.message != want.GetErrorMsg() {
			t.Errorf("got %+v, want %v", h, &want)
		}
	})
}

// FuzzFrames feeds a stream in pieces. Whatever it announces, the buffer may hold no more than twice what has arrived.
func FuzzFrames(f *testing.F) {
	f.Add(unhex(f, contextHex+statRootHex), uint16(7), uint32(1000))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 1, 2, 3}, uint16(100), uint32(1<<31-1))
	f.Add(append([]byte{0, 1, 0, 0}, make([]byte, 1<<16)...), uint16(9999), uint32(1<<20))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint16, limit uint32) {
		if limit > 1<<31-1 {
			limit = 1<<31 - 1
		}
		source := &pieces{rest: stream, size: int(piece) + 1}
		fr := newFrames(source, int(limit))
		var got []byte
		for {
			frame, ok, err := fr.next()
			if err != nil {
				break
			}
			if ok {
				if len(frame) > int(limit) {
					t.Fatalf("frame of %d bytes, limit %d", len(frame), limit)
				}
				got = binary.BigEndian.AppendUint32(got, uint32(len(frame)))
				got = append(got, frame...)
				continue
			}
			err = fr.fill()
			if most := max(2*source.given, busyBuffer); len(fr.buf) > most {
				t.Fatalf("a buffer of %d bytes after %d have arrived", len(fr.buf), source.given)
			}
			if errors.Is(err, io.EOF) && len(got) != len(stream) {
				t.Fatalf("EOF at a boundary after %d of %d bytes", len(got), len(stream))
			}
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(stream, got) {
			t.Fatal("the frames are not the stream")
		}
	})
}

// pieces gives a stream in pieces of one size.
type pieces struct {
	rest        []byte
	size, given int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	p.given += n
	return n, nil
}

// FuzzExchange: whatever a client that knows no password says in an exchange, it does not become known.
func FuzzExchange(f *testing.F) {
	encode := func(m *hadooppb.RpcSaslProto) []byte {
		b, err := m.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(encode(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_NEGOTIATE.Enum()}), encode(&hadooppb.RpcSaslProto{
		State: hadooppb.RpcSaslProto_INITIATE.Enum(), Token: []byte(`username="YWxpY2U="`),
		Auths: []*hadooppb.RpcSaslProto_SaslAuth{{Method: new(sasl.Token), Mechanism: new(sasl.DigestMD5)}},
	}))
	f.Add(encode(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_RESPONSE.Enum()}), encode(&hadooppb.RpcSaslProto{State: hadooppb.RpcSaslProto_WRAP.Enum()}))
	s := newServer(f, ServerConfig{Offers: []Offer{tokenOffer()}, Door: strangers(), Exception: notFound})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		c := newServerConn(s, near)
		c.out.tell = func(*outbox) {}
		c.exchange = &exchange{}
		for _, message := range [][]byte{first, second, first} {
			if c.sasl(requestHeader{callID: callSASL}, appendDelimited(nil, message)) != nil {
				break
			}
		}
		if c.exchange.done || c.layer != nil || c.known {
			t.Fatal("known")
		}
	})
}
