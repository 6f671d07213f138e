package kdc

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/kerberos"
	"github.com/gohops/hops/internal/sasl"
)

var types = []string{"aes128-cts-hmac-sha1-96", "aes256-cts-hmac-sha1-96", "aes128-cts-hmac-sha256-128", "aes256-cts-hmac-sha384-192"}

func realm(t *testing.T) *KDC {
	t.Helper()
	if err := Installed(); err != nil {
		t.Skip(err)
	}
	k, err := Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

// service makes a principal nn/TYPE.localhost with keys of one type, and who accepts its tickets.
func service(t *testing.T, k *KDC, enctype string) *kerberos.Acceptor {
	t.Helper()
	p, err := kerberos.ParsePrincipal("nn/" + enctype + ".localhost@" + Realm)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(k.Dir, enctype+".keytab")
	if err := k.Keytab(path, enctype, p.String()); err != nil {
		t.Fatal(err)
	}
	a, err := kerberos.NewAcceptor(kerberos.Config{Keytab: path, Principals: []kerberos.Principal{p}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// login is that of a user of the realm, by the environment, as hops fs does it.
func login(t *testing.T, k *KDC, cache string) (*kerberos.Login, error) {
	t.Helper()
	t.Setenv("KRB5_CONFIG", k.Config())
	t.Setenv("KRB5CCNAME", "FILE:"+cache)
	return kerberos.LoginFromCache()
}

func talk(m sasl.Mechanism, i *kerberos.Initiator) error {
	var token []byte
	for {
		out, _, err := i.Step(token)
		if err != nil {
			return err
		}
		reply, done, err := m.Step(out)
		if err != nil || done {
			return err
		}
		token = reply
	}
}

func TestOwnClient(t *testing.T) {
	k := realm(t)
	cache, err := k.User("alice")
	if err != nil {
		t.Fatal(err)
	}
	l, err := login(t, k, cache)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, enctype := range types {
		a := service(t, k, enctype)
		for _, q := range []sasl.Quality{sasl.Authentication, sasl.Integrity, sasl.Privacy} {
			m, i := a.Exchange(sasl.Authentication, sasl.Integrity, sasl.Privacy), l.Exchange(a.Principal(), q)
			if err := talk(m, i); err != nil {
				t.Errorf("%s %s: %v", enctype, q, err)
			} else if m.Identity().Name != "alice" || (m.Layer() == nil) != (q == sasl.Authentication) {
				t.Errorf("%s %s: %+v", enctype, q, m.Identity())
			}
		}
		token, err := l.Negotiate(a.Principal())
		if err != nil {
			t.Fatal(err)
		}
		if user, _, err := a.Negotiate(token); err != nil || user != "alice" {
			t.Errorf("SPNEGO, %s: %q, %v", enctype, user, err)
		}
	}
}

// echo serves one connection: an exchange, then messages.
func echo(c net.Conn, m sasl.Mechanism) error {
	r := bufio.NewReader(c)
	receive := func() ([]byte, error) {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return nil, err
		}
		b := make([]byte, binary.BigEndian.Uint32(size[:]))
		_, err := io.ReadFull(r, b)
		return b, err
	}
	send := func(b []byte) error {
		_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
		return err
	}
	for {
		token, err := receive()
		if err != nil {
			return err
		}
		reply, done, err := m.Step(token)
		if err != nil {
			return err
		}
		if done {
			break
		}
		if err := send(reply); err != nil {
			return err
		}
	}
	for {
		message, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && m.Layer() != nil {
			if message, err = m.Layer().Unwrap(message); err == nil {
				message, err = m.Layer().Wrap(message)
			}
		}
		if err != nil {
			return err
		}
		if err := send(message); err != nil {
			return err
		}
	}
}

// foreign lets a program of others talk to acceptors with keys of some types: MIT's library, or Java's.
func foreign(t *testing.T, k *KDC, types []string, program ...string) {
	cache, err := k.User("alice")
	if err != nil {
		t.Fatal(err)
	}
	for _, enctype := range types {
		a := service(t, k, enctype)
		for _, q := range []sasl.Quality{sasl.Authentication, sasl.Integrity, sasl.Privacy} {
			t.Run(enctype+" "+string(q), func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, port, _ := net.SplitHostPort(l.Addr().String())
				var argv []string
				for _, arg := range program {
					argv = append(argv, strings.NewReplacer("PORT", port, "QOP", string(q), "HOST", a.Principal().Host()).Replace(arg))
				}
				cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
				cmd.Env = append(os.Environ(), k.Env(cache)...)
				served := make(chan error, 1)
				m := a.Exchange(sasl.Authentication, sasl.Integrity, sasl.Privacy)
				go func() {
					c, err := l.Accept()
					if err == nil {
						err = echo(c, m)
						c.Close()
					}
					served <- err
				}()
				out, err := cmd.CombinedOutput()
				l.Close()
				if served := <-served; err != nil || served != nil {
					t.Fatalf("%v: %s; served: %v", err, out, served)
				}
				if want := fmt.Sprintf("qop %s\n", q); string(out) != want || m.Identity().Name != "alice" {
					t.Errorf("it says %q, want %q; it is %+v", out, want, m.Identity())
				}
			})
		}
	}
}

func TestMITClient(t *testing.T) {
	k := realm(t)
	const python = "/usr/bin/python3"
	if exec.Command(python, "-c", "import gssapi").Run() != nil {
		t.Skip("Python's gssapi is not installed (Debian: apt-get install python3-gssapi)")
	}
	foreign(t, k, types, python, "testdata/peer.py", "PORT", "QOP", "nn@HOST")
}

func TestJavaClient(t *testing.T) {
	k := realm(t)
	if testing.Short() {
		t.Skip("a JVM for each case takes seconds")
	}
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("javac is not installed (Debian: apt-get install openjdk-17-jdk-headless)")
	}
	classes := t.TempDir()
	if out, err := exec.Command("javac", "-d", classes, "testdata/SaslPeer.java").CombinedOutput(); err != nil {
		t.Fatalf("javac: %v: %s", err, out)
	}
	java := []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.security.krb5.conf=" + k.Config(), "-cp", classes, "SaslPeer", "PORT", "QOP", "nn", "HOST"}
	foreign(t, k, types[1:2], java...)
}

func TestOwnClientFromKeytab(t *testing.T) {
	k := realm(t)
	t.Setenv("KRB5_CONFIG", k.Config())
	a := service(t, k, types[3])
	who, err := kerberos.ParsePrincipal("batch/host@" + Realm)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(k.Dir, "batch.keytab")
	if err := k.Keytab(path, "", who.String()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KRB5CCNAME", "FILE:"+filepath.Join(k.Dir, "none"))
	t.Setenv("KRB5_CLIENT_KTNAME", path)
	l, err := kerberos.NewLogin()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := a.Exchange(sasl.Privacy)
	if err := talk(m, l.Exchange(a.Principal(), sasl.Privacy)); err != nil || m.Identity().Name != "batch" {
		t.Errorf("it is %+v, %v", m.Identity(), err)
	}
}

// What a user is told when it is the KDC that says no.
func TestRefusingKDC(t *testing.T) {
	k := realm(t)
	cache, err := k.User("alice")
	if err != nil {
		t.Fatal(err)
	}
	a := service(t, k, types[1])
	nobody, err := kerberos.ParsePrincipal("nn/nobody@" + Realm)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(name, want string, do func(*kerberos.Login) error) {
		t.Helper()
		l, err := login(t, k, cache)
		if err == nil {
			defer l.Close()
			err = do(l)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	to := func(p kerberos.Principal) func(*kerberos.Login) error {
		return func(l *kerberos.Login) error {
			_, _, err := l.Exchange(p).Step(nil)
			return err
		}
	}
	expect("a service that the KDC does not know", "ticket for nn/nobody@HOPS.TEST: the KDC does not know the server's principal", to(nobody))
	// The service gets a new key, and the keytab stays.
	if _, err := k.run("kadmin.local", "-r", Realm, "cpw", "-randkey", "-e", types[1]+":normal", a.Principal().String()); err != nil {
		t.Fatal(err)
	}
	expect("a keytab that is too old", "the ticket needs key version 2 of "+types[1], func(l *kerberos.Login) error { return talk(a.Exchange(), l.Exchange(a.Principal())) })
	other, err := k.User("batch")
	if err != nil {
		t.Fatal(err)
	}
	_ = other
	if _, err := k.run("kadmin.local", "-r", Realm, "cpw", "-randkey", "batch@"+Realm); err != nil {
		t.Fatal(err)
	}
	batch, err := kerberos.ParsePrincipal("batch@" + Realm)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kerberos.LoginFromKeytab(filepath.Join(k.Dir, "batch.keytab"), batch); err == nil || !strings.Contains(err.Error(), "the key in the keytab is not the KDC's: make the keytab anew") {
		t.Errorf("a client's keytab that is too old: %v", err)
	}
	k.Down()
	expect("a KDC that is down", "no KDC of realm HOPS.TEST answers: is it running, and is krb5.conf right?", to(a.Principal()))
	if err := k.Up(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.User("alice", "-l", "1s"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := login(t, k, cache)
		if err != nil && strings.Contains(err.Error(), "expired at") && strings.Contains(err.Error(), "kinit again") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("tickets of one second, later: %v", err)
		}
	}
}

// A client that runs for long takes the tickets that kinit has written meanwhile, and nobody else's.
func TestTicketsAnew(t *testing.T) {
	k := realm(t)
	a := service(t, k, types[1])
	var l *kerberos.Login
	var cache string
	life := time.Second
	for { // on a busy machine the first ones are over before they are read
		var err error
		if cache, err = k.User("alice", "-l", life.String()); err != nil {
			t.Fatal(err)
		}
		if l, err = login(t, k, cache); err == nil {
			break
		}
		if life *= 2; life > time.Minute {
			t.Fatal(err)
		}
	}
	defer l.Close()
	try := func() error { return talk(a.Exchange(), l.Exchange(a.Principal())) }
	for deadline := time.Now().Add(life + 30*time.Second); try() == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("tickets of %v are good for long", life)
		}
	}
	if _, err := k.User("alice"); err != nil {
		t.Fatal(err)
	}
	if err := try(); err != nil {
		t.Errorf("after kinit: %v", err)
	}
	bob, err := k.User("bob")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(bob, cache); err != nil {
		t.Fatal(err)
	}
	if err := try(); err == nil || !strings.Contains(err.Error(), "is bob@HOPS.TEST's now, and this client began as alice@HOPS.TEST") {
		t.Errorf("with somebody else's tickets: %v", err)
	}
}
