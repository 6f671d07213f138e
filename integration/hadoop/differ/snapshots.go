package differ

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// snapshots of directories. A sequence has them or quotas, never both: what was moved or is gone counts for other quotas in HDFS (Deviations in
// metadata/namespace/DESIGN.md).
const snapshots = "snapshots"

// withSnapshots says of which sequences snapshots are a part: of each third one.
func withSnapshots(sequence uint64) bool { return sequence%3 == 2 }

// root draws a directory that snapshots may be taken of, mostly.
func (g *generator) root() string {
	if len(g.roots) > 0 && g.chance(85) {
		return pick(g, g.roots...)
	}
	return g.directory()
}

// ofSnapshot draws the name of a snapshot: mostly a good one.
func (g *generator) ofSnapshot() string {
	if g.chance(6) {
		return pick(g, "", "a/b", "a:b", ".snapshot", ".", "..", "with space", "ü", strings.Repeat("n", 256))
	}
	return pick(g, "s1", "s1", "s2", "s2", "s3")
}

// inSnapshot draws a path in a snapshot.
func (g *generator) inSnapshot() string {
	root := pick(g, g.roots...)
	path := root + "/.snapshot"
	if g.chance(8) {
		return path
	}
	path += "/" + pick(g, "s1", "s1", "s2", "s2", "s3")
	if below := g.below(root); len(below) > 0 && g.chance(60) {
		return path + strings.TrimPrefix(pick(g, below...), root)
	}
	for range g.IntN(3) {
		path += "/" + pick(g, names...)
	}
	return path
}

// below are the paths drawn before that are below a directory.
func (g *generator) below(root string) []string {
	var found []string
	for _, path := range slices.Concat(g.files, g.directories) {
		if strings.HasPrefix(path, root+"/") && !strings.Contains(path, "/.snapshot") {
			found = append(found, path)
		}
	}
	return found
}

func makeAllow(g *generator) Operation {
	src := g.directory()
	g.roots.add(src)
	return op("allowsnapshot", "src", src)
}

func allowSnapshot(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "allowSnapshot", &pb.AllowSnapshotRequestProto{SnapshotRoot: ptr(o.text("src"))}, new(pb.AllowSnapshotResponseProto))
}

func makeDisallow(g *generator) Operation { return op("disallowsnapshot", "src", g.root()) }

func disallowSnapshot(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "disallowSnapshot", &pb.DisallowSnapshotRequestProto{SnapshotRoot: ptr(o.text("src"))}, new(pb.DisallowSnapshotResponseProto))
}

func makeCreateSnapshot(g *generator) Operation {
	name := g.ofSnapshot()
	if name == "" { // HDFS makes one of the time
		name = "s1"
	}
	return op("createsnapshot", "src", g.root(), "name", name)
}

func createSnapshot(ctx context.Context, s *Side, o Operation) (string, error) {
	s.snapshotted = true
	var answer pb.CreateSnapshotResponseProto
	err := s.call(ctx, o.User, "createSnapshot", &pb.CreateSnapshotRequestProto{SnapshotRoot: ptr(o.text("src")), SnapshotName: ptr(o.text("name"))}, &answer)
	return answer.GetSnapshotPath(), err
}

func makeDeleteSnapshot(g *generator) Operation {
	return op("deletesnapshot", "src", g.root(), "name", g.ofSnapshot())
}

func deleteSnapshot(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "deleteSnapshot",
		&pb.DeleteSnapshotRequestProto{SnapshotRoot: ptr(o.text("src")), SnapshotName: ptr(o.text("name"))}, new(pb.DeleteSnapshotResponseProto))
}

func makeRenameSnapshot(g *generator) Operation {
	return op("renamesnapshot", "src", g.root(), "name", g.ofSnapshot(), "newname", g.ofSnapshot())
}

func renameSnapshot(ctx context.Context, s *Side, o Operation) (string, error) {
	return "", s.call(ctx, o.User, "renameSnapshot", &pb.RenameSnapshotRequestProto{
		SnapshotRoot: ptr(o.text("src")), SnapshotOldName: ptr(o.text("name")), SnapshotNewName: ptr(o.text("newname")),
	}, new(pb.RenameSnapshotResponseProto))
}

func makeSnapshotDiff(g *generator) Operation {
	src := g.root()
	if below := g.below(src); len(below) > 0 && g.chance(20) {
		src = pick(g, below...)
	}
	return op("snapshotdiff", "src", src, "from", pick(g, "s1", "s1", "s2", "s3", ""), "to", pick(g, "s1", "s2", "s2", "s3", ""))
}

