package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// prefetch is how much of a file's block list is asked for at a time, as a multiple of its block size (Hadoop's
	// dfs.client.read.prefetch.size).
	prefetch = 10
	// firstPrefetch, in bytes, is what is asked for before the block size is known.
	firstPrefetch = 10 * 128 << 20
	// skipAhead is how far a seek reads on in place of asking anew.
	skipAhead = 256 << 10
	// readRounds is how often the locations of a block are asked for again when none of them gives its bytes.
	readRounds = 3
)

// located is a block of a file and where its replicas are.
type located struct {
	block  *hadooppb.ExtendedBlockProto
	token  *hadooppb.TokenProto
	offset int64 // in the file
	size   int64
	nodes  []*hadooppb.DatanodeInfoProto
	group  *locatedGroup // of a block group; nil: the block is replicated
	open   bool          // it is being written
}

func (b *located) end() int64 { return b.offset + b.size }

// Reader reads a file as it was when it was opened; of a file that is being written that is what its writer had flushed
// by then. Every byte is checked against its checksum, and a replica that fails is replaced by another one on the way.
//
// A datanode that takes long is not waited for alone: a second one is asked as well, and who is first wins (hedge.go).
//
// Read, Seek, WriteTo and Close are for one goroutine at a time; ReadAt may be called by many, at any time before Close.
// All of them end when the context that the Reader was opened with does.
type Reader struct {
	c      *Client
	life   context.Context // Open's
	path   string
	length int64

	pos    int64
	began  int64 // from where to pos everything was read in order
	stream source
	closed bool
	inode  uint64 // 0: the server does not say
	mtime  uint64 // when its bytes were changed last; 0: the server does not say, or it is being written

	// patience is how long a datanode may say nothing, and that nobody is asked again who did; 0: as long as the client's do, and they are.
	patience time.Duration

	// whole is all of the file, if its bytes came when it was opened, and not to be changed; else nil.
	whole []byte

	mu     sync.Mutex
	block  int64          // block size, or a guess
	coder  *erasure.Coder // of a file with an erasure coding policy
	form   uint32         // the number of the policy, 0 for none
	blocks []*located     // known ones, by offset
	bad    map[replica]bool
}

// source is what one place of a file is read from: a replicated block, of a datanode (flow) or by descriptors that one on this
// machine has handed over (localFlow), or a block group (groupFlow).
type source interface {
	// read returns the next bytes, valid until the next call, and at least one. io.EOF: that was all.
	read() ([]byte, error)
	// unread gives back what was not used of the bytes that read returned last.
	unread(b []byte)
	// during says what failures are counted to.
	during(a *attempt)
	// until is where in the file the block ends.
	until() int64
	// settle ends a source that has nothing more to give at once, so that connections can be used again; false: it has.
	settle() bool
	// failed takes note of how the source ended. An error ends the call.
	failed(err error) error
	close()
}

// replica is one copy of a block, as far as a reader has to tell them apart.
type replica struct {
	block uint64
	node  string
}

// Open opens a file for reading. A directory is an error of kind ErrNotExist, as in HDFS. ctx lives with the Reader: when
// it ends, what is being read ends with its error, and so does everything that is read later.
func (c *Client) Open(ctx context.Context, name string) (*Reader, error) {
	name, err := clean("open", name)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		r, last, err := c.openOnce(ctx, name)
		if err == nil || last == 0 || try == readRounds {
			return r, err
		}
		// An open end whose place groups have taken meanwhile has no datanodes any more.
		list, lerr := c.locate(ctx, c.call, name, 0, 1)
		if lerr != nil || list.GetLastBlock().GetB().GetBlockId() == last {
			return nil, err
		}
	}
}

// openOnce opens a file as it is. If nobody says how long its last block is, which is being written, last is the block.
func (c *Client) openOnce(ctx context.Context, name string) (r *Reader, last uint64, err error) {
	answer, err := c.openSmall(ctx, name, metadata.MaxBody)
	if err != nil {
		return nil, 0, err
	}
	if data := answer.GetData(); data != nil {
		return &Reader{c: c, life: ctx, path: name, length: int64(len(data)), whole: data}, 0, nil
	}
	list := answer.GetLocations()
	if list == nil {
		if list, err = c.locate(ctx, c.read, name, 0, firstPrefetch); err != nil {
			return nil, 0, err
		}
	}
	r, err = c.newReader(ctx, name, list)
	if err != nil {
		return nil, 0, err
	}
	end := list.GetLastBlock()
	switch {
	case end == nil || list.GetIsLastBlockComplete():
	case striped(end): // nobody promises anything of a group before its end
		r.length = int64(end.GetOffset())
	default:
		visible, err := c.visibleLength(ctx, name, end)
		if err != nil {
			return nil, end.GetB().GetBlockId(), err
		}
		r.length = int64(end.GetOffset()) + visible
	}
	r.learn(list)
	return r, 0, nil
}

