package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// blocksOrder names a replica of a file that the attacker may not read, as it could guess it, and a file of its own.
type blocksOrder struct {
	Datanodes  []string
	Pool       string
	ID         uint64
	Generation uint64
	Length     uint64
	IPC, Dir   string
	User       string
}

// blocksAnswer is what worked.
type blocksAnswer struct {
	// Read is what came of the replica without a token, ReadWith with the token of another block.
	Read, ReadWith []byte
	// Refusals are the datanodes' words, one for each attempt.
	Refusals []string
	// Stamped counts replicas that were given another generation.
	Stamped int
	// Connected: a datanode connected to the attacker's own address as to the next of a pipeline.
	Connected bool
}

// attackBlocks reads a block of somebody else's, spoils its replicas, and has a datanode connect elsewhere.
func attackBlocks(ctx context.Context, _ *part, o blocksOrder) (blocksAnswer, error) {
	var out blocksAnswer
	b := &hadooppb.ExtendedBlockProto{PoolId: &o.Pool, BlockId: &o.ID, GenerationStamp: &o.Generation, NumBytes: &o.Length}
	refusal := func(what string, err error) {
		if err != nil {
			out.Refusals = append(out.Refusals, what+": "+strings.Join(strings.Fields(err.Error()), " "))
		}
	}
	c, err := dialIPC(ctx, o.IPC, o.User)
	if err != nil {
		return out, err
	}
	defer c.Close()
	own, err := newBlock(ctx, c, o.Dir+"/own-block")
	if err != nil {
		return out, err
	}
	out.Read, err = readBlock(o.Datanodes[0], b, nil)
	refusal("read", err)
	out.ReadWith, err = readBlock(o.Datanodes[0], b, own.GetBlockToken())
	refusal("read with another block's token", err)
	for _, addr := range o.Datanodes {
		err := setUp(addr, writeOp(b, nil, hadooppb.OpWriteBlockProto_PIPELINE_SETUP_APPEND, o.Generation+100))
		refusal("append", err)
		if err == nil {
			out.Stamped++
		}
	}
	// The write itself is lawful, with the token that came with the block; only the next datanode is not one.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return out, err
	}
	defer l.Close()
	connected := make(chan bool, 1)
	go func() {
		_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(3 * time.Second))
		nc, err := l.Accept()
		if err == nil {
			nc.Close()
		}
		connected <- err == nil
	}()
	port := uint32(l.Addr().(*net.TCPAddr).Port)
	next := &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("localhost"), DatanodeUuid: new("00000000-0000-0000-0000-000000000000"),
		XferPort: &port, InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
	}}
	op := writeOp(own.GetB(), own.GetBlockToken(), hadooppb.OpWriteBlockProto_PIPELINE_SETUP_CREATE, own.GetB().GetGenerationStamp(), next)
	refusal("pipeline", setUp(dtp.TransferAddr(own.GetLocs()[0].GetId(), false), op))
	out.Connected = <-connected
	return out, nil
}

// setUp opens a block for writing and leaves.
func setUp(addr string, op *hadooppb.OpWriteBlockProto) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if err := dtp.WriteOp(c, dtp.OpWriteBlock, op); err != nil {
		return err
	}
	answer, err := dtp.ReadResponse(bufio.NewReader(c))
	if err != nil {
		return err
	}
	return dtp.CheckResponse(dtp.OpWriteBlock, answer)
}

// readBlock reads a small block with a token, nil for none.
func readBlock(addr string, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) ([]byte, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	err = dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: blockHeader(b, token), Offset: new(uint64(0)), Len: new(b.GetNumBytes())})
	if err != nil {
		return nil, err
	}
	r := dtp.NewReader(c)
	answer, err := dtp.ReadResponse(r)
	if err == nil {
		err = dtp.CheckResponse(dtp.OpReadBlock, answer)
	}
	if err != nil {
		return nil, err
	}
	var data []byte
	for packets := dtp.NewPacketReader(r); ; {
		p, err := packets.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return data, err
		}
		if data = append(data, p.Data...); p.Last {
			return data, nil
		}
	}
}

// blocks: nobody but the namenode's clients may have what a datanode stores.
func blocks(ctx context.Context, s *scene, r *result) error {
	const path, marker = "/scene/private", "nobody else's business"
	w, err := s.fs.Create(ctx, path, dfs.CreateOptions{}) // on datanodes, however short
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte(marker)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := s.fs.SetPermission(ctx, path, 0o600); err != nil {
		return err
	}
	c, err := dialIPC(ctx, s.namenode(0).IPC, ownName())
	if err != nil {
		return err
	}
	defer c.Close()
	var located hadooppb.GetBlockLocationsResponseProto
	err = c.Call(ctx, clientProtocol, "getBlockLocations", &hadooppb.GetBlockLocationsRequestProto{
		Src: new(string(path)), Offset: new(uint64(0)), Length: new(uint64(1)),
	}, &located)
	if err != nil {
		return err
	}
	block := located.GetLocations().GetBlocks()[0]
	b := block.GetB()
	o := blocksOrder{
		Pool: b.GetPoolId(), ID: b.GetBlockId(), Generation: b.GetGenerationStamp(), Length: uint64(len(marker)),
		IPC: s.namenode(0).IPC, Dir: "/scene/free", User: nameOf(attackerID),
	}
	for _, l := range block.GetLocs() {
		o.Datanodes = append(o.Datanodes, dtp.TransferAddr(l.GetId(), false))
	}
	var got blocksAnswer
	if err := s.once(ctx, "blocks", o, &got); err != nil {
		return err
	}
	for _, read := range []struct {
		what string
		data []byte
	}{{"without a token", got.Read}, {"with the token of another block", got.ReadWith}} {
		if bytes.Contains(read.data, []byte(marker)) {
			r.missed("the file's bytes came %s", read.what)
		}
	}
	if got.Stamped > 0 {
		r.missed("%d of %d replicas took another generation", got.Stamped, len(o.Datanodes))
	}
	if got.Connected {
		r.missed("a datanode connected where the client said")
	}
	r.found("refused: %d of %d attempts", len(got.Refusals), 2+len(o.Datanodes)+1)
	if len(got.Refusals) > 0 {
		r.found("%.160s", got.Refusals[0])
	}
	// The owner still reads it, for as long as a datanode takes to tell the namenode what it has.
	for until := time.Now().Add(15 * time.Second); time.Now().Before(until) && ctx.Err() == nil; pause(ctx, time.Second) {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		data, err := s.fs.ReadFile(attempt, path)
		cancel()
		if err != nil || string(data) != marker {
			r.missed("its owner cannot read the file any more: %s", strings.Join(strings.Fields(fmt.Sprint(err)), " "))
			break
		}
		if got.Stamped == 0 {
			break
		}
	}
	return nil
}
