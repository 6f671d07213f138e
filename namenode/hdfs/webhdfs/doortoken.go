package webhdfs

import (
	"sync"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
)

// doorTokens are the delegation tokens with which users of Kerberos are sent on to a datanode: their tickets are for this server. As
// HDFS does it, but one token serves a user for a while.
type doorTokens struct {
	mu sync.Mutex
	of map[doorUser]doorToken
}

type doorUser struct{ user, real string }

type doorToken struct {
	text       string
	identifier []byte
	until      time.Time
}

const (
	// doorTokenTime is how long a token is given again, as long as it is good.
	doorTokenTime = 10 * time.Minute
	maxDoorTokens = 10_000
)

// find returns a token that was given before.
func (t *doorTokens) find(u doorUser, now time.Time) (doorToken, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, ok := t.of[u]
	return d, ok && now.Before(d.until)
}

func (t *doorTokens) keep(u doorUser, d doorToken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil || len(t.of) >= maxDoorTokens {
		t.of = map[doorUser]doorToken{}
	}
	t.of[u] = d
}

// doorToken makes the redirect of a user with a ticket carry a token.
func (q *request) doorToken() error {
	if q.token != "" || !security.ByTicket(q.http) {
		return nil
	}
	u, now := doorUser{q.caller.User, q.caller.RealUser}, time.Now()
	if d, ok := q.doorTokens.find(u, now); ok {
		if _, _, err := q.service.TokenPassword(d.identifier); err == nil {
			q.token = d.text
			return nil
		}
	}
	t, err := wait(q, func(done func(security.Token, error)) { q.service.IssueToken(q.caller, q.caller.User, done) })
	if err != nil {
		return err
	}
	q.token = token.Token{Identifier: t.Identifier, Password: t.Password, Kind: token.WebKind}.Text()
	q.doorTokens.keep(u, doorToken{q.token, t.Identifier, now.Add(doorTokenTime)})
	return nil
}