// newReader makes a reader of what was located, of which it does not know the blocks yet.
func (c *Client) newReader(ctx context.Context, name string, list *hadooppb.LocatedBlocksProto) (*Reader, error) {
	r := &Reader{c: c, life: ctx, path: name, length: int64(list.GetFileLength()), block: 128 << 20, inode: list.GetFileId(), form: list.GetEcPolicy().GetId(), bad: map[replica]bool{}}
	var err error
	if r.coder, err = coderOf(list.GetEcPolicy(), dtp.Checksum{BytesPer: 1}); err != nil {
		return nil, wrap("open", name, err)
	}
	if !list.GetUnderConstruction() { // else it gets another time when it is closed
		r.mtime = list.GetModificationTime()
	}
	if c.config.LeaveSilent {
		r.patience = c.config.DatanodeTimeout
	}
	return r, nil
}

// Size is the length of the file in bytes.
func (r *Reader) Size() int64 { return r.length }

// Name is the path of the file.
func (r *Reader) Name() string { return r.path }

// learn adds blocks to those known.
func (r *Reader) learn(list *hadooppb.LocatedBlocksProto) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learnLocked(list)
}

// learnLocked adds blocks, of a list in the form that the file is known to have. No two that are known have a byte in common: one that is new replaces all that it overlaps.
// The length of the last one follows from that of the file.
func (r *Reader) learnLocked(list *hadooppb.LocatedBlocksProto) {
	add := func(p *hadooppb.LocatedBlockProto) {
		b := &located{
			block:  p.GetB(),
			token:  p.GetBlockToken(),
			offset: int64(p.GetOffset()),
			size:   int64(p.GetB().GetNumBytes()),
			nodes:  p.GetLocs(),
		}
		if b.offset < 0 || b.offset >= r.length {
			return
		}
		if last := list.GetLastBlock(); last != nil && last.GetB().GetBlockId() == b.block.GetBlockId() {
			b.size = r.length - b.offset
			b.open = !list.GetIsLastBlockComplete()
		}
		b.size = min(b.size, r.length-b.offset)
		if b.size <= 0 {
			return
		}
		if striped(p) && r.coder != nil {
			b.group = newLocatedGroup(p, r.coder)
		}
		from := sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].end() > b.offset })
		to := sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].offset >= b.end() })
		r.blocks = slices.Replace(r.blocks, from, to, b)
	}
	for _, p := range list.GetBlocks() {
		add(p)
		r.block = max(int64(p.GetB().GetNumBytes()), 1)
	}
	if last := list.GetLastBlock(); last != nil {
		add(last)
	}
}

// at returns the block that holds the byte at pos, asking the namenode if it is not known, or if fresh. Nothing is learned of a file that is another one by now.
func (r *Reader) at(ctx context.Context, pos int64, fresh bool) (*located, error) {
	if !fresh {
		if b := r.known(pos); b != nil {
			return b, nil
		}
	}
	r.mu.Lock()
	ahead := max(prefetch*r.block, 1<<20)
	r.mu.Unlock()
	list, err := r.c.locate(ctx, r.c.call, r.path, pos, ahead)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock() // all at once: groups are read as the policy says that their list came with
	switch before, now := r.knownLocked(pos), blockIn(list, pos); {
	case r.exchangedLocked(list, before, now):
		coder, err := coderOf(list.GetEcPolicy(), dtp.Checksum{BytesPer: 1})
		if err != nil {
			return nil, wrap("read", r.path, err)
		}
		r.blocks, r.coder, r.form = nil, coder, list.GetEcPolicy().GetId()
	case r.inode != 0 && list.GetFileId() != 0 && list.GetFileId() != r.inode, list.GetEcPolicy().GetId() != r.form, isOther(before, now):
		return nil, &Error{Op: "read", Path: r.path, Kind: metadata.ErrIO, Message: "the file has been replaced since it was opened"}
	}
	r.learnLocked(list)
	if b := r.knownLocked(pos); b != nil {
		return b, nil
	}
	return nil, &Error{Op: "read", Path: r.path, Kind: metadata.ErrIO, Message: fmt.Sprintf("the file has no block at offset %d any more", pos)}
}

