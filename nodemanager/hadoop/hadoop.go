// Package hadoop speaks YARN's ContainerManagementProtocol: with it the master of an application has its containers started,
// stopped and looked at by the node manager that they were granted on.
//
//	master ── SASL DIGEST-MD5 with its NMToken: it is an attempt ──► this package
//	       ── startContainers: launch context, container token ────► verified, made a launch ──► resource manager
//	                                                            ◄── recorded; the order to start comes as for any container
//
// Nobody else is let in: a bare name counts for nothing here. What concerns one container of a request is answered with that
// container, in YARN's exception classes; the others are not touched by it.
package hadoop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// Protocol is the protocol's name on the wire.
const Protocol = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB"

// Status is what is known of a container here.
type Status struct {
	// Running is false once it has ended, and New true before it has begun.
	New, Running bool
	Diagnostics  string
	Exit         int32
}

// Node is the node manager behind the protocol. Every container that it is asked about is of the attempt's application.
type Node interface {
	// Verifier checks tokens by the keys that the node has now. Before the first orders of a resource manager it has none, and masters are
	// told to ask again.
	Verifier() *yarntoken.Verifier
	// Launch hands launches of an attempt to the resource manager and returns when they are recorded. Outcomes are in the order
	// of the launches. An error is for all of them.
	Launch(ctx context.Context, attempt rm.AttemptID, launches []*rmpb.ContainerLaunch) ([]*rmpb.LaunchOutcome, error)
	// Status is of a container that is here, or was launched through here; false: of neither kind.
	Status(id rm.ContainerID) (Status, bool)
	// Stop ends a container; false: as for Status.
	Stop(id rm.ContainerID, reason string) bool
	// Service gives the data of an auxiliary service to it, for an application of a user of which a container is to start here. settle is to be
	// called when it is known whether it may.
	// ErrNoService: there is no such service.
	Service(app rm.ApplicationID, user, name string, data []byte) (settle func(launched bool), err error)
	// Services is what masters are told about the auxiliary services that there are, by name.
	Services() map[string][]byte
	// Signal sends a signal to a container's processes; false: as for Status.
	Signal(id rm.ContainerID, signal int) bool
}

// ErrNoService: a node manager has no such auxiliary service.
var ErrNoService = errors.New("no such auxiliary service")

