package localsocket

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rest is how long a path is left alone at which nobody was reached.
	rest = 10 * time.Second
	// dialTime bounds a connection: the other end is on this machine, and there is another way. The kernel answers at once, so what may take long is this
	// process's own turn.
	dialTime = 10 * time.Second
	// maxResting bounds the paths that are remembered as resting.
	maxResting = 1024
)

// Near finds the servers of this machine beside whose TCP address there is a Unix-domain socket. It is safe for concurrent
// use.
type Near struct {
	template  string
	log       *slog.Logger
	addresses Addresses
	failures  atomic.Int64

	mu      sync.Mutex
	resting map[string]time.Time // until when
}

// NewNear makes a Near for a template of paths. An empty one is of no server.
func NewNear(template string, logger *slog.Logger) *Near {
	return &Near{template: template, log: logger, resting: map[string]time.Time{}}
}

// Names reports whether each server has a path of its own, so that who is reached is who was meant: others on this machine
// are of the same user.
func (n *Near) Names() bool { return strings.Contains(n.template, Port) }

// Path is where the socket beside a TCP address, IP:port, is; empty: the address is not of this machine, or there is none.
func (n *Near) Path(addr string) string {
	if n.template == "" {
		return ""
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !n.addresses.Own(at.Addr()) {
		return ""
	}
	return Path(n.template, addr)
}

// Dial connects to the server at a TCP address, IP:port, by its socket. nil: there is none, or it was not reached, now or a
// little while ago; TCP is the way then.
func (n *Near) Dial(ctx context.Context, addr string) *net.UnixConn {
	path := n.Path(addr)
	if path == "" || n.rests(path) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	at, _ := netip.ParseAddrPort(addr) // Path did
	c, err := Dial(ctx, path, at)
	if err == nil {
		return c
	}
	if !errors.Is(err, context.Canceled) {
		n.Rest(path)
		n.failures.Add(1)
		level := slog.LevelDebug
		if errors.Is(err, ErrStranger) {
			level = slog.LevelWarn
		}
		n.log.Log(ctx, level, "no connection by the Unix-domain socket of a server on this machine: TCP is used", "path", path, "address", addr, "error", err)
	}
	return nil
}

func (n *Near) rests(path string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	until, ok := n.resting[path]
	if ok && time.Now().After(until) {
		delete(n.resting, path)
		ok = false
	}
	return ok
}

// Rest leaves a path alone for a while.
func (n *Near) Rest(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.resting) >= maxResting {
		clear(n.resting)
	}
	n.resting[path] = time.Now().Add(rest)
}

// Failures counts the connections that were tried in vain.
func (n *Near) Failures() int64 { return n.failures.Load() }
