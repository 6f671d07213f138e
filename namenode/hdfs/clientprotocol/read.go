package clientprotocol

import (
	"slices"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func (p *protocol) getFileInfo(c *hrpc.Call, r *pb.GetFileInfoRequestProto) { p.info(c, r.GetSrc()) }

func (p *protocol) getFileLinkInfo(c *hrpc.Call, r *pb.GetFileLinkInfoRequestProto) {
	p.info(c, r.GetSrc()) // the response has the same shape, and there are no links
}

func (p *protocol) info(c *hrpc.Call, path string) {
	answer := infoAnswers.Get().(*infoAnswer)
	f, ok, err := p.service.StatNow(c.Caller, path, &answer.room)
	switch {
	case !ok:
		p.infoLater(c, path)
	case err != nil:
		c.Fail(err)
	default:
		answer.encoder, answer.status = &p.encode, f
		c.Reply(answer)
	}
	answer.release()
}

// infosNow answers calls of getFileInfo that have come together, as far as all of them can be answered at once.
func (p *protocol) infosNow(b *hrpc.Batch) {
	answers := infoBatches.Get().(*infoBatch)
	n := p.service.StatEach(b.Caller, b.Paths, answers.rooms[:len(b.Paths)])
	b.Reply(answers.of(&p.encode, n))
	answers.release(n)
}

func (p *protocol) infoLater(c *hrpc.Call, path string) {
	p.service.Stat(c.Caller, path, func(f *metadata.FileStatus, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		p.replyInfo(c, f)
	})
}

// replyInfo answers with a status alone.
func (p *protocol) replyInfo(c *hrpc.Call, f *metadata.FileStatus) {
	answer := infoAnswers.Get().(*infoAnswer)
	answer.encoder, answer.status = &p.encode, f
	c.Reply(answer)
	answer.release()
}

// maxInfos is how many paths one call may ask about.
const maxInfos = 1024

func (p *protocol) getFileInfos(c *hrpc.Call, r *pb.GetFileInfosRequestProto) {
	paths := r.GetPaths()
	if len(paths) > maxInfos {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "getFileInfos: %d paths, and %d is the most: ask for fewer at a time", len(paths), maxInfos))
		return
	}
	p.service.StatMany(c.Caller, namenode.StatManyRequest{Paths: paths, Admit: c.Admit}, result(c, func(found []namenode.Found) hrpc.Message {
		return newInfosAnswer(&p.encode, found)
	}))
}

func (p *protocol) getLocatedFileInfo(c *hrpc.Call, r *pb.GetLocatedFileInfoRequestProto) {
	path := r.GetSrc()
	p.service.Stat(c.Caller, path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
			c.Fail(err)
		case f == nil || f.IsDir():
			c.Reply(&infoAnswer{encoder: &p.encode, status: f})
		default:
			p.service.Locate(c.Caller, namenode.LocateRequest{Path: path, Length: f.Length, Passing: true, Admit: c.Admit}, result(c, func(l *namenode.LocatedFile) hrpc.Message {
				return &infoAnswer{encoder: &p.encode, status: &l.Status, blocks: located{file: l, pool: *p.blockPool()}}
			}))
		}
	})
}

func (p *protocol) getListing(c *hrpc.Call, r *pb.GetListingRequestProto) {
	request := namenode.ListRequest{
		Path: r.GetSrc(), After: string(r.GetStartAfter()), Locations: r.GetNeedLocation(), Passing: true, Admit: c.Admit,
	}
	p.service.List(c.Caller, request, func(l *namenode.Listing, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		answer := listAnswers.Get().(*listAnswer)
		answer.set(&p.encode, l)
		c.Reply(answer)
		answer.release()
	})
}

func (p *protocol) getBlockLocations(c *hrpc.Call, r *pb.GetBlockLocationsRequestProto) {
	offset, length := int64(r.GetOffset()), int64(r.GetLength())
	if offset < 0 {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "Negative offset is not supported. File: %s", r.GetSrc()))
		return
	}
	if length < 0 {
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "Negative length is not supported. File: %s", r.GetSrc()))
		return
	}
	tails := r.GetTails()
	request := namenode.LocateRequest{Path: r.GetSrc(), Offset: offset, Length: length, Tails: tails, Passing: true, Admit: c.Admit}
	p.service.Locate(c.Caller, request, func(l *namenode.LocatedFile, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		answer := locationsAnswers.Get().(*locationsAnswer)
		l.Tails = tails
		answer.encoder, answer.file, answer.pool = &p.encode, l, *p.blockPool()
		c.Reply(answer)
		answer.file = nil
		locationsAnswers.Put(answer)
	})
}

