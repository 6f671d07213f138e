package security

import (
	"log/slog"
	"strings"
	"sync"
)

// sureStranger is after how many refusals in a row a server says that it is not let in: a peer that ends in the middle of a
// handshake looks like one that refuses.
const sureStranger = 3

// Stranger watches the calls of a server to those that it needs, and says once, as an error, that they do not let it in, or it
// not them. It is safe for concurrent use.
type Stranger struct {
	Logger *slog.Logger

	mu       sync.Mutex
	refusals int // in a row
}

// Tried hears how a call to a peer ended; nil: the peer took this server.
func (s *Stranger) Tried(peer string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.refusals = 0
	case strings.Contains(err.Error(), ErrProof.Error()): // gRPC keeps no more than the text
		if s.refusals++; s.refusals == sureStranger {
			s.Logger.Error("this server is not one of the cluster's: nobody speaks to it", "peer", peer, "error", err)
		}
	}
}
