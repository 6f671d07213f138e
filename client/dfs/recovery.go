package dfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// maxFruitless is how many pipelines in a row may break without a single packet acknowledged, as in Hadoop.
	maxFruitless = 5
	// transferTimeout bounds the copy of a replica to a datanode that joins.
	transferTimeout = 5 * time.Minute
)

// recover puts a working pipeline in place of a broken one and sends what is not acknowledged again. The node at fault
// leaves; the others get a new generation stamp, so that a replica that missed the rest can be told from a good one.
//
//	data outstanding             PIPELINE_SETUP_STREAMING_RECOVERY, then all packets of the queue again
//	only the end outstanding     PIPELINE_CLOSE_RECOVERY, which finishes the replicas by itself
//	append not set up yet        PIPELINE_SETUP_APPEND_RECOVERY
//
// An error means that the block, and with it the file, is lost, or that ctx has ended, and then the next call goes on.
func (b *blockWriter) recover(ctx context.Context) error {
	ctx, done := b.w.alive(ctx)
	defer done()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		b.disconnect()
		b.mu.Lock()
		at, failure, lost := b.state, b.failure, b.err
		b.mu.Unlock()
		switch at {
		case blockLost:
			return lost
		case blockStored:
			return nil
		case blockBroken:
			if err := b.dismiss(ctx, failure); err != nil {
				return err
			}
		}
		s := b.nextStage()
		if err := b.setup(ctx, s); err != nil {
			return err
		}
		if b.at() == blockBroken {
			continue
		}
		if s == stageCloseRecovery {
			b.closed()
			return nil
		}
		if back, err := b.takeBack(ctx); err != nil {
			return err
		} else if back {
			continue
		}
		b.mu.Lock()
		pipe := b.pipe
		b.mu.Unlock()
		if pipe.sendDue() {
			return nil
		}
	}
}

// nextStage is what a pipeline has to be set up for.
func (b *blockWriter) nextStage() stage {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.queue) == 1 && b.queue[0].last: // nothing but the end of the block is unacknowledged
		return stageCloseRecovery
	case b.untouched():
		return stageAppendRecovery
	}
	return stageRecovery
}

// closed takes the end of the block, which the datanodes have finished by themselves, out of the queue.
func (b *blockWriter) closed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.queue[0]
	b.queue = nil
	b.ackedSeq = last.seqno
	b.free(last)
	b.moveLocked(blockStored)
}

// reopen sets up the pipeline of an append. A block that has fewer replicas than its file wants, because datanodes died while it was written, gets
// more first, as in HDFS: what is flushed into it would be on few disks otherwise until the namenode has copies made, which it has not of an open
// block. Where no datanode can be had the append goes on with those that are there.
func (b *blockWriter) reopen(ctx context.Context) error {
	for b.c.config.ReplaceDatanode.asks(b.w.replication, len(b.nodes), true, b.promised) {
		failed := len(b.failed)
		err := b.addNode(ctx, b.failed)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && (len(b.failed) == failed || failed >= maxFruitless) { // there is no other one, or there are too many bad ones
			b.w.log(ctx, "no datanode joins the pipeline of an append", "path", b.w.path, "block", b.block.GetBlockId(), "have", len(b.nodes), "error", err)
			break
		}
	}
	if err := b.setup(ctx, stageAppend); err != nil {
		return err
	}
	if b.at() == blockBroken {
		return b.recover(ctx)
	}
	return nil
}

