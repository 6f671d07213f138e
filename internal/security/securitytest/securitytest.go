// Package securitytest makes what servers in tests prove who they are with.
package securitytest

import (
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

// Credentials are those of a server that may be everything, in a cluster of its own.
func Credentials(t testing.TB) security.Credentials {
	t.Helper()
	c, _, err := Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Make makes a cluster with a secret, and the credentials of its first server, which may be everything.
func Make(secret security.Secret) (security.Credentials, *authority.Authority, error) {
	a, err := authority.New("CID-test", time.Now())
	if err != nil {
		return security.Credentials{}, nil, err
	}
	c, err := Join(a, secret, authority.Roles...)
	return c, a, err
}

// Join makes the credentials of another server with the roles.
func Join(a *authority.Authority, secret security.Secret, roles ...authority.Role) (security.Credentials, error) {
	i, err := a.Self("test", roles, nil, time.Now())
	if err != nil {
		return security.Credentials{}, err
	}
	m, err := i.Member(time.Now)
	return security.Credentials{Secret: secret, Member: m}, err
}
