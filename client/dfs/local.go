package dfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// localLeast is the size of the smallest block that is read by descriptors, in bytes: asking for them takes as long as asking
	// for fewer bytes.
	localLeast = 256 << 10
	// localKept bounds the replicas whose descriptors are kept, localIdle for how long without use, localAge for how long at all. What was deleted keeps its
	// place on the disk until its descriptors are closed.
	localKept = 128
	localIdle = 10 * time.Second
	localAge  = 5 * time.Minute
	// localRefused is for how long a replica is not asked for again whose descriptors were refused, or of no use.
	localRefused = 10 * time.Second
	// localAsk bounds asking a datanode for descriptors.
	localAsk = 2 * time.Second
	// localPatience is how long a disk may take before the datanode is asked, which knows other replicas' datanodes to be asked too.
	localPatience = 500 * time.Millisecond
	// metaVersion is of the checksums that come with the data, and of all access by descriptors.
	metaVersion = 1
	metaHeader  = 7
)

// LocalCounts is what a client did with datanodes on its own machine.
type LocalCounts struct {
	// Connections by Unix-domain sockets, Unreached the tries in vain, after which TCP was used.
	Connections, Unreached int64
	// Opened are the replicas whose descriptors were handed over, Refused those that were not, Bytes what was read by them, and
	// Abandoned the reads that went on over a socket because bytes were missing, wrong, or late.
	Opened, Refused, Bytes, Abandoned int64
}

// LocalCounts is what the client did with datanodes on its own machine.
func (c *Client) LocalCounts() LocalCounts {
	l := c.local
	return LocalCounts{
		Connections: l.connections.Load(), Unreached: l.near.Failures(), Opened: l.opened.Load(), Refused: l.refused.Load(), Bytes: l.bytes.Load(), Abandoned: l.abandoned.Load(),
	}
}

// local is what a client has of the datanodes on its own machine: their sockets, and descriptors of replicas, by which it reads
// without them.
type local struct {
	c    *Client
	near *localsocket.Near
	// askTime, patience, idle and refusal are the constants localAsk, localPatience, localIdle and localRefused, more in tests.
	askTime, patience, idle, refusal time.Duration

	connections, opened, refused, bytes, abandoned atomic.Int64

	ahead atomic.Int64 // buffers that are read ahead into

	mu     sync.Mutex
	kept   map[localKey]*descriptors
	purge  *time.Timer
	closed bool
	asking sync.WaitGroup
}

// localKey is a replica as it was finished: what changes it gives it another generation.
type localKey struct {
	block, generation uint64
	node              string
}

// descriptors are a replica's data and checksums.
type descriptors struct {
	key   localKey
	ready chan struct{} // closed when what follows is known
	err   error         // why there are none
	data  localFile
	sums  localFile
	sum   dtp.Checksum
	size  int64 // up to where the checksums go
	asked time.Time

	// Guarded by local.mu.
	users   int
	used    time.Time
	dropped bool // who is the last to use it closes it
}

// localFile is what a descriptor is of.
type localFile struct {
	*os.File
	inMemory bool // reading waits for no disk
}

func newLocal(c *Client) *local {
	return &local{
		c: c, near: localsocket.NewNear(c.config.DomainSocket, c.log), askTime: localAsk, patience: localPatience, idle: localIdle, refusal: localRefused,
		kept: map[localKey]*descriptors{},
	}
}

// dial connects to a datanode of this machine; nil: there is none.
func (l *local) dial(ctx context.Context, addr string) net.Conn {
	if c := l.near.Dial(ctx, addr); c != nil {
		l.connections.Add(1)
		return c
	}
	return nil // and no UnixConn that is nil
}