// dismiss takes the nodes at fault out of the pipeline.
func (b *blockWriter) dismiss(ctx context.Context, failure *pipelineError) error {
	at := failure.nodes
	if len(at) == 0 {
		at = []int{0}
	}
	gone := map[int]bool{}
	for _, i := range at {
		i = min(max(i, 0), len(b.nodes)-1)
		if gone[i] {
			continue
		}
		gone[i] = true
		b.w.log(ctx, "datanode leaves the pipeline", "path", b.w.path, "block", b.block.GetBlockId(), "node", b.c.transferAddr(b.nodes[i]),
			"position", i, "left", len(b.nodes)-len(gone), "error", failure.err)
	}
	b.failed = append(b.failed, pick(b.nodes, gone, true)...)
	b.nodes, b.types, b.ids = pick(b.nodes, gone, false), pick(b.types, gone, false), pick(b.ids, gone, false)
	b.mu.Lock()
	b.failure = nil
	b.moveLocked(blockRepairing)
	b.mu.Unlock()
	if len(b.nodes) == 0 {
		// A datanode drops the block of a file that was deleted: the namenode knows that it was, or who has the file now.
		if err := b.fsync(ctx); errors.Is(err, metadata.ErrNotExist) || errors.Is(err, metadata.ErrLeaseExpired) {
			return b.lose(err)
		}
		return b.lost(failure.err)
	}
	if acked := b.acked() + b.ackedSeq; acked != b.progress {
		b.progress, b.fruitless = acked, 0
	} else if b.fruitless++; b.fruitless > maxFruitless {
		return b.lost(fmt.Errorf("%d pipelines in a row broke without progress, the last one: %w", maxFruitless, failure.err))
	}
	return nil
}

// pick returns the elements of s that are in the set of positions, or those that are not. A nil s stays nil.
func pick[T any](s []T, at map[int]bool, in bool) []T {
	var picked []T
	for i, x := range s {
		if at[i] == in {
			picked = append(picked, x)
		}
	}
	return picked
}

// lost ends a block that cannot be gone on with.
func (b *blockWriter) lost(cause error) error {
	var names []string
	for _, node := range b.failed {
		names = append(names, b.c.transferAddr(node))
	}
	return b.lose(&Error{Op: "write", Path: b.w.path, Kind: metadata.ErrIO, Message: fmt.Sprintf("all datanodes of block blk_%d are bad (%s): %v",
		int64(b.block.GetBlockId()), strings.Join(names, ", "), cause)})
}

// refused is what to do about a namenode that does not let the block go on: nothing, unless ctx ended while it was asked.
func (b *blockWriter) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil && contextual(err) {
		return err
	}
	return b.lose(err)
}

