package hrpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Message is a protobuf message with generated codecs; those of hadooppb are.
type Message interface {
	MarshalToSizedBufferVT([]byte) (int, error)
	SizeVT() int
	UnmarshalVT([]byte) error
}

// BodyKeeper is an answer that goes on using the bytes that it was decoded from: they are its own, and not read into again.
type BodyKeeper interface {
	Message
	KeepsBody()
}

const (
	magic   = "hrpc"
	version = 9

	authNone = 0x00
	authSASL = 0xdf

	// Call ids below zero, see 1.4 of the wire reference.
	callUnauthorized = -1
	callInvalid      = -2
	callContext      = -3
	callPing         = -4
	callSASL         = -33

	// Version of every protocol that is spoken.
	protocolVersion = 1
)

// Frame limits, in bytes.
const (
	// maxFirstFrame bounds what is read from somebody who has not said who they are.
	maxFirstFrame = 64 << 10
	// DefaultMaxRequest bounds every later frame that a server takes: what a request changes has to fit into a log entry,
	// which is smaller.
	DefaultMaxRequest = 2 << 20
	// DefaultMaxFrame bounds the answers that a client takes.
	DefaultMaxFrame = 64 << 20
)

// maxElements is how many fields a request may have, those of the messages in it included: the elements of lists are
// fields, and a field of two bytes becomes a hundred when it is decoded.
const maxElements = 100_000

var errMalformed = errors.New("malformed message")

// ErrAnswer is in the error of a call to a server that answers something else than the protocol says.
var ErrAnswer = errors.New("malformed answer")

// fields walks over the fields of an encoded message without allocating.
type fields struct {
	rest   []byte
	number uint64
	kind   uint8
	value  uint64 // of kinds 0, 1 and 5
	bytes  []byte // of kind 2
}

// next moves to the next field; false at the end, or with err at bytes that are no message.
func (f *fields) next() (ok bool, err error) {
	if len(f.rest) == 0 {
		return false, nil
	}
	tag, n := binary.Uvarint(f.rest)
	if n <= 0 || tag>>3 == 0 || tag > math.MaxUint32 {
		return false, errMalformed
	}
	f.rest = f.rest[n:]
	f.number, f.kind = tag>>3, uint8(tag&7)
	switch f.kind {
	case 0:
		f.value, n = binary.Uvarint(f.rest)
	case 1:
		if n = 0; len(f.rest) >= 8 {
			f.value, n = binary.LittleEndian.Uint64(f.rest), 8
		}
	case 2:
		f.bytes, n = cut(f.rest)
	case 5:
		if n = 0; len(f.rest) >= 4 {
			f.value, n = uint64(binary.LittleEndian.Uint32(f.rest)), 4
		}
	default:
		n = 0
	}
	if n <= 0 {
		return false, errMalformed
	}
	f.rest = f.rest[n:]
	return true, nil
}

// elements counts the fields of an encoded message and of what could be messages in it, down to a depth of nesting; it
// stops soon after limit. It takes whatever the generated decoders take, groups and odd varints included: what they
// decode is never more than it has counted. Text rarely passes for a message.
func elements(b []byte, depth, limit int) (n int) {
	for len(b) > 0 && n <= limit {
		tag, rest, ok := varint(b)
		if !ok {
			break
		}
		b = rest
		if tag&7 > 5 {
			break
		}
		n++
		switch tag & 7 {
		case 0:
			if _, b, ok = varint(b); !ok {
				return n
			}
		case 1:
			b = b[min(8, len(b)):]
		case 2:
			var size uint64
			if size, b, ok = varint(b); !ok || size > uint64(len(b)) {
				return n
			}
			if depth > 0 && size > 1 {
				n += elements(b[:size], depth-1, limit-n)
			}
			b = b[size:]
		case 3, 4: // of a group, whose fields are counted like others
		case 5:
			b = b[min(4, len(b)):]
		}
	}
	return n
}

