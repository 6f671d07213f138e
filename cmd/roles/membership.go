package roles

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/internal/status"
	pb "github.com/gohops/hops/namenode/api/v1"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

const (
	// followAgain is the first pause after no namenode could be followed; it doubles up to followMost.
	followAgain = 100 * time.Millisecond
	followMost  = 2 * time.Second
	// callTime is how long a namenode may take to answer about members.
	callTime = 5 * time.Second
	// maxMembers is the size of the largest list of members that is taken, in bytes.
	maxMembers = 16 << 20
)

// membership keeps a process told of the cluster: whom it trusts, where the namenodes and resource managers are; and it has its machine's
// certificate renewed.
type membership struct {
	keeper *authority.Keeper
	// file is servers.yaml; empty: the lists of hops.yaml count.
	file string
	conf func(config.Servers) error // writes clients' configuration; nil: there is none
	// users checks tokens of users, with the keys that namenodes tell of.
	users *usertoken.Verifier
	log   *slog.Logger

	mu      sync.Mutex
	servers config.Servers
	roles   []*pb.ServerOf // of this process
	setters []func(config.Servers) error
	rooted  []func() error // hear that other authorities are trusted
	version uint64         // of the newest news
	skewed  bool           // it was said that the clocks differ
	gone    bool           // it was said that this machine was removed
	behind  bool           // it was said that news are older than what is known
	asked   authority.Fingerprint
}

// Membership are the parts by which a process is told of its cluster. They come first in a program.
func (b *Builder) Membership() []program.Part {
	return []program.Part{{Name: "membership", Run: b.membership.run}, {Name: "certificate", Run: b.membership.keeper.Run}}
}

// newMembership reads the machine's identity.
func newMembership(f *config.File, logger *slog.Logger) (*membership, error) {
	m := &membership{log: logger, users: usertoken.NewVerifier(time.Now), servers: config.Servers{Namenodes: f.Namenodes, ResourceManagers: f.ResourceManagers}}
	if f.Followed {
		m.file = f.Cluster.Servers
	}
	k, err := authority.NewKeeper(authority.KeeperConfig{Path: f.Cluster.Identity, Renew: m.renew, Now: time.Now, Logger: logger})
	if err != nil {
		return nil, err
	}
	m.keeper = k
	if len(f.Removed)+len(f.Revoked) > 0 { // who was removed while this process did not run
		trust := *k.Member.Trusts()
		trust.Removed, trust.Revoked = f.Removed, f.Revoked
		k.Member.Believe(&trust)
	}
	if f.Followed && f.Cluster.Conf != "" {
		m.conf = func(s config.Servers) error {
			now := *f
			now.Namenodes, now.ResourceManagers = s.Namenodes, s.ResourceManagers
			return WriteConf(f.Cluster.Conf, &now, k.Member.Roots())
		}
		if err := m.conf(m.servers); err != nil {
			logger.Warn("the configuration of clients cannot be written", "dir", f.Cluster.Conf, "error", err)
		}
	}
	return m, nil
}

// now are the cluster's servers.
func (m *membership) now() config.Servers {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.servers
}

// relist replaces the servers by those of a changed hops.yaml.
func (m *membership) relist(s config.Servers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers = s
}

// follow calls set whenever the cluster's servers change.
func (m *membership) follow(set func(config.Servers) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setters = append(m.setters, set)
}

// onRoots calls tell whenever other authorities are trusted.
func (m *membership) onRoots(tell func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rooted = append(m.rooted, tell)
}

