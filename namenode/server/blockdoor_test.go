package server

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// readBlock asks a door for a block, and returns its first bytes in a packet, or how the request was refused.
func readBlock(t *testing.T, at *namenode.Node, pool string, b metadata.Block, token security.Token) ([]byte, hadoop.Status) {
	t.Helper()
	conn, err := net.Dial("tcp", at.TransferAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	err = dtp.WriteOp(conn, dtp.OpReadBlock, &hadoop.OpReadBlockProto{
		Header: &hadoop.ClientOperationHeaderProto{ClientName: new("c"), BaseHeader: &hadoop.BaseHeaderProto{
			Block: &hadoop.ExtendedBlockProto{PoolId: &pool, BlockId: new(uint64(b.ID)), GenerationStamp: new(uint64(b.Generation)), NumBytes: new(uint64(b.Length))},
			Token: &hadoop.TokenProto{Identifier: token.Identifier, Password: token.Password, Kind: new(security.BlockTokenKind), Service: new("")},
		}}, Offset: new(uint64(0)), Len: new(uint64(b.Length)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := dtp.NewReader(conn)
	answer, err := dtp.ReadResponse(r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.GetStatus() != hadoop.Status_SUCCESS {
		return nil, answer.GetStatus()
	}
	p, err := dtp.NewPacketReader(r).Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := dtp.DefaultChecksum.Verify(p.Sums, p.Data); err != nil {
		t.Error(err)
	}
	return p.Data, answer.GetStatus()
}

func TestTheBlockDoorServesWhoHasATokenForTheBlock(t *testing.T) {
	t.Parallel()
	m := newCluster(t, 1, nil).raised()
	one, other := bytes.Repeat([]byte("one "), 1000), []byte("inline")
	for path, data := range map[string][]byte{"/d/one": one, "/d/other": other} {
		if _, err := m.store(t, storing(path), data); err != nil {
			t.Fatal(err)
		}
	}
	a, b := &m.locate(t, "/d/one").Blocks[0], &m.locate(t, "/d/other").Blocks[0]
	if !a.Small || len(a.Locations) != 1 || !namenode.IsDoor(a.Locations[0].Node.ID) || a.Locations[0].Node.TransferAddr() != m.config.Transfer.Addr().String() {
		t.Fatalf("the file is at %+v", a)
	}
	many, again := m.manyDoors(3), m.manyDoors(3)
	for i, l := range many {
		if l.Node != again[i].Node || l.Node.TransferAddr() != a.Locations[0].Node.TransferAddr() || !namenode.IsDoor(l.Node.ID) || i > 0 && (l.Node.ID == many[0].Node.ID || l.Volume == many[i-1].Volume) {
			t.Errorf("%d. door for who counts replicas: %+v", i, l.Node)
		}
	}
	door, pool := a.Locations[0].Node, m.BlockPool()
	for _, f := range []struct {
		b    *namenode.LocatedBlock
		want []byte
	}{{a, one}, {b, other}} {
		if got, status := readBlock(t, door, pool, f.b.Block, f.b.Token); !bytes.Equal(got, f.want) {
			t.Errorf("%d bytes of %d, %v", len(got), len(f.want), status)
		}
	}
	newer := a.Block
	newer.Generation++
	for what, c := range map[string]struct {
		b     metadata.Block
		pool  string
		token security.Token
		want  hadoop.Status
	}{
		"another block's token":  {a.Block, pool, b.Token, hadoop.Status_ERROR_ACCESS_TOKEN},
		"no token":               {a.Block, pool, security.Token{Identifier: []byte{}, Password: []byte{}}, hadoop.Status_ERROR_ACCESS_TOKEN},
		"another pool":           {a.Block, "BP-1-127.0.0.1-1", a.Token, hadoop.Status_ERROR_ACCESS_TOKEN},
		"a newer generation":     {newer, pool, a.Token, hadoop.Status_ERROR},
		"more than it has":       {metadata.Block{ID: a.Block.ID, Generation: a.Block.Generation, Length: a.Block.Length + 1}, pool, a.Token, hadoop.Status_ERROR},
		"a token to write to it": {a.Block, pool, m.sign(new(m.caller()), a.Block.ID, security.WriteBlock), hadoop.Status_ERROR_ACCESS_TOKEN},
	} {
		if got, status := readBlock(t, door, c.pool, c.b, c.token); status != c.want {
			t.Errorf("%s: %d bytes, %v, want %v", what, len(got), status, c.want)
		}
	}
	// A reader that believes a body damaged does no harm.
	reported := make(chan error, 1)
	m.ReportBad(m.caller(), []namenode.LocatedBlock{*a}, func(err error) { reported <- err })
	if err := <-reported; err != nil {
		t.Error(err)
	}
	if got, _ := readBlock(t, door, pool, a.Block, a.Token); !bytes.Equal(got, one) {
		t.Error("it is not served any more")
	}
	// What is removed is served no longer.
	removed := make(chan error, 1)
	m.Delete(m.caller(), namenode.Retry{}, "/d/one", false, func(_ bool, err error) { removed <- err })
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if got, status := readBlock(t, door, pool, a.Block, a.Token); status != hadoop.Status_ERROR {
		t.Errorf("of a file that is gone: %d bytes, %v", len(got), status)
	}
}

func TestObserversNameTheirOwnDoorFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader := c.raised()
	data := bytes.Repeat([]byte("x"), 5000)
	if _, err := leader.store(t, storing("/f"), data); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	heard := time.Now().Add(time.Hour) // so that they are named however long this takes
	for _, m := range c.nodes {
		if err := m.group.AwaitApplied(ctx, leader.group.Applied()); err != nil {
			t.Fatal(err)
		}
		for _, o := range c.nodes {
			if o != m {
				at := o.doorLocations()[0].Node
				m.heardOf(o.config.ID, &pb.BlockDoorResponse{Ip: at.IP, Host: at.Host, Port: at.TransferPort}, heard)
			}
		}
	}
	for _, m := range c.nodes {
		if m == leader {
			continue
		}
		caller := m.caller()
		caller.Local = true
		var opened *namenode.FileWithData
		eventually(t, "the follower has the file", func() bool {
			done := make(chan error, 1)
			m.FileWithData(caller, namenode.FileWithDataRequest{Path: "/f", Unnoticed: true}, func(f *namenode.FileWithData, err error) { opened = f; done <- err })
			return <-done == nil
		})
		if !opened.Whole || !bytes.Equal(opened.Data, data) {
			t.Errorf("%s: %d bytes", m.config.ID, len(opened.Data))
		}
		done := make(chan *namenode.LocatedFile, 1)
		m.Locate(caller, namenode.LocateRequest{Path: "/f", Length: 1, Unnoticed: true}, func(f *namenode.LocatedFile, err error) {
			if err != nil {
				t.Error(err)
			}
			done <- f
		})
		f := <-done
		if f == nil {
			continue
		}
		at := f.Blocks[0].Locations
		if len(at) != 3 || at[0].Node.TransferAddr() != m.config.Transfer.Addr().String() || at[1].Node.ID >= at[2].Node.ID {
			t.Errorf("%s names %v", m.config.ID, at)
		}
		for _, l := range at {
			if got, status := readBlock(t, l.Node, m.BlockPool(), f.Blocks[0].Block, f.Blocks[0].Token); !bytes.Equal(got, data) {
				t.Errorf("%s of %s: %v", m.config.ID, l.Node, status)
			}
		}
	}
	// One that was not heard of for long is named no more.
	leader.heardOf("nn9", &pb.BlockDoorResponse{Ip: "127.0.0.1", Port: 1}, time.Now().Add(-2*doorGone))
	for _, l := range leader.doorLocations() {
		if l.Node.TransferPort == 1 {
			t.Error("a namenode that is gone is named")
		}
	}
}
