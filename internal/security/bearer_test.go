package security

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// issued makes tokens, and the verifier that takes them.
func issued(t testing.TB) (sign func(func(*usertoken.Claims)) string, v *usertoken.Verifier) {
	t.Helper()
	key := usertoken.NewKey()
	document, err := json.Marshal(usertoken.Trusted{Cluster: "CID-a", Keys: []usertoken.PublicKey{key.Public()}, Revoked: map[string]int64{"gone": 0}})
	if err != nil {
		t.Fatal(err)
	}
	v = usertoken.NewVerifier(func() time.Time { return noon })
	if err := v.Believe(document); err != nil {
		t.Fatal(err)
	}
	return func(change func(*usertoken.Claims)) string {
		c := usertoken.Claims{Cluster: "CID-a", User: "ann", ID: "id1", Issued: noon.Add(-time.Hour), Expires: noon.Add(time.Hour)}
		if change != nil {
			change(&c)
		}
		token, err := key.Sign(c)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}, v
}

func TestBearerTokens(t *testing.T) {
	sign, v := issued(t)
	_, other := issued(t)
	stranger, _ := issued(t)
	door := NewDoor(Config{
		Users:      v,
		Supergroup: "admins",
		Groups: func(user string) []string {
			return map[string][]string{"ann": {"staff"}, "boss": {"admins"}, "bob": {"staff"}}[user]
		},
		ProxyUsers: map[string]ProxyRule{"hue": {Users: []string{"bob"}, Hosts: []string{"*"}}},
		Owner:      func(ConnAddrs) (uint32, error) { return 4711, nil },
	})
	none := NewDoor(Config{Owner: func(ConnAddrs) (uint32, error) { return 4711, nil }})
	foreign := NewDoor(Config{Users: other})
	good := sign(nil)
	as := func(user string, groups ...string) string {
		return sign(func(c *usertoken.Claims) { c.User, c.Groups = user, groups })
	}
	const away, near = "192.0.2.7:4000", "127.0.0.1:4000"
	for _, c := range []struct {
		name   string
		door   *Door
		from   string
		tls    bool
		header []string
		query  string
		want   metadata.Caller
		refuse string
	}{
		{name: "a token over TLS", from: away, tls: true, header: []string{"Bearer " + good}, want: metadata.Caller{User: "ann", Groups: []string{"staff"}, Host: "192.0.2.7"}},
		{name: "the scheme in small letters", from: away, tls: true, header: []string{"bearer " + good}, want: metadata.Caller{User: "ann", Groups: []string{"staff"}, Host: "192.0.2.7"}},
		{name: "a token in plain on loopback, by somebody else's process", from: near, header: []string{"Bearer " + good}, want: metadata.Caller{User: "ann", Groups: []string{"staff"}, Host: "127.0.0.1"}},
		{name: "with the user's own name", from: away, tls: true, header: []string{"Bearer " + good}, query: "user.name=ann", want: metadata.Caller{User: "ann", Groups: []string{"staff"}, Host: "192.0.2.7"}},
		{name: "groups of the token", from: away, tls: true, header: []string{"Bearer " + as("zoe", "gpu")}, want: metadata.Caller{User: "zoe", Groups: []string{"gpu"}, Host: "192.0.2.7"}},
		{name: "the supergroup among the token's", from: away, tls: true, header: []string{"Bearer " + as("zoe", "admins")}, want: metadata.Caller{User: "zoe", Groups: []string{"admins"}, Superuser: true, Host: "192.0.2.7"}},
		{name: "a token whose groups leave out the supergroup that its user has", from: away, tls: true, header: []string{"Bearer " + as("boss", "staff")}, want: metadata.Caller{User: "boss", Groups: []string{"staff"}, Host: "192.0.2.7"}},
		{name: "a token that says that its user has no groups", from: away, tls: true, header: []string{"Bearer " + sign(func(c *usertoken.Claims) { c.User, c.Groups = "boss", []string{} })}, want: metadata.Caller{User: "boss", Host: "192.0.2.7"}},
		{name: "a proxy user's for whom it may act", from: away, tls: true, header: []string{"Bearer " + as("hue")}, query: "doas=bob", want: metadata.Caller{User: "bob", RealUser: "hue", Groups: []string{"staff"}, Host: "192.0.2.7"}},

		{name: "a token in plain from elsewhere", from: away, header: []string{"Bearer " + good}, refuse: "came in plain from 192.0.2.7, where others can read it: it must be taken for lost"},
		{name: "an expired token", from: away, tls: true, header: []string{"Bearer " + sign(func(c *usertoken.Claims) { c.Expires = noon.Add(-time.Minute) })}, refuse: "expired at 2026-03-01 11:59:00Z"},
		{name: "a revoked token", from: away, tls: true, header: []string{"Bearer " + sign(func(c *usertoken.Claims) { c.ID = "gone" })}, refuse: "token gone of ann was revoked"},
		{name: "a token of the future", from: away, tls: true, header: []string{"Bearer " + sign(func(c *usertoken.Claims) { c.Issued = noon.Add(10 * time.Minute) })}, refuse: "set the clocks"},
		{name: "a forged token", from: away, tls: true, header: []string{"Bearer " + stranger(nil)}, refuse: "it is forged"},
		{name: "a token of another cluster", from: away, tls: true, header: []string{"Bearer " + stranger(func(c *usertoken.Claims) { c.Cluster = "CID-b" })}, refuse: `it says that it is of cluster "CID-b"`},
		{name: "a token where other keys count", door: foreign, from: away, tls: true, header: []string{"Bearer " + good}, refuse: "it is forged"},
		{name: "a token with alg none", from: away, tls: true, header: []string{"Bearer eyJhbGciOiJub25lIn0.e30."}, refuse: `algorithm "none"`},
		{name: "half a token", from: away, tls: true, header: []string{"Bearer " + good[:40]}, refuse: "perhaps it was cut off"},
		{name: "no token after the scheme", from: near, header: []string{"Bearer"}, refuse: "perhaps it was cut off"},
		{name: "a bad token in spite of a good socket", from: near, header: []string{"Bearer x"}, query: "user.name=uid", refuse: "perhaps it was cut off"},
		{name: "two headers", from: near, header: []string{"Bearer " + good, "Bearer " + as("boss")}, refuse: "Authorization more than once"},
		{name: "a token and another proof", from: near, header: []string{"Basic x", "Bearer " + good}, refuse: "Authorization more than once"},
		{name: "where none are taken", door: none, from: near, header: []string{"Bearer " + good}, refuse: "takes no user tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.door
			if d == nil {
				d = door
			}
			var got metadata.Caller
			reached := false
			handler := d.bearers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var err error
				if got, err = d.HTTPCaller(r); err != nil {
					t.Error(err)
				}
				if reached = true; d.ProvedBy(r) != "token" {
					t.Errorf("proved by %s", d.ProvedBy(r))
				}
			}), nil)
			r := httptest.NewRequest("GET", "/webhdfs/v1/?"+c.query, nil)
			r.RemoteAddr, r.Header["Authorization"] = c.from, c.header
			if c.tls {
				r.TLS = &tls.ConnectionState{}
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if c.refuse == "" {
				if !reached || got.User != c.want.User || got.RealUser != c.want.RealUser || got.Superuser != c.want.Superuser || got.Host != c.want.Host || !slices.Equal(got.Groups, c.want.Groups) {
					t.Fatalf("%+v, want %+v; %d %s", got, c.want, w.Code, w.Body)
				}
				return
			}
			var body struct {
				Detail          string
				RemoteException struct{ Message string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
				t.Fatal(err)
			}
			if reached || w.Code != http.StatusUnauthorized || !strings.Contains(body.Detail, c.refuse) || body.RemoteException.Message != body.Detail {
				t.Fatalf("%d %s, reached %v; want 401 with %q", w.Code, w.Body, reached, c.refuse)
			}
			if h := w.Header().Get("WWW-Authenticate"); !strings.HasPrefix(h, `Bearer error="invalid_token", error_description="`) || strings.Count(h, `"`) != 4 {
				t.Errorf("WWW-Authenticate: %s", h)
			}
			if strings.Contains(w.Body.String(), good[len(good)-20:]) {
				t.Error("the answer repeats the token")
			}
			if _, err := d.HTTPCaller(r); err == nil { // also behind no guard
				t.Error("HTTPCaller takes it")
			}
		})
	}
}

