package dtp

import "encoding/binary"

// PacketBuffer takes packets as they come off a connection. Many of them can lie in it at a time, to be looked at, passed
// on and stored together without having been copied.
//
//	| given out by Next | has come | free |
//	0                   next       end    len(buf)
type PacketBuffer struct {
	home []byte // what NewPacketBuffer or Resize gave; buf is another one while a packet does not fit
	buf  []byte
	next int
	end  int
	need int // size of the packet at next as far as it is known
}

// NewPacketBuffer returns a buffer over memory of its user. A packet that does not fit gets memory as it comes.
func NewPacketBuffer(memory []byte) *PacketBuffer {
	return &PacketBuffer{home: memory, buf: memory, need: minPacket}
}

// minPacket is what has to be there to know a packet's size.
const minPacket = 6

// Next gives out the next packet that is there as a whole. Its slices are valid until Release.
func (b *PacketBuffer) Next() (p Packet, ok bool, err error) {
	rest := b.buf[b.next:b.end]
	if b.need = minPacket; len(rest) < b.need {
		return Packet{}, false, nil
	}
	headerLen, total, err := sizes(rest)
	if err != nil {
		return Packet{}, false, err
	}
	if b.need = total; len(rest) < total {
		return Packet{}, false, nil
	}
	if p, err = decode(rest[:total:total], headerLen); err != nil {
		return Packet{}, false, err
	}
	b.next += total
	b.need = minPacket
	return p, true, nil
}

// Mark is a place in the buffer, Since(Mark()) what Next has given out since then. Release makes marks invalid.
func (b *PacketBuffer) Mark() int { return b.next }

// Since returns the packets after a mark as they came, for forwarding.
func (b *PacketBuffer) Since(mark int) []byte { return b.buf[mark:b.next] }

// Waiting is how many bytes have come that Next has not given out.
func (b *PacketBuffer) Waiting() int { return b.end - b.next }

// Full reports whether the packet at whose beginning Next stopped has no room before Release.
func (b *PacketBuffer) Full() bool { return b.next > 0 && b.next+b.need > len(b.buf) }

// Free is where to read more to, at least a byte unless Full. What is put there counts after Filled.
func (b *PacketBuffer) Free() []byte {
	if need := b.Grows(); need > 0 { // what was announced is believed as it comes
		grown := make([]byte, min(2*max(len(b.buf), minPacket), need))
		copy(grown, b.buf)
		b.buf = grown
	}
	return b.buf[b.end:]
}

// Grows is how large a packet is for which Free will take memory beyond what the buffer was given, 0 if it will not.
func (b *PacketBuffer) Grows() int {
	if b.end == len(b.buf) && b.next == 0 && b.need > len(b.buf) {
		return b.need
	}
	return 0
}

// Grown reports whether there is memory beyond what the buffer was given.
func (b *PacketBuffer) Grown() bool { return len(b.buf) > len(b.home) }

// Filled counts n bytes that were put into Free.
func (b *PacketBuffer) Filled(n int) { b.end += n }

// Release takes back what Next has given out.
func (b *PacketBuffer) Release() {
	rest := b.buf[b.next:b.end]
	if len(b.buf) > len(b.home) && len(rest) <= len(b.home) {
		b.buf = b.home
	}
	b.end = copy(b.buf, rest)
	b.next = 0
}

// Resize is Release and goes on in other memory, which what waits must fit into. It returns the memory from before.
func (b *PacketBuffer) Resize(memory []byte) []byte {
	old := b.home
	b.end = copy(memory, b.buf[b.next:b.end])
	b.next, b.home, b.buf = 0, memory, memory
	return old
}

// sizes reads the first bytes of a packet.
func sizes(head []byte) (headerLen, total int, err error) {
	payload := int64(int32(binary.BigEndian.Uint32(head))) - 4
	headerLen = int(binary.BigEndian.Uint16(head[4:]))
	all := minPacket + int64(headerLen) + payload
	if payload < 0 || headerLen > maxHeaderRead || all > MaxPacket {
		return 0, 0, violation("packet with a header of %d and a body of %d bytes", headerLen, payload)
	}
	return headerLen, int(all), nil
}

// Whole takes a packet apart that lies in memory by itself. ok is false if raw is not one packet from its beginning to its end.
func Whole(raw []byte) (p Packet, ok bool) {
	if len(raw) < minPacket {
		return Packet{}, false
	}
	headerLen, total, err := sizes(raw)
	if err != nil || total != len(raw) {
		return Packet{}, false
	}
	p, err = decode(raw, headerLen)
	return p, err == nil
}

// decode takes a whole packet apart.
func decode(raw []byte, headerLen int) (Packet, error) {
	h, err := parseHeader(raw[minPacket : minPacket+headerLen])
	if err != nil {
		return Packet{}, err
	}
	body := raw[minPacket+headerLen:]
	if h.DataLen > len(body) {
		return Packet{}, violation("packet of %d bytes announces %d of data", len(raw), h.DataLen)
	}
	if h.Last && h.DataLen > 0 {
		return Packet{}, violation("last packet of a block with %d bytes of data", h.DataLen)
	}
	sums := len(body) - h.DataLen
	return Packet{Header: h, Sums: body[:sums], Data: body[sums:], Raw: raw}, nil
}
