package sasl

import (
	"crypto/cipher"
	"crypto/des" //nolint:gosec // what RFC 2831 has
	"crypto/hmac"
	"crypto/md5"
	"crypto/rc4" //nolint:gosec // what RFC 2831 has
	"encoding/binary"
	"fmt"
	"hash"
)

// cipherNames are the ciphers of auth-conf, the preferred one first.
var cipherNames = []string{"rc4", "3des"}

const (
	macBytes     = 10 // of an HMAC-MD5
	trailerBytes = 6  // the type of a message, 1, in two bytes; its number in four
	messageType  = 1
)

// layer makes what protects the messages after an exchange; nil for auth.
func (s *session) layer(cipherName string, acceptor bool) (Layer, error) {
	if s.quality == Authentication {
		return nil, nil
	}
	out, in := "client-to-server", "server-to-client"
	if acceptor {
		out, in = in, out
	}
	l := &digestLayer{send: s.direction(out), receive: s.direction(in)}
	if s.quality == Integrity {
		return l, nil
	}
	seal := func(direction string) []byte {
		key := md5.Sum(append(s.a1[:len(s.a1):len(s.a1)], ("Digest H(A1) to " + direction + " sealing key magic constant")...))
		return key[:]
	}
	switch cipherName {
	case "rc4":
		send, err1 := rc4.NewCipher(seal(out))
		receive, err2 := rc4.NewCipher(seal(in))
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("rc4: %w %w", err1, err2) // impossible: the key has 16 bytes
		}
		l.send.stream, l.receive.stream = send, receive
	case "3des":
		for d, key := range map[*direction][]byte{&l.send: seal(out), &l.receive: seal(in)} {
			block, err := des.NewTripleDESCipher(tripleKey(key))
			if err != nil {
				return nil, fmt.Errorf("3des: %w", err) // impossible: the key has 24 bytes
			}
			iv := key[len(key)-des.BlockSize:]
			if d == &l.send {
				d.block = cipher.NewCBCEncrypter(block, iv)
			} else {
				d.block = cipher.NewCBCDecrypter(block, iv)
			}
		}
	default:
		return nil, fmt.Errorf("%w: cipher %q is asked for, %q are offered", ErrQuality, cipherName, cipherNames)
	}
	return l, nil
}

// tripleKey makes the three keys of 3DES from the first 14 of 16 bytes: the third is the first once more (RFC 2831 2.4).
func tripleKey(key []byte) []byte {
	first, second := desKey(key[:7]), desKey(key[7:14])
	return append(append(append([]byte(nil), first...), second...), first...)
}

// desKey spreads 56 bits over eight bytes, whose lowest bits are parity, which nobody looks at.
func desKey(b []byte) []byte {
	var v uint64
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	key := make([]byte, 8)
	for i := range key {
		key[i] = byte(v>>(49-7*i)) << 1
	}
	return key
}

func (s *session) direction(name string) direction {
	key := md5.Sum(append(s.a1[:len(s.a1):len(s.a1)], ("Digest session key to " + name + " signing key magic constant")...))
	return direction{mac: hmac.New(md5.New, key[:])}
}

// direction protects the messages that go one way.
type direction struct {
	number uint32
	mac    hash.Hash
	stream cipher.Stream    // auth-conf with rc4
	block  cipher.BlockMode // auth-conf with 3des
}

// sum is the authentication code of the direction's next message.
func (d *direction) sum(p []byte) []byte {
	d.mac.Reset()
	d.mac.Write(binary.BigEndian.AppendUint32(nil, d.number))
	d.mac.Write(p)
	return d.mac.Sum(nil)[:macBytes]
}

// IsPrivate reports whether nobody else can read what a layer of DIGEST-MD5 wraps.
func IsPrivate(l Layer) bool {
	d, ok := l.(*digestLayer)
	return ok && (d.send.stream != nil || d.send.block != nil)
}

// digestLayer is RFC 2831 2.3 and 2.4: message, code, type and number; with a cipher the message, its padding and the code are
// sealed.
type digestLayer struct{ send, receive direction }

// Wrap implements Layer.
func (l *digestLayer) Wrap(p []byte) ([]byte, error) {
	d := &l.send
	out := make([]byte, 0, len(p)+des.BlockSize+macBytes+trailerBytes)
	out = append(out, p...)
	if d.block != nil {
		pad := des.BlockSize - (len(p)+macBytes)%des.BlockSize
		for range pad {
			out = append(out, byte(pad))
		}
	}
	out = append(out, d.sum(p)...)
	switch {
	case d.stream != nil:
		d.stream.XORKeyStream(out, out)
	case d.block != nil:
		d.block.CryptBlocks(out, out)
	}
	out = binary.BigEndian.AppendUint16(out, messageType)
	out = binary.BigEndian.AppendUint32(out, d.number)
	d.number++
	return out, nil
}

// Unwrap implements Layer. What it returns is new memory.
func (l *digestLayer) Unwrap(p []byte) ([]byte, error) {
	d := &l.receive
	if len(p) < macBytes+trailerBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrLayer, len(p))
	}
	body, trailer := p[:len(p)-trailerBytes], p[len(p)-trailerBytes:]
	if binary.BigEndian.Uint16(trailer) != messageType || binary.BigEndian.Uint32(trailer[2:]) != d.number {
		return nil, fmt.Errorf("%w: it is not number %d", ErrLayer, d.number)
	}
	body = append([]byte(nil), body...)
	switch {
	case d.stream != nil:
		d.stream.XORKeyStream(body, body)
	case d.block != nil:
		if len(body)%des.BlockSize != 0 {
			return nil, fmt.Errorf("%w: %d bytes are no blocks of 3DES", ErrLayer, len(body))
		}
		d.block.CryptBlocks(body, body)
	}
	message, code := body[:len(body)-macBytes], body[len(body)-macBytes:]
	// A wrong padding is found out after the code was checked over something: neither the error nor the time tells which it was.
	good := true
	if d.block != nil {
		pad := 0
		if len(message) > 0 {
			pad = int(message[len(message)-1])
		}
		if pad == 0 || pad > des.BlockSize || pad > len(message) {
			pad, good = 0, false
		}
		message = message[:len(message)-pad]
	}
	if !hmac.Equal(d.sum(message), code) || !good {
		return nil, ErrLayer
	}
	d.number++
	return message, nil
}
