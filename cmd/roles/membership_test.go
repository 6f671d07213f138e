package roles

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// newMember is the membership of a machine whose lists are in servers.yaml.
func newMember(t *testing.T) (*membership, *authority.Authority, *strings.Builder) {
	t.Helper()
	dir := t.TempDir()
	a, err := authority.New("CID-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, err := a.Self("m1", authority.Roles, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f := &config.File{Followed: true, Cluster: config.Cluster{Name: "lab", Identity: filepath.Join(dir, "identity.pem"), Servers: filepath.Join(dir, "servers.yaml"), Conf: filepath.Join(dir, "conf")}}
	if err := i.Write(f.Cluster.Identity); err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	m, err := newMembership(f, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return m, a, log
}

func news(a *authority.Authority, version uint64, namenodes ...string) *pb.Members {
	f := authority.FingerprintOf(a.Root())
	m := &pb.Members{Version: version, Cluster: a.Cluster(), Roots: [][]byte{a.Root().Raw}, Removed: map[string]uint64{}, Issuer: f[:], NowMs: time.Now().UnixMilli()}
	for _, n := range namenodes {
		m.Namenodes = append(m.Namenodes, &pb.NamenodeAddresses{Id: n, Ipc: n + ":8020", Http: n + ":9870", Grpc: n + ":8486", Raft: n + ":8487"})
	}
	return m
}

func TestWhatANamenodeSaysIsFollowed(t *testing.T) {
	m, a, log := newMember(t)
	heard := 0
	m.follow(func(config.Servers) error { heard++; return nil })
	take := func(n *pb.Members) {
		t.Helper()
		if err := m.take(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	first := news(a, 5, "10.0.0.1")
	first.Removed["m9"] = 2
	take(first)
	list, err := config.LoadServers(m.file)
	if err != nil || len(list.Namenodes) != 1 || list.Removed["m9"] != 2 || heard != 1 {
		t.Fatalf("%+v %v, heard %d times", list, err, heard)
	}
	if gone := m.keeper.Member.Trusts().Removed["m9"]; gone != 2 {
		t.Errorf("m9 is trusted up to generation %d", gone)
	}
	for range 3 {
		take(news(a, 4, "10.0.0.2")) // from one that lags behind
	}
	if n := strings.Count(log.String(), "is older than what is known here"); n != 1 {
		t.Errorf("said %d times that it lags behind", n)
	}
	if now := m.now(); now.Namenodes[0].ID != "10.0.0.1" || heard != 1 {
		t.Errorf("what is older counts: %+v", now)
	}
	take(news(a, 6, "10.0.0.1", "10.0.0.2"))
	if heard != 2 || len(m.now().Namenodes) != 2 {
		t.Errorf("%+v, heard %d times", m.now(), heard)
	}
	conf, err := os.ReadFile(filepath.Join(filepath.Dir(m.file), "conf", "hdfs-site.xml"))
	if err != nil || !strings.Contains(string(conf), "10.0.0.2:8020") {
		t.Errorf("clients do not hear of it: %s %v", conf, err)
	}
	late := news(a, 7, "10.0.0.1")
	late.NowMs += time.Hour.Milliseconds()
	take(late)
	take(late)
	if strings.Count(log.String(), "this machine's clock and the cluster's differ") != 1 {
		t.Errorf("a clock that is an hour off: %s", log)
	}

	other, err := authority.New("CID-2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change func(*pb.Members)
		says   string
	}{
		"another cluster":        {func(m *pb.Members) { m.Cluster, m.Roots = "CID-2", [][]byte{other.Root().Raw} }, "it is of cluster CID-2"},
		"no authority":           {func(m *pb.Members) { m.Roots = nil }, "cut off"},
		"an authority that none": {func(m *pb.Members) { m.Roots = [][]byte{{1, 2, 3}} }, "an authority"},
		"no namenode":            {func(m *pb.Members) { m.Namenodes = nil }, "lists no namenode"},
	} {
		n := news(a, 8, "10.0.0.3")
		c.change(n)
		if err := m.take(t.Context(), n); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if !m.keeper.Member.Roots()[0].Equal(a.Root()) || len(m.now().Namenodes) != 1 {
			t.Fatalf("%s is believed", what)
		}
	}
}

func TestTheLevelThatANamenodeTellsIsHeeded(t *testing.T) {
	m, a, _ := newMember(t)
	if level := m.keeper.Member.Level(); level != 1 {
		t.Errorf("level %d before anything was heard", level)
	}
	for version, level := range []uint32{0, 1, release.Level} { // 0: a namenode from before there were levels
		told := news(a, uint64(version+1), "10.0.0.1")
		told.Level = level
		if err := m.take(t.Context(), told); err != nil {
			t.Fatal(err)
		}
		if is := m.keeper.Member.Level(); is != int(max(level, 1)) {
			t.Errorf("level %d, told was %d", is, level)
		}
	}
	foreign := news(a, 8, "10.0.0.1")
	foreign.Cluster, foreign.Level = "CID-2", release.Level
	later := news(a, 9, "10.0.0.1")
	later.Level = release.Level + 1
	if err := m.take(t.Context(), foreign); err == nil {
		t.Error("another cluster is believed")
	}
	if err := m.take(t.Context(), later); !errors.Is(err, release.ErrOlder) {
		t.Errorf("a level that is not known: %v", err)
	}
	if is := m.keeper.Member.Level(); is != release.Level {
		t.Errorf("level %d", is)
	}
}

// A process whose version is refused ends with what the namenode has said: another program is all that helps.
func TestAVersionThatIsRefusedEndsTheProcess(t *testing.T) {
	reason := (release.Program{Level: 1, Oldest: 1}).In(2)
	text := fmt.Sprintf("rpc error: code = Unavailable desc = connection error: desc = \"transport: authentication handshake failed: not let in: 10.0.0.1:8486: %v: %q\"", authority.ErrRefused, reason)
	if err := unfit(errors.New(text)); err == nil || err.Error() != "the cluster refuses this program: "+reason.Error() {
		t.Errorf("%v", err)
	}
	for _, other := range []error{
		nil, errors.New("connection refused"), fmt.Errorf("%w: %q", authority.ErrRefused, authority.ErrRevoked),
		reason, // about a namenode that is too old itself: another one may not be
	} {
		if err := unfit(other); err != nil {
			t.Errorf("%v ends it: %v", other, err)
		}
	}
}

func TestAProcessSaysWhatItIs(t *testing.T) {
	m, _, _ := newMember(t)
	m.serves(authority.Namenode, "nn1")
	m.serves(authority.Datanode, "")
	p := m.program()
	if p.Level != release.Level || p.Oldest != release.Oldest || len(p.Servers) != 2 || p.Servers[0].Id != "nn1" || p.Servers[1].Role != "datanode" || p.Version == "" {
		t.Errorf("%v", p)
	}
}

func TestARemovedMachineSaysSoOnce(t *testing.T) {
	m, _, log := newMember(t)
	for range 3 {
		m.refused("10.0.0.1:8486", errors.New("connection error: "+authority.ErrRevoked.Error()+": machine m1"))
	}
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "join with a new token") {
		t.Error(text)
	}
}

// Who was removed is known before any namenode has been heard.
func TestWhoWasRemovedIsRememberedOverARestart(t *testing.T) {
	m, _, _ := newMember(t)
	f := &config.File{Followed: true, Cluster: config.Cluster{Name: "lab", Identity: m.keeper.Path, Servers: m.file}, Removed: map[string]uint64{"m9": 3}}
	again, err := newMembership(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if again.keeper.Member.Trusts().Removed["m9"] != 3 {
		t.Error("it is forgotten")
	}
}

func TestNobodyIsAskedWhereNobodyIsListed(t *testing.T) {
	m, _, _ := newMember(t)
	if _, _, err := m.renew(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no namenode is listed") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.run(ctx); err != nil {
		t.Error(err)
	}
}

// Several servers of a new cluster's first machine make one authority.
func TestAMachineIsFoundedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "identity.pem")
	done := make(chan error)
	for range 8 {
		go func() { done <- Found(path, "m1", authority.Roles, []string{"10.0.0.1"}) }()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	i, err := authority.LoadIdentity(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := readAuthority(filepath.Join(filepath.Dir(path), authorityFile))
	if err != nil {
		t.Fatal(err)
	}
	if !a.Root().Equal(i.Roots[0]) {
		t.Error("the authority is another one")
	}
	b := &Builder{File: &config.File{Cluster: config.Cluster{Identity: path}}, Logger: slog.New(slog.DiscardHandler)}
	b.founded(&authority.Trust{})
	if _, err := os.Stat(b.authorityFile()); err != nil {
		t.Errorf("a key that the register has not is gone: %v", err)
	}
	b.founded(&authority.Trust{Roots: []*x509.Certificate{a.Root()}})
	if _, err := os.Stat(b.authorityFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key lies there still: %v", err)
	}
}

// FuzzMembers: what a namenode says is read, or refused.
func FuzzMembers(f *testing.F) {
	a, err := authority.New("CID-1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add("CID-1", a.Root().Raw, "10.0.0.1:8486")
	f.Add("", []byte{0x30, 0x80}, "")
	f.Fuzz(func(t *testing.T, cluster string, root []byte, addr string) {
		trust, servers, err := MembersOf(&pb.Members{Cluster: cluster, Roots: [][]byte{root}, Namenodes: []*pb.NamenodeAddresses{{Grpc: addr}}})
		if err == nil && (len(trust.Roots) != 1 || len(servers.Namenodes) != 1) {
			t.Errorf("%+v %+v", trust, servers)
		}
	})
}
