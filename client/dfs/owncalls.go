package dfs

import (
	"errors"
	"sync"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ownAgain is after how long a server that had no such calls is asked again.
const ownAgain = 10 * time.Minute

// ownCalls is what a client knows of whether its server has certain calls of hops' own protocol.
type ownCalls struct {
	mu sync.Mutex
	// until: before then the server has none of them.
	until time.Time
}

// served reports whether the server may have them.
func (o *ownCalls) served() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.until.IsZero() || time.Now().After(o.until)
}

// unknown reports whether err says that the server has no such call, and notes it.
func (o *ownCalls) unknown(err error) bool {
	remote, ok := errors.AsType[*hrpc.RemoteError](err)
	if !ok || remote.Detail != hadooppb.RpcResponseHeaderProto_ERROR_NO_SUCH_METHOD && remote.Detail != hadooppb.RpcResponseHeaderProto_ERROR_NO_SUCH_PROTOCOL {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = time.Now().Add(ownAgain)
	return true
}
