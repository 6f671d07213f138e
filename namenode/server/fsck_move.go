package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// What is done to files that lack blocks: as HDFS's fsck, -move copies what can be read of one to files /lost+found/<path>/0, 1, ..., of which each has
// the blocks between two that are lost, and leaves the file; -delete removes it. Unlike there, what could not be copied keeps the file.

const (
	lostFound = "/lost+found"
	// unmoved is where copies are made. What is there when one begins is of a namenode that has ended meanwhile, or of a walk that was given up.
	unmoved = lostFound + "/._COPYING_"
	// moveStall is how long a datanode may be silent before another one is tried, and it is left for the rest of the walk unless it says a word; and how long a namenode that does not
	// lead any more is waited for.
	moveStall = 20 * time.Second
	// moveChunk is how much is read at a time, in bytes.
	moveChunk = 256 << 10
	// unmoveTime is how long it may take to remove what a walk that was given up has copied.
	unmoveTime = 10 * time.Second
)

// errKept says that a file is not what is asked about, or that there is something of its name already: nothing has failed.
var errKept = errors.New("")

func kept(format string, args ...any) error { return fmt.Errorf(format+"%w", append(args, errKept)...) }

// mend saves what can be read of a corrupt file, and removes it, as far as that is asked for, in the rights of who asked.
func (f *fsckFile) mend(file *namespace.FileBlocks) {
	var without []namespace.BlockAt
	if f.move {
		var err error
		if f.meanwhile(func() { without, err = f.salvage(file) }); err != nil {
			f.undone("moved", err)
			return
		}
	}
	if f.remove {
		var err error
		if f.meanwhile(func() { err = f.delete(file, without) }); err != nil {
			f.undone("deleted", err)
		}
	}
}

func (f *fsckFile) undone(what string, err error) {
	f.printf("\n%s: not %s: %v\n", f.path, what, err)
	f.failed = f.failed || !errors.Is(err, errKept)
}

// means names the file that was looked at whatever comes to its path. Errors: it is another one now, or lacks nothing; the namenode changes nothing now.
func (f *fsckFile) means(file *namespace.FileBlocks) (string, error) {
	lacks, err := false, error(nil)
	if !f.changed && f.stands(file) {
		lacks, err = f.lacks(file)
	}
	if err == nil && !lacks {
		err = kept("it has changed meanwhile")
	}
	if err == nil {
		err = f.safe.check(f.Server)
	}
	if file.InSnapshot {
		return f.path, err
	}
	return inodePath(file), err
}

// delete removes a corrupt file: not another one that has its path now, or what it was mended to, nor blocks that were not moved and can be read now.
func (f *fsckFile) delete(file *namespace.FileBlocks, without []namespace.BlockAt) error {
	name, err := f.means(file)
	if err != nil {
		return err
	}
	for _, b := range without {
		there, err := f.readable(b)
		if there {
			return kept("more of it can be read than when it was moved")
		}
		if err != nil {
			return err
		}
	}
	return f.await(func(done func(error)) {
		f.Delete(f.caller, namenode.Retry{}, name, false, func(_ bool, err error) { done(err) })
	})
}

// readable reports whether the bytes of a block can be had now. Error: they cannot, and may be had later.
func (f *fsckRun) readable(b namespace.BlockAt) (bool, error) {
	if b.Small {
		err := f.findBody(b.Block)
		if bodyLost(err) {
			return false, nil
		}
		return err == nil, err
	}
	f.soft.mu.Lock()
	defer f.soft.mu.Unlock()
	r, known := f.soft.m.Describe(b.Block.ID)
	return known && !lost(&r), nil
}

// salvage copies what can be read of a file and returns the blocks that cannot. An error says that not all was copied that could be; what was copied
// is in /lost+found all the same, unless who asked has gone, or this namenode leads no more. It comes there in one step, when it is all there is.
func (f *fsckFile) salvage(file *namespace.FileBlocks) (without []namespace.BlockAt, err error) {
	name, err := f.means(file)
	if err != nil {
		return nil, err
	}
	client, err := f.copier()
	if err != nil {
		return nil, err
	}
	target := path.Join(lostFound, f.path)
	room, err := f.makeRoom(target, file)
	if err != nil {
		return nil, err
	}
	defer func() {
		if f.ctx.Err() == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), unmoveTime) // nobody waits for it
		defer cancel()
		_, gone := client.Delete(ctx, unmoved, true)
		err = errors.Join(f.ctx.Err(), gone)
	}()
	in, err := client.Open(f.ctx, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	s := salvaging{fsckRun: f.fsckRun, client: client, room: room, in: in, buffer: make([]byte, moveChunk)}
	var failures []error
	for _, b := range file.Blocks {
		if there, err := f.readable(b); !there {
			without = append(without, b)
			if err != nil { // and so the file stays
				err = fmt.Errorf("block blk_%d: %w", b.Block.ID, err)
			}
			failures = append(failures, err, s.endChain())
			continue
		}
		if err := s.copy(b.Offset, b.Block.Length); err != nil {
			without = append(without, b)
			failures = append(failures, fmt.Errorf("block blk_%d: %w", b.Block.ID, err), s.endChain())
		}
		if f.ctx.Err() != nil || !f.Active() {
			break
		}
	}
	failures = append(failures, s.endChain())
	switch {
	case f.ctx.Err() != nil:
	case !f.Active():
		failures = append(failures, namenode.ErrStandbyRead)
	default:
		failures = append(failures, f.await(func(done func(error)) {
			f.RenameTo(f.caller, namenode.Retry{}, room, target, false, false, done)
		}))
	}
	return without, errors.Join(failures...)
}

