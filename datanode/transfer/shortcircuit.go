package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// metaVersion is the version of what the second descriptor holds, and of all access by descriptors (Hadoop's
// CURRENT_BLOCK_FORMAT_VERSION):
//
//	offset  size
//	  0      2   version 1
//	  2      1   checksum type, 2 = CRC32C
//	  3      4   bytes per checksum, 512
//	  7     4n   the checksums, as on the wire
const metaVersion = 1

// counts are what the server did for peers on the same machine.
type counts struct {
	near, passed, refused atomic.Int64
}

// Near is what a server did for peers on the same machine.
type Near struct {
	// Connections by the Unix-domain socket, requests for descriptors that were answered with them, and others.
	Connections, Passed, Refused int64
	// Shared is how many bytes of memory clients share with the server, Sheets of how many replicas.
	Shared int64
	Sheets int
}

// NearCounts is what the server did for peers on the same machine.
func (s *Server) NearCounts() Near {
	n := Near{Connections: s.counts.near.Load(), Passed: s.counts.passed.Load(), Refused: s.counts.refused.Load()}
	n.Shared, n.Sheets = s.sheets.size()
	return n
}

// shortCircuit serves REQUEST_SHORT_CIRCUIT_FDS: the client gets a descriptor of the replica's data and one of its checksums, and
// reads by itself. Neither can be written through, and what they show is this one replica: of one that shares a file with
// others the data is a copy.
func (c *conn) shortCircuit(op *hadooppb.OpRequestShortCircuitAccessProto) error {
	sock := security.Local(c.nc)
	if sock == nil || c.proved {
		return c.refuse(dtp.OpShortCircuitFDs, hadooppb.Status_ERROR_UNSUPPORTED, "", metadata.Errorf(metadata.ErrUnsupported, "descriptors go over a plain Unix-domain socket only"))
	}
	// The kernel bounds the descriptors that are under way, of all connections of the server together.
	if n, err := localsocket.Unread(sock); err != nil {
		return fmt.Errorf("how much of the last answer was not read: %w", err)
	} else if n > 0 {
		return fmt.Errorf("%w: descriptors are asked for by who has not read the last answer", dtp.ErrProtocol)
	}
	if op.GetMaxVersion() < metaVersion {
		return c.withhold(metadata.Errorf(metadata.ErrUnsupported, "the client reads replicas up to version %d, they are of version %d", op.GetMaxVersion(), metaVersion))
	}
	b, err := c.blockOf(op.GetHeader().GetBlock())
	if err != nil {
		return c.withhold(err)
	}
	release := func() {}
	if op.SlotId != nil { // before the replica is looked at: what happens to it from here on reaches the slot
		slot := slotOf(op.SlotId)
		if err := c.slots.register(slot, c.share(), b.ID); err != nil {
			return c.withhold(err)
		}
		release = func() { _ = c.slots.release(slot, c.share()) } // it is there
	}
	data, sums, close, err := c.descriptors(b)
	if err != nil {
		release()
		return c.withhold(err)
	}
	defer close()
	answer := &hadooppb.BlockOpResponseProto{Status: hadooppb.Status_SUCCESS.Enum(), ShortCircuitAccessVersion: new(uint32(metaVersion))}
	verifies := byte(0) // Hadoop's ShortCircuitFdResponse: 1 asks the client for a byte when it has the descriptors
	if op.GetSupportsReceiptVerification() {
		verifies = 1
	}
	if err = dtp.WriteResponse(c.nc, answer); err == nil {
		err = localsocket.SendFiles(sock, []byte{verifies}, data, sums)
	}
	if err == nil && op.GetSupportsReceiptVerification() {
		_ = c.nc.SetReadDeadline(time.Now().Add(c.cfg.Read))
		_, err = c.r.ReadByte()
	}
	if err != nil {
		release()
		return fmt.Errorf("descriptors of %v were not taken: %w", b, err)
	}
	c.counts.passed.Add(1)
	return nil
}

// withhold answers that this replica has to be read over the socket. Clients go on with the next one, because the answer has a
// version; without one they would not ask again at this path.
func (c *conn) withhold(cause error) error {
	c.counts.refused.Add(1)
	answer := dtp.Failure(hadooppb.Status_ERROR_UNSUPPORTED, "", cause.Error())
	answer.ShortCircuitAccessVersion = new(uint32(metaVersion))
	c.log.Debug("descriptors withheld", "remote", c.nc.RemoteAddr().String(), "err", cause)
	return dtp.WriteResponse(c.nc, answer)
}

// descriptors opens the data and the checksums of a finalized replica. close gives up this process's part of them.
func (c *conn) descriptors(b metadata.Block) (data, sums *os.File, done func(), err error) {
	rd, err := c.store.Open(b)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			rd.Close()
		}
	}()
	r := rd.Replica()
	if r.State != datanode.Finalized {
		return nil, nil, nil, metadata.Errorf(metadata.ErrUnsupported, "%v is being written: it is read over the socket", r.Block)
	}
	held, err := c.sheets.of(c.share(), rd)
	if err != nil {
		return nil, nil, nil, err
	}
	var open []*os.File
	closeAll := func() {
		for _, f := range open {
			f.Close()
		}
	}
	reopen := func(m *localsocket.Memory) (*os.File, error) {
		f, err := m.Reopen()
		if err == nil {
			open = append(open, f)
		}
		return f, err
	}
	if sums, err = reopen(held.sums); err == nil {
		if data = rd.File(); data == nil {
			data, err = reopen(held.data)
		}
	}
	c.sheets.opened(held)
	if err != nil {
		closeAll()
		return nil, nil, nil, err
	}
	return data, sums, func() {
		closeAll()
		rd.Close()
	}, nil
}

// metaSize is how many bytes the second descriptor holds of a replica of so many.
func metaSize(visible int64) int64 { return 7 + int64(dtp.DefaultChecksum.SumsLen(int(visible))) }

// metaOf is what the second descriptor holds.
func metaOf(rd datanode.Reader) ([]byte, error) {
	visible := rd.Replica().Visible
	head := make([]byte, 0, metaSize(visible))
	head = binary.BigEndian.AppendUint16(head, metaVersion)
	head = append(head, byte(rd.Checksum().Stored()))
	head = binary.BigEndian.AppendUint32(head, datanode.ChunkSize)
	return rd.Sums(head, 0, visible)
}

// dataOf is the data of a replica that has no file of its own.
func dataOf(rd datanode.Reader) ([]byte, error) {
	b := make([]byte, rd.Replica().Visible)
	if len(b) == 0 {
		return b, nil
	}
	if _, err := rd.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return b, nil
}

var errSheets = errors.New("too much memory is shared with clients of this user that have not closed their descriptors")
