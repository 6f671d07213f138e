package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/roster"
)

// joinable is a namenode of a new cluster, and its authority.
func joinable(t *testing.T) (*member, *authority.Authority) {
	t.Helper()
	credentials, a, err := securitytest.Make(security.NewSecret())
	check(t, err)
	first := Founder(credentials.Member.Self(), credentials.Member.Certificate(), time.Now())
	c := newCluster(t, 1, func(conf *Config) {
		conf.Credentials, conf.Name, conf.Settings = credentials, "lab", map[string]string{"dfs.replication": "2"}
		conf.Servers = config.Servers{Namenodes: []config.NamenodeMember{{ID: "nn1", GRPC: conf.GRPC.Addr().String()}}}
		conf.Founding = func() (*Founding, error) { return &Founding{a, first}, nil }
	})
	return c.nodes[0], a
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Who heard of changes that a backup does not have takes no news of a namenode for older than those.
func TestVersionsGoOnAboveThoseThatARecoveryLost(t *testing.T) {
	m, _ := joinable(t)
	eventually(t, "a level", func() bool { l, err := m.roster.Level(); return err == nil && l.Level == release.Level })
	before, now := m.ns.RegisterVersion(), time.Unix(1795248047, 0)
	check(t, m.noteRecovery(t.Context(), 0, now))
	if v := m.ns.RegisterVersion(); v != before {
		t.Errorf("%d, was %d, and nothing was recovered", v, before)
	}
	for n := range 2 { // the second leader after it does not do it again
		check(t, m.noteRecovery(t.Context(), 1, now.Add(time.Duration(n)*time.Hour)))
		if v := m.ns.RegisterVersion(); v < uint64(now.Unix()) || v > uint64(now.Unix())+1000 {
			t.Errorf("%d, the group was recovered at %d", v, now.Unix())
		}
	}
	check(t, m.noteRecovery(t.Context(), 2, now.Add(2*time.Hour)))
	if v := m.ns.RegisterVersion(); v < uint64(now.Unix())+7200 {
		t.Errorf("%d after the second recovery", v)
	}
}

// joiner is a machine that joins.
type joiner struct {
	*security.Joiner
	token authority.Token
}

func dialToJoin(t *testing.T, m *member, token authority.Token) *joiner {
	t.Helper()
	j, err := security.DialToJoin(t.Context(), m.grpc, token.Authority)
	check(t, err)
	t.Cleanup(func() { j.Close() })
	return &joiner{j, token}
}

func (j *joiner) request(t *testing.T, change func(*pb.Joining)) *pb.JoinRequest {
	t.Helper()
	key, err := authority.NewKey()
	check(t, err)
	request, err := authority.Request(key)
	check(t, err)
	asked := &pb.Joining{Machine: "m2", Roles: []string{"datanode"}, Addresses: []string{"10.0.0.2"}, Request: request, NowMs: time.Now().UnixMilli(), Level: release.Level, Oldest: release.Oldest}
	if change != nil {
		change(asked)
	}
	text, err := proto.Marshal(asked)
	check(t, err)
	return &pb.JoinRequest{Asked: text, Token: j.token.ID, Proof: j.token.Prove(j.Bound, text)}
}

func (j *joiner) join(ctx context.Context, r *pb.JoinRequest) (*pb.JoinResponse, error) {
	return pb.NewAdmissionClient(j).Join(ctx, r)
}

func invite(t *testing.T, m *member, roles ...authority.Role) authority.Token {
	t.Helper()
	token, err := m.roster.Invite(t.Context(), roles, time.Hour, 10)
	check(t, err)
	return token
}

func refused(t *testing.T, what string, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, says)
	}
}

