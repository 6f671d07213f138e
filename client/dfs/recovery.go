package dfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// An error means that the block, and with it the file, cannot be gone on with.
func (b *blockWriter) recover(ctx context.Context) error {
	for {
		b.disconnect()
		b.mu.Lock()
		failure := b.failure
		b.failure = nil
		b.mu.Unlock()
		if failure != nil { // nil: an earlier recovery was cut short by its context
			if err := b.dismiss(ctx, failure); err != nil {
				return err
			}
			if acked := b.acked() + b.ackedSeq; acked != b.progress {
				b.progress, b.fruitless = acked, 0
			} else if b.fruitless++; b.fruitless > maxFruitless {
				return b.lost(fmt.Errorf("%d pipelines in a row broke without progress, the last one: %w", maxFruitless, failure.err))
			}
		}
		s := stageRecovery
		switch {
		case b.ended():
			s = stageCloseRecovery
		case b.appending:
			s = stageAppendRecovery
		}
		if err := b.setup(ctx, s); err != nil {
			return err
		}
		if b.broken() {
			continue
		}
		if s == stageCloseRecovery {
			b.mu.Lock()
			last := b.queue[0]
			b.queue = nil
			b.ackedSeq = last.seqno
			b.c.packets.Put(last)
			b.mu.Unlock()
			return nil
		}
		if b.resend() {
			return nil
		}
	}
}

// reopen sets up the pipeline of an append.
func (b *blockWriter) reopen(ctx context.Context) error {
	if err := b.setup(ctx, stageAppend); err != nil {
		return err
	}
	if b.broken() {
		return b.recover(ctx)
	}
	return nil
}

func (b *blockWriter) broken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure != nil
}

// ended reports whether nothing but the end of the block is unacknowledged.
func (b *blockWriter) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) == 1 && b.queue[0].last
}

// resend sends the whole queue; false: this pipeline broke too.
func (b *blockWriter) resend() bool {
	b.mu.Lock()
	queue := slices.Clone(b.queue)
	if len(queue) > 0 {
		_ = b.conn.SetReadDeadline(time.Now().Add(b.patience()))
	}
	b.mu.Unlock()
	for _, p := range queue {
		b.mu.Lock()
		// Acknowledged meanwhile packets are gone from the queue, and their memory may have been used anew.
		gone := p.seqno <= b.ackedSeq
		broken := b.failure != nil
		b.mu.Unlock()
		if broken {
			return false
		}
		if !gone && !b.write(p.Bytes()) {
			return false
		}
	}
	return true
}

// dismiss takes the node at fault out of the pipeline.
func (b *blockWriter) dismiss(ctx context.Context, failure *pipelineError) error {
	at := min(max(failure.node, 0), len(b.nodes)-1)
	node := b.nodes[at]
	b.c.log.Warn("datanode leaves the pipeline", "path", b.w.path, "block", b.block.GetBlockId(), "node", b.addr(node),
		"position", at, "left", len(b.nodes)-1, "error", failure.err)
	b.failed = append(b.failed, node)
	b.nodes = slices.Delete(b.nodes, at, at+1)
	if b.types != nil {
		b.types = slices.Delete(b.types, at, at+1)
	}
	if b.ids != nil {
		b.ids = slices.Delete(b.ids, at, at+1)
	}
	if len(b.nodes) == 0 {
		// A datanode drops the block of a file that was deleted: the namenode knows that it was, or who has the file now.
		b.persisted = false
		if err := b.persist(ctx); errors.Is(err, metadata.ErrNotExist) || errors.Is(err, metadata.ErrLeaseExpired) {
			return err
		}
		return b.lost(failure.err)
	}
	return nil
}

