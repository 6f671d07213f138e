package server

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/internal/security/usertoken"
)

// users gives each namenode a door that takes tokens.
func users(c *Config) {
	c.Door = security.NewDoor(security.Config{
		Supergroup: "supergroup", Users: usertoken.NewVerifier(time.Now),
		Groups:     func(user string) []string { return map[string][]string{"boss": {"supergroup"}}[user] },
		ProxyUsers: map[string]security.ProxyRule{"hue": {Users: []string{"*"}, Hosts: []string{"*"}}},
	})
	for _, m := range c.Members {
		c.Servers.Namenodes = append(c.Servers.Namenodes, config.NamenodeMember{ID: m.ID, IPC: c.IPC.Addr().String(), HTTP: c.HTTP.Addr().String(), GRPC: c.GRPC.Addr().String(), Raft: m.Address})
	}
	c.Servers.ResourceManagers = []config.ManagerMember{{ID: "rm1", HTTP: "127.0.0.1:8088"}}
}

// ask sends a request, with a token if it is not empty, and reads the answer into a value or says what was refused.
func (m *member) ask(t *testing.T, method, path, token, body string, into any) (status int, why string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.http+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		var problem struct {
			Detail          string
			RemoteException struct{ Message string }
		}
		_ = json.Unmarshal(text, &problem)
		if problem.Detail == "" {
			problem.Detail = problem.RemoteException.Message
		}
		return answer.StatusCode, problem.Detail
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return answer.StatusCode, ""
}

type who struct {
	User      string
	Groups    []string
	Superuser bool
	ProvedBy  string `json:"proved_by"`
	Token     string
}

