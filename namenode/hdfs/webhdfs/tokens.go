package webhdfs

import (
	"crypto/hmac"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
)

// who is the caller: whom a delegation token is for, whatever else the request claims, or whom the door knows.
func (q *request) who() (metadata.Caller, error) {
	text := q.params["delegation"]
	if text == "" {
		return q.door.HTTPCaller(q.http)
	}
	t, err := token.ParseText(text)
	if err != nil {
		return metadata.Caller{}, metadata.Errorf(metadata.ErrToken, "delegation: %v", err)
	}
	password, id, err := q.service.TokenPassword(t.Identifier)
	if err == nil && !hmac.Equal(password, t.Password) {
		err = metadata.Errorf(metadata.ErrToken, "token (%v) is invalid, password doesn't match", id)
	}
	if err != nil {
		q.door.RefuseRequest(q.http, id.Owner, err)
		return metadata.Caller{}, err
	}
	q.token = text
	return q.door.AuthenticatedRequest(q.http, id.Owner, id.RealUser)
}

func (q *request) delegationToken() (response, error) {
	if q.token != "" {
		return response{}, &parameterError{"delegation parameter is not null."}
	}
	if err := security.MayWrite(q.caller); err != nil {
		return response{}, err
	}
	if q.door.ProvedBy(q.http) == "nothing" {
		return response{}, metadata.Errorf(metadata.ErrIO, "Delegation Token can be issued only with kerberos or web authentication")
	}
	renewer := q.params["renewer"]
	if renewer == "" {
		renewer = q.caller.User
	}
	t, err := wait(q, func(done func(security.Token, error)) { q.service.IssueToken(q.caller, renewer, done) })
	if err != nil {
		return response{}, err
	}
	out := token.Token{Identifier: t.Identifier, Password: t.Password, Kind: token.WebKind, Service: q.params["service"]}
	if q.http.TLS != nil {
		out.Kind = token.SecureWebKind
	}
	if kind := q.params["kind"]; kind != "" {
		out.Kind = kind
	}
	return body(struct{ Token tokenJSON }{tokenJSON{out.Text()}}), nil
}

// tokenParameter is the token that an operation is about.
func (q *request) tokenParameter() (security.Token, error) {
	if q.params["token"] == "" {
		return security.Token{}, &parameterError{"Required param token for op: " + q.op + " is null or empty"}
	}
	t, err := token.ParseText(q.params["token"])
	if err != nil {
		return security.Token{}, metadata.Errorf(metadata.ErrToken, "token: %v", err)
	}
	return security.Token{Identifier: t.Identifier, Password: t.Password}, nil
}

func (q *request) renewToken() (response, error) {
	if q.token != "" || q.door.ProvedBy(q.http) == "nothing" {
		return response{}, metadata.Errorf(metadata.ErrIO, "Delegation Token can be renewed only with kerberos or web authentication")
	}
	t, err := q.tokenParameter()
	if err != nil {
		return response{}, err
	}
	expires, err := wait(q, func(done func(metadata.Time, error)) { q.service.RenewToken(q.caller, t, done) })
	if err != nil {
		return response{}, err
	}
	return body(struct {
		Long int64 `json:"long"`
	}{int64(expires)}), nil
}

func (q *request) cancelToken() (response, error) {
	t, err := q.tokenParameter()
	if err != nil {
		return response{}, err
	}
	return nothing(finish(q, func(done func(error)) { q.service.CancelToken(q.caller, t, done) }))
}
