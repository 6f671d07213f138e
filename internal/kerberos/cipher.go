package kerberos

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
)

// enctype is an encryption type of RFC 3962 or RFC 8009.
type enctype struct {
	id       int32
	name     string
	key, mac int   // their sizes in bytes
	integer  int   // size of the keys of checksums and MACs, in bytes
	checksum int32 // type of its checksums
	hash     func() hash.Hash
	sha2     bool // derivation and order of RFC 8009
}

var enctypes = []enctype{
	{id: 17, name: "aes128-cts-hmac-sha1-96", key: 16, mac: 12, integer: 16, checksum: 15, hash: sha1.New},
	{id: 18, name: "aes256-cts-hmac-sha1-96", key: 32, mac: 12, integer: 32, checksum: 16, hash: sha1.New},
	{id: 19, name: "aes128-cts-hmac-sha256-128", key: 16, mac: 16, integer: 16, checksum: 19, hash: sha256.New, sha2: true},
	{id: 20, name: "aes256-cts-hmac-sha384-192", key: 32, mac: 24, integer: 24, checksum: 20, hash: sha512.New384, sha2: true},
}

// weak are encryption types that others still know, for messages.
var weak = map[int32]string{1: "des-cbc-crc", 3: "des-cbc-md5", 16: "des3-cbc-sha1", 23: "arcfour-hmac", 25: "camellia128-cts-cmac", 26: "camellia256-cts-cmac"}

func enctypeName(id int32) string {
	for _, e := range enctypes {
		if e.id == id {
			return e.name
		}
	}
	if name, ok := weak[id]; ok {
		return name
	}
	return fmt.Sprintf("encryption type %d", id)
}

// key of an encryption type.
type key struct {
	*enctype
	value []byte
}

func newKey(id int32, value []byte) (key, error) {
	for i := range enctypes {
		if e := &enctypes[i]; e.id == id {
			if len(value) != e.key {
				return key{}, fmt.Errorf("a key of %s has %d bytes, not %d", e.name, e.key, len(value))
			}
			return key{e, value}, nil
		}
	}
	return key{}, fmt.Errorf("%s is not supported: only AES is (aes128-cts, aes256-cts)", enctypeName(id))
}

// randomKey draws a key of the same type.
func (k key) randomKey() key {
	value := make([]byte, k.key)
	rand.Read(value) // never fails
	return key{k.enctype, value}
}

// usageKey is a key for one usage (RFC 3961, section 3; the numbers are in RFC 4120, section 7.5.1, and RFC 4121, section 2).
type usageKey struct {
	*enctype
	block     cipher.Block
	integrity []byte // of encrypted messages
	sum       []byte // of checksums
}

func (k key) usage(number uint32) *usageKey {
	block, err := aes.NewCipher(k.derive(number, 0xAA, k.key))
	if err != nil {
		panic(err) // the size is that of the type
	}
	return &usageKey{k.enctype, block, k.derive(number, 0x55, k.integer), k.derive(number, 0x99, k.integer)}
}

// derive is DK of RFC 3961 or KDF-HMAC-SHA2 of RFC 8009.
func (k key) derive(number uint32, kind byte, size int) []byte {
	constant := append(binary.BigEndian.AppendUint32(nil, number), kind)
	if k.sha2 {
		h := hmac.New(k.hash, k.value)
		h.Write([]byte{0, 0, 0, 1})
		h.Write(constant)
		h.Write([]byte{0})
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(size)*8))
		return h.Sum(nil)[:size]
	}
	block, err := aes.NewCipher(k.value)
	if err != nil {
		panic(err) // the size is that of the type
	}
	var out []byte
	last := fold(constant, aes.BlockSize)
	for len(out) < size {
		next := make([]byte, aes.BlockSize)
		block.Encrypt(next, last)
		out, last = append(out, next...), next
	}
	return out[:size]
}