func TestAMachineIsTakenIn(t *testing.T) {
	m, a := joinable(t)
	token := invite(t, m, authority.Datanode, authority.Namenode)
	j := dialToJoin(t, m, token)
	asked := j.request(t, nil)
	_, err := j.join(t.Context(), asked)
	check(t, err)
	answer, err := j.join(t.Context(), asked) // it has not heard that
	check(t, err)
	leaf, err := x509.ParseCertificate(answer.Certified.Certificate)
	check(t, err)
	trust := &authority.Trust{Cluster: a.Cluster(), Roots: []*x509.Certificate{a.Root()}}
	if n, err := trust.Verify(leaf, time.Now()); err != nil || n.Machine != "m2" || n.Generation != 1 || !slices.Equal(n.Roles, []authority.Role{authority.Datanode}) {
		t.Errorf("%v %v", n, err)
	}
	if answer.Name != "lab" || answer.Properties["dfs.replication"] != "2" || len(answer.Members.Namenodes) != 1 || answer.Secret != nil {
		t.Errorf("%v", answer)
	}
	// A namenode gets what namenodes have in common, and is listed.
	answer, err = j.join(t.Context(), j.request(t, func(a *pb.Joining) {
		a.Machine, a.Roles, a.Addresses = "m3", []string{"namenode"}, []string{"10.0.0.3"}
		a.Namenode = &pb.NamenodeAddresses{Id: "another", Ipc: "10.0.0.3:8020", Http: "10.0.0.3:9870", Grpc: "10.0.0.3:8486", Raft: "10.0.0.3:8487"}
	}))
	check(t, err)
	if !bytes.Equal(answer.Secret, m.config.Credentials.Reveal()) || len(answer.Members.Namenodes) != 2 || answer.Members.Namenodes[1].Id != "m3" {
		t.Errorf("%v", answer)
	}
}

func TestWhoDoesNotJoin(t *testing.T) {
	m, a := joinable(t)
	token := invite(t, m, authority.Datanode)
	j := dialToJoin(t, m, token)
	for what, c := range map[string]struct {
		change func(*pb.Joining)
		code   codes.Code
		says   string
	}{
		"its clock an hour behind": {func(a *pb.Joining) { a.NowMs -= time.Hour.Milliseconds() }, codes.InvalidArgument, "1h0m0s behind the cluster's, and 5m0s are allowed: set both by NTP"},
		"its clock an hour ahead":  {func(a *pb.Joining) { a.NowMs += time.Hour.Milliseconds() }, codes.InvalidArgument, "ahead of the cluster's"},
		"no clock":                 {func(a *pb.Joining) { a.NowMs = 0 }, codes.InvalidArgument, "set both by NTP"},
		"another role":             {func(a *pb.Joining) { a.Roles = []string{"nodemanager"} }, codes.Unauthenticated, "it is for datanode, not for nodemanager"},
		"a version from before the cluster was raised": {func(a *pb.Joining) { a.Level, a.Oldest = 1, 1 }, codes.FailedPrecondition, "it knows levels up to 1, the cluster has been raised to"},
		"a version that works only with later levels":  {func(a *pb.Joining) { a.Level, a.Oldest = 99, 98 }, codes.FailedPrecondition, "it works with levels from 98 on, the cluster is at"},
		"no role":                               {func(a *pb.Joining) { a.Roles = nil }, codes.InvalidArgument, "has no role"},
		"a role that is none":                   {func(a *pb.Joining) { a.Roles = []string{"king"} }, codes.Unauthenticated, "not for king"},
		"no name":                               {func(a *pb.Joining) { a.Machine = "" }, codes.InvalidArgument, "a certificate speaks of a machine"},
		"a long name":                           {func(a *pb.Joining) { a.Machine = strings.Repeat("m", 5000) }, codes.InvalidArgument, ""},
		"the founder's name":                    {func(a *pb.Joining) { a.Machine = "test" }, codes.AlreadyExists, "a machine of that name is a member"},
		"too many addresses":                    {func(a *pb.Joining) { a.Addresses = slices.Repeat([]string{"10.1.1.1"}, 65) }, codes.InvalidArgument, "64 are allowed"},
		"an address that is none":               {func(a *pb.Joining) { a.Addresses = []string{"a b"} }, codes.InvalidArgument, "neither an IP address nor the name of a host"},
		"no request":                            {func(a *pb.Joining) { a.Request = nil }, codes.InvalidArgument, "the request for a certificate"},
		"a namenode with none of its addresses": {func(a *pb.Joining) { a.Roles = []string{"namenode"} }, codes.InvalidArgument, "four addresses"},
	} {
		_, err := j.join(t.Context(), j.request(t, c.change))
		refused(t, what, err, c.code, c.says)
	}
	r := j.request(t, nil)
	other := dialToJoin(t, m, token)
	_, err := other.join(t.Context(), r)
	refused(t, "a request that was overheard, on another connection", err, codes.Unauthenticated, "does not know it")
	r = j.request(t, nil)
	r.Asked = append(r.Asked, 0x0a, 1, 'x') // another name, behind the first
	_, err = j.join(t.Context(), r)
	refused(t, "a request that was changed on its way", err, codes.Unauthenticated, "does not know it")
	r = j.request(t, nil)
	r.Asked = []byte("?")
	_, err = j.join(t.Context(), r)
	refused(t, "a request that is none", err, codes.InvalidArgument, "cannot be read")
	if err := m.roster.Withdraw(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	_, err = j.join(t.Context(), j.request(t, nil))
	refused(t, "a token that was withdrawn meanwhile", err, codes.Unauthenticated, "it was withdrawn")

	// Nothing else is for who has not joined.
	_, err = pb.NewDatanodesClient(j).Register(t.Context(), &pb.RegisterRequest{})
	refused(t, "a visitor as a datanode", err, codes.PermissionDenied, "join the cluster first")
	_, err = pb.NewMembershipClient(j).Renew(t.Context(), &pb.RenewRequest{})
	refused(t, "a visitor who asks for a certificate", err, codes.PermissionDenied, "join the cluster first")
	if all, err := m.roster.Machines(); err != nil || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}

	// Somebody in between has no certificate of the authority that the token names.
	posing, _, err := securitytest.Make(security.NewSecret())
	check(t, err)
	l := security.Keyring{Member: posing.Member, Joining: true}.Listen(listen(t))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = c.Read(make([]byte, 1)); c.Close() }()
		}
	}()
	if _, err := security.DialToJoin(t.Context(), l.Addr().String(), authority.FingerprintOf(a.Root())); err == nil || !strings.Contains(err.Error(), "somebody stands in between") {
		t.Errorf("somebody in between: %v", err)
	}
}

