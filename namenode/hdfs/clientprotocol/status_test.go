package clientprotocol

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func marshal(t *testing.T, m interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
},
) []byte {
	t.Helper()
	b := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// The messages that the generated code makes of the namenode's words, which what is encoded here has to equal.

func statusMessage(f *metadata.FileStatus) *pb.HdfsFileStatusProto {
	kind, flags := pb.HdfsFileStatusProto_IS_FILE, uint32(0)
	if f.IsDir() {
		kind = pb.HdfsFileStatusProto_IS_DIR
	}
	if f.ACL {
		flags = uint32(pb.HdfsFileStatusProto_HAS_ACL)
	}
	if f.Snapshottable {
		flags |= uint32(pb.HdfsFileStatusProto_SNAPSHOT_ENABLED)
	}
	if f.Erasure != 0 {
		flags |= uint32(pb.HdfsFileStatusProto_HAS_EC)
	}
	return &pb.HdfsFileStatusProto{
		FileType: &kind, Path: []byte(f.Name), Length: ptr(uint64(f.Length)), Owner: &f.Owner, Group: &f.Group,
		Permission:       &pb.FsPermissionProto{Perm: ptr(uint32(f.Mode & 0o1777))},
		ModificationTime: ptr(uint64(f.MTime)), AccessTime: ptr(uint64(f.ATime)),
		BlockReplication: ptr(uint32(f.Replication)), Blocksize: ptr(uint64(f.BlockSize)), FileId: ptr(uint64(f.ID)),
		ChildrenNum: ptr(int32(f.Children)), StoragePolicy: ptr(uint32(f.StoragePolicy)), Flags: &flags,
		EcPolicy: erasureMessage(f.Erasure),
	}
}

func erasureMessage(id metadata.ErasurePolicyID) *pb.ErasureCodingPolicyProto {
	if id == 0 {
		return nil
	}
	return &pb.ErasureCodingPolicyProto{Id: ptr(uint32(id))}
}

func blockMessage(b *namenode.LocatedBlock, pool string) *pb.LocatedBlockProto {
	m := &pb.LocatedBlockProto{
		B: &pb.ExtendedBlockProto{
			PoolId: &pool, BlockId: ptr(uint64(b.Block.ID)), GenerationStamp: ptr(uint64(b.Block.Generation)), NumBytes: ptr(uint64(b.Block.Length)),
		},
		Offset: ptr(uint64(b.Offset)), Corrupt: &b.Corrupt,
		BlockToken: &pb.TokenProto{Identifier: b.Token.Identifier, Password: b.Token.Password, Kind: empty, Service: empty},
	}
	if len(b.Token.Identifier) > 0 {
		m.BlockToken.Kind = ptr("HDFS_BLOCK_TOKEN")
	} else {
		m.BlockToken.Identifier, m.BlockToken.Password = []byte{}, []byte{}
	}
	for _, l := range b.Locations {
		m.Locs = append(m.Locs, datanodeInfo(l.Node))
		m.StorageTypes = append(m.StorageTypes, storageType(l.Type))
		m.StorageIDs = append(m.StorageIDs, string(l.Volume))
	}
	m.BlockIndices = b.Units
	for _, token := range b.UnitTokens {
		m.BlockTokens = append(m.BlockTokens, &pb.TokenProto{Identifier: token.Identifier, Password: token.Password, Kind: ptr("HDFS_BLOCK_TOKEN"), Service: empty})
	}
	return m
}

func fileMessage(f *namenode.LocatedFile, pool string) *pb.LocatedBlocksProto {
	m := &pb.LocatedBlocksProto{FileLength: ptr(uint64(f.Length)), UnderConstruction: &f.UnderConstruction, IsLastBlockComplete: &f.LastComplete, EcPolicy: erasureMessage(f.Status.Erasure)}
	for i := range f.Blocks {
		m.Blocks = append(m.Blocks, blockMessage(&f.Blocks[i], pool))
	}
	if f.Last != nil {
		m.LastBlock = blockMessage(f.Last, pool)
	}
	if f.Tails {
		m.ModificationTime, m.FileId = ptr(uint64(f.Status.MTime)), ptr(uint64(f.Status.ID))
	}
	return m
}

// equal holds what an answer is encoded as against a message.
func equal(t *testing.T, what string, answer, message interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
},
) {
	t.Helper()
	if got, want := marshal(t, answer), marshal(t, message); !bytes.Equal(got, want) {
		t.Errorf("%s is encoded as\n%x, want\n%x", what, got, want)
	}
}

