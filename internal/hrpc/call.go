package hrpc

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Call is one request that waits for its answer. Its fields are the handler's to read until it has answered and after.
type Call struct {
	// Caller is who asks, as the door saw it.
	Caller metadata.Caller
	// ClientID and ID identify the call across retries; Retry counts them, -1 if the client does not. They are what a
	// retry cache needs when ClientID has 16 bytes and ID is not negative. ClientID must not be changed.
	ClientID []byte
	CallID   int32
	Retry    int32
	// Request has the type that the method's New returned.
	Request Message
	// Protocol and Method are the names on the wire.
	Protocol, Method string
	// Remote is the peer's address.
	Remote net.Addr

	conn     *serverConn
	answered atomic.Bool
}

// Context is done when the connection is gone and nobody waits for the answer any more.
func (c *Call) Context() context.Context { return c.conn.ctx }

// Reply answers with m, nil for an empty message. m is encoded before Reply returns.
func (c *Call) Reply(m Message) {
	if !c.answered.CompareAndSwap(false, true) {
		return
	}
	h := responseHeader{callID: c.CallID, retry: c.Retry, clientID: c.ClientID}
	err := c.conn.send(&h, m)
	if err != nil && !c.conn.gone() {
		h.status, h.detail = hadooppb.RpcResponseHeaderProto_ERROR, detailSerializing
		h.class, h.message = classIOException, "the answer of "+c.Method+" cannot be encoded: "+err.Error()
		c.conn.server.config.Logger.Error("answer cannot be encoded", "method", c.Method, "error", err)
		_ = c.conn.send(&h, nil)
	}
	c.conn.finished()
}

// Fail answers with an error: its class and message are the server's to choose, or err's own if it is a *RemoteError.
func (c *Call) Fail(err error) {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		detail := remote.Detail
		if detail == 0 {
			detail = detailApplication
		}
		c.fail(detail, remote.Class, remote.Message)
		return
	}
	class, message := c.conn.server.config.Exception(err)
	c.fail(detailApplication, class, message)
}

func (c *Call) fail(detail hadooppb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) {
	if !c.answered.CompareAndSwap(false, true) {
		return
	}
	_ = c.conn.send(&responseHeader{
		callID:   c.CallID,
		retry:    c.Retry,
		clientID: c.ClientID,
		status:   hadooppb.RpcResponseHeaderProto_ERROR,
		detail:   detail,
		class:    class,
		message:  message,
	}, nil) // fails only when nobody is there to be told
	c.conn.finished()
}
