package transfer

import (
	"context"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// mirrorsKept is how many connections are kept for one datanode.
const mirrorsKept = 128

// mirrors keeps connections to other datanodes between the blocks of clients' pipelines. The other end waits KeepAlive
// for the next request; here a connection is given up sooner.
type mirrors struct {
	keep time.Duration

	mu     sync.Mutex
	idle   map[string][]*peer // by the address that was dialled, the longest idle first
	purge  *time.Timer
	closed bool
}

// take returns the connection that was used last, nil if there is none.
func (m *mirrors) take(addr string) *peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.idle[addr]
	if len(list) == 0 {
		return nil
	}
	p := list[len(list)-1]
	m.idle[addr] = list[:len(list)-1]
	if time.Since(p.kept) >= m.keep { // the others are older; the purge closes them
		p.Close()
		return nil
	}
	p.reused = true
	return p
}

// put keeps a connection on which a block has ended in order.
func (m *mirrors) put(p *peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.idle[p.dialled]
	if m.closed || p.r.Buffered() > 0 || len(list) == mirrorsKept {
		p.Close()
		return
	}
	p.kept = time.Now()
	m.idle[p.dialled] = append(list, p)
	if m.purge == nil {
		m.purge = time.AfterFunc(m.keep, m.purgeIdle)
	}
}

// purgeIdle closes what has been idle too long, and comes again while anything is left.
func (m *mirrors) purgeIdle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purge = nil
	for addr, list := range m.idle {
		n := 0
		for n < len(list) && time.Since(list[n].kept) >= m.keep {
			list[n].Close()
			n++
		}
		if n == len(list) {
			delete(m.idle, addr)
		} else {
			m.idle[addr] = append(list[:0], list[n:]...)
		}
	}
	if len(m.idle) > 0 && !m.closed {
		m.purge = time.AfterFunc(m.keep/2, m.purgeIdle)
	}
}

func (m *mirrors) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, list := range m.idle {
		for _, p := range list {
			p.Close()
		}
	}
	clear(m.idle)
	if m.purge != nil {
		m.purge.Stop()
	}
}

// mirror returns a connection to a datanode, a kept one unless it has to be fresh.
func (s *Server) mirror(ctx context.Context, op *hadooppb.OpWriteBlockProto, fresh bool) (*peer, error) {
	target := op.Targets[0]
	if !fresh {
		if p := s.mirrors.take(dtp.TransferAddr(target.GetId(), s.cfg.UseHostnames)); p != nil {
			return p, nil
		}
	}
	return s.dial(ctx, target, op.GetHeader().GetBaseHeader().GetToken())
}