// varint reads a varint as generated decoders do: up to ten bytes, bits above 64 are lost.
func varint(b []byte) (v uint64, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], true
	}
	for i, shift := 0, 0; i < len(b) && shift < 64; i, shift = i+1, shift+7 {
		v |= uint64(b[i]&0x7f) << shift
		if b[i] < 0x80 {
			return v, b[i+1:], true
		}
	}
	return 0, nil, false
}

// cut returns the length-delimited bytes at the start of b and how much of b they take, 0 if they are not there.
func cut(b []byte) ([]byte, int) {
	if len(b) > 0 && int(b[0]) < min(len(b), 0x80) { // mostly the length is one byte
		n := 1 + int(b[0])
		return b[1:n:n], n
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, 0
	}
	return b[n : n+int(size) : n+int(size)], n + int(size)
}

func unzigzag32(v uint64) int32 { return int32(uint32(v)>>1) ^ -int32(v&1) }

func zigzag32(v int32) uint64 { return uint64(uint32(v<<1) ^ uint32(v>>31)) }

// requestHeader is RpcRequestHeaderProto. clientID is part of the frame.
type requestHeader struct {
	kind, op int32 // -1: absent
	callID   int32
	retry    int32
	clientID []byte
	// stateID is the state that the caller has seen, if told: it wants to know the server's. aligned: it has told it as Hadoop's clients do.
	stateID       int64
	told, aligned bool
	// staleness is how old the answer may be, 0: the header does not say.
	staleness time.Duration
}

// Fields of the header of a request that are not Hadoop's. Who limits how old a state may be says them in place of Hadoop's stateId, so that a server that
// does not know them takes the caller for one that does not read from observers.
const (
	fieldStaleness = 100 // uint64: how old the state may be that this call is answered from, in milliseconds; only the one that leads answers a call without
	fieldSeen      = 101 // int64: the state that the caller has seen
)

// maxStaleness is what a larger one is taken for.
const maxStaleness = 24 * time.Hour

func parseRequestHeader(b []byte) (requestHeader, error) {
	h := requestHeader{kind: -1, op: -1, retry: -1}
	var hasID, hasClient bool
	f := fields{rest: b}
	for {
		ok, err := f.next()
		if err != nil {
			return h, err
		}
		if !ok {
			break
		}
		switch f.number {
		case 1, 2, 3, 5, 8, fieldStaleness, fieldSeen:
			if f.kind != 0 {
				return h, errMalformed
			}
		case 4, 6, 7, 9:
			if f.kind != 2 {
				return h, errMalformed
			}
		}
		switch f.number {
		case 1:
			h.kind = int32(f.value)
		case 2:
			h.op = int32(f.value)
		case 3:
			h.callID, hasID = unzigzag32(f.value), true
		case 4:
			h.clientID, hasClient = f.bytes, true
		case 5:
			h.retry = unzigzag32(f.value)
		case 8:
			h.stateID, h.told, h.aligned = int64(f.value), true, true
		case fieldStaleness:
			h.staleness = time.Duration(min(f.value, uint64(maxStaleness/time.Millisecond))) * time.Millisecond
		case fieldSeen:
			h.stateID, h.told = int64(f.value), true
		}
	}
	if !hasID || !hasClient {
		return h, fmt.Errorf("%w: a request header needs callId and clientId", errMalformed)
	}
	return h, nil
}

// headers parses the headers of a connection's calls. Mostly one differs from that before it in the number of the call alone.
type headers struct {
	like requestHeader // the last one; its clientID is its own
	tail []byte        // what was behind the call's number in it; empty: there is none to compare with
}

// plainCall is how the headers of calls begin that name their fields in order: up to the number of the call.
const plainCall = "\x08\x02\x10\x00\x18"

// maxTail is of how long a header the tail is remembered.
const maxTail = 256

// splitHeader returns the number of a call, as it is encoded, and what is behind it, of a header that begins with plainCall; of others nothing.
func splitHeader(b []byte) (id uint64, tail []byte) {
	if len(b) > len(plainCall) && string(b[:len(plainCall)]) == plainCall {
		var n int
		if id, n = binary.Uvarint(b[len(plainCall):]); n > 0 {
			tail = b[len(plainCall)+n:]
		}
	}
	return id, tail
}

