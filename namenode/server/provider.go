package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/issuer"
)

// Limits of what is said to the identity provider and by it: a login comes from somebody who is not known yet.
const (
	// maxLogins is how many logins are looked at at a time.
	maxLogins = 8
	// providerTime bounds a request to the provider, and maxProvider its answer in bytes.
	providerTime = 10 * time.Second
	maxProvider  = 1 << 20
)

// provider is the identity provider, whose description is fetched when it is first needed.
type provider struct {
	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	places   chan struct{} // capacity maxLogins
}

// boundedTransport cuts off answers that are too long.
type boundedTransport struct{ http.RoundTripper }

func (b boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxProvider), answer.Body}
	}
	return answer, err
}

// providerVerifier checks tokens of the provider.
func (s *Server) providerVerifier() (*oidc.IDTokenVerifier, error) {
	p := &s.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verifier != nil {
		return p.verifier, nil
	}
	client := &http.Client{Timeout: providerTime, Transport: boundedTransport{http.DefaultTransport}}
	// The provider goes on to fetch keys with this context's client, after this request.
	found, err := oidc.NewProvider(oidc.ClientContext(context.Background(), client), s.config.OIDC.Issuer)
	if err != nil {
		return nil, metadata.Errorf(metadata.ErrIO, "the identity provider %s does not describe itself: %v", s.config.OIDC.Issuer, err)
	}
	p.verifier = found.Verifier(&oidc.Config{ClientID: s.config.OIDC.ClientID})
	return p.verifier, nil
}

// errNoProvider: nobody logs in here by an identity provider.
var errNoProvider = metadata.Errorf(metadata.ErrUnsupported,
	"this cluster has no identity provider (namenode.oidc in hops.yaml): ask its operator for a token (`hops user token NAME`)")

// loginAnswer is what somebody who is about to log in has to know.
type loginAnswer struct {
	*login.File
	Issuer   string `json:"issuer,omitempty"`
	ClientID string `json:"client_id,omitempty"`
	// Groups: the provider is asked for the user's groups.
	Groups bool `json:"ask_groups,omitempty"`
}

// describeLogin says where the cluster's servers are and which identity provider it has.
func (s *Server) describeLogin(context.Context, *http.Request, metadata.Caller) (any, error) {
	file, err := s.describe()
	if err != nil {
		return nil, err
	}
	answer := loginAnswer{File: file}
	if o := s.config.OIDC; o != nil {
		answer.Issuer, answer.ClientID, answer.Groups = o.Issuer, o.ClientID, o.GroupsClaim != ""
	}
	return answer, nil
}

// login gives a token in exchange for the identity provider's (OpenID Connect Core, 2: ID token).
func (s *Server) login(ctx context.Context, r *http.Request, _ metadata.Caller) (any, error) {
	if s.config.OIDC == nil {
		return nil, errNoProvider
	}
	var ask struct {
		IDToken string `json:"id_token"`
	}
	if err := readUser(r, &ask); err != nil {
		return nil, err
	}
	select {
	case s.provider.places <- struct{}{}:
		defer func() { <-s.provider.places }()
	default:
		return nil, metadata.Errorf(metadata.ErrRetriable, "%d others log in at this moment: try again", maxLogins)
	}
	user, groups, err := s.identify(ctx, ask.IDToken)
	if err != nil {
		return nil, err
	}
	return s.issue(ctx, issuer.Request{User: user, Groups: groups, By: s.config.OIDC.Issuer})
}

// identify is who the provider's token speaks of.
func (s *Server) identify(ctx context.Context, token string) (user string, groups []string, err error) {
	verifier, err := s.providerVerifier()
	if err != nil {
		return "", nil, err
	}
	refuse := func(format string, args ...any) (string, []string, error) {
		return "", nil, metadata.Errorf(metadata.ErrUnauthorized, "the identity provider's token is refused: "+format, args...)
	}
	verified, err := verifier.Verify(ctx, token)
	if old, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return refuse("it expired at %s; by this server's clock it is %s", old.Expiry.UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339))
	}
	if err != nil {
		return refuse("%v", err)
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return refuse("%v", err)
	}
	o := s.config.OIDC
	user, ok := claims[o.UserClaim].(string)
	if !ok {
		return refuse("it has no claim %q, which names the user (namenode.oidc.user_claim)", o.UserClaim)
	}
	if err := usertoken.CheckName(user); err != nil {
		return refuse("the user in claim %q: %v", o.UserClaim, err)
	}
	// The provider speaks of people. Who has the name of the servers' user would be the superuser.
	if slices.Contains([]string{"root", s.config.Door.Daemon(), security.DrWho}, user) {
		return refuse("its user is called %s, as the servers' own user is: nobody logs in under that name", user)
	}
	if o.GroupsClaim == "" {
		return user, nil, nil
	}
	list, ok := claims[o.GroupsClaim].([]any)
	if !ok && claims[o.GroupsClaim] != nil || len(list) > usertoken.MaxGroups {
		return refuse("claim %q is not a list of up to %d groups", o.GroupsClaim, usertoken.MaxGroups)
	}
	groups = []string{} // and no others, also when there are none
	for _, g := range list {
		name, _ := g.(string)
		if err := usertoken.CheckName(name); err != nil {
			return refuse("the groups in claim %q: %v", o.GroupsClaim, err)
		}
		groups = append(groups, name)
	}
	return user, groups, nil
}
