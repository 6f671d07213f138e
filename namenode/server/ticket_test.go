package server

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
)

// believer takes tickets that are the name of their user.
type believer struct{}

func (believer) Negotiate(token []byte) (string, []byte, error) {
	if user, ok := strings.CutPrefix(string(token), "ticket of "); ok {
		return user, []byte("proof"), nil
	}
	return "", nil, errors.New("it is no ticket")
}

// WebHDFS sends a user with a ticket on with a delegation token, the same one for a while, which stands for that user wherever it is
// shown.
func TestTicketsOnWebHDFS(t *testing.T) {
	door := security.NewDoor(security.Config{Supergroup: "supergroup", Negotiator: believer{}})
	c := newCluster(t, 1, func(conf *Config) { conf.Door = door })
	n := c.leader()
	c.realDatanode("dn1")
	root := c.root()
	eventually(t, "a file can be written", func() bool { return root.WriteFile(t.Context(), "/f", []byte("hers\n"), true) == nil })
	ask := func(query, ticket string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.http+"/webhdfs/v1/f?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ticket != "" {
			r.Header.Set("Authorization", "Negotiate "+base64.StdEncoding.EncodeToString([]byte(ticket)))
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode == http.StatusUnauthorized && answer.Header.Get("WWW-Authenticate") != "Negotiate" {
			t.Errorf("401 without a challenge: %v", answer.Header)
		}
		return answer.StatusCode, string(body)
	}
	location := func(ticket string) *url.URL {
		t.Helper()
		code, body := ask("op=OPEN&noredirect=true", ticket)
		var answer struct{ Location string }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s, %v", code, body, err)
		}
		u, err := url.Parse(answer.Location)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	alice, again, bob := location("ticket of alice"), location("ticket of alice"), location("ticket of bob")
	token := alice.Query().Get("delegation")
	if token == "" || alice.Query().Has("user.name") {
		t.Errorf("a user with a ticket is sent to %s", alice)
	}
	if again.Query().Get("delegation") != token {
		t.Error("the next request of the same user gets another token")
	}
	if bob.Query().Get("delegation") == token {
		t.Error("another user gets the same token")
	}
	if code, body := ask("op=GETHOMEDIRECTORY&delegation="+token, ""); code != http.StatusOK || !strings.Contains(body, "/user/alice") {
		t.Errorf("the token is good for: %d %s", code, body)
	}
	if answer, err := http.Get(alice.String()); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("at the datanode: %v, %v", answer, err)
	} else {
		answer.Body.Close()
	}
	for _, c := range []struct{ name, query, ticket, want string }{
		{"nothing", "op=GETFILESTATUS", "", "the request shows no ticket of Kerberos"},
		{"garbage", "op=GETFILESTATUS", "garbage", "it is no ticket"},
	} {
		if code, body := ask(c.query, c.ticket); code != http.StatusUnauthorized || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
