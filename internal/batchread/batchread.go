// Package batchread is the wire of reading many small files with few requests. A namenode answers an OPENMANY of many paths with a
// Plan: for each datanode a request that is made already, with the tokens in it, which the client sends on as it is (READMANY). The
// datanode answers with an Answer: first the lengths, then the bytes of all pieces, back to back, so that a client needs no more than a
// slice for each.
//
// Numbers are little-endian. Nothing here trusts what it reads.
package batchread

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

const (
	// ContentType of plans, requests and answers.
	ContentType = "application/octet-stream"
	// MaxNames is how many paths one OPENMANY may name, and MaxNamesBytes what they may take together.
	MaxNames      = 16384
	MaxNamesBytes = 4 << 20
	// MaxBytes is how much data one READMANY may ask for, so also the size of the largest file that is read this way.
	MaxBytes = 16 << 20
	// MaxRequest is how long a READMANY may be.
	MaxRequest = 4 << 20
	// maxToken bounds each half of a token; those of blocks have some 100 bytes.
	maxToken = 1024
)

// The first bytes of each message. The last one of them is the version.
const (
	planMagic    = "HPM1"
	requestMagic = "HRQ1"
	answerMagic  = "HRA1"
)

// Failed in place of a length says that a piece was not read.
const Failed = 1<<32 - 1

// Piece is a part of a block, and the token by which it may be read.
type Piece struct {
	Block  metadata.Block // Length is not used
	Offset int64
	Length int
	Token  security.Token
}

// pieceHead is the fixed part of a piece: id, generation, offset, length, lengths of the token's halves.
const pieceHead = 8 + 8 + 8 + 4 + 2 + 2

// Request is a READMANY being made.
type Request struct {
	buf   []byte
	Count int
	// Bytes is how much data is asked for.
	Bytes int64
}

// NewRequest begins a request for blocks of a pool.
func NewRequest(pool string) *Request {
	r := &Request{buf: append(make([]byte, 0, 4<<10), requestMagic...)}
	r.buf = binary.LittleEndian.AppendUint32(r.buf, 0)
	r.buf = binary.LittleEndian.AppendUint16(r.buf, uint16(len(pool)))
	r.buf = append(r.buf, pool...)
	return r
}

// Fits reports whether a piece of so many bytes may still be added.
func (r *Request) Fits(length int64) bool {
	return r.Count < MaxNames && r.Bytes+length <= MaxBytes && len(r.buf)+pieceHead+2*maxToken <= MaxRequest
}

// Add adds a piece that fits.
func (r *Request) Add(p Piece) {
	b := binary.LittleEndian.AppendUint64(r.buf, uint64(p.Block.ID))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.Block.Generation))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.Offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Length))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.Token.Identifier)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.Token.Password)))
	b = append(b, p.Token.Identifier...)
	r.buf = append(b, p.Token.Password...)
	r.Count++
	r.Bytes += int64(p.Length)
}

// Encode is the request's bytes.
func (r *Request) Encode() []byte {
	binary.LittleEndian.PutUint32(r.buf[len(requestMagic):], uint32(r.Count))
	return r.buf
}

func malformed(format string, args ...any) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "READMANY: "+format, args...)
}