// Config of the protocol's server.
type Config struct {
	Node Node
	Door *security.Door
	// Qualities of protection that are offered to masters; none: authentication alone.
	Qualities []sasl.Quality
	// Address is host:port under which masters know this node; a token for another one is refused.
	Address func() string
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

type service struct{ Config }

// maxRequest bounds one request in bytes: a launch context is of kilobytes.
const maxRequest = 16 << 20

// NewServer makes the server of the protocol.
func NewServer(c Config) *hrpc.Server {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &service{Config: c}
	srv := hrpc.NewServer(hrpc.ServerConfig{Door: c.Door, Offers: []hrpc.Offer{s.offer()}, Exception: exception, Logger: c.Logger, MaxFrame: maxRequest})
	handle(s, srv, "startContainers", func() *pb.StartContainersRequestProto { return new(pb.StartContainersRequestProto) }, s.start)
	handle(s, srv, "stopContainers", func() *pb.StopContainersRequestProto { return new(pb.StopContainersRequestProto) }, s.stop)
	handle(s, srv, "getContainerStatuses", func() *pb.GetContainerStatusesRequestProto { return new(pb.GetContainerStatusesRequestProto) }, s.statuses)
	handle(s, srv, "signalToContainer", func() *pb.SignalContainerRequestProto { return new(pb.SignalContainerRequestProto) }, s.signal)
	for _, name := range []string{
		"increaseContainersResource", "updateContainer", "localize", "reInitializeContainer", "restartContainer", "rollbackLastReInitialization",
		"commitLastReInitialization", "getLocalizationStatuses",
	} {
		// An empty message takes any request.
		handle(s, srv, name, func() *pb.ResourceLocalizationResponseProto { return new(pb.ResourceLocalizationResponseProto) },
			func(context.Context, rm.AttemptID, *pb.ResourceLocalizationResponseProto) (hrpc.Message, error) {
				return nil, &hrpc.RemoteError{Class: "java.lang.UnsupportedOperationException", Message: name + " is not supported: containers here keep what they were started with"}
			})
	}
	return srv
}

// Routes lists what the port does.
func Routes() []security.Route {
	return NewServer(Config{Door: security.NewDoor(security.Config{})}).Routes("node manager IPC")
}

// handle registers a method. Calls wait for the resource manager, so each has a goroutine.
func handle[Q hrpc.Message](s *service, srv *hrpc.Server, name string, request func() Q, do func(context.Context, rm.AttemptID, Q) (hrpc.Message, error)) {
	srv.Handle(Protocol, hrpc.Method{
		Name: name, New: func() hrpc.Message { return request() }, Right: security.Owner, Command: name,
		Handle: func(c *hrpc.Call) {
			attempt, err := known(c)
			if err != nil {
				c.Fail(err)
				return
			}
			c.Go(func() {
				answer, err := do(c.Context(), attempt, c.Request.(Q))
				if err != nil {
					c.Fail(err)
				} else {
					c.Reply(answer)
				}
			})
		},
	})
}

// known is the attempt that calls.
func known(c *hrpc.Call) (rm.AttemptID, error) {
	attempt, err := rm.ParseAttemptID(c.Caller.User)
	if c.Authentication != sasl.Token || err != nil {
		return attempt, metadata.Errorf(metadata.ErrUnauthorized, "%s is for masters of applications, which show an NMToken", c.Method)
	}
	return attempt, nil
}

// offer is the one way to be known here.
func (s *service) offer() hrpc.Offer {
	return hrpc.Offer{
		Method: sasl.Token, Mechanism: sasl.DigestMD5, Protocol: hrpc.TokenService, ServerID: hrpc.TokenServer, First: true,
		New: func(*security.Peer) (sasl.Mechanism, error) {
			return sasl.NewAcceptor(sasl.AcceptorConfig{Service: hrpc.TokenService, Server: hrpc.TokenServer, Qualities: s.Qualities, Lookup: s.lookup}), nil
		},
	}
}

func (s *service) lookup(name string) (string, sasl.Identity, error) {
	identifier, err := sasl.DecodeName(name)
	if err != nil {
		return "", sasl.Identity{}, err
	}
	password, visit, err := s.Node.Verifier().Node(s.Now(), identifier)
	if err != nil {
		return "", sasl.Identity{}, err
	}
	return sasl.EncodePassword(password), sasl.Identity{Name: visit.Attempt.String(), Method: sasl.Token}, nil
}

// Exception classes.
const (
	classYARN      = "org.apache.hadoop.yarn.exceptions.YarnException"
	classAux       = "org.apache.hadoop.yarn.exceptions.InvalidAuxServiceException"
	classInvalid   = "org.apache.hadoop.yarn.exceptions.InvalidContainerException"
	classToken     = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
	classRetriable = "org.apache.hadoop.ipc.RetriableException"
	classIO        = "java.io.IOException"
	classAccess    = "org.apache.hadoop.security.AccessControlException"
)

func exception(err error) (class, message string) {
	switch {
	case errors.Is(err, metadata.ErrToken):
		return classToken, err.Error()
	case errors.Is(err, metadata.ErrRetriable):
		return classRetriable, err.Error()
	case errors.Is(err, metadata.ErrUnauthorized), errors.Is(err, metadata.ErrPermission):
		return classAccess, err.Error()
	}
	return classIO, err.Error()
}

// serialized is an exception as part of an answer.
func serialized(err error) *pb.SerializedExceptionProto {
	class, message := classYARN, err.Error()
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok {
		class, message = remote.Class, remote.Message
	} else if errors.Is(err, metadata.ErrToken) {
		class = classToken
	}
	return &pb.SerializedExceptionProto{ClassName: &class, Message: &message, Trace: new(class + ": " + message)}
}

func refuse(class, format string, args ...any) error {
	return &hrpc.RemoteError{Class: class, Message: fmt.Sprintf(format, args...)}
}
