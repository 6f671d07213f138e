package clientprotocol

import (
	"encoding/binary"
	"sync"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// tokenSize is the size of the TokenProto of a token.
func tokenSize(t *security.Token) int {
	n := delimitedSize(len(t.Identifier)) + delimitedSize(len(t.Password)) + 2 + 2
	if len(t.Identifier) > 0 {
		n += len(security.BlockTokenKind)
	}
	return n
}

// appendToken writes a field with a TokenProto. All its fields are required; an empty token has no kind. The service is
// empty, because a block has several datanodes.
func appendToken(to []byte, field int, t *security.Token) []byte {
	kind := ""
	if len(t.Identifier) > 0 {
		kind = security.BlockTokenKind
	}
	to = appendLength(to, field, tokenSize(t))
	to = append(appendLength(to, 1, len(t.Identifier)), t.Identifier...)
	to = append(appendLength(to, 2, len(t.Password)), t.Password...)
	to = appendText(to, 3, kind)
	return appendText(to, 4, "")
}

// node is an encoded DatanodeInfoProto with what clients need to reach a datanode: one per registration, shared by all
// answers.
func (e *encoder) node(n *namenode.Node) []byte {
	if b, ok := e.nodes.Load(n); ok {
		return b.([]byte)
	}
	m := datanodeInfo(n)
	b := make([]byte, m.SizeVT())
	_, _ = m.MarshalToSizedBufferVT(b) // its required fields are set
	e.nodes.Store(n, b)
	return b
}

// extendedSize is the size of the ExtendedBlockProto of a block.
func extendedSize(b *namenode.LocatedBlock, pool string) int {
	return delimitedSize(len(pool)) + 1 + varintSize(uint64(b.Block.ID)) + 1 + varintSize(uint64(b.Block.Generation)) +
		1 + varintSize(uint64(b.Block.Length))
}

// cached reports whether some datanode has a block in memory.
func cached(b *namenode.LocatedBlock) bool {
	for i := range b.Locations {
		if b.Locations[i].Cached {
			return true
		}
	}
	return false
}

// blockSize is the size of a LocatedBlockProto.
func (e *encoder) blockSize(b *namenode.LocatedBlock, pool string) int {
	n := delimitedSize(extendedSize(b, pool)) + 1 + varintSize(uint64(b.Offset)) + 2 + delimitedSize(tokenSize(&b.Token))
	for i := range b.Locations {
		l := &b.Locations[i]
		n += delimitedSize(len(e.node(l.Node))) + 1 + varintSize(uint64(storageType(l.Type))) + delimitedSize(len(l.Volume))
	}
	if cached(b) {
		n += delimitedSize(len(b.Locations))
	}
	if b.Units != nil {
		n += delimitedSize(len(b.Units))
		for i := range b.UnitTokens {
			n += delimitedSize(tokenSize(&b.UnitTokens[i]))
		}
	}
	return n
}

// appendBlock writes a field with a LocatedBlockProto. Its locs, storageTypes and storageIDs have equal length: clients
// index one by the other.
func (e *encoder) appendBlock(to []byte, field int, b *namenode.LocatedBlock, pool string) []byte {
	to = appendLength(to, field, e.blockSize(b, pool))
	to = appendLength(to, 1, extendedSize(b, pool))
	to = appendText(to, 1, pool)
	to = appendVarint(to, 2, uint64(b.Block.ID))
	to = appendVarint(to, 3, uint64(b.Block.Generation))
	to = appendVarint(to, 4, uint64(b.Block.Length))
	to = appendVarint(to, 2, uint64(b.Offset))
	for i := range b.Locations {
		node := e.node(b.Locations[i].Node)
		to = append(appendLength(to, 3, len(node)), node...)
	}
	to = appendBool(to, 4, b.Corrupt)
	to = appendToken(to, 5, &b.Token)
	if cached(b) { // a client takes what is missing for no
		to = appendLength(to, 6, len(b.Locations))
		for i := range b.Locations {
			value := byte(0)
			if b.Locations[i].Cached {
				value = 1
			}
			to = append(to, value)
		}
	}
	for i := range b.Locations {
		to = appendVarint(to, 7, uint64(storageType(b.Locations[i].Type)))
	}
	for i := range b.Locations {
		to = appendText(to, 8, string(b.Locations[i].Volume))
	}
	if b.Units != nil { // a LocatedStripedBlock
		to = append(appendLength(to, 9, len(b.Units)), b.Units...)
		for i := range b.UnitTokens {
			to = appendToken(to, 10, &b.UnitTokens[i])
		}
	}
	return to
}

// fileSize is the size of a LocatedBlocksProto.
func (e *encoder) fileSize(f *namenode.LocatedFile, pool string) int {
	n := 1 + varintSize(uint64(f.Length)) + 2 + 2
	for i := range f.Blocks {
		n += delimitedSize(e.blockSize(&f.Blocks[i], pool))
	}
	if f.Last != nil {
		n += delimitedSize(e.blockSize(f.Last, pool))
	}
	if f.Tails {
		n += 1 + varintSize(uint64(f.Status.MTime)) + 1 + varintSize(uint64(f.Status.ID))
	}
	return n + erasureSize(f.Status.Erasure)
}

// appendFile writes a field of size bytes with a LocatedBlocksProto.
func (e *encoder) appendFile(to []byte, field int, f *namenode.LocatedFile, pool string, size int) []byte {
	to = appendLength(to, field, size)
	to = appendVarint(to, 1, uint64(f.Length))
	for i := range f.Blocks {
		to = e.appendBlock(to, 2, &f.Blocks[i], pool)
	}
	to = appendBool(to, 3, f.UnderConstruction)
	if f.Last != nil {
		to = e.appendBlock(to, 4, f.Last, pool)
	}
	to = appendBool(to, 5, f.LastComplete)
	if f.Status.Erasure != 0 {
		to = appendErasure(append(to, 7<<3|2), f.Status.Erasure)
	}
	if f.Tails {
		to = appendVarint(to, 14, uint64(f.Status.MTime))
		to = appendVarint(to, 15, uint64(f.Status.ID))
	}
	return to
}

// erasureSize is the size of a field with the ErasureCodingPolicyProto of a policy that every HDFS has, behind its tag of one or, in field 17, two
// bytes; 0 where there is none. Of such policies only the number is sent, as HDFS does.
func erasureSize(id metadata.ErasurePolicyID) int {
	if id == 0 {
		return 0
	}
	return 1 + 1 + 1 + varintSize(uint64(id))
}

// appendErasure writes what is behind the tag.
func appendErasure(to []byte, id metadata.ErasurePolicyID) []byte {
	to = binary.AppendUvarint(to, uint64(1+varintSize(uint64(id))))
	return appendVarint(to, 4, uint64(id))
}

func appendBool(b []byte, field int, v bool) []byte {
	value := byte(0)
	if v {
		value = 1
	}
	return append(b, byte(field<<3), value)
}

// locationsAnswer is a GetBlockLocationsResponseProto.
type locationsAnswer struct {
	onlyAnswers
	encoder *encoder
	file    *namenode.LocatedFile
	pool    string
	size    int // of the file
}

var locationsAnswers = sync.Pool{New: func() any { return new(locationsAnswer) }}

func (a *locationsAnswer) SizeVT() int {
	a.size = a.encoder.fileSize(a.file, a.pool)
	return delimitedSize(a.size)
}

func (a *locationsAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	return whole(a.encoder.appendFile(to[:0], 1, a.file, a.pool, a.size), to, nil)
}

// blockAnswer is the answer of addBlock and its like, whose field 1 is a LocatedBlockProto.
type blockAnswer struct {
	onlyAnswers
	encoder *encoder
	block   *namenode.LocatedBlock
	pool    string
}

func (e *encoder) answer(b *namenode.LocatedBlock) *blockAnswer {
	return &blockAnswer{encoder: e, block: b, pool: *e.pool()}
}

func (a *blockAnswer) SizeVT() int { return delimitedSize(a.encoder.blockSize(a.block, a.pool)) }

func (a *blockAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	return whole(a.encoder.appendBlock(to[:0], 1, a.block, a.pool), to, nil)
}

// appendAnswer is an AppendResponseProto.
type appendAnswer struct {
	onlyAnswers
	encoder *encoder
	block   *namenode.LocatedBlock // nil: there is none
	status  *metadata.FileStatus
	pool    string
	size    int // of the status
}

func (a *appendAnswer) SizeVT() int {
	a.size = a.encoder.statusSize(a.status, &located{})
	n := delimitedSize(a.size)
	if a.block != nil {
		n += delimitedSize(a.encoder.blockSize(a.block, a.pool))
	}
	return n
}

func (a *appendAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	b := to[:0]
	if a.block != nil {
		b = a.encoder.appendBlock(b, 1, a.block, a.pool)
	}
	b = appendLength(b, 2, a.size)
	return whole(a.encoder.appendStatus(b, a.status, &located{}), to, nil)
}

// resultAnswer is the answer of the many methods whose field 1 is a boolean that says how it went.
type resultAnswer struct {
	onlyAnswers
	ok byte
}

// results are the two there are.
var results = [2]*resultAnswer{{ok: 0}, {ok: 1}}

func resultOf(ok bool) *resultAnswer {
	if ok {
		return results[1]
	}
	return results[0]
}

// GetResult is that of the messages whose form it has.
func (a *resultAnswer) GetResult() bool { return a.ok != 0 }

func (*resultAnswer) SizeVT() int { return 2 }

func (a *resultAnswer) MarshalToSizedBufferVT(to []byte) (int, error) {
	binary.BigEndian.PutUint16(to, 1<<3<<8|uint16(a.ok))
	return 2, nil
}
