package authority

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func newIdentity(t *testing.T, a *Authority, now time.Time) *Identity {
	t.Helper()
	key := newKey(t)
	return &Identity{
		Certificate: issue(t, a, key, Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode}}, now), Key: key, Roots: []*x509.Certificate{a.Root()},
	}
}

func TestIdentityIsOneFile(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	i := newIdentity(t, a, start)
	path := filepath.Join(t.TempDir(), "etc", "identity.pem")
	if _, err := LoadIdentity(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is none: %v", err)
	}
	if err := i.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := LoadIdentity(path)
	if err != nil || !slices.Equal(got.Certificate, i.Certificate) || len(got.Roots) != 1 || !got.Roots[0].Equal(a.Root()) {
		t.Fatalf("%+v %v", got, err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSpace(string(text))
	for n := 0; n < len(whole); n += 11 { // as a full disk, or a hand, may leave it
		if _, err := parseIdentity([]byte(whole[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes are taken", n, len(whole))
		}
	}
	other := newIdentity(t, a, start)
	other.Certificate = i.Certificate
	if err := other.Write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(path); err == nil || !strings.Contains(err.Error(), "let the machine join again") {
		t.Errorf("a key of another certificate: %v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("others may read it: %v", err)
	}
	if err := i.Write(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("written below a file")
	}
}

// TestCertificatesAreRenewedInTime runs two processes of one machine for a year in which the cluster is away now and then, and
// rotates its authority.
func TestCertificatesAreRenewedInTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		day := 24 * time.Hour
		old, err := New(cluster, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		issuer, roots := old, []*x509.Certificate{old.Root()}
		i := newIdentity(t, old, time.Now())
		path := filepath.Join(dir, "identity.pem")
		if err := i.Write(path); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		renewals, away := 0, true
		renew := func(_ context.Context, request []byte) ([]byte, []*x509.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return nil, nil, errors.New("nobody answers")
			}
			renewals++
			der, err := issuer.Issue(request, Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode}}, nil, time.Now(), MachineLife)
			return der, roots, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all []*Keeper
		done := make(chan error)
		for range 2 {
			k, err := NewKeeper(KeeperConfig{Path: path, Renew: renew, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, k)
			go func() { done <- k.Run(ctx) }()
		}
		begin := time.Now()
		for time.Since(begin) < 365*day {
			time.Sleep(day)
			mu.Lock()
			switch time.Since(begin) {
			case 66 * day:
				away = false
			case 100 * day: // both are trusted, and the next one issues
				next, err := New(cluster, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				issuer, roots = next, []*x509.Certificate{old.Root(), next.Root()}
			case 250 * day: // the old one is gone
				roots = roots[1:]
			}
			mu.Unlock()
			for n, k := range all {
				k.Member.mu.Lock()
				_, err := k.Member.trust.Verify(k.Member.own.Leaf, time.Now())
				k.Member.mu.Unlock()
				if err != nil {
					t.Fatalf("process %d after %v: %v", n, time.Since(begin), err)
				}
			}
		}
		if renewals < 5 || renewals > 7 {
			t.Errorf("%d renewals of one machine in a year", renewals)
		}
		cancel()
		for range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if i, err := LoadIdentity(path); err != nil || len(i.Roots) != 1 || i.Roots[0].Equal(old.Root()) {
			t.Errorf("%v", err)
		}
	})
}

// A container knows the cluster by a file, which its node manager replaces when one authority follows the other.
func TestAVisitorReadsAgainWhoIsTrusted(t *testing.T) {
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
	connect := func(server *Member) error {
		_, _, _, err := meet(t, accept(t, server, Door{Strangers: true}), func(c net.Conn) (*Conn, error) {
			conn, _, err := (&Visitor{Trust: trust, Now: at(start)}).Connect(t.Context(), c, Door{}, nil)
			if err == nil {
				conn.Close()
			}
			return nil, err
		})
		return err
	}
	server := newMember(t, next, start, "m1", ResourceManager)
	if err := connect(server); !errors.Is(err, ErrForeign) {
		t.Errorf("before the file has it: %v", err)
	}
	write(next)
	if err := connect(server); err != nil {
		t.Error(err)
	}
	write(newAuthority(t, "CID-78"))
	if err := connect(newMember(t, newAuthority(t, cluster), start, "m1", ResourceManager)); !errors.Is(err, ErrForeign) {
		t.Errorf("a file of another cluster: %v", err)
	}
}

// A process that hears of a new authority only when the old one is trusted no more shows the certificate that another process of its machine got.
func TestAProcessThatMissesARotationTakesTheFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		before, after := newAuthority(t, cluster), newAuthority(t, cluster)
		i := newIdentity(t, before, time.Now())
		path := filepath.Join(dir, "identity.pem")
		if err := i.Write(path); err != nil {
			t.Fatal(err)
		}
		late, err := NewKeeper(KeeperConfig{
			Path: path, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Renew: func(context.Context, []byte) ([]byte, []*x509.Certificate, error) {
				return nil, nil, errors.New("not let in with the old certificate")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- late.Run(ctx) }()
		synctest.Wait()
		i.Certificate = issue(t, after, i.Key, Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode}}, time.Now())
		i.Roots = []*x509.Certificate{after.Root()}
		if err := i.Write(path); err != nil { // the other process
			t.Fatal(err)
		}
		if err := late.Believe(&Trust{Cluster: cluster, Roots: i.Roots}); err != nil {
			t.Fatal(err)
		}
		late.Want(Fingerprint{})
		synctest.Wait()
		if late.Member.Issuer() != FingerprintOf(after.Root()) {
			t.Error("it shows the certificate of the old authority")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A namenode that has just started may tell of the authority from before a rotation: who has a certificate of the new one does not believe it, in
// memory or in the file.
func TestAnAuthorityFromBeforeARotationIsNotBelieved(t *testing.T) {
	before, after := newAuthority(t, cluster), newAuthority(t, cluster)
	i := newIdentity(t, after, time.Now())
	path := filepath.Join(t.TempDir(), "identity.pem")
	if err := i.Write(path); err != nil {
		t.Fatal(err)
	}
	k, err := NewKeeper(KeeperConfig{Path: path, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Believe(&Trust{Cluster: cluster, Roots: []*x509.Certificate{before.Root()}}); !errors.Is(err, ErrForeign) {
		t.Errorf("it is believed: %v", err)
	}
	if k.Member.Issuer() != FingerprintOf(after.Root()) {
		t.Error("the member trusts the old authority alone")
	}
	if _, err := NewKeeper(k.KeeperConfig); err != nil {
		t.Errorf("the next process: %v", err)
	}
	if err := k.Believe(&Trust{Cluster: cluster, Roots: []*x509.Certificate{after.Root(), before.Root()}}); err != nil || len(k.Member.Roots()) != 2 {
		t.Errorf("both authorities: %v", err)
	}
}

// Who was removed is removed, whatever becomes of the disk; and the file that could not be written brings nothing back.
func TestNewsAreBelievedWhereTheFileCannotBeWritten(t *testing.T) {
	before, after := newAuthority(t, cluster), newAuthority(t, cluster)
	i := newIdentity(t, after, time.Now())
	i.Roots = append(i.Roots, before.Root())
	path := filepath.Join(t.TempDir(), "identity.pem")
	if err := i.Write(path); err != nil {
		t.Fatal(err)
	}
	k, err := NewKeeper(KeeperConfig{Path: path, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	news := &Trust{Cluster: cluster, Roots: []*x509.Certificate{after.Root()}, Removed: map[string]uint64{"m2": 1}}
	for range 2 {
		if err := k.Believe(news); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrForeign) {
			t.Errorf("without the file: %v", err)
		}
		if is := k.Member.Trusts(); len(is.Roots) != 1 || is.Removed["m2"] != 1 {
			t.Fatalf("it trusts %d authorities, and removed are %v", len(is.Roots), is.Removed)
		}
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err != nil || len(k.Member.Roots()) != 1 {
		t.Errorf("the file brings back an authority: %v", err)
	}
	if err := k.Believe(news); err != nil {
		t.Error(err)
	}
	if i, err := LoadIdentity(path); err != nil || len(i.Roots) != 1 {
		t.Errorf("the next news are not noted: %v", err)
	}
}

// While one process asks the cluster for its certificate, which may take long, it and the others of the machine hear who was removed.
func TestNewsAreBelievedWhileTheCertificateIsRenewed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		before, after := newAuthority(t, cluster), newAuthority(t, cluster)
		i := newIdentity(t, before, time.Now())
		path := filepath.Join(dir, "identity.pem")
		if err := i.Write(path); err != nil {
			t.Fatal(err)
		}
		news := &Trust{Cluster: cluster, Roots: []*x509.Certificate{before.Root(), after.Root()}, Removed: map[string]uint64{"m2": 1}}
		var k *Keeper
		k, err := NewKeeper(KeeperConfig{
			Path: path, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Renew: func(_ context.Context, request []byte) ([]byte, []*x509.Certificate, error) {
				if err := k.Believe(news); !errors.Is(err, syscall.EWOULDBLOCK) {
					t.Errorf("the file is another one's: %v", err)
				}
				if is := k.Member.Trusts(); len(is.Roots) != 2 || is.Removed["m2"] != 1 {
					t.Errorf("it trusts %d authorities, and removed are %v", len(is.Roots), is.Removed)
				}
				der, err := after.Issue(request, Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode}}, nil, time.Now(), MachineLife)
				return der, news.Roots, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		k.Want(FingerprintOf(after.Root()))
		if err := k.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is := k.Member.Trusts(); k.Member.Issuer() != FingerprintOf(after.Root()) || is.Removed["m2"] != 1 {
			t.Errorf("renewed, removed are %v", is.Removed)
		}
		if err := k.Believe(news); err != nil {
			t.Error(err)
		}
	})
}

func TestNewsAndAuthoritiesTogether(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	m := newMember(t, a, start, "m1", Datanode)
	roots := []*x509.Certificate{a.Root()}
	var wait sync.WaitGroup
	defer wait.Wait()
	stop := make(chan struct{})
	defer close(stop)
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				m.trustRoots(roots, nil)
			}
		}
	})
	for n := range uint64(2000) {
		m.Believe(&Trust{Cluster: cluster, Roots: roots, Removed: map[string]uint64{"m2": n}})
		if is := m.Trusts().Removed["m2"]; is != n {
			t.Fatalf("removed up to generation %d, it was told %d", is, n)
		}
	}
}
