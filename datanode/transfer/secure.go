package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// nonceBytes is the size of a nonce of data encryption, as Hadoop has it.
const nonceBytes = 8

// qualities are those of protection that are offered, the best first.
func (s *Server) qualities() []sasl.Quality {
	switch {
	case s.cfg.Encrypt:
		return []sasl.Quality{sasl.Privacy}
	case len(s.cfg.Protection) > 0:
		return s.cfg.Protection
	}
	return []sasl.Quality{sasl.Privacy, sasl.Integrity, sasl.Authentication}
}

// secure takes the handshake with which a peer begins, or notes that it should have begun with one.
func (c *conn) secure(ctx context.Context) error {
	if c.own {
		return nil
	}
	begins, err := dtp.IsSecure(c.r)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil // as serve finds out
		}
		return nil //nolint:nilerr // likewise
	}
	if !begins {
		// Nobody reads along on a socket that never leaves the machine, and Hadoop's clients make no handshake there.
		c.unproved = !c.near && (c.cfg.Encrypt || len(c.cfg.Protection) > 0 || c.cfg.Prove != nil && c.cfg.Prove(c.nc))
		return nil
	}
	c.deadlines(c.cfg.Read, c.cfg.Write)
	nc, r, err := dtp.Accept(c.nc, c.r, dtp.Acceptor{
		Qualities: c.qualities(),
		Password:  func(identifier []byte) ([]byte, error) { return c.cfg.Trust.Password(ctx, identifier) },
		EncryptionKey: func(id int32, pool string, nonce []byte) ([]byte, error) {
			key, _, err := c.cfg.Trust.EncryptionKey(ctx, id, nonce)
			return key, err
		},
	})
	if err != nil {
		return err
	}
	c.nc, c.r, c.proved = nc, r, true
	return nil
}

// secureTo makes the handshake with another datanode, with a token for the block that goes there, or with a key of this datanode's own if
// everything is to be encrypted. The connection is closed with an error, and so it is at the deadline of ctx.
func (s *Server) secureTo(ctx context.Context, nc net.Conn, t *hadooppb.TokenProto) (net.Conn, error) {
	var secret *dtp.Secret
	switch {
	case s.cfg.Encrypt:
		nonce := make([]byte, nonceBytes)
		rand.Read(nonce) // never fails (crypto/rand)
		key, id, err := s.cfg.Trust.EncryptionKey(ctx, 0, nonce)
		if err != nil {
			nc.Close()
			return nil, err
		}
		pool := ""
		if s.cfg.BlockPool != nil {
			pool = s.cfg.BlockPool()
		}
		secret = dtp.KeySecret(&hadooppb.DataEncryptionKeyProto{KeyId: new(uint32(id)), BlockPoolId: &pool, Nonce: nonce, EncryptionKey: key})
	case len(s.cfg.Protection) > 0:
		secret = dtp.TokenSecret(t.GetIdentifier(), t.GetPassword(), s.cfg.Protection)
	default:
		return nc, nil
	}
	end, _ := ctx.Deadline()
	_ = nc.SetDeadline(end)
	out, err := dtp.Secure(nc, secret)
	if err != nil {
		nc.Close()
		return nil, err
	}
	_ = nc.SetDeadline(time.Time{})
	return out, nil
}
