package differ

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gohops/hops/client/dfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// kind is a kind of operation.
type kind struct {
	weight int
	// group names a feature that a side may lack as a whole; empty: every file system has it.
	group string
	make  func(g *generator) Operation
	run   func(ctx context.Context, s *Side, o Operation) (string, error)
}

// the features that a side may lack.
const (
	quotas  = "quotas"
	concats = "concat"
	cuts    = "truncate"
	xattrs  = "extended attributes"
	acls    = "ACLs"
)

// kindNames are the kinds in a fixed order, on which sequences depend.
var kindNames []string

// kinds of operations.
var kinds map[string]kind

func init() {
	kinds = map[string]kind{
		"mkdirs":       {14, "", makeMkdirs, mkdirs},
		"fill":         {2, "", makeFill, fill},
		"create":       {12, "", makeCreate, create},
		"complete":     {4, "", makeComplete, complete},
		"write":        {9, "", makeWrite, write},
		"append":       {5, "", makeAppend, appendData},
		"hold":         {2, "", makeHold, hold},
		"resume":       {2, "", makeResume, resume},
		"reopen":       {3, "", makeReopen, reopen},
		"rename":       {10, "", makeRename, rename},
		"rename2":      {9, "", makeRename2, rename2},
		"delete":       {8, "", makeDelete, remove},
		"permission":   {6, "", makePermission, setPermission},
		"owner":        {5, "", makeOwner, setOwner},
		"times":        {4, "", makeTimes, setTimes},
		"replication":  {4, "", makeReplication, setReplication},
		"stat":         {4, "", makePath("stat"), stat},
		"list":         {4, "", makeList, list},
		"walk":         {3, "", makeWalk, walk},
		"summary":      {3, "", makeDirectory("summary"), summary},
		"access":       {3, "", makeAccess, access},
		"locate":       {3, "", makeLocate, locate},
		"read":         {3, "", makeFile("read"), read},
		"closed":       {1, "", makeFile("closed"), closed},
		"recoverlease": {3, "", makeRecoverLease, recoverLease},
		"renewlease":   {1, "", makeRenewLease, renewLease},
		"quota":        {6, quotas, makeQuota, setQuota},
		"usage":        {2, "", makeDirectory("usage"), usage},
		"concat":       {5, concats, makeConcat, concat},
		"truncate":     {5, cuts, makeTruncate, truncate},
		"setxattr":     {5, xattrs, makeSetXAttr, setXAttr},
		"getxattrs":    {3, xattrs, makeGetXAttrs, getXAttrs},
		"removexattr":  {3, xattrs, makeRemoveXAttr, removeXAttr},
		"listxattrs":   {1, xattrs, makePath("listxattrs"), listXAttrs},
		"acl":          {8, acls, makeACL, changeACL},
		"getacl":       {3, acls, makePath("getacl"), getACL},
		"symlink":      {1, "", makeSymlink, symlink},

		"allowsnapshot":    {5, snapshots, makeAllow, allowSnapshot},
		"disallowsnapshot": {2, snapshots, makeDisallow, disallowSnapshot},
		"createsnapshot":   {9, snapshots, makeCreateSnapshot, createSnapshot},
		"deletesnapshot":   {4, snapshots, makeDeleteSnapshot, deleteSnapshot},
		"renamesnapshot":   {3, snapshots, makeRenameSnapshot, renameSnapshot},
		"snapshotdiff":     {6, snapshots, makeSnapshotDiff, snapshotDiff},
		"snapshottable":    {2, snapshots, makeSnapshottable, snapshottable},
		"snapshots":        {2, snapshots, makeSnapshots, listSnapshots},
	}
	for name := range kinds {
		kindNames = append(kindNames, name)
	}
	slices.Sort(kindNames)
}

func ptr[T any](v T) *T { return &v }

func perm(o Operation) *pb.FsPermissionProto {
	return &pb.FsPermissionProto{Perm: ptr(uint32(o.number("mode")))}
}

func makePath(kind string) func(g *generator) Operation {
	return func(g *generator) Operation { return op(kind, "src", g.path()) }
}

func makeFile(kind string) func(g *generator) Operation {
	return func(g *generator) Operation { return op(kind, "src", g.file()) }
}

func makeDirectory(kind string) func(g *generator) Operation {
	return func(g *generator) Operation { return op(kind, "src", g.directory()) }
}

