package server

import (
	"context"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Tokens are the filesystem's delegation tokens.
type Tokens interface {
	// Get gets a token for a user, which the resource managers may renew.
	Get(ctx context.Context, user string) (token.Token, error)
	// Renew makes a token good for longer, and says until when by the filesystem's clock.
	Renew(ctx context.Context, t token.Token) (time.Time, error)
	Cancel(ctx context.Context, t token.Token) error
}

// DFSTokens gets tokens through clients of the filesystem, which the function makes for a user. They name renewer as who may renew them,
// which each of the resource managers has to be allowed to act as; own gives the renewer's client, and may keep it.
func DFSTokens(renewer string, own func() (*dfs.Client, error), client func(user string) (*dfs.Client, error)) Tokens {
	return &dfsTokens{renewer, client, own}
}

type dfsTokens struct {
	renewer string
	client  func(user string) (*dfs.Client, error)
	own     func() (*dfs.Client, error) // the renewer's
}

// Get implements Tokens.
func (t *dfsTokens) Get(ctx context.Context, user string) (token.Token, error) {
	c, err := t.client(user)
	if err != nil {
		return token.Token{}, err
	}
	defer c.Close()
	return c.GetDelegationToken(ctx, t.renewer)
}

// as is a client of who may renew a token: another resource manager may have got it, as another user.
func (t *dfsTokens) as(of token.Token) (c *dfs.Client, done func(), err error) {
	id, err := token.ParseIdentifier(of.Identifier)
	if err != nil {
		return nil, nil, err
	}
	if id.Renewer == t.renewer {
		c, err = t.own()
		return c, func() {}, err
	}
	if c, err = t.client(id.Renewer); err != nil {
		return nil, nil, err
	}
	return c, func() { c.Close() }, nil
}

// Renew implements Tokens.
func (t *dfsTokens) Renew(ctx context.Context, of token.Token) (time.Time, error) {
	c, done, err := t.as(of)
	if err != nil {
		return time.Time{}, err
	}
	defer done()
	return c.RenewDelegationToken(ctx, of)
}

// Cancel implements Tokens.
func (t *dfsTokens) Cancel(ctx context.Context, of token.Token) error {
	c, done, err := t.as(of)
	if err != nil {
		return err
	}
	defer done()
	return c.CancelDelegationToken(ctx, of)
}

// tokenPurpose is of the key by which tokens are sealed in the replicated state.
const tokenPurpose = "delegation tokens of applications"

// seal makes what the state keeps of a token.
func (s *Server) seal(id rm.ApplicationID, t token.Token) []byte {
	return s.config.Credentials.Seal(tokenPurpose, id.String(), []byte(t.Text()))
}

// unseal is the token of a credential.
func (s *Server) unseal(c *rm.Credential) (token.Token, error) {
	text, err := s.config.Credentials.Open(tokenPurpose, c.Application.String(), c.Sealed)
	if err != nil {
		return token.Token{}, metadata.Errorf(metadata.ErrIO, "the delegation token of %v does not open: this resource manager has the cluster secret of another cluster", c.Application)
	}
	return token.ParseText(string(text))
}
