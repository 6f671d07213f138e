package clientprotocol

import (
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Search by an index, which HDFS does not have.

func (p *protocol) search(c *hrpc.Call, r *pb.SearchRequestProto) {
	request := namenode.SearchRequest{
		Query: metadata.Query{
			Path: r.GetPath(), Name: r.GetName(), Fold: r.GetFold(), Min: r.Min, Max: r.Max, Files: r.GetFiles(), Directories: r.GetDirectories(),
			Limit: int(min(r.GetLimit(), metadata.MaxQueryLimit)), Cursor: r.GetCursor(),
		},
		After: metadata.Position(r.GetAfter()), Wait: time.Duration(r.GetWait()) * time.Millisecond, Admit: c.Admit,
	}
	for _, t := range r.GetTags() {
		condition := metadata.TagCondition{Name: t.GetName()}
		if t.Value != nil {
			condition.Value = new(string(t.GetValue()))
		}
		request.Tags = append(request.Tags, condition)
	}
	p.service.Search(c.Context(), c.Caller, request, result(c, func(page *metadata.FoundPage) hrpc.Message {
		answer := &pb.SearchResponseProto{Position: ptr(uint64(page.Position)), Looked: ptr(uint64(page.Looked))}
		if page.Next != "" {
			answer.Next = &page.Next
		}
		for i := range page.Found {
			answer.Found = append(answer.Found, foundProto(&page.Found[i]))
		}
		return answer
	}))
}

func foundProto(f *metadata.Found) *pb.FoundProto {
	p := &pb.FoundProto{
		Path: &f.Path, Inode: ptr(uint64(f.ID)), Directory: new(f.IsDir()), Length: &f.Length, Mode: ptr(uint32(f.Mode)), Owner: &f.Owner, Group: &f.Group,
		Mtime: ptr(int64(f.MTime)), Atime: ptr(int64(f.ATime)), Replication: ptr(uint32(f.Replication)), BlockSize: &f.BlockSize,
	}
	for _, a := range f.XAttrs {
		p.Xattrs = append(p.Xattrs, &pb.XAttrProto{Namespace: pb.XAttrProto_XAttrNamespaceProto(a.Namespace).Enum(), Name: new(a.Name), Value: a.Value})
	}
	return p
}

func (p *protocol) searchStatus(c *hrpc.Call, _ *pb.SearchStatusRequestProto) {
	p.service.SearchStatus(c.Caller, result(c, func(s *namenode.SearchStatus) hrpc.Message {
		return &pb.SearchStatusResponseProto{
			State: &s.State, Problem: &s.Problem, Done: &s.Done, Total: &s.Total, Position: ptr(uint64(s.Position)), FeedEnd: ptr(uint64(s.FeedEnd)),
			Lag: &s.Lag, Entries: &s.Entries, Bytes: &s.Bytes, Waiting: &s.Waiting, Rebuilds: &s.Rebuilds,
		}
	}))
}

func (p *protocol) rebuildSearch(c *hrpc.Call, _ *pb.RebuildSearchRequestProto) {
	p.service.RebuildSearch(c.Caller, func(err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(&pb.RebuildSearchResponseProto{})
	})
}
