// Package backup is the format of the files of `hops cluster backup`: pieces, each with a tag by which a changed, cut off or
// reordered file is found, encrypted with a key that follows from a passphrase if there is one.
//
//	"hopsBKP1" | length of the head, 4 bytes | head, JSON | pieces
//	a piece: length, 4 bytes, the highest bit of the last one set | AES-256-GCM of up to 64 KiB
//
// Numbers are big endian. The nonce of a piece is its number, from 0; what is authenticated beside it is all before the first piece
// and the length. The key is scrypt's (RFC 7914) of the passphrase; without one it stands in the head, and the tags are checksums alone.
package backup

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/scrypt"
)

const (
	magic    = "hopsBKP1"
	pieceMax = 64 << 10
	last     = 1 << 31
	headMax  = 4 << 10
	keySize  = 32
	// Cost of a key: 64 MiB and about a tenth of a second.
	costN, costR, costP = 1 << 16, 8, 1
)

// Errors of New and Open.
var (
	// ErrEncrypted: the backup needs a passphrase.
	ErrEncrypted = errors.New("the backup is encrypted: give the passphrase with --key")
	// ErrKey: the passphrase is not the one that the backup was made with, or its first piece is damaged.
	ErrKey = errors.New("the passphrase is not that of the backup, or the backup is damaged")
	// ErrDamaged: it is no backup any more.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrCut: the end is missing.
	ErrCut = errors.New("the backup is cut off")
)

// head says how the key comes about: one of the two is there.
type head struct {
	Salt []byte `json:"salt,omitempty"`
	Key  []byte `json:"key,omitempty"`
}

func seal(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Writer writes a backup.
type Writer struct {
	w      io.Writer
	aead   cipher.AEAD
	before []byte
	number uint64
	piece  []byte
}

// New begins a backup that is encrypted with a passphrase; none: it is not encrypted.
func New(w io.Writer, passphrase []byte) (*Writer, error) {
	random := make([]byte, keySize)
	rand.Read(random) // never fails (crypto/rand)
	h, key, err := head{Key: random}, random, error(nil)
	if len(passphrase) > 0 {
		h = head{Salt: random}
		if key, err = scrypt.Key(passphrase, random, costN, costR, costP, keySize); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	before := append(binary.BigEndian.AppendUint32([]byte(magic), uint32(len(text))), text...)
	aead, err := seal(key)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(before)
	return &Writer{w: w, aead: aead, before: before}, err
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(w.piece) == pieceMax {
			if err := w.flush(0); err != nil {
				return 0, err
			}
		}
		take := min(len(p), pieceMax-len(w.piece))
		w.piece, p = append(w.piece, p[:take]...), p[take:]
	}
	return n, nil
}

// Close writes the last piece. It does not close what the backup is written to.
func (w *Writer) Close() error { return w.flush(last) }

func (w *Writer) flush(mark uint32) error {
	length := binary.BigEndian.AppendUint32(nil, uint32(len(w.piece)+w.aead.Overhead())|mark)
	_, err := w.w.Write(w.aead.Seal(length, nonce(w.number), w.piece, append(bytes.Clone(w.before), length...)))
	w.number, w.piece = w.number+1, w.piece[:0]
	return err
}

func nonce(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4), n) }

// Reader reads a backup. What it returns is what was written; io.EOF says that it was all.
type Reader struct {
	r      io.Reader
	aead   cipher.AEAD
	before []byte
	number uint64
	piece  []byte
	err    error
}

// Open begins to read a backup.
func Open(r io.Reader, passphrase []byte) (*Reader, error) {
	before := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, before); err != nil {
		return nil, cut(err)
	}
	size := binary.BigEndian.Uint32(before[len(magic):])
	if string(before[:len(magic)]) != magic || size > headMax {
		return nil, errors.New("this is no backup of `hops cluster backup`")
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, cut(err)
	}
	var h head
	if err := json.Unmarshal(text, &h); err != nil || (len(h.Key) == keySize) == (len(h.Salt) == keySize) {
		return nil, fmt.Errorf("%w: its head does not say how it is encrypted", ErrDamaged)
	}
	key := h.Key
	switch {
	case len(h.Salt) > 0 && len(passphrase) == 0:
		return nil, ErrEncrypted
	case len(h.Salt) > 0:
		var err error
		if key, err = scrypt.Key(passphrase, h.Salt, costN, costR, costP, keySize); err != nil {
			return nil, err
		}
	case len(passphrase) > 0:
		return nil, errors.New("the backup is not encrypted: leave --key out if it is yours all the same")
	}
	aead, err := seal(key)
	return &Reader{r: r, aead: aead, before: append(before, text...)}, err
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 && r.err == nil {
		r.next()
	}
	if len(r.piece) == 0 {
		return 0, r.err
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// next reads a piece.
func (r *Reader) next() {
	length := make([]byte, 4)
	if _, err := io.ReadFull(r.r, length); err != nil {
		r.err = cut(err)
		return
	}
	size := binary.BigEndian.Uint32(length)
	n := int(size &^ last)
	if n < r.aead.Overhead() || n > pieceMax+r.aead.Overhead() {
		r.err = fmt.Errorf("%w: a piece of %d bytes", ErrDamaged, n)
		return
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r.r, text); err != nil {
		r.err = cut(err)
		return
	}
	piece, err := r.aead.Open(text[:0], nonce(r.number), text, append(bytes.Clone(r.before), length...))
	if err != nil {
		if r.err = ErrDamaged; r.number == 0 {
			r.err = ErrKey
		}
		return
	}
	r.piece, r.number = piece, r.number+1
	if size&last == 0 {
		return
	}
	r.err = io.EOF
	if n, err := io.ReadFull(r.r, length[:1]); n > 0 || !errors.Is(err, io.EOF) {
		r.piece, r.err = nil, fmt.Errorf("%w: something follows its end", ErrDamaged)
	}
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCut
	}
	return err
}
