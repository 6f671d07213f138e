package clientprotocol

import (
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The feed of changes: HDFS's inotify (DFSInotifyEventInputStream), for superusers, and hops' own call, for everybody as far as rights go.
//
// A transaction id of inotify is a position of the feed. That most numbers are of no event does not matter: what a client takes for missing is what lies
// between the id that it has asked for and the first one of the answer.

func (p *protocol) getCurrentEditLogTxid(c *hrpc.Call, _ *pb.GetCurrentEditLogTxidRequestProto) {
	p.service.EventsEnd(c.Caller, result(c, func(end metadata.Position) hrpc.Message {
		return &pb.GetCurrentEditLogTxidResponseProto{Txid: ptr(int64(end))}
	}))
}

func (p *protocol) getEditsFromTxid(c *hrpc.Call, r *pb.GetEditsFromTxidRequestProto) {
	request := namenode.EventsRequest{After: metadata.Position(max(r.GetTxid()-1, 0)), Admit: c.Admit}
	p.service.Events(c.Context(), c.Caller, request, func(page *metadata.EventPage, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		p.service.EventsEnd(c.Caller, result(c, func(end metadata.Position) hrpc.Message {
			return &pb.GetEditsFromTxidResponseProto{EventsList: eventsList(page, end)}
		}))
	})
}

// eventsList is a page as HDFS tells it.
func eventsList(page *metadata.EventPage, end metadata.Position) *pb.EventsListProto {
	if page.Next == page.From && !page.Missing { // nothing that was not known
		return &pb.EventsListProto{FirstTxid: ptr(int64(-1)), LastTxid: ptr(int64(-1)), SyncTxid: ptr(int64(-1))}
	}
	list := &pb.EventsListProto{
		FirstTxid: ptr(int64(page.From) + 1), LastTxid: ptr(int64(page.Next)), SyncTxid: ptr(int64(max(end, page.Next))),
	}
	concat := false
	for i := range page.Events {
		e := &page.Events[i]
		if n := len(list.Batch); !e.Continued || n == 0 {
			list.Batch = append(list.Batch, &pb.EventBatchProto{})
			concat = e.Kind == metadata.EventAppend // a file that is opened for more is closed by another operation
		}
		batch := list.Batch[len(list.Batch)-1]
		batch.Txid = ptr(int64(e.Position)) // of the last event: who goes on behind the batch sees none of it again
		batch.Events = append(batch.Events, inotifyEvent(e, concat))
	}
	return list
}

// inotifyEvent is an event as HDFS tells it; concat: it is of one.
func inotifyEvent(e *metadata.Event, concat bool) *pb.EventProto {
	var m hrpc.Message
	permission := &pb.FsPermissionProto{Perm: ptr(uint32(e.Mode))}
	switch e.Kind {
	case metadata.EventCreate:
		create := &pb.CreateEventProto{
			Type: pb.INodeType_I_TYPE_FILE.Enum(), Path: &e.Path, Ctime: ptr(int64(e.Time)), OwnerName: &e.Owner, GroupName: &e.Group, Perms: permission,
			Replication: ptr(int32(e.Replication)), SymlinkTarget: new(string), Overwrite: &e.Overwrite, DefaultBlockSize: &e.BlockSize, ErasureCoded: no,
		}
		if e.Dir {
			create.Type = pb.INodeType_I_TYPE_DIRECTORY.Enum()
		}
		m = create
	case metadata.EventClose:
		length := e.Length
		if concat { // HDFS tells no length of it
			length = -1
		}
		m = &pb.CloseEventProto{Path: &e.Path, FileSize: &length, Timestamp: ptr(int64(e.Time))}
	case metadata.EventTruncate:
		m = &pb.TruncateEventProto{Path: &e.Path, FileSize: &e.Length, Timestamp: ptr(int64(e.Time))}
	case metadata.EventAppend:
		m = &pb.AppendEventProto{Path: &e.Path, NewBlock: &e.NewBlock}
	case metadata.EventRename:
		m = &pb.RenameEventProto{SrcPath: &e.Path, DestPath: &e.Target, Timestamp: ptr(int64(e.Time))}
	case metadata.EventUnlink:
		m = &pb.UnlinkEventProto{Path: &e.Path, Timestamp: ptr(int64(e.Time))}
	case metadata.EventMetadata:
		update := &pb.MetadataUpdateEventProto{
			Path: &e.Path, Type: pb.MetadataUpdateType(e.Update).Enum(), Mtime: ptr(int64(e.MTime)), Atime: ptr(int64(e.ATime)), Replication: ptr(int32(e.Replication)),
			OwnerName: &e.Owner, GroupName: &e.Group, Acls: aclSpec(e.ACL), XAttrs: xattrs(e.XAttrs), XAttrsRemoved: &e.Removed,
		}
		if e.Update == metadata.UpdatePermission {
			update.Perms = permission
		}
		m = update
	}
	contents := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(contents); err != nil {
		panic("clientprotocol: encoding an event: " + err.Error()) // a buffer of the right size always suffices
	}
	return &pb.EventProto{Type: pb.EventType(e.Kind).Enum(), Contents: contents}
}

func (p *protocol) getEvents(c *hrpc.Call, r *pb.GetEventsRequestProto) {
	if r.After == nil {
		p.service.EventsEnd(c.Caller, result(c, func(end metadata.Position) hrpc.Message {
			return &pb.GetEventsResponseProto{From: ptr(uint64(end)), Next: ptr(uint64(end))}
		}))
		return
	}
	p.service.Events(c.Context(), c.Caller, namenode.EventsRequest{
		After: metadata.Position(r.GetAfter()), Path: r.GetPath(), Most: int(min(r.GetMost(), namenode.MaxEvents)),
		Wait: time.Duration(min(r.GetWait(), uint32(namenode.MaxEventsWait.Milliseconds()))) * time.Millisecond, Admit: c.Admit,
	}, result(c, func(page *metadata.EventPage) hrpc.Message {
		answer := &pb.GetEventsResponseProto{From: ptr(uint64(page.From)), Missing: &page.Missing, Next: ptr(uint64(page.Next))}
		for i := range page.Events {
			answer.Events = append(answer.Events, feedEvent(&page.Events[i]))
		}
		return answer
	}))
}

func feedEvent(e *metadata.Event) *pb.FeedEventProto {
	return &pb.FeedEventProto{
		Position: ptr(uint64(e.Position)), Kind: ptr(uint32(e.Kind)), Update: ptr(uint32(e.Update)), Time: ptr(int64(e.Time)),
		Inode: ptr(uint64(e.INode)), Parent: ptr(uint64(e.Parent)), Path: &e.Path, Target: &e.Target, TargetParent: ptr(uint64(e.TargetParent)),
		Continued: &e.Continued, Dir: &e.Dir, Overwrite: &e.Overwrite, NewBlock: &e.NewBlock, Owner: &e.Owner, Group: &e.Group,
		Mode: ptr(uint32(e.Mode)), Replication: ptr(uint32(e.Replication)), BlockSize: &e.BlockSize, Length: &e.Length,
		Mtime: ptr(int64(e.MTime)), Atime: ptr(int64(e.ATime)), Acl: aclSpec(e.ACL), Xattrs: xattrs(e.XAttrs), Removed: &e.Removed,
	}
}