// snapshotDiff asks for the whole report and, of two snapshots, for all pages.
func snapshotDiff(ctx context.Context, s *Side, o Operation) (string, error) {
	src, from, to := o.text("src"), o.text("from"), o.text("to")
	var answer pb.GetSnapshotDiffReportResponseProto
	err := s.call(ctx, o.User, "getSnapshotDiffReport", &pb.GetSnapshotDiffReportRequestProto{SnapshotRoot: &src, FromSnapshot: &from, ToSnapshot: &to}, &answer)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, e := range answer.GetDiffReport().GetDiffReportEntries() {
		lines = append(lines, fmt.Sprintf("%s %q %q", e.GetModificationLabel(), e.GetFullpath(), e.GetTargetPath()))
	}
	if from == "" || to == "" {
		return strings.Join(lines, "\n"), nil
	}
	var pages []string
	cursor := &pb.SnapshotDiffReportCursorProto{StartPath: []byte{}, Index: ptr(int32(-1))}
	for {
		var answer pb.GetSnapshotDiffReportListingResponseProto
		err := s.call(ctx, o.User, "getSnapshotDiffReportListing",
			&pb.GetSnapshotDiffReportListingRequestProto{SnapshotRoot: &src, FromSnapshot: &from, ToSnapshot: &to, Cursor: cursor}, &answer)
		if err != nil {
			return "", err
		}
		page := answer.GetDiffReport()
		renamed := map[uint64]bool{}
		for _, e := range page.GetDeletedEntries() {
			renamed[e.GetFileId()] = len(e.GetTargetPath()) > 0
		}
		for _, kind := range []struct {
			label string
			all   []*pb.SnapshotDiffReportListingEntryProto
		}{{"M", page.GetModifiedEntries()}, {"+", page.GetCreatedEntries()}, {"-", page.GetDeletedEntries()}} {
			for _, e := range kind.all {
				if kind.label == "+" && renamed[e.GetFileId()] {
					continue // clients leave it out: the entry of what went tells
				}
				// The mark counts of what was modified, where it means a directory, and with a target.
				mark := kind.label != "+" && e.GetIsReference() && (kind.label == "M" || len(e.GetTargetPath()) > 0)
				pages = append(pages, fmt.Sprintf("page %s %q %q %v", kind.label, e.GetFullpath(), e.GetTargetPath(), mark))
			}
		}
		next := page.GetCursor()
		if next == nil || len(next.GetStartPath()) == 0 && next.GetIndex() == -1 {
			break
		}
		cursor = next
	}
	slices.Sort(pages)
	return strings.Join(append(lines, pages...), "\n"), nil
}

func makeSnapshottable(*generator) Operation { return op("snapshottable", "root", "$R") }