// get has descriptors of a replica that a datanode of this machine has; nil: there are none, now or at all. put ends their
// use.
func (l *local) get(ctx context.Context, b *located, node *hadooppb.DatanodeInfoProto) *descriptors {
	addr := dtp.TransferAddr(node.GetId(), false)
	if l.near.Path(addr) == "" || roleOf(node.GetId()) != authority.Datanode {
		return nil
	}
	key := localKey{b.block.GetBlockId(), b.block.GetGenerationStamp(), node.GetId().GetDatanodeUuid()}
	now := time.Now()
	l.mu.Lock()
	d := l.kept[key]
	if d != nil && now.Sub(d.asked) > l.life(d) {
		l.dropLocked(d)
		d = nil
	}
	if d == nil {
		if l.closed || len(l.kept) >= localKept && !l.makeRoomLocked() {
			l.mu.Unlock()
			return nil
		}
		d = &descriptors{key: key, ready: make(chan struct{}), asked: now, users: 1} // who asks
		l.kept[key] = d
		l.asking.Go(func() { l.ask(d, addr, b.block, b.token, b.size) })
		if l.purge == nil {
			l.purge = time.AfterFunc(l.idle, l.purgeIdle)
		}
	}
	d.users++
	d.used = now
	l.mu.Unlock()
	select {
	case <-d.ready:
	default:
		// A datanode that does not answer is asked for the bytes as well, and others beside it, as any that is slow.
		slow := time.NewTimer(l.c.hedging.delay())
		defer slow.Stop()
		select {
		case <-d.ready:
		case <-slow.C:
			l.put(d)
			return nil
		case <-ctx.Done():
			l.put(d)
			return nil
		}
	}
	if d.err != nil || d.size < b.size {
		l.put(d)
		return nil
	}
	return d
}

// life is for how long what is known counts.
func (l *local) life(d *descriptors) time.Duration {
	select {
	case <-d.ready:
		if d.err != nil {
			return l.refusal
		}
	default:
	}
	return localAge
}

// put ends a use of descriptors.
func (l *local) put(d *descriptors) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.users--
	d.closeLocked()
}

// closeLocked closes what nobody uses and nobody will.
func (d *descriptors) closeLocked() {
	if !d.dropped || d.users > 0 || d.data.File == nil {
		return
	}
	d.data.Close()
	d.sums.Close()
	d.data, d.sums = localFile{}, localFile{}
}

// dropLocked has descriptors not used any more.
func (l *local) dropLocked(d *descriptors) {
	if l.kept[d.key] == d {
		delete(l.kept, d.key)
	}
	d.dropped = true
	d.closeLocked()
}

// makeRoomLocked drops what was not used for longest; false: everything is in use.
func (l *local) makeRoomLocked() bool {
	var oldest *descriptors
	for _, d := range l.kept {
		if d.users == 0 && (oldest == nil || d.used.Before(oldest.used)) {
			oldest = d
		}
	}
	if oldest == nil {
		return false
	}
	l.dropLocked(oldest)
	return true
}

// purgeIdle drops what was not used lately, and comes again while anything is left.
func (l *local) purgeIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.purge = nil
	now := time.Now()
	for _, d := range l.kept {
		if d.users == 0 && now.Sub(d.used) > l.idle {
			l.dropLocked(d)
		}
	}
	if len(l.kept) > 0 && !l.closed {
		l.purge = time.AfterFunc(l.idle, l.purgeIdle)
	}
}

// reject has a replica read over a socket for a while: its descriptors have not shown what they should.
func (l *local) reject(d *descriptors, cause error) {
	l.abandoned.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(d)
	if l.closed || len(l.kept) >= localKept && !l.makeRoomLocked() {
		return
	}
	no := &descriptors{key: d.key, ready: make(chan struct{}), asked: time.Now(), used: time.Now(), err: cause}
	close(no.ready)
	l.kept[d.key] = no
}

func (l *local) close() {
	l.mu.Lock()
	l.closed = true
	for _, d := range l.kept {
		l.dropLocked(d)
	}
	if l.purge != nil {
		l.purge.Stop()
	}
	l.mu.Unlock()
	l.asking.Wait()
}

// ask asks a datanode for descriptors.
func (l *local) ask(d *descriptors, addr string, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto, size int64) {
	ctx, cancel := context.WithTimeout(context.Background(), l.askTime)
	defer cancel()
	files, err := l.request(ctx, addr, b, token)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer d.closeLocked()
	d.users--
	if err == nil {
		if err = d.take(files, size); err != nil {
			for _, f := range files {
				f.Close()
			}
		}
	}
	if err == nil {
		l.opened.Add(1)
	} else {
		d.err = err
		l.refused.Add(1)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			l.near.Rest(l.near.Path(addr))
		}
		if refusedToken(err) { // the next one will be another
			l.dropLocked(d)
		}
		l.c.log.Debug("a replica on this machine is read over a socket", "block", d.key.block, "node", addr, "error", err)
	}
	close(d.ready)
}

var errNotNear = errors.New("no connection by a Unix-domain socket")