// contextual reports whether err only says that a context has ended.
func contextual(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// setup gives the replicas on nodes a new generation and makes a pipeline of them. A datanode's failure makes the block
// broken; an error is the namenode's refusal, after which it is lost, or that ctx has ended, after which it is as before.
func (b *blockWriter) setup(ctx context.Context, s stage) error {
	if s != stageAppend && s != stageCloseRecovery {
		if err := b.replenish(ctx); err != nil {
			return err
		}
	}
	var answer hadooppb.UpdateBlockForPipelineResponseProto
	err := b.c.call(ctx, "write", b.w.path, "updateBlockForPipeline",
		&hadooppb.UpdateBlockForPipelineRequestProto{Block: b.block, ClientName: &b.c.name}, &answer)
	if err != nil {
		return b.refused(ctx, err)
	}
	generation := answer.GetBlock().GetB().GetGenerationStamp()
	b.token = tokenOf(answer.GetBlock().GetBlockToken())
	if b.at() == blockReopening { // from here on a datanode may have another generation
		b.move(blockRepairing)
	}
	if err := b.connect(ctx, s, generation); err != nil {
		broken, ok := errors.AsType[*pipelineError](err)
		if !ok {
			return err
		}
		b.mu.Lock()
		b.failure = broken
		b.moveLocked(blockBroken)
		b.mu.Unlock()
		return nil
	}
	b.mu.Lock()
	renewed := &hadooppb.ExtendedBlockProto{
		PoolId: b.block.PoolId, BlockId: b.block.BlockId, GenerationStamp: &generation, NumBytes: new(b.block.GetNumBytes()),
	}
	old := b.block
	b.mu.Unlock()
	var ids []*hadooppb.DatanodeIDProto
	for _, node := range b.nodes {
		ids = append(ids, node.GetId())
	}
	err = b.c.call(ctx, "write", b.w.path, "updatePipeline", &hadooppb.UpdatePipelineRequestProto{
		ClientName: &b.c.name, OldBlock: old, NewBlock: renewed, NewNodes: ids, StorageIDs: b.ids,
	}, new(hadooppb.UpdatePipelineResponseProto))
	if err != nil {
		b.stop()
		return b.refused(ctx, err)
	}
	b.mu.Lock()
	renewed.NumBytes = new(max(renewed.GetNumBytes(), b.block.GetNumBytes()))
	b.block = renewed
	b.mu.Unlock()
	return nil
}

// stop gives a pipeline up that the namenode does not know, with nobody at fault.
func (b *blockWriter) stop() {
	b.mu.Lock()
	pipe := b.pipe
	b.mu.Unlock()
	if pipe != nil {
		pipe.cut(net.ErrClosed)
	}
	b.disconnect()
}

// replenish adds a datanode in place of one that failed where the policy asks for it. Where no other one can be had, one
// that failed may come back if it answers: once the others have a new generation, so that a copy can replace what it has
// (takeBack). Otherwise the policy says whether the pipeline goes on without. Errors: the block is lost, or ctx has ended.
func (b *blockWriter) replenish(ctx context.Context) error {
	if len(b.failed) == 0 || !b.c.config.ReplaceDatanode.asks(b.w.replication, len(b.nodes), b.appended, b.promised) {
		return nil
	}
	b.returning = nil
	err := b.addNode(ctx, b.failed)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		silent := b.c.silent(ctx, b.failed, b.named(), b.token)
		for i, node := range b.failed {
			if !slices.Contains(silent, i) && !slices.Contains(b.returned, node.GetId().GetDatanodeUuid()) {
				b.returning = append(b.returning, node)
			}
		}
		if len(b.returning) > 0 && ctx.Err() == nil {
			return nil
		}
	}
	return b.without(ctx, err)
}

// takeBack adds a datanode that failed before to the pipeline that has just been set up without it. true: it is in nodes,
// and the pipeline has to be set up again. A datanode is taken back once.
func (b *blockWriter) takeBack(ctx context.Context) (bool, error) {
	back := b.returning
	b.returning = nil
	if len(back) == 0 {
		return false, nil
	}
	var excluded []*hadooppb.DatanodeInfoProto
	for _, node := range b.failed {
		if !slices.Contains(back, node) {
			excluded = append(excluded, node)
		}
	}
	err := b.addNode(ctx, excluded)
	if err != nil && ctx.Err() != nil { // this pipeline may be too short to go on with: the next call sees to that
		b.stop()
		return false, ctx.Err()
	}
	for _, node := range back {
		b.returned = append(b.returned, node.GetId().GetDatanodeUuid())
	}
	if err != nil {
		return false, b.without(ctx, err)
	}
	b.stop()
	return true, nil
}

// without decides what becomes of the block now that no datanode takes the place of a failed one.
func (b *blockWriter) without(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	policy, have := b.c.config.ReplaceDatanode, len(b.nodes)
	if !policy.goesOn(have) {
		return b.lost(fmt.Errorf("%d of %d datanodes are left, at least %d have to be (%s), and none takes the place of a failed one: %w",
			have, b.w.replication, min(policy.floor(), b.w.replication), minReplicationProperty, cause))
	}
	b.w.log(ctx, "no datanode takes the place of a failed one", "path", b.w.path, "block", b.block.GetBlockId(), "left", have, "error", cause)
	return nil
}

