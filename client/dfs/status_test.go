package dfs

import (
	"reflect"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func wireStatus(name string) *hadooppb.HdfsFileStatusProto {
	return &hadooppb.HdfsFileStatusProto{
		FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte(name), Length: new(uint64(1 << 40)),
		Permission: &hadooppb.FsPermissionProto{Perm: new(uint32(0o1644))}, Owner: new("alice"), Group: new("users"),
		ModificationTime: new(uint64(1795000000001)), AccessTime: new(uint64(1795000000002)), Symlink: []byte{},
		BlockReplication: new(uint32(3)), Blocksize: new(uint64(128 << 20)), FileId: new(uint64(16400)), ChildrenNum: new(int32(-1)),
		StoragePolicy: new(uint32(7)), Flags: new(uint32(1)), Namespace: new("ns"),
		Locations: &hadooppb.LocatedBlocksProto{FileLength: new(uint64), UnderConstruction: new(true), IsLastBlockComplete: new(false)},
	}
}

func status(dir, name, path string) metadata.FileStatus {
	return metadata.FileStatus{
		Type: metadata.TypeFile, ID: 16400, Name: name, Length: 1 << 40, Mode: 0o1644, Owner: "alice", Group: "users",
		MTime: 1795000000001, ATime: 1795000000002, Replication: 3, BlockSize: 128 << 20, StoragePolicy: 7, ACL: true,
		UnderConstruction: true, Path: path,
	}
}

func TestListingsAreDecodedWithTheirPaths(t *testing.T) {
	for _, dir := range []string{"/", "/d/e"} {
		prefix := dir
		if dir == "/" {
			prefix = ""
		}
		m := &hadooppb.GetListingResponseProto{DirList: &hadooppb.DirectoryListingProto{RemainingEntries: new(uint32(7))}}
		want := Page{Remaining: 7}
		for _, name := range []string{"a", "", ".trash", "n\u00e4me"} {
			path := prefix + "/" + name
			if name == "" {
				path = dir
			}
			m.DirList.PartialListing = append(m.DirList.PartialListing, wireStatus(name))
			want.Entries = append(want.Entries, status(dir, name, path))
		}
		other := wireStatus("z")
		other.FileType, other.Owner, other.Locations = hadooppb.HdfsFileStatusProto_IS_DIR.Enum(), new("bob"), nil
		m.DirList.PartialListing = append(m.DirList.PartialListing, other)
		last := status(dir, "z", prefix+"/z")
		last.Type, last.Owner, last.UnderConstruction = metadata.TypeDirectory, "bob", false
		want.Entries = append(want.Entries, last)
		data, err := m.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		a := listAnswer{name: dir}
		if err := a.UnmarshalVT(data); err != nil || !a.found || !reflect.DeepEqual(a.page, want) {
			t.Errorf("%v, found %t:\n%+v, want\n%+v", err, a.found, a.page, want)
		}
		if err := a.UnmarshalVT(nil); err != nil || a.found {
			t.Errorf("an answer without a listing: %v, found %t", err, a.found)
		}
	}
}

// FuzzStatusAnswers: bytes of all kinds are decoded or refused, and an answer that is one is found where the generated
// decoders find it.
func FuzzStatusAnswers(f *testing.F) {
	info, err := (&hadooppb.GetFileInfoResponseProto{Fs: wireStatus("")}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	list, err := (&hadooppb.GetListingResponseProto{DirList: &hadooppb.DirectoryListingProto{
		PartialListing: []*hadooppb.HdfsFileStatusProto{wireStatus("a"), wireStatus("b")}, RemainingEntries: new(uint32(1)),
	}}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	infos, err := (&hadooppb.GetFileInfosResponseProto{Infos: []*hadooppb.FoundInfoProto{{Fs: wireStatus("")}, {}, {Exception: new("java.io.IOException"), Message: new("no")}}}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{nil, info, list, infos, info[:len(info)-3], list[:60], {0x0a, 0}, {0x0a, 2, 0x10, 0}, {0x08, 1}, {0x0a, 5, 0xff, 0xff, 0xff, 0xff, 0x7f}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var wantInfo hadooppb.GetFileInfoResponseProto
		a := infoAnswer{name: "/d"}
		if err := a.UnmarshalVT(data); err == nil && wantInfo.UnmarshalVT(data) == nil {
			if a.found != (wantInfo.Fs != nil) {
				t.Fatalf("found %t, want %t", a.found, wantInfo.Fs != nil)
			}
		}
		var wantList hadooppb.GetListingResponseProto
		l := listAnswer{name: "/d"}
		if err := l.UnmarshalVT(data); err == nil && wantList.UnmarshalVT(data) == nil {
			if l.found != (wantList.DirList != nil) {
				t.Fatalf("found %t, want %t", l.found, wantList.DirList != nil)
			}
		}
		var wantInfos hadooppb.GetFileInfosResponseProto
		many := infosAnswer{paths: []string{"/a", "/b", "/c"}, some: []int{0, 1, 2}, out: &ManyStatuses{Statuses: make([]metadata.FileStatus, 3), Errors: make([]error, 3)}}
		if err := many.UnmarshalVT(data); err == nil && wantInfos.UnmarshalVT(data) == nil {
			if many.told != len(wantInfos.Infos) {
				t.Fatalf("told of %d paths, want %d", many.told, len(wantInfos.Infos))
			}
			for i, one := range wantInfos.Infos[:min(many.told, 3)] {
				if err := many.out.Errors[i]; (err == nil) != (one.Fs != nil && one.Exception == nil) {
					t.Fatalf("path %d: %v, want %v", i, err, one)
				}
			}
		}
	})
}

func BenchmarkDecodeListing(b *testing.B) {
	m := &hadooppb.GetListingResponseProto{DirList: &hadooppb.DirectoryListingProto{RemainingEntries: new(uint32)}}
	for range 16 {
		m.DirList.PartialListing = append(m.DirList.PartialListing, wireStatus("part-00001"))
	}
	data, err := m.MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		a := listAnswer{name: "/user/alice/dir"}
		if err := a.UnmarshalVT(data); err != nil {
			b.Fatal(err)
		}
	}
}
