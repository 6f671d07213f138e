package login

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
)

func TestWhatIsKnownOfTheCluster(t *testing.T) {
	a, err := authority.New("CID-test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := string(authority.MarshalRoots([]*x509.Certificate{a.Root()}))
	text, err := json.Marshal(Login{Address: "nn1:9870", Authorities: roots, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		login string // content of the file; empty: there is none
		mode  os.FileMode
		roots string // content of hops.cluster.roots
		known bool
		says  string
	}{
		"a login":                 {string(text), 0o600, "", true, ""},
		"none":                    {"", 0, "", false, ""},
		"others may read it":      {string(text), 0o644, "", false, "chmod 600"},
		"half a login":            {string(text[:40]), 0o600, "", false, "is damaged"},
		"without authorities":     {"{}", 0o600, "", false, "run `hops login` again"},
		"a file of authorities":   {"", 0, roots, true, ""},
		"half a file":             {"", 0, roots[:200], false, "hops.cluster.roots"},
		"something else":          {"", 0, "hello", false, "hops.cluster.roots"},
		"the file, not the login": {"{}", 0o600, roots, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, file := filepath.Join(dir, "login"), ""
			t.Setenv("HOPS_LOGIN", path)
			t.Setenv("HOPS_AUTHORITY", "")
			if c.login != "" {
				if err := os.WriteFile(path, []byte(c.login), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			if c.roots != "" {
				file = filepath.Join(dir, "ca.pem")
				if err := os.WriteFile(file, []byte(c.roots), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			d, err := Dialer(file)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
				return
			}
			if err != nil || (d.Trust != nil) != c.known || d.Plain {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	if d, err := Dialer(None); err != nil || !d.Plain {
		t.Errorf("none: %+v, %v", d, err)
	}
}
