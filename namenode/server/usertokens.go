package server

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/issuer"
	"github.com/gohops/hops/namenode/roster"
)

// The door at which users get, list and give up their tokens. docs/reference/rest.md describes it; `hops user` and `hops login`
// call it.

// maxUserBody is the size of the largest request, in bytes.
const maxUserBody = 64 << 10

// userRoutes are the requests of that door. Handlers decide about whose tokens a caller may have.
var userRoutes = []struct {
	pattern, command string
	right            security.Right
	run              func(s *Server, ctx context.Context, r *http.Request, caller metadata.Caller) (any, error)
}{
	{"POST /api/v1/user-tokens", "issueUserToken", security.Named, (*Server).issueUserToken},
	{"POST /api/v1/user-certificates", "issueUserCertificate", security.Named, (*Server).issueUserCertificate},
	{"GET /api/v1/user-tokens", "listUserTokens", security.Named, (*Server).listUserTokens},
	{"DELETE /api/v1/user-tokens/{id}", "revokeUserToken", security.Named, (*Server).revokeUserToken},
	{"GET /api/v1/whoami", "whoami", security.Anyone, (*Server).whoami},
	{"GET /api/v1/login", "describeLogin", security.Open, (*Server).describeLogin},
	{"POST /api/v1/login", "login", security.Open, (*Server).login},
}

// userKeys are what this namenode verifies and issues tokens with.
type userKeys struct {
	issuer *issuer.Issuer
	mu     sync.Mutex
	at     uint64 // version of the register that the verifier knows
}

func (s *Server) openUserKeys() (err error) {
	s.users.issuer, err = issuer.New(issuer.Config{
		Register: register{s}, Seal: s.config.Credentials.MAC("keys of user tokens"), Cluster: s.authority(), Now: time.Now,
	})
	if v := s.config.Door.Users(); v != nil {
		v.Refresh(s.refreshUserKeys)
	}
	return err
}

// authority is the id under which the cluster's authority knows the cluster.
func (s *Server) authority() string {
	if m := s.config.Credentials.Member; m != nil {
		return m.Self().Cluster
	}
	return ""
}

// refreshUserKeys makes the process's door believe the keys that the register has now.
func (s *Server) refreshUserKeys() {
	if s.trust.Load() == nil { // the namespace is not open
		return
	}
	s.users.mu.Lock()
	defer s.users.mu.Unlock()
	version := s.ns.RegisterVersion()
	if version == s.users.at {
		return
	}
	document, err := s.users.issuer.Keys()
	if err == nil && document != nil {
		err = s.config.Door.Users().Believe(document)
	}
	if err != nil {
		s.log.Error("the keys of user tokens cannot be read: those from before go on to count", "error", err)
		return
	}
	s.users.at = version
}

// UserKeys is what other servers need to check tokens of users, in the form that usertoken.Verifier believes; nil: there are no
// keys yet.
func (s *Server) UserKeys() ([]byte, error) { return s.users.issuer.Keys() }

// serveUser serves one of userRoutes.
func (s *Server) serveUser(w http.ResponseWriter, r *http.Request, command string, right security.Right, run func(*Server, context.Context, *http.Request, metadata.Caller) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	r.Body = http.MaxBytesReader(w, r.Body, maxUserBody)
	var caller metadata.Caller
	var err error
	if right != security.Open {
		caller, err = s.config.Door.HTTPCaller(r)
	}
	if err == nil && right == security.Named {
		err = security.MayWrite(caller)
	}
	var answer any
	if err == nil {
		answer, err = run(s, ctx, r, caller)
	}
	d := security.Decision{Allowed: !security.Refused(err), Caller: caller, Port: "rest", Command: command, Source: r.PathValue("id"), Read: r.Method == http.MethodGet}
	if told, ok := answer.(interface{ about() string }); ok {
		d.Source = told.about()
	}
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "application/json")
	if err != nil {
		status := userStatus(err)
		h.Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		answer = map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(answer) // fails only when the client is gone
}

// userStatus is the HTTP status of an error.
func userStatus(err error) int {
	switch {
	case errors.Is(err, metadata.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, metadata.ErrUnsupported):
		return http.StatusNotImplemented
	case errors.Is(err, metadata.ErrIO):
		return http.StatusBadGateway
	case errors.Is(err, metadata.ErrRetriable):
		return http.StatusServiceUnavailable
	case errors.Is(err, issuer.ErrTooMany):
		return http.StatusTooManyRequests
	}
	return memberStatus(err)
}

