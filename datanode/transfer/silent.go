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
// disk is busy. So that datanode is asked for a word, by another connection: one that says something, or hangs up, is waited for, and one that is silent is left.

const (
	// stallTime is how long a datanode may take nothing of a replica that goes there, or not say at the end that it has it, before it is asked for a word.
	stallTime = 2 * time.Second
	// wordTime is how long it has for that: longer than it waits for its own disk, 3 s, before it hangs up (Config.Answers).
	wordTime = 5 * time.Second
)

// errHungUp is that a datanode which was asked for a word has hung up: it lives, and the disk of the block does not answer.
var errHungUp = errors.New("its disk does not answer")

// outgoing is a replica on its way to another datanode. While nothing of it gets there the datanode is asked for a word, and the connection is cut if it has none.
type outgoing struct {
	*peer
	began time.Time
	// since is since when the peer is waited for, in nanoseconds after began; 0: it is not.
	since atomic.Int64
	left  atomic.Pointer[error] // why it is waited for no more
	stop  context.CancelFunc
	over  chan struct{}
}

// send begins to watch what goes to another datanode, of a block. hurried: others wait for it, so it is left, too, when its disk does not answer. close ends that, and the connection.
func (s *Server) send(ctx context.Context, p *peer, pool string, b metadata.Block, to *hadooppb.DatanodeInfoProto, hurried bool) *outgoing {
	ctx, stop := context.WithCancel(ctx)
	o := &outgoing{peer: p, began: time.Now(), stop: stop, over: make(chan struct{})}
	go func() {
		defer close(o.over)
		o.watch(ctx, s.stall, func() error {
			asking, cancel := context.WithTimeout(ctx, s.word)
			defer cancel()
			err := s.ask(asking, pool, b, to)
			if errors.Is(err, errHungUp) && !hurried {
				return nil
			}
			return err
		})
	}()
	return o
}

// watch asks for a word when the peer was waited for long enough, and again and again.
func (o *outgoing) watch(ctx context.Context, stall time.Duration, ask func() error) {
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
func (o *outgoing) wait(call func() error) error {
	o.since.Store(int64(time.Since(o.began)) + 1)
	err := call()
	o.since.Store(0)
	if left := o.left.Load(); err != nil && left != nil {
		return *left
	}
	return err
}

func (o *outgoing) Write(b []byte) (n int, err error) {
	err = o.wait(func() error {
		n, err = o.peer.Write(b)
		return err
	})
	return n, err
}

// answer reads what the peer says at the end.
func (o *outgoing) answer() (answer *hadooppb.BlockOpResponseProto, err error) {
	err = o.wait(func() error {
		answer, err = dtp.ReadResponse(o.r)
		return err
	})
	return answer, err
}

// Close ends the connection, wherever the replica is.
func (o *outgoing) Close() error {
	o.stop()
	err := o.peer.Close()
	<-o.over
	return err
}

// ask asks another datanode for no byte of a block, as clients do: it says something when its disk answers, hangs up when that does not, which is errHungUp, and is silent if it is stopped.
func (s *Server) ask(ctx context.Context, pool string, b metadata.Block, of *hadooppb.DatanodeInfoProto) error {
	token := s.ownToken(pool, b.ID)
	p, err := s.dial(ctx, of, token)
	if err == nil {
		defer p.Close()
		err = dtp.WriteOp(p, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{
			Header: &hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: token}, ClientName: new("datanode")},
			Offset: new(uint64(0)), Len: new(uint64(0)),
		})
		if err == nil {
			_, err = dtp.ReadResponse(p.r)
		}
	}
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
