package login

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// example is a login of a cluster of its own.
func example(t testing.TB) (*File, *authority.Authority) {
	t.Helper()
	_, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	return &File{
		Cluster: a.Cluster(), Authorities: string(authority.MarshalRoots([]*x509.Certificate{a.Root()})), Namenodes: []Namenode{{"nn1:9870", "nn1:8020"}},
		ResourceManagers: []string{"[2001:db8::1]:8088"}, User: "ann", ID: "id1", Token: "a.b.c", Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	}, a
}

func TestALoginIsWrittenAndRead(t *testing.T) {
	f, _ := example(t)
	path := filepath.Join(t.TempDir(), "home", ".hops", "login")
	for range 2 { // the second one replaces the first
		if err := f.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	folder, err2 := os.Stat(filepath.Dir(path))
	if err := errors.Join(err, err2); err != nil || info.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
		t.Fatalf("modes %v %v, %v", info.Mode(), folder.Mode(), err)
	}
	if rest, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(rest) != 0 {
		t.Errorf("left over: %q", rest)
	}
	got, err := Load(path)
	if err != nil || got.Token != f.Token || got.Namenodes[0] != f.Namenodes[0] || !got.Expires.Equal(f.Expires) || got.User != "ann" {
		t.Fatalf("%+v, %v", got, err)
	}
	if got.Expired(time.Now()) != nil || got.Expired(time.Now().Add(2*time.Hour)) == nil {
		t.Error("expired at another time")
	}
	t.Setenv(Variable, path)
	if p, err := Path(); p != path || err != nil {
		t.Errorf("%s, %v", p, err)
	}
	if _, err := Load(path + "x"); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v", err)
	}
}

func TestLoginsThatAreRefused(t *testing.T) {
	f, _ := example(t)
	stranger, err := authority.New("CID-other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	good, err := f.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("%s is not in %s", old, good)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "cut off"},
		{"half of it", string(good[:len(good)/2]), "cut off"},
		{"without its last bracket", string(good[:len(good)-3]), "cut off"},
		{"twice", string(good) + string(good), "something follows its end"},
		{"another version", replace(`"version": 1`, `"version": 2`), "this program reads version 1"},
		{"no certificate", replace("BEGIN CERT", "BEGIN DIRT"), "the certificates of the cluster's authorities"},
		{"another cluster's certificate", replace(`"cluster": "CID-test"`, `"cluster": "`+stranger.Cluster()+`"`), "its certificates are of CID-test"},
		{"no port", replace("nn1:9870", "nn1"), "is not host:port"},
		{"no namenode", replace(`"namenodes"`, `"names"`), "there is at least one namenode"},
		{"a token with the end of a line", replace("a.b.c", `a.b\r\nX: y`), "characters that no token has"},
		{"hadoop's", "<configuration/>", "it is not a login"},
		{"300 KiB", strings.Repeat(" ", 300<<10), "are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Parse([]byte(c.text)); got != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%+v, %v; want %q", got, err, c.want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "login")
	write := func(mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, good, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660} {
		write(mode)
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "others could read the token: chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	write(0o600)
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 4711, 4711); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "belongs to the user with the id 4711") {
			t.Errorf("another owner: %v", err)
		}
	}
	if _, err := Load(filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a folder: %v", err)
	}
}

// server answers requests by TLS as a machine of the cluster with the roles, and tells what it was shown.
func server(t *testing.T, a *authority.Authority, roles ...authority.Role) (addr string, seen chan string) {
	t.Helper()
	c, err := securitytest.Join(a, security.NewSecret(), roles...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen = make(chan string, 16)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://"+r.Host+"/", http.StatusTemporaryRedirect)
		}
	})}
	go s.Serve(&securing{l, c.Member})
	t.Cleanup(func() { s.Close() })
	return l.Addr().String(), seen
}

// securing runs the handshake of accepted connections.
type securing struct {
	net.Listener
	member *authority.Member
}

func (l *securing) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if t, err := l.member.Accept(context.Background(), c, authority.Door{Strangers: true}); err == nil {
			return t, nil
		}
	}
}

func TestTheTokenGoesToServersOfTheClusterOnly(t *testing.T) {
	f, a := example(t)
	if _, err := f.Marshal(); err != nil {
		t.Fatal(err)
	}
	_, foreign := example(t)
	namenode, seen := server(t, a, authority.Namenode)
	datanode, unseen := server(t, a, authority.Datanode)
	elsewhere, none := server(t, foreign, authority.Namenode)
	client := &http.Client{Transport: f.Transport(authority.Namenode, 0)}
	defer client.CloseIdleConnections()
	get := func(url string) error {
		answer, err := client.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			err = errors.Join(err, answer.Body.Close())
		}
		return err
	}
	if err := get("https://" + namenode + "/"); err != nil || <-seen != "Bearer a.b.c" {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, url, want string }{
		{"a server of another cluster", "https://" + elsewhere + "/", "not of this cluster"},
		{"a server with another role", "https://" + datanode + "/", "does not allow that role"},
		{"the right server in plain", "http://" + namenode + "/", "is not https: the token is not sent there"},
		{"a redirect to plain", "https://" + namenode + "/away", "is not https: the token is not sent there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := get(c.url); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
	if len(unseen) > 0 || len(none) > 0 {
		t.Error("a token was sent where it must not be")
	}
}

func TestFirstContactByFingerprint(t *testing.T) {
	_, a := example(t)
	_, other := example(t)
	namenode, _ := server(t, a, authority.Namenode)
	datanode, _ := server(t, a, authority.Datanode)
	f, err := First(t.Context(), namenode, authority.FingerprintOf(a.Root()))
	if err != nil || f.Cluster != a.Cluster() || f.Namenodes[0].HTTP != namenode {
		t.Fatalf("%+v, %v", f, err)
	}
	if _, err := First(t.Context(), namenode, authority.FingerprintOf(other.Root())); !errors.Is(err, authority.ErrForeign) {
		t.Errorf("another fingerprint: %v", err)
	}
	if _, err := First(t.Context(), datanode, authority.FingerprintOf(a.Root())); !errors.Is(err, authority.ErrRole) {
		t.Errorf("a datanode: %v", err)
	}
}

// Whatever the file holds: no panic, and what is read can be written.
func FuzzLogin(f *testing.F) {
	e, _ := example(f)
	text, err := e.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version": 1, "authorities": ""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := got.Marshal(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