// addNode asks for one more datanode that is not excluded, has the replica copied to it, and adds it to nodes.
func (b *blockWriter) addNode(ctx context.Context, excluded []*hadooppb.DatanodeInfoProto) error {
	var answer hadooppb.GetAdditionalDatanodeResponseProto
	err := b.c.call(ctx, "write", b.w.path, "getAdditionalDatanode", &hadooppb.GetAdditionalDatanodeRequestProto{
		Src: &b.w.path, Blk: b.block, Existings: b.nodes, Excludes: excluded, NumAdditionalNodes: new(uint32(1)),
		ClientName: &b.c.name, ExistingStorageUuids: b.ids, FileId: new(b.w.fileID.Load()),
	}, &answer)
	if err != nil {
		return err
	}
	located := answer.GetBlock()
	locs := located.GetLocs()
	same := func(x, y *hadooppb.DatanodeInfoProto) bool {
		return x.GetId().GetDatanodeUuid() == y.GetId().GetDatanodeUuid()
	}
	at := slices.IndexFunc(locs, func(n *hadooppb.DatanodeInfoProto) bool {
		return !slices.ContainsFunc(b.nodes, func(have *hadooppb.DatanodeInfoProto) bool { return same(n, have) })
	})
	if at < 0 || len(locs) != len(b.nodes)+1 {
		return fmt.Errorf("the namenode offered %d datanodes, none of them new", len(locs))
	}
	added := locs[at]
	// Even if nothing is acknowledged yet: only who has a replica can go on with it.
	if err := b.transfer(ctx, located, at); err != nil {
		if ctx.Err() == nil && !slices.ContainsFunc(b.failed, func(n *hadooppb.DatanodeInfoProto) bool { return same(n, added) }) {
			b.failed = append(b.failed, added)
		}
		return fmt.Errorf("copy to %s: %w", b.c.transferAddr(added), err)
	}
	b.c.log.Info("datanode joins the pipeline", "path", b.w.path, "block", b.block.GetBlockId(), "node", b.c.transferAddr(added))
	b.failed = slices.DeleteFunc(b.failed, func(n *hadooppb.DatanodeInfoProto) bool { return same(n, added) })
	b.adopt(located)
	return nil
}

// transfer has one of the other datanodes copy its replica to the one at a position of located.
func (b *blockWriter) transfer(ctx context.Context, located *hadooppb.LocatedBlockProto, at int) error {
	request := &hadooppb.OpTransferBlockProto{
		Header:  b.c.opHeader(b.block, tokenOf(located.GetBlockToken())),
		Targets: located.GetLocs()[at : at+1],
	}
	if types := located.GetStorageTypes(); len(types) == len(located.GetLocs()) {
		request.TargetStorageTypes = types[at : at+1]
	}
	if ids := located.GetStorageIDs(); len(ids) == len(located.GetLocs()) {
		request.TargetStorageIds = ids[at : at+1]
	}
	var causes []error
	for _, source := range b.nodes {
		err := b.transferFrom(ctx, source, request)
		if err == nil || ctx.Err() != nil {
			return err
		}
		causes = append(causes, fmt.Errorf("from %s: %w", b.c.transferAddr(source), err))
	}
	return errors.Join(causes...)
}

// transferFrom has one datanode copy its replica to another one. That takes as long as it takes, but not if one of the two
// is silent otherwise as well.
func (b *blockWriter) transferFrom(ctx context.Context, source *hadooppb.DatanodeInfoProto, request *hadooppb.OpTransferBlockProto) error {
	p, err := b.c.peers.get(ctx, source.GetId(), tokenOfRequest(request), max(transferTimeout, b.c.config.DatanodeTimeout), true)
	if err != nil {
		return err
	}
	defer p.close()
	both := []*hadooppb.DatanodeInfoProto{source, request.Targets[0]}
	watch, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-watch.Done():
				return
			case <-time.After(b.c.times.stall):
			}
			if at := b.c.silent(watch, both, b.named(), b.token); len(at) > 0 && watch.Err() == nil {
				p.interrupt(silence(b.c.transferAddr(both[at[0]]), b.c.times.stall))
				return
			}
		}
	})
	answer, err := p.exchange(ctx, dtp.OpTransferBlock, request)
	cancel()
	watching.Wait()
	if err != nil {
		return err
	}
	return dtp.CheckResponse(dtp.OpTransferBlock, answer)
}