// A stranger may not fill the memory of a namenode: it has few bytes.
func TestAStrangerHasFewBytes(t *testing.T) {
	m, _ := joinable(t)
	j := dialToJoin(t, m, invite(t, m, authority.Datanode))
	r := j.request(t, nil)
	r.Asked = make([]byte, 1<<20)
	if _, err := j.join(t.Context(), r); status.Code(err) != codes.Unavailable {
		t.Errorf("a megabyte: %v", err)
	}
}

// verdict is what a namenode says to a certificate.
func verdict(t *testing.T, addr string, i *authority.Identity) string {
	t.Helper()
	raw, err := net.Dial("tcp", addr)
	check(t, err)
	defer raw.Close()
	check(t, raw.SetDeadline(time.Now().Add(limit)))
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2", fmt.Sprintf("hops-program/%d/%d", release.Level, release.Oldest)},
		Certificates: []tls.Certificate{{Certificate: [][]byte{i.Certificate}, PrivateKey: i.Key}},
	})
	check(t, c.Handshake())
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, binary.BigEndian.Uint16(head[2:]))
	_, err = io.ReadFull(c, text)
	check(t, err)
	return string(text)
}

func TestWhoseCertificateIsRefused(t *testing.T) {
	m, a := joinable(t)
	other, err := authority.New(a.Cluster(), time.Now())
	check(t, err)
	self := func(a *authority.Authority, now time.Time) *authority.Identity {
		i, err := a.Self("m9", []authority.Role{authority.Datanode}, nil, now)
		check(t, err)
		return i
	}
	for what, c := range map[string]struct {
		identity *authority.Identity
		says     string
	}{
		"one of the cluster":                   {self(a, time.Now()), ""},
		"one of an authority of the same name": {self(other, time.Now()), authority.ErrForeign.Error()},
		"one that is over":                     {self(a, time.Now().Add(-91*24*time.Hour)), "let the machine join again"},
		"one that has not begun":               {self(a, time.Now().Add(3*time.Hour)), "one of the two clocks is wrong: set both by NTP"},
	} {
		if said := verdict(t, m.grpc, c.identity); c.says == "" && said != "" || !strings.Contains(said, c.says) {
			t.Errorf("%s: %q, want %q", what, said, c.says)
		}
	}
}