// ParseRequest reads a request. The tokens point into b.
func ParseRequest(b []byte) (pool string, pieces []Piece, err error) {
	if len(b) > MaxRequest {
		return "", nil, malformed("the request has %d bytes, more than %d", len(b), MaxRequest)
	}
	if len(b) < 10 || string(b[:4]) != requestMagic {
		return "", nil, malformed("the body is not a request of this version: send on what OPENMANY of a namenode of this cluster has answered")
	}
	n, k := int(binary.LittleEndian.Uint32(b[4:])), int(binary.LittleEndian.Uint16(b[8:]))
	b = b[10:]
	if len(b) < k {
		return "", nil, malformed("the request ends in its block pool")
	}
	pool, b = string(b[:k]), b[k:]
	if n == 0 || n > MaxNames || n > len(b)/pieceHead {
		return "", nil, malformed("%d pieces in %d bytes; 1 to %d may be asked for", n, len(b), MaxNames)
	}
	pieces = make([]Piece, n)
	var total int64
	for i := range pieces {
		if len(b) < pieceHead {
			return "", nil, malformed("the request ends in piece %d of %d", i, n)
		}
		p := &pieces[i]
		p.Block.ID = metadata.BlockID(binary.LittleEndian.Uint64(b))
		p.Block.Generation = metadata.Generation(binary.LittleEndian.Uint64(b[8:]))
		p.Offset = int64(binary.LittleEndian.Uint64(b[16:]))
		length := binary.LittleEndian.Uint32(b[24:])
		id, password := int(binary.LittleEndian.Uint16(b[28:])), int(binary.LittleEndian.Uint16(b[30:]))
		b = b[pieceHead:]
		total += int64(length)
		switch {
		case id > maxToken || password > maxToken || len(b) < id+password:
			return "", nil, malformed("the request ends in the token of piece %d of %d, or that is too long", i, n)
		case total > MaxBytes:
			return "", nil, malformed("%d bytes are asked for by piece %d, %d is the most", total, i, MaxBytes)
		case p.Offset < 0 || p.Offset > 1<<62 || length == 0:
			return "", nil, malformed("piece %d: %d bytes at %d of block %d", i, length, p.Offset, p.Block.ID)
		}
		p.Length = int(length)
		p.Token = security.Token{Identifier: b[:id:id], Password: b[id : id+password : id+password]}
		b = b[id+password:]
	}
	if len(b) > 0 {
		return "", nil, malformed("%d bytes behind the last of %d pieces", len(b), n)
	}
	return pool, pieces, nil
}

// answerHead is magic, count, length of the errors' JSON, a CRC-32 (IEEE) of all that follows the head, and the length of the data.
const answerHead = 4 + 4 + 4 + 4 + 8

// Problem says why the piece, or path, of a number was not read: as JSON an array of number, exception and message.
type Problem struct {
	Index              int
	Exception, Message string
}

// MarshalJSON implements json.Marshaler.
func (p Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.Index, p.Exception, p.Message})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Problem) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&p.Index, &p.Exception, &p.Message})
}

// Answer is what a datanode has read, being made in one buffer: head, a length for each piece, data, problems as JSON.
type Answer struct {
	buf      []byte
	n, at    int // pieces, and of which the length comes next
	problems []Problem
}

// AnswerSize is about how many bytes an answer takes.
func AnswerSize(pieces int, bytes int64) int64 { return answerHead + 4*int64(pieces) + bytes }

// NewAnswer begins an answer of n pieces in buf, which is grown if need be.
func NewAnswer(buf []byte, n int) *Answer {
	a := &Answer{n: n}
	head := answerHead + 4*n
	if cap(buf) < head {
		buf = make([]byte, head)
	}
	a.buf = buf[:head]
	copy(a.buf, answerMagic)
	binary.LittleEndian.PutUint32(a.buf[4:], uint32(n))
	return a
}

// Room is where the next piece's bytes go, with space for n of them.
func (a *Answer) Room(n int) []byte {
	at := len(a.buf)
	if cap(a.buf) < at+n {
		grown := make([]byte, at, max(at+n, 2*cap(a.buf)))
		copy(grown, a.buf)
		a.buf = grown
	}
	return a.buf[at : at+n]
}

// Take ends a piece: the first n bytes of its Room are it.
func (a *Answer) Take(n int) {
	a.length(uint32(n))
	a.buf = a.buf[:len(a.buf)+n]
}

// Clone is the answer so far in memory of its own, for size bytes in all: somebody may still write to the Room of this one.
func (a *Answer) Clone(size int64) *Answer {
	c := *a
	c.buf = append(make([]byte, 0, max(size, int64(len(a.buf)))), a.buf...)
	c.problems = slices.Clone(a.problems)
	return &c
}

// Fail ends a piece that was not read.
func (a *Answer) Fail(exception, message string) {
	a.problems = append(a.problems, Problem{a.at, exception, message})
	a.length(Failed)
}

func (a *Answer) length(n uint32) {
	binary.LittleEndian.PutUint32(a.buf[answerHead+4*a.at:], n)
	a.at++
}

