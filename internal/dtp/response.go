package dtp

import (
	"bufio"
	"fmt"
	"io"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Success is the answer to a write request that the whole pipeline accepted: status and an empty firstBadLink, because
// the Go client reads five bytes before it looks at any.
func Success() *hadooppb.BlockOpResponseProto {
	return &hadooppb.BlockOpResponseProto{Status: hadooppb.Status_SUCCESS.Enum(), FirstBadLink: new(string)}
}

// ReadSuccess is the answer to a read request: how the packets are checked and where the first one starts.
func ReadSuccess(sum Checksum, chunkOffset int64) *hadooppb.BlockOpResponseProto {
	return &hadooppb.BlockOpResponseProto{
		Status: hadooppb.Status_SUCCESS.Enum(),
		ReadOpChecksumInfo: &hadooppb.ReadOpChecksumInfoProto{
			Checksum:    sum.Proto(),
			ChunkOffset: new(uint64(chunkOffset)),
		},
	}
}

// Failure is an answer that refuses a request. badLink is the transfer address of the downstream datanode at fault,
// empty if none is.
func Failure(status hadooppb.Status, badLink, message string) *hadooppb.BlockOpResponseProto {
	return &hadooppb.BlockOpResponseProto{Status: status.Enum(), FirstBadLink: &badLink, Message: &message}
}

// WriteResponse writes the answer to a request in one Write.
func WriteResponse(w io.Writer, m *hadooppb.BlockOpResponseProto) error { return WriteMessage(w, m) }

// ReadResponse reads the answer to a request. Answers that only report progress (IN_PROGRESS) are returned too.
func ReadResponse(r *bufio.Reader) (*hadooppb.BlockOpResponseProto, error) {
	m := new(hadooppb.BlockOpResponseProto)
	if err := ReadMessage(r, m); err != nil {
		return nil, err
	}
	return m, nil
}

// ResponseError is a refusal by a datanode.
type ResponseError struct {
	Op     Op
	Status hadooppb.Status
	// BadLink is the transfer address of the datanode that failed further down the pipeline; empty: the one asked.
	BadLink string
	Message string
	// Silent: the disk of the replica does not answer at the moment.
	Silent bool
}

func (e *ResponseError) Error() string {
	s := fmt.Sprintf("%v answered %v", e.Op, e.Status)
	if e.BadLink != "" {
		s += " for " + e.BadLink
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// CheckResponse returns a ResponseError unless m says success.
func CheckResponse(op Op, m *hadooppb.BlockOpResponseProto) error {
	if m.GetStatus() == hadooppb.Status_SUCCESS {
		return nil
	}
	return &ResponseError{Op: op, Status: m.GetStatus(), BadLink: m.GetFirstBadLink(), Message: m.GetMessage(), Silent: m.GetDiskSilent()}
}