// as calls a namenode with the certificate of a machine.
func as(t *testing.T, m *member, i *authority.Identity) *grpc.ClientConn {
	t.Helper()
	own, err := i.Member(time.Now)
	check(t, err)
	conn, err := grpc.NewClient("passthrough:///"+m.grpc, grpc.WithTransportCredentials(security.Credentials{Member: own}.Key(authority.Namenode).Credentials()))
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestAServerHasTheRolesOfItsCertificate(t *testing.T) {
	m, a := joinable(t)
	i, err := a.Self("m7", []authority.Role{authority.NodeManager}, nil, time.Now())
	check(t, err)
	conn := as(t, m, i)
	_, err = pb.NewDatanodesClient(conn).Register(t.Context(), &pb.RegisterRequest{})
	refused(t, "a node manager as a datanode", err, codes.PermissionDenied, authority.ErrRole.Error())
	_, err = pb.NewMembershipClient(conn).Enlist(t.Context(), &pb.EnlistRequest{})
	refused(t, "a node manager as a namenode", err, codes.PermissionDenied, authority.ErrRole.Error())
	_, err = pb.NewAdmissionClient(conn).Join(t.Context(), &pb.JoinRequest{})
	refused(t, "a member that joins", err, codes.PermissionDenied, "this one is a member")
	request, err := authority.Request(i.Key)
	check(t, err)
	_, err = pb.NewMembershipClient(conn).Renew(t.Context(), &pb.RenewRequest{Request: request})
	refused(t, "a certificate of a machine that never joined", err, codes.PermissionDenied, authority.ErrRevoked.Error())
	_, err = pb.NewMembershipClient(conn).Confirm(t.Context(), &pb.ConfirmRequest{Root: []byte("short")})
	refused(t, "half a fingerprint", err, codes.InvalidArgument, "no authority's fingerprint")
}

// Members hear of a removal on the connection that they have, and a removed machine's certificate is not renewed.
func TestMembersHearOfWhoWasRemoved(t *testing.T) {
	m, _ := joinable(t)
	token := invite(t, m, authority.Datanode)
	j := dialToJoin(t, m, token)
	key, err := authority.NewKey()
	check(t, err)
	request, err := authority.Request(key)
	check(t, err)
	answer, err := j.join(t.Context(), j.request(t, func(a *pb.Joining) { a.Request = request }))
	check(t, err)
	root, err := x509.ParseCertificate(answer.Certified.Roots[0])
	check(t, err)
	conn := as(t, m, &authority.Identity{Certificate: answer.Certified.Certificate, Key: key, Roots: []*x509.Certificate{root}})
	client := pb.NewMembershipClient(conn)
	renewed, err := client.Renew(t.Context(), &pb.RenewRequest{Request: request})
	check(t, err)
	if bytes.Equal(renewed.Certificate, answer.Certified.Certificate) {
		t.Error("it is the same certificate")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	stream, err := client.Follow(ctx, &pb.FollowRequest{})
	check(t, err)
	for removed := false; ; {
		news, err := stream.Recv()
		check(t, err)
		if news.Removed["m2"] == 1 {
			break
		}
		if !removed {
			removed = true
			check(t, m.roster.Remove(t.Context(), "m2", false))
		}
	}
	_, err = client.Renew(t.Context(), &pb.RenewRequest{Request: request})
	refused(t, "a removed machine's renewal", err, codes.PermissionDenied, authority.ErrRevoked.Error())
	if err := m.roster.Remove(t.Context(), "m99", false); err == nil || !strings.Contains(err.Error(), roster.ErrUnknown.Error()) {
		t.Errorf("a machine that is none: %v", err)
	}
}
