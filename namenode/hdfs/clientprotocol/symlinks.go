package clientprotocol

import (
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Symlinks are off in HDFS too; these are its answers then.

func (p *protocol) createSymlink(c *hrpc.Call, r *pb.CreateSymlinkRequestProto) {
	if link := strings.Trim(r.GetLink(), "/"); len(link) >= metadata.MaxPathLength || strings.Count(link, "/") >= metadata.MaxPathDepth {
		c.Fail(metadata.Errorf(metadata.ErrIO, "Symlink path exceeds %d character limit", metadata.MaxPathLength))
		return
	}
	c.Fail(metadata.Errorf(metadata.ErrUnsupported, "Symlinks not supported"))
}

func (p *protocol) getLinkTarget(c *hrpc.Call, r *pb.GetLinkTargetRequestProto) {
	path := r.GetPath()
	p.service.Stat(c.Caller, path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
		case f == nil:
			err = metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", path)
		default:
			err = metadata.Errorf(metadata.ErrIO, "Path %s is not a symbolic link", path)
		}
		c.Fail(err)
	})
}
