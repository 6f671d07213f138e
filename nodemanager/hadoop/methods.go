package hadoop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/yarntoken"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// maxContainers bounds the containers that one request names.
const maxContainers = 1000

func tooMany(n int) error {
	return refuse(classYARN, "the request names %d containers, the most are %d: send several", n, maxContainers)
}

// start verifies each container's token and hands what is to run on.
func (s *service) start(ctx context.Context, attempt rm.AttemptID, q *pb.StartContainersRequestProto) (hrpc.Message, error) {
	if n := len(q.GetStartContainerRequest()); n > maxContainers {
		return nil, tooMany(n)
	}
	answer := new(pb.StartContainersResponseProto)
	services := s.Node.Services()
	for _, name := range slices.Sorted(maps.Keys(services)) {
		answer.ServicesMetaData = append(answer.ServicesMetaData, &pb.StringBytesMapProto{Key: new(name), Value: services[name]})
	}
	fail := func(id *pb.ContainerIdProto, err error) {
		answer.FailedRequests = append(answer.FailedRequests, &pb.ContainerExceptionMapProto{ContainerId: id, Exception: serialized(err)})
	}
	var launches []*rmpb.ContainerLaunch
	var ids []*pb.ContainerIdProto
	var settles []func(launched bool)
	for _, r := range q.GetStartContainerRequest() {
		grant, err := s.granted(attempt, r)
		id := pb.Container(grant.Container)
		var launch *rmpb.Launch
		if err == nil {
			launch, err = launchOf(r.GetContainerLaunchContext())
		}
		var settle func(bool)
		if err == nil {
			settle, err = s.services(grant, r.GetContainerLaunchContext().GetServiceData())
		}
		if err != nil {
			if grant.Container.IsZero() { // nobody could tell whose failure it is
				for _, settle := range settles {
					settle(false)
				}
				return nil, err
			}
			fail(id, err)
			continue
		}
		launches = append(launches, &rmpb.ContainerLaunch{ContainerId: grant.Container.String(), Launch: launch})
		ids, settles = append(ids, id), append(settles, settle)
	}
	if len(launches) == 0 {
		return answer, nil
	}
	outcomes, err := s.Node.Launch(ctx, attempt, launches)
	for i, id := range ids {
		// What the resource manager has said nothing of may be recorded, and start.
		settles[i](err != nil || i >= len(outcomes) || codes.Code(outcomes[i].GetCode()) == codes.OK)
		switch {
		case err != nil:
			fail(id, refuse(classYARN, "%v", err))
		case i >= len(outcomes):
			fail(id, refuse(classYARN, "the resource manager has not said what has become of %s", launches[i].GetContainerId()))
		case codes.Code(outcomes[i].GetCode()) == codes.OK:
			answer.SucceededRequests = append(answer.SucceededRequests, id)
		default:
			fail(id, refused(outcomes[i]))
		}
	}
	return answer, nil
}

// maxServices bounds the auxiliary services that a launch context names.
const maxServices = 16

// services gives auxiliary services what a launch context has for them. settle tells them whether the container may start, and is to be called.
func (s *service) services(grant yarntoken.Grant, list []*pb.StringBytesMapProto) (settle func(launched bool), err error) {
	if n := len(list); n > maxServices {
		return nil, refuse(classYARN, "the launch context names %d auxiliary services, the most are %d", n, maxServices)
	}
	var all []func(bool)
	settle = func(launched bool) {
		for _, one := range all {
			one(launched)
		}
	}
	for _, p := range list {
		one, err := s.Node.Service(grant.Container.Attempt.Application, grant.User, p.GetKey(), p.GetValue())
		if err != nil {
			settle(false)
		}
		switch {
		case errors.Is(err, ErrNoService):
			return nil, refuse(classAux, "The auxService:%.200s does not exist", p.GetKey())
		case err != nil:
			return nil, refuse(classYARN, "auxService:%s: %v", p.GetKey(), err)
		}
		all = append(all, one)
	}
	return settle, nil
}

// refused is a resource manager's refusal in YARN's classes.
func refused(o *rmpb.LaunchOutcome) error {
	switch codes.Code(o.GetCode()) {
	case codes.AlreadyExists:
		return refuse(classInvalid, "Container %s already is running on this node!!", o.GetContainerId())
	case codes.PermissionDenied:
		return refuse(classYARN, "Unauthorized request to start container. %s", o.GetMessage())
	}
	return refuse(classYARN, "%s", o.GetMessage())
}

