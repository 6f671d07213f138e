package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// clients are the file-system clients through which the HTTP door acts for its users, one for each user lately seen.
type clients struct {
	s  *Server
	mu sync.Mutex
	of map[string]*userClient
}

type userClient struct {
	*dfs.Client
	users int // requests that use it
	idle  time.Time
	old   bool // made for another list of namenodes; closed by the last who uses it
}

const (
	maxClients = 256
	clientIdle = time.Minute
)

func newClients(s *Server) *clients { return &clients{s: s, of: map[string]*userClient{}} }

// get returns a client that acts for user, and a function to call when done with it. The names of the clients as lease
// holders say which datanode they are in, so that the namenode recovers their files as soon as it declares it dead.
//
// With a delegation token it acts as the token says, which the namenode checks.
func (p *clients) get(user string, bearer *token.Token) (*dfs.Client, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := user
	if bearer != nil {
		key = user + " " + bearer.Text()
	}
	c := p.of[key]
	if c == nil {
		if len(p.of) >= maxClients && !p.dropLocked(time.Now()) {
			return nil, nil, metadata.Errorf(metadata.ErrRetriable, "datanode works for %d users at the same time", maxClients)
		}
		var zero metadata.Mode // the umask was applied by whoever gave the permission
		client, err := dfs.New(dfs.Config{
			Namenodes: *p.s.ipc.Load(), User: user, Token: bearer, Protection: p.s.cfg.Protection, Umask: &zero, UseHostname: p.s.cfg.UseHostnames, DomainSocket: p.s.cfg.NearPath, Dial: p.s.dial, Within: p.s.within, Logger: p.s.log,
			Name: namenode.DoorWriter(namenode.NodeID(p.s.id.Uuid), uuid.NewString()),
		})
		if err != nil {
			return nil, nil, fmt.Errorf("client for %s: %w", user, err)
		}
		c = &userClient{Client: client}
		p.of[key] = c
	}
	c.users++
	return c.Client, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.users--
		c.idle = time.Now()
		if c.old && c.users == 0 {
			c.Close()
		}
	}), nil
}

// dropLocked closes clients that have not been used since before; whether there were any. p.mu is held.
func (p *clients) dropLocked(before time.Time) bool {
	dropped := false
	for user, c := range p.of {
		if c.users == 0 && c.idle.Before(before) {
			c.Close()
			delete(p.of, user)
			dropped = true
		}
	}
	return dropped
}

// renew makes the next requests get new clients. Those that are in use go on.
func (p *clients) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for user, c := range p.of {
		if c.old = true; c.users == 0 {
			c.Close()
		}
		delete(p.of, user)
	}
}

// run closes idle clients until ctx is done.
func (p *clients) run(ctx context.Context) {
	tick := time.NewTicker(clientIdle / 2)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			p.mu.Lock()
			p.dropLocked(now.Add(-clientIdle))
			p.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (p *clients) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for user, c := range p.of {
		c.Close()
		delete(p.of, user)
	}
}