// lost is the error of a block whose last datanode has failed.
func (b *blockWriter) lost(cause error) error {
	var names []string
	for _, node := range b.failed {
		names = append(names, b.addr(node))
	}
	return &Error{Op: "write", Path: b.w.path, Kind: metadata.ErrIO, Message: fmt.Sprintf("all datanodes of block blk_%d are bad (%s): %v",
		int64(b.block.GetBlockId()), strings.Join(names, ", "), cause)}
}

// setup gives the replicas on nodes a new generation and makes a pipeline of them. A datanode's failure is left in
// failure; an error is the namenode's refusal.
func (b *blockWriter) setup(ctx context.Context, s stage) error {
	if s != stageAppend && s != stageCloseRecovery {
		b.replenish(ctx)
	}
	var answer hadooppb.UpdateBlockForPipelineResponseProto
	err := b.c.call(ctx, "write", b.w.path, "updateBlockForPipeline",
		&hadooppb.UpdateBlockForPipelineRequestProto{Block: b.block, ClientName: &b.c.name}, &answer)
	if err != nil {
		return err
	}
	generation := answer.GetBlock().GetB().GetGenerationStamp()
	b.token = tokenOf(answer.GetBlock().GetBlockToken())
	if err := b.connect(ctx, s, generation); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		broken, ok := errors.AsType[*pipelineError](err)
		if !ok {
			return err
		}
		b.mu.Lock()
		b.failure = broken
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
		return err
	}
	b.mu.Lock()
	renewed.NumBytes = new(max(renewed.GetNumBytes(), b.block.GetNumBytes()))
	b.block = renewed
	b.mu.Unlock()
	b.appending = false
	b.persisted = false
	return nil
}

// replenish adds a datanode in place of one that failed where HDFS's default policy asks for it: three replicas or more
// are wanted, and either at most half of them are left or somebody counts on what is written already. Where none can be
// had the pipeline goes on without.
func (b *blockWriter) replenish(ctx context.Context) {
	want, have := b.w.replication, len(b.nodes)
	counted := b.appended || b.flushed
	if want < 3 || have >= want || len(b.failed) == 0 || have > want/2 && !counted {
		return
	}
	if err := b.addNode(ctx); err != nil {
		b.c.log.Warn("no datanode takes the place of a failed one", "path", b.w.path, "block", b.block.GetBlockId(), "left", have, "error", err)
	}
}

// addNode asks for one more datanode, has the replica copied to it, and adds it to nodes.
func (b *blockWriter) addNode(ctx context.Context) error {
	var answer hadooppb.GetAdditionalDatanodeResponseProto
	err := b.c.call(ctx, "write", b.w.path, "getAdditionalDatanode", &hadooppb.GetAdditionalDatanodeRequestProto{
		Src: &b.w.path, Blk: b.block, Existings: b.nodes, Excludes: b.failed, NumAdditionalNodes: new(uint32(1)),
		ClientName: &b.c.name, ExistingStorageUuids: b.ids, FileId: &b.w.fileID,
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
	if b.acked() > 0 {
		if err := b.transfer(ctx, located, at); err != nil {
			b.failed = append(b.failed, added)
			return fmt.Errorf("copy to %s: %w", b.addr(added), err)
		}
	}
	b.c.log.Info("datanode joins the pipeline", "path", b.w.path, "block", b.block.GetBlockId(), "node", b.addr(added))
	b.take(located)
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
		p, err := b.c.peers.get(ctx, source.GetId(), max(transferTimeout, b.c.config.DatanodeTimeout), true)
		if err == nil {
			p.patience()
			var answer *hadooppb.BlockOpResponseProto
			if err = dtp.WriteOp(p.conn, dtp.OpTransferBlock, request); err == nil {
				answer, err = dtp.ReadResponse(p.r)
			}
			if err == nil {
				err = dtp.CheckResponse(dtp.OpTransferBlock, answer)
			}
			p.close()
		}
		if err == nil {
			return nil
		}
		causes = append(causes, fmt.Errorf("from %s: %w", b.addr(source), err))
	}
	return errors.Join(causes...)
}
