package transfer

import (
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Nobody waits here for a disk that does not answer. Who wants to read what is known to lie on one is refused, with a message that names it, and whoever waits already when that becomes known is hung up on: what he is
// to be told may be in the middle of an answer. Every client goes on with another datanode then, or comes back to be refused. Goroutines that wait for the disk are left there.

// work is what a request is about.
type work struct {
	block metadata.BlockID
	reads bool // bytes of it, or what is made of them
}

// silent says why a request is not served, because the disk where it is to read does not answer. Who asks for a word gets none then, see read.
func (c *conn) silent(w *work, request dtp.Message) error {
	if c.cfg.Mute == nil || !w.reads || wantsWord(request) {
		return nil
	}
	return c.cfg.Mute(w.block)
}

// refuseSilent is refuse for that.
func (c *conn) refuseSilent(op dtp.Op, cause error) error {
	if op == dtp.OpShortCircuitFDs {
		return c.withhold(cause)
	}
	answer := dtp.Failure(hadooppb.Status_ERROR, "", cause.Error())
	answer.DiskSilent = new(true)
	return c.refuseWith(op, answer, cause)
}

// HangUp ends the connections of those who read what is on a mute volume, and of those who read or write what is on one that was given up.
func (s *Server) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc, c := range s.conns {
		w := c.work.Load()
		if w == nil {
			continue
		}
		if w.reads && s.cfg.Mute != nil && s.cfg.Mute(w.block) != nil || s.cfg.GaveUp != nil && s.cfg.GaveUp(w.block) {
			if c.work.CompareAndSwap(w, nil) {
				s.log.Warn("data transfer given up: the disk does not answer", "block", int64(w.block), "remote", nc.RemoteAddr().String())
				security.HangUp(nc)
			}
		}
	}
}