// created is how new inodes get their mode: sometimes the client tells what it was before its umask, for ACLs to inherit.
func (g *generator) created(o Operation) Operation {
	if g.chance(40) {
		o.Args["unmasked"] = o.Args["mode"]
		o.Args["mode"] = pick(g, o.Args["mode"], "0700", "0750", "0000")
	}
	return o
}

func unmasked(o Operation) *pb.FsPermissionProto {
	if o.Args["unmasked"] == "" {
		return nil
	}
	return &pb.FsPermissionProto{Perm: ptr(uint32(o.number("unmasked")))}
}

func makeMkdirs(g *generator) Operation {
	src := g.path()
	g.directories.add(src)
	return g.created(op("mkdirs", "src", src, "mode", g.mode(), "parents", g.chance(60)))
}

func mkdirs(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.MkdirsResponseProto
	err := s.call(ctx, o.User, "mkdirs", &pb.MkdirsRequestProto{
		Src: ptr(o.text("src")), Masked: perm(o), Unmasked: unmasked(o), CreateParent: ptr(o.flag("parents")),
	}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

func makeFill(g *generator) Operation { return op("fill", "src", g.directory()) }

// fill makes more directories than a page of a listing has.
func fill(ctx context.Context, s *Side, o Operation) (string, error) {
	for i := range 9 {
		var answer pb.MkdirsResponseProto
		if err := s.call(ctx, o.User, "mkdirs", &pb.MkdirsRequestProto{
			Src: ptr(fmt.Sprintf("%s/m%d", o.text("src"), i)), Masked: &pb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(false),
		}, &answer); err != nil {
			return fmt.Sprint(i), err
		}
	}
	return "9", nil
}

func makeCreate(g *generator) Operation {
	flags := pick(g, 1, 1, 3, 3, 3, 2)
	if g.chance(10) {
		flags = pick(g, 0, 4, 5, 6, 7, 9, 33, 65, 129, 257, 513, 1025) // not 16, lazy persist, which sets a storage policy
	}
	src := g.path()
	if g.chance(20) {
		src = g.file()
	}
	g.files.add(src)
	return g.created(op("create", "src", src, "mode", g.mode(), "parents", g.chance(50), "flags", flags,
		"replication", g.replication(), "blocksize", g.blockSize(), "holder", g.holder(), "open", g.chance(25)))
}

// create makes an empty file, and leaves it open if so asked.
func create(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.CreateResponseProto
	src, holder := o.text("src"), o.text("holder")
	err := s.call(ctx, o.User, "create", &pb.CreateRequestProto{
		Src: &src, Masked: perm(o), Unmasked: unmasked(o), ClientName: &holder, CreateFlag: ptr(uint32(o.number("flags"))), CreateParent: ptr(o.flag("parents")),
		Replication: ptr(uint32(o.number("replication"))), BlockSize: ptr(uint64(o.number("blocksize"))),
		// What Java sends: the versions of encryption that it knows.
		CryptoProtocolVersion: []pb.CryptoProtocolVersionProto{pb.CryptoProtocolVersionProto_ENCRYPTION_ZONES},
	}, &answer)
	if err != nil || o.flag("open") {
		return s.status(answer.GetFs()), err
	}
	var done pb.CompleteResponseProto
	err = s.call(ctx, o.User, "complete", &pb.CompleteRequestProto{Src: &src, ClientName: &holder, FileId: ptr(answer.GetFs().GetFileId())}, &done)
	return fmt.Sprint(s.status(answer.GetFs()), done.GetResult()), err
}

func makeComplete(g *generator) Operation {
	return op("complete", "src", g.file(), "holder", g.holder())
}

func complete(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.CompleteResponseProto
	err := s.call(ctx, o.User, "complete", &pb.CompleteRequestProto{Src: ptr(o.text("src")), ClientName: ptr(o.text("holder"))}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

// content is n bytes that say where they stand.
func content(n int64, from int64) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = 'a' + byte((int64(i)+from)%26)
	}
	return data
}

func makeWrite(g *generator) Operation {
	src := g.path()
	if g.chance(30) {
		src = g.file()
	}
	g.files.add(src)
	return op("write", "src", src, "length", pick(g, 1, 5, 100, 511, 512, 513, 1024, 1025, 3000), "overwrite", g.chance(60),
		"parents", g.chance(40), "blocksize", pick(g, 512, 1024, 1024, 2048))
}

// write makes a file with data.
func write(ctx context.Context, s *Side, o Operation) (string, error) {
	c, err := s.client(o.User)
	if err != nil {
		return "", err
	}
	w, err := c.Create(ctx, o.text("src"), dfs.CreateOptions{
		Overwrite: o.flag("overwrite"), Parents: o.flag("parents"), Replication: 1, BlockSize: o.number("blocksize"),
	})
	if err != nil {
		return "", err
	}
	if err = finish(w, content(o.number("length"), 0)); err != nil {
		s.settled(ctx, o.text("src"))
	}
	return "", err
}

func finish(w *dfs.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		w.Abort()
		return err
	}
	err := w.Close()
	if err != nil {
		w.Abort()
	}
	return err
}

func makeAppend(g *generator) Operation {
	return op("append", "src", g.file(), "length", pick(g, 1, 5, 100, 512, 1500))
}

func appendData(ctx context.Context, s *Side, o Operation) (string, error) {
	c, err := s.client(o.User)
	if err != nil {
		return "", err
	}
	w, err := c.Append(ctx, o.text("src"))
	if err != nil {
		return "", err
	}
	if err = finish(w, content(o.number("length"), 7)); err != nil {
		s.settled(ctx, o.text("src"))
	}
	return "", err
}

func makeRename(g *generator) Operation { return op("rename", "src", g.path(), "dst", g.path()) }

func rename(ctx context.Context, s *Side, o Operation) (string, error) {
	s.moved = s.snapshotted
	var answer pb.RenameResponseProto
	err := s.call(ctx, o.User, "rename", &pb.RenameRequestProto{Src: ptr(o.text("src")), Dst: ptr(o.text("dst"))}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

func makeRename2(g *generator) Operation {
	o := op("rename2", "src", g.path(), "dst", g.path(), "overwrite", g.chance(50))
	if g.chance(10) {
		o.Args["totrash"] = "true"
	}
	return o
}

func rename2(ctx context.Context, s *Side, o Operation) (string, error) {
	request := &pb.Rename2RequestProto{Src: ptr(o.text("src")), Dst: ptr(o.text("dst")), OverwriteDest: ptr(o.flag("overwrite"))}
	s.moved = s.snapshotted
	if o.flag("totrash") {
		request.MoveToTrash = ptr(true)
	}
	return "", s.call(ctx, o.User, "rename2", request, new(pb.Rename2ResponseProto))
}

func makeDelete(g *generator) Operation {
	return op("delete", "src", g.path(), "recursive", g.chance(60))
}

func remove(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.DeleteResponseProto
	err := s.call(ctx, o.User, "delete", &pb.DeleteRequestProto{Src: ptr(o.text("src")), Recursive: ptr(o.flag("recursive"))}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

func makePermission(g *generator) Operation {
	return op("permission", "src", g.path(), "mode", g.mode())
}

func setPermission(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "setPermission",
		&pb.SetPermissionRequestProto{Src: ptr(o.text("src")), Permission: perm(o)}, new(pb.SetPermissionResponseProto))
}

func makeOwner(g *generator) Operation {
	o := op("owner", "src", g.path())
	if g.chance(70) {
		o.Args["owner"] = g.owner()
	}
	if g.chance(60) {
		o.Args["group"] = g.group()
	}
	return o
}

func setOwner(ctx context.Context, s *Side, o Operation) (string, error) {
	request := &pb.SetOwnerRequestProto{Src: ptr(o.text("src"))}
	if v, ok := o.Args["owner"]; ok {
		request.Username = &v
	}
	if v, ok := o.Args["group"]; ok {
		request.Groupname = &v
	}
	return "", s.call(ctx, o.User, "setOwner", request, new(pb.SetOwnerResponseProto))
}

func makeTimes(g *generator) Operation {
	times := []int{-1, -1, 0, 1, 981173106000, -2, 4102444800000}
	// An access time that lies ahead is not drawn: HDFS keeps it, here it was set by a clock that was wrong.
	return op("times", "src", g.path(), "mtime", pick(g, times...), "atime", pick(g, times[:6]...))
}

func setTimes(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "setTimes", &pb.SetTimesRequestProto{
		Src: ptr(o.text("src")), Mtime: ptr(uint64(o.number("mtime"))), Atime: ptr(uint64(o.number("atime"))),
	}, new(pb.SetTimesResponseProto))
}

func makeReplication(g *generator) Operation {
	return op("replication", "src", g.file(), "replication", g.replication())
}

func setReplication(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.SetReplicationResponseProto
	err := s.call(ctx, o.User, "setReplication",
		&pb.SetReplicationRequestProto{Src: ptr(o.text("src")), Replication: ptr(uint32(o.number("replication")))}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

func stat(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetFileInfoResponseProto
	err := s.call(ctx, o.User, "getFileInfo", &pb.GetFileInfoRequestProto{Src: ptr(o.text("src"))}, &answer)
	return s.status(answer.GetFs()), err
}

func makeList(g *generator) Operation {
	return op("list", "src", g.directory(), "after", pick(g, "", "", "", "a", "b", "bb", "m3", "z", "/.reserved/.inodes/$ID($R/a)", "/.reserved/.inodes/$ID($R/b)"), "locations", g.chance(30))
}

func list(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetListingResponseProto
	err := s.call(ctx, o.User, "getListing", &pb.GetListingRequestProto{
		Src: ptr(o.text("src")), StartAfter: []byte(o.text("after")), NeedLocation: ptr(o.flag("locations")),
	}, &answer)
	if answer.DirList == nil {
		return "none", err
	}
	var lines []string
	for _, e := range answer.DirList.GetPartialListing() {
		if !ascii(e.GetPath()) {
			continue // HDFS may have it on another page
		}
		if strings.Trim(o.text("src"), "/") == ".reserved" {
			e.ModificationTime, e.AccessTime = ptr(uint64(0)), ptr(uint64(0)) // in HDFS when the server was started
		}
		line := fmt.Sprintf("%q %s", e.GetPath(), s.status(e))
		if o.flag("locations") && e.GetFileType() == pb.HdfsFileStatusProto_IS_FILE {
			line += "\n  " + s.blocksOf(e.GetLocations())
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), err
}

func summary(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetContentSummaryResponseProto
	err := s.call(ctx, o.User, "getContentSummary", &pb.GetContentSummaryRequestProto{Path: ptr(o.text("src"))}, &answer)
	c := answer.GetSummary()
	if s.moved { // HDFS counts what snapshots have of what was moved in ways that depend on the order of things
		return fmt.Sprintf("quota=%d spacequota=%d policy=%q", int64(c.GetQuota()), int64(c.GetSpaceQuota()), c.GetErasureCodingPolicy()), err
	}
	return fmt.Sprintf("length=%d files=%d directories=%d quota=%d consumed=%d spacequota=%d policy=%q snapshots=%d,%d,%d,%d", int64(c.GetLength()), c.GetFileCount(),
		c.GetDirectoryCount(), int64(c.GetQuota()), int64(c.GetSpaceConsumed()), int64(c.GetSpaceQuota()), c.GetErasureCodingPolicy(),
		c.GetSnapshotLength(), c.GetSnapshotFileCount(), c.GetSnapshotDirectoryCount(), c.GetSnapshotSpaceConsumed()), err
}

func usage(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetQuotaUsageResponseProto
	err := s.call(ctx, o.User, "getQuotaUsage", &pb.GetQuotaUsageRequestProto{Path: ptr(o.text("src"))}, &answer)
	u := answer.GetUsage()
	if s.moved {
		return fmt.Sprintf("quota=%d spacequota=%d", int64(u.GetQuota()), int64(u.GetSpaceQuota())), err
	}
	return fmt.Sprintf("names=%d quota=%d consumed=%d spacequota=%d",
		u.GetFileAndDirectoryCount(), int64(u.GetQuota()), int64(u.GetSpaceConsumed()), int64(u.GetSpaceQuota())), err
}

func makeAccess(g *generator) Operation { return op("access", "src", g.path(), "access", g.IntN(8)) }

func access(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "checkAccess", &pb.CheckAccessRequestProto{
		Path: ptr(o.text("src")), Mode: pb.AclEntryProto_FsActionProto(o.number("access")).Enum(),
	}, new(pb.CheckAccessResponseProto))
}

func makeLocate(g *generator) Operation {
	return op("locate", "src", g.file(), "offset", pick(g, 0, 0, 1, 512, 1024, 100000), "length", pick(g, 0, 1, 1024, 1<<40))
}

func locate(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetBlockLocationsResponseProto
	err := s.call(ctx, o.User, "getBlockLocations", &pb.GetBlockLocationsRequestProto{
		Src: ptr(o.text("src")), Offset: ptr(uint64(o.number("offset"))), Length: ptr(uint64(o.number("length"))),
	}, &answer)
	if answer.Locations == nil {
		return "none", err
	}
	s.wrote(ctx)
	return s.blocksOf(answer.Locations), err
}

// blocksOf describes the blocks of a file, but not where they lie, nor, after a snapshot was made, where they end: an append to a
// file in a snapshot begins a new one here.
func (s *Side) blocksOf(l *pb.LocatedBlocksProto) string {
	var b strings.Builder
	fmt.Fprintf(&b, "length=%d open=%v lastcomplete=%v", l.GetFileLength(), l.GetUnderConstruction(), l.GetIsLastBlockComplete())
	if s.snapshotted {
		return b.String()
	}
	for _, block := range l.GetBlocks() {
		fmt.Fprintf(&b, " %d+%d", block.GetOffset(), block.GetB().GetNumBytes())
	}
	if last := l.LastBlock; last != nil {
		fmt.Fprintf(&b, " last=%d+%d", last.GetOffset(), last.GetB().GetNumBytes())
	}
	return b.String()
}

// read reads a file by the Go client, as a reader would.
func read(ctx context.Context, s *Side, o Operation) (string, error) {
	c, err := s.client(o.User)
	if err != nil {
		return "", err
	}
	r, err := c.Open(ctx, o.text("src"))
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, 1<<20))
	s.wrote(ctx)
	return string(data), err
}

func closed(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.IsFileClosedResponseProto
	err := s.call(ctx, o.User, "isFileClosed", &pb.IsFileClosedRequestProto{Src: ptr(o.text("src"))}, &answer)
	return fmt.Sprint(answer.GetResult()), err
}

func makeRecoverLease(g *generator) Operation {
	return op("recoverlease", "src", g.file(), "holder", g.holder())
}

// recoverLease takes an open file from its writer, and waits until the datanodes have agreed on its end.
func recoverLease(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.RecoverLeaseResponseProto
	err := s.call(ctx, o.User, "recoverLease", &pb.RecoverLeaseRequestProto{Src: ptr(o.text("src")), ClientName: ptr(o.text("holder"))}, &answer)
	open := ""
	if err == nil && !answer.GetResult() {
		open = s.settled(ctx, o.text("src"))
	}
	return fmt.Sprint(answer.GetResult(), open), err
}

func makeRenewLease(g *generator) Operation { return op("renewlease", "holder", g.holder()) }

func renewLease(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "renewLease", &pb.RenewLeaseRequestProto{ClientName: ptr(o.text("holder"))}, new(pb.RenewLeaseResponseProto))
}

const (
	dontSet  = 1<<63 - 1 // HdfsConstants.QUOTA_DONT_SET
	resetIt  = -1        // HdfsConstants.QUOTA_RESET
	tinySize = 2048
)

func makeQuota(g *generator) Operation {
	return op("quota", "src", g.directory(), "names", pick(g, 1, 2, 3, 5, 20, resetIt, resetIt, dontSet, 0, -2),
		"space", pick(g, tinySize, 10*tinySize, resetIt, resetIt, dontSet, dontSet, 0))
}

func setQuota(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "setQuota", &pb.SetQuotaRequestProto{
		Path: ptr(o.text("src")), NamespaceQuota: ptr(uint64(o.number("names"))), StoragespaceQuota: ptr(uint64(o.number("space"))),
	}, new(pb.SetQuotaResponseProto))
}

func makeConcat(g *generator) Operation {
	dst := g.file()
	return op("concat", "dst", dst, "srcs", g.several(dst))
}

func concat(ctx context.Context, s *Side, o Operation) (string, error) {
	request := &pb.ConcatRequestProto{Trg: ptr(o.text("dst")), Srcs: o.list("srcs")}
	return "", s.call(ctx, o.User, "concat", request, new(pb.ConcatResponseProto))
}

func makeTruncate(g *generator) Operation {
	return op("truncate", "src", g.file(), "length", pick(g, 0, 0, 5, 100, 512, 512, 1024, 1024, 2048, 100000, -1), "holder", g.holder())
}

// truncate cuts a file and waits until the datanodes have done so.
func truncate(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.TruncateResponseProto
	src := o.text("src")
	err := s.call(ctx, o.User, "truncate",
		&pb.TruncateRequestProto{Src: &src, NewLength: ptr(uint64(o.number("length"))), ClientName: ptr(o.text("holder"))}, &answer)
	open := ""
	if err == nil && !answer.GetResult() {
		open = s.settled(ctx, src)
	}
	return fmt.Sprint(answer.GetResult(), open), err
}

func makeSymlink(g *generator) Operation { return op("symlink", "target", g.path(), "link", g.path()) }

func symlink(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "createSymlink", &pb.CreateSymlinkRequestProto{
		Target: ptr(o.text("target")), Link: ptr(o.text("link")), DirPerm: &pb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(false),
	}, new(pb.CreateSymlinkResponseProto))
}
