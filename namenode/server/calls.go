package server

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// The doors of the feed and of search by gRPC, at the port of the web server. docs/reference/grpc.md describes them.

// calls are the services for users.
func calls(s *Server) []security.Service {
	return []security.Service{
		{Desc: &pb.Feed_ServiceDesc, Server: feedCalls{server: s}, Right: security.ByPath},
		{Desc: &pb.Search_ServiceDesc, Server: searchCalls{server: s}, Right: security.ByPath},
	}
}

type feedCalls struct {
	pb.UnimplementedFeedServer
	server *Server
}

// Watch implements pb.FeedServer.
func (f feedCalls) Watch(q *pb.WatchRequest, g grpc.ServerStreamingServer[pb.EventPage]) error {
	s, call := f.server, security.CallOf(g.Context())
	request := namenode.EventsRequest{Path: q.Path}
	caller, err := call.Caller()
	switch {
	case err != nil:
	case q.Path != "" && !strings.HasPrefix(q.Path, "/"):
		err = metadata.Errorf(metadata.ErrInvalidArgument, "path: %.100q is not absolute", q.Path)
	case q.After != nil:
		request.After, err = positionOf(*q.After)
	default:
		request.After, err = s.endFor(g.Context(), caller)
	}
	if err = s.takeReader(caller, "grpc", q.Path, err); err != nil {
		return pb.Status(err)
	}
	defer s.watchers.give(caller.User)
	// What the page before this one waits for is over when this one is taken to be sent, so two pages are held at most.
	send := func(p *pb.EventPage) error {
		if err := call.Patience(s.config.beat + s.config.patience); err != nil {
			return err
		}
		return g.Send(p)
	}
	err = send(&pb.EventPage{From: uint64(request.After), Next: uint64(request.After)})
	if err == nil {
		err = s.follow(g.Context(), caller, request, func(_ metadata.Position, page *metadata.EventPage) error { return send(wirePage(page)) })
	}
	if err == nil && s.watching.Err() != nil {
		err = metadata.Errorf(metadata.ErrRetriable, "namenode %s stops: go on with another one", s.config.ID)
	}
	return pb.Status(err)
}

// positionOf is a position that a request names.
func positionOf(n uint64) (metadata.Position, error) {
	if n > 1<<63-1 {
		return 0, metadata.Errorf(metadata.ErrInvalidArgument, "position %d is none that an event had", n)
	}
	return metadata.Position(n), nil
}

func wirePage(p *metadata.EventPage) *pb.EventPage {
	out := &pb.EventPage{From: uint64(p.From), Missing: p.Missing, Next: uint64(p.Next), Events: make([]*pb.Event, len(p.Events))}
	for i := range p.Events {
		out.Events[i] = wireEvent(&p.Events[i])
	}
	return out
}

func wireEvent(e *metadata.Event) *pb.Event {
	m := &pb.Event{
		Position: uint64(e.Position), Type: pb.EventType(e.Kind), Continued: e.Continued, Time: int64(e.Time), Inode: uint64(e.INode), Path: e.Path,
	}
	acl := func() {
		m.Permission = uint32(e.Mode)
		for _, a := range e.ACL {
			m.Acl = append(m.Acl, a.String())
		}
	}
	switch e.Kind {
	case metadata.EventCreate:
		m.Directory, m.Owner, m.Group = e.Dir, e.Owner, e.Group
		if acl(); !e.Dir {
			m.Overwrite, m.Replication, m.BlockSize = e.Overwrite, uint32(e.Replication), e.BlockSize
		}
	case metadata.EventClose, metadata.EventTruncate:
		m.Length = e.Length
	case metadata.EventAppend:
		m.NewBlock = e.NewBlock
	case metadata.EventRename:
		m.Target, m.Overwrite = e.Target, e.Overwrite
	case metadata.EventMetadata:
		m.Update = pb.Update(e.Update)
		switch e.Update {
		case metadata.UpdateTimes:
			m.ModificationTime, m.AccessTime = timeSet(e.MTime), timeSet(e.ATime)
		case metadata.UpdateReplication:
			m.Replication = uint32(e.Replication)
		case metadata.UpdateOwner:
			m.Owner, m.Group = e.Owner, e.Group
		case metadata.UpdatePermission:
			m.Permission = uint32(e.Mode)
		case metadata.UpdateACL:
			acl()
		case metadata.UpdateXAttrs:
			m.Removed = e.Removed
			for _, x := range e.XAttrs {
				a := &pb.Attribute{Name: strings.ToValidUTF8(x.FullName(), "\uFFFD")}
				if !e.Removed {
					a.Value = x.Value
				}
				m.Attributes = append(m.Attributes, a)
			}
		}
	}
	return m
}

