package roles

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// Who listens where nobody can reach it hears what to do.
func TestAddressesThatCannotBe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct{ addr, bind, says string }{
		"another machine's":            {"203.0.113.9:0", "", "203.0.113.9:0: 203.0.113.9 is not an address of this machine, which has "},
		"another machine's, bind":      {"203.0.113.9:0", "198.51.100.9", "cluster.bind: 198.51.100.9 is not an address of this machine, which has "},
		"a name that nobody has":       {"no-such-host.invalid:0", "", "no address is known for the name no-such-host.invalid: enter it in the DNS or in /etc/hosts"},
		"a name that is loopback here": {"ip6-localhost:0", "", "at which only this machine reaches itself: correct /etc/hosts"},
		"a port that is taken":         {taken.Addr().String(), "", "is taken by another program"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a name that is loopback here" {
				if found, err := net.LookupHost("ip6-localhost"); err != nil || len(found) == 0 {
					t.Skip("/etc/hosts has no such name")
				}
			}
			l, err := security.Listen(c.addr, c.bind)
			if err == nil {
				l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// Who listens at another address than others use is known by that which others use; loopback stays loopback.
func TestListeningApartFromTheAddress(t *testing.T) {
	l, err := security.Listen("203.0.113.9:0", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil || host != "203.0.113.9" || port == "0" {
		t.Errorf("%s, %v", l.Addr(), err)
	}
	c, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	own, err := security.Listen("127.0.0.1:0", "0.0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if !own.Addr().(*net.TCPAddr).IP.IsLoopback() {
		t.Errorf("it listens at %s", own.Addr())
	}
}

// Clients of a cluster that is reached from other machines find the certificates of its authorities beside the site files.
func TestConfOfAClusterBeyondLoopback(t *testing.T) {
	_, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"127.0.0.1": false, "10.0.0.5": true, "nn.example": true} {
		dir := t.TempDir()
		f := &config.File{Namenodes: []config.NamenodeMember{{ID: "nn1", IPC: host + ":8020", HTTP: host + ":9870"}}}
		if err := WriteConf(dir, f, []*x509.Certificate{a.Root()}); err != nil {
			t.Fatal(err)
		}
		core, err := os.ReadFile(filepath.Join(dir, "core-site.xml"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = authority.TrustFile(filepath.Join(dir, "ca.pem"))
		if strings.Contains(string(core), filepath.Join(dir, "ca.pem")) != want || (err == nil) != want {
			t.Errorf("%s: %s, %v", host, core, err)
		}
	}
}
