package security

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // HMAC-SHA1, as Hadoop's balancer signs
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
)

// BlockTokenKind is Hadoop's name of the kind of token that block tokens are.
const BlockTokenKind = "HDFS_BLOCK_TOKEN"

// BlockMode is what may be done to a block, a set of bits.
type BlockMode uint8

// The modes, in the order of Hadoop's AccessMode: reading it; writing it, in every stage of a pipeline; having a datanode
// copy it to another one; having it moved.
const (
	ReadBlock BlockMode = 1 << iota
	WriteBlock
	CopyBlock
	ReplaceBlock
)

// modeNames are the modes' names in an identifier.
var modeNames = [...]string{"READ", "WRITE", "COPY", "REPLACE"}

func (m BlockMode) String() string {
	s := ""
	for i, name := range modeNames {
		if m&(1<<i) != 0 {
			if s != "" {
				s += ","
			}
			s += name
		}
	}
	return s
}

// BlockGrant is what a block token grants: to do something to one block. Whoever shows the token may; User is for whom it
// was signed.
type BlockGrant struct {
	User  string
	Pool  string
	Block metadata.BlockID
	Modes BlockMode
}

// Token is Hadoop's Token without kind and service. Clients carry it without looking into it.
type Token struct{ Identifier, Password []byte }

// Why a block token is refused. Other reasons than ErrBlockKey are for the client, which asks the namenode for the
// block's locations, and a token with them, again.
var (
	ErrBlockToken = errors.New("block token refused")
	// ErrBlockKey: the token may be good, but its key is newer than those known here.
	ErrBlockKey = errors.New("the block token's key is not known here yet")
)

func refused(reason string) error { return fmt.Errorf("%w: %s", ErrBlockToken, reason) }

// BlockKeys are the keys of a cluster that sign and check block tokens, as of one moment. They do not change. The zero
// value and nil know no key: they sign nothing and check nothing.
//
// A password is the HMAC-SHA256 of the identifier. Hadoop's datanodes take HMAC-SHA1, but it is theirs alone to judge, so
// a better hash costs no compatibility; it is not cut, because 12 bytes less in an answer are not felt.
type BlockKeys struct {
	keys    []*blockKey // by id, ascending
	current *blockKey   // signs
}

type blockKey struct {
	id int32
	// move is the key of balancers that is made of this one (MoveKey).
	move        []byte
	macs, moves macs
}

// macs are MACs under one key.
type macs struct{ pool sync.Pool } // of hash.Hash

// sum appends the MAC of data.
func (m *macs) sum(to, data []byte) []byte {
	h := m.pool.Get().(hash.Hash)
	defer m.pool.Put(h)
	h.Reset()
	h.Write(data)
	return h.Sum(to)
}

// BlockKey is one key, derived from its seed.
type BlockKey struct {
	ID  int32
	Key []byte
}

// DeriveBlockKeys derives keys from their seeds. Seeds alone are of no use: not in a backup of the namespace, nor to who reads the log.
func (s Secret) DeriveBlockKeys(seeds []metadata.BlockKey) []BlockKey {
	var out []BlockKey
	for _, k := range seeds {
		out = append(out, BlockKey{k.ID, s.MAC("block token", []byte(string(k.Seed)))})
	}
	return out
}

// NewBlockKeys are keys given with ascending ids. The last but one signs, a single one too: the last is the next to sign, and is told
// everybody long before.
func NewBlockKeys(keys []BlockKey) *BlockKeys {
	out := &BlockKeys{}
	for _, k := range keys {
		b := &blockKey{id: k.ID}
		b.macs.pool.New = func() any { return hmac.New(sha256.New, k.Key) }
		b.move = b.macs.sum(nil, []byte(movePurpose))
		b.moves.pool.New = func() any { return hmac.New(sha1.New, b.move) }
		out.keys = append(out.keys, b)
	}
	if n := len(out.keys); n > 0 {
		out.current = out.keys[max(n-2, 0)]
	}
	return out
}

// movePurpose is of what the keys of balancers are made under block keys. It is the identifier of no token.
const movePurpose = "moves of blocks"

// MoveKey is what Hadoop's balancer is given in place of the key that signs: another one, made of that, under its negative id. What it signs, as Hadoop does by HMAC-SHA1, is
// good for having a replica moved to another datanode, and for nothing else: who has it can neither read a block nor write any. False: there is none.
func (k *BlockKeys) MoveKey() (BlockKey, bool) {
	if k == nil || k.current == nil {
		return BlockKey{}, false
	}
	return BlockKey{-k.current.id, k.current.move}, true
}

// BlockKeys derives keys, given with ascending ids, from their seeds.
func (s Secret) BlockKeys(keys []metadata.BlockKey) *BlockKeys {
	return NewBlockKeys(s.DeriveBlockKeys(keys))
}

