package security

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const secretBytes = 32

// Secret is what the servers of one cluster share. The zero value matches nothing.
type Secret struct {
	key  []byte
	file string // that it was read from
}

// NewSecret draws a secret.
func NewSecret() Secret {
	key := make([]byte, secretBytes)
	rand.Read(key) // never fails (crypto/rand)
	return Secret{key: key}
}

// File is where the secret was read from; empty when it was not.
func (s Secret) File() string { return s.file }

// CreateSecret draws a secret and stores it in a new file of mode 0600. fs.ErrExist: there is one already.
func CreateSecret(path string) (Secret, error) {
	s := NewSecret()
	s.file = path
	if err := s.store(path); err != nil {
		return Secret{}, err
	}
	return s, nil
}

func (s Secret) store(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cluster secret: %w", err)
	}
	_, err = f.WriteString(hex.EncodeToString(s.key) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cluster secret: %w", err)
	}
	return nil
}

// Reveal is the secret itself, for a machine that joins and whose servers sign, too.
func (s Secret) Reveal() []byte { return s.key }

// StoreSecret keeps a secret that was revealed to this machine in a new file of mode 0600. fs.ErrExist: there is one already.
func StoreSecret(path string, key []byte) error {
	if len(key) != secretBytes {
		return fmt.Errorf("cluster secret: %d bytes, want %d", len(key), secretBytes)
	}
	return Secret{key: key}.store(path)
}

// LoadSecret reads a secret's file, which nobody but its owner may read.
func LoadSecret(path string) (Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Secret{}, fmt.Errorf("cluster secret %s has mode %04o and others could read it: chmod 600 it", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("cluster secret: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != secretBytes {
		return Secret{}, fmt.Errorf("cluster secret %s is not %d bytes in hexadecimal", path, secretBytes)
	}
	return Secret{key, path}, nil
}

// LoadOrCreateSecret reads a secret's file, which it makes first if create is set and there is none.
func LoadOrCreateSecret(path string, create bool) (Secret, error) {
	s, err := LoadSecret(path)
	if err != nil && create && errors.Is(err, fs.ErrNotExist) {
		s, err = CreateSecret(path)
		if errors.Is(err, fs.ErrExist) { // another server of this machine was faster
			return LoadSecret(path)
		}
	}
	return s, err
}

// proof is what shows knowledge of the secret for one purpose without telling it.
func (s Secret) proof(purpose string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, s.key)
	io.WriteString(h, purpose)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// MAC is a keyed hash of the parts, one after the other, for a purpose of the caller's: who does not know the secret can
// neither make nor guess it.
func (s Secret) MAC(purpose string, parts ...[]byte) []byte { return s.proof("mac "+purpose, parts...) }

// ErrSealed means that something sealed does not open.
var ErrSealed = errors.New("it was changed, or moved here, or sealed by another cluster")

// Seal encrypts what only who knows the secret can open, for the same purpose and as the seal of the same thing: a nonce of 12
// bytes, and AES-256-GCM of the content (NIST SP 800-38D), which is SealOverhead bytes longer.
func (s Secret) Seal(purpose, of string, content []byte) []byte {
	nonce := make([]byte, sealNonce, SealOverhead+len(content))
	rand.Read(nonce) // never fails (crypto/rand)
	return s.aead(purpose).Seal(nonce, nonce, content, []byte(of))
}

// SealAlike is Seal, of which the same content gives the same: who sees two knows whether they are alike, and no more.
func (s Secret) SealAlike(purpose, of string, content []byte) []byte {
	nonce := make([]byte, sealNonce, SealOverhead+len(content))
	copy(nonce, s.MAC(purpose+" nonce", binary.AppendUvarint(nil, uint64(len(of))), []byte(of), content)) // no two contents of different things are one
	return s.aead(purpose).Seal(nonce, nonce, content, []byte(of))
}

// Open decrypts what Seal made. ErrSealed: it did not.
func (s Secret) Open(purpose, of string, sealed []byte) ([]byte, error) {
	if len(sealed) < SealOverhead {
		return nil, ErrSealed
	}
	content, err := s.aead(purpose).Open(nil, sealed[:sealNonce], sealed[sealNonce:], []byte(of))
	if err != nil { // which says nothing more
		return nil, ErrSealed
	}
	return content, nil
}

const (
	sealNonce = 12
	// SealOverhead is how many bytes a seal adds.
	SealOverhead = sealNonce + 16
)

func (s Secret) aead(purpose string) cipher.AEAD {
	block, err := aes.NewCipher(s.MAC(purpose)) // 32 bytes: AES-256
	if err != nil {
		panic(err) // the length is wrong
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return a
}
