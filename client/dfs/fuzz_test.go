package dfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A configuration file is refused, or its values are bounded and lead to a location or to an error.
func FuzzSiteXML(f *testing.F) {
	property := func(pairs ...string) string {
		var b strings.Builder
		b.WriteString("<configuration>")
		for i := 0; i < len(pairs); i += 2 {
			b.WriteString("<property><name>" + pairs[i] + "</name><value>" + pairs[i+1] + "</value></property>")
		}
		return b.String() + "</configuration>"
	}
	for _, seed := range [][2]string{
		{property("fs.defaultFS", "hdfs://nn:8020", "dfs.replication", "2", "dfs.blocksize", "128m"), "/a/b"},
		{property("fs.defaultFS", "hdfs://ha", "dfs.nameservices", "ha", "dfs.ha.namenodes.ha", "a,b", "dfs.namenode.rpc-address.ha.a", "h:1", "dfs.namenode.rpc-address.ha.b", "[::1]:2"), "relative"},
		{property("a", "${b}${b}", "b", "${a}", "c", "${env.HOME}${user.name}${"), "hdfs://x@y:1//z"},
		{property("fs.trash.interval", "NaN", "fs.permissions.umask-mode", "u=rwx,g=rx,o=", "dfs.client.socket-timeout", "9223372036854775807ms"), "hdfs:///a"},
		{"", "viewfs://a/"},
		{"<configuration><property/><x>&lt;</x></configuration>", "s3a://b/c"},
		{"<!DOCTYPE a [<!ENTITY b 'c'>]><configuration>&b;</configuration>", ":"},
	} {
		f.Add([]byte(seed[0]), seed[1])
	}
	f.Fuzz(func(t *testing.T, document []byte, uri string) {
		c := &HadoopConf{Properties: map[string]string{}}
		if err := c.read(bytes.NewReader(document)); err != nil {
			return
		}
		if err := c.expandAll(); err != nil {
			return
		}
		if d, err := c.TrashInterval(); err == nil && (d < 0 || d > maxTrashMinutes*time.Minute) {
			t.Errorf("trash interval %v", d)
		}
		l, err := c.Locate(uri)
		if err != nil {
			return
		}
		if !strings.HasPrefix(l.Path, "/") || len(l.Config.Namenodes) == 0 || l.Config.BlockSize < 0 || l.Config.DatanodeTimeout < 0 {
			t.Errorf("%q leads to %+v", uri, l)
		}
		for _, address := range l.Config.Namenodes {
			if _, _, err := net.SplitHostPort(address); err != nil {
				t.Errorf("namenode %q: %v", address, err)
			}
		}
	})
}

// Whatever a namenode says of where blocks are: a place in the file leads to a block that has it, or to none.
func FuzzLocatedBlocks(f *testing.F) {
	block := func(id, offset, size uint64) *hadooppb.LocatedBlockProto {
		return &hadooppb.LocatedBlockProto{
			B:      &hadooppb.ExtendedBlockProto{PoolId: new("p"), BlockId: &id, GenerationStamp: new(uint64(1)), NumBytes: &size},
			Offset: &offset, Corrupt: new(false), BlockToken: tokenOf(nil),
		}
	}
	list := &hadooppb.LocatedBlocksProto{
		FileLength: new(uint64(25)), UnderConstruction: new(false), IsLastBlockComplete: new(true),
		Blocks: []*hadooppb.LocatedBlockProto{block(1, 0, 10), block(2, 10, 10)}, LastBlock: block(3, 20, 5),
	}
	for _, length := range []uint64{25, 5, 0, 1 << 63, 1<<63 - 1} {
		list.FileLength = new(length)
		data, err := list.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, int64(length))
		list.Blocks[1].Offset = new(length + 1<<63 - 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, pos int64) {
		var list hadooppb.LocatedBlocksProto
		if list.UnmarshalVT(data) != nil {
			return
		}
		r := &Reader{length: int64(list.GetFileLength())}
		for range 2 {
			r.learn(&list)
		}
		for _, at := range []int64{pos, 0, r.length - 1, r.length} {
			if b := r.known(at); b != nil && (b.size <= 0 || b.offset > at || b.end() <= at || b.end() > r.length) {
				t.Errorf("byte %d of %d is in a block of %d bytes at %d", at, r.length, b.size, b.offset)
			}
		}
		for i := 1; i < len(r.blocks); i++ {
			if r.blocks[i-1].offset >= r.blocks[i].offset {
				t.Errorf("blocks at %d and %d", r.blocks[i-1].offset, r.blocks[i].offset)
			}
		}
	})
}

