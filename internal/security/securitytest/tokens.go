package securitytest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security/usertoken"
)

// Tokens makes tokens of users, which last from an hour ago for a time, and the verifier that takes them.
func Tokens(t testing.TB) (sign func(user string, life time.Duration) string, v *usertoken.Verifier) {
	t.Helper()
	key := usertoken.NewKey()
	document, err := json.Marshal(usertoken.Trusted{Cluster: "CID-test", Keys: []usertoken.PublicKey{key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	v = usertoken.NewVerifier(time.Now)
	if err := v.Believe(document); err != nil {
		t.Fatal(err)
	}
	return func(user string, life time.Duration) string {
		t.Helper()
		now := time.Now().Add(-time.Hour)
		token, err := key.Sign(usertoken.Claims{Cluster: "CID-test", User: user, ID: usertoken.NewID(), Issued: now, Expires: now.Add(life)})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}, v
}