// readUser reads the JSON of a request.
func readUser(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the request: %v", err)
	}
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the request is not the JSON that is wanted: %v", err)
	}
	return nil
}

// issued is a login with its token.
type issued struct{ *login.File }

func (i issued) about() string { return i.User + " " + i.ID }

// issueUserToken makes a token: a superuser's for anybody, everybody's for themselves.
func (s *Server) issueUserToken(ctx context.Context, r *http.Request, caller metadata.Caller) (any, error) {
	var ask struct {
		User   string   `json:"user"`
		Groups []string `json:"groups"`
		Life   string   `json:"life"`
	}
	if err := readUser(r, &ask); err != nil {
		return nil, err
	}
	if ask.User == "" {
		ask.User = caller.User
	}
	request := issuer.Request{User: ask.User, Groups: ask.Groups, By: caller.User}
	if ask.Life != "" {
		var err error
		if request.Life, err = time.ParseDuration(ask.Life); err != nil || request.Life <= 0 {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "life %.40q is no time such as 12h", ask.Life)
		}
	}
	if ask.Groups != nil && !caller.Superuser {
		return nil, metadata.Errorf(metadata.ErrPermission, "%s is not a superuser, and does not say which groups a token has", caller.User)
	}
	if err := s.mayIssue(r, caller, ask.User, "token"); err != nil {
		return nil, err
	}
	return s.issue(ctx, request)
}

// mayIssue says whether a caller gets a token or a certificate for a user.
func (s *Server) mayIssue(r *http.Request, caller metadata.Caller, user, what string) error {
	server, by := s.config.Door.ServerOf(r), s.config.Door.ProvedBy(r)
	switch {
	case server != nil && !server.Has(authority.Namenode): // a machine that is removed must leave nothing behind
		return metadata.Errorf(metadata.ErrPermission, "%s gets no user %s: only namenodes ask in somebody's name", server, what)
	case user == security.DrWho:
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s is nobody, and has no %s", security.DrWho, what)
	case caller.RealUser != "":
		return metadata.Errorf(metadata.ErrPermission, "%s acts for %s, and gets no %s in that name", caller.RealUser, caller.User, what)
	case user != caller.User && !caller.Superuser:
		return metadata.Errorf(metadata.ErrPermission, "%s is not a superuser, and gets a %s for nobody else", caller.User, what)
	case user == caller.User && by == "token":
		return metadata.Errorf(metadata.ErrPermission, "a token gets no other %s, or it would never end: `hops login` again, or ask on a server's machine", what)
	case user == caller.User && by == "certificate":
		return metadata.Errorf(metadata.ErrPermission, "a certificate gets no other %s, or it would never end: ask on a server's machine", what)
	case by == "nothing":
		return metadata.Errorf(metadata.ErrPermission, "%s only says so: from a trusted network nobody gets a %s. Ask on a server's machine", caller.User, what)
	}
	return nil
}

// Certificate is the answer to a request for a user's certificate.
type Certificate struct {
	User    string    `json:"user"`
	ID      string    `json:"id"`
	Expires time.Time `json:"expires"`
	// Certificate and Authorities are in PEM.
	Certificate string `json:"certificate"`
	Authorities string `json:"authorities"`
}

func (c Certificate) about() string { return c.User + " " + c.ID }

