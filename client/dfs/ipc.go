package dfs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
)

// ipcPool keeps a connection to the IPC port of each datanode that was asked something, for peerIdle: who follows a file that is being written asks for
// its length again and again, and most of that would be the connection.
type ipcPool struct {
	mu   sync.Mutex
	idle map[string]*idleIPC // guarded by mu; nil: closed
}

// idleIPC is a connection that nobody uses.
type idleIPC struct {
	conn *hrpc.Client
	ends *time.Timer
}

func newIPCPool() *ipcPool { return &ipcPool{idle: map[string]*idleIPC{}} }

// take hands out the connection that is kept, nil: there is none.
func (p *ipcPool) take(addr string) *hrpc.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.idle[addr]
	if i == nil {
		return nil
	}
	delete(p.idle, addr)
	i.ends.Stop()
	select {
	case <-i.conn.Done():
		return nil
	default:
		return i.conn
	}
}

// keep takes a connection back, which is in order.
func (p *ipcPool) keep(addr string, conn *hrpc.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil || p.idle[addr] != nil {
		conn.Close()
		return
	}
	i := &idleIPC{conn: conn}
	i.ends = time.AfterFunc(peerIdle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.idle[addr] == i {
			delete(p.idle, addr)
			conn.Close()
		}
	})
	p.idle[addr] = i
}

func (p *ipcPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.idle {
		i.ends.Stop()
		i.conn.Close()
	}
	p.idle = nil
}

// callDatanode calls a datanode, by the connection that is kept if there is one. The call may be carried out twice.
func (c *Client) callDatanode(ctx context.Context, addr, protocol, method string, request, response hrpc.Message) error {
	if conn := c.ipc.take(addr); conn != nil {
		err := c.callBy(ctx, conn, addr, protocol, method, request, response)
		if _, broken := errors.AsType[*hrpc.ConnError](err); !broken || errors.Is(err, hrpc.ErrTimeout) || ctx.Err() != nil {
			return err
		}
	}
	dial := c.dialConfig(protocol, authority.Datanode)
	dial.CallTimeout = c.config.DatanodeTimeout
	conn, err := hrpc.Dial(ctx, addr, dial)
	if err != nil {
		return err
	}
	return c.callBy(ctx, conn, addr, protocol, method, request, response)
}

func (c *Client) callBy(ctx context.Context, conn *hrpc.Client, addr, protocol, method string, request, response hrpc.Message) error {
	err := conn.Call(ctx, protocol, method, request, response)
	if _, answered := errors.AsType[*hrpc.RemoteError](err); err == nil || answered {
		c.ipc.keep(addr, conn)
	} else {
		conn.Close()
	}
	return err
}