// number is of any size, so that its varint is.
func number(r *rand.Rand) int64 { return r.Int64() >> r.IntN(64) }

func text(r *rand.Rand) string { return strings.Repeat("n\u00e4", r.IntN(4)*r.IntN(40)) }

func anyStatus(r *rand.Rand) metadata.FileStatus {
	return metadata.FileStatus{
		Type: metadata.Type(r.IntN(2)), ID: metadata.INodeID(number(r)), Name: text(r), Length: number(r), Mode: metadata.Mode(r.IntN(1 << 12)),
		Owner: text(r), Group: text(r), MTime: metadata.Time(number(r) - 1), ATime: metadata.Time(number(r) - 1),
		Replication: uint16(number(r)), BlockSize: number(r), Children: int(int32(number(r))), ACL: r.IntN(2) == 0,
		StoragePolicy: uint8(number(r)), Erasure: metadata.ErasurePolicyID(r.IntN(2) * r.IntN(256)),
	}
}

func anyBlock(r *rand.Rand, nodes []*namenode.Node) namenode.LocatedBlock {
	b := namenode.LocatedBlock{
		Block:  metadata.Block{ID: metadata.BlockID(number(r)), Generation: metadata.Generation(number(r)), Length: number(r)},
		Offset: number(r), Corrupt: r.IntN(2) == 0,
	}
	if r.IntN(4) > 0 {
		b.Token = security.Token{Identifier: []byte("i" + text(r)), Password: []byte("p" + text(r))}
	}
	for range r.IntN(4) {
		b.Locations = append(b.Locations, namenode.Location{
			Node: nodes[r.IntN(len(nodes))], Volume: namenode.VolumeID(text(r)), Type: namenode.StorageType(r.IntN(5)),
		})
	}
	if r.IntN(2) == 0 { // a group
		b.Units = []byte{}
		for range b.Locations {
			b.Units = append(b.Units, byte(r.IntN(14)))
			b.UnitTokens = append(b.UnitTokens, security.Token{Identifier: []byte("i" + text(r)), Password: []byte("p" + text(r))})
		}
	}
	return b
}

func anyFile(r *rand.Rand, nodes []*namenode.Node) *namenode.LocatedFile {
	f := &namenode.LocatedFile{Status: anyStatus(r), Length: number(r), UnderConstruction: r.IntN(2) == 0, LastComplete: r.IntN(2) == 0, Tails: r.IntN(2) == 0}
	for range r.IntN(4) * r.IntN(4) {
		f.Blocks = append(f.Blocks, anyBlock(r, nodes))
	}
	switch r.IntN(3) {
	case 0:
		if n := len(f.Blocks); n > 0 {
			f.Last = &f.Blocks[n-1]
		}
	case 1:
		f.Last = ptr(anyBlock(r, nodes))
	}
	return f
}

