package dfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// encryption is what a client knows of data encryption.
type encryption struct {
	mu    sync.Mutex
	known bool // whether blocks move encrypted was asked
	on    bool
	key   *hadooppb.DataEncryptionKeyProto // nil: there is none yet
	until time.Time                        // of key
}

// keyMargin is how long before its end an encryption key is got anew: clocks differ.
const keyMargin = 10 * time.Minute

// encryptionKey is the key with which blocks have to move; nil: they need not. stale is one that a datanode has refused.
func (c *Client) encryptionKey(ctx context.Context, stale *hadooppb.DataEncryptionKeyProto) (*hadooppb.DataEncryptionKeyProto, error) {
	e := &c.encryption
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known {
		d, err := c.ServerDefaults(ctx)
		if err != nil {
			return nil, err
		}
		e.known, e.on = true, d.EncryptDataTransfer
	}
	if !e.on {
		return nil, nil
	}
	if e.key != nil && e.key != stale && time.Now().Before(e.until) {
		return e.key, nil
	}
	var answer hadooppb.GetDataEncryptionKeyResponseProto
	if err := c.call(ctx, "encryption key", "", "getDataEncryptionKey", new(hadooppb.GetDataEncryptionKeyRequestProto), &answer); err != nil {
		return nil, err
	}
	if answer.DataEncryptionKey == nil {
		return nil, metadata.Errorf(metadata.ErrIO, "the namenode asks for encryption and gives no key for it")
	}
	e.key = answer.DataEncryptionKey
	e.until = time.UnixMilli(int64(e.key.GetExpiryDate())).Add(-keyMargin)
	return e.key, nil
}

// secure makes the handshake with a datanode on a new connection, if one is wanted: with an encryption key where blocks move encrypted
// only, else with the token of the first request. The connection is closed with an error.
func (c *Client) secure(ctx context.Context, conn net.Conn, t *hadooppb.TokenProto) (_ net.Conn, err error) {
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	key, err := c.encryptionKey(ctx, nil)
	if err != nil {
		return nil, err
	}
	var secret *dtp.Secret
	switch {
	case key != nil:
		secret = dtp.KeySecret(key)
	case len(c.config.Protection) > 0:
		secret = dtp.TokenSecret(t.GetIdentifier(), t.GetPassword(), c.config.Protection)
	case c.config.Token != nil:
		secret = dtp.TokenSecret(t.GetIdentifier(), t.GetPassword(), []sasl.Quality{sasl.Authentication, sasl.Integrity, sasl.Privacy})
	default:
		return conn, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })
	_ = conn.SetDeadline(time.Now().Add(c.config.DatanodeTimeout))
	out, err := dtp.Secure(conn, secret)
	if !stop() {
		return nil, context.Cause(ctx)
	}
	_ = conn.SetDeadline(time.Time{})
	if refusal, ok := errors.AsType[*dtp.SecureError](err); ok {
		if refusal.UnknownKey { // the next connection has another one
			_, _ = c.encryptionKey(ctx, key)
		}
		if refusal.Token { // the words by which callers get another token
			return nil, &dtp.ResponseError{Op: dtp.OpReadBlock, Status: hadooppb.Status_ERROR_ACCESS_TOKEN, Message: fmt.Sprint(refusal)}
		}
	}
	return out, err
}

// tokenOfRequest is the token in a request to a datanode.
func tokenOfRequest(request dtp.Message) *hadooppb.TokenProto {
	switch m := request.(type) {
	case interface {
		GetHeader() *hadooppb.ClientOperationHeaderProto
	}:
		return m.GetHeader().GetBaseHeader().GetToken()
	case interface {
		GetHeader() *hadooppb.BaseHeaderProto
	}:
		return m.GetHeader().GetToken()
	}
	return nil
}
