package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
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

// DialResourceManagers makes a client of the resource managers at addresses (gRPC host:port each), of which one leads,
// for the application master in a container, whose token connections prove without showing it. It connects when it is used.
func DialResourceManagers(addresses []string, trust *authority.Trust, container, token string) (ResourceManager, io.Closer, error) {
	if len(addresses) == 0 {
		return nil, nil, errors.New("no resource manager address is given")
	}
	c := &rmClient{}
	for _, a := range addresses {
		conn, err := grpc.NewClient("passthrough:///"+a, grpc.WithTransportCredentials(security.TokenKey(trust, container, token, authority.ResourceManager).Credentials()))
		if err != nil {
			c.Close()
			return nil, nil, fmt.Errorf("resource manager %s: %w", a, err)
		}
		c.conns = append(c.conns, conn)
	}
	return c, c, nil
}

type rmClient struct {
	conns []*grpc.ClientConn

	mu     sync.Mutex
	leader int // index of the one that answered last
}

func (c *rmClient) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// each tries fn against the leader, then the others, until one takes it or ctx ends.
func (c *rmClient) each(ctx context.Context, fn func(ctx context.Context, m rmpb.ApplicationMastersClient) error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		var err error
		for range c.conns {
			c.mu.Lock()
			i := c.leader
			c.mu.Unlock()
			err = fn(ctx, rmpb.NewApplicationMastersClient(c.conns[i]))
			switch status.Code(err) {
			case codes.OK:
				return nil
			case codes.Aborted:
				return errStaleAttempt
			case codes.Unavailable, codes.FailedPrecondition, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.ResourceExhausted:
				c.mu.Lock()
				c.leader = (i + 1) % len(c.conns)
				c.mu.Unlock()
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