// again reports whether what is behind the number of a call is as in the last header.
func (s *headers) again(tail []byte) bool { return bytes.Equal(tail, s.tail) }

// parse is parseRequestHeader, but that clientID may be that of an earlier header, with the same bytes.
func (s *headers) parse(b []byte) (requestHeader, error) {
	id, tail := splitHeader(b)
	if len(tail) > 0 && s.again(tail) {
		h := s.like
		h.callID = unzigzag32(id)
		return h, nil
	}
	h, err := parseRequestHeader(b)
	if err != nil || len(tail) == 0 || len(tail) > maxTail {
		return h, err
	}
	for f := (fields{rest: tail}); ; {
		if ok, _ := f.next(); !ok { // it is in order, as all of b is
			break
		}
		if f.number <= 3 { // once more, and this one counts
			return h, nil
		}
	}
	if s.like.clientID == nil || !bytes.Equal(s.like.clientID, h.clientID) {
		s.like.clientID = bytes.Clone(h.clientID)
	}
	h.clientID = s.like.clientID
	s.like, s.tail = h, append(s.tail[:0], tail...)
	return h, nil
}

func appendRequestHeader(dst []byte, callID, retry int32, clientID []byte) []byte {
	dst = append(dst, 1<<3, byte(hadooppb.RpcKindProto_RPC_PROTOCOL_BUFFER), 2<<3, byte(hadooppb.RpcRequestHeaderProto_RPC_FINAL_PACKET), 3<<3)
	dst = binary.AppendUvarint(dst, zigzag32(callID))
	dst = append(dst, 4<<3|2, byte(len(clientID)))
	dst = append(dst, clientID...)
	dst = append(dst, 5<<3)
	return binary.AppendUvarint(dst, zigzag32(retry))
}

// appendAlignment appends to the header of a request what the caller has seen, and how old a state may be: anywhere is for a call that a server may answer that does
// not lead.
func appendAlignment(dst []byte, a *alignment, anywhere bool) []byte {
	seen := uint64(a.seen.Load())
	if a.staleness == 0 {
		return binary.AppendUvarint(append(dst, 8<<3), seen)
	}
	if anywhere {
		dst = binary.AppendUvarint(dst, fieldStaleness<<3)
		dst = binary.AppendUvarint(dst, uint64(a.staleness/time.Millisecond))
	}
	dst = binary.AppendUvarint(dst, fieldSeen<<3)
	return binary.AppendUvarint(dst, seen)
}

// callHeader is RequestHeaderProto. Its slices are part of the frame.
type callHeader struct {
	method, protocol []byte
	version          uint64
}

func parseCallHeader(b []byte) (callHeader, error) {
	var h callHeader
	seen := 0
	f := fields{rest: b}
	for {
		ok, err := f.next()
		if err != nil {
			return h, err
		}
		if !ok {
			break
		}
		switch {
		case f.number == 1 && f.kind == 2:
			h.method = f.bytes
		case f.number == 2 && f.kind == 2:
			h.protocol = f.bytes
		case f.number == 3 && f.kind == 0:
			h.version = f.value
		case f.number <= 3:
			return h, errMalformed
		default:
			continue
		}
		seen |= 1 << f.number
	}
	if seen != 0b1110 {
		return h, fmt.Errorf("%w: a call names its method, protocol and version", errMalformed)
	}
	return h, nil
}

func appendCallHeader(dst []byte, protocol, method string) []byte {
	dst = append(dst, 1<<3|2)
	dst = binary.AppendUvarint(dst, uint64(len(method)))
	dst = append(dst, method...)
	dst = append(dst, 2<<3|2)
	dst = binary.AppendUvarint(dst, uint64(len(protocol)))
	dst = append(dst, protocol...)
	return append(dst, 3<<3, protocolVersion)
}

// responseHeader is RpcResponseHeaderProto.
type responseHeader struct {
	callID   int32
	retry    int32
	status   hadooppb.RpcResponseHeaderProto_RpcStatusProto
	detail   hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto
	class    string
	message  string
	clientID []byte
	// stateID is the server's state, if it is told.
	stateID *int64
}

