package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Small files: those whose bytes hops' namenodes keep themselves are made and opened by one call with their bytes. Other servers are asked once in a while
// whether they have such calls, and as ever otherwise.

const (
	// smallDirAgain is after how long a directory is asked about again that had no small files.
	smallDirAgain = time.Minute
	// smallDirs is how many such directories are remembered.
	smallDirs = 1024
)

// smallFiles is what a client knows of where small files are made.
type smallFiles struct {
	ownCalls
	// limit is how large they may be, as the server has said; 0: it has not said anything.
	limit int
	// without are directories whose files are made as ordinary ones, and until when that is believed.
	without map[string]time.Time
}

// most is how many bytes a small file may have, as far as that is known.
func (s *smallFiles) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 {
		return s.limit
	}
	return metadata.MaxBody
}

// limited notes how many bytes the server allows; 0: it does not say.
func (s *smallFiles) limited(limit uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit > 0 {
		s.limit = int(min(limit, metadata.MaxBody))
	}
}

// in reports whether small files may be made in a directory.
func (s *smallFiles) in(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.until.IsZero() && !now.After(s.until) {
		return false
	}
	until, known := s.without[dir]
	if known && now.After(until) {
		delete(s.without, dir)
		known = false
	}
	return !known
}

// notIn notes that a directory has none.
func (s *smallFiles) notIn(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.without == nil || len(s.without) >= smallDirs {
		s.without = map[string]time.Time{}
	}
	s.without[dir] = time.Now().Add(smallDirAgain)
}

// storeSmall makes a file with its bytes by one call. stored: it is made; without an error it was not, nothing was done, and it has to be made as any other.
func (c *Client) storeSmall(ctx context.Context, request *hadooppb.CreateRequestProto, data []byte) (id uint64, stored bool, err error) {
	dir := path.Dir(request.GetSrc())
	if c.config.NoSmallFiles || len(data) > c.small.most() || !c.small.in(dir) {
		return 0, false, nil
	}
	var answer hadooppb.CreateWithDataResponseProto
	err = c.rpc.Call(ctx, operatorProtocol, "createWithData", &hadooppb.CreateWithDataRequestProto{Create: request, Data: data}, &answer)
	switch {
	case c.small.unknown(err):
		return 0, false, nil
	case err != nil:
		return 0, false, wrap("create", request.GetSrc(), c.hinted(err))
	case !answer.GetStored():
		if c.small.limited(answer.GetLimit()); len(data) > 0 && request.GetCreateFlag()&flagReplicate == 0 && len(data) <= c.small.most() { // others may be, where files are coded
			c.small.notIn(dir)
		}
		return 0, false, nil
	}
	return answer.GetStatus().GetFileId(), true, nil
}

// openSmall opens a file by one call that comes with its bytes if it is a small one of at most most bytes; nil, nil: the server has no such call.
func (c *Client) openSmall(ctx context.Context, name string, most int) (*hadooppb.OpenWithDataResponseProto, error) {
	if c.config.NoSmallFiles || !c.small.served() {
		return nil, nil
	}
	answer := new(hadooppb.OpenWithDataResponseProto)
	err := c.rpc.Read(ctx, operatorProtocol, "openWithData", &hadooppb.OpenWithDataRequestProto{Path: &name, Most: new(uint32(most)), Length: new(uint64(firstPrefetch))}, answer)
	switch {
	case c.small.unknown(err):
		return nil, nil
	case err != nil:
		return nil, wrap("open", name, c.hinted(err))
	}
	return answer, nil
}

const (
	// manyPaths and manyBytes are how many files are asked for with one call, and about how much data: an answer fits into the buffers that both ends of a connection
	// keep, and into the caches of processors, and a call costs little beside that.
	manyPaths = 32
	manyBytes = 160 << 10
	// manyCalls is how many such calls, or files that are opened by themselves, are under way at a time.
	manyCalls = 4
)

// ManyFiles is what ReadMany has read: for each path its bytes, or why there are none. Files that came with one answer share its memory, 160 KiB about:
// who keeps one of them for long copies it.
type ManyFiles struct {
	Data   [][]byte
	Errors []error
}

