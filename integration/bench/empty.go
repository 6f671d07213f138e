package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// The empty server answers each request of Hadoop's protocol with the bytes that hops answered to one like it: the same client, the same
// messages, and nothing behind them. What it takes is what a request over loopback costs a server written in Go, whatever it does;
// what hops takes above that is hops.

const labelEmpty = "empty server"

// reply is an answer in pieces: the header behind its call id, in which the client's id stands, and the message, with its length in front.
type reply struct {
	Head   []byte `json:"head"`
	Client int    `json:"client"`
	Body   []byte `json:"body"`
}

// noReply is for what nobody has asked hops: a message without fields.
var noReply = &reply{Head: []byte{2 << 3, 0}, Client: -1, Body: []byte{0}}

// clientID is how many bytes the id of a client has.
const clientID = 16

// request is what an answer needs of a request.
type request struct {
	call   int32
	client []byte
	method []byte
}

var errForeign = errors.New("this is not what the benchmark's client says")

// delimited cuts a message with its length in front off b.
func delimited(b []byte) (message, rest []byte, err error) {
	message, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return nil, nil, protowire.ParseError(n)
	}
	return message, b[n:], nil
}

// field finds a field of a message; nil, 0: it has none.
func field(message []byte, number protowire.Number) (text []byte, value uint64, err error) {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		message = message[n:]
		switch {
		case num == number && kind == protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case num == number && kind == protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(num, kind, message)
			if n >= 0 {
				message = message[n:]
				continue
			}
		}
		if n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		return text, value, nil
	}
	return nil, 0, nil
}

func parseRequest(frame []byte) (q request, err error) {
	head, rest, err := delimited(frame)
	if err != nil {
		return q, err
	}
	_, call, err := field(head, 3)
	if err != nil {
		return q, err
	}
	if q.call = int32(protowire.DecodeZigZag(call)); q.call < 0 {
		return q, nil
	}
	if q.client, _, err = field(head, 4); err != nil {
		return q, err
	}
	name, _, err := delimited(rest)
	if err != nil {
		return q, err
	}
	q.method, _, err = field(name, 1)
	return q, err
}

// nextFrame cuts a frame off b; false: not all of it is there.
func nextFrame(b []byte) (frame, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, b, false
	}
	size := int(binary.BigEndian.Uint32(b))
	if len(b)-4 < size {
		return nil, b, false
	}
	return b[4 : 4+size], b[4+size:], true
}

func (p *reply) append(dst []byte, q request) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.AppendUvarint(dst, uint64(1+protowire.SizeVarint(uint64(uint32(q.call)))+len(p.Head)))
	dst = binary.AppendUvarint(append(dst, 1<<3), uint64(uint32(q.call)))
	head := len(dst)
	dst = append(dst, p.Head...)
	if p.Client >= 0 {
		copy(dst[head+p.Client:head+p.Client+clientID], q.client)
	}
	dst = append(dst, p.Body...)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// hello is how many bytes come before the first frame of a connection.
const hello = 7

// serveEmpty is the empty server's process. It says where it listens, and ends when its standard input does.
func serveEmpty(replies string) error {
	raw, err := os.ReadFile(replies)
	if err != nil {
		return err
	}
	var by map[string]*reply
	if err := json.Unmarshal(raw, &by); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = answer(conn, by) // the client knows
			}()
		}
	}()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func answer(conn net.Conn, by map[string]*reply) error {
	if _, err := io.ReadFull(conn, make([]byte, hello)); err != nil {
		return err
	}
	in, have := make([]byte, 64<<10), 0
	var out []byte
	for {
		n, err := conn.Read(in[have:])
		if err != nil {
			return err
		}
		rest := in[:have+n]
		out = out[:0]
		for {
			var frame []byte
			var ok bool
			if frame, rest, ok = nextFrame(rest); !ok {
				break
			}
			q, err := parseRequest(frame)
			if err != nil {
				return err
			}
			if q.call < 0 {
				continue
			}
			p := by[string(q.method)]
			if p == nil {
				p = noReply
			}
			out = p.append(out, q)
		}
		if have = copy(in, rest); have == len(in) {
			return errForeign
		}
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
		}
	}
}
