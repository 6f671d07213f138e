package dfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// nextBlock gets a block from the namenode and a pipeline for it, which may be put off, and puts data into it. A datanode
// that cannot be set up is left out of the next try. If ctx ends, the data is in w.block all the same if there is one.
func (w *Writer) nextBlock(ctx context.Context, data []byte, later bool) error {
	const tries = 5
	var causes []error
	for try := 0; try < tries; try++ {
		b, err := w.addBlock(ctx, w.coder != nil)
		if err != nil {
			if !w.lastResort && len(w.leftOut()) > 0 && try+1 < tries && errors.Is(err, metadata.ErrIO) {
				// Perhaps nobody is left but those that failed: give them another chance.
				w.exclude, w.lastResort = nil, true
				causes = append(causes, err)
				if err := pause(ctx, 100*time.Millisecond<<try); err != nil {
					return err
				}
				continue
			}
			return errors.Join(append([]error{err}, causes...)...)
		}
		block := newBlockWriter(w, b, false)
		block.filling.Append(data)
		if later && block.puttable() {
			w.block = block
			return nil
		}
		if err = block.create(ctx); err == nil {
			w.block = block
			return nil
		}
		if ctx.Err() != nil { // some of them may have it, so it cannot be set up once more
			block.move(blockSpoilt)
			w.block = block
			return ctx.Err()
		}
		causes = append(causes, fmt.Errorf("%s: %w", w.c.transferAddr(block.nodes[block.blamed(err)[0]]), err))
		err = w.leave(ctx, block, err)
		block.release()
		if err != nil {
			return err
		}
	}
	return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "no pipeline could be set up: " + strings.ReplaceAll(errors.Join(causes...).Error(), "\n", "; ")}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leftOut are the datanodes that a new block had better not be on: those that failed before and, unless that leaves nobody,
// those that are silent.
func (w *Writer) leftOut() []*hadooppb.DatanodeInfoProto {
	if w.lastResort {
		return w.exclude
	}
	return w.c.withSuspects(w.exclude)
}

// pardoned reports whether some of those that the last new block was asked for without are suspected no more, and did not fail for this file. Those that may only have been slow have the
// time that they are given for a word.
func (w *Writer) pardoned(ctx context.Context) bool {
	some := false
	for _, n := range w.without {
		failed := slices.ContainsFunc(w.exclude, func(e *hadooppb.DatanodeInfoProto) bool {
			return e.GetId().GetDatanodeUuid() == n.GetId().GetDatanodeUuid()
		})
		some = !failed && w.c.suspects.forgiven(ctx, w.c.transferAddr(n)) || some
	}
	return some
}

// addBlock gets the next block, waiting while the one before the last is not replicated enough. end: the open end of a file with an erasure coding policy.
func (w *Writer) addBlock(ctx context.Context, end bool) (*hadooppb.LocatedBlockProto, error) {
	var b *hadooppb.LocatedBlockProto
	err := w.insist(ctx, func() error {
		var answer hadooppb.AddBlockResponseProto
		w.without = w.leftOut()
		err := w.c.call(ctx, "write", w.path, "addBlock", &hadooppb.AddBlockRequestProto{
			Src: &w.path, ClientName: &w.c.name, Previous: w.last, ExcludeNodes: w.without, FileId: new(w.fileID.Load()), Tail: new(end),
		}, &answer)
		if err != nil && !errors.Is(err, metadata.ErrNotReplicatedYet) {
			return err
		}
		b = answer.GetBlock()
		if err == nil && len(b.GetLocs()) == 0 {
			return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "the namenode gave a block without datanodes"}
		}
		if err != nil {
			return &notYet{err}
		}
		return nil
	})
	if err == nil && end && striped(b) { // a server that does not know open ends
		if err := w.giveBack(b.GetB()); err != nil {
			return nil, err
		}
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the server has no replicated blocks in files with an erasure coding policy")
	}
	if err == nil {
		w.unseen = false
	}
	return b, err
}

// complete closes the file at the namenode, waiting until its blocks are stored.
func (w *Writer) complete(ctx context.Context) error {
	return w.insist(ctx, func() error {
		var answer hadooppb.CompleteResponseProto
		err := w.c.call(ctx, "close", w.path, "complete",
			&hadooppb.CompleteRequestProto{Src: &w.path, ClientName: &w.c.name, Last: w.last, FileId: new(w.fileID.Load())}, &answer)
		if err == nil && !answer.GetResult() {
			return &notYet{&Error{Op: "close", Path: w.path, Kind: metadata.ErrNotReplicatedYet, Message: "the last block has too few replicas"}}
		}
		return err
	})
}

// notYet marks an error that goes away when datanodes have reported.
type notYet struct{ error }

func (n *notYet) Unwrap() error { return n.error }

// insist calls f until it does not return notYet, with pauses of 1 ms growing to 200 ms, for the close timeout.
func (w *Writer) insist(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(w.c.config.CloseTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := f()
		late, ok := errors.AsType[*notYet](err)
		if !ok {
			return err
		}
		if time.Now().After(deadline) {
			return late.error
		}
		if err := pause(ctx, wait); err != nil {
			return wrap("close", w.path, err)
		}
	}
}

// finishBlock sends what is left of the block and waits until it is stored.
func (w *Writer) finishBlock() error {
	if w.coder != nil && w.block.empty() {
		return w.dropEmpty()
	}
	small := w.block.at() == blockNew && w.block.filling.Len() > 0
	var err error
	if small {
		err = w.finishSmall()
	} else if err = w.open(w.life); err == nil {
		err = w.block.finish(w.life)
	}
	if err != nil {
		return err
	}
	w.last, w.unsealed = w.block.block, w.coder != nil
	w.block.release()
	w.block = nil
	w.lastResort = false
	return nil
}