func TestUserTokensAtTheNamenode(t *testing.T) {
	nn := newCluster(t, 1, users).nodes[0]
	super := nn.config.Door.Daemon()
	get := func(as, body string) *login.File {
		t.Helper()
		f := &login.File{}
		if status, why := nn.ask(t, "POST", "/api/v1/user-tokens?user.name="+as, "", body, f); status != 200 {
			t.Fatalf("%d %s", status, why)
		}
		return f
	}
	ann := get("ann", "")
	if _, err := ann.Marshal(); err != nil || ann.User != "ann" || len(ann.Namenodes) != 1 || ann.ResourceManagers[0] != "127.0.0.1:8088" || time.Until(ann.Expires) > 12*time.Hour {
		t.Fatalf("%+v, %v", ann, err)
	}
	zoe := get(super, `{"user": "zoe", "groups": ["gpu"], "life": "720h"}`)
	root := get(super, `{"user": "boss"}`)

	var me who
	if nn.ask(t, "GET", "/api/v1/whoami", zoe.Token, "", &me); me.User != "zoe" || len(me.Groups) != 1 || me.Groups[0] != "gpu" || me.ProvedBy != "token" || me.Token != zoe.ID {
		t.Errorf("zoe is %+v", me)
	}
	if nn.ask(t, "GET", "/api/v1/whoami", root.Token, "", &me); me.User != "boss" || !me.Superuser {
		t.Errorf("boss is %+v", me)
	}
	if nn.ask(t, "GET", "/api/v1/whoami", "", "", &me); me.User != security.DrWho || me.ProvedBy != "nothing" {
		t.Errorf("nobody is %+v", me)
	}
	// The files are the user's.
	if status, why := nn.ask(t, "PUT", "/webhdfs/v1/zoes?op=MKDIRS", zoe.Token, "", nil); status != 403 || !strings.Contains(why, "user=zoe") {
		t.Errorf("zoe writes into /: %d %s", status, why)
	}
	if status, why := nn.ask(t, "PUT", "/webhdfs/v1/bosses?op=MKDIRS", root.Token, "", nil); status != 200 {
		t.Errorf("a superuser writes into /: %d %s", status, why)
	}

	for _, c := range []struct {
		name, method, path, token, body string
		status                          int
		want                            string
	}{
		{"a token for somebody else", "POST", "/api/v1/user-tokens?user.name=ann", "", `{"user": "bob"}`, 403, "gets a token for nobody else"},
		{"a token for the servers' user", "POST", "/api/v1/user-tokens?user.name=ann", "", `{"user": "` + super + `"}`, 403, "gets a token for nobody else"},
		{"groups of one's own choice", "POST", "/api/v1/user-tokens?user.name=ann", "", `{"groups": ["supergroup"]}`, 403, "does not say which groups"},
		{"a token by a token", "POST", "/api/v1/user-tokens", ann.Token, "", 403, "a token gets no other token"},
		{"a superuser's token by a token", "POST", "/api/v1/user-tokens", root.Token, "", 403, "a token gets no other token"},
		{"a token for who is acted for", "POST", "/api/v1/user-tokens?user.name=hue&doas=ann", "", "", 403, "hue acts for ann"},
		{"a token by nobody", "POST", "/api/v1/user-tokens", "", "", 403, "without user.name"},
		{"a token for nobody", "POST", "/api/v1/user-tokens?user.name=" + super, "", `{"user": "dr.who"}`, 400, "is nobody"},
		{"a token for a year", "POST", "/api/v1/user-tokens?user.name=ann", "", `{"life": "8760h"}`, 400, "not for 8760h"},
		{"a life that is none", "POST", "/api/v1/user-tokens?user.name=ann", "", `{"life": "soon"}`, 400, "is no time such as 12h"},
		{"a name with a slash", "POST", "/api/v1/user-tokens?user.name=" + super, "", `{"user": "a/b"}`, 400, "is no name"},
		{"no JSON", "POST", "/api/v1/user-tokens?user.name=ann", "", "hello", 400, "is not the JSON"},
		{"70 KiB", "POST", "/api/v1/user-tokens?user.name=ann", "", strings.Repeat("x", 70<<10), 400, "too large"},
		{"another's token revoked", "DELETE", "/api/v1/user-tokens/" + zoe.ID + "?user.name=ann", "", "", 403, "revokes nobody else's token"},
		{"an unknown token revoked", "DELETE", "/api/v1/user-tokens/nonsense?user.name=" + super, "", "", 404, "there is no user token nonsense"},
		{"a list by nobody", "GET", "/api/v1/user-tokens", "", "", 403, "without user.name"},
		{"a login without an identity provider", "POST", "/api/v1/login", "", "{}", 501, "no identity provider"},
		{"a token beside another name", "GET", "/webhdfs/v1/?op=LISTSTATUS&user.name=" + super, ann.Token, "", 403, "the token is of user ann"},
		{"a token that is none", "GET", "/health", "nonsense", "", 401, "perhaps it was cut off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, why := nn.ask(t, c.method, c.path, c.token, c.body, nil); status != c.status || !strings.Contains(why, c.want) {
				t.Errorf("%d %s; want %d %s", status, why, c.status, c.want)
			}
		})
	}

	var list struct {
		Tokens []struct{ ID, User, Token string }
	}
	if nn.ask(t, "GET", "/api/v1/user-tokens", ann.Token, "", &list); len(list.Tokens) != 1 || list.Tokens[0].ID != ann.ID || list.Tokens[0].Token != "" {
		t.Errorf("ann's tokens: %+v", list)
	}
	if nn.ask(t, "GET", "/api/v1/user-tokens", root.Token, "", &list); len(list.Tokens) != 3 {
		t.Errorf("all tokens: %+v", list)
	}
	if status, why := nn.ask(t, "DELETE", "/api/v1/user-tokens/"+ann.ID, ann.Token, "", nil); status != 200 {
		t.Errorf("ann gives up her token: %d %s", status, why)
	}
	if status, why := nn.ask(t, "GET", "/api/v1/whoami", ann.Token, "", nil); status != 401 || !strings.Contains(why, "was revoked") {
		t.Errorf("the token that was given up: %d %s", status, why)
	}
}

