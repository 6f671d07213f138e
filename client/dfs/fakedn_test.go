package dfs

import (
	"bufio"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// fakeNode is a datanode in memory, with faults to order.
type fakeNode struct {
	c    *cluster
	uuid string
	addr string
	ipc  string
	l    net.Listener

	hidden bool // the namenode does not choose it; guarded by c.mu

	mu       sync.Mutex
	dead     bool
	conns    map[net.Conn]bool
	accepted int
	keeps    bool // connections, after writes: ours do, Hadoop's do not
	replicas map[uint64]*fakeReplica
	stages   []stage
	whole    int // blocks that were announced to follow their requests
	synced   int
	large    bool    // it takes large packets, as ours do
	says     *uint32 // of the data in a packet, whatever it takes
	packets  []int   // how much data they had

	refuse   bool  // of write set-ups
	dieAfter int   // packets with data until it is killed; 0: never
	dieAtEnd bool  // instead of acknowledging the end of a block
	badAck   int   // packets with data until one is acknowledged with an error
	flip     bool  // what is read is damaged
	flipFrom int64 // where in the block that begins
	gone     bool  // it has nothing any more
	disk     int   // reads that are refused because its disk does not answer; negative: all
	readFor  int   // packets until a read breaks off; 0: never
	mute     bool  // takes packets and says nothing
	// frozen is open while the process is stopped as by SIGSTOP: the kernel takes connections and bytes, nobody answers.
	frozen chan struct{}
	beats  int                     // heartbeats that came
	kinds  map[uint64]dtp.Checksum // of blocks that are written: what is asked for; default: dtp.DefaultChecksum
	copies int                     // replicas that were copied here on a client's order
}

type fakeReplica struct {
	gs    uint64
	data  []byte
	final bool
	owner int // counts the writers; only the last one may write
}

func newFakeNode(c *cluster, i int) *fakeNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	n := &fakeNode{c: c, uuid: fmt.Sprintf("node-%d", i), addr: l.Addr().String(), l: l, conns: map[net.Conn]bool{}, replicas: map[uint64]*fakeReplica{}}
	n.ipc = c.serve(security.NewDoor(security.Config{}), func(s *hrpc.Server) {
		s.Handle(clientDatanodeProtocol, hrpc.Method{
			Name: "getReplicaVisibleLength", Right: security.ByPath,
			New: func() hrpc.Message { return new(hadooppb.GetReplicaVisibleLengthRequestProto) },
			Handle: func(call *hrpc.Call) {
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.frozen != nil {
					return // nobody ever answers
				}
				r := n.replicas[call.Request.(*hadooppb.GetReplicaVisibleLengthRequestProto).GetBlock().GetBlockId()]
				if r == nil {
					call.Fail(metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found"))
					return
				}
				call.Reply(&hadooppb.GetReplicaVisibleLengthResponseProto{Length: new(uint64(len(r.data)))})
			},
		})
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			if n.dead {
				conn.Close()
			}
			n.conns[conn] = true
			n.accepted++
			n.mu.Unlock()
			go n.serve(conn)
		}
	}()
	c.t.Cleanup(func() {
		n.kill()
		n.thaw()
	})
	return n
}

func (n *fakeNode) info() *hadooppb.DatanodeInfoProto {
	port := func(addr string) *uint32 {
		_, p, _ := net.SplitHostPort(addr)
		v, _ := strconv.Atoi(p)
		return new(uint32(v))
	}
	return &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("localhost"), DatanodeUuid: &n.uuid,
		XferPort: port(n.addr), InfoPort: new(uint32(0)), IpcPort: port(n.ipc),
	}, Location: new("/default-rack")}
}

// freeze is SIGSTOP, thaw SIGCONT.
func (n *fakeNode) freeze() {
	n.set(func() {
		if n.frozen == nil {
			n.frozen = make(chan struct{})
		}
	})
}

func (n *fakeNode) thaw() {
	n.set(func() {
		if n.frozen != nil {
			close(n.frozen)
			n.frozen = nil
		}
	})
}

// stopped waits while the process is stopped.
func (n *fakeNode) stopped() {
	var frozen chan struct{}
	n.set(func() { frozen = n.frozen })
	if frozen != nil {
		<-frozen
	}
}

// kill is kill -9: everything it had open breaks.
func (n *fakeNode) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killLocked()
}

