package server

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// strangers makes every connection of a cluster's clients count as one from another machine, as long as far is set.
func strangers(far *atomic.Bool, qualities ...sasl.Quality) func(*Config) {
	return func(c *Config) {
		c.Door = security.NewDoor(security.Config{Supergroup: "supergroup", Member: c.Credentials.Member, Here: func(_, _ netip.Addr) bool { return !far.Load() }})
		if qualities != nil {
			c.Properties.RPCProtection = qualities
		}
	}
}

// dial is a bare IPC connection with a token, or of the superuser.
func (m *member) dial(t testing.TB, tok *token.Token) (*hrpc.Client, error) {
	t.Helper()
	config := hrpc.DialConfig{Protocol: clientprotocol.Name, User: m.config.Door.Daemon(), DialTimeout: time.Minute}
	if tok != nil {
		config.Token = func(string) (hrpc.Token, bool) {
			return hrpc.Token{Identifier: tok.Identifier, Password: tok.Password}, true
		}
	}
	c, err := hrpc.Dial(t.Context(), m.ipc, config)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func rpcAsk[R any, P interface {
	*R
	hrpc.Message
}](t testing.TB, c *hrpc.Client, method string, request hrpc.Message) (P, error) {
	answer := P(new(R))
	return answer, c.Call(t.Context(), clientprotocol.Name, method, request, answer)
}

// get gets a token over a connection.
func get(t testing.TB, c *hrpc.Client, renewer string) (*token.Token, error) {
	t.Helper()
	answer, err := rpcAsk[hadooppb.GetDelegationTokenResponseProto](t, c, "getDelegationToken", &hadooppb.GetDelegationTokenRequestProto{Renewer: &renewer})
	return &token.Token{Identifier: answer.GetToken().GetIdentifier(), Password: answer.GetToken().GetPassword(), Kind: answer.GetToken().GetKind()}, err
}

func protoOf(t *token.Token) *hadooppb.TokenProto {
	return &hadooppb.TokenProto{Identifier: t.Identifier, Password: t.Password, Kind: &t.Kind, Service: new("")}
}

func stat(t testing.TB, c *hrpc.Client) error {
	_, err := rpcAsk[hadooppb.GetFileInfoResponseProto](t, c, "getFileInfo", &hadooppb.GetFileInfoRequestProto{Src: new("/")})
	return err
}

func says(t testing.TB, what string, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want %q", what, err, words)
	}
}

