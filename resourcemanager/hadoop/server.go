// Package hadoop is YARN's own RPC at the resource manager, so that Hadoop's Java clients and what is built on them work as they
// are. See DESIGN.md.
package hadoop

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
)

// The names of the protocols on the wire.
const (
	clientProtocol = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
	masterProtocol = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
	adminProtocol  = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB"
	haProtocol     = "org.apache.hadoop.ha.HAServiceProtocol"
)

// The limits of what comes from outside, beside those of package hrpc.
const (
	// maxFrame is the largest request, in bytes: a launch context with its tokens.
	maxFrame = 4 << 20
	// maxInFlight calls of one connection; each has a goroutine.
	maxInFlight = 64
	// maxAsks rows, releases and names of one Allocate.
	maxAsks = 20_000
	// maxText of diagnostics, in bytes.
	maxText = 4 << 10
)

// Cluster is the resource manager behind the protocols.
type Cluster interface {
	rest.Cluster
	// Reign is the number of this process's present period of leadership, and since when masters could launch what they hold in it. 0:
	// it does not lead. No two reigns have the same number.
	Reign() (number uint64, since time.Time)
}

// Config describes the adapter. All but Operator, Offers, Slow, Now and Logger are required.
type Config struct {
	Cluster Cluster
	Masters rm.Masters
	// Operator does what `yarn rmadmin` asks for; nil: nothing.
	Operator rest.Operator
	Door     *security.Door
	Tokens   *yarntoken.Issuer
	// Qualities of protection that are offered to masters; Offers are more ways to prove who one is.
	Qualities []sasl.Quality
	Offers    []hrpc.Offer
	// LaunchWithin is how long a container may be granted without being started.
	LaunchWithin time.Duration
	// HTTP is host:port of this resource manager's web interface.
	HTTP string
	Slow *slowlog.Operation
	// Now is the clock; default time.Now.
	Now    func() time.Time
	Logger *slog.Logger
}

// Server speaks YARN's protocols.
type Server struct {
	Config
	rpc *hrpc.Server

	mu      sync.Mutex
	masters map[rm.AttemptID]*master
	room    *rooms
}

// New makes a server.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Server{Config: c, masters: map[rm.AttemptID]*master{}}
	s.rpc = hrpc.NewServer(hrpc.ServerConfig{
		Door: c.Door, Offers: append([]hrpc.Offer{s.tokenOffer(), hrpc.BearerOffer(c.Door.Users())}, c.Offers...),
		Exception: exception, MaxInFlight: maxInFlight, MaxFrame: maxFrame, Slow: c.Slow, Logger: c.Logger,
	})
	s.client()
	s.masterMethods()
	s.admin()
	return s
}

// Serve serves on a listener until ctx is done. It may run on several at once. When it returns no call of it is being answered, also none whose caller has gone.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.rpc.Serve(ctx, l) }

// Routes lists the methods and the rights that they need.
func (s *Server) Routes() []security.Route { return s.rpc.Routes("resource manager IPC") }

// tokenOffer is how masters prove which attempt they are. The proof is all that there is to say who they are: their requests name
// no attempt.
func (s *Server) tokenOffer() hrpc.Offer {
	return hrpc.Offer{
		Method: sasl.Token, Mechanism: sasl.DigestMD5, Protocol: hrpc.TokenService, ServerID: hrpc.TokenServer, First: true,
		New: func(*security.Peer) (sasl.Mechanism, error) {
			return sasl.NewAcceptor(sasl.AcceptorConfig{
				Service: hrpc.TokenService, Server: hrpc.TokenServer, Qualities: s.Qualities,
				Lookup: func(name string) (string, sasl.Identity, error) {
					identifier, err := sasl.DecodeName(name)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					if !s.Cluster.Leading() { // before it is found out that it is nobody's
						return "", sasl.Identity{}, errStandby
					}
					password, attempt, key, err := s.Tokens.CheckMaster(s.Now(), identifier)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					if err := s.admit(attempt); err != nil {
						return "", sasl.Identity{}, err
					}
					return sasl.EncodePassword(password), sasl.Identity{Name: attempt.String(), Method: sasl.Token, Key: key}, nil
				},
			}), nil
		},
	}
}

// call is a call at its handler. Its caller is a user; a bearer of a master's token is none.
type call struct {
	*Server
	*hrpc.Call
	ctx  context.Context
	view *state.View
	tree *rm.Queues
}

// answerTime bounds how long a call may take.
const answerTime = time.Minute

// who is what a method is for.
type who int

const (
	users   who = iota // and nobody with the token of a master
	masters            // with the token of one
)

// handle registers a method. do runs in a goroutine of its own, with the caller's right checked as far as it does not depend on what
// is asked for.
func handle[T any, Q interface {
	*T
	hrpc.Message
}](s *Server, protocol, name string, right security.Right, forWhom who, do func(c *call, q Q) (hrpc.Message, error)) {
	read := right == security.Anyone
	command := name
	if read || forWhom == masters {
		command = ""
	}
	s.rpc.Handle(protocol, hrpc.Method{
		Name: name, Right: right, Read: read, Command: command, New: func() hrpc.Message { return Q(new(T)) },
		Handle: func(raw *hrpc.Call) {
			if (raw.Authentication == sasl.Token) != (forWhom == masters) {
				raw.Fail(wrongDoor(raw, forWhom))
				return
			}
			if !s.Cluster.Leading() && protocol != haProtocol {
				raw.Fail(errStandby)
				return
			}
			if right == security.Named || right == security.Owner {
				if err := security.MayWrite(raw.Caller); err != nil {
					raw.Fail(err)
					return
				}
			}
			raw.Go(func() {
				ctx, cancel := context.WithTimeout(raw.Context(), answerTime)
				defer cancel()
				answer, err := do(&call{Server: s, Call: raw, ctx: ctx, view: s.Cluster.View()}, raw.Request.(Q))
				if err != nil {
					raw.Fail(err)
					return
				}
				raw.Reply(answer)
			})
		},
	})
}

// wrongDoor refuses a user where masters are meant, and the other way round.
func wrongDoor(raw *hrpc.Call, forWhom who) error {
	if forWhom == masters {
		return metadata.Errorf(metadata.ErrPermission, "%s is for the master of an application, which shows the token that it was started with; %s has shown none", raw.Method, raw.Caller.User)
	}
	return metadata.Errorf(metadata.ErrPermission, "the token of %s is for what a master asks, and not for %s", raw.Caller.User, raw.Method)
}

// queues are the same for the whole of a call.
func (c *call) queues() *rm.Queues {
	if c.tree == nil {
		c.tree = c.Cluster.Queues()
	}
	return c.tree
}

// mayModify reports whether the caller owns an application, administers its queue, or is a superuser.
func (c *call) mayModify(a *rm.Application) bool {
	if c.Caller.User == security.DrWho {
		return false
	}
	return c.Caller.Superuser || c.Caller.User == a.User || c.queues().Find(a.Queue).MayAdminister(c.Caller.User)
}