// run follows one namenode after the other until ctx is done.
func (m *membership) run(ctx context.Context) error {
	for pause := followAgain; ; {
		for _, n := range m.now().Namenodes {
			told, err := m.listen(ctx, n.GRPC)
			if ctx.Err() != nil {
				return nil
			}
			if err := unfit(err); err != nil {
				return err
			}
			if told {
				pause = followAgain
			} else {
				m.refused(n.GRPC, err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, followMost)
	}
}

// unfit is a namenode's refusal of the version that this program is of: nothing but another one helps. Nil for other errors.
func unfit(err error) error {
	text := fmt.Sprint(err)
	if _, text, refused := strings.Cut(text, authority.ErrRefused.Error()); refused {
		for _, kind := range []error{release.ErrOlder, release.ErrNewer} {
			if at := strings.Index(text, kind.Error()); at >= 0 {
				return fmt.Errorf("the cluster refuses this program: %s", strings.TrimRight(text[at:], "\"\\"))
			}
		}
	}
	return nil
}

// program is what this process says of itself.
func (m *membership) program() *pb.Program {
	p := m.keeper.Member.Program()
	m.mu.Lock()
	defer m.mu.Unlock()
	return &pb.Program{Servers: slices.Clone(m.roles), Version: status.Version, Level: uint32(p.Level), Oldest: uint32(p.Oldest)}
}

// serves notes a server of this process; id is its name in the lists of namenodes or resource managers.
func (m *membership) serves(role authority.Role, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roles = append(m.roles, &pb.ServerOf{Role: string(role), Id: id})
}

// refused says why nothing is heard of a namenode, where somebody has to do something.
func (m *membership) refused(addr string, err error) {
	text := fmt.Sprint(err)
	switch {
	case strings.Contains(text, authority.ErrForeign.Error()):
		if err := m.keeper.Reload(); err != nil { // another process of the machine may have heard of another authority
			m.log.Debug("the identity cannot be read again", "error", err)
		}
	case strings.Contains(text, authority.ErrRevoked.Error()):
		m.mu.Lock()
		said := m.gone
		m.gone = true
		m.mu.Unlock()
		if !said {
			dir := filepath.Dir(m.keeper.Path)
			m.log.Error("this machine was removed from the cluster: its servers are let in nowhere. To take it in again, stop them, remove hops.yaml, "+
				"servers.yaml and identity.pem from "+dir+", and join with a new token (`hops cluster token` on a member)", "machine", m.keeper.Member.Self().Machine, "namenode", addr)
		}
	}
	m.log.Debug("a namenode does not tell who the members are", "namenode", addr, "error", err)
}

// dial connects to a namenode.
func (m *membership) dial(addr string) (*grpc.ClientConn, error) {
	key := security.Credentials{Member: m.keeper.Member}.Key(authority.Namenode)
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(key.Credentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMembers)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
}

// listen hears of one namenode what changes. told: it has said something.
func (m *membership) listen(ctx context.Context, addr string) (told bool, err error) {
	conn, err := m.dial(addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := pb.NewMembershipClient(conn).Follow(ctx, &pb.FollowRequest{Program: m.program()})
	if err != nil {
		return false, err
	}
	for {
		news, err := stream.Recv()
		if err != nil {
			return told, err
		}
		told = true
		if err := m.take(ctx, news); err != nil {
			m.log.Warn("what a namenode says of the members is not followed, asking again", "namenode", addr, "error", err)
			return false, err
		}
	}
}

// take believes what a namenode says.
func (m *membership) take(ctx context.Context, news *pb.Members) error {
	m.mu.Lock()
	if news.Version < m.version { // it lags behind another one, or the cluster was made anew of a backup and its leader has not noted that yet
		known, said := m.version, m.behind
		m.behind = true
		m.mu.Unlock()
		if !said {
			m.log.Warn("what a namenode says of the members is older than what is known here, and not followed", "version", news.Version, "known", known)
		}
		return nil
	}
	m.version, m.gone, m.behind = news.Version, false, false
	m.mu.Unlock()
	m.compareClocks(time.Until(time.UnixMilli(news.NowMs)))
	trust, servers, err := MembersOf(news)
	if err != nil {
		return err
	}
	if own := m.keeper.Member.Self().Cluster; trust.Cluster != own {
		return fmt.Errorf("it is of cluster %s, this machine of %s", trust.Cluster, own)
	}
	if err := m.keeper.Member.Program().In(int(news.Level)); err != nil {
		return err
	}
	m.keeper.Member.Raise(int(news.Level))
	before := m.keeper.Member.Roots()
	failed := m.keeper.Believe(trust)
	if errors.Is(failed, authority.ErrForeign) {
		return failed
	}
	noted := failed == nil
	rerooted := !slices.EqualFunc(before, trust.Roots, (*x509.Certificate).Equal)
	if rerooted {
		m.mu.Lock()
		rooted := m.rooted
		m.mu.Unlock()
		for _, tell := range rooted {
			failed = errors.Join(failed, tell())
		}
	}
	for _, document := range news.UserKeys {
		failed = errors.Join(failed, m.users.Believe(document))
	}
	var issuer authority.Fingerprint
	copy(issuer[:], news.Issuer)
	m.keeper.Want(issuer)
	if noted && len(news.Confirm) == len(issuer) { // this machine's next process will trust it, too
		failed = errors.Join(failed, m.confirm(ctx, authority.Fingerprint(news.Confirm)))
	}
	if m.file == "" {
		return failed
	}
	m.mu.Lock()
	changed := !m.servers.Equal(servers)
	m.servers = servers
	setters := m.setters
	m.mu.Unlock()
	failed = errors.Join(failed, servers.Write(m.file))
	if m.conf != nil && (changed || rerooted) {
		failed = errors.Join(failed, m.conf(servers))
	}
	if !changed {
		return failed
	}
	for _, set := range setters {
		failed = errors.Join(failed, set(servers))
	}
	return failed
}

// compareClocks says once that this machine's clock and the cluster's differ by more than requests may lie.
func (m *membership) compareClocks(ahead time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if skewed := ahead.Abs() > security.MaxSkew; skewed != m.skewed {
		if m.skewed = skewed; skewed {
			m.log.Error("this machine's clock and the cluster's differ: tokens and certificates may be refused; set both by NTP", "cluster_ahead", ahead.Round(time.Second))
		}
	}
}

// MembersOf reads what a namenode says.
func MembersOf(news *pb.Members) (*authority.Trust, config.Servers, error) {
	trust := &authority.Trust{Cluster: news.Cluster, Removed: news.Removed, Revoked: news.Revoked}
	servers := config.Servers{Removed: news.Removed, Revoked: news.Revoked}
	for _, der := range news.Roots {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, servers, fmt.Errorf("an authority: %w", err)
		}
		trust.Roots = append(trust.Roots, c)
	}
	// The same checks as for a file.
	if _, err := authority.ParseRoots(authority.MarshalRoots(trust.Roots)); err != nil {
		return nil, servers, err
	}
	var links []byte
	for _, der := range news.Links {
		links = append(links, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	var err error
	if trust.Links, err = authority.ParseLinks(links); err != nil {
		return nil, servers, err
	}
	for _, n := range news.Namenodes {
		servers.Namenodes = append(servers.Namenodes, config.NamenodeMember{ID: n.Id, IPC: n.Ipc, HTTP: n.Http, GRPC: n.Grpc, Raft: n.Raft})
	}
	for _, r := range news.ResourceManagers {
		servers.ResourceManagers = append(servers.ResourceManagers, config.ManagerMember{ID: r.Id, HTTP: r.Http, GRPC: r.Grpc, Raft: r.Raft, IPC: r.Ipc})
	}
	if len(servers.Namenodes) == 0 {
		return nil, servers, errors.New("it lists no namenode")
	}
	return trust, servers, nil
}

// leader makes a call at one namenode after the other until one takes it.
func (m *membership) leader(ctx context.Context, patience time.Duration, call func(context.Context, pb.MembershipClient) error) error {
	failed := errors.New("no namenode is listed")
	for _, n := range m.now().Namenodes {
		failed = func() error {
			conn, err := m.dial(n.GRPC)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return call(ctx, pb.NewMembershipClient(conn))
		}()
		if failed == nil || ctx.Err() != nil {
			break
		}
	}
	return failed
}

// renew asks for a new certificate.
func (m *membership) renew(ctx context.Context, request []byte) (certificate []byte, roots []*x509.Certificate, err error) {
	var answer *pb.Certified
	err = m.leader(ctx, callTime, func(ctx context.Context, c pb.MembershipClient) (err error) {
		answer, err = c.Renew(ctx, &pb.RenewRequest{Request: request})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, der := range answer.Roots {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil, err
		}
		roots = append(roots, c)
	}
	return answer.Certificate, roots, nil
}

// confirm tells the cluster that this machine trusts the authority that is to follow.
func (m *membership) confirm(ctx context.Context, next authority.Fingerprint) error {
	m.mu.Lock()
	done := m.asked == next
	m.mu.Unlock()
	if done {
		return nil
	}
	err := m.leader(ctx, callTime, func(ctx context.Context, c pb.MembershipClient) error {
		_, err := c.Confirm(ctx, &pb.ConfirmRequest{Root: next[:]})
		return err
	})
	if err != nil {
		return fmt.Errorf("the cluster does not hear that this machine trusts its next authority: %w", err)
	}
	m.mu.Lock()
	m.asked = next
	m.mu.Unlock()
	return nil
}

// enlistTime is how long the group may take to give a namenode everything and its vote.
const enlistTime = 2 * time.Minute

// Enlist asks the namenodes to take the one of this machine, which runs on an empty directory, into their group.
func Enlist(ctx context.Context, path string) error {
	f, err := config.Load(path)
	if err != nil {
		return err
	}
	m, err := newMembership(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, enlistTime)
	defer cancel()
	for {
		err := m.leader(ctx, enlistTime, func(ctx context.Context, c pb.MembershipClient) error {
			_, err := c.Enlist(ctx, &pb.EnlistRequest{})
			return err
		})
		if code := grpcstatus.Code(err); err == nil || code != codes.Unavailable && code != codes.FailedPrecondition {
			return err
		}
		select {
		case <-time.After(followAgain):
		case <-ctx.Done():
			return err
		}
	}
}

// EnlistManager asks the resource managers to take the one of this machine, which runs on an empty directory, into their group.
func EnlistManager(ctx context.Context, path string) error {
	f, err := config.Load(path)
	if err != nil {
		return err
	}
	m, err := newMembership(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	self := m.keeper.Member.Self().Machine
	var own config.ManagerMember
	for _, r := range f.ResourceManagers {
		if r.ID == self {
			own = r
		}
	}
	ctx, cancel := context.WithTimeout(ctx, enlistTime)
	defer cancel()
	key := security.Credentials{Member: m.keeper.Member}.Key(authority.ResourceManager)
	for failed := errors.New("no other resource manager is listed"); ; {
		for _, r := range f.ResourceManagers {
			if r.ID == self {
				continue
			}
			failed = func() error {
				conn, err := grpc.NewClient("passthrough:///"+r.GRPC, grpc.WithTransportCredentials(key.Credentials()))
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = rmpb.NewResourceManagersClient(conn).Enlist(ctx, &rmpb.EnlistRequest{Raft: own.Raft})
				return err
			}()
			if code := grpcstatus.Code(failed); failed == nil || code != codes.Unavailable && code != codes.FailedPrecondition {
				return failed
			}
		}
		select {
		case <-time.After(followAgain):
		case <-ctx.Done():
			return failed
		}
	}
}