func (n *fakeNode) killLocked() {
	n.dead = true
	n.l.Close()
	for conn := range n.conns {
		conn.Close()
	}
}

func (n *fakeNode) has(b *fakeBlock) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.replicas[b.id]
	return !n.dead && r != nil && r.final && r.gs == b.gs && uint64(len(r.data)) == b.size
}

func (n *fakeNode) bytes(id uint64) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]byte(nil), n.replicas[id].data...)
}

func (n *fakeNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *fakeNode) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		n.mu.Lock()
		delete(n.conns, conn)
		n.mu.Unlock()
	}()
	r := dtp.NewReader(conn)
	for {
		op, request, err := dtp.ReadOp(r)
		if err != nil {
			return
		}
		n.stopped()
		again := false
		if !n.authorized(request) {
			_ = dtp.WriteResponse(conn, dtp.Failure(hadooppb.Status_ERROR_ACCESS_TOKEN, "", "the token has expired"))
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, r) // a block may follow
			return
		}
		switch q := request.(type) {
		case *hadooppb.OpWriteBlockProto:
			n.write(conn, r, q)
			n.set(func() { again = n.keeps })
		case *hadooppb.OpReadBlockProto:
			again = n.read(conn, r, q)
		case *hadooppb.OpBlockChecksumProto:
			n.checksum(conn, q)
		case *hadooppb.OpTransferBlockProto:
			n.transfer(conn, q)
		default:
			n.c.t.Errorf("%s: request %v", n.uuid, op)
		}
		if !again {
			return
		}
	}
}