// Every namenode checks tokens by its own copy, also one that follows; the one that leads issues them.
func TestUserTokensAtAGroupOfNamenodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, users)
	lead := c.leader()
	f := &login.File{}
	if status, why := lead.ask(t, "POST", "/api/v1/user-tokens?user.name=ann", "", "", f); status != 200 {
		t.Fatalf("%d %s", status, why)
	}
	for _, m := range c.nodes {
		// A follower hears of it soon.
		for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
			var me who
			status, why := m.ask(t, "GET", "/api/v1/whoami", f.Token, "", &me)
			if status == 200 && me.User == "ann" {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("%s: %d %s", m.config.ID, status, why)
			}
		}
		if m == lead {
			continue
		}
		if status, why := m.ask(t, "POST", "/api/v1/user-tokens?user.name=ann", "", "", nil); status != http.StatusMisdirectedRequest {
			t.Errorf("a follower issues: %d %s", status, why)
		}
	}
	if status, why := lead.ask(t, "DELETE", "/api/v1/user-tokens/"+f.ID+"?user.name=ann", "", "", nil); status != 200 {
		t.Fatalf("%d %s", status, why)
	}
	for _, m := range c.nodes {
		for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
			if status, why := m.ask(t, "GET", "/api/v1/whoami", f.Token, "", nil); status == 401 && strings.Contains(why, "was revoked") {
				break
			} else if time.Now().After(until) {
				t.Fatalf("%s takes the token that was revoked: %d %s", m.config.ID, status, why)
			}
		}
	}
}

func TestLoginWithAnIdentityProvider(t *testing.T) {
	p, other := securitytest.NewProvider(t), securitytest.NewProvider(t)
	nn := newCluster(t, 1, func(c *Config) {
		users(c)
		c.OIDC = &config.OIDC{Issuer: p.URL, ClientID: p.ClientID, UserClaim: "preferred_username", GroupsClaim: "groups"}
	}).nodes[0]
	var about struct {
		Issuer   string
		ClientID string `json:"client_id"`
	}
	if status, why := nn.ask(t, "GET", "/api/v1/login", "", "", &about); status != 200 || about.Issuer != p.URL || about.ClientID != "hops" {
		t.Fatalf("%d %s %+v", status, why, about)
	}
	exchange := func(token string, into any) (int, string) {
		t.Helper()
		body, err := json.Marshal(map[string]string{"id_token": token})
		if err != nil {
			t.Fatal(err)
		}
		return nn.ask(t, "POST", "/api/v1/login", "", string(body), into)
	}
	f, me := &login.File{}, who{}
	if status, why := exchange(p.Sign(map[string]any{"preferred_username": "ann", "groups": []string{"staff", "gpu"}}), f); status != 200 {
		t.Fatalf("%d %s", status, why)
	}
	if nn.ask(t, "GET", "/api/v1/whoami", f.Token, "", &me); me.User != "ann" || strings.Join(me.Groups, " ") != "staff gpu" || me.Superuser {
		t.Fatalf("%+v", me)
	}
	// Who has no groups there has none here, whatever the system says.
	if status, why := exchange(p.Sign(map[string]any{"preferred_username": "boss"}), f); status != 200 {
		t.Fatalf("%d %s", status, why)
	}
	if nn.ask(t, "GET", "/api/v1/whoami", f.Token, "", &me); me.User != "boss" || len(me.Groups) != 0 || me.Superuser {
		t.Fatalf("%+v", me)
	}
	for _, c := range []struct {
		name   string
		signer *securitytest.Provider
		claims map[string]any
		token  string
		want   string
	}{
		{name: "of another provider", signer: other, claims: map[string]any{"preferred_username": "ann"}, want: "failed to verify"},
		{name: "signed by another provider in this one's name", signer: other, claims: map[string]any{"iss": p.URL, "preferred_username": "ann"}, want: "failed to verify"},
		{name: "for another program", claims: map[string]any{"aud": "mail", "preferred_username": "ann"}, want: `expected audience "hops"`},
		{name: "expired", claims: map[string]any{"exp": 1000, "preferred_username": "ann"}, want: "it expired at 1970-01-01"},
		{name: "without a user", claims: map[string]any{"preferred_username": nil}, want: `has no claim "preferred_username"`},
		{name: "root", claims: map[string]any{"preferred_username": "root"}, want: "nobody logs in under that name"},
		{name: "the servers' user", claims: map[string]any{"preferred_username": nn.config.Door.Daemon()}, want: "nobody logs in under that name"},
		{name: "an address of mail", claims: map[string]any{"preferred_username": "root@example.com"}, want: "is no name"},
		{name: "groups that are none", claims: map[string]any{"preferred_username": "ann", "groups": "staff"}, want: "is not a list"},
		{name: "groups with a path", claims: map[string]any{"preferred_username": "ann", "groups": []string{"/staff"}}, want: "is no name"},
		{name: "nothing", token: "x", want: "refused"},
		{name: "a user's token of ours", token: f.Token, want: "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			token := c.token
			if token == "" {
				signer := c.signer
				if signer == nil {
					signer = p
				}
				token = signer.Sign(c.claims)
			}
			if status, why := exchange(token, nil); status != 401 || !strings.Contains(why, c.want) {
				t.Errorf("%d %s; want 401 %s", status, why, c.want)
			}
		})
	}
}

