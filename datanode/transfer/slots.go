package transfer

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Hadoop's clients hold descriptors for half an hour, and learn by a slot in memory that they share with the datanode that
// those are not good any more. A segment has slots of 64 bytes, of which the first eight are flags in the machine's byte
// order: bit 63, the client sets it before it asks for descriptors and the datanode clears it when the replica changes; bit
// 62, that reads need no verification, which nobody sets here.
const (
	segmentBytes   = 8192
	slotBytes      = 64
	slotsOfSegment = segmentBytes / slotBytes
	slotValid      = uint64(1) << 63
	// segmentCharge is what a segment counts for: its memory, and a mapping.
	segmentCharge = 16 << 10
)

// slotID names a slot of a segment.
type slotID struct {
	hi, lo int64
	index  int32
}

func slotOf(p *hadooppb.ShortCircuitShmSlotProto) slotID {
	return slotID{p.GetShmId().GetHi(), p.GetShmId().GetLo(), p.GetSlotIdx()}
}

// segment is a piece of memory that a client process and the server have in common.
type segment struct {
	user uint32
	mem  []byte
	of   [slotsOfSegment]metadata.BlockID
	used [slotsOfSegment]bool
}

// flags are those of a slot. The client writes there whenever it likes.
func (g *segment) flags(i int32) *uint64 { return (*uint64)(unsafe.Pointer(&g.mem[int(i)*slotBytes])) }

// slots are the segments of all clients.
type slots struct {
	mu       sync.Mutex
	segments map[[2]int64]*segment
	blocks   map[metadata.BlockID][]slotID // the slots that want to hear of a block
}

func newSlots() *slots {
	return &slots{segments: map[[2]int64]*segment{}, blocks: map[metadata.BlockID][]slotID{}}
}

// create makes a segment, and the file of it for the client. It cannot be made smaller or larger, so nobody faults in it.
func (s *slots) create(user uint32) (id [2]int64, f *os.File, err error) {
	if f, err = localsocket.NewMemory("hops slots"); err != nil {
		return id, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err = f.Truncate(segmentBytes); err != nil {
		return id, nil, err
	}
	if _, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return id, nil, os.NewSyscallError("sealing", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, segmentBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return id, nil, os.NewSyscallError("mmap", err)
	}
	var random [16]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	id = [2]int64{int64(binary.NativeEndian.Uint64(random[:])), int64(binary.NativeEndian.Uint64(random[8:]))}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments[id] = &segment{user: user, mem: mem}
	return id, f, nil
}

// drop ends a segment.
func (s *slots) drop(id [2]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.segments[id]
	delete(s.segments, id)
	for i, used := range g.used {
		if used {
			s.forget(slotID{id[0], id[1], int32(i)}, g.of[i])
		}
	}
	_ = unix.Munmap(g.mem) // a mapping that is there
	g.mem = nil
}

// forget has a slot hear nothing more of a block. mu is held.
func (s *slots) forget(id slotID, b metadata.BlockID) {
	list := s.blocks[b]
	for i, other := range list {
		if other == id {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(s.blocks, b)
	} else {
		s.blocks[b] = list
	}
}

// find is the segment of a user's slot. mu is held.
func (s *slots) find(id slotID, user uint32) (*segment, error) {
	g := s.segments[[2]int64{id.hi, id.lo}]
	if g == nil || g.user != user || id.index < 0 || id.index >= slotsOfSegment {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "there is no slot %d of a segment %016x%016x", id.index, uint64(id.hi), uint64(id.lo))
	}
	return g, nil
}

// register has a slot hear of a block.
func (s *slots) register(id slotID, user uint32, b metadata.BlockID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.find(id, user)
	switch {
	case err != nil:
		return err
	case g.used[id.index]:
		return metadata.Errorf(metadata.ErrInvalidArgument, "slot %d is in use", id.index)
	case atomic.LoadUint64(g.flags(id.index))&slotValid == 0:
		return metadata.Errorf(metadata.ErrInvalidArgument, "slot %d is not marked as valid", id.index)
	}
	g.used[id.index], g.of[id.index] = true, b
	s.blocks[b] = append(s.blocks[b], id)
	return nil
}

// release gives a slot up.
func (s *slots) release(id slotID, user uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.find(id, user)
	if err == nil && !g.used[id.index] {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "slot %d is not in use", id.index)
	}
	if err != nil {
		return err
	}
	g.used[id.index] = false
	s.forget(id, g.of[id.index])
	return nil
}

// changed tells the slots of a block that descriptors of it are not to be used any more.
func (s *slots) changed(b metadata.BlockID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.blocks[b] {
		atomic.AndUint64(s.segments[[2]int64{id.hi, id.lo}].flags(id.index), ^slotValid)
	}
}

// Changed hears that a replica is not what it was: it was appended to, cut, restamped, found corrupt or deleted. Who holds
// descriptors of it and has a slot is told. It does not block.
func (s *Server) Changed(b metadata.BlockID) { s.slots.changed(b) }

// shareSlots serves REQUEST_SHORT_CIRCUIT_SHM: a segment, which lives as long as the connection, on which nothing follows.
func (c *conn) shareSlots(op *hadooppb.ShortCircuitShmRequestProto) error {
	refuse := func(status hadooppb.Status, cause error) error {
		return dtp.WriteMessage(c.nc, &hadooppb.ShortCircuitShmResponseProto{Status: status.Enum(), Error: new(cause.Error())})
	}
	sock := security.Local(c.nc)
	if sock == nil || c.proved {
		return refuse(hadooppb.Status_ERROR_INVALID, metadata.Errorf(metadata.ErrInvalidArgument, "memory is shared over a plain Unix-domain socket only"))
	}
	user := c.share()
	account := c.cfg.Shared.Account(user)
	defer account.Close()
	if !account.Try(segmentCharge) {
		return refuse(hadooppb.Status_ERROR, errSheets)
	}
	defer account.Give(segmentCharge)
	id, file, err := c.slots.create(user)
	if err != nil {
		return refuse(hadooppb.Status_ERROR, err)
	}
	defer c.slots.drop(id)
	err = dtp.WriteMessage(c.nc, &hadooppb.ShortCircuitShmResponseProto{
		Status: hadooppb.Status_SUCCESS.Enum(), Id: &hadooppb.ShortCircuitShmIdProto{Hi: &id[0], Lo: &id[1]},
	})
	if err == nil {
		err = localsocket.SendFiles(sock, []byte{0}, file)
	}
	file.Close()
	if err != nil {
		return fmt.Errorf("a segment for %q was not taken: %w", op.GetClientName(), err)
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	if _, err := c.r.ReadByte(); err == nil {
		return fmt.Errorf("%w: something follows on the connection of a segment", dtp.ErrProtocol)
	}
	return errDone
}

// releaseSlot serves RELEASE_SHORT_CIRCUIT_FDS.
func (c *conn) releaseSlot(op *hadooppb.ReleaseShortCircuitAccessRequestProto) error {
	err := metadata.Errorf(metadata.ErrInvalidArgument, "slots are of Unix-domain sockets only")
	if c.near {
		err = c.slots.release(slotOf(op.GetSlotId()), c.share())
	}
	answer := &hadooppb.ReleaseShortCircuitAccessResponseProto{Status: hadooppb.Status_SUCCESS.Enum()}
	if err != nil {
		answer.Status, answer.Error = hadooppb.Status_ERROR_INVALID.Enum(), new(err.Error())
	}
	return dtp.WriteMessage(c.nc, answer)
}