// sayer is a connection to a datanode that has said everything already.
type sayer struct{ net.Conn }

func (sayer) Write(b []byte) (int, error)      { return len(b), nil }
func (sayer) Close() error                     { return nil }
func (sayer) SetDeadline(time.Time) error      { return nil }
func (sayer) SetWriteDeadline(time.Time) error { return nil }

// Whatever a datanode sends in answer to a read: the reader gets as many bytes as it has asked for, or an error.
func FuzzBlockStream(f *testing.F) {
	answer := func(chunkOffset uint64, kind hadooppb.ChecksumTypeProto, per uint32, packets ...[]byte) []byte {
		m := &hadooppb.BlockOpResponseProto{
			Status: hadooppb.Status_SUCCESS.Enum(),
			ReadOpChecksumInfo: &hadooppb.ReadOpChecksumInfoProto{
				Checksum: &hadooppb.ChecksumProto{Type: kind.Enum(), BytesPerChecksum: &per}, ChunkOffset: &chunkOffset,
			},
		}
		b, err := dtp.AppendMessage(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		return append(b, bytes.Join(packets, nil)...)
	}
	packet := func(offset, seqno int64, last bool, data []byte) []byte {
		length := int32(len(data))
		m := &hadooppb.PacketHeaderProto{OffsetInBlock: &offset, Seqno: &seqno, LastPacketInBlock: &last, DataLen: &length}
		header, err := m.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		b := binary.BigEndian.AppendUint32(nil, uint32(4+len(data)))
		b = binary.BigEndian.AppendUint16(b, uint16(len(header)))
		return append(append(b, header...), data...)
	}
	null := hadooppb.ChecksumTypeProto_CHECKSUM_NULL
	data := bytes.Repeat([]byte("d"), 700)
	f.Add(answer(0, null, 512, packet(0, 0, false, data), packet(700, 1, true, nil)), uint16(10), uint16(600))
	f.Add(answer(512, null, 512, packet(512, 0, false, data), packet(1212, 1, true, nil)), uint16(600), uint16(100))
	f.Add(answer(0, hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C, 512, packet(0, 0, false, data)), uint16(0), uint16(1))
	f.Add(answer(1<<63, null, 1<<31), uint16(0), uint16(1))
	f.Add(answer(0, null, 0, packet(0, 0, false, nil), packet(0, 1, true, nil)), uint16(0), uint16(1))
	f.Fuzz(func(t *testing.T, said []byte, offset, length uint16) {
		pool := newPeerPool(false, nil)
		defer pool.close()
		p := &peer{conn: sayer{}, r: readers.Get().(*bufio.Reader)}
		p.r.Reset(bytes.NewReader(said))
		m, err := dtp.ReadResponse(p.r)
		if err != nil || dtp.CheckResponse(dtp.OpReadBlock, m) != nil {
			return
		}
		s, err := startStream(pool, p, m, int64(offset), int64(length))
		total := 0
		for err == nil {
			var b []byte
			b, err = s.read()
			if total += len(b); err == nil && len(b) == 0 {
				t.Fatal("nothing was read")
			}
		}
		if total > int(length) || errors.Is(err, io.EOF) && total != int(length) {
			t.Errorf("%d bytes were read, %d were asked for: %v", total, length, err)
		}
	})
}

// Properties that name each other do not fill the memory.
func TestSiteXMLThatGrows(t *testing.T) {
	c := &HadoopConf{Properties: map[string]string{"p": strings.Repeat("x", 1<<20)}}
	for i := range 40 {
		c.Properties[strings.Repeat("q", i+1)] = strings.Repeat("${p}", 20)
	}
	if err := c.expandAll(); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
	for _, minutes := range []string{"NaN", "1e300", "-1", "inf"} {
		c := &HadoopConf{Properties: map[string]string{"fs.trash.interval": minutes}}
		if d, err := c.TrashInterval(); err == nil {
			t.Errorf("a trash interval of %s is %v", minutes, d)
		}
	}
}
