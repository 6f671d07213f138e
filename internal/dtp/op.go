package dtp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Version is the protocol version that every request starts with.
const Version = 28

// Op says what a connection, or the next transfer on it, is for.
type Op byte

// The operations, with the type of their request.
const (
	OpWriteBlock         Op = 80  // OpWriteBlockProto
	OpReadBlock          Op = 81  // OpReadBlockProto
	OpReadMetadata       Op = 82  // never sent
	OpReplaceBlock       Op = 83  // OpReplaceBlockProto
	OpCopyBlock          Op = 84  // OpCopyBlockProto
	OpBlockChecksum      Op = 85  // OpBlockChecksumProto
	OpTransferBlock      Op = 86  // OpTransferBlockProto
	OpShortCircuitFDs    Op = 87  // OpRequestShortCircuitAccessProto
	OpReleaseFDs         Op = 88  // ReleaseShortCircuitAccessRequestProto
	OpShortCircuitMemory Op = 89  // ShortCircuitShmRequestProto
	OpGroupChecksum      Op = 90  // OpBlockGroupChecksumProto
	OpCustom             Op = 127 // OpCustomProto
)

func (op Op) String() string {
	switch op {
	case OpWriteBlock:
		return "WRITE_BLOCK"
	case OpReadBlock:
		return "READ_BLOCK"
	case OpReadMetadata:
		return "READ_METADATA"
	case OpReplaceBlock:
		return "REPLACE_BLOCK"
	case OpCopyBlock:
		return "COPY_BLOCK"
	case OpBlockChecksum:
		return "BLOCK_CHECKSUM"
	case OpTransferBlock:
		return "TRANSFER_BLOCK"
	case OpShortCircuitFDs:
		return "REQUEST_SHORT_CIRCUIT_FDS"
	case OpReleaseFDs:
		return "RELEASE_SHORT_CIRCUIT_FDS"
	case OpShortCircuitMemory:
		return "REQUEST_SHORT_CIRCUIT_SHM"
	case OpGroupChecksum:
		return "BLOCK_GROUP_CHECKSUM"
	case OpCustom:
		return "CUSTOM"
	default:
		return "op " + strconv.Itoa(int(op))
	}
}

// NewRequest returns an empty request of the operation, nil for one that is not known.
func (op Op) NewRequest() Message {
	switch op {
	case OpWriteBlock:
		return new(hadooppb.OpWriteBlockProto)
	case OpReadBlock:
		return new(hadooppb.OpReadBlockProto)
	case OpReplaceBlock:
		return new(hadooppb.OpReplaceBlockProto)
	case OpCopyBlock:
		return new(hadooppb.OpCopyBlockProto)
	case OpBlockChecksum:
		return new(hadooppb.OpBlockChecksumProto)
	case OpTransferBlock:
		return new(hadooppb.OpTransferBlockProto)
	case OpShortCircuitFDs:
		return new(hadooppb.OpRequestShortCircuitAccessProto)
	case OpReleaseFDs:
		return new(hadooppb.ReleaseShortCircuitAccessRequestProto)
	case OpShortCircuitMemory:
		return new(hadooppb.ShortCircuitShmRequestProto)
	case OpGroupChecksum:
		return new(hadooppb.OpBlockGroupChecksumProto)
	case OpCustom:
		return new(hadooppb.OpCustomProto)
	default:
		return nil
	}
}

// saslMagic opens a SASL handshake in place of a request.
const saslMagic = 0xdeadbeef

// ReadOp reads the next request. io.EOF means that the peer closed the connection instead, which is how a client ends
// the reuse of one.
func ReadOp(r *bufio.Reader) (Op, Message, error) {
	head, err := r.Peek(3)
	if err != nil {
		if len(head) > 0 {
			err = inside(err)
		}
		return 0, nil, err
	}
	if version := binary.BigEndian.Uint16(head); version != Version {
		if version == saslMagic>>16 {
			return 0, nil, violation("the peer starts a SASL handshake in the middle of a connection")
		}
		return 0, nil, violation("version %d, want %d", version, Version)
	}
	op := Op(head[2])
	request := op.NewRequest()
	if request == nil {
		return op, nil, violation("%v is not known", op)
	}
	_, _ = r.Discard(3)
	if err := ReadMessage(r, request); err != nil {
		return op, nil, fmt.Errorf("request %v: %w", op, inside(err))
	}
	return op, request, nil
}

// AppendOp appends a request.
func AppendOp(dst []byte, op Op, request Message) ([]byte, error) {
	return AppendMessage(append(binary.BigEndian.AppendUint16(dst, Version), byte(op)), request)
}

// WriteOp writes a request in one Write.
func WriteOp(w io.Writer, op Op, request Message) error {
	b, err := AppendOp(make([]byte, 0, 3+5+request.SizeVT()), op, request)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// TransferAddr is where a datanode takes requests, by address or by host name. In its first form it is also the text
// that identifies the datanode in a response's firstBadLink (Java's getXferAddr).
func TransferAddr(id *hadooppb.DatanodeIDProto, byHostName bool) string {
	host := id.GetIpAddr()
	if byHostName {
		host = id.GetHostName()
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(id.GetXferPort()), 10))
}
