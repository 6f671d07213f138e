// Package dtp is the framing of Hadoop's data transfer protocol, version 28, for both of its ends: the requests that open
// a transfer, the packets that carry a block's bytes with their checksums, the acknowledgements that come back through
// a pipeline, and the responses. It knows no files and no sockets: it reads from a bufio.Reader and writes to an
// io.Writer.
//
//	client or datanode → datanode     00 1c | op | varint | request
//	datanode → client                 varint | BlockOpResponseProto
//	packet, either way                PLEN | HLEN | header | checksums | data
//	acknowledgement, upstream         varint | PipelineAckProto
//	end of a read, client → datanode  varint | ClientReadStatusProto
//
// Everything read is limited: a message to MaxMessage, a packet to MaxPacket, and memory grows with the bytes that have
// arrived, never with a length that was announced. A PacketReader hands out slices of the reader's own buffer where a
// packet fits into it (see NewReader), so a packet can be checked, stored and forwarded without being copied.
//
// A reader returns io.EOF when the peer closed between two messages, io.ErrUnexpectedEOF when inside one, and an error
// that wraps ErrProtocol when the bytes cannot be what the protocol says; after that the connection is of no more use.
package dtp
