package namespace

import (
	"errors"
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

// A record with a good sum that commands would never make of an inode is damage, and not a panic of a command later.
func TestRecordsThatCommandsNeverMake(t *testing.T) {
	file := func(change func(r *logpb.INode)) *logpb.INode {
		r := &logpb.INode{Id: 16400, Mode: 0o644, File: &logpb.FileState{
			BlockSize: 1 << 20, Replication: 3, BlockId: []int64{1 << 30}, BlockGeneration: []uint64{1001}, BlockLength: []int64{5},
			Construction: &logpb.Construction{Holder: RecoveryHolder, LastBlock: logpb.Construction_UNDER_RECOVERY, RecoveryId: 1002, Truncate: 4},
		}}
		change(r)
		return r
	}
	for name, r := range map[string]*logpb.INode{
		"a mode":            file(func(r *logpb.INode) { r.Mode = 1 << 16 }),
		"no replica":        file(func(r *logpb.INode) { r.File.Replication = 0 }),
		"65537 replicas":    file(func(r *logpb.INode) { r.File.Replication = 1<<16 + 1 }),
		"a block size":      file(func(r *logpb.INode) { r.File.BlockSize = -1 }),
		"a length":          file(func(r *logpb.INode) { r.File.BlockLength[0] = -1 }),
		"no block to cut":   file(func(r *logpb.INode) { r.File.BlockId, r.File.BlockGeneration, r.File.BlockLength = nil, nil, nil }),
		"a state":           file(func(r *logpb.INode) { r.File.Construction.LastBlock = -1 }),
		"a cut of what is":  file(func(r *logpb.INode) { r.File.Construction.LastBlock = logpb.Construction_COMPLETE }),
		"a negative cut":    file(func(r *logpb.INode) { r.File.Construction.Truncate = 1 << 63 }),
		"a quota of a file": file(func(r *logpb.INode) { r.Quota = &logpb.Quota{Names: 1} }),
		"half a list":       file(func(r *logpb.INode) { r.Acl = []*logpb.ACLEntry{{Name: "bob"}} }),
		"a file's defaults": file(func(r *logpb.INode) {
			r.Acl = []*logpb.ACLEntry{{Default: true}, {Default: true, Type: logpb.ACLEntry_GROUP}, {Default: true, Type: logpb.ACLEntry_OTHER}}
		}),
		"negative entries": {Id: 16400, Directory: &logpb.DirectoryState{Entries: 1 << 63}},
	} {
		if _, err := decodeEntry("f", []byte("key"), marshal(nil, r)); !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := decodeEntry("f", []byte("key"), marshal(nil, file(func(*logpb.INode) {}))); err != nil || n.file.open == nil {
		t.Error(err)
	}
}
