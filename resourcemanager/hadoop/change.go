package hadoop

import (
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/rest"
)

// What may be changed of an application that lives: its queue, priority and end, and that its master starts again.

// changes registers the methods of this file.
func (s *Server) changes() {
	handle(s, clientProtocol, "moveApplicationAcrossQueues", security.Owner, users, (*call).moveApplicationAcrossQueues)
	handle(s, clientProtocol, "updateApplicationPriority", security.Owner, users, (*call).updateApplicationPriority)
	handle(s, clientProtocol, "updateApplicationTimeouts", security.Owner, users, (*call).updateApplicationTimeouts)
	handle(s, clientProtocol, "failApplicationAttempt", security.Owner, users, (*call).failApplicationAttempt)
}

func (c *call) moveApplicationAcrossQueues(q *pb.MoveApplicationAcrossQueuesRequestProto) (hrpc.Message, error) {
	a, err := c.owned(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	target := rest.MoveTarget(c.queues(), q.GetTargetQueue(), c.Caller, !c.Own)
	switch {
	case target == nil:
		return nil, metadata.Errorf(metadata.ErrPermission, "User %s cannot submit applications to target queue or the target queue doesn't exist: %.255s while moving %v",
			c.Caller.User, q.GetTargetQueue(), a.ID)
	case target.Path == a.Queue && !a.State.Final():
		return &pb.MoveApplicationAcrossQueuesResponseProto{}, nil
	}
	state := a.State
	if !state.Final() {
		if state, err = c.Cluster.Update(c.ctx, a.ID, rest.Update{Queue: target.Path}); err != nil {
			return nil, err
		}
	}
	if state.Final() {
		return nil, thrown(yarnException, "App in %s state cannot be moved.", state)
	}
	return &pb.MoveApplicationAcrossQueuesResponseProto{}, nil
}

// updateApplicationPriority answers the priority that the application has then: the highest there is in place of a higher one, and what it
// had when it has ended.
func (c *call) updateApplicationPriority(q *pb.UpdateApplicationPriorityRequestProto) (hrpc.Message, error) {
	a, err := c.owned(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	priority := int(q.ApplicationPriority.GetPriority())
	if q.ApplicationPriority == nil || priority < 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%v: the priority is missing, or below 0", a.ID)
	}
	priority = min(priority, c.queues().Find(a.Queue).HighestPriority())
	if a.State.Final() {
		priority = a.Priority
	} else if priority != a.Priority {
		if _, err := c.Cluster.Update(c.ctx, a.ID, rest.Update{Priority: &priority}); err != nil {
			return nil, err
		}
	}
	return &pb.UpdateApplicationPriorityResponseProto{ApplicationPriority: &pb.PriorityProto{Priority: new(int32(priority))}}, nil
}

// updateApplicationTimeouts sets when an application is ended. One that has ended stays as it is, and what was asked for is answered, as
// by YARN.
func (c *call) updateApplicationTimeouts(q *pb.UpdateApplicationTimeoutsRequestProto) (hrpc.Message, error) {
	a, err := c.owned(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	if len(q.ApplicationTimeouts) == 0 {
		return nil, thrown(yarnException, "At least one ApplicationTimeoutType should be configured for updating timeouts.")
	}
	var at time.Time
	for _, t := range q.ApplicationTimeouts { // there is one type; the last counts, as in a map
		if at, err = rest.ParseExpiry(t.GetExpireTime()); err != nil {
			return nil, thrown(yarnException, "Expire time is not in ISO8601 format. ISO8601 supported format is yyyy-MM-dd'T'HH:mm:ss.SSSZ: %.100q", t.GetExpireTime())
		}
	}
	if !a.State.Final() {
		if now := c.Now(); !at.After(now) {
			return nil, thrown(yarnException, "Expire time is less than current time, current-time=%s expire-time=%s", now.UTC().Format(jersey.Timeout), at.UTC().Format(jersey.Timeout))
		}
		if _, err := c.Cluster.Update(c.ctx, a.ID, rest.Update{Expires: metadata.TimeOf(at)}); err != nil {
			return nil, err
		}
	}
	return &pb.UpdateApplicationTimeoutsResponseProto{ApplicationTimeouts: []*pb.ApplicationUpdateTimeoutMapProto{{
		ApplicationTimeoutType: pb.ApplicationTimeoutTypeProto_APP_TIMEOUT_LIFETIME.Enum(), ExpireTime: new(at.UTC().Format(jersey.Timeout)),
	}}}, nil
}

// failApplicationAttempt kills the container of an application's master, whose attempt has failed by that: the next one begins.
func (c *call) failApplicationAttempt(q *pb.FailApplicationAttemptRequestProto) (hrpc.Message, error) {
	a, err := c.owned(q.GetApplicationAttemptId().GetApplicationId())
	if err != nil {
		return nil, err
	}
	if _, _, err := c.attempt(q.ApplicationAttemptId); err != nil {
		return nil, err
	}
	if a.State.Final() {
		return nil, thrown(yarnException, "Application attempt %d of %v cannot fail: the application is %s", q.ApplicationAttemptId.GetAttemptId(), a.ID, strings.ToLower(string(a.State)))
	}
	m := c.view.Master(a)
	if m == nil || !m.Live() || int(q.ApplicationAttemptId.GetAttemptId()) != len(a.Attempts) {
		return nil, thrown(yarnException, "Application attempt %d of %v is not the one that runs", q.ApplicationAttemptId.GetAttemptId(), a.ID)
	}
	return &pb.FailApplicationAttemptResponseProto{}, c.Cluster.Signal(m.ID, syscall.SIGKILL)
}
