package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// packetBytes is the data of the packet that is announced. All of it is sent, and the checksums before it are sent as data,
// so that they are missing at the end: 120 KiB of 15.1 MiB.
const packetBytes = 15 * mib

// newBlock creates a file as user and asks for its first block, with the token that comes with it.
func newBlock(ctx context.Context, c *hrpc.Client, path string) (*hadooppb.LocatedBlockProto, error) {
	var created hadooppb.CreateResponseProto
	client := "attacker"
	err := c.Call(ctx, clientProtocol, "create", &hadooppb.CreateRequestProto{
		Src: &path, Masked: &hadooppb.FsPermissionProto{Perm: new(uint32(0o644))}, ClientName: &client, CreateFlag: new(uint32(1)),
		CreateParent: new(false), Replication: new(uint32(1)), BlockSize: new(uint64(128 * mib)),
	}, &created)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	var added hadooppb.AddBlockResponseProto
	err = c.Call(ctx, clientProtocol, "addBlock", &hadooppb.AddBlockRequestProto{Src: &path, ClientName: &client}, &added)
	if err != nil {
		return nil, fmt.Errorf("addBlock %s: %w", path, err)
	}
	return added.GetBlock(), nil
}

// dialIPC connects to a namenode as a user, within the rules.
func dialIPC(ctx context.Context, addr, user string) (*hrpc.Client, error) {
	return hrpc.Dial(ctx, addr, hrpc.DialConfig{Protocol: clientProtocol, User: user})
}

// blockHeader is what block operations begin with. A nil token is an empty one.
func blockHeader(b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) *hadooppb.ClientOperationHeaderProto {
	if token == nil {
		token = &hadooppb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: new(""), Service: new("")}
	}
	return &hadooppb.ClientOperationHeaderProto{
		BaseHeader: &hadooppb.BaseHeaderProto{Block: b, Token: token}, ClientName: new("attacker"),
	}
}

// writeOp opens a block for writing on one datanode, and further ones if there are targets.
func writeOp(b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto, stage hadooppb.OpWriteBlockProto_BlockConstructionStage, generation uint64, targets ...*hadooppb.DatanodeInfoProto) *hadooppb.OpWriteBlockProto {
	return &hadooppb.OpWriteBlockProto{
		Header: blockHeader(b, token), Stage: stage.Enum(), PipelineSize: new(uint32(1 + len(targets))), Targets: targets,
		MinBytesRcvd: new(b.GetNumBytes()), MaxBytesRcvd: new(b.GetNumBytes()), LatestGenerationStamp: &generation,
		RequestedChecksum: dtp.DefaultChecksum.Proto(), StorageType: hadooppb.StorageTypeProto_DISK.Enum(),
	}
}

// packetsOrder is the order of the writers.
type packetsOrder struct {
	IPC, Dir, User string
	Writers        int
}

// floodPackets writes blocks of files of its own, as any client may, and sends nearly all of a packet to each.
func floodPackets(ctx context.Context, _ *part, o packetsOrder) (sent, error) {
	c, err := dialIPC(ctx, o.IPC, o.User)
	if err != nil {
		return sent{}, err
	}
	defer c.Close()
	first, err := newBlock(ctx, c, o.Dir+"/packets")
	if err != nil {
		return sent{}, err
	}
	zeros := make([]byte, 64<<10)
	var files atomic.Int64
	return flood(ctx, dtp.TransferAddr(first.GetLocs()[0].GetId(), false), o.Writers, func(nc net.Conn) error {
		b, err := newBlock(ctx, c, fmt.Sprintf("%s/packets-%d", o.Dir, files.Add(1)))
		if err != nil {
			return err
		}
		op := writeOp(b.GetB(), b.GetBlockToken(), hadooppb.OpWriteBlockProto_PIPELINE_SETUP_CREATE, b.GetB().GetGenerationStamp())
		if err := dtp.WriteOp(nc, dtp.OpWriteBlock, op); err != nil {
			return err
		}
		answer, err := dtp.ReadResponse(bufio.NewReaderSize(nc, 4096))
		if err == nil {
			err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
		}
		if err != nil {
			return err
		}
		data := packetBytes
		sums := dtp.DefaultChecksum.SumsLen(data)
		head := dtp.AppendHeader(nil, dtp.Header{DataLen: data}, sums)
		if _, err := nc.Write(head); err != nil {
			return err
		}
		for left := data; left > 0; left -= len(zeros) {
			if _, err := nc.Write(zeros[:min(left, len(zeros))]); err != nil {
				return err
			}
		}
		return nil
	})
}

// packets: a datanode keeps what has come of a packet until its end comes.
func packets(ctx context.Context, s *scene, r *result) error {
	o := packetsOrder{IPC: s.namenode(0).IPC, Dir: "/scene/free", User: nameOf(attackerID), Writers: 150}
	return s.siege(ctx, r, siege{
		target: "dn1", probes: []probe{s.stat(), s.write()}, attackers: []order{{"packets", o}},
		length: s.length(20 * time.Second), settle: s.settling(),
	})
}