// granted checks that a container is the attempt's to start, here and now.
func (s *service) granted(attempt rm.AttemptID, r *pb.StartContainerRequestProto) (yarntoken.Grant, error) {
	if r.GetContainerToken() == nil {
		return yarntoken.Grant{}, refuse(classYARN, "Unauthorized request to start container. No container token was given.")
	}
	grant, err := s.Node.Verifier().Container(s.Now(), yarntoken.Read(r.GetContainerToken()))
	switch {
	case err == yarntoken.ErrExpired: //nolint:errorlint // the very error: with it the grant is good
		return grant, refuse(classYARN, "Unauthorized request to start container. This token is expired. current time is %d found %d",
			s.Now().UnixMilli(), int64(grant.Expires))
	case err != nil:
		return grant, err
	case grant.Container.Attempt != attempt: // YARN's words, with its quotation of the application
		return grant, refuse(classYARN, "Unauthorized request to start container. NMToken for application attempt : %v was used for starting container with container token issued for application attempt : %v",
			attempt, grant.Container.Attempt)
	case s.Address != nil && grant.Address != s.Address():
		return grant, refuse(classYARN, "Unauthorized request to start container. The container's token is for %s, and this is %s", grant.Address, s.Address())
	case grant.Master:
		return grant, refuse(classYARN, "Unauthorized request to start container. %v is a master's own, which the resource manager starts", grant.Container)
	}
	return grant, nil
}

// each calls do with the containers of a request that are of the attempt's application, and collects refusals.
func each(attempt rm.AttemptID, ids []*pb.ContainerIdProto, do func(id rm.ContainerID, p *pb.ContainerIdProto) error) ([]*pb.ContainerExceptionMapProto, error) {
	if len(ids) > maxContainers {
		return nil, tooMany(len(ids))
	}
	var failed []*pb.ContainerExceptionMapProto
	for _, p := range ids {
		id, ok := pb.ParseContainer(p)
		var err error
		switch {
		case !ok:
			err = refuse(classYARN, "an id of the request is no container's")
		case id.Attempt.Application != attempt.Application:
			err = refuse(classYARN, "Unauthorized request: %v is no container of %v", id, attempt.Application)
		default:
			err = do(id, p)
		}
		if err != nil {
			failed = append(failed, &pb.ContainerExceptionMapProto{ContainerId: p, Exception: serialized(err)})
		}
	}
	return failed, nil
}

func unhandled(id rm.ContainerID) error {
	return refuse(classYARN, "Container %v is not handled by this NodeManager", id)
}

func (s *service) stop(_ context.Context, attempt rm.AttemptID, q *pb.StopContainersRequestProto) (hrpc.Message, error) {
	answer := new(pb.StopContainersResponseProto)
	var err error
	answer.FailedRequests, err = each(attempt, q.GetContainerId(), func(id rm.ContainerID, p *pb.ContainerIdProto) error {
		if !s.Node.Stop(id, "Container killed by the ApplicationMaster.") {
			return unhandled(id)
		}
		answer.SucceededRequests = append(answer.SucceededRequests, p)
		return nil
	})
	return answer, err
}

func (s *service) statuses(_ context.Context, attempt rm.AttemptID, q *pb.GetContainerStatusesRequestProto) (hrpc.Message, error) {
	answer := new(pb.GetContainerStatusesResponseProto)
	var err error
	answer.FailedRequests, err = each(attempt, q.GetContainerId(), func(id rm.ContainerID, p *pb.ContainerIdProto) error {
		st, ok := s.Node.Status(id)
		if !ok {
			return unhandled(id)
		}
		state, sub := pb.ContainerStateProto_C_COMPLETE, pb.ContainerSubStateProto_CSS_DONE
		switch {
		case st.New:
			state, sub = pb.ContainerStateProto_C_NEW, pb.ContainerSubStateProto_CSS_SCHEDULED
		case st.Running:
			state, sub = pb.ContainerStateProto_C_RUNNING, pb.ContainerSubStateProto_CSS_RUNNING
		}
		answer.Status = append(answer.Status, &pb.ContainerStatusProto{
			ContainerId: p, State: &state, ContainerSubState: &sub, Diagnostics: new(strings.ToValidUTF8(st.Diagnostics, "?")), ExitStatus: &st.Exit,
			ExecutionType: pb.ExecutionTypeProto_GUARANTEED.Enum(),
		})
		return nil
	})
	return answer, err
}

// signals are what YARN's commands mean on Unix (ContainerLaunch.translateCommandToSignal).
var signals = map[pb.SignalContainerCommandProto]syscall.Signal{
	pb.SignalContainerCommandProto_OUTPUT_THREAD_DUMP: syscall.SIGQUIT,
	pb.SignalContainerCommandProto_GRACEFUL_SHUTDOWN:  syscall.SIGTERM,
	pb.SignalContainerCommandProto_FORCEFUL_SHUTDOWN:  syscall.SIGKILL,
}

func (s *service) signal(_ context.Context, attempt rm.AttemptID, q *pb.SignalContainerRequestProto) (hrpc.Message, error) {
	signal, ok := signals[q.GetCommand()]
	if !ok {
		return nil, refuse(classYARN, "command %d is no signal", int32(q.GetCommand()))
	}
	failed, err := each(attempt, []*pb.ContainerIdProto{q.GetContainerId()}, func(id rm.ContainerID, _ *pb.ContainerIdProto) error {
		if !s.Node.Signal(id, int(signal)) {
			return unhandled(id)
		}
		return nil
	})
	if err == nil && len(failed) > 0 {
		err = refuse(failed[0].GetException().GetClassName(), "%s", failed[0].GetException().GetMessage())
	}
	if err != nil {
		return nil, err
	}
	return new(pb.SignalContainerResponseProto), nil
}