func parseResponseHeader(b []byte) (responseHeader, error) {
	var h responseHeader
	seen := 0
	f := fields{rest: b}
	for {
		ok, err := f.next()
		if err != nil {
			return h, err
		}
		if !ok {
			break
		}
		switch f.number {
		case 1, 2, 3, 6, 8, 9:
			if f.kind != 0 {
				return h, errMalformed
			}
		case 4, 5, 7, 10:
			if f.kind != 2 {
				return h, errMalformed
			}
		}
		switch f.number {
		case 1:
			h.callID = int32(uint32(f.value))
			seen |= 1
		case 2:
			h.status = hadooppb.RpcResponseHeaderProto_RpcStatusProto(f.value)
			seen |= 2
		case 4:
			h.class = string(f.bytes)
		case 5:
			h.message = string(f.bytes)
		case 6:
			h.detail = hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto(f.value)
		case 7:
			h.clientID = f.bytes
		case 8:
			h.retry = unzigzag32(f.value)
		case 9:
			h.stateID = new(int64(f.value))
		}
	}
	if seen != 3 {
		return h, fmt.Errorf("%w: a response header needs callId and status", errMalformed)
	}
	return h, nil
}

func appendResponseHeader(dst []byte, h *responseHeader) []byte {
	dst = append(dst, 1<<3)
	dst = binary.AppendUvarint(dst, uint64(uint32(h.callID)))
	dst = append(dst, 2<<3, byte(h.status), 3<<3, version)
	if h.status != hadooppb.RpcResponseHeaderProto_SUCCESS {
		dst = append(dst, 4<<3|2)
		dst = binary.AppendUvarint(dst, uint64(len(h.class)))
		dst = append(dst, h.class...)
		dst = append(dst, 5<<3|2)
		dst = binary.AppendUvarint(dst, uint64(len(h.message)))
		dst = append(dst, h.message...)
		dst = append(dst, 6<<3, byte(h.detail))
	}
	dst = append(dst, 7<<3|2)
	dst = binary.AppendUvarint(dst, uint64(len(h.clientID)))
	dst = append(dst, h.clientID...)
	dst = append(dst, 8<<3)
	dst = binary.AppendUvarint(dst, zigzag32(h.retry))
	if h.stateID != nil {
		dst = binary.AppendUvarint(append(dst, 9<<3), uint64(*h.stateID))
	}
	return dst
}

// beginFrame reserves the length of a frame; endFrame fills it in.
func beginFrame(dst []byte) ([]byte, int) { return append(dst, 0, 0, 0, 0), len(dst) }

func endFrame(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// appendDelimited appends b with its length in front.
func appendDelimited(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// appendDelimitedHeader is appendDelimited for a header, which is written in its place: mostly its length has one byte.
func appendDelimitedHeader(dst []byte, h *responseHeader) []byte {
	at := len(dst)
	dst = appendResponseHeader(append(dst, 0), h)
	size := len(dst) - at - 1
	if size < 0x80 {
		dst[at] = byte(size)
		return dst
	}
	return slices.Replace(dst, at, at+1, binary.AppendUvarint(nil, uint64(size))...)
}

// appendMessage appends m with its length in front. A nil m counts as empty.
func appendMessage(dst []byte, m Message) ([]byte, error) {
	if m == nil {
		return append(dst, 0), nil
	}
	size := m.SizeVT()
	dst = binary.AppendUvarint(dst, uint64(size))
	dst = extend(dst, size)
	if _, err := m.MarshalToSizedBufferVT(dst[len(dst)-size:]); err != nil {
		return nil, err
	}
	return dst, nil
}

// extend makes dst n bytes longer; the new ones are undefined.
func extend(dst []byte, n int) []byte {
	if cap(dst)-len(dst) < n {
		grown := make([]byte, len(dst), max(2*cap(dst), len(dst)+n))
		copy(grown, dst)
		dst = grown
	}
	return dst[:len(dst)+n]
}
