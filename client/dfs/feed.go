package dfs

import (
	"context"
	"fmt"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// EventsOptions say which events of the feed of changes are wanted.
type EventsOptions struct {
	// Path: only what happens there, below, or to a directory above; empty: everything.
	Path string
	// Most is how many events a page has; 0: as many as the server gives, about 1,000.
	Most int
	// Wait is for how long to wait for the first event if there is none, 30 s at most.
	Wait time.Duration
}

// EventsEnd is the position at which the feed of changes ends: who reads on there gets every change that is made after the call.
func (c *Client) EventsEnd(ctx context.Context) (metadata.Position, error) {
	var answer hadooppb.GetEventsResponseProto
	err := c.rpc.Call(ctx, operatorProtocol, "getEvents", new(hadooppb.GetEventsRequestProto), &answer)
	return metadata.Position(answer.GetNext()), wrap("events", "", c.hinted(err))
}

// Events is a page of the feed of changes behind a position. Superusers get all events, others those of directories that are still where they were
// and that they may list now. A page may have no events and lead on even so. It says whether events in front of it are not kept any more: who
// mirrors a tree begins anew then. Servers of Apache Hadoop do not have it.
func (c *Client) Events(ctx context.Context, after metadata.Position, o EventsOptions) (*metadata.EventPage, error) {
	if o.Path != "" {
		var err error
		if o.Path, err = clean("events", o.Path); err != nil {
			return nil, err
		}
	}
	var answer hadooppb.GetEventsResponseProto
	err := c.rpc.Call(ctx, operatorProtocol, "getEvents", &hadooppb.GetEventsRequestProto{
		After: new(uint64(after)), Path: &o.Path, Most: new(uint32(max(o.Most, 0))), Wait: new(uint32(min(max(o.Wait, 0), namenode.MaxEventsWait).Milliseconds())),
	}, &answer)
	if err != nil {
		return nil, wrap("events", o.Path, c.hinted(err))
	}
	page := &metadata.EventPage{From: metadata.Position(answer.GetFrom()), Missing: answer.GetMissing(), Next: metadata.Position(answer.GetNext())}
	for _, p := range answer.GetEvents() {
		page.Events = append(page.Events, eventOf(p))
	}
	return page, nil
}

// Watch calls yield with one page after the other, as events come, until it says no more or ctx ends; then it returns nil or the context's error.
// It goes on with another namenode when one fails.
func (c *Client) Watch(ctx context.Context, after metadata.Position, o EventsOptions, yield func(*metadata.EventPage) bool) error {
	if o.Wait <= 0 {
		o.Wait = namenode.MaxEventsWait
	}
	for {
		page, err := c.Events(ctx, after, o)
		if err != nil {
			return err
		}
		told := len(page.Events) > 0 || page.Missing
		if told && page.Next <= after {
			return &Error{Op: "events", Path: o.Path, Kind: metadata.ErrIO, Message: fmt.Sprintf("the server gives a page of events again: behind position %d it goes on at %d", after, page.Next)}
		}
		if after = page.Next; told && !yield(page) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func eventOf(p *hadooppb.FeedEventProto) metadata.Event {
	e := metadata.Event{
		Position: metadata.Position(p.GetPosition()), Kind: metadata.EventKind(p.GetKind()), Update: metadata.EventUpdate(p.GetUpdate()), Time: metadata.Time(p.GetTime()),
		INode: metadata.INodeID(p.GetInode()), Parent: metadata.INodeID(p.GetParent()), Path: p.GetPath(), Target: p.GetTarget(), TargetParent: metadata.INodeID(p.GetTargetParent()),
		Continued: p.GetContinued(), Dir: p.GetDir(), Overwrite: p.GetOverwrite(), NewBlock: p.GetNewBlock(), Owner: p.GetOwner(), Group: p.GetGroup(),
		Mode: metadata.Mode(p.GetMode()), Replication: uint16(p.GetReplication()), BlockSize: p.GetBlockSize(), Length: p.GetLength(),
		MTime: metadata.Time(p.GetMtime()), ATime: metadata.Time(p.GetAtime()), Removed: p.GetRemoved(),
	}
	for _, a := range p.GetAcl() {
		e.ACL = append(e.ACL, metadata.ACLEntry{
			Default: a.GetScope() == hadooppb.AclEntryProto_DEFAULT, Type: metadata.ACLType(a.GetType()), Name: a.GetName(), Rights: metadata.Access(a.GetPermissions()),
		})
	}
	for _, x := range p.GetXattrs() {
		e.XAttrs = append(e.XAttrs, metadata.XAttr{Namespace: metadata.XAttrNamespace(x.GetNamespace()), Name: x.GetName(), Value: x.GetValue()})
	}
	return e
}