// String says how many keys there are and which signs.
func (k *BlockKeys) String() string {
	if k == nil || k.current == nil {
		return "no block keys"
	}
	return fmt.Sprintf("%d block keys, %d signs", len(k.keys), k.current.id)
}

// GoString is String.
func (k *BlockKeys) GoString() string { return k.String() }

// Newest is the greatest id of a key, 0 if there is none.
func (k *BlockKeys) Newest() int32 {
	if k == nil || len(k.keys) == 0 {
		return 0
	}
	return k.keys[len(k.keys)-1].id
}

// Sign makes a token that is good until expires. Without a key it is empty.
func (k *BlockKeys) Sign(g BlockGrant, expires time.Time) Token {
	if k == nil || k.current == nil {
		return Token{}
	}
	b := make([]byte, 0, 64+len(g.User)+len(g.Pool)+sha256.Size)
	b = appendIdentifier(b, g, expires.UnixMilli(), k.current.id)
	n := len(b)
	b = k.current.macs.sum(b, b)
	return Token{Identifier: b[:n:n], Password: b[n:]}
}

// Check lets the bearer of a token do mode to a block, or says why not: ErrBlockKey, else ErrBlockToken. The reasons tell
// nothing that the token's bearer does not know.
func (k *BlockKeys) Check(t Token, pool string, block metadata.BlockID, mode BlockMode, now time.Time) error {
	if len(t.Identifier) == 0 {
		return refused("the request carries none; the namenode gives one with the block's locations")
	}
	id, err := parseIdentifier(t.Identifier)
	if err != nil {
		return refused("its identifier cannot be read: " + err.Error())
	}
	macs, err := k.of(id.key)
	if err != nil {
		return err
	}
	if id.key < 0 {
		id.modes &= ReplaceBlock
	}
	var room [sha256.Size]byte
	if !hmac.Equal(macs.sum(room[:0], t.Identifier), t.Password) {
		return refused("its password is wrong")
	}
	switch {
	case now.UnixMilli() > id.expires:
		return refused("it has expired; ask the namenode for the block's locations again")
	case string(id.pool) != pool:
		return refused("it is for a block of another pool")
	case id.block != int64(block):
		return refused("it is for another block")
	case id.modes&mode != mode:
		return refused(fmt.Sprintf("it allows %v, not %v", id.modes, mode))
	}
	return nil
}

// BlockUser is whom a block token was made for, if Check has let its bearer do something.
func BlockUser(t Token) string {
	id, err := parseIdentifier(t.Identifier)
	if err != nil {
		return ""
	}
	return string(id.user)
}

// Password is that of the token with an identifier, as long as it is good, for who proves it without showing it. Errors are those of
// Check.
func (k *BlockKeys) Password(identifier []byte, now time.Time) ([]byte, error) {
	id, err := parseIdentifier(identifier)
	if err != nil {
		return nil, refused("its identifier cannot be read: " + err.Error())
	}
	macs, err := k.of(id.key)
	if err != nil {
		return nil, err
	}
	if now.UnixMilli() > id.expires {
		return nil, refused("it has expired; ask the namenode for the block's locations again")
	}
	return macs.sum(nil, identifier), nil
}

// of are the MACs under the key with an id, a negative one of which is that of a balancer's. Errors: ErrBlockKey when the key is newer than those known here, else ErrBlockToken.
func (k *BlockKeys) of(id int32) (*macs, error) {
	n := id
	if id < 0 {
		n = -id
	}
	key := k.find(n)
	switch {
	case key == nil && n > k.Newest():
		return nil, ErrBlockKey
	case key == nil:
		return nil, refused("its key is no longer in use; ask the namenode for the block's locations again")
	case id < 0:
		return &key.moves, nil
	}
	return &key.macs, nil
}

// encryptionPurpose is in front of nonces, so that no key of data encryption is the password of a token.
const encryptionPurpose = "data encryption "

// EncryptionKey is the key with which data goes encrypted between who has the nonce from a namenode and datanodes, under one of the keys.
// 0 is the one that signs; its id is returned. Errors: ErrBlockKey when the key is newer than those known here, else ErrBlockToken.
func (k *BlockKeys) EncryptionKey(id int32, nonce []byte) ([]byte, int32, error) {
	if id == 0 && k != nil && k.current != nil {
		id = k.current.id
	}
	macs, err := k.of(id)
	if err != nil {
		return nil, id, err
	}
	if id > 0 { // a balancer makes its keys itself, as Hadoop does
		nonce = append([]byte(encryptionPurpose), nonce...)
	}
	return macs.sum(nil, nonce), id, nil
}

func (k *BlockKeys) find(id int32) *blockKey {
	if k == nil {
		return nil
	}
	for i := len(k.keys) - 1; i >= 0; i-- {
		if k.keys[i].id == id {
			return k.keys[i]
		}
	}
	return nil
}