func TestNamesBesideAToken(t *testing.T) {
	sign, v := issued(t)
	door := NewDoor(Config{Users: v, Groups: func(string) []string { return nil }})
	for _, c := range []struct{ name, query, want string }{
		{"another name", "user.name=root", "the token is of user ann, and user.name says"},
		{"the daemon's name", "user.name=" + door.Daemon(), "the token is of user ann, and user.name says"},
		{"dr.who", "user.name=dr.who", "the token is of user ann, and user.name says"},
		{"on behalf of another, without a rule", "doas=bob", "User: ann is not allowed to impersonate bob"},
		{"on behalf of the daemon's user", "doas=" + door.Daemon(), "User: ann is not allowed to impersonate"},
		{"two names", "user.name=ann&USER.NAME=bob", "more than once"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/?"+c.query, nil)
			r.RemoteAddr = "127.0.0.1:4000"
			r.Header.Set("Authorization", "Bearer "+sign(nil))
			if _, err := door.HTTPCaller(r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
		})
	}
}

// A door that serves checks tokens before its handler, also where nobody asks who it is.
func TestServedDoorsCheckTokens(t *testing.T) {
	sign, v := issued(t)
	door := NewDoor(Config{Users: v})
	l := listenLoopback(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- door.ServeHTTP(ctx, l, HTTP{Doorway: Doorway{Name: "test"}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for token, want := range map[string]int{sign(nil): 200, "nonsense": 401} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+l.Addr().String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%d, want %d", answer.StatusCode, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A lookup that is under way when groups are forgotten brings what was true before.
func TestGroupsThatAreForgottenDuringALookup(t *testing.T) {
	asked, answer := make(chan bool), make(chan []string)
	door := NewDoor(Config{Supergroup: "admins", Groups: func(string) []string { asked <- true; return <-answer }})
	got := make(chan []string)
	ask := func() { got <- door.groupsOf("bob") }
	go ask()
	<-asked
	door.ForgetGroups()
	answer <- []string{"admins"}
	<-got
	go ask()
	<-asked
	answer <- nil
	if names := <-got; len(names) != 0 {
		t.Errorf("bob is still of %v", names)
	}
}

func TestSealsOfDifferentThingsHaveDifferentNonces(t *testing.T) {
	var s Secret
	s.key = []byte("a key of some bytes, as it is in")
	one, two := s.SealAlike("p", "app_1000", []byte("0hello")), s.SealAlike("p", "app_10000", []byte("hello"))
	if bytes.Equal(one[:sealNonce], two[:sealNonce]) {
		t.Error("the same nonce for two things")
	}
}

func TestGroupsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.yaml")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("ann: [staff, gpu]\nroot: []\n", noon)
	log, text := logger()
	groups, err := GroupsFile(path, log)
	if err != nil {
		t.Fatal(err)
	}
	if got := groups("ann"); !slices.Equal(got, []string{"staff", "gpu"}) {
		t.Errorf("ann has %q", got)
	}
	if got := groups("root"); len(got) != 0 {
		t.Errorf("root has %q, the file says none", got)
	}
	if got := groups("nobody-of-that-name"); len(got) != 0 {
		t.Errorf("who is nowhere has %q", got)
	}
	write("ann: [staff]\n", noon.Add(time.Second))
	if got := groups("ann"); !slices.Equal(got, []string{"staff"}) {
		t.Errorf("after a change ann has %q", got)
	}
	if got := groups("root"); !slices.Equal(got, systemGroups("root")) {
		t.Errorf("root has %q, want what the system says", got)
	}
	write("ann: [st", noon.Add(2*time.Second))
	if got := groups("ann"); !slices.Equal(got, []string{"staff"}) || !strings.Contains(text(), "users.groups_file") {
		t.Errorf("with half a file ann has %q; logged: %s", got, text())
	}
	for bad, want := range map[string]string{"ann: [a/b]": "is no name", "[]": "groups.yaml", "ann: staff": "groups.yaml"} {
		write(bad, noon.Add(3*time.Second))
		if _, err := GroupsFile(path, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
	if _, err := GroupsFile(path+"x", log); err == nil {
		t.Error("a file that is not there")
	}
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// logger logs into a text.
func logger() (*slog.Logger, func() string) {
	var text strings.Builder
	return slog.New(slog.NewTextHandler(&text, nil)), text.String
}
