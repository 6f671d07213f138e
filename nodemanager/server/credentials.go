package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// Where a container finds its secrets and its credentials.
func (c *container) secretsDir() string     { return filepath.Join(c.dir, "secrets") }
func (c *container) credentialsDir() string { return filepath.Join(c.dir, "credentials") }

const (
	// pullTime is how long the resource manager may take to give credentials.
	pullTime = 30 * time.Second
	// againAfterFailure is when a container's credentials are asked for again after they were not to be had. Those that it has are good
	// for much longer.
	againAfterFailure = 10 * time.Second
)

// notYet is why a container's credentials are not to be had now.
type notYet struct{ error }

func (e *notYet) Unwrap() error { return e.error }

// pulled is what a container is given beside its order.
type pulled struct {
	tokens  []byte // Hadoop's file of credentials; nil: there are none
	secrets map[string][]byte
	again   time.Duration // when to ask again; 0: never
}

// pull asks the resource manager that leads for what a container is given beside its order. It is in our memory until the container's
// supervisor has it, and nowhere else. *notYet: asking again may help.
func (c *container) pull(ctx context.Context, secrets bool) (*pulled, error) {
	s := c.server
	conn := s.leader.Load()
	if conn == nil {
		return nil, &notYet{errors.New("no resource manager leads that is known here")}
	}
	ctx, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	answer, err := rmpb.NewNodeManagersClient(conn).Credentials(ctx, &rmpb.CredentialsRequest{ContainerId: string(c.id), Secrets: secrets})
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unimplemented:
		return nil, errors.New(status.Convert(err).Message())
	default:
		return nil, &notYet{errors.New(status.Convert(err).Message())}
	}
	p := &pulled{secrets: answer.GetSecrets(), again: time.Duration(answer.GetAgainMs()) * time.Millisecond}
	var file token.File
	if brought := answer.GetLaunchTokens(); len(brought) > 0 {
		if len(brought) > maxLaunchTokens {
			return nil, fmt.Errorf("its launch brings %d bytes of tokens, the most is %d", len(brought), maxLaunchTokens)
		}
		if file, err = token.ParseFile(brought); err != nil {
			return nil, fmt.Errorf("the tokens that its launch brings: %w", err)
		}
	}
	if t := answer.GetToken(); t != nil {
		file.Add(credentialsOf(&s.place().cluster, token.Token{Identifier: t.GetIdentifier(), Password: t.GetPassword(), Kind: t.GetKind()}))
	}
	if len(file.Tokens) > 0 || len(file.Secrets) > 0 {
		p.tokens = file.Encode()
	}
	return p, nil
}

// maxLaunchTokens bounds what a launch brings, in bytes: with the rest of the file it has to go through the supervisor's socket.
const maxLaunchTokens = 128 << 10

// collect takes what a container is given before it starts.
func (c *container) collect(ctx context.Context, spec *nodemanager.Spec) error {
	wanted := spec.Secrets
	var p *pulled
	err := c.patiently(ctx, "resource manager", func() (err error) {
		p, err = c.pull(ctx, spec.Tokens || len(wanted) > 0)
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range wanted {
		if _, ok := p.secrets[name]; !ok {
			return fmt.Errorf("the resource manager has not given secret %s", name)
		}
	}
	c.handed.Tokens, c.handed.Secrets, c.again = p.tokens, p.secrets, p.again
	return nil
}

// refresh has the file of credentials of a running container written anew, each time that the resource manager said, until ctx is
// done. first is when for the first time.
func (c *container) refresh(ctx context.Context, spec *nodemanager.Spec, first time.Duration) {
	failed := false
	for again := first; again > 0; {
		if !sleep(ctx, again) {
			return
		}
		p, err := c.pull(ctx, spec.Tokens) // with what the launch brings, because the whole file is written
		if err == nil && p.tokens != nil {
			err = c.client.Refresh(ctx, p.tokens)
		}
		_, later := errors.AsType[*notYet](err)
		switch {
		case err == nil:
			again, failed = p.again, false
			continue
		case ctx.Err() != nil:
			return
		case p == nil && !later: // it has ended for the resource manager, which will say so
			return
		case !failed:
			c.log.Warn("container's credentials are not refreshed, trying again", "error", err)
			failed = true
		}
		again = againAfterFailure
	}
}