func TestAnswersAreEncodedAsTheGeneratedCodeDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 11))
	pool := "BP-1"
	e := &encoder{pool: func() *string { return &pool }}
	var nodes []*namenode.Node
	for i := range 5 {
		nodes = append(nodes, &namenode.Node{
			ID: namenode.NodeID(text(r)), IP: "127.0.0.1", Host: text(r), Rack: text(r), TransferPort: uint32(i * 3000), HTTPPort: uint32(number(r)),
		})
	}
	var a listAnswer
	for range 500 {
		pool = text(r)
		f, b, s := anyFile(r, nodes), ptr(anyBlock(r, nodes)), ptr(anyStatus(r))
		equal(t, "a status", &infoAnswer{encoder: e, status: s}, &pb.GetFileInfoResponseProto{Fs: statusMessage(s)})
		withBlocks := statusMessage(&f.Status)
		withBlocks.Locations = fileMessage(f, pool)
		equal(t, "a status with blocks", &infoAnswer{encoder: e, status: &f.Status, blocks: located{file: f, pool: pool}},
			&pb.GetLocatedFileInfoResponseProto{Fs: withBlocks})
		equal(t, "a file", &locationsAnswer{encoder: e, file: f, pool: pool}, &pb.GetBlockLocationsResponseProto{Locations: fileMessage(f, pool)})
		equal(t, "a block", e.answer(b), &pb.AddBlockResponseProto{Block: blockMessage(b, pool)})
		equal(t, "an append", &appendAnswer{encoder: e, block: b, status: s, pool: pool},
			&pb.AppendResponseProto{Block: blockMessage(b, pool), Stat: statusMessage(s)})
		equal(t, "an append without a block", &appendAnswer{encoder: e, status: s, pool: pool}, &pb.AppendResponseProto{Stat: statusMessage(s)})

		list := &namenode.Listing{Remaining: int(uint32(number(r)))}
		want := &pb.DirectoryListingProto{RemainingEntries: ptr(uint32(list.Remaining))}
		for range r.IntN(20) {
			list.Entries = append(list.Entries, anyStatus(r))
		}
		if r.IntN(2) == 0 {
			list.Files = make([]*namenode.LocatedFile, len(list.Entries))
		}
		for i := range list.Entries {
			m := statusMessage(&list.Entries[i])
			if list.Files != nil && r.IntN(2) == 0 {
				list.Files[i] = anyFile(r, nodes)
				m.Locations = fileMessage(list.Files[i], pool)
			}
			want.PartialListing = append(want.PartialListing, m)
		}
		a.set(e, list)
		infos := &pb.GetFileInfosResponseProto{}
		var found []namenode.Found
		for i := range list.Entries {
			switch r.IntN(3) {
			case 0:
				found = append(found, namenode.Found{})
				infos.Infos = append(infos.Infos, &pb.FoundInfoProto{})
			case 1:
				message := text(r)
				found = append(found, namenode.Found{Err: metadata.Errorf(metadata.ErrPermission, "%s", message)})
				infos.Infos = append(infos.Infos, &pb.FoundInfoProto{Exception: ptr("org.apache.hadoop.security.AccessControlException"), Message: &message})
			default:
				found = append(found, namenode.Found{Status: &list.Entries[i]})
				infos.Infos = append(infos.Infos, &pb.FoundInfoProto{Fs: statusMessage(&list.Entries[i])})
			}
		}
		equal(t, "many statuses", newInfosAnswer(e, found), infos)
		equal(t, "a listing", &a, &pb.GetListingResponseProto{DirList: want})
	}
	for _, ok := range []bool{false, true} {
		equal(t, "a result", resultOf(ok), &pb.RenameResponseProto{Result: &ok})
	}
	a.set(e, nil)
	equal(t, "no listing", &a, &pb.GetListingResponseProto{})
	equal(t, "no status", &infoAnswer{encoder: e}, &pb.GetFileInfoResponseProto{})
}

func BenchmarkListing(b *testing.B) {
	entries := make([]metadata.FileStatus, 16)
	for i := range entries {
		entries[i] = metadata.FileStatus{
			Type: metadata.TypeFile, ID: 17000, Name: "part-00001", Mode: 0o644, Owner: "alice", Group: "supergroup",
			MTime: 1795000000000, ATime: 1795000000000, Replication: 3, BlockSize: 128 << 20,
		}
	}
	list := &namenode.Listing{Entries: entries}
	room := make([]byte, 4096)
	var e encoder
	b.ReportAllocs()
	for b.Loop() {
		a := listAnswers.Get().(*listAnswer)
		a.set(&e, list)
		if _, err := a.MarshalToSizedBufferVT(room[:a.SizeVT()]); err != nil {
			b.Fatal(err)
		}
		a.release()
	}
}