// exchangedLocked reports whether other blocks have taken the place of those that are known, with the same bytes: the file has got another form, or groups the
// place of its open end. Another file under the same name is no such case, nor is one that was truncated and has grown again, before it got another form or without: its time is another one. A file that has a policy cannot be truncated,
// and gets another time when something is appended to it, so time counts only where it was replicated, or is now. before is what is known at a place, now what a list has there, nil for nothing.
func (r *Reader) exchangedLocked(list *hadooppb.LocatedBlocksProto, before *located, now *hadooppb.LocatedBlockProto) bool {
	if r.inode == 0 || list.GetFileId() != r.inode || int64(list.GetFileLength()) < r.length && list.GetIsLastBlockComplete() {
		return false
	}
	form := list.GetEcPolicy().GetId()
	if form == r.form && !isOther(before, now) {
		return false
	}
	return r.form != 0 && form != 0 || r.mtime == 0 || r.mtime == list.GetModificationTime()
}

// isOther reports whether there is another block in the place of one; nil for none.
func isOther(before *located, now *hadooppb.LocatedBlockProto) bool {
	return before != nil && now != nil && now.GetB().GetBlockId() != before.block.GetBlockId()
}

// blockIn is the block of a list that has the byte at pos, which all from the beginning of the last one on are taken for; nil: the list has none.
func blockIn(list *hadooppb.LocatedBlocksProto, pos int64) *hadooppb.LocatedBlockProto {
	for _, b := range list.GetBlocks() {
		if int64(b.GetOffset()) <= pos && pos < int64(b.GetOffset()+b.GetB().GetNumBytes()) {
			return b
		}
	}
	if last := list.GetLastBlock(); last != nil && int64(last.GetOffset()) <= pos {
		return last
	}
	return nil
}

func (r *Reader) known(pos int64) *located {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.knownLocked(pos)
}

func (r *Reader) knownLocked(pos int64) *located {
	i := sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i].end() > pos })
	if i < len(r.blocks) && r.blocks[i].offset <= pos {
		return r.blocks[i]
	}
	return nil
}

// attempt is the search for a replica that gives the bytes at one place.
type attempt struct {
	round   int
	causes  []string
	silent  bool      // a datanode said nothing for as long as it may
	disk    bool      // in this round one has said that its disk does not answer at the moment
	failing time.Time // since when nobody gives the bytes
	renewed bool      // a token was refused since the last success, and asked for anew
	corrupt []mismatch
	// sequence is how many bytes before that place were read in order.
	sequence int64
}

// mismatch is a replica whose bytes do not match their checksums.
type mismatch struct {
	b    *located
	node *hadooppb.DatanodeInfoProto
}

// connect opens a stream of up to length bytes at pos from some replica that has not failed yet. When all have, it waits,
// asks for their locations again and tries them anew, readRounds times.
func (r *Reader) connect(ctx context.Context, a *attempt, pos, length int64) (source, error) {
	if r.whole != nil {
		return &body{rest: r.whole[pos : pos+length], end: r.length}, wrap("read", r.path, ctx.Err())
	}
	fresh := false
	for {
		b, err := r.at(ctx, pos, fresh)
		if err != nil {
			return nil, err
		}
		if b.group != nil {
			if f := r.openGroup(ctx, a, b, pos-b.offset, min(length, b.end()-pos)); f != nil {
				return f, nil
			}
		}
		if f := r.openLocal(ctx, a, b, pos-b.offset, min(length, b.end()-pos)); f != nil {
			return f, nil
		}
		renew := false
		for b.group == nil {
			node, other := r.choose(b)
			if node == nil {
				break
			}
			f, err := r.open(ctx, a, b, node, other, pos-b.offset, min(length, b.end()-pos))
			if err == nil {
				a.renewed, a.silent = false, false
				return f, nil
			}
			if ctx.Err() != nil {
				return nil, wrap("read", r.path, ctx.Err())
			}
			if refusedToken(err) && !a.renewed { // it has expired; that is not the datanode's fault
				renew = true
				break
			}
			r.blame(a, b, node, err)
		}
		if renew {
			a.renewed, fresh = true, true
			continue
		}
		r.passOver(a, b)
		if a.failing.IsZero() {
			a.failing = time.Now()
		}
		// A disk may have more trouble with something than it takes to find the locations anew.
		patient := a.disk && r.patience == 0 && time.Since(a.failing) < r.c.times.many
		if a.round >= readRounds && !patient || a.silent && r.patience > 0 {
			return nil, &Error{
				Op: "read", Path: r.path, Kind: metadata.ErrIO,
				Message: fmt.Sprintf("could not obtain block blk_%d at offset %d from any of %d datanodes: %s",
					int64(b.block.GetBlockId()), pos, len(b.nodes), strings.Join(a.causes, "; ")),
			}
		}
		wait := time.NewTimer(r.c.times.retry << (2 * min(a.round, readRounds-1)))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, wrap("read", r.path, ctx.Err())
		}
		a.round++
		a.disk = false
		r.forgive(b)
		fresh = true
	}
}

