package differ

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// status prints what a file's status says, but not its id.
func (s *Side) status(f *pb.HdfsFileStatusProto) string {
	if f == nil {
		return "none"
	}
	mtime, children := s.when(f.GetModificationTime()), fmt.Sprint(f.GetChildrenNum())
	if s.snapshotted && f.GetFileType() == pb.HdfsFileStatusProto_IS_DIR {
		mtime, children = "any", "any" // of what was: HDFS changes the time with what is moved there later, and counts what there is now
	}
	return fmt.Sprintf("%v mode=0%o owner=%s:%s length=%d replication=%d blocksize=%d mtime=%s atime=%s children=%s policy=%d flags=%d",
		f.GetFileType(), f.GetPermission().GetPerm(), f.GetOwner(), f.GetGroup(), f.GetLength(), f.GetBlockReplication(), f.GetBlocksize(),
		mtime, s.when(f.GetAccessTime()), children, f.GetStoragePolicy(), f.GetFlags())
}

// tree prints everything below a directory, as the superuser sees it: one line a file.
func (s *Side) tree(ctx context.Context, root string, without map[string]bool) (string, error) {
	var b strings.Builder
	fail := func(what, path string, err error) error {
		if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok {
			return fmt.Errorf("%s of %s: %s: %s", what, path, remote.Class, remote.Text())
		}
		return fmt.Errorf("%s of %s: %w", what, path, err)
	}
	show := func(path string, f *pb.HdfsFileStatusProto) error {
		fmt.Fprintf(&b, "%s %s\n", strings.Replace(path, root, "$R", 1), s.status(f))
		if !without[acls] {
			text, err := getACL(ctx, s, op("getacl", "src", path))
			if err != nil {
				return fail("ACL", path, err)
			}
			b.WriteString("  acl " + text + "\n")
		}
		if !without[xattrs] {
			text, err := getXAttrs(ctx, s, op("getxattrs", "src", path))
			if err != nil {
				return fail("attributes", path, err)
			}
			if text != "" {
				b.WriteString("  attributes " + text + "\n")
			}
		}
		if f.GetFileType() != pb.HdfsFileStatusProto_IS_FILE {
			if !without[quotas] {
				text, err := usage(ctx, s, op("usage", "src", path))
				if err != nil {
					return fail("usage", path, err)
				}
				b.WriteString("  usage " + text + "\n")
			}
			return nil
		}
		blocks, err := locate(ctx, s, op("locate", "src", path, "offset", 0, "length", 1<<50))
		if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok {
			b.WriteString("  blocks " + remote.Class + "\n") // there is an attribute by which the superuser may not read
			return nil
		}
		if err != nil {
			return fail("blocks", path, err)
		}
		b.WriteString("  blocks " + blocks + "\n")
		if strings.Contains(blocks, "open=true") || f.GetLength() == 0 {
			return nil
		}
		data, err := read(ctx, s, op("read", "src", path))
		if err != nil {
			return fail("content", path, err)
		}
		fmt.Fprintf(&b, "  content %x\n", hash(data))
		return nil
	}
	var walk func(path string) error
	walk = func(path string) error {
		after := []byte{}
		var all []*pb.HdfsFileStatusProto
		for {
			var answer pb.GetListingResponseProto
			if err := s.call(ctx, "", "getListing", &pb.GetListingRequestProto{Src: &path, StartAfter: after, NeedLocation: ptr(false)}, &answer); err != nil {
				return fail("list", path, err)
			}
			list := answer.GetDirList().GetPartialListing()
			all = append(all, list...)
			if answer.GetDirList().GetRemainingEntries() == 0 || len(list) == 0 {
				break
			}
			after = list[len(list)-1].GetPath()
		}
		// HDFS compares the bytes of names with a sign, so names beyond ASCII come first there.
		slices.SortFunc(all, func(a, b *pb.HdfsFileStatusProto) int { return bytes.Compare(a.GetPath(), b.GetPath()) })
		for _, f := range all {
			child := path + "/" + string(f.GetPath())
			if err := show(child, f); err != nil {
				return err
			}
			if f.GetFileType() == pb.HdfsFileStatusProto_IS_DIR {
				if err := walk(child); err != nil {
					return err
				}
				if f.GetFlags()&uint32(pb.HdfsFileStatusProto_SNAPSHOT_ENABLED) != 0 {
					if err := walk(child + "/.snapshot"); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	var top pb.GetFileInfoResponseProto
	if err := s.call(ctx, "", "getFileInfo", &pb.GetFileInfoRequestProto{Src: &root}, &top); err != nil {
		return "", fail("status", root, err)
	}
	if top.GetFs() == nil {
		return "gone\n", nil
	}
	if err := show(root, top.GetFs()); err != nil {
		return "", err
	}
	if top.GetFs().GetFileType() != pb.HdfsFileStatusProto_IS_DIR {
		return b.String(), nil
	}
	if err := walk(root); err != nil {
		return "", err
	}
	count, err := summary(ctx, s, op("summary", "src", root))
	if err != nil {
		return "", fail("summary", root, err)
	}
	b.WriteString("summary " + count + "\n")
	return b.String(), nil
}

// hash is FNV-1a: the content is made by us, not by an enemy.
func hash(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}
