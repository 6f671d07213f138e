package dfs

import (
	"context"
	"path"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Find is a page of the files and directories that a query finds in the index of the namenode that leads: what the caller would come to see by listing
// the tree. after is a position of the feed of changes up to which the index has to be, 0 for as it is; EventsEnd gives that of the caller's own last change.
// The namenode waits for that for ten seconds.
//
// Errors: ErrUnsupported where there is no index, ErrRetriable where it is being rebuilt or too far behind, ErrInvalidArgument; ErrNotExist and
// ErrPermission for the path. Servers of Apache Hadoop do not have it.
func (c *Client) Find(ctx context.Context, q metadata.Query, after metadata.Position) (*metadata.FoundPage, error) {
	top, err := clean("find", q.Path)
	if err != nil {
		return nil, err
	}
	request := &hadooppb.SearchRequestProto{
		Path: &top, Name: &q.Name, Fold: &q.Fold, Min: q.Min, Max: q.Max, Files: &q.Files, Directories: &q.Directories, Limit: new(uint32(max(q.Limit, 0))),
		Cursor: &q.Cursor, After: new(uint64(after)),
	}
	for _, t := range q.Tags {
		p := &hadooppb.TagProto{Name: new(t.Name)}
		if t.Value != nil {
			p.Value = []byte(*t.Value)
		}
		request.Tags = append(request.Tags, p)
	}
	var answer hadooppb.SearchResponseProto
	if err := c.rpc.Call(ctx, operatorProtocol, "search", request, &answer); err != nil {
		return nil, wrap("find", top, c.hinted(err))
	}
	page := &metadata.FoundPage{Next: answer.GetNext(), Position: metadata.Position(answer.GetPosition()), Looked: int(answer.GetLooked())}
	for _, p := range answer.GetFound() {
		page.Found = append(page.Found, foundOf(p))
	}
	return page, nil
}

func foundOf(p *hadooppb.FoundProto) metadata.Found {
	f := metadata.Found{FileStatus: metadata.FileStatus{
		ID: metadata.INodeID(p.GetInode()), Type: metadata.TypeFile, Name: path.Base(p.GetPath()), Path: p.GetPath(), Length: p.GetLength(), Mode: metadata.Mode(p.GetMode()), Owner: p.GetOwner(),
		Group: p.GetGroup(), MTime: metadata.Time(p.GetMtime()), ATime: metadata.Time(p.GetAtime()), Replication: uint16(p.GetReplication()), BlockSize: p.GetBlockSize(),
	}}
	if p.GetDirectory() {
		f.Type = metadata.TypeDirectory
	}
	for _, x := range p.GetXattrs() {
		f.XAttrs = append(f.XAttrs, metadata.XAttr{Namespace: metadata.XAttrNamespace(x.GetNamespace()), Name: x.GetName(), Value: x.GetValue()})
	}
	return f
}

// FindAll calls yield with all that a query finds, page by page, until it returns false. A page may be as large as q.Limit says.
//
// Errors are those of Find.
func (c *Client) FindAll(ctx context.Context, q metadata.Query, after metadata.Position, yield func(metadata.Found) bool) error {
	for turns := pagesFrom("find", q.Path, q.Cursor); ; {
		page, err := c.Find(ctx, q, after)
		if err != nil {
			return err
		}
		for _, f := range page.Found {
			if !yield(f) {
				return nil
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" { // after holds for all pages: another namenode may lead by then
			return nil
		}
		if err := turns.turn(q.Cursor); err != nil {
			return err
		}
	}
}

// SearchStatusAt is how the search index of the namenode at an address is, whether it leads or not.
//
// Errors: ErrUnsupported where there is none.
func (c *Client) SearchStatusAt(ctx context.Context, addr string) (*namenode.SearchStatus, error) {
	var a hadooppb.SearchStatusResponseProto
	if err := c.at(ctx, "search status", addr, operatorProtocol, "searchStatus", new(hadooppb.SearchStatusRequestProto), &a); err != nil {
		return nil, err
	}
	return &namenode.SearchStatus{
		State: a.GetState(), Problem: a.GetProblem(), Done: a.GetDone(), Total: a.GetTotal(), Position: metadata.Position(a.GetPosition()),
		FeedEnd: metadata.Position(a.GetFeedEnd()), Lag: a.GetLag(), Entries: a.GetEntries(), Bytes: a.GetBytes(), Waiting: a.GetWaiting(), Rebuilds: a.GetRebuilds(),
	}, nil
}

// RebuildSearchAt has the namenode at an address make its search index anew, from nothing. It does not wait for that. Superusers only.
//
// Errors: ErrUnsupported where there is none, ErrPermission.
func (c *Client) RebuildSearchAt(ctx context.Context, addr string) error {
	return c.at(ctx, "rebuild search", addr, operatorProtocol, "rebuildSearch", new(hadooppb.RebuildSearchRequestProto), new(hadooppb.RebuildSearchResponseProto))
}