// passOver adds to the causes the datanodes of a block, or group, that were not asked because of what they did before.
func (r *Reader) passOver(a *attempt, b *located) {
	all := []*located{b}
	if b.group != nil {
		all = b.group.units
	}
	for _, u := range all {
		if u == nil {
			continue
		}
		for _, n := range u.nodes {
			if !r.c.leaves(n) {
				continue
			}
			a.silent = true
			addr := r.c.transferAddr(n)
			if !slices.ContainsFunc(a.causes, func(why string) bool { return strings.HasPrefix(why, addr+": ") }) {
				a.causes = append(a.causes, addr+": it is not asked again before it has said a word")
			}
		}
	}
}

// choose returns the datanode to ask for a block, nil if all have failed, and another one to ask beside it if it is slow.
// One that the client suspects comes last, and never second.
func (r *Reader) choose(b *located) (node, other *hadooppb.DatanodeInfoProto) {
	var suspect *hadooppb.DatanodeInfoProto
	for _, n := range b.nodes {
		switch {
		case r.isBad(b, n):
		case r.c.suspected(n):
			if suspect == nil && !r.c.leaves(n) {
				suspect = n
			}
		case node == nil:
			node = n
		case other == nil:
			other = n
		}
	}
	if node == nil {
		node = suspect
	}
	return node, other
}

// open opens a stream from node, or from other if that is quicker than what is left of node's answer after the delay of
// hedged reads. other may be nil.
func (r *Reader) open(ctx context.Context, a *attempt, b *located, node, other *hadooppb.DatanodeInfoProto, offset, length int64) (*flow, error) {
	f := &flow{r: r, ctx: ctx, a: a, b: b, node: node}
	opening := ctx
	if r.patience > 0 {
		var end context.CancelFunc
		opening, end = context.WithTimeout(ctx, r.patience)
		defer end()
	}
	if other == nil {
		var err error
		f.s, err = r.c.openStream(opening, b, node.GetId(), offset, length)
		return f.opened(err)
	}
	asking, overtake := context.WithCancelCause(opening)
	defer overtake(nil)
	var mu sync.Mutex // held by who looks at the flow, which is this goroutine again once the answer is there
	var timer *time.Timer
	over, delay := false, r.c.hedging.delay()
	mu.Lock()
	timer = time.AfterFunc(delay, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		f.hasten(offset, length, func() { overtake(errOvertaken) })
		delay = min(2*delay, slowAgain)
		timer.Reset(delay)
	})
	mu.Unlock()
	s, err := r.c.openStream(asking, b, node.GetId(), offset, length)
	mu.Lock()
	over = true
	mu.Unlock()
	timer.Stop()
	f.s = s
	if f.h == nil {
		return f.opened(err)
	}
	if err == nil {
		f.dropHedge()
		return f.opened(nil)
	}
	if errors.Is(context.Cause(asking), errOvertaken) {
		err = errOvertaken
	}
	if err = f.switchOver(err); err != nil {
		return nil, err
	}
	return f, nil
}

// flow is what one place of a file is read from: a stream of one datanode, and of another one when that is slow.
type flow struct {
	r    *Reader
	ctx  context.Context
	a    *attempt
	b    *located
	s    *blockStream
	node *hadooppb.DatanodeInfoProto // of s
	h    *hedge                      // beside s; nil: none
}