// makeRoom makes the directory where what is left of a file is copied to, with the mode of the file, and those above the one that gets it: for their owner alone, as what is above the
// file may have kept others from it. It is named by its inode: the walk of a namenode that has led in between may have made another one there.
func (f *fsckFile) makeRoom(target string, file *namespace.FileBlocks) (room string, err error) {
	if file.InSnapshot {
		return "", errors.New("it is in a snapshot")
	}
	top, err := f.ns.Stat(f.caller, lostFound)
	switch {
	case err != nil:
		return "", err
	case top == nil:
		err = f.await(func(done func(error)) { f.Mkdirs(f.caller, namenode.MkdirsRequest{Path: lostFound, Mode: 0o755}, done) })
	case !top.IsDir():
		err = errors.New(lostFound + " is a file")
	}
	if err != nil {
		return "", err
	}
	if there, err := f.ns.Stat(f.caller, target); err != nil {
		return "", err
	} else if there != nil {
		return "", kept("%s already exists", target)
	}
	if err := f.await(func(done func(error)) {
		f.Delete(f.caller, namenode.Retry{}, unmoved, true, func(_ bool, err error) { done(err) })
	}); err != nil {
		return "", err
	}
	if above := path.Dir(target); above != lostFound {
		if err := f.await(func(done func(error)) {
			f.Mkdirs(f.caller, namenode.MkdirsRequest{Path: above, Mode: 0o700, Parents: true}, done)
		}); err != nil {
			return "", err
		}
	}
	if err := f.await(func(done func(error)) {
		f.Mkdirs(f.caller, namenode.MkdirsRequest{Path: unmoved, Mode: file.Status.Mode}, done)
	}); err != nil {
		return "", err
	}
	made, err := f.ns.Stat(f.caller, unmoved)
	if err == nil && made == nil {
		err = errors.New("it is moved by another namenode, too")
	}
	if err != nil {
		return "", err
	}
	return inodeAt(made.ID), nil
}

// copier is the client of the walk, which acts for who asked and knows this namenode alone: a walk ends with its leadership.
func (f *fsckRun) copier() (*dfs.Client, error) {
	if f.client != nil {
		return f.client, nil
	}
	client, err := dfs.New(dfs.Config{
		Namenodes: []string{f.config.IPC.Addr().String()}, User: f.caller.User, Protection: f.config.Properties.TransferProtection,
		DatanodeTimeout: moveStall, CloseTimeout: moveStall, Leaderless: moveStall, LeaveSilent: true,
		Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
			return f.config.Credentials.Dialer().Dial(ctx, addr, authority.Role(role))
		},
		Logger: f.log,
	})
	f.client = client
	return client, err
}

// salvaging is a file on its way to /lost+found.
type salvaging struct {
	*fsckRun
	client *dfs.Client
	room   string // the directory where it is copied to
	in     *dfs.Reader
	out    *dfs.Writer // the chain that the last block went to; nil: the next block begins one
	chains int
	buffer []byte
}

// copy appends a block to the chain. After an error the chain has a part of it, and ends.
func (s *salvaging) copy(at, length int64) error {
	if s.out == nil {
		out, err := s.client.Create(s.ctx, s.room+"/"+strconv.Itoa(s.chains), dfs.CreateOptions{})
		if err != nil {
			return err
		}
		s.out = out
		s.chains++
	}
	if _, err := s.in.Seek(at, io.SeekStart); err != nil {
		return err
	}
	for length > 0 {
		part := s.buffer[:min(length, int64(len(s.buffer)))]
		n, err := io.ReadFull(s.in, part)
		length -= int64(n)
		if _, werr := s.out.Write(part[:n]); werr != nil {
			return werr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *salvaging) endChain() error {
	if s.out == nil {
		return nil
	}
	out := s.out
	s.out = nil
	if err := out.Close(); err != nil {
		out.Abort()
		return fmt.Errorf("%s: %w", out.Name(), err)
	}
	return nil
}
