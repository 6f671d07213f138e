package server

import (
	"crypto/hmac"
	"crypto/rand"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// IssueToken implements namenode.Tokens.
func (s *Server) IssueToken(c metadata.Caller, renewer string, done func(security.Token, error)) {
	now, p := s.clock.wall(), &s.config.Properties
	e := newEnvelope()
	e.command.Op = &logpb.Command_IssueToken{IssueToken: &logpb.IssueToken{
		Renewer: security.ShortName(renewer), RealUser: c.RealUser,
		Expires: int64(now) + int64(p.TokenRenewInterval), MaxDate: int64(now) + int64(p.TokenMaxLifetime),
		MaxTokens: uint32(s.config.MaxTokens), MaxOfUser: uint32(s.config.MaxTokensOfUser),
	}}
	s.change(&c, namenode.Retry{}, e, func(r *namespace.Result, err error) {
		if err != nil {
			done(security.Token{}, err)
			return
		}
		id := identifierOf(r.Token)
		password, err := s.passwordOf(id)
		done(security.Token{Identifier: id.Encode(), Password: password}, err)
	})
}

// identifierOf is what a token's identifier says.
func identifierOf(d *namespace.DelegationToken) token.Identifier {
	return token.Identifier{
		Owner: d.Owner, Renewer: d.Renewer, RealUser: d.RealUser, Issued: int64(d.Issued), MaxDate: int64(d.MaxDate), Sequence: d.Sequence, Key: d.Key,
	}
}

// passwordOf signs an identifier.
func (s *Server) passwordOf(id token.Identifier) ([]byte, error) {
	seed, ok := s.ns.TokenKey(id.Key)
	if !ok {
		return nil, metadata.Errorf(metadata.ErrToken, "token (%v) can't be found in cache: its key is no longer in use", id)
	}
	return token.Password(s.config.Credentials.MAC("delegation token", []byte(string(seed))), id.Encode()), nil
}

// TokenPassword implements namenode.Tokens.
func (s *Server) TokenPassword(identifier []byte) (password []byte, id token.Identifier, err error) {
	if s.reign.Load() == nil {
		return nil, id, namenode.ErrStandbyRead
	}
	if id, err = token.ParseIdentifier(identifier); err != nil {
		return nil, id, metadata.Errorf(metadata.ErrToken, "%v", err)
	}
	d, ok := s.ns.Token(id.Sequence)
	if !ok || identifierOf(&d) != id {
		return nil, id, metadata.Errorf(metadata.ErrToken, "token (%v) can't be found in cache: it was cancelled, has expired, or is another cluster's", id)
	}
	if now := s.clock.wall(); d.Expires < now {
		return nil, id, metadata.Errorf(metadata.ErrToken, "token (%v) is expired, current time: %s expected renewal time: %s", id, when(now), when(d.Expires))
	}
	password, err = s.passwordOf(id)
	return password, id, err
}

// when is a time as HDFS has it in messages.
func when(t metadata.Time) string { return t.Time().UTC().Format("2006-01-02 15:04:05,000-0700") }

// checked is what a token says, whose password is right; whether it has expired is not asked.
func (s *Server) checked(t security.Token) (token.Identifier, error) {
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return id, metadata.Errorf(metadata.ErrToken, "%v", err)
	}
	password, err := s.passwordOf(id)
	if err == nil && !hmac.Equal(password, t.Password) {
		err = metadata.Errorf(metadata.ErrToken, "token (%v) is invalid, password doesn't match", id)
	}
	return id, err
}

// RenewToken implements namenode.Tokens.
func (s *Server) RenewToken(c metadata.Caller, t security.Token, done func(metadata.Time, error)) {
	if s.reign.Load() == nil {
		done(0, namenode.ErrStandbyWrite)
		return
	}
	id, err := s.checked(t)
	if err != nil {
		done(0, err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_RenewToken{RenewToken: &logpb.RenewToken{
		Sequence: id.Sequence, Issued: id.Issued, Expires: int64(s.clock.wall()) + int64(s.config.Properties.TokenRenewInterval),
	}}
	s.change(&c, namenode.Retry{}, e, func(r *namespace.Result, err error) {
		if err != nil {
			done(0, err)
			return
		}
		done(r.Token.Expires, nil)
	})
}

// CancelToken implements namenode.Tokens.
func (s *Server) CancelToken(c metadata.Caller, t security.Token, done func(error)) {
	if s.reign.Load() == nil {
		done(namenode.ErrStandbyWrite)
		return
	}
	id, err := s.checked(t)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_CancelToken{CancelToken: &logpb.CancelToken{Sequence: id.Sequence, Issued: id.Issued}}
	s.change(&c, namenode.Retry{}, e, func(_ *namespace.Result, err error) { done(err) })
}

// tokensEvery is how often a leader looks for delegation tokens that have expired. Those that have are refused at once; this only
// forgets them.
const tokensEvery = time.Minute

// checkTokens has the next key sign delegation tokens when its time has come, and forgets tokens that have expired.
func (s *Server) checkTokens(r *reign, now time.Time) {
	interval := min(tokensEvery, time.Duration(s.config.Properties.TokenKeyInterval)*time.Millisecond)
	if now.Sub(r.tokensAt) < interval || !r.tending.CompareAndSwap(false, true) {
		return
	}
	r.tokensAt = now
	f := s.ns.TokenFigures(s.clock.wall())
	expire := func() {
		if f.Expired == 0 {
			r.tending.Store(false)
			return
		}
		s.send(&logpb.Command{Op: &logpb.Command_ExpireTokens{ExpireTokens: &logpb.ExpireTokens{}}}, func(_ *namespace.Result, err error) {
			r.tending.Store(false)
			if err != nil {
				s.log.Warn("expired delegation tokens not forgotten, trying again", "error", err)
			}
		})
	}
	if s.clock.log(now)-f.Rolled < namespace.LogTime(s.config.Properties.TokenKeyInterval) {
		expire()
		return
	}
	s.rollTokenKey(func(err error) {
		if err != nil {
			s.log.Warn("key of delegation tokens not rolled, trying again", "error", err)
		}
		expire()
	})
}

// rollTokenKey adds a key, which signs delegation tokens from then on.
func (s *Server) rollTokenKey(done func(error)) {
	seed := make([]byte, metadata.KeySeedSize)
	rand.Read(seed) // never fails (crypto/rand)
	op := &logpb.RollTokenKey{After: s.ns.TokenFigures(0).NewestKey, Seed: seed}
	s.send(&logpb.Command{Op: &logpb.Command_RollTokenKey{RollTokenKey: op}}, func(r *namespace.Result, err error) {
		if err == nil && r.OK {
			s.log.Info("key of delegation tokens rolled", "newest", op.After+1)
		}
		done(err)
	})
}

// encryptionNonce is the size of a nonce, as Hadoop has it.
const encryptionNonce = 8

// EncryptionKey implements namenode.Tokens. It is good for as long as a block token that is signed now: so long the block key is kept.
func (s *Server) EncryptionKey() (namenode.EncryptionKey, error) {
	k := namenode.EncryptionKey{Nonce: make([]byte, encryptionNonce), Expires: metadata.TimeOf(time.Now().Add(s.config.BlockTokenLifetime))}
	rand.Read(k.Nonce) // never fails (crypto/rand)
	var err error
	if k.Key, k.ID, err = s.signers().EncryptionKey(0, k.Nonce); err != nil {
		err = metadata.Errorf(metadata.ErrRetriable, "there is no key for data encryption yet: %v", err)
	}
	return k, err
}