// opened watches over a stream that was opened, if it was.
func (f *flow) opened(err error) (*flow, error) {
	if err != nil {
		return nil, err
	}
	f.watch()
	return f, nil
}

// watch ends the stream's reads with the context and has a second datanode asked when they take long.
func (f *flow) watch() {
	if f.s.peer == nil {
		return
	}
	if f.s.stop == nil {
		f.s.until(f.ctx)
	}
	if f.r.patience > 0 {
		f.s.peer.timeout = f.r.patience
	}
	f.s.peer.slow, f.s.peer.slowAfter = f.slow, f.r.c.hedging.delay()
	f.s.alone = f.dropHedge
}

// dropHedge gives the other datanode up, if one was asked.
func (f *flow) dropHedge() {
	if h := f.h; h != nil {
		f.h = nil
		h.drop()
	}
}

// slow asks another datanode for what is left of the stream.
func (f *flow) slow() {
	p := f.s.peer
	f.hasten(f.s.pos, f.s.end-f.s.pos, func() { p.interrupt(errOvertaken) })
}

// hasten asks another datanode for a range beside the one that is slow, and, when that has failed, a further one.
func (f *flow) hasten(offset, length int64, won func()) {
	if h := f.h; h != nil {
		select {
		case <-h.done:
		default:
			return
		}
		if h.err == nil || f.ctx.Err() != nil || refusedToken(h.err) {
			return
		}
		f.dropHedge()
		f.r.blame(f.a, f.b, h.node, h.err)
	}
	for _, node := range f.b.nodes {
		if node != f.node && !f.r.isBad(f.b, node) && !f.r.c.suspected(node) {
			f.h = f.r.c.hedge(f.ctx, f.b, node, f.node, offset, length, f.r.patience, won)
			return
		}
	}
}

// read returns the stream's next bytes, or those of the datanode that was quicker. An errOvertaken means that a stream has
// to be opened anew, and is nobody's fault.
func (f *flow) read() ([]byte, error) {
	for {
		data, err := f.s.read()
		if f.h == nil {
			return data, err
		}
		if err == nil || errors.Is(err, io.EOF) {
			f.dropHedge()
			return data, err
		}
		if err = f.switchOver(err); err != nil {
			return nil, err
		}
	}
}

// switchOver goes on with the hedge in place of a stream that has failed with cause. Without success it returns cause.
func (f *flow) switchOver(cause error) error {
	h := f.h
	f.h = nil
	<-h.done
	if h.err != nil {
		if f.ctx.Err() == nil && !refusedToken(h.err) {
			f.r.blame(f.a, f.b, h.node, h.err)
		}
		h.drop()
		return cause
	}
	if errors.Is(cause, errOvertaken) {
		f.r.c.suspect(f.node, f.b.block, f.b.token, true)
	} else {
		f.r.blame(f.a, f.b, f.node, cause)
	}
	f.s, f.node = h.s, h.node
	if f.s.stop != nil { // it ends with the flow from now on, and leaves the hedge's context
		f.s.stop()
		f.s.stop = nil
	}
	h.cancel()
	f.watch()
	return nil
}

// close gives the stream up.
func (f *flow) close() {
	f.dropHedge()
	f.s.close()
}

func (f *flow) unread(b []byte)   { f.s.unread(b) }
func (f *flow) during(a *attempt) { f.a = a }
func (f *flow) until() int64      { return f.b.end() }

func (f *flow) settle() bool {
	if f.s.pos < f.s.end {
		return false
	}
	if f.s.peer != nil {
		f.s.peer.slow = nil
	}
	if _, err := f.s.read(); !errors.Is(err, io.EOF) {
		f.s.close()
	}
	return true
}

func (f *flow) failed(err error) error {
	f.r.blame(f.a, f.b, f.node, err)
	return nil
}

func (r *Reader) isBad(b *located, node *hadooppb.DatanodeInfoProto) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bad[replica{b.block.GetBlockId(), node.GetId().GetDatanodeUuid()}]
}

