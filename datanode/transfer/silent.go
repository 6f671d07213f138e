package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A datanode that is stopped, or a machine that is gone without a word, keeps its connections. Who sends a replica there sees no more than that nothing is taken, as of a datanode whose
// disk is busy; so does who gets one of it. So that datanode is asked for a word, by another connection: one that says something, or hangs up, is waited for, and one that is silent is left.

const (
	// stallTime is how long a datanode may take nothing of a replica that goes there, not say at the end that it has it, or send nothing of one that comes from there, before it is asked
	// for a word.
	stallTime = 2 * time.Second
	// wordTime is how long it has for that: longer than it waits for its own disk, 3 s, before it hangs up (Config.Answers).
	wordTime = 5 * time.Second
)

// errHungUp is that a datanode which was asked for a word has hung up: it lives, and the disk of the block does not answer.
var errHungUp = errors.New("its disk does not answer")

// watched is a connection to another datanode about a replica. While nothing gets on the datanode is asked for a word, and the connection is cut if it has none.
type watched struct {
	*peer
	began time.Time
	// since is since when the peer is waited for, in nanoseconds after began; 0: it is not.
	since atomic.Int64
	left  atomic.Pointer[error] // why it is waited for no more
	stop  context.CancelFunc
	over  chan struct{}
}

// watch begins to watch a new connection to another datanode, about a block. hurried: others wait for it, so it is left, too, when its disk does not answer. Close ends that, and the
// connection.
func (s *Server) watch(ctx context.Context, p *peer, pool string, b metadata.Block, at *hadooppb.DatanodeInfoProto, hurried bool) *watched {
	ctx, stop := context.WithCancel(ctx)
	o := &watched{peer: p, began: time.Now(), stop: stop, over: make(chan struct{})}
	p.r.Reset(o)
	go func() {
		defer close(o.over)
		o.look(ctx, s.stall, func() error {
			asking, cancel := context.WithTimeout(ctx, s.word)
			defer cancel()
			err := s.ask(asking, pool, b, at)
			if errors.Is(err, errHungUp) && !hurried {
				return nil
			}
			return err
		})
	}()
	return o
}

// look asks for a word when the peer was waited for long enough, and again and again.
func (o *watched) look(ctx context.Context, stall time.Duration, ask func() error) {
	look := time.NewTicker(stall / 4)
	defer look.Stop()
	heard := int64(0)
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		since := o.since.Load()
		if since == 0 || int64(time.Since(o.began))-max(since, heard) < int64(stall) {
			continue
		}
		err := ask()
		heard = int64(time.Since(o.began))
		if err == nil || ctx.Err() != nil || o.since.Load() != since { // or it has got on meanwhile
			continue
		}
		err = fmt.Errorf("nothing has got on for %v: %w", time.Duration(heard-since).Round(time.Millisecond), err)
		o.left.Store(&err)
		_ = o.SetDeadline(time.Unix(1, 0)) // wakes who waits, whatever closing takes
		security.HangUp(o.Conn)
		return
	}
}

// wait waits for the peer, with a call of its connection.
func (o *watched) wait(call func() error) error {
	o.since.Store(int64(time.Since(o.began)) + 1)
	err := call()
	o.since.Store(0)
	if left := o.left.Load(); err != nil && left != nil {
		return *left
	}
	return err
}

func (o *watched) Write(b []byte) (n int, err error) {
	err = o.wait(func() error {
		n, err = o.peer.Write(b)
		return err
	})
	return n, err
}

func (o *watched) Read(b []byte) (n int, err error) {
	err = o.wait(func() error {
		n, err = o.peer.Read(b)
		return err
	})
	return n, err
}

// refused is why a write failed: what the other datanode has said about it, if it has. nil: it has the replica, and wants no more of it.
func (o *watched) refused(cause error) error {
	_ = o.SetReadDeadline(time.Now().Add(lingerTime))
	if answer, err := dtp.ReadResponse(o.r); err == nil {
		return dtp.CheckResponse(dtp.OpWriteBlock, answer)
	}
	return cause
}

// Close ends the connection, wherever the replica is.
func (o *watched) Close() error {
	o.stop()
	err := o.peer.Close()
	<-o.over
	return err
}

// ask asks another datanode for no byte of a block, as clients do: it says something when its disk answers, hangs up when that does not, which is errHungUp, and is silent if it is stopped.
func (s *Server) ask(ctx context.Context, pool string, b metadata.Block, of *hadooppb.DatanodeInfoProto) error {
	b.Length = 0 // whatever it has of it
	_, err := s.askAbout(ctx, pool, b, of)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errHungUp
	case ctx.Err() != nil:
		return errors.New("it says nothing")
	}
	return fmt.Errorf("it says nothing: %w", err)
}

// has asks another datanode whether it has the whole of a block, and says why it seems not to.
func (s *Server) has(ctx context.Context, pool string, b metadata.Block, of *hadooppb.DatanodeInfoProto) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Connect+s.word)
	defer cancel()
	answer, err := s.askAbout(ctx, pool, b, of)
	if err == nil {
		err = dtp.CheckResponse(dtp.OpReadBlock, answer)
	}
	return unexpected(err)
}

// askAbout asks another datanode for no byte at the end of a block.
func (s *Server) askAbout(ctx context.Context, pool string, b metadata.Block, of *hadooppb.DatanodeInfoProto) (*hadooppb.BlockOpResponseProto, error) {
	token := s.ownToken(pool, b.ID)
	p, err := s.dial(ctx, of, token)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err = dtp.WriteOp(p, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{
		Header: &hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: token}, ClientName: new("datanode")},
		Offset: new(uint64(b.Length)), Len: new(uint64(0)),
	}); err != nil {
		return nil, err
	}
	return dtp.ReadResponse(p.r)
}

// TargetError is why another datanode has not taken a replica.
type TargetError struct {
	Block  metadata.Block
	Target string // where it takes data
	Err    error
}

func (e *TargetError) Error() string {
	return fmt.Sprintf("copy of %v to %s: %v", e.Block, e.Target, e.Err)
}
func (e *TargetError) Unwrap() error { return e.Err }