// authorized reports whether a request carries a token of now.
func (n *fakeNode) authorized(request dtp.Message) bool {
	var h *hadooppb.BaseHeaderProto
	switch q := request.(type) {
	case *hadooppb.OpWriteBlockProto:
		h = q.GetHeader().GetBaseHeader()
	case *hadooppb.OpReadBlockProto:
		h = q.GetHeader().GetBaseHeader()
	case *hadooppb.OpBlockChecksumProto:
		h = q.GetHeader()
	case *hadooppb.OpRequestShortCircuitAccessProto:
		h = q.GetHeader()
	default:
		return true
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	good := !n.c.strict && (n.c.epoch == 0 || string(h.GetToken().GetIdentifier()) == string([]byte{n.c.epoch}))
	if !good {
		n.c.refused++
	}
	return good
}

func fail(conn net.Conn, badLink, format string, args ...any) {
	_ = dtp.WriteResponse(conn, dtp.Failure(hadooppb.Status_ERROR, badLink, fmt.Sprintf(format, args...)))
}

// prepare applies the rules of section 4.6 of the wire reference.
func (n *fakeNode) prepare(q *hadooppb.OpWriteBlockProto) (*fakeReplica, error) {
	b := q.GetHeader().GetBaseHeader().GetBlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stages = append(n.stages, q.GetStage())
	if sum, err := dtp.ChecksumOf(q.GetRequestedChecksum()); err == nil && q.GetStage() == stageCreate {
		if n.kinds == nil {
			n.kinds = map[uint64]dtp.Checksum{}
		}
		n.kinds[b.GetBlockId()] = sum
	}
	if q.GetStage() == stageCreate && q.GetMaxBytesRcvd() > 0 {
		n.whole++
	}
	r := n.replicas[b.GetBlockId()]
	newGS := q.GetLatestGenerationStamp()
	if q.GetStage() == stageCreate || q.GetStage() >= hadooppb.OpWriteBlockProto_TRANSFER_RBW {
		copied := q.GetStage() != stageCreate
		if copied {
			n.copies++
		}
		if r != nil && !(copied && !r.final && r.gs < b.GetGenerationStamp()) { // a copy replaces what is left of an older pipeline
			return nil, fmt.Errorf("replica exists")
		}
		r = &fakeReplica{gs: b.GetGenerationStamp()}
		n.replicas[b.GetBlockId()] = r
		return r, nil
	}
	if r == nil {
		return nil, fmt.Errorf("no replica")
	}
	if r.gs < b.GetGenerationStamp() || r.gs > newGS {
		return nil, fmt.Errorf("generation %d is not in %d..%d", r.gs, b.GetGenerationStamp(), newGS)
	}
	length := uint64(len(r.data))
	switch q.GetStage() {
	case stageAppend, stageAppendRecovery:
		if q.GetStage() == stageAppend && !r.final || length != q.GetMinBytesRcvd() {
			return nil, fmt.Errorf("append to final=%v length=%d, want %d", r.final, length, q.GetMinBytesRcvd())
		}
		r.final = false
	case stageRecovery:
		if r.final || length < q.GetMinBytesRcvd() || length > q.GetMaxBytesRcvd() {
			return nil, fmt.Errorf("recovery of final=%v length=%d, want %d..%d", r.final, length, q.GetMinBytesRcvd(), q.GetMaxBytesRcvd())
		}
		r.data = r.data[:q.GetMinBytesRcvd()]
	case stageCloseRecovery:
		if length != q.GetMinBytesRcvd() {
			return nil, fmt.Errorf("close recovery of length=%d, want %d", length, q.GetMinBytesRcvd())
		}
		r.final = true
	default:
		return nil, fmt.Errorf("stage %v", q.GetStage())
	}
	r.gs = newGS
	return r, nil
}

func (n *fakeNode) write(conn net.Conn, r *bufio.Reader, q *hadooppb.OpWriteBlockProto) {
	transfer := q.GetStage() >= hadooppb.OpWriteBlockProto_TRANSFER_RBW
	n.mu.Lock()
	refuse := n.refuse
	n.mu.Unlock()
	if refuse {
		fail(conn, "", "refused")
		return
	}
	replica, err := n.prepare(q)
	if err != nil {
		fail(conn, "", "%v: %v", q.GetStage(), err)
		return
	}
	var owner int
	n.set(func() { replica.owner++; owner = replica.owner })
	var mirror net.Conn
	var acks *bufio.Reader
	behind := len(q.Targets)
	large := true // for those behind
	if behind > 0 {
		next := q.Targets[0]
		addr := dtp.TransferAddr(next.GetId(), false)
		forward := proto.Clone(q).(*hadooppb.OpWriteBlockProto)
		forward.Targets = q.Targets[1:]
		forward.StorageType, forward.StorageId = nil, nil
		forward.TargetStorageTypes, forward.TargetStorageIds, forward.TargetPinnings = nil, nil, nil
		if mirror, err = net.Dial("tcp", addr); err == nil {
			defer mirror.Close()
			acks = bufio.NewReader(mirror)
			if err = dtp.WriteOp(mirror, dtp.OpWriteBlock, forward); err == nil {
				var answer *hadooppb.BlockOpResponseProto
				if answer, err = dtp.ReadResponse(acks); err == nil && answer.GetStatus() != hadooppb.Status_SUCCESS {
					bad := answer.GetFirstBadLink()
					if bad == "" {
						bad = addr
					}
					fail(conn, bad, "%s", answer.GetMessage())
					return
				}
				large = answer.GetPacketData() >= dtp.LargeSize
			}
		}
		if err != nil {
			fail(conn, addr, "%v", err)
			return
		}
	}
	if !transfer {
		answer := dtp.Success()
		n.mu.Lock()
		if n.large && large {
			answer.PacketData = new(uint32(dtp.LargeSize))
		}
		if n.says != nil {
			answer.PacketData = n.says
		}
		n.mu.Unlock()
		if err := dtp.WriteResponse(conn, answer); err != nil {
			return
		}
	}
	if q.GetStage() == stageCloseRecovery {
		return
	}
	sum, err := dtp.ChecksumOf(q.GetRequestedChecksum())
	if err != nil {
		n.c.t.Errorf("checksum: %v", err)
		return
	}
	packets := dtp.NewPacketReader(r)
	defer packets.Done()
	seqno := int64(-1)
	for {
		p, err := packets.Next()
		if err != nil {
			return
		}
		n.stopped()
		if p.Heartbeat() {
			n.set(func() { n.beats++ })
			_ = dtp.WriteAck(conn, &dtp.Ack{Seqno: dtp.HeartbeatSeqno, Replies: make([]hadooppb.Status, behind+1)})
			continue
		}
		if seqno >= 0 && p.Seqno != seqno+1 {
			n.c.t.Errorf("%s: packet %d after %d", n.uuid, p.Seqno, seqno)
		}
		seqno = p.Seqno
		mirrorOK := true
		if mirror != nil {
			_, err := mirror.Write(p.Raw)
			mirrorOK = err == nil
		}
		status, alive := n.take(replica, owner, sum, p)
		if !alive {
			return
		}
		replies := []hadooppb.Status{status}
		if mirror != nil {
			var ack dtp.Ack
			if mirrorOK && dtp.ReadAck(acks, &ack) == nil {
				replies = append(replies, ack.Replies...)
			} else {
				replies = append(replies, hadooppb.Status_ERROR)
				for len(replies) < behind+1 {
					replies = append(replies, hadooppb.Status_SUCCESS)
				}
			}
		}
		if p.Last {
			n.mu.Lock()
			if transfer {
				replica.final = q.GetStage() == hadooppb.OpWriteBlockProto_TRANSFER_FINALIZED
			} else {
				replica.final = true
			}
			die := n.dieAtEnd
			if die {
				n.killLocked()
			}
			n.mu.Unlock()
			if die {
				return
			}
		}
		n.mu.Lock()
		mute := n.mute
		n.mu.Unlock()
		if !transfer && !mute {
			if err := dtp.WriteAck(conn, &dtp.Ack{Seqno: p.Seqno, Replies: replies}); err != nil {
				return
			}
		}
		if p.Last {
			if transfer {
				_ = dtp.WriteResponse(conn, dtp.Success())
			}
			return
		}
	}
}

// take stores a packet by the rules of section 4.7.
func (n *fakeNode) take(r *fakeReplica, owner int, sum dtp.Checksum, p dtp.Packet) (hadooppb.Status, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.owner != owner { // another pipeline has taken over
		return 0, false
	}
	if p.Sync {
		n.synced++
	}
	n.packets = append(n.packets, p.DataLen)
	have := int64(len(r.data))
	end := p.Offset + int64(p.DataLen)
	if p.Offset > have || p.Last && p.Offset != have {
		n.c.t.Errorf("%s: packet %d of %d bytes at %d, %d bytes are there; generation %d, writer %d, stages %v", n.uuid, p.Seqno, p.DataLen, p.Offset, have, r.gs, owner, n.stages)
		return hadooppb.Status_ERROR, true
	}
	if p.DataLen == 0 {
		return hadooppb.Status_SUCCESS, true
	}
	per := int64(sum.BytesPer)
	if p.Offset%per != 0 && p.Offset/per != (end-1)/per {
		n.c.t.Errorf("%s: packet %d to %d starts inside a chunk and leaves it", n.uuid, p.Offset, end)
	}
	if err := sum.Verify(p.Sums, p.Data); err != nil {
		n.c.t.Errorf("%s: packet at %d: %v", n.uuid, p.Offset, err)
		return hadooppb.Status_ERROR_CHECKSUM, true
	}
	if n.dieAfter > 0 {
		if n.dieAfter--; n.dieAfter == 0 {
			n.killLocked()
			return 0, false
		}
	}
	if end > have {
		r.data = append(r.data[:p.Offset], p.Data...)
	}
	if n.badAck > 0 {
		if n.badAck--; n.badAck == 0 {
			return hadooppb.Status_ERROR_CHECKSUM, true
		}
	}
	return hadooppb.Status_SUCCESS, true
}

func (n *fakeNode) read(conn net.Conn, r *bufio.Reader, q *hadooppb.OpReadBlockProto) bool {
	b := q.GetHeader().GetBaseHeader().GetBlock()
	n.mu.Lock()
	replica := n.replicas[b.GetBlockId()]
	var data []byte
	var generation uint64
	if n.gone {
		replica = nil
	}
	if replica != nil {
		data, generation = append(data, replica.data...), replica.gs
	}
	flip, flipFrom, readFor := n.flip, n.flipFrom, n.readFor
	silent := n.disk != 0
	n.disk = max(n.disk-1, min(n.disk, 0))
	n.mu.Unlock()
	if silent {
		answer := dtp.Failure(hadooppb.Status_ERROR, "", "volume /data/1: the disk does not answer")
		answer.DiskSilent = new(true)
		_ = dtp.WriteResponse(conn, answer)
		return false
	}
	offset, end := int64(q.GetOffset()), int64(q.GetOffset()+q.GetLen())
	if replica == nil || end > int64(len(data)) || generation < b.GetGenerationStamp() {
		fail(conn, "", "replica %v cannot give %d to %d of block %v", replica != nil, offset, end, b.GetBlockId())
		return false
	}
	sum := dtp.DefaultChecksum
	at := offset - offset%512
	stop := min((end+511)/512*512, int64(len(data)))
	if err := dtp.WriteResponse(conn, dtp.ReadSuccess(sum, at)); err != nil {
		return false
	}
	w := dtp.NewPacketWriter(conn)
	seqno := int64(0)
	for ; at < stop; seqno++ {
		n.stopped()
		if readFor > 0 {
			if readFor--; readFor == 0 {
				return false
			}
		}
		part := data[at:min(at+64<<10, stop)]
		sums := sum.Append(nil, part)
		if flip && at >= flipFrom {
			part = append([]byte(nil), part...)
			part[len(part)/2] ^= 1
		}
		if err := w.Write(dtp.Header{Offset: at, Seqno: seqno}, sums, part); err != nil {
			return false
		}
		at += int64(len(part))
	}
	if err := w.Write(dtp.Header{Offset: at, Seqno: seqno, Last: true}, nil, nil); err != nil {
		return false
	}
	var status hadooppb.ClientReadStatusProto
	if err := dtp.ReadMessage(r, &status); err != nil {
		return false
	}
	if status.GetStatus() != hadooppb.Status_CHECKSUM_OK {
		n.c.t.Errorf("read status %v", status.GetStatus())
	}
	return true
}

func (n *fakeNode) checksum(conn net.Conn, q *hadooppb.OpBlockChecksumProto) {
	b := q.GetHeader().GetBlock()
	data := n.bytes(b.GetBlockId())[:b.GetNumBytes()]
	sums := dtp.DefaultChecksum.Append(nil, data)
	hash := md5.Sum(sums)
	value := hash[:]
	if q.GetBlockChecksumOptions().GetBlockChecksumType() == hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC {
		value = binary.BigEndian.AppendUint32(nil, dtp.DefaultChecksum.Update(0, data))
	}
	kind := dtp.DefaultChecksum
	n.set(func() {
		if k, ok := n.kinds[b.GetBlockId()]; ok {
			kind = k
		}
	})
	answer := dtp.Success()
	answer.ChecksumResponse = &hadooppb.OpBlockChecksumResponseProto{
		BytesPerCrc: new(uint32(kind.BytesPer)), CrcPerBlock: new(uint64(len(sums) / 4)), BlockChecksum: value,
		CrcType: kind.Proto().Type, BlockChecksumOptions: q.GetBlockChecksumOptions(),
	}
	_ = dtp.WriteResponse(conn, answer)
}

func (n *fakeNode) transfer(conn net.Conn, q *hadooppb.OpTransferBlockProto) {
	b := q.GetHeader().GetBaseHeader().GetBlock()
	n.mu.Lock()
	replica := n.replicas[b.GetBlockId()]
	if replica == nil {
		n.mu.Unlock()
		fail(conn, "", "no replica")
		return
	}
	data := append([]byte(nil), replica.data...)
	s := hadooppb.OpWriteBlockProto_TRANSFER_RBW
	if replica.final {
		s = hadooppb.OpWriteBlockProto_TRANSFER_FINALIZED
	}
	n.mu.Unlock()
	to, err := net.Dial("tcp", dtp.TransferAddr(q.GetTargets()[0].GetId(), false))
	if err != nil {
		fail(conn, "", "%v", err)
		return
	}
	defer to.Close()
	_ = dtp.WriteOp(to, dtp.OpWriteBlock, &hadooppb.OpWriteBlockProto{
		Header: q.Header, Stage: s.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: new(uint64(0)), MaxBytesRcvd: new(uint64(0)),
		LatestGenerationStamp: new(uint64(0)), RequestedChecksum: dtp.DefaultChecksum.Proto(),
	})
	w := dtp.NewPacketWriter(to)
	at, seqno := 0, int64(0)
	for ; at < len(data); seqno++ {
		part := data[at:min(at+64<<10, len(data))]
		_ = w.Write(dtp.Header{Offset: int64(at), Seqno: seqno}, dtp.DefaultChecksum.Append(nil, part), part)
		at += len(part)
	}
	_ = w.Write(dtp.Header{Offset: int64(at), Seqno: seqno, Last: true}, nil, nil)
	if answer, err := dtp.ReadResponse(bufio.NewReader(to)); err != nil || answer.GetStatus() != hadooppb.Status_SUCCESS {
		fail(conn, "", "transfer: %v", err)
		return
	}
	_ = dtp.WriteResponse(conn, dtp.Success())
}

func crc32c(data []byte) uint32 { return dtp.DefaultChecksum.Update(0, data) }