// blame marks a replica as failed, suspects a datanode that was silent and notes a corrupt replica.
func (r *Reader) blame(a *attempt, b *located, node *hadooppb.DatanodeInfoProto, cause error) {
	addr := r.c.transferAddr(node)
	timeout, ok := errors.AsType[net.Error](cause)
	silent := ok && timeout.Timeout()
	if dial, ok := errors.AsType[*net.OpError](cause); silent || ok && dial.Op == "dial" && r.c.config.LeaveSilent {
		r.c.suspect(node, b.block, b.token, false)
		r.c.suspects.leave(addr)
		if a.silent = true; silent && r.patience > 0 {
			cause = silence("it", r.patience)
		}
	}
	if answer, ok := errors.AsType[*dtp.ResponseError](cause); ok && answer.Silent {
		a.disk = true
	}
	r.c.log.Warn("read from a datanode failed", "path", r.path, "block", b.block.GetBlockId(), "node", addr, "error", cause)
	if why := fmt.Sprintf("%s: %v", addr, cause); !slices.Contains(a.causes, why) {
		a.causes = append(a.causes, why)
	}
	r.mu.Lock()
	r.bad[replica{b.block.GetBlockId(), node.GetId().GetDatanodeUuid()}] = true
	r.mu.Unlock()
	if errors.Is(cause, dtp.ErrChecksum) {
		a.corrupt = append(a.corrupt, mismatch{b, node})
	}
}

// report tells the namenode of the corrupt replicas that an attempt has met. Where no replica of several matches, the client
// itself may be at fault, and nothing is said (Hadoop's DFSInputStream.reportCheckSumFailure).
func (r *Reader) report(ctx context.Context, a *attempt) {
	var corrupt []*hadooppb.LocatedBlockProto
	for len(a.corrupt) > 0 && ctx.Err() == nil {
		id := a.corrupt[len(a.corrupt)-1].b.block.GetBlockId()
		var b *located // as it was located last
		var nodes []*hadooppb.DatanodeInfoProto
		a.corrupt = slices.DeleteFunc(a.corrupt, func(m mismatch) bool {
			if m.b.block.GetBlockId() != id {
				return false
			}
			b = m.b
			if !slices.ContainsFunc(nodes, func(n *hadooppb.DatanodeInfoProto) bool {
				return n.GetId().GetDatanodeUuid() == m.node.GetId().GetDatanodeUuid()
			}) {
				nodes = append(nodes, m.node)
			}
			return true
		})
		if len(nodes) >= len(b.nodes) && len(b.nodes) > 1 {
			r.c.log.Warn("no replica of a block matches its checksums", "path", r.path, "block", id)
			continue
		}
		corrupt = append(corrupt, &hadooppb.LocatedBlockProto{
			B: b.block, Offset: new(uint64(b.offset)), Locs: nodes, Corrupt: new(true), BlockToken: tokenOf(b.token),
		})
	}
	if len(corrupt) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.c.times.tell)
	defer cancel()
	err := r.c.call(ctx, "report bad blocks of", r.path, "reportBadBlocks",
		&hadooppb.ReportBadBlocksRequestProto{Blocks: corrupt}, new(hadooppb.ReportBadBlocksResponseProto))
	if err != nil {
		r.c.log.Warn("cannot report corrupt replicas", "path", r.path, "error", err)
	}
}

func (r *Reader) forgive(b *located) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.bad {
		if k.block == b.block.GetBlockId() || b.group != nil && metadata.BlockID(k.block).Group() == metadata.BlockID(b.block.GetBlockId()) {
			delete(r.bad, k)
		}
	}
}

// chunk returns the next bytes in sequence, valid until the next call.
func (r *Reader) chunk() ([]byte, error) {
	if r.closed {
		return nil, fmt.Errorf("read %s: %w", r.path, fs.ErrClosed)
	}
	var a attempt
	data, err := r.next(&a)
	r.report(r.life, &a)
	return data, err
}

// next is an attempt at a chunk.
func (r *Reader) next(a *attempt) ([]byte, error) {
	for {
		if r.pos >= r.length {
			r.drop()
			return nil, io.EOF
		}
		if r.stream == nil {
			a.sequence = r.pos - r.began
			f, err := r.connect(r.life, a, r.pos, r.length-r.pos)
			if err != nil {
				return nil, err
			}
			r.stream = f
		}
		r.stream.during(a)
		data, err := r.stream.read()
		if err == nil {
			r.pos += int64(len(data))
			return data, nil
		}
		f := r.stream
		r.stream = nil
		if err := r.failed(r.life, f, err); err != nil {
			return nil, err
		}
	}
}

