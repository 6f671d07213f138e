package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// loginCluster is as much of a namenode as a login needs, by TLS, with an identity provider.
type loginCluster struct {
	addr, fingerprint string
	provider          *securitytest.Provider
	exchanged         atomic.Value // the provider's token
}

func startLoginCluster(t *testing.T) *loginCluster {
	t.Helper()
	credentials, root, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	sign, users := securitytest.Tokens(t)
	door := security.NewDoor(security.Config{Member: credentials.Member, Users: users})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fingerprint := authority.FingerprintOf(root.Root())
	c := &loginCluster{addr: l.Addr().String(), fingerprint: "sha256:" + hex.EncodeToString(fingerprint[:]), provider: securitytest.NewProvider(t)}
	file := login.File{
		Cluster: root.Cluster(), Authorities: string(authority.MarshalRoots([]*x509.Certificate{root.Root()})),
		Namenodes: []login.Namenode{{HTTP: c.addr, IPC: c.addr}}, Version: 1,
	}
	answer := func(w http.ResponseWriter, body any) { _ = json.NewEncoder(w).Encode(body) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/login", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, struct {
			login.File
			Issuer   string `json:"issuer"`
			ClientID string `json:"client_id"`
		}{file, c.provider.URL, c.provider.ClientID})
	})
	mux.HandleFunc("POST /api/v1/login", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			IDToken string `json:"id_token"`
		}
		_ = json.NewDecoder(r.Body).Decode(&ask)
		c.exchanged.Store(ask.IDToken)
		given := file
		given.User, given.ID, given.Token, given.Expires = "ann", "id1", sign("ann", 12*time.Hour), time.Now().Add(11*time.Hour)
		answer(w, given)
	})
	mux.HandleFunc("GET /api/v1/whoami", func(w http.ResponseWriter, r *http.Request) {
		caller, err := door.HTTPCaller(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		answer(w, whoami{Cluster: file.Cluster, User: caller.User, ProvedBy: door.ProvedBy(r), Token: security.TokenOf(r).ID, Expires: security.TokenOf(r).Expires})
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- door.ServeHTTP(ctx, l, security.HTTP{Doorway: security.Doorway{Name: "test"}, Handler: mux})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestLoginWithADevice(t *testing.T) {
	c := startLoginCluster(t)
	path := filepath.Join(t.TempDir(), "login")
	t.Setenv(login.Variable, path)
	c.provider.Agree(map[string]any{"preferred_username": "ann"})
	for _, args := range [][]string{{"hops", "login", c.addr, "--fingerprint", c.fingerprint}, {"hops", "login"}} { // the second one knows the cluster
		var out, say bytes.Buffer
		if status := run(args, strings.NewReader(""), &out, &say); status != 0 {
			t.Fatalf("%q: status %d: %s", args, status, &say)
		}
		if !strings.Contains(say.String(), "Open "+c.provider.URL+"/verify in a browser, and agree if it shows the code ABCD-EFGH") || !strings.HasPrefix(out.String(), "ann; cluster CID-test; by token ") {
			t.Fatalf("%s%s", &say, &out)
		}
		f, err := login.Load(path)
		if err != nil || f.User != "ann" || f.Token == "" || strings.Count(c.exchanged.Load().(string), ".") != 2 {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c.provider.Deny()
	var out, say bytes.Buffer
	if status := run([]string{"hops", "login"}, strings.NewReader(""), &out, &say); status != exitDenied || !strings.Contains(say.String(), "access_denied") {
		t.Fatalf("denied: status %d: %s", status, &say)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("a login that failed has changed the file")
	}
}

func TestLoginsThatFail(t *testing.T) {
	c := startLoginCluster(t)
	t.Setenv(login.Variable, filepath.Join(t.TempDir(), "login"))
	stranger := startLoginCluster(t)
	for _, test := range []struct {
		name   string
		args   []string
		stdin  string
		status int
		want   string
	}{
		{"no cluster is known", []string{"login"}, "", exitUsage, "this machine knows no cluster yet"},
		{"an address without a fingerprint", []string{"login", c.addr}, "", exitUsage, "this machine knows no cluster yet"},
		{"a fingerprint without an address", []string{"login", "--fingerprint", c.fingerprint}, "", exitUsage, "give that, too"},
		{"another cluster's fingerprint", []string{"login", c.addr, "--fingerprint", stranger.fingerprint}, "", exitDenied, "somebody stands in between"},
		{"half a fingerprint", []string{"login", c.addr, "--fingerprint", c.fingerprint[:30]}, "", exitUsage, "want sha256: and 32 bytes"},
		{"no address", []string{"login", "nn1", "--fingerprint", c.fingerprint}, "", exitUsage, `"nn1" is not HOST:PORT`},
		{"nobody listens there", []string{"login", "127.0.0.1:1", "--fingerprint", c.fingerprint}, "", exitUnreachable, "connection refused"},
		{"a token that is none", []string{"login", c.addr, "--fingerprint", c.fingerprint, "--token", "-"}, "nonsense", exitDenied, "perhaps it was cut off"},
		{"no token", []string{"login", c.addr, "--token", "-"}, "\n", exitUsage, "- is empty"},
		{"half a login", []string{"login", "--token", "-"}, `{"version": 1, "clus`, exitUsage, "it is cut off"},
		{"logging out of nothing", []string{"logout"}, "", exitFailed, "nobody has logged in on this machine"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, say bytes.Buffer
			if status := run(append([]string{"hops"}, test.args...), strings.NewReader(test.stdin), &out, &say); status != test.status || !strings.Contains(say.String(), test.want) {
				t.Errorf("status %d: %s; want %d %s", status, &say, test.status, test.want)
			}
		})
	}
}