// Encode ends the answer. The bytes are good until the buffer is used again.
func (a *Answer) Encode() ([]byte, error) {
	data := len(a.buf) - answerHead - 4*a.n
	problems := []byte("[]")
	if len(a.problems) > 0 {
		var err error
		if problems, err = json.Marshal(a.problems); err != nil {
			return nil, err
		}
	}
	a.buf = append(a.buf, problems...)
	binary.LittleEndian.PutUint32(a.buf[8:], uint32(len(problems)))
	binary.LittleEndian.PutUint64(a.buf[16:], uint64(data))
	binary.LittleEndian.PutUint32(a.buf[12:], crc32.ChecksumIEEE(a.buf[answerHead:]))
	return a.buf, nil
}

// ParseAnswer reads an answer. pieces has nil for those that failed; they point into b.
func ParseAnswer(b []byte) (pieces [][]byte, problems []Problem, err error) {
	bad := func(format string, args ...any) ([][]byte, []Problem, error) {
		return nil, nil, fmt.Errorf("READMANY: the answer %s", fmt.Sprintf(format, args...))
	}
	if len(b) < answerHead || string(b[:4]) != answerMagic {
		return bad("is none of this version")
	}
	n, tail, sum, data := uint64(binary.LittleEndian.Uint32(b[4:])), uint64(binary.LittleEndian.Uint32(b[8:])), binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:])
	if n > MaxNames || data > MaxBytes || answerHead+4*n+data+tail != uint64(len(b)) {
		return bad("has %d bytes, not those of its head", len(b))
	}
	if crc32.ChecksumIEEE(b[answerHead:]) != sum {
		return bad("was damaged on the way")
	}
	body := b[answerHead+4*n : answerHead+4*n+data]
	for i := range n {
		k := binary.LittleEndian.Uint32(b[answerHead+4*i:])
		switch {
		case k == Failed:
			pieces = append(pieces, nil)
			continue
		case uint64(k) > uint64(len(body)):
			return bad("has too little data for piece %d", i)
		}
		pieces = append(pieces, body[:k:k])
		body = body[k:]
	}
	if err := json.Unmarshal(b[uint64(len(b))-tail:], &problems); err != nil {
		return bad("has problems that are no JSON: %v", err)
	}
	return pieces, problems, nil
}

// Group is what one datanode is asked for.
type Group struct {
	// URL is where Request is posted to; Datanode the address of its data transfer, by which a later OPENMANY leaves it out
	// (excludedatanodes).
	URL, Datanode string
	// Files are the numbers of the paths that the pieces are, in their order.
	Files   []uint32
	Request *Request
}

// Plan is the answer to an OPENMANY.
type Plan struct {
	// Names is of how many paths, from the first on, it tells: fewer than asked where maxbytes was reached.
	Names  int
	Groups []*Group
	// Empty are files without data. Large are those that are read by other means, an OPEN, with their lengths: they have several
	// blocks, or more bytes than fit.
	Empty    []int
	Large    [][2]int64
	Problems []Problem
}

// planHead is the JSON at the beginning of a plan.
type planHead struct {
	Names    int         `json:"names"`
	Groups   []groupHead `json:"groups"`
	Empty    []int       `json:"empty"`
	Large    [][2]int64  `json:"large"`
	Problems []Problem   `json:"errors"`
}

// groupHead: behind the JSON follow, group by group, Files numbers of paths (4 bytes each) and Request bytes.
type groupHead struct {
	URL      string `json:"url"`
	Datanode string `json:"datanode"`
	Files    int    `json:"files"`
	Bytes    int64  `json:"bytes"`
	Request  int    `json:"request"`
}

// Encode is the plan's bytes: magic, length of the JSON, the JSON, and for each group its numbers and its request.
func (p *Plan) Encode() ([]byte, error) {
	head := planHead{Names: p.Names, Groups: make([]groupHead, len(p.Groups)), Empty: p.Empty, Large: p.Large, Problems: p.Problems}
	size := 0
	for i, g := range p.Groups {
		head.Groups[i] = groupHead{g.URL, g.Datanode, len(g.Files), g.Request.Bytes, len(g.Request.Encode())}
		size += 4*len(g.Files) + head.Groups[i].Request
	}
	text, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 8+len(text)+size), planMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	for _, g := range p.Groups {
		for _, f := range g.Files {
			b = binary.LittleEndian.AppendUint32(b, f)
		}
		b = append(b, g.Request.Encode()...)
	}
	return b, nil
}