func (p *protocol) getContentSummary(c *hrpc.Call, r *pb.GetContentSummaryRequestProto) {
	p.service.ContentSummary(c.Caller, r.GetPath(), result(c, func(s *metadata.ContentSummary) hrpc.Message {
		return &pb.GetContentSummaryResponseProto{Summary: &pb.ContentSummaryProto{
			Length: ptr(uint64(s.Length)), FileCount: ptr(uint64(s.Files)), DirectoryCount: ptr(uint64(s.Directories)),
			SpaceConsumed: ptr(uint64(s.SpaceConsumed)), Quota: ptr(uint64(s.Quota)), SpaceQuota: ptr(uint64(s.SpaceQuota)), TypeQuotaInfos: typeQuotas(s.Types),
			SnapshotLength: ptr(uint64(s.Snapshot.Length)), SnapshotFileCount: ptr(uint64(s.Snapshot.Files)),
			SnapshotDirectoryCount: ptr(uint64(s.Snapshot.Directories)), SnapshotSpaceConsumed: ptr(uint64(s.Snapshot.SpaceConsumed)),
			ErasureCodingPolicy: ptr(hdfs.ErasureName(s)), // of a file: `hadoop fs -ls -e` has no column without it
		}}
	}))
}

func (p *protocol) checkAccess(c *hrpc.Call, r *pb.CheckAccessRequestProto) {
	p.service.CheckAccess(c.Caller, r.GetPath(), metadata.Access(r.GetMode()), done(c))
}

func (p *protocol) isFileClosed(c *hrpc.Call, r *pb.IsFileClosedRequestProto) {
	p.existing(c, r.GetSrc(), func(f *metadata.FileStatus) {
		if f.IsDir() {
			c.Fail(metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s", r.GetSrc()))
			return
		}
		c.Reply(&pb.IsFileClosedResponseProto{Result: ptr(!f.UnderConstruction)})
	})
}

func (p *protocol) getPreferredBlockSize(c *hrpc.Call, r *pb.GetPreferredBlockSizeRequestProto) {
	p.existing(c, r.GetFilename(), func(f *metadata.FileStatus) {
		c.Reply(&pb.GetPreferredBlockSizeResponseProto{Bsize: ptr(uint64(f.BlockSize))})
	})
}

func (p *protocol) getEZForPath(c *hrpc.Call, r *pb.GetEZForPathRequestProto) {
	p.service.Stat(c.Caller, r.GetSrc(), result(c, func(*metadata.FileStatus) hrpc.Message { return &pb.GetEZForPathResponseProto{} }))
}

// getEnclosingRoot is the root of the encryption zone that a path is in (HADOOP-18950), "/" as there is none.
func (p *protocol) getEnclosingRoot(c *hrpc.Call, r *pb.GetEnclosingRootRequestProto) {
	p.service.Stat(c.Caller, r.GetFilename(), result(c, func(*metadata.FileStatus) hrpc.Message {
		return &pb.GetEnclosingRootResponseProto{EnclosingRootPath: ptr("/")}
	}))
}

func (p *protocol) getStoragePolicy(c *hrpc.Call, r *pb.GetStoragePolicyRequestProto) {
	p.existing(c, r.GetPath(), func(f *metadata.FileStatus) {
		c.Reply(&pb.GetStoragePolicyResponseProto{StoragePolicy: policyMessage(namenode.StoragePolicyByID(f.StoragePolicy))})
	})
}

// existing calls fn with the status of a path that has to be there.
func (p *protocol) existing(c *hrpc.Call, path string, fn func(*metadata.FileStatus)) {
	p.service.Stat(c.Caller, path, func(f *metadata.FileStatus, err error) {
		switch {
		case err != nil:
			c.Fail(err)
		case f == nil: // a file above it is another matter, of which Stat does not tell the superuser
			p.service.CheckAccess(c.Caller, path, 0, func(err error) {
				if metadata.KindOf(err) != metadata.ErrPermission {
					err = metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", path)
				}
				c.Fail(err)
			})
		default:
			fn(f)
		}
	})
}

func (p *protocol) listOpenFiles(c *hrpc.Call, r *pb.ListOpenFilesRequestProto) {
	blocking := slices.Contains(r.Types, pb.OpenFilesTypeProto_BLOCKING_DECOMMISSION) && !slices.Contains(r.Types, pb.OpenFilesTypeProto_ALL_OPEN_FILES)
	p.service.OpenFiles(c.Caller, metadata.INodeID(r.GetId()), r.GetPath(), blocking, func(files []namenode.OpenFile, more bool, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		m := &pb.ListOpenFilesResponseProto{HasMore: ptr(more), Types: r.Types}
		for i := range files {
			f := &files[i]
			m.Entries = append(m.Entries, &pb.OpenFilesBatchResponseProto{
				Id: ptr(int64(f.INode)), Path: &f.Path, ClientName: &f.Client, ClientMachine: &f.Host,
			})
		}
		c.Reply(m)
	})
}

func (p *protocol) listCorruptFileBlocks(c *hrpc.Call, r *pb.ListCorruptFileBlocksRequestProto) {
	p.service.LostFiles(c.Caller, r.GetPath(), r.GetCookie(), func(paths []string, next string, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(&pb.ListCorruptFileBlocksResponseProto{Corrupt: &pb.CorruptFileBlocksProto{Files: paths, Cookie: &next}})
	})
}
