package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// vouch makes the links from each authority to the one after it.
func vouch(t testing.TB, all ...*Authority) (links []*x509.Certificate) {
	t.Helper()
	for i, next := range all[1:] {
		der, err := all[i].Vouch(next.Root())
		if err != nil {
			t.Fatal(err)
		}
		if links, err = AddLink(links, der, start); err != nil {
			t.Fatal(err)
		}
	}
	return links
}

// shows is a namenode that a certified, and which shows these links.
func shows(t testing.TB, a *Authority, links ...*x509.Certificate) *Member {
	t.Helper()
	m := newMember(t, a, start, "m1", Namenode)
	trust := *trustOf(a)
	trust.Links = links
	m.Believe(&trust)
	return m
}

// visit connects as who trusts what is given.
func visit(t *testing.T, trust *Trust, now time.Time, server *Member) error {
	t.Helper()
	_, _, _, err := meet(t, accept(t, server, Door{Strangers: true}), func(c net.Conn) (*Conn, error) {
		conn, _, err := (&Visitor{Trust: trust, Now: at(now)}).Connect(t.Context(), c, Door{Roles: []Role{Namenode}}, nil)
		if err == nil {
			conn.Close()
		}
		return nil, err
	})
	return err
}

func TestWhoKnowsAnEarlierAuthority(t *testing.T) {
	t.Parallel()
	var a []*Authority
	for range 5 {
		a = append(a, newAuthority(t, cluster))
	}
	old, next := a[0], a[1]
	links := vouch(t, a...)
	stranger := newAuthority(t, cluster)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// made is a certificate for next's key, and not by an authority's.
	made := func(change func(*x509.Certificate), parent *x509.Certificate, key any) *x509.Certificate {
		t.Helper()
		l := *vouch(t, old, next)[0]
		l.SignatureAlgorithm, l.AuthorityKeyId = 0, nil
		if change != nil {
			change(&l)
		}
		der, err := x509.CreateCertificate(rand.Reader, &l, parent, next.Root().PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	der, err := old.Issue(func() []byte {
		r, err := Request(key)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}(), Name{Machine: "m9", Generation: 1, Roles: []Role{Namenode}}, nil, start, MachineLife)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		trust  *Trust
		now    time.Time
		server *Member
		want   error
	}{
		{"one rotation ago", trustOf(old), start, shows(t, next, vouch(t, old, next)...), nil},
		{"two ago", trustOf(a[2]), start, shows(t, a[4], links...), nil},
		{"three ago", trustOf(a[1]), start, shows(t, a[4], links...), nil},
		{"four ago", trustOf(a[0]), start, shows(t, a[4], links...), ErrForeign},
		{"none ago", trustOf(next), start, shows(t, next, vouch(t, old, next)...), nil},
		{"the old one was compromised: no link", trustOf(old), start, shows(t, next), ErrForeign},
		{"somebody in between with an authority of their own", trustOf(old), start, shows(t, stranger), ErrForeign},
		{"the same, with the cluster's links", trustOf(old), start, shows(t, stranger, vouch(t, old, next)...), ErrForeign},
		{"the same, with a link of their own", trustOf(old), start, shows(t, next, vouch(t, stranger, next)...), ErrForeign},
		{"a link that a member's key signed", trustOf(old), start, shows(t, next, made(nil, leaf, key)), ErrForeign},
		{"a link of another cluster", trustOf(old), start, shows(t, next, made(func(l *x509.Certificate) { l.URIs = newAuthority(t, "CID-78").Root().URIs }, old.Root(), old.key)), ErrForeign},
		{"a link that has ended", trustOf(old), start, shows(t, next, made(func(l *x509.Certificate) { l.NotAfter = start.Add(-time.Minute) }, old.Root(), old.key)), ErrForeign},
		{"a link that is no authority's", trustOf(old), start, shows(t, next, made(func(l *x509.Certificate) { l.IsCA = false }, old.Root(), old.key)), ErrForeign},
		{"an authority that is gone does not come back", trustOf(next), start, shows(t, old, vouch(t, old, next)...), ErrForeign},
		{"nor with a link to one that its key made since", trustOf(next), start, shows(t, stranger, vouch(t, old, stranger)...), ErrForeign},
		{"nor with the new one's root beside it", trustOf(next), start, shows(t, old, next.Root()), ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := visit(t, c.trust, c.now, c.server); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	t.Run("servers do not take links", func(t *testing.T) {
		t.Parallel()
		server := shows(t, next, vouch(t, old, next)...)
		if _, _, _, err := meet(t, accept(t, server, Door{Strangers: true}), connect(t, newMember(t, old, start, "m2", Datanode), Door{Strangers: true})); !errors.Is(err, ErrForeign) {
			t.Errorf("who dials: %v", err)
		}
		if _, _, err, _ := meet(t, accept(t, newMember(t, old, start, "m2", Datanode), Door{}), connect(t, server, Door{})); !errors.Is(err, ErrForeign) {
			t.Errorf("who is dialed: %v", err)
		}
	})
	t.Run("who has a fingerprint", func(t *testing.T) {
		t.Parallel()
		server := shows(t, next, vouch(t, old, next)...)
		for a, want := range map[*Authority]error{next: nil, old: ErrForeign, stranger: ErrForeign} {
			_, _, _, err := meet(t, accept(t, server, Door{Strangers: true}), func(c net.Conn) (*Conn, error) {
				conn, root, err := (&Visitor{Authority: FingerprintOf(a.Root()), Now: at(start)}).Connect(t.Context(), c, Door{Roles: []Role{Namenode}}, nil)
				if err == nil {
					if conn.Close(); !root.Equal(next.Root()) {
						t.Error("another root is shown")
					}
				}
				return nil, err
			})
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
	t.Run("a link is no authority", func(t *testing.T) {
		t.Parallel()
		if _, err := ParseRoots(MarshalRoots([]*x509.Certificate{old.Root(), links[0]})); err == nil {
			t.Error("a file of authorities with a link is read")
		}
		if _, err := ParseLinks(MarshalRoots([]*x509.Certificate{old.Root()})); err == nil {
			t.Error("an authority is read as a link")
		}
		if _, err := old.Vouch(newAuthority(t, "CID-78").Root()); err == nil {
			t.Error("one vouches for another cluster's")
		}
	})
	t.Run("an identity's file has them", func(t *testing.T) {
		t.Parallel()
		i := newIdentity(t, next, start)
		i.Links = vouch(t, old, next)
		path := filepath.Join(t.TempDir(), "identity.pem")
		if err := i.Write(path); err != nil {
			t.Fatal(err)
		}
		read, err := LoadIdentity(path)
		if err != nil || len(read.Roots) != 1 || !slices.EqualFunc(read.Links, i.Links, (*x509.Certificate).Equal) {
			t.Fatalf("%+v %v", read, err)
		}
		m, err := read.Member(at(start))
		if err != nil {
			t.Fatal(err)
		}
		if own, rooted := m.certificate().Certificate, m.rooted.Certificate; len(own) != 2 || len(rooted) != 3 {
			t.Errorf("%d certificates are shown, %d to who needs the root", len(own), len(rooted))
		}
	})
}

// A container's process knows nothing better than its file, although it read another one before.
func TestAContainerForgetsAnAuthorityThatIsGone(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t, cluster), newAuthority(t, cluster)
	path := filepath.Join(t.TempDir(), "authority.pem")
	write := func(a *Authority) {
		t.Helper()
		if err := os.WriteFile(path, MarshalRoots([]*x509.Certificate{a.Root()}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(old)
	trust, err := TrustFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := visit(t, trust, start, shows(t, old)); err != nil {
		t.Error(err)
	}
	write(next)
	if err := visit(t, trust, start, shows(t, old, vouch(t, old, next)...)); !errors.Is(err, ErrForeign) {
		t.Errorf("%v", err)
	}
}

// Clients that are not ours, with the old authority's certificate in a file: Go's, and OpenSSL, which curl and Python have.
func TestForeignClientsFollowAnAuthority(t *testing.T) {
	t.Parallel()
	a := []*Authority{newAuthority(t, cluster), newAuthority(t, cluster), newAuthority(t, cluster)}
	server := shows(t, a[2], vouch(t, a...)...)
	dir := t.TempDir()
	for n, known := range a {
		roots := x509.NewCertPool()
		roots.AddCert(known.Root())
		_, _, _, err := meet(t, accept(t, server, Door{Strangers: true, Old: true}), func(c net.Conn) (*Conn, error) {
			client := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "m1.example.org", Time: at(start)})
			defer client.Close()
			return nil, client.HandshakeContext(t.Context())
		})
		if err != nil {
			t.Errorf("Go, who knows authority %d: %v", n, err)
		}
		openssl, err := exec.LookPath("openssl")
		if err != nil {
			continue
		}
		file := func(name string, der ...[]byte) string {
			var text []byte
			for _, d := range der {
				text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d})...)
			}
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		shown := server.certificate().Certificate
		args := []string{"verify", "-attime", "1772370000", "-purpose", "sslserver", "-CAfile", file("ca", known.Root().Raw), "-untrusted", file("chain", shown[1:]...), file("leaf", shown[0])}

		if out, err := exec.Command(openssl, args...).CombinedOutput(); err != nil {
			t.Errorf("OpenSSL, which knows authority %d: %v\n%s", n, err, out)
		}
	}
}
