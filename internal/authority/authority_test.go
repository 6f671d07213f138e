package authority

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const cluster = "CID-0b2f"

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func newAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a, err := New(name, start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func issue(t testing.TB, a *Authority, key crypto.Signer, n Name, when time.Time) []byte {
	t.Helper()
	request, err := Request(key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Issue(request, n, []string{"127.0.0.1", "m1.example.org"}, when, MachineLife)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func trustOf(a *Authority) *Trust {
	return &Trust{Cluster: a.Cluster(), Roots: []*x509.Certificate{a.Root()}}
}

func newMember(t testing.TB, a *Authority, now time.Time, machine string, roles ...Role) *Member {
	t.Helper()
	key := newKey(t)
	slices.Sort(roles)
	m, err := NewMember(Config{
		Key: key, Certificate: issue(t, a, key, Name{Machine: machine, Generation: 1, Roles: roles}, now), Trust: trustOf(a), Now: at(now),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// meet connects two sides over a socket and returns what each got.
func meet(t *testing.T, server func(net.Conn) (*Conn, error), client func(net.Conn) (*Conn, error)) (s, c *Conn, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			serverErr = err
			return
		}
		s, serverErr = server(raw)
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, clientErr = client(raw)
	if clientErr != nil {
		raw.Close()
	}
	<-done
	for _, conn := range []*Conn{s, c} {
		if conn != nil {
			t.Cleanup(func() { conn.Close() })
		}
	}
	return s, c, serverErr, clientErr
}

func accept(t *testing.T, m *Member, d Door) func(net.Conn) (*Conn, error) {
	return func(c net.Conn) (*Conn, error) { return m.Accept(t.Context(), c, d) }
}

func connect(t *testing.T, m *Member, d Door) func(net.Conn) (*Conn, error) {
	return func(c net.Conn) (*Conn, error) { return m.Connect(t.Context(), c, d) }
}

func TestMembersMeet(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	text, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text) // on another machine
	if err != nil {
		t.Fatal(err)
	}
	nn := newMember(t, a, start, "m1", Namenode)
	dn := newMember(t, again, start, "m2", Datanode, NodeManager)
	s, c, serverErr, clientErr := meet(t, accept(t, nn, Door{Roles: []Role{Datanode}}), connect(t, dn, Door{Roles: []Role{Namenode}}))
	if serverErr != nil || clientErr != nil {
		t.Fatal(serverErr, clientErr)
	}
	if s.Peer().Machine != "m2" || !s.Peer().Has(NodeManager) || c.Peer().Machine != "m1" {
		t.Errorf("the server sees %v, the client %v", s.Peer(), c.Peer())
	}
	if v := c.ConnectionState().Version; v != tls.VersionTLS13 {
		t.Errorf("version %x", v)
	}
	go s.Write([]byte("hello"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}
	// After two thirds of 90 days.
	if at := nn.RenewAt(); !at.Equal(start.Add(60 * 24 * time.Hour)) {
		t.Errorf("it is renewed at %v", at)
	}
}

// TestWhoIsNotLetIn has who tried what, and the line that each side is told.
func TestWhoIsNotLetIn(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	nn := newMember(t, a, start, "m1", Namenode)
	day := 24 * time.Hour
	removed := trustOf(a)
	removed.Removed = map[string]uint64{"m9": 1}
	strict := newMember(t, a, start, "m1", Namenode)
	strict.Believe(removed)
	// late is a namenode 100 days later, with a certificate of its own that is good.
	late := newMember(t, a, start.Add(100*day), "m1", Namenode)
	old := newMember(t, a, start, "m2", Datanode) // which nobody renewed
	old.now = at(start.Add(100 * day))
	self := func(name string, roles ...Role) *Member { // certified by itself
		own := newAuthority(t, cluster)
		return newMember(t, own, start, name, roles...)
	}
	trusting := func(m *Member) *Member { m.Believe(trustOf(a)); return m }
	for _, c := range []struct {
		who            string
		server, client *Member
		door           Door
		serverIs       error
		clientSays     string
	}{
		{"another cluster's machine", nn, newMember(t, newAuthority(t, "CID-other"), start, "m2", Datanode), Door{}, nil, "not of this cluster"},
		{"a certificate that its owner made", nn, trusting(self("m2", Datanode)), Door{}, ErrForeign, "the certificate is not of this cluster"},
		{"a wrong role", nn, newMember(t, a, start, "m2", Datanode), Door{Roles: []Role{Namenode}}, ErrRole, "machine m2 (datanode) is not namenode"},
		{"a machine that was removed", strict, newMember(t, a, start, "m9", Datanode), Door{}, ErrRevoked, "give it a new token and let it join"},
		{"one whose certificate is over", late, old, Door{}, ErrTime, "ended 240h0m0s ago"},
		{"one whose clock is two days ahead", nn, newMember(t, a, start.Add(2*day), "m2", Datanode), Door{}, ErrTime, "one of the two clocks is wrong"},
	} {
		_, _, serverErr, clientErr := meet(t, accept(t, c.server, c.door), connect(t, c.client, Door{}))
		if c.serverIs != nil && !errors.Is(serverErr, c.serverIs) || serverErr == nil {
			t.Errorf("%s: the server says %v", c.who, serverErr)
		}
		if clientErr == nil || !strings.Contains(clientErr.Error(), c.clientSays) {
			t.Errorf("%s: the client says %v", c.who, clientErr)
		}
	}

	t.Run("a server that has not the role", func(t *testing.T) {
		dn := newMember(t, a, start, "m3", Datanode)
		_, _, _, err := meet(t, accept(t, dn, Door{}), connect(t, nn, Door{Roles: []Role{Namenode}}))
		if !errors.Is(err, ErrRole) {
			t.Error(err)
		}
	})
	t.Run("no certificate", func(t *testing.T) {
		bare := func(c net.Conn) (*Conn, error) {
			conn := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			_, err := conn.Read(make([]byte, 1))
			return nil, err
		}
		if _, _, err, _ := meet(t, accept(t, nn, Door{}), bare); err == nil {
			t.Error("let in")
		}
		s, _, err, _ := meet(t, accept(t, nn, Door{Strangers: true}), func(c net.Conn) (*Conn, error) {
			return nil, tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
		})
		if err != nil || s.Peer() != nil {
			t.Errorf("a client at a door for strangers: %v %v", s, err)
		}
	})
	t.Run("a client's bad certificate", func(t *testing.T) {
		s, _, err, _ := meet(t, accept(t, nn, Door{Strangers: true}), connect(t, trusting(self("m2", Datanode)), Door{Strangers: true}))
		if err != nil || s.Peer() != nil || !errors.Is(s.Refused(), ErrForeign) {
			t.Errorf("%v %v", s, err)
		}
	})
	t.Run("an older TLS", func(t *testing.T) {
		old := func(c net.Conn) (*Conn, error) {
			return nil, tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}).Handshake()
		}
		if _, _, err, _ := meet(t, accept(t, nn, Door{Strangers: true}), old); err == nil || !strings.Contains(err.Error(), "version") {
			t.Error(err)
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "hrpc\x09\x00\x00", "\x16\x03\x01"} {
			plain := func(c net.Conn) (*Conn, error) {
				io.WriteString(c, text)
				c.(*net.TCPConn).CloseWrite()
				_, err := io.ReadAll(c)
				return nil, err
			}
			if _, _, err, _ := meet(t, accept(t, nn, Door{}), plain); err == nil {
				t.Errorf("%q is let in", text)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server := func(c net.Conn) (*Conn, error) {
			time.AfterFunc(10*time.Millisecond, cancel)
			return nn.Accept(ctx, c, Door{})
		}
		silent := func(c net.Conn) (*Conn, error) { _, err := io.ReadAll(c); return nil, err }
		if _, _, err, _ := meet(t, server, silent); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestRemovedMachineLosesItsConnections: at once, on running connections too; after a new token it is another generation.
func TestRemovedMachineLosesItsConnections(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	nn := newMember(t, a, start, "m1", Namenode)
	gone, stays := newMember(t, a, start, "m2", Datanode), newMember(t, a, start, "m3", Datanode)
	_, c2, _, err2 := meet(t, accept(t, nn, Door{}), connect(t, gone, Door{}))
	s3, c3, _, err3 := meet(t, accept(t, nn, Door{}), connect(t, stays, Door{}))
	if err2 != nil || err3 != nil {
		t.Fatal(err2, err3)
	}
	newer := trustOf(a)
	newer.Removed = map[string]uint64{"m2": 1}
	nn.Believe(newer)
	if _, err := c2.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the removed machine's connection: %v", err)
	}
	go s3.Write([]byte("x"))
	if _, err := c3.Read(make([]byte, 1)); err != nil {
		t.Errorf("another machine's connection: %v", err)
	}
	if _, _, err, _ := meet(t, accept(t, nn, Door{}), connect(t, gone, Door{})); !errors.Is(err, ErrRevoked) {
		t.Errorf("it comes back: %v", err)
	}
	key := newKey(t)
	again, err := NewMember(Config{Key: key, Certificate: issue(t, a, key, Name{Machine: "m2", Generation: 2, Roles: []Role{Datanode}}, start), Trust: newer, Now: at(start)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err, _ := meet(t, accept(t, nn, Door{}), connect(t, again, Door{})); err != nil {
		t.Errorf("after it joined again: %v", err)
	}
}

// Who has shown a certificate that is revoked since loses the connection, and gets no other.
func TestARevokedCertificateEndsItsConnections(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	server := newMember(t, a, start, "m1", Namenode)
	of := func(id string) *Member {
		key := newKey(t)
		m, err := NewMember(Config{Key: key, Certificate: issue(t, a, key, Name{User: "ann", ID: id}, start), Trust: trustOf(a), Now: at(start)})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first, second := of("id1"), of("id2")
	s, c, _, err := meet(t, accept(t, server, Door{}), connect(t, first, Door{}))
	if err != nil || s.Peer().User != "ann" || s.Peer().ID != "id1" {
		t.Fatal(err)
	}
	trust := *trustOf(a)
	trust.Revoked = []string{"id1"}
	server.Believe(&trust)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
	if _, _, err, _ := meet(t, accept(t, server, Door{}), connect(t, first, Door{})); !errors.Is(err, ErrWithdrawn) || !strings.Contains(err.Error(), "hops user certificate") {
		t.Errorf("another one: %v", err)
	}
	if _, _, err, _ := meet(t, accept(t, server, Door{}), connect(t, second, Door{})); err != nil {
		t.Errorf("another certificate of the same user: %v", err)
	}
}

// TestAuthorityIsRotated: with both authorities in everybody's trust, members change over one by one and meet all the time.
func TestAuthorityIsRotated(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t, cluster), newAuthority(t, cluster)
	both := &Trust{Cluster: cluster, Roots: []*x509.Certificate{old.Root(), next.Root()}}
	m1, m2 := newMember(t, old, start, "m1", Namenode), newMember(t, old, start, "m2", Datanode)
	check := func(step string) {
		t.Helper()
		if _, _, serverErr, clientErr := meet(t, accept(t, m1, Door{}), connect(t, m2, Door{})); serverErr != nil || clientErr != nil {
			t.Fatalf("%s: %v %v", step, serverErr, clientErr)
		}
	}
	m1.Believe(both)
	check("one trusts the next one too")
	m2.Believe(both)
	if err := m1.Renewed(issue(t, next, m1.key, *m1.Self(), start)); err != nil {
		t.Fatal(err)
	}
	check("one has a certificate of the next one")
	if err := m2.Renewed(issue(t, next, m2.key, *m2.Self(), start)); err != nil {
		t.Fatal(err)
	}
	m1.Believe(trustOf(next))
	m2.Believe(trustOf(next))
	check("the old one is gone")
	if err := m1.Renewed(issue(t, old, m1.key, *m1.Self(), start)); !errors.Is(err, ErrForeign) {
		t.Errorf("a certificate of the old one: %v", err)
	}
	if err := m1.Renewed(issue(t, next, newKey(t), *m1.Self(), start)); err == nil {
		t.Error("a certificate for another key is taken")
	}
}

func TestAMachineJoinsByToken(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	nn, dn := newMember(t, a, start, "m1", Namenode), newMember(t, a, start, "m2", Datanode)
	token, kept := NewInvitation(FingerprintOf(a.Root()), []Role{Datanode, NodeManager}, start.Add(time.Hour), 2)
	pasted, err := ParseToken(" " + token.String() + "\n")
	if err != nil || pasted != token {
		t.Fatalf("%v %v", pasted, err)
	}
	join := func(server *Member, token Token) (root *x509.Certificate, err error) {
		_, _, _, err = meet(t, accept(t, server, Door{Strangers: true}), func(c net.Conn) (*Conn, error) {
			conn, r, err := (&Visitor{Authority: token.Authority, Now: at(start)}).Connect(t.Context(), c, Door{Roles: []Role{Namenode}}, nil)
			root = r
			if err == nil {
				conn.Close()
			}
			return nil, err
		})
		return root, err
	}
	root, err := join(nn, token)
	if err != nil || !root.Equal(a.Root()) {
		t.Errorf("%v %v", root, err)
	}
	if _, err := join(dn, token); !errors.Is(err, ErrRole) {
		t.Errorf("a datanode that poses as the cluster: %v", err)
	}
	if _, err := join(newMember(t, newAuthority(t, cluster), start, "m1", Namenode), token); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "stands in between") {
		t.Errorf("somebody in between: %v", err)
	}

	for what, c := range map[string]struct {
		change func(*Invitation, *Token, *[]Role, *time.Time)
		says   string
	}{
		"in time":      {func(*Invitation, *Token, *[]Role, *time.Time) {}, ""},
		"too late":     {func(_ *Invitation, _ *Token, _ *[]Role, now *time.Time) { *now = now.Add(time.Hour) }, "it ended at 2026-03-01T13:00:00Z"},
		"used up":      {func(i *Invitation, _ *Token, _ *[]Role, _ *time.Time) { i.Uses = 0 }, "as often as it may be"},
		"another role": {func(_ *Invitation, _ *Token, r *[]Role, _ *time.Time) { *r = []Role{Datanode, Namenode} }, "it is for datanode, nodemanager, not for namenode"},
		"guessed":      {func(_ *Invitation, t *Token, _ *[]Role, _ *time.Time) { t.Secret[3] ^= 1 }, "does not know it"},
	} {
		i, shown, roles, now := kept, token, []Role{Datanode}, start
		c.change(&i, &shown, &roles, &now)
		proof := shown.Prove([]byte("this connection"), []byte("to join"))
		err := i.Admit(proof, []byte("this connection"), []byte("to join"), roles, now)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrToken) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	proof := token.Prove([]byte("this connection"), []byte("to join"))
	if err := kept.Admit(proof, []byte("another connection"), []byte("to join"), nil, start); !errors.Is(err, ErrToken) {
		t.Errorf("a proof that was overheard, on another connection: %v", err)
	}
	if err := kept.Admit(proof, []byte("this connection"), []byte("to join as somebody else"), nil, start); !errors.Is(err, ErrToken) {
		t.Errorf("a proof of something else: %v", err)
	}
	for _, text := range []string{"", "hops1", "hops2." + token.ID + ".AAAA", token.String()[:60], token.String() + "A", strings.Replace(token.String(), ".", "", 1)} {
		if _, err := ParseToken(text); err == nil {
			t.Errorf("%q is taken for a token", text)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	good, err := Request(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no weak keys: ", err)
	}
	weakRequest, err := Request(weak)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curveRequest, err := Request(curve)
	if err != nil {
		t.Fatal(err)
	}
	forged := slices.Clone(good)
	forged[len(forged)-1] ^= 1
	m := Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode}}
	for what, c := range map[string]struct {
		request   []byte
		name      Name
		addresses []string
		now       time.Time
	}{
		"nothing":             {nil, m, nil, start},
		"half":                {good[:len(good)/2], m, nil, start},
		"too long":            {make([]byte, maxRequest+1), m, nil, start},
		"a weak key":          {weakRequest, m, nil, start},
		"an unknown curve":    {curveRequest, m, nil, start},
		"not its own key":     {forged, m, nil, start},
		"no role":             {good, Name{Machine: "m1", Generation: 1}, nil, start},
		"an unknown role":     {good, Name{Machine: "m1", Generation: 1, Roles: []Role{"king"}}, nil, start},
		"a role twice":        {good, Name{Machine: "m1", Generation: 1, Roles: []Role{Datanode, Datanode}}, nil, start},
		"no generation":       {good, Name{Machine: "m1", Roles: []Role{Datanode}}, nil, start},
		"a path for a name":   {good, Name{Machine: "../m1", Generation: 1, Roles: []Role{Datanode}}, nil, start},
		"both":                {good, Name{Machine: "m1", User: "ann", Generation: 1, Roles: []Role{Datanode}}, nil, start},
		"neither":             {good, Name{}, nil, start},
		"a user with a role":  {good, Name{User: "ann", Roles: []Role{Namenode}}, nil, start},
		"another cluster":     {good, Name{Cluster: "CID-other", User: "ann"}, nil, start},
		"an address":          {good, m, []string{"a b"}, start},
		"a wildcard":          {good, m, []string{"*.example.org"}, start},
		"everywhere":          {good, m, []string{"0.0.0.0"}, start},
		"too many":            {good, m, slices.Repeat([]string{"10.0.0.1"}, maxAddresses+1), start},
		"after the authority": {good, m, nil, start.Add(RootLife)},
	} {
		if _, err := a.Issue(c.request, c.name, c.addresses, c.now, MachineLife); err == nil {
			t.Errorf("%s: it is certified", what)
		}
	}
	der, err := a.Issue(good, Name{User: "ann"}, nil, start.Add(RootLife-time.Hour), MachineLife)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(der); err != nil || !c.NotAfter.Equal(a.Root().NotAfter) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		t.Errorf("a user's certificate at the end of the authority: %v %v", c, err)
	}
}

func TestNamesAreWrittenOneWay(t *testing.T) {
	t.Parallel()
	for _, n := range []Name{
		{Cluster: cluster, Machine: "m-1.example", Generation: 7, Roles: []Role{Datanode, Namenode}},
		{Cluster: cluster, User: ".."},
		{Cluster: cluster, User: "a/b c%2F?#"},
		{Cluster: cluster, User: "Jürgen"},
	} {
		got, err := parseName(n.uris())
		if err != nil || !reflect.DeepEqual(*got, n) {
			t.Errorf("%v: %v %v", n, got, err)
		}
		// and through a certificate
		a := newAuthority(t, cluster)
		leaf, err := x509.ParseCertificate(issue(t, a, newKey(t), n, start))
		if err != nil {
			t.Fatal(err)
		}
		got, err = trustOf(a).Verify(leaf, start)
		if err != nil || !reflect.DeepEqual(*got, n) {
			t.Errorf("%v in a certificate: %v %v", n, got, err)
		}
	}
}

func TestHalfAFileIsAnError(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, cluster)
	text, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	roots := MarshalRoots([]*x509.Certificate{a.Root(), newAuthority(t, cluster).Root()})
	if got, err := ParseRoots(roots); err != nil || len(got) != 2 {
		t.Fatalf("%d %v", len(got), err)
	}
	for n := 0; n < len(text)-1; n += 7 {
		if _, err := Parse(text[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes of an authority are taken", n, len(text))
		}
	}
	one := len(MarshalRoots([]*x509.Certificate{a.Root()}))
	for n := 0; n < len(roots)-1; n += 7 {
		if _, err := ParseRoots(roots[:n]); err == nil && n != one && n != one-1 { // without the end of the line
			t.Fatalf("the first %d of %d bytes of the roots are taken", n, len(roots))
		}
	}
	if _, err := ParseRoots(text); err == nil {
		t.Error("a key stands among the roots")
	}
}