// failed takes note of how a stream ended. An error ends the call too: that its context is over, or what would not go away.
func (r *Reader) failed(ctx context.Context, f source, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, errOvertaken) {
		return nil
	}
	if ctx.Err() != nil {
		return wrap("read", r.path, ctx.Err())
	}
	return f.failed(err)
}

// Read reads the next bytes.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := 0
	for n < len(p) {
		data, err := r.chunk()
		if err != nil {
			if n > 0 {
				return n, nil
			}
			return 0, err
		}
		m := copy(p[n:], data)
		n += m
		if m < len(data) {
			r.stream.unread(data[m:])
			r.pos -= int64(len(data) - m)
		}
	}
	r.settle()
	return n, nil
}

// settle lets a stream that has nothing more to give end at once, so that its connection can be used again.
func (r *Reader) settle() {
	if r.stream != nil && r.stream.settle() {
		r.stream = nil
	}
}

// WriteTo writes the rest of the file to w without copying it on the way.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var n int64
	for {
		data, err := r.chunk()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		m, err := w.Write(data)
		n += int64(m)
		if m < len(data) && err == nil {
			err = io.ErrShortWrite
		}
		if err != nil {
			if r.stream != nil {
				r.stream.unread(data[m:])
			} else if m < len(data) {
				r.drop()
			}
			r.pos -= int64(len(data) - m)
			return n, err
		}
	}
}

// ReadAt reads len(p) bytes at off, over a connection of its own. At the end of the file it returns io.EOF.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(r.life, p, off)
}

// ReadAtContext is ReadAt with a context of its own, in place of the Reader's.
func (r *Reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, &Error{Op: "read", Path: r.path, Kind: metadata.ErrInvalidArgument, Message: "negative offset"}
	}
	n := 0
	var a attempt
	defer func() { r.report(ctx, &a) }()
	for n < len(p) {
		pos := off + int64(n)
		if pos >= r.length {
			return n, io.EOF
		}
		f, err := r.connect(ctx, &a, pos, min(int64(len(p)-n), r.length-pos))
		if err != nil {
			return n, err
		}
		for {
			var data []byte
			if data, err = f.read(); err != nil {
				break
			}
			n += copy(p[n:], data)
		}
		if err := r.failed(ctx, f, err); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Seek moves to where the next Read starts. A short way forward is read and skipped.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.length
	default:
		return r.pos, &Error{Op: "seek", Path: r.path, Kind: metadata.ErrInvalidArgument, Message: fmt.Sprintf("whence %d", whence)}
	}
	if offset < 0 {
		return r.pos, &Error{Op: "seek", Path: r.path, Kind: metadata.ErrInvalidArgument, Message: "negative offset"}
	}
	if offset == r.pos {
		return offset, nil
	}
	if ahead := offset - r.pos; r.stream != nil && ahead > 0 && ahead <= skipAhead && offset < r.stream.until() {
		for r.pos < offset {
			data, err := r.chunk()
			if err != nil {
				break // the next Read meets it again
			}
			if over := r.pos - offset; over > 0 {
				r.stream.unread(data[int64(len(data))-over:])
				r.pos = offset
			}
		}
		if r.pos == offset {
			return offset, nil
		}
	}
	r.drop()
	r.pos, r.began = offset, offset
	return offset, nil
}

// drop gives up the stream.
func (r *Reader) drop() {
	if r.stream != nil {
		r.stream.close()
		r.stream = nil
	}
}

// Close ends reading.
func (r *Reader) Close() error {
	if r.closed {
		return fmt.Errorf("close %s: %w", r.path, fs.ErrClosed)
	}
	r.closed = true
	r.drop()
	return nil
}

// refusedToken reports whether a datanode refused a request for the token in it. The namenode gives a new one with the
// block's locations.
func refusedToken(err error) bool {
	answer, ok := errors.AsType[*dtp.ResponseError](err)
	return ok && answer.Status == hadooppb.Status_ERROR_ACCESS_TOKEN
}

// tokenOf is t, or the empty token that stands for none.
func tokenOf(t *hadooppb.TokenProto) *hadooppb.TokenProto {
	if t != nil {
		return t
	}
	return &hadooppb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: new(string), Service: new(string)}
}