// issueUserCertificate makes a client's certificate for a key that its user keeps: a superuser's for anybody, everybody's for themselves.
func (s *Server) issueUserCertificate(ctx context.Context, r *http.Request, caller metadata.Caller) (any, error) {
	var ask struct {
		User    string `json:"user"`
		Life    string `json:"life"`
		Request []byte `json:"request"`
	}
	if err := readUser(r, &ask); err != nil {
		return nil, err
	}
	if ask.User == "" {
		ask.User = caller.User
	}
	if err := s.mayIssue(r, caller, ask.User, "certificate"); err != nil {
		return nil, err
	}
	if err := s.leads(); err != nil {
		return nil, err
	}
	m := s.config.Credentials.Member
	if m == nil {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "this namenode has no certificate")
	}
	request := issuer.Request{User: ask.User, By: caller.User}
	if ask.Life != "" {
		var err error
		if request.Life, err = time.ParseDuration(ask.Life); err != nil || request.Life <= 0 {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "life %.40q is no time such as 12h", ask.Life)
		}
	}
	out := Certificate{Authorities: string(authority.MarshalRoots(m.Roots()))}
	about, err := s.users.issuer.Certify(ctx, request, func(about issuer.Token) error {
		der, err := s.roster.Certify(about.User, about.ID, ask.Request, about.Expires.Sub(about.Issued))
		if errors.Is(err, roster.ErrNone) {
			return err
		}
		if err != nil {
			return metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
		}
		out.Certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.log.Info("user certificate issued", "user", about.User, "id", about.ID, "until", about.Expires, "by", about.By)
	out.User, out.ID, out.Expires = about.User, about.ID, about.Expires
	return out, nil
}

// issue makes a token and all that its user needs to use it.
func (s *Server) issue(ctx context.Context, request issuer.Request) (any, error) {
	file, err := s.describe()
	if err != nil {
		return nil, err
	}
	token, about, err := s.users.issuer.Issue(ctx, request)
	if err != nil {
		return nil, err
	}
	s.log.Info("user token issued", "user", about.User, "id", about.ID, "until", about.Expires, "by", about.By)
	file.User, file.ID, file.Token, file.Expires = about.User, about.ID, token, about.Expires
	return issued{file}, nil
}

// describe is a login without a token: where the servers are, and who vouches for them.
func (s *Server) describe() (*login.File, error) {
	m := s.config.Credentials.Member
	if m == nil {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "this namenode has no certificate")
	}
	f := &login.File{Cluster: m.Self().Cluster, Authorities: string(authority.MarshalRoots(m.Roots()))}
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, err
	}
	if len(servers.Namenodes) == 0 { // the register does not have them yet
		servers = s.config.Servers
	}
	for _, n := range servers.Namenodes {
		f.Namenodes = append(f.Namenodes, login.Namenode{HTTP: n.HTTP, IPC: n.IPC})
	}
	for _, m := range servers.ResourceManagers {
		f.ResourceManagers = append(f.ResourceManagers, m.HTTP)
	}
	if _, err := f.Marshal(); err != nil {
		return nil, fmt.Errorf("the servers of this cluster make no login: %w", err)
	}
	return f, nil
}

// listUserTokens lists the tokens that have not expired: a superuser all, everybody their own. It does not show the tokens themselves.
func (s *Server) listUserTokens(_ context.Context, _ *http.Request, caller metadata.Caller) (any, error) {
	all, err := s.users.issuer.Tokens()
	if err != nil {
		return nil, err
	}
	out := []issuer.Token{}
	for _, t := range all {
		if caller.Superuser || t.User == caller.User {
			out = append(out, t)
		}
	}
	return map[string]any{"tokens": out}, nil
}

// revokeUserToken makes a token useless: a superuser any, everybody their own.
func (s *Server) revokeUserToken(ctx context.Context, r *http.Request, caller metadata.Caller) (any, error) {
	id := r.PathValue("id")
	err := s.users.issuer.Revoke(ctx, id, func(t issuer.Token) error {
		if caller.Superuser || t.User == caller.User && caller.RealUser == "" {
			return nil
		}
		return metadata.Errorf(metadata.ErrPermission, "%s is not a superuser, and revokes nobody else's token", caller.User)
	})
	if err != nil {
		return nil, err
	}
	s.log.Info("user token revoked", "id", id, "by", caller.User)
	return struct{}{}, nil
}

// whoami says who the caller is taken for.
func (s *Server) whoami(_ context.Context, r *http.Request, caller metadata.Caller) (any, error) {
	type answer struct {
		Cluster   string    `json:"cluster"`
		User      string    `json:"user"`
		RealUser  string    `json:"real_user,omitempty"`
		Groups    []string  `json:"groups"`
		Superuser bool      `json:"superuser"`
		ProvedBy  string    `json:"proved_by"`
		Token     string    `json:"token,omitempty"` // its id
		Expires   time.Time `json:"expires,omitzero"`
	}
	a := answer{
		Cluster: s.authority(), User: caller.User, RealUser: caller.RealUser, Groups: append([]string{}, caller.Groups...), Superuser: caller.Superuser,
		ProvedBy: s.config.Door.ProvedBy(r),
	}
	if caller.User == security.DrWho {
		a.ProvedBy = "nothing"
	}
	if c := security.TokenOf(r); c != nil {
		a.Token, a.Expires = c.ID, c.Expires
	}
	return a, nil
}