func TestAnIdentityProviderThatIsDown(t *testing.T) {
	nn := newCluster(t, 1, func(c *Config) {
		users(c)
		c.OIDC = &config.OIDC{Issuer: "http://127.0.0.1:1", ClientID: "hops", UserClaim: "sub"}
	}).nodes[0]
	if status, why := nn.ask(t, "POST", "/api/v1/login", "", `{"id_token": "x"}`, nil); status != 502 || !strings.Contains(why, "the identity provider http://127.0.0.1:1 does not describe itself") {
		t.Errorf("%d %s", status, why)
	}
}

// A user on another machine needs one file, and is nobody else with it.
func TestAUserElsewhereWithALogin(t *testing.T) {
	var away atomic.Bool // the namenode takes this machine for another one
	nn := newCluster(t, 1, func(c *Config) {
		users(c)
		verifier := c.Door.Users()
		c.Door = security.NewDoor(security.Config{
			Supergroup: "supergroup", Users: verifier, Member: c.Credentials.Member, Groups: func(string) []string { return nil },
			Here: func(remote, local netip.Addr) bool { return !away.Load() && security.Here(remote, local) },
		})
	}).nodes[0]
	file := &login.File{}
	if status, why := nn.ask(t, "POST", "/api/v1/user-tokens?user.name=ann", "", "", file); status != 200 {
		t.Fatalf("%d %s", status, why)
	}
	if status, why := nn.ask(t, "PUT", "/webhdfs/v1/user/ann?op=MKDIRS&user.name="+nn.config.Door.Daemon(), "", "", nil); status != 200 {
		t.Fatal(status, why)
	}
	if status, why := nn.ask(t, "PUT", "/webhdfs/v1/user/ann?op=SETOWNER&owner=ann&user.name="+nn.config.Door.Daemon(), "", "", nil); status != 200 {
		t.Fatal(status, why)
	}
	away.Store(true)
	path := filepath.Join(t.TempDir(), "login")
	if err := file.Write(path); err != nil {
		t.Fatal(err)
	}
	file, err := login.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(f *login.File, token, user string) *dfs.Client {
		t.Helper()
		c, err := dfs.New(dfs.Config{
			Namenodes: []string{nn.ipc}, User: user, Bearer: func() string { return token }, Logger: slog.New(slog.DiscardHandler),
			Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
				return f.Dial(ctx, addr, authority.Role(role))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ann := dial(file, file.Token, "ann")
	if err := ann.Mkdirs(t.Context(), "/user/ann/data", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if s, err := ann.Stat(t.Context(), "/user/ann/data"); err != nil || s.Owner != "ann" {
		t.Fatalf("%+v, %v", s, err)
	}
	other, _, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	foreign := *file
	foreign.Authorities = string(authority.MarshalRoots(other.Member.Roots()))
	if _, err := foreign.Marshal(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		c    *dfs.Client
		want string
	}{
		{"without a token", dial(file, "", "ann"), "SIMPLE authentication is not enabled"},
		{"half a token", dial(file, file.Token[:60], "ann"), "perhaps it was cut off"},
		{"as somebody else", dial(file, file.Token, "bob"), "User: ann is not allowed to impersonate bob"},
		{"to a cluster that has another authority", dial(&foreign, file.Token, "ann"), "not of this cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := c.c.Stat(t.Context(), "/"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
	web := &http.Client{Transport: file.Transport(authority.Namenode, 0)}
	defer web.CloseIdleConnections()
	for url, want := range map[string]int{
		"https://" + nn.http + "/api/v1/whoami":                             200,
		"https://" + nn.http + "/webhdfs/v1/user/ann/more?op=MKDIRS":        200,
		"https://" + nn.http + "/webhdfs/v1/user/bob?op=MKDIRS":             403,
		"https://" + nn.http + "/api/v1/user-tokens?user.name=ann&doas=bob": 401,
	} {
		method := "GET"
		if strings.Contains(url, "MKDIRS") {
			method = "PUT"
		}
		r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", url, answer.StatusCode, text, want)
		}
	}
	// In plain from elsewhere it is lost.
	if status, why := nn.ask(t, "GET", "/api/v1/whoami", file.Token, "", nil); status != 401 || !strings.Contains(why, "must be taken for lost") {
		t.Errorf("in plain: %d %s", status, why)
	}
	// Once it is revoked, connections that are open end, and others do not come.
	r, err := http.NewRequestWithContext(t.Context(), "DELETE", "https://"+nn.http+"/api/v1/user-tokens/"+file.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if _, err := ann.Stat(t.Context(), "/"); err == nil || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("after it was revoked: %v", err)
	}
}

// A server may speak for users while it is a member, but gets no token that would outlive that.
func TestServersGetNoUserTokens(t *testing.T) {
	var root *authority.Authority
	nn := newCluster(t, 1, func(c *Config) {
		users(c)
		own, a, err := securitytest.Make(security.NewSecret())
		if err != nil {
			t.Fatal(err)
		}
		root = a
		c.Door = security.NewDoor(security.Config{Users: c.Door.Users(), Member: own.Member, Here: func(netip.Addr, netip.Addr) bool { return false }})
	}).nodes[0]
	for _, c := range []struct {
		role   authority.Role
		status int
		says   string
	}{
		{authority.Datanode, 401, "may not act as"},
		{authority.NodeManager, 401, "may not act as"},
		{authority.ResourceManager, 403, "gets no user token"},
		{authority.Namenode, 200, "token"},
	} {
		t.Run(string(c.role), func(t *testing.T) {
			from, err := securitytest.Join(root, security.NewSecret(), c.role)
			if err != nil {
				t.Fatal(err)
			}
			transport := (&security.Dialer{Member: from.Member, Here: func(netip.Addr, netip.Addr) bool { return false }}).Transport(authority.Namenode)
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+nn.http+"/api/v1/user-tokens?user.name="+nn.config.Door.Daemon(), strings.NewReader(`{"user": "ann"}`))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := (&http.Client{Transport: transport}).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != c.status || !strings.Contains(string(text), c.says) {
				t.Errorf("%d %s, want %d", answer.StatusCode, text, c.status)
			}
		})
	}
}