// fold is n-fold of RFC 3961, section 5.1, to size bytes.
func fold(in []byte, size int) []byte {
	common := size * len(in) / gcd(size, len(in))
	out := make([]byte, size)
	bits := len(in) * 8
	carry := 0
	for i := common - 1; i >= 0; i-- {
		// Each repetition of in is turned 13 bits further right.
		at := (bits - 1 + (bits+13)*(i/len(in)) + (len(in)-i%len(in))*8) % bits
		high, low := in[(len(in)-1-at/8+len(in))%len(in)], in[(len(in)-at/8)%len(in)]
		carry += int((uint16(high)<<8|uint16(low))>>(uint(at%8)+1)) & 0xff
		carry += int(out[i%size])
		out[i%size] = byte(carry)
		carry >>= 8
	}
	for i := size - 1; carry != 0; i-- {
		carry += int(out[(i+size)%size])
		out[(i+size)%size] = byte(carry)
		carry >>= 8
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mac is the HMAC of the parts.
func (u *usageKey) macOf(with []byte, parts ...[]byte) []byte {
	h := hmac.New(u.hash, with)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)[:u.enctype.mac]
}

// checksumOf is the keyed checksum of the parts, one after the other.
func (u *usageKey) checksumOf(parts ...[]byte) []byte { return u.macOf(u.sum, parts...) }

var zeroIV [aes.BlockSize]byte

// overhead is by how much an encrypted message is longer than its plaintext, in bytes.
func (e *enctype) overhead() int { return aes.BlockSize + e.mac }

// encrypt appends the encryption of the parts, one after the other, to dst.
func (u *usageKey) encrypt(dst []byte, parts ...[]byte) []byte {
	start := len(dst)
	var confounder [aes.BlockSize]byte
	rand.Read(confounder[:]) // never fails
	dst = append(dst, confounder[:]...)
	for _, p := range parts {
		dst = append(dst, p...)
	}
	plain := dst[start:]
	if u.sha2 {
		encryptCTS(u.block, plain)
		return append(dst, u.macOf(u.integrity, zeroIV[:], plain)...)
	}
	sum := u.macOf(u.integrity, plain)
	encryptCTS(u.block, plain)
	return append(dst, sum...)
}

// errSealed: a message was not encrypted with this key, or was changed.
var errSealed = errors.New("it was not encrypted with this key, or was changed on the way")

// decrypt opens a message, in place: the plaintext is a part of sealed.
func (u *usageKey) decrypt(sealed []byte) ([]byte, error) {
	if len(sealed) < u.overhead() {
		return nil, fmt.Errorf("an encrypted message of %d bytes is too short", len(sealed))
	}
	body, sum := sealed[:len(sealed)-u.enctype.mac], sealed[len(sealed)-u.enctype.mac:]
	if u.sha2 {
		if !hmac.Equal(sum, u.macOf(u.integrity, zeroIV[:], body)) {
			return nil, errSealed
		}
		decryptCTS(u.block, body)
		return body[aes.BlockSize:], nil
	}
	decryptCTS(u.block, body)
	if !hmac.Equal(sum, u.macOf(u.integrity, body)) {
		return nil, errSealed
	}
	return body[aes.BlockSize:], nil
}

// encryptCTS is CBC with ciphertext stealing and a zero vector, in place (RFC 3962, section 5). data has one block at least.
func encryptCTS(block cipher.Block, data []byte) {
	const size = aes.BlockSize
	cbc := cipher.NewCBCEncrypter(block, zeroIV[:])
	if len(data) == size {
		cbc.CryptBlocks(data, data)
		return
	}
	tail := (len(data)-1)%size + 1 // bytes of the last block
	head := data[:len(data)-tail]
	cbc.CryptBlocks(head, head)
	var last [size]byte
	copy(last[:], data[len(head):])
	cbc.CryptBlocks(last[:], last[:])
	before := head[len(head)-size:]
	copy(data[len(head):], before)
	copy(before, last[:])
}

// decryptCTS undoes encryptCTS.
func decryptCTS(block cipher.Block, data []byte) {
	const size = aes.BlockSize
	if len(data) == size {
		cipher.NewCBCDecrypter(block, zeroIV[:]).CryptBlocks(data, data)
		return
	}
	tail := (len(data)-1)%size + 1
	at := len(data) - tail - size // the block before the last
	var last, plain [size]byte
	block.Decrypt(plain[:], data[at:at+size])
	copy(last[:], data[at+size:])
	copy(last[tail:], plain[tail:]) // what was stolen
	for i := range tail {
		plain[i] ^= last[i]
	}
	vector := zeroIV
	if at > 0 {
		copy(vector[:], data[at-size:at])
		cipher.NewCBCDecrypter(block, zeroIV[:]).CryptBlocks(data[:at], data[:at])
	}
	cipher.NewCBCDecrypter(block, vector[:]).CryptBlocks(data[at:at+size], last[:])
	copy(data[at+size:], plain[:tail])
}