// request asks for the files of a replica's data and checksums.
func (l *local) request(ctx context.Context, addr string, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) ([]*os.File, error) {
	c := l.near.Dial(ctx, addr)
	if c == nil {
		return nil, errNotNear
	}
	defer c.Close()
	l.connections.Add(1)
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	err := dtp.WriteOp(c, dtp.OpShortCircuitFDs, &hadooppb.OpRequestShortCircuitAccessProto{
		Header: &hadooppb.BaseHeaderProto{Block: b, Token: token}, MaxVersion: new(uint32(metaVersion)),
	})
	if err != nil {
		return nil, err
	}
	from := &localsocket.Receiver{Conn: c}
	defer from.Close()
	var answer hadooppb.BlockOpResponseProto
	if err := dtp.ReadUnbuffered(from, &answer); err != nil {
		return nil, err
	}
	if err := dtp.CheckResponse(dtp.OpShortCircuitFDs, &answer); err != nil {
		return nil, err
	}
	if v := answer.GetShortCircuitAccessVersion(); v != metaVersion {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "descriptors of version %d", v)
	}
	var verifies [1]byte
	if _, err := from.Read(verifies[:]); err != nil {
		return nil, err
	}
	files := from.Files()
	if len(files) != 2 {
		for _, f := range files {
			f.Close()
		}
		return nil, fmt.Errorf("%w: %d descriptors came, two were asked for", dtp.ErrProtocol, len(files))
	}
	return files, nil
}

// take looks at the files that have come, in which size bytes of the block are wanted. local.mu is held; they are in memory, or in
// caches.
func (d *descriptors) take(files []*os.File, size int64) error {
	var sizes [2]int64
	for i, f := range files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%w: a descriptor is of no file", dtp.ErrProtocol)
		}
		sizes[i] = info.Size()
	}
	var head [metaHeader]byte
	if _, err := files[1].ReadAt(head[:], 0); err != nil {
		return fmt.Errorf("%w: the checksums of a replica have no header: %w", dtp.ErrProtocol, err)
	}
	if v := binary.BigEndian.Uint16(head[:]); v != metaVersion {
		return fmt.Errorf("%w: the checksums of a replica are of version %d", dtp.ErrProtocol, v)
	}
	sum, err := dtp.ChecksumOf(&hadooppb.ChecksumProto{
		Type: hadooppb.ChecksumTypeProto(head[2]).Enum(), BytesPerChecksum: new(binary.BigEndian.Uint32(head[3:])),
	})
	if err != nil {
		return err
	}
	if sum.Type == dtp.Null || sum.BytesPer < localChunk || sum.BytesPer > localFirst {
		return fmt.Errorf("%w: checksums of type %v over %d bytes", dtp.ErrProtocol, sum.Type, sum.BytesPer)
	}
	covered := min(sizes[0], (sizes[1]-metaHeader)/4*int64(sum.BytesPer))
	if covered < size {
		return fmt.Errorf("%w: the descriptors are of %d bytes and checksums for %d, the block has %d", dtp.ErrProtocol, sizes[0], covered, size)
	}
	d.data, d.sums, d.sum, d.size = localFileOf(files[0]), localFileOf(files[1]), sum, covered
	return nil
}

// localFileOf finds out where a file lies: seals are of memory alone, a tmpfs and what has no name.
func localFileOf(f *os.File) localFile {
	_, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return localFile{f, err == nil}
}

// readFile reads exactly p at off of a file. What is not in memory is waited for no longer than the disk may take, and than ctx.
func (l *local) readFile(ctx context.Context, d *descriptors, f localFile, p []byte, off int64) error {
	if f.inMemory { // which knows no RWF_NOWAIT
		_, err := f.ReadAt(p, off)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	n := 0
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { n, _ = unix.Preadv2(int(fd), [][]byte{p}, off, unix.RWF_NOWAIT) }); err != nil {
		return err
	}
	if n == len(p) {
		return nil
	}
	rest, at := p[max(n, 0):], off+int64(max(n, 0))
	l.mu.Lock()
	d.users++ // also while nobody waits any more
	l.mu.Unlock()
	type answer struct {
		b   []byte
		err error
	}
	done := make(chan answer, 1)
	go func() {
		b := make([]byte, len(rest))
		_, err := f.ReadAt(b, at)
		l.put(d) // before that is known
		done <- answer{b, err}
	}()
	slow := time.NewTimer(l.patience)
	defer slow.Stop()
	select {
	case a := <-done:
		copy(rest, a.b)
		if errors.Is(a.err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return a.err
	case <-slow.C:
		return errSlowDisk
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errSlowDisk = errors.New("the disk takes long")