func snapshottable(ctx context.Context, s *Side, o Operation) (string, error) {
	all, err := s.snapshottable(ctx, o.User, o.text("root"))
	var lines []string
	for _, d := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %d of %d %s", d.GetParentFullpath(), d.GetDirStatus().GetPath(), d.GetSnapshotNumber(), d.GetSnapshotQuota(), s.status(d.GetDirStatus())))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// snapshottable lists the directories below root, or root, that snapshots may be taken of.
func (s *Side) snapshottable(ctx context.Context, user, root string) ([]*pb.SnapshottableDirectoryStatusProto, error) {
	var answer pb.GetSnapshottableDirListingResponseProto
	err := s.call(ctx, user, "getSnapshottableDirListing", new(pb.GetSnapshottableDirListingRequestProto), &answer)
	return slices.DeleteFunc(answer.GetSnapshottableDirList().GetSnapshottableDirListing(), func(d *pb.SnapshottableDirectoryStatusProto) bool {
		path := string(d.GetParentFullpath()) + "/" + string(d.GetDirStatus().GetPath())
		return path != root && !strings.HasPrefix(path, root+"/")
	}), err
}

func makeSnapshots(g *generator) Operation { return op("snapshots", "src", g.root()) }

func listSnapshots(ctx context.Context, s *Side, o Operation) (string, error) {
	var answer pb.GetSnapshotListingResponseProto
	err := s.call(ctx, o.User, "getSnapshotListing", &pb.GetSnapshotListingRequestProto{SnapshotRoot: ptr(o.text("src"))}, &answer)
	var lines []string
	for _, one := range answer.GetSnapshotList().GetSnapshotListing() {
		lines = append(lines, fmt.Sprintf("%s/%s deleted=%v %s", one.GetParentFullpath(), one.GetDirStatus().GetPath(), one.GetIsDeleted(), s.status(one.GetDirStatus())))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// dropSnapshots ends all snapshots below root.
func (s *Side) dropSnapshots(ctx context.Context, root string) {
	all, _ := s.snapshottable(ctx, "", root)
	for _, d := range all {
		path := string(d.GetParentFullpath()) + "/" + string(d.GetDirStatus().GetPath())
		var answer pb.GetListingResponseProto
		_ = s.call(ctx, "", "getListing", &pb.GetListingRequestProto{Src: ptr(path + "/.snapshot"), StartAfter: []byte{}, NeedLocation: ptr(false)}, &answer)
		for _, e := range answer.GetDirList().GetPartialListing() {
			_, _ = deleteSnapshot(ctx, s, op("deletesnapshot", "src", path, "name", string(e.GetPath())))
		}
		_, _ = disallowSnapshot(ctx, s, op("disallowsnapshot", "src", path))
	}
}

// snapshotStory makes snapshots of a directory, changes what is in it in between, and looks at what was.
func snapshotStory(g *generator) []Operation {
	d, made := g.folder("", 0o777)
	user := pick(g, "", "alice")
	g.roots.add(d)
	story := []Operation{
		made, g.written(user, d+"/a"), by(user, op("mkdirs", "src", d+"/b/c", "mode", mode(0o755), "parents", true)), g.written(user, d+"/b/d"),
		op("allowsnapshot", "src", d), op("createsnapshot", "src", d, "name", "s1"),
	}
	change := func() Operation {
		return by(user, pick(g,
			op("append", "src", d+"/a", "length", pick(g, 1, 600, 1500)),
			op("delete", "src", d+"/"+pick(g, "a", "b", "b/d", "b/c"), "recursive", true),
			g.written(user, d+"/"+pick(g, "a", "c", "b/c/a", "b/d")),
			op("rename", "src", d+"/"+pick(g, "a", "b", "b/d"), "dst", d+"/"+pick(g, "c", "b/c", "d")),
			op("rename", "src", d+"/"+pick(g, "a", "b", "b/d"), "dst", "$R/out"),
			op("rename", "src", "$R/out", "dst", d+"/"+pick(g, "a", "c", "in")),
			op("rename2", "src", d+"/a", "dst", d+"/b/d", "overwrite", true),
			op("permission", "src", d+"/"+pick(g, "a", "b", "b/d"), "mode", g.mode()),
			op("replication", "src", d+"/a", "replication", pick(g, 1, 2)),
			op("setxattr", "src", d+"/"+pick(g, "a", "b"), "name", "USER:k", "value", "v", "flag", 3),
			op("acl", "src", d+"/"+pick(g, "a", "b"), "how", "modify", "entries", "user:bob:7"),
			op("times", "src", d+"/"+pick(g, "a", "b"), "mtime", 981173106000, "atime", -1),
			op("truncate", "src", d+"/a", "length", pick(g, 0, 0, 1024, 100), "holder", g.holder()),
			op("concat", "dst", d+"/c", "srcs", d+"/a"),
			op("mkdirs", "src", d+"/"+pick(g, "c", "b/a"), "mode", mode(0o755), "parents", true),
		))
	}
	for range 3 {
		story = append(story, change())
	}
	story = append(story, op("createsnapshot", "src", d, "name", "s2"))
	for range 3 {
		story = append(story, change())
	}
	return append(story, op("snapshotdiff", "src", d, "from", pick(g, "s1", "s2", ""), "to", pick(g, "s1", "s2", "")), op("read", "src", d+"/.snapshot/s1/a"),
		op("walk", "src", d+"/.snapshot/"+pick(g, "s1", "s2")), op("deletesnapshot", "src", d, "name", pick(g, "s1", "s2")), op("summary", "src", d))
}

// moveStory moves between two directories with snapshots.
func moveStory(g *generator) []Operation {
	story := []Operation{}
	for _, d := range []string{"$R/s", "$R/t"} {
		g.directories.add(d)
		g.roots.add(d)
		story = append(story, op("mkdirs", "src", d+"/b", "mode", mode(0o777), "parents", true), g.written("", d+"/a"), g.written("", d+"/b/c"), op("allowsnapshot", "src", d))
	}
	story = append(story, op("createsnapshot", "src", "$R/s", "name", "s1"))
	for i := range 6 {
		from, to := "$R/s", "$R/t"
		if g.chance(50) {
			from, to = to, from
		}
		story = append(story, pick(g,
			op("rename", "src", from+"/a", "dst", to+"/"+pick(g, "a", "d")), op("rename", "src", from+"/b", "dst", to+"/"+pick(g, "b", "d")),
			op("rename", "src", from+"/b/c", "dst", to+"/c"), op("rename", "src", from, "dst", to), op("rename2", "src", from+"/a", "dst", to+"/a", "overwrite", true),
			op("createsnapshot", "src", from, "name", fmt.Sprintf("s%d", i%3+1)), op("deletesnapshot", "src", from, "name", pick(g, "s1", "s2", "s3")),
			op("append", "src", from+"/"+pick(g, "a", "d", "c"), "length", 300), op("delete", "src", from+"/"+pick(g, "a", "b", "d"), "recursive", true),
			g.written("", from+"/"+pick(g, "a", "b/c")), op("snapshotdiff", "src", from, "from", "s1", "to", ""),
		))
	}
	return append(story, op("snapshotdiff", "src", "$R/s", "from", "s1", "to", pick(g, "s2", "")), op("summary", "src", "$R/s"), op("summary", "src", "$R/t"))
}
