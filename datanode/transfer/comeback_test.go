package transfer

import (
	"path/filepath"
	"testing"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// copyBy orders a datanode to copy its replica to another one, and returns the refusal.
func copyBy(t *testing.T, from, to *node, b metadata.Block) error {
	t.Helper()
	c := dial(t, from)
	check(t, dtp.WriteOp(c, dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{Header: header(b, "c"), Targets: []*hadooppb.DatanodeInfoProto{to.info}}))
	m, err := dtp.ReadResponse(c.r)
	check(t, err)
	return dtp.CheckResponse(dtp.OpTransferBlock, m)
}

// A datanode that left a pipeline has a replica of an older generation. A copy of the present one replaces it, and the
// datanode is in the pipeline again.
func TestDatanodeThatLeftAPipelineComesBack(t *testing.T) {
	nodes := start(t, 2)
	b := block(7, 1001, 0)
	data := pattern(300_000)
	c := mustBegin(t, b, setup{stage: stageCreate}, nodes...)
	c.packet(0, data[:64_512], false)
	c.wantAck(0, "S S")
	c.Close()
	// The second one is left out, and more is written.
	c = mustBegin(t, b, setup{stage: stageStreamingRecovery, gen: 1002, min: 64_512, max: 64_512}, nodes[0])
	c.packet(64_512, data[64_512:100_000], false)
	c.wantAck(0, "S")
	c.Close()
	if r, ok := nodes[1].store.Replica(7); !ok || r.Block.Generation != 1001 {
		t.Fatalf("the second datanode has %v", r)
	}
	check(t, copyBy(t, nodes[0], nodes[1], block(7, 1002, 0)))
	if r, _ := nodes[1].store.Replica(7); r.Block.Generation != 1002 || r.Visible != 100_000 {
		t.Errorf("after the copy the second datanode has %v", r)
	}
	// What it had was acknowledged once: it is in the trash.
	kept, err := filepath.Glob(filepath.Join(nodes[1].dir, "blocks/00/00/blk_7_1001_*.lost"))
	check(t, err)
	if len(kept) != 1 {
		t.Errorf("in the trash are %v", kept)
	}
	c = mustBegin(t, block(7, 1002, 0), setup{stage: stageStreamingRecovery, gen: 1003, min: 100_000, max: 100_000}, nodes...)
	c.writeAll(99_840, data[99_840:], "S S")
	for _, d := range nodes {
		d.wantContent(block(7, 1003, 0), data)
	}
}

// What is as new, or finished, is not replaced.
func TestCopyReplacesNothingThatCounts(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(1000)
	mustBegin(t, block(7, 1002, 0), setup{stage: stageCreate}, nodes[0]).writeAll(0, data, "S")
	c := mustBegin(t, block(7, 1002, 0), setup{stage: stageCreate}, nodes[1])
	c.packet(0, data, false)
	c.wantAck(0, "S")
	if err := copyBy(t, nodes[0], nodes[1], block(7, 1002, 0)); err == nil {
		t.Error("a replica of the same generation was replaced")
	}
	mustBegin(t, block(8, 1002, 0), setup{stage: stageCreate}, nodes[0]).writeAll(0, data, "S")
	mustBegin(t, block(8, 1001, 0), setup{stage: stageCreate}, nodes[1]).writeAll(0, data, "S")
	if err := copyBy(t, nodes[0], nodes[1], block(8, 1002, 0)); err == nil {
		t.Error("a finalized replica was replaced")
	}
	nodes[1].wantContent(block(8, 1001, 0), data)
}

// A datanode joins a pipeline through which nothing has come yet.
func TestDatanodeJoinsAPipelineWithoutData(t *testing.T) {
	nodes := start(t, 2)
	b := block(7, 1001, 0)
	data := pattern(100_000)
	c := mustBegin(t, b, setup{stage: stageCreate}, nodes[0])
	c.Close()
	check(t, copyBy(t, nodes[0], nodes[1], b))
	c = mustBegin(t, b, setup{stage: stageStreamingRecovery, gen: 1002, min: 0, max: 64_512}, nodes...)
	c.writeAll(0, data, "S S")
	for _, d := range nodes {
		d.wantContent(block(7, 1002, 0), data)
	}
}