// A token is got at home, shown from elsewhere, renewed by its renewer, and of no use once it was cancelled.
func TestLifeOfDelegationToken(t *testing.T) {
	var far atomic.Bool
	c := newCluster(t, 1, strangers(&far))
	m := c.leader()
	me := m.config.Door.Daemon()
	home := m.rpc(t)
	mine, err := get(t, home, me+"/host@REALM")
	if err != nil {
		t.Fatal(err)
	}
	id, err := token.ParseIdentifier(mine.Identifier)
	if err != nil || id.Owner != me || id.Renewer != me || id.MaxDate-id.Issued != (7*24*time.Hour).Milliseconds() || mine.Kind != token.Kind {
		t.Fatalf("%+v, %v", id, err)
	}
	far.Store(true)
	t.Run("a stranger without", func(t *testing.T) {
		bare, err := m.dial(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		says(t, "stat", stat(t, bare), "SIMPLE authentication is not enabled.  Available:[TOKEN]")
	})
	t.Run("a stranger with the token", func(t *testing.T) {
		client, err := dfs.New(dfs.Config{Namenodes: []string{m.ipc}, User: "mallory", Token: mine, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if client.User() != me {
			t.Errorf("the client acts as %s", client.User())
		}
		if err := client.Mkdirs(t.Context(), "/by-token", 0o755, false); err != nil {
			t.Fatal(err)
		}
		if st, err := client.Stat(t.Context(), "/by-token"); err != nil || st.Owner != me {
			t.Errorf("%v, %v", st, err)
		}
	})
	t.Run("a stranger with a forged token", func(t *testing.T) {
		forged := id
		forged.Owner = "root2"
		_, err := m.dial(t, &token.Token{Identifier: forged.Encode(), Password: mine.Password})
		says(t, "dial", err, "can't be found in cache")
		_, err = m.dial(t, &token.Token{Identifier: mine.Identifier, Password: []byte("guess")})
		says(t, "dial", err, "Mismatched response")
		_, err = m.dial(t, &token.Token{Identifier: []byte("none"), Password: mine.Password})
		says(t, "dial", err, "InvalidToken")
	})
	t.Run("a token by a token", func(t *testing.T) {
		by, err := m.dial(t, mine)
		if err != nil {
			t.Fatal(err)
		}
		_, err = get(t, by, "x")
		says(t, "get", err, "Delegation Token can be issued only with kerberos or web authentication")
		_, err = rpcAsk[hadooppb.RenewDelegationTokenResponseProto](t, by, "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: protoOf(mine)})
		says(t, "renew", err, "Delegation Token can be renewed only with")
	})
	far.Store(false)
	t.Run("its renewer", func(t *testing.T) {
		answer, err := rpcAsk[hadooppb.RenewDelegationTokenResponseProto](t, home, "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: protoOf(mine)})
		if err != nil || int64(answer.GetNewExpiryTime()) < id.Issued+(24*time.Hour).Milliseconds() {
			t.Errorf("%v, %v", answer, err)
		}
		other, err := get(t, home, "yarn")
		if err != nil {
			t.Fatal(err)
		}
		_, err = rpcAsk[hadooppb.RenewDelegationTokenResponseProto](t, home, "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: protoOf(other)})
		says(t, "who is not", err, "with non-matching renewer yarn")
		forged := &token.Token{Identifier: other.Identifier, Password: mine.Password}
		_, err = rpcAsk[hadooppb.CancelDelegationTokenResponseProto](t, home, "cancelDelegationToken", &hadooppb.CancelDelegationTokenRequestProto{Token: protoOf(forged)})
		says(t, "with another password", err, "password doesn't match")
	})
	t.Run("after it was cancelled", func(t *testing.T) {
		if _, err := rpcAsk[hadooppb.CancelDelegationTokenResponseProto](t, home, "cancelDelegationToken", &hadooppb.CancelDelegationTokenRequestProto{Token: protoOf(mine)}); err != nil {
			t.Fatal(err)
		}
		_, err := m.dial(t, mine)
		says(t, "dial", err, "InvalidToken")
		_, err = rpcAsk[hadooppb.CancelDelegationTokenResponseProto](t, home, "cancelDelegationToken", &hadooppb.CancelDelegationTokenRequestProto{Token: protoOf(mine)})
		says(t, "cancel", err, "Token not found")
	})
	t.Run("after it has expired", func(t *testing.T) {
		r := m.reign.Load()
		eventually(t, "nobody forgets tokens meanwhile", func() bool { return r.tending.CompareAndSwap(false, true) })
		defer r.tending.Store(false)
		m.config.Properties.TokenRenewInterval = -1000 // issued a moment ago, and over
		defer func() { m.config.Properties.TokenRenewInterval = 1000 }()
		_, err := get(t, home, "x")
		says(t, "get", err, "A delegation token from")
		m.config.Properties.TokenRenewInterval = 0
		var old *token.Token
		eventually(t, "a token that is good for no time", func() bool { // its end is set a moment before its beginning, which may be in the next millisecond
			old, err = get(t, home, me)
			return err == nil
		})
		issued, _ := token.ParseIdentifier(old.Identifier)
		eventually(t, "time passes", func() bool { return time.Now().UnixMilli() > issued.Issued })
		_, err = m.dial(t, old)
		says(t, "dial", err, "is expired, current time")
		m.config.Properties.TokenRenewInterval = 3600_000
		if _, err := rpcAsk[hadooppb.RenewDelegationTokenResponseProto](t, home, "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: protoOf(old)}); err != nil {
			t.Errorf("its renewer, as long as it was not forgotten: %v", err)
		}
		if _, err := m.dial(t, old); err != nil {
			t.Errorf("after it was renewed: %v", err)
		}
	})
	t.Run("limits", func(t *testing.T) {
		before := m.config.MaxTokensOfUser
		m.config.MaxTokensOfUser = 1
		defer func() { m.config.MaxTokensOfUser = before }()
		_, err := get(t, home, "x")
		says(t, "get", err, "cancel those that are not needed")
	})
}

func TestQualityThatIsTooLow(t *testing.T) {
	var far atomic.Bool
	c := newCluster(t, 1, strangers(&far, sasl.Privacy))
	m := c.leader()
	mine, err := get(t, m.rpc(t), "")
	if err != nil {
		t.Fatal(err)
	}
	far.Store(true)
	client, err := dfs.New(dfs.Config{Namenodes: []string{m.ipc}, Token: mine, Qualities: []sasl.Quality{sasl.Integrity}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Stat(t.Context(), "/")
	says(t, "integrity where privacy is asked for", err, "quality of protection refused")
	good, err := m.dial(t, mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := stat(t, good); err != nil {
		t.Errorf("privacy: %v", err)
	}
}

func TestDelegationTokenOverWebHDFS(t *testing.T) {
	var far atomic.Bool
	c := newCluster(t, 1, strangers(&far))
	m := c.leader()
	dn := c.datanode("dn1")
	me := m.config.Door.Daemon()
	send := func(method, path string, values url.Values) (int, string, http.Header) {
		t.Helper()
		scheme, transport := "http", &http.Transport{}
		if far.Load() {
			scheme, transport.TLSClientConfig = "https", &tls.Config{InsecureSkipVerify: true} //nolint:gosec // who the server is does not matter here
		}
		r, err := http.NewRequestWithContext(t.Context(), method, scheme+"://"+m.http+"/webhdfs/v1"+path+"?"+values.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Close = true // the next one may be from elsewhere
		answer, err := (&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body), answer.Header
	}
	code, text, _ := send("GET", "/", url.Values{"op": {"GETDELEGATIONTOKEN"}, "user.name": {me}, "renewer": {me}, "service": {"1.2.3.4:5"}})
	var got struct {
		Token struct {
			URLString string `json:"urlString"`
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, text, err)
	}
	tok, err := token.ParseText(got.Token.URLString)
	if err != nil || tok.Kind != token.WebKind || tok.Service != "1.2.3.4:5" {
		t.Fatalf("%v, %v", tok, err)
	}
	mine := got.Token.URLString
	other := tok
	other.Password = []byte("guess")
	far.Store(true)
	for _, x := range []struct {
		who          string
		method, path string
		values       url.Values
		code         int
		words        string
	}{
		{"a stranger without a name", "GET", "/", url.Values{"op": {"GETFILESTATUS"}}, 403, "has shown no certificate and no token: run `hops login`"},
		{"a stranger who claims a name", "GET", "/", url.Values{"op": {"GETFILESTATUS"}, "user.name": {me}}, 403, "has shown no certificate and no token: run `hops login`"},
		{"a stranger with the token", "PUT", "/d", url.Values{"op": {"MKDIRS"}, "delegation": {mine}}, 200, `{"boolean":true}`},
		{"a stranger with the token and another name", "GET", "/", url.Values{"op": {"GETHOMEDIRECTORY"}, "delegation": {mine}, "user.name": {"x"}, "doas": {"y"}}, 200, "/user/" + me},
		{"a stranger with a forged token", "GET", "/", url.Values{"op": {"GETFILESTATUS"}, "delegation": {other.Text()}}, 403, "InvalidToken"},
		{"a stranger with no token at all", "GET", "/", url.Values{"op": {"GETFILESTATUS"}, "delegation": {"%%%"}}, 403, "InvalidToken"},
		{"a token by a token", "GET", "/", url.Values{"op": {"GETDELEGATIONTOKEN"}, "delegation": {mine}}, 400, "delegation parameter is not null"},
		{"renewing by a token", "PUT", "/", url.Values{"op": {"RENEWDELEGATIONTOKEN"}, "token": {mine}, "delegation": {mine}}, 403, "can be renewed only with"},
	} {
		t.Run(x.who, func(t *testing.T) {
			if code, text, _ := send(x.method, x.path, x.values); code != x.code || !strings.Contains(text, x.words) {
				t.Errorf("%d %s, want %d %s", code, text, x.code, x.words)
			}
		})
	}
	t.Run("the token goes with the redirect", func(t *testing.T) {
		_ = dn
		code, text, header := send("PUT", "/f", url.Values{"op": {"CREATE"}, "delegation": {mine}})
		if to, err := url.Parse(header.Get("Location")); err != nil || code != 307 || to.Query().Get("delegation") != mine || to.Query().Has("user.name") {
			t.Errorf("%d %s, %s", code, text, header.Get("Location"))
		}
	})
	far.Store(false)
	if code, text, _ := send("PUT", "/", url.Values{"op": {"RENEWDELEGATIONTOKEN"}, "token": {mine}, "user.name": {me}}); code != 200 || !strings.Contains(text, `{"long":`) {
		t.Errorf("renew: %d %s", code, text)
	}
	if code, text, _ := send("GET", "/", url.Values{"op": {"GETDELEGATIONTOKEN"}}); code != 403 || !strings.Contains(text, "without user.name") {
		t.Errorf("nobody gets a token: %d %s", code, text)
	}
	if code, text, _ := send("PUT", "/", url.Values{"op": {"CANCELDELEGATIONTOKEN"}, "token": {mine}, "user.name": {me}}); code != 200 || text != "" {
		t.Errorf("cancel: %d %s", code, text)
	}
	if code, text, _ := send("GET", "/", url.Values{"op": {"GETFILESTATUS"}, "delegation": {mine}}); code != 403 || !strings.Contains(text, "InvalidToken") {
		t.Errorf("after it was cancelled: %d %s", code, text)
	}
}

// What has expired is forgotten, and the key is rolled, by whoever leads.
func TestTokensAreTended(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.Properties.TokenKeyInterval, c.Properties.TokenMaxLifetime = 1000, 1 })
	m := c.leader()
	if _, err := get(t, m.rpc(t), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token is forgotten and a key rolled", func() bool {
		f := m.ns.TokenFigures(metadata.Time(0))
		return f.Count == 0 && f.NewestKey > 1
	})
}
