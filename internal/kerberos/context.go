package kerberos

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
)

// Kinds of tokens of messages, flags in them (RFC 4121, section 4.2), and the numbers of their keys (section 2).
const (
	tokenWrap = 0x0504

	fromAcceptor = 1
	sealed       = 2
	withSubkey   = 4

	usageAcceptorSeal  = 22
	usageInitiatorSeal = 24

	wrapHeader = 16
)

// gssContext is what both ends know after an exchange: it protects messages. One goroutine at a time may wrap, and one unwrap.
type gssContext struct {
	peer Principal
	// subkey: the key is the acceptor's.
	subkey, acceptor bool
	send, receive    *usageKey
	sent, received   uint64 // the numbers of the next messages
}

// newContext makes one of a key and the numbers of the first messages.
func newContext(peer Principal, k key, subkey, acceptor bool, sent, received uint32) *gssContext {
	c := &gssContext{peer: peer, subkey: subkey, acceptor: acceptor, sent: uint64(sent), received: uint64(received)}
	c.send, c.receive = k.usage(usageInitiatorSeal), k.usage(usageAcceptorSeal)
	if acceptor {
		c.send, c.receive = c.receive, c.send
	}
	return c
}

func (c *gssContext) flags(acceptor, confidential bool) byte {
	var f byte
	if acceptor {
		f |= fromAcceptor
	}
	if confidential {
		f |= sealed
	}
	if c.subkey {
		f |= withSubkey
	}
	return f
}

func header(flags byte, extra, rotation uint16, number uint64) []byte {
	h := make([]byte, 0, wrapHeader)
	h = binary.BigEndian.AppendUint16(h, tokenWrap)
	h = append(h, flags, 0xff)
	h = binary.BigEndian.AppendUint16(h, extra)
	h = binary.BigEndian.AppendUint16(h, rotation)
	return binary.BigEndian.AppendUint64(h, number)
}

// wrap protects a message (RFC 4121, section 4.2.4).
func (c *gssContext) wrap(p []byte, confidential bool) []byte {
	flags := c.flags(c.acceptor, confidential)
	number := c.sent
	c.sent++
	if confidential {
		h := header(flags, 0, 0, number)
		out := make([]byte, 0, wrapHeader+len(p)+wrapHeader+c.send.overhead())
		return c.send.encrypt(append(out, h...), p, h)
	}
	sum := c.send.checksumOf(p, header(flags, 0, 0, number))
	out := make([]byte, 0, wrapHeader+len(p)+len(sum))
	out = append(out, header(flags, uint16(len(sum)), 0, number)...)
	return append(append(out, p...), sum...)
}

var (
	errWrap     = errors.New("it is no wrapped message, or only a part of one")
	errMessage  = errors.New("a message was changed on the way, or another key was used")
	errSequence = errors.New("a message was lost, repeated or is out of order")
)

// unwrap opens a message, in place, and says whether it was confidential.
func (c *gssContext) unwrap(b []byte) (p []byte, confidential bool, err error) {
	if len(b) < wrapHeader || binary.BigEndian.Uint16(b) != tokenWrap || b[3] != 0xff {
		return nil, false, errWrap
	}
	flags, extra, rotation, number := b[2], int(binary.BigEndian.Uint16(b[4:])), int(binary.BigEndian.Uint16(b[6:])), binary.BigEndian.Uint64(b[8:])
	confidential = flags&sealed != 0
	if flags != c.flags(!c.acceptor, confidential) {
		return nil, false, fmt.Errorf("a message has the flags %02x, not %02x", flags, c.flags(!c.acceptor, confidential))
	}
	body := b[wrapHeader:]
	if rotation > 0 && len(body) > 0 {
		rotation %= len(body)
		body = append(append(make([]byte, 0, len(body)), body[rotation:]...), body[:rotation]...)
	}
	if confidential {
		plain, err := c.receive.decrypt(body)
		if err != nil {
			return nil, false, errMessage
		}
		if len(plain) < extra+wrapHeader {
			return nil, false, errWrap
		}
		inner := plain[len(plain)-wrapHeader:]
		if string(inner) != string(header(flags, uint16(extra), 0, number)) {
			return nil, false, errMessage
		}
		p = plain[:len(plain)-wrapHeader-extra]
	} else {
		if extra != c.receive.enctype.mac || len(body) < extra {
			return nil, false, errWrap
		}
		p = body[:len(body)-extra]
		if !hmac.Equal(body[len(p):], c.receive.checksumOf(p, header(flags, 0, 0, number))) {
			return nil, false, errMessage
		}
	}
	if number != c.received {
		return nil, false, fmt.Errorf("%w: it has number %d, and %d was next", errSequence, number, c.received)
	}
	c.received++
	return p, confidential, nil
}