// timeSet is a time that was set, nil for one that stays.
func timeSet(t metadata.Time) *int64 {
	if t < 0 {
		return nil
	}
	return new(int64(t))
}

type searchCalls struct {
	pb.UnimplementedSearchServer
	server *Server
}

// Find implements pb.SearchServer.
func (f searchCalls) Find(ctx context.Context, q *pb.FindRequest) (*pb.FindResponse, error) {
	s := f.server
	caller, err := security.CallOf(ctx).Caller()
	var request namenode.SearchRequest
	if err == nil {
		request, err = queryOf(q)
	}
	page, give, err := s.searchFor(ctx, caller, "grpc", request, err)
	if err != nil {
		return nil, pb.Status(err)
	}
	defer give()
	out := &pb.FindResponse{Next: page.Next, Position: uint64(page.Position), Looked: uint64(page.Looked), Found: make([]*pb.Found, len(page.Found))}
	for i := range page.Found {
		out.Found[i] = wireFound(&page.Found[i])
	}
	return out, nil
}

func queryOf(q *pb.FindRequest) (r namenode.SearchRequest, err error) {
	r.Query = metadata.Query{
		Path: cmp.Or(q.Path, "/"), Name: q.Name, Fold: q.IgnoreCase, Min: q.MinSize, Max: q.MaxSize, Cursor: q.Cursor, Limit: int(q.Limit),
		Files: q.Kind == pb.Kind_FILE, Directories: q.Kind == pb.Kind_DIRECTORY,
	}
	for _, t := range q.Tags {
		r.Tags = append(r.Tags, metadata.TagCondition{Name: strings.TrimPrefix(t.Name, "user."), Value: t.Value})
	}
	r.Wait = time.Duration(q.WaitMs) * time.Millisecond
	switch {
	case q.Limit > metadata.MaxQueryLimit:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "limit: %d is not a number from 1 to %d", q.Limit, metadata.MaxQueryLimit)
	case r.Wait > namenode.MaxSearchWait:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "wait_ms: %d is more than %d", q.WaitMs, namenode.MaxSearchWait.Milliseconds())
	case pb.Kind_name[int32(q.Kind)] == "":
		err = metadata.Errorf(metadata.ErrInvalidArgument, "kind: there is none with number %d", q.Kind)
	default:
		r.After, err = positionOf(q.After)
	}
	return r, err
}

func wireFound(f *metadata.Found) *pb.Found {
	out := &pb.Found{
		Path: f.Path, Inode: uint64(f.ID), Directory: f.IsDir(), Length: f.Length, Owner: f.Owner, Group: f.Group, Permission: uint32(f.Mode), ModificationTime: int64(f.MTime),
	}
	for _, a := range f.XAttrs {
		if a.Namespace == metadata.XAttrUser {
			out.Tags = append(out.Tags, &pb.Attribute{Name: strings.ToValidUTF8(a.Name, "\uFFFD"), Value: a.Value})
		}
	}
	slices.SortFunc(out.Tags, func(x, y *pb.Attribute) int { return strings.Compare(x.Name, y.Name) })
	return out
}
