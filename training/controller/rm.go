package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// errStaleAttempt: the resource manager has started a newer attempt of this application.
var errStaleAttempt = errors.New("a newer attempt of this application has been started")

// ResourceManager is what the controller needs of the resource manager: the calls of resourcemanager/api/v1 for
// application masters. Calls are tried again until ctx ends, except for errors that say that trying is useless.
type ResourceManager interface {
	Register(ctx context.Context, r *rmpb.RegisterRequest) (*rmpb.RegisterResponse, error)
	Allocate(ctx context.Context, r *rmpb.AllocateRequest) (*rmpb.AllocateResponse, error)
	// Events hands each event to handle, in order, until the stream, handle or ctx ends it; then the caller opens it again.
	// r.Acknowledged moves on with what was handled.
	Events(ctx context.Context, r *rmpb.EventsRequest, handle func(*rmpb.Event) error) error
	Finish(ctx context.Context, r *rmpb.FinishRequest) error
}

// dialResourceManagers makes a client of the resource managers at addresses (gRPC host:port each), of which one leads,
// for the application master in a container, whose token connections prove without showing it. It connects when it is used, and
// follows the list as it changes.
func dialResourceManagers(addresses []string, trust *authority.Trust, container, token string, log *slog.Logger) (*rmClient, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no resource manager address is given")
	}
	if log == nil {
		log = slog.Default()
	}
	return &rmClient{
		key: security.TokenKey(trust, container, token, authority.ResourceManager).Credentials(), log: log, addresses: addresses, conns: map[string]*grpc.ClientConn{},
	}, nil
}

type rmClient struct {
	key credentials.TransportCredentials
	log *slog.Logger

	mu        sync.Mutex
	addresses []string // of now
	conns     map[string]*grpc.ClientConn
	leader    int // index of the address that answered last
}

func (c *rmClient) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	clear(c.conns)
	return errors.Join(errs...)
}

// idle is after how long without a call a connection is let go of, so that nobody goes on looking for a server that is gone.
const idle = time.Minute

// client is the stub for the one that answered last, and its address.
func (c *rmClient) client() (rmpb.ApplicationMastersClient, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.addresses[c.leader%len(c.addresses)]
	if c.conns[a] == nil {
		conn, err := grpc.NewClient("passthrough:///"+a, grpc.WithTransportCredentials(c.key), grpc.WithIdleTimeout(idle))
		if err != nil {
			return nil, a, fmt.Errorf("resource manager %s: %w", a, err)
		}
		c.conns[a] = conn
	}
	return rmpb.NewApplicationMastersClient(c.conns[a]), a, nil
}

// moveOn has the next one asked, if the one at address still is.
func (c *rmClient) moveOn(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.addresses[c.leader%len(c.addresses)] == address {
		c.leader = (c.leader + 1) % len(c.addresses)
	}
}

// known is how many there are.
func (c *rmClient) known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.addresses)
}

// follow takes the resource managers of now. Who answered last is asked on. The connections stay: one may be in use, and gRPC lets go of
// those that are not.
func (c *rmClient) follow(addresses []string) {
	if !resourcemanager.AreManagers(addresses) {
		c.log.Warn("a list of resource managers that is not followed", "addresses", addresses)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(addresses, c.addresses) {
		return
	}
	last := c.addresses[c.leader%len(c.addresses)]
	c.addresses, c.leader = addresses, max(slices.Index(addresses, last), 0)
	c.log.Info("resource managers", "addresses", addresses)
}

// each tries fn against the leader, then the others, until one takes it or ctx ends.
func (c *rmClient) each(ctx context.Context, fn func(ctx context.Context, m rmpb.ApplicationMastersClient) error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		var err error
		for range c.known() {
			client, address, cerr := c.client()
			if cerr != nil {
				return cerr
			}
			err = fn(ctx, client)
			switch status.Code(err) {
			case codes.OK:
				return nil
			case codes.Aborted:
				return errStaleAttempt
			case codes.Unavailable, codes.FailedPrecondition, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.ResourceExhausted:
				c.moveOn(address)
			default:
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// callTimeout bounds one try, so that a resource manager that hangs does not hold up the next one.
const callTimeout = 10 * time.Second

func (c *rmClient) Register(ctx context.Context, r *rmpb.RegisterRequest) (out *rmpb.RegisterResponse, err error) {
	err = c.each(ctx, func(ctx context.Context, m rmpb.ApplicationMastersClient) (err error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		out, err = m.Register(ctx, r)
		return err
	})
	return out, err
}

func (c *rmClient) Allocate(ctx context.Context, r *rmpb.AllocateRequest) (out *rmpb.AllocateResponse, err error) {
	err = c.each(ctx, func(ctx context.Context, m rmpb.ApplicationMastersClient) (err error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		out, err = m.Allocate(ctx, r)
		return err
	})
	return out, err
}

func (c *rmClient) Events(ctx context.Context, r *rmpb.EventsRequest, handle func(*rmpb.Event) error) error {
	return c.each(ctx, func(ctx context.Context, m rmpb.ApplicationMastersClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := m.Events(ctx, r)
		if err != nil {
			return err
		}
		for {
			e, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if m := e.GetManagers(); m != nil {
				c.follow(m.Addresses)
				continue
			}
			if err := handle(e); err != nil {
				return status.Error(codes.Canceled, err.Error())
			}
			r.Acknowledged = max(r.Acknowledged, e.GetSequence())
		}
	})
}

func (c *rmClient) Finish(ctx context.Context, r *rmpb.FinishRequest) error {
	return c.each(ctx, func(ctx context.Context, m rmpb.ApplicationMastersClient) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := m.Finish(ctx, r)
		return err
	})
}

// ended asks whether an application has reached its end, and why.
func (c *rmClient) ended(ctx context.Context, application string, attempt int) (reason string, ended bool) {
	var out *rmpb.FateResponse
	err := c.each(ctx, func(ctx context.Context, m rmpb.ApplicationMastersClient) (err error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		out, err = m.Fate(ctx, &rmpb.FateRequest{ApplicationId: application, Attempt: int32(attempt)})
		return err
	})
	if err != nil {
		c.log.Warn("what has become of the application is not known", "error", err)
		return "", false
	}
	return strings.TrimSpace(out.GetDiagnostics()), resourcemanager.State(out.GetState()).Final()
}