// identifier is a decoded BlockTokenIdentifier; the bytes are those it was decoded from.
type identifier struct {
	expires    int64 // milliseconds since 1970
	key        int32
	user, pool []byte
	block      int64
	modes      BlockMode
}

// appendIdentifier writes Hadoop's BlockTokenIdentifier, in the form of a Writable:
//
//	expires  vlong
//	key      vint
//	user     length (4 bytes), bytes
//	pool     length (4 bytes), bytes
//	block    vlong
//	modes    vint of how many, then of each the vint of its name's length and the name
//	0, 0     storage types and storage ids, vint of how many: a token is for a block, wherever it lies
//
// The vint is Hadoop's (WritableUtils.writeVLong), which the first byte of an identifier tells from a protobuf.
func appendIdentifier(to []byte, g BlockGrant, expires int64, key int32) []byte {
	to = AppendVLong(to, expires)
	to = AppendVLong(to, int64(key))
	to = append(binary.BigEndian.AppendUint32(to, uint32(len(g.User))), g.User...)
	to = append(binary.BigEndian.AppendUint32(to, uint32(len(g.Pool))), g.Pool...)
	to = AppendVLong(to, int64(g.Block))
	n := int64(0)
	for i := range modeNames {
		n += int64(g.Modes >> i & 1)
	}
	to = AppendVLong(to, n)
	for i, name := range modeNames {
		if g.Modes>>i&1 != 0 {
			to = append(AppendVLong(to, int64(len(name))), name...)
		}
	}
	return append(to, 0, 0)
}

var errIdentifier = errors.New("it is not a block token's")

// parseIdentifier reads what appendIdentifier writes, and the storage types, storage ids and handshake message that
// Hadoop's namenodes put behind it, which mean nothing here.
func parseIdentifier(b []byte) (identifier, error) {
	c := cursor{rest: b}
	id := identifier{expires: c.vlong(), key: c.vint(), user: c.user(), pool: c.take(c.uint32()), block: c.vlong()}
	for range c.count(int32(len(modeNames))) {
		id.modes |= modeOf(c.take(int64(c.vint())))
	}
	for range c.count(maxStorages) {
		c.take(int64(c.vint()))
	}
	for range c.count(maxStorages) {
		c.take(c.uint32())
	}
	if len(c.rest) > 0 {
		c.take(int64(c.vint()))
	}
	if c.bad || len(c.rest) > 0 {
		return identifier{}, errIdentifier
	}
	return id, nil
}

// maxStorages is how many storages an identifier may name, more than a block can have replicas.
const maxStorages = 1024

// modeOf is a mode by its name; a name that is not known allows nothing.
func modeOf(name []byte) BlockMode {
	for i, known := range modeNames {
		if string(name) == known {
			return 1 << i
		}
	}
	return 0
}

// AppendVLong writes a number as Hadoop's WritableUtils does: one byte from -112 to 127; else one that says the sign and how many
// bytes follow, the greatest first.
func AppendVLong(to []byte, v int64) []byte {
	if v >= -112 && v <= 127 {
		return append(to, byte(v))
	}
	head := int8(-112)
	if v < 0 {
		v, head = ^v, -120
	}
	n := 1
	for v>>(8*n) != 0 && n < 8 {
		n++
	}
	to = append(to, byte(head-int8(n)))
	for n--; n >= 0; n-- {
		to = append(to, byte(v>>(8*n)))
	}
	return to
}

// cursor reads an identifier; after the first mistake it is bad and gives zeros.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) take(n int64) []byte {
	if c.bad || n < 0 || n > int64(len(c.rest)) {
		c.bad, c.rest = true, nil
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

// user reads the name of a user. Hadoop's balancer signs for none, and writes a length of -1.
func (c *cursor) user() []byte {
	n := c.uint32()
	if n == -1 {
		return nil
	}
	return c.take(n)
}

func (c *cursor) uint32() int64 {
	if b := c.take(4); b != nil {
		return int64(int32(binary.BigEndian.Uint32(b)))
	}
	return -1
}

func (c *cursor) vlong() int64 {
	b := c.take(1)
	if b == nil {
		return 0
	}
	head := int8(b[0])
	if head >= -112 {
		return int64(head)
	}
	n, negative := -112-int64(head), false
	if head < -120 {
		n, negative = -120-int64(head), true
	}
	var v int64
	for _, x := range c.take(n) {
		v = v<<8 | int64(x)
	}
	if negative {
		v = ^v
	}
	return v
}

func (c *cursor) vint() int32 {
	v := c.vlong()
	if v != int64(int32(v)) {
		c.bad, c.rest = true, nil
		return 0
	}
	return int32(v)
}

// count reads how many of something follow, limit at most.
func (c *cursor) count(limit int32) int32 {
	n := c.vint()
	if n < 0 || n > limit {
		c.bad, c.rest = true, nil
		return 0
	}
	return n
}
