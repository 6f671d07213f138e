package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A start skips records of entries without blocks, and no other: not those that it cannot read either.
func TestRecordsWithBlocksAreNotSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		record *logpb.INode
		want   bool
	}{
		"directory":  {&logpb.INode{Id: 1 << 40, Owner: "o", Directory: &logpb.DirectoryState{Entries: 3}}, false},
		"empty file": {&logpb.INode{Id: 7, Mtime: 1 << 50, File: &logpb.FileState{BlockSize: 1 << 20, Replication: 3}}, false},
		"empty file being written": {&logpb.INode{Id: 7, File: &logpb.FileState{
			BlockSize: 1 << 20, Construction: &logpb.Construction{Holder: "h"},
		}}, false},
		"file with a block": {&logpb.INode{Id: 7, StoragePolicy: 2, File: &logpb.FileState{
			BlockSize: 1, Replication: 1, BlockId: []int64{int64(metadata.FirstBlockID)}, BlockGeneration: []uint64{1}, BlockLength: []int64{0},
		}}, true},
		"file with many and attributes": {&logpb.INode{Xattrs: []*logpb.XAttr{{Name: "n"}}, File: &logpb.FileState{
			BlockId: make([]int64, 100), BlockGeneration: make([]uint64, 100), BlockLength: make([]int64, 100),
		}}, true},
	} {
		value, err := c.record.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if got := mayHaveBlocks(value); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		for cut := 1; cut < len(value) && c.want; cut++ {
			if _, err := decodeEntry("x", nil, value[:cut]); err != nil && !mayHaveBlocks(value[:cut]) {
				var r logpb.INode
				if r.UnmarshalVT(value[:cut]) != nil {
					t.Errorf("%s, cut at %d: is skipped in place of refused", name, cut)
				}
			}
		}
	}
}