// ReadMany returns the contents of files, of which those that namenodes keep come many with a call; the others are read as by ReadFile. Files of more than
// most bytes are an error of their own (ErrInvalidArgument); 0: there is no limit. A file whose datanodes say nothing, or not their disks, fails after 15 s for each of them, and holds up no others.
// The error is of all of them.
func (c *Client) ReadMany(ctx context.Context, names []string, most int64) (*ManyFiles, error) {
	out := &ManyFiles{Data: make([][]byte, len(names)), Errors: make([]error, len(names))}
	paths := make([]string, len(names))
	var asked []int // which may be small
	for i, name := range names {
		if paths[i], out.Errors[i] = clean("open", name); out.Errors[i] == nil {
			asked = append(asked, i)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(manyCalls)
	for len(asked) > 0 {
		some := asked[:min(len(asked), manyPaths)]
		asked = asked[len(some):]
		group.Go(func() error { return c.readSome(ctx, paths, some, most, out) })
	}
	return out, group.Wait()
}

// readSome reads the files of some numbers.
func (c *Client) readSome(ctx context.Context, paths []string, some []int, most int64, out *ManyFiles) error {
	var alone []int
	for len(some) > 0 {
		if c.config.NoSmallFiles || !c.small.served() {
			alone = append(alone, some...)
			break
		}
		request := &hadooppb.OpenManyWithDataRequestProto{Most: new(uint32(manyBytes))}
		for _, i := range some {
			request.Paths = append(request.Paths, paths[i])
		}
		var answer manyAnswer
		err := c.rpc.Read(ctx, operatorProtocol, "openManyWithData", request, &answer)
		if c.small.unknown(err) {
			continue
		}
		if err != nil {
			return wrap("open", paths[some[0]], c.hinted(err))
		}
		files := answer.files
		if len(files) == 0 || len(files) > len(some) {
			return &Error{Op: "open", Path: paths[some[0]], Kind: metadata.ErrIO, Message: fmt.Sprintf("the namenode answers with %d files, asked for %d", len(files), len(some))}
		}
		for k, f := range files {
			i := some[k]
			switch {
			case f.failed:
				out.Errors[i] = wrap("open", paths[i], &hrpc.RemoteError{Class: f.exception, Message: f.message})
			case f.data == nil:
				alone = append(alone, i)
			case most > 0 && int64(len(f.data)) > most:
				out.Errors[i] = tooLong(paths[i], int64(len(f.data)), most)
			default:
				out.Data[i] = f.data
			}
		}
		some = some[len(files):]
	}
	var late sync.WaitGroup // those that others do not wait for
	for _, i := range alone {
		done := make(chan struct{})
		late.Go(func() {
			defer close(done)
			out.Data[i], out.Errors[i] = c.readOne(ctx, paths[i], most, c.times.many)
		})
		t := time.NewTimer(c.times.stall)
		select {
		case <-done:
		case <-t.C: // its datanode may not answer, or the file is long
		}
		t.Stop()
		if ctx.Err() != nil {
			break
		}
	}
	late.Wait()
	if err := ctx.Err(); err != nil {
		return wrap("read", paths[alone[0]], err)
	}
	return nil
}

// manyAnswer is an OpenManyWithDataResponseProto, decoded without a copy of what is in it.
type manyAnswer struct {
	hadooppb.OpenManyWithDataResponseProto
	files []manyFile
}

// manyFile is an OpenedFileProto.
type manyFile struct {
	data               []byte // not nil if there are bytes, none too
	exception, message string
	failed             bool
}

// KeepsBody implements hrpc.BodyKeeper.
func (a *manyAnswer) KeepsBody() {}

func (a *manyAnswer) UnmarshalVT(b []byte) error {
	a.files = a.files[:0]
	return walk(b, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		if value == nil {
			return errAnswer
		}
		var f manyFile
		err := walk(value, func(field protowire.Number, _ uint64, value []byte) error {
			switch {
			case field <= 3 && value == nil:
				return errAnswer
			case field == 1:
				f.data = value
			case field == 2:
				f.exception, f.failed = string(value), true
			case field == 3:
				f.message = string(value)
			}
			return nil
		})
		a.files = append(a.files, f)
		return err
	})
}

// readOne is ReadFile of a file of at most most bytes. patience: it fails when nobody who has it says anything for so long, instead of trying them again and again; 0: it does not.
func (c *Client) readOne(ctx context.Context, name string, most int64, patience time.Duration) ([]byte, error) {
	r, err := c.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if patience > 0 {
		r.patience = patience
	}
	if most > 0 && r.Size() > most {
		return nil, tooLong(name, r.Size(), most)
	}
	return r.all(ctx)
}

func tooLong(name string, length, most int64) error {
	return &Error{Op: "read", Path: name, Kind: metadata.ErrInvalidArgument, Message: fmt.Sprintf("the file has %d bytes, and %d were asked for at most", length, most)}
}

// all reads the whole file.
func (r *Reader) all(ctx context.Context) ([]byte, error) {
	if r.whole != nil { // nobody else has it
		return r.whole, nil
	}
	data := make([]byte, r.Size())
	if _, err := r.ReadAtContext(ctx, data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}

// held is a file that a Writer has not made yet.
type held struct {
	request *hadooppb.CreateRequestProto
	data    []byte
	most    int // bytes that are held back
}

// holds reports whether a new file may be held back: nothing is asked of it that a small file does not have.
func (c *Client) holds(o CreateOptions, request *hadooppb.CreateRequestProto) bool {
	return o.Late && !o.Existing && (o.Policy == "" || o.Policy == namenode.ReplicationPolicy) && !c.config.NoSmallFiles && c.small.in(path.Dir(request.GetSrc()))
}

// hold adds bytes to a file that is not made yet, if it may go on waiting with them; else it makes the file.
func (w *Writer) hold(p []byte) (bool, error) {
	if len(w.held.data)+len(p) <= w.held.most {
		w.held.data = append(w.held.data, p...)
		w.length.Add(int64(len(p)))
		return true, nil
	}
	return false, w.make()
}

// make makes the file that was held back, and writes what it has so far.
func (w *Writer) make() error {
	h := w.held
	w.held = nil
	if err := w.create(h.request); err != nil {
		err = w.fail(err)
		w.giveUp()
		w.settled = true
		return err
	}
	w.length.Store(0)
	_, err := w.add(h.data)
	return err
}

// finishHeld makes a file that was held back to its end, by one call if the namenodes keep it. done: there is nothing left to do.
func (w *Writer) finishHeld() (done bool, err error) {
	id, stored, err := w.c.storeSmall(w.life, w.held.request, w.held.data)
	if err != nil {
		return false, w.fail(err)
	}
	if !stored {
		return false, w.make()
	}
	w.fileID.Store(id)
	w.held = nil
	return true, nil
}

// readHeld reads what may be held back if the file is not made yet, and reports whether that was all there is.
func (w *Writer) readHeld(r io.Reader) (n int64, all bool, err error) {
	if err := w.begin(w.life, "write"); err != nil {
		return 0, false, err
	}
	holds := w.held != nil
	w.turn.give()
	if !holds {
		return 0, false, nil
	}
	p, empty := make([]byte, 0, 4<<10), 0
	for err == nil && len(p) <= metadata.MaxBody {
		p = slices.Grow(p, 1)
		var m int
		m, err = r.Read(p[len(p):min(cap(p), metadata.MaxBody+1)])
		p = p[:len(p)+m]
		if empty++; m > 0 {
			empty = 0
		}
		if empty == 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	all = errors.Is(err, io.EOF)
	m, failed := w.Write(p)
	switch {
	case failed != nil:
		return int64(m), false, failed
	case all:
		err = nil
	}
	return int64(m), all, err
}

// body is what is left to be read of a file whose bytes came when it was opened. It implements source.
type body struct {
	rest []byte
	end  int64
}

func (b *body) read() ([]byte, error) {
	if len(b.rest) == 0 {
		return nil, io.EOF
	}
	data := b.rest
	b.rest = nil
	return data, nil
}

func (b *body) unread(data []byte) { b.rest = data }
func (*body) during(*attempt)      {}
func (b *body) until() int64       { return b.end }
func (b *body) settle() bool       { return len(b.rest) == 0 }
func (*body) failed(err error) error {
	return err
}
func (*body) close() {}

// SmallFilePolicy asks whether small files that are made below a directory are kept by the namenodes, and whether the directory itself says so.
func (c *Client) SmallFilePolicy(ctx context.Context, name string) (policy namenode.SmallFilePolicy, own bool, err error) {
	if name, err = clean("small files", name); err != nil {
		return 0, false, err
	}
	var answer hadooppb.GetSmallFilesResponseProto
	err = c.rpc.Call(ctx, operatorProtocol, "getSmallFiles", &hadooppb.GetSmallFilesRequestProto{Path: &name}, &answer)
	c.small.limited(answer.GetLimit())
	return namenode.SmallFilePolicy(answer.GetPolicy()), answer.GetOwn(), wrap("small files", name, c.hinted(err))
}

// SetSmallFilePolicy says whether small files that are made below a directory from now on are kept by the namenodes.
func (c *Client) SetSmallFilePolicy(ctx context.Context, name string, policy namenode.SmallFilePolicy) error {
	name, err := clean("small files", name)
	if err != nil {
		return err
	}
	err = c.rpc.Call(ctx, operatorProtocol, "setSmallFiles", &hadooppb.SetSmallFilesRequestProto{
		Path: &name, Policy: hadooppb.SmallFilesProto(policy).Enum(),
	}, new(hadooppb.SetSmallFilesResponseProto))
	if err == nil {
		c.small.mu.Lock()
		c.small.without = nil
		c.small.mu.Unlock()
	}
	return wrap("small files", name, c.hinted(err))
}

// Keep makes a small file, whose bytes the namenodes keep, of an ordinary one: it is read, and its blocks go. Inode, owner, times and all else stay, and snapshots keep the
// blocks that they have; who has it open reads on. kept: it was done; false without an error: it was a small file before.
//
// Errors: ErrBeingCreated for a file that is open, ErrIO when it was changed meanwhile, ErrPermission without READ and WRITE, ErrSpaceQuota, and ErrUnsupported for a file
// that is larger than they may be, is empty, has an erasure coding policy or is where no small files are made, by clusters that are not of the level, and by Hadoop's namenodes.
func (c *Client) Keep(ctx context.Context, name string) (kept bool, err error) {
	if name, err = clean("keep", name); err != nil {
		return false, err
	}
	answer, err := c.openSmall(ctx, name, metadata.MaxBody)
	refused := func(kind *metadata.Kind, format string, args ...any) error {
		return &Error{Op: "keep", Path: name, Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	list := answer.GetLocations()
	switch {
	case err != nil:
		return false, err
	case len(answer.GetData()) > 0:
		return false, nil
	case list == nil && answer.GetData() == nil:
		return false, refused(metadata.ErrUnsupported, "the namenode has no small files, or the client is not to use them")
	case list.GetUnderConstruction():
		return false, refused(metadata.ErrBeingCreated, "it is being written")
	case list.GetFileLength() == 0:
		return false, refused(metadata.ErrUnsupported, "it is empty")
	case list.GetFileLength() > uint64(c.small.most()):
		return false, refused(metadata.ErrUnsupported, "it has %d bytes, and a small file has %d at most", list.GetFileLength(), c.small.most())
	case list.GetEcPolicy() != nil:
		return false, refused(metadata.ErrUnsupported, "it has an erasure coding policy")
	}
	r, err := c.newReader(ctx, name, list)
	if err != nil {
		return false, err
	}
	r.learn(list)
	defer r.Close()
	data := make([]byte, r.Size())
	if _, err := io.ReadFull(r, data); err != nil {
		return false, wrap("keep", name, err)
	}
	request := &hadooppb.KeepFileRequestProto{Src: &name, Data: data}
	for _, b := range list.GetBlocks() {
		request.Blocks = append(request.Blocks, b.GetB())
	}
	err = c.operate(ctx, "keep", name, "keepFile", request, new(hadooppb.KeepFileResponseProto))
	return err == nil, err
}
