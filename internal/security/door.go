package security

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/singleflight"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
)

// DrWho is the user of an HTTP request that names none, as in Hadoop (hadoop.http.staticuser.user).
const DrWho = "dr.who"

// MaxUserName is the length of the longest name of a user, in bytes: that of Linux, with room for a domain.
const MaxUserName = 256

// groupTTL is how long a user's groups are remembered.
const groupTTL = 5 * time.Minute

// ProxyRule says for whom a real user may act and from where (hadoop.proxyuser.<real>.{users,groups,hosts}). "*" is
// everybody, or everywhere.
type ProxyRule struct {
	Users  []string
	Groups []string
	Hosts  []string
}

// UserRules say who is more than a user.
type UserRules struct {
	// Supergroup makes its members superusers; default "supergroup".
	Supergroup string
	// ProxyUsers holds the rule of each real user that may act for others.
	ProxyUsers map[string]ProxyRule
}

// Config describes a Door. The zero value is a door of the running user with Hadoop's supergroup and no proxy users.
type Config struct {
	// Supergroup and ProxyUsers are the first UserRules.
	Supergroup string
	ProxyUsers map[string]ProxyRule
	// Groups finds a user's groups; default: those of the operating system.
	Groups func(user string) []string
	// Negotiator takes the tickets of HTTP requests (SPNEGO); nil: none are taken.
	Negotiator Negotiator
	// Users checks the tokens of users; nil: none are taken.
	Users *usertoken.Verifier
	// Owner finds the local user id that owns the far end of a connection; default: asked of the kernel.
	Owner func(ConnAddrs) (uid uint32, err error)
	// Stranger, for tests: the far ends for which it is true count as those of another machine, whoever owns them. Nil: none.
	Stranger func(ConnAddrs) bool
	// Descriptors bounds what the connections of all guarded listeners use; default: two thirds of what the process may
	// open (RLIMIT_NOFILE).
	Descriptors int
	// Member is this machine as others meet it: with it, ports take TLS; nil: only this machine and trusted networks connect.
	Member *authority.Member
	// Pinned, in place of Member, is of a process that is no machine's server, such as an application's master: its ports take TLS,
	// and nobody shows a certificate there.
	Pinned *authority.Pinned
	// Simple are the networks whose clients are believed to be who they say in plain, as in a Hadoop without security.
	Simple []netip.Prefix
	// Hosts are names by which web servers are called, beside those in the certificate and those of loopback.
	Hosts []string
	// Here says whether both ends of a connection are on this machine; nil: Here. Tests set it.
	Here func(remote, local netip.Addr) bool
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

// Door turns claims into callers. It is safe for concurrent use.
type Door struct {
	config Config
	uid    uint32
	daemon string // the user this process runs as, who is the superuser
	places *places
	audit  atomic.Pointer[Audit]
	rules  atomic.Pointer[UserRules]

	mu      sync.Mutex
	lookups *singleflight.Group // of groups and names; another one when they are forgotten
	groups  map[string]cachedGroups
	names   map[uint32]string
}

type cachedGroups struct {
	names []string
	until time.Time
}

// NewDoor makes the door of the running user.
func NewDoor(config Config) *Door {
	if config.Groups == nil {
		config.Groups = systemGroups
	}
	if config.Owner == nil {
		config.Owner = socketOwner
	}
	if config.Descriptors == 0 {
		config.Descriptors = connectionDescriptors()
	}
	if config.Here == nil {
		config.Here = Here
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	d := &Door{
		config: config,
		uid:    uint32(os.Geteuid()),
		groups: map[string]cachedGroups{},
		names:  map[uint32]string{},
		places: &places{capacity: config.Descriptors, log: config.Logger}, lookups: new(singleflight.Group),
	}
	d.SetRules(UserRules{config.Supergroup, config.ProxyUsers})
	d.daemon = d.nameOf(d.uid)
	return d
}

// Rules are those that count now.
func (d *Door) Rules() UserRules { return *d.rules.Load() }

// SetRules replaces them: callers that are made from now on are told by these.
func (d *Door) SetRules(r UserRules) {
	if r.Supergroup == "" {
		r.Supergroup = "supergroup"
	}
	d.rules.Store(&r)
}

// ChangeRules changes what SetRules has set, one change after the other.
func (d *Door) ChangeRules(change func(*UserRules)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.Rules()
	change(&r)
	d.SetRules(r)
}

// ForgetGroups has every user's groups asked for anew.
func (d *Door) ForgetGroups() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.groups)
	d.lookups = new(singleflight.Group) // one that is under way may bring what was true before
}

// Daemon is the user that this process runs as: the superuser.
func (d *Door) Daemon() string { return d.daemon }

// Supergroup is the group whose members are superusers.
func (d *Door) Supergroup() string { return d.Rules().Supergroup }

// Claim answers who acts on a connection whose peer p calls itself claimed: the owner of a local socket and the user of a
// certificate by their own name; the servers' user, root, and another server of the cluster by any (Proof tells whose word that is); from
// trusted networks everybody as they say. A non-empty real is the authenticated user who
// acts for claimed and needs a proxy rule. Errors are of kind metadata.ErrUnauthorized.
func (d *Door) Claim(p *Peer, claimed, real string) (metadata.Caller, error) {
	claimed, real = shortName(claimed), shortName(real)
	if claimed == "" {
		return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "the request names no user")
	}
	for _, name := range []string{claimed, real} {
		if err := checkName(name); err != nil {
			return metadata.Caller{}, err
		}
	}
	if real == claimed {
		real = ""
	}
	authenticated := claimed
	if real != "" {
		authenticated = real
	}
	host, err := d.checkOwner(p, authenticated)
	if err != nil {
		d.Refuse(p, claimed, real, err)
		return metadata.Caller{}, err
	}
	caller := d.Caller(claimed)
	caller.Host = host
	if real == "" {
		return caller, nil
	}
	if !d.mayProxy(real, caller) {
		err := metadata.Errorf(metadata.ErrUnauthorized, "User: %s is not allowed to impersonate %s", real, claimed)
		d.Refuse(p, claimed, real, err)
		return metadata.Caller{}, err
	}
	caller.RealUser = real
	return caller, nil
}

// Simple reports whether a bare name counts that the far end of a connection claims (Hadoop's SIMPLE authentication), if Claim
// does not refuse it. Others have to prove who they are.
func (d *Door) Simple(p *Peer) bool { return p.from != elsewhere || p.name != nil }

// Carries reports whether a secret may go in the open through a connection, as a block's token in each request does: nobody reads along
// within TLS, and where a bare name counts.
func (d *Door) Carries(p *Peer) bool { return p.secure || d.Simple(p) }

// Authenticated is the caller who has proved to be name on a connection, by something that stands for real's acting for it, if
// there is one: no rule for proxies is asked. Errors are of kind metadata.ErrUnauthorized.
func (d *Door) Authenticated(p *Peer, name, real string) (metadata.Caller, error) {
	if name == "" {
		return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "nobody is authenticated")
	}
	for _, n := range []string{name, real} {
		if err := checkName(n); err != nil {
			return metadata.Caller{}, err
		}
	}
	caller := d.Caller(name)
	if caller.Host = hostOf(p); real != name {
		caller.RealUser = real
	}
	return caller, nil
}

// Proxied is the caller claimed for whom real acts, who has proved to be that: a rule for proxies has to allow it. Errors are of
// kind metadata.ErrUnauthorized.
func (d *Door) Proxied(p *Peer, real, claimed string) (metadata.Caller, error) {
	caller, err := d.Authenticated(p, claimed, real)
	if err == nil && real != claimed && !d.mayProxy(real, caller) {
		err = metadata.Errorf(metadata.ErrUnauthorized, "User: %s is not allowed to impersonate %s", real, claimed)
	}
	if err != nil {
		d.Refuse(p, claimed, real, err)
		return metadata.Caller{}, err
	}
	return caller, nil
}

// AuthenticatedRequest is Authenticated for a request of HTTP.
func (d *Door) AuthenticatedRequest(r *http.Request, name, real string) (metadata.Caller, error) {
	p, _ := d.peerOfRequest(r) // who owns the connection does not matter
	return d.Authenticated(p, name, real)
}

// RefuseRequest is Refuse for a request of HTTP.
func (d *Door) RefuseRequest(r *http.Request, claimed string, err error) {
	p, _ := d.peerOfRequest(r)
	d.Refuse(p, claimed, "", err)
}

// hostOf is the address of a peer, without its port.
func hostOf(p *Peer) string {
	if p == nil {
		return ""
	}
	switch a := p.Remote.(type) {
	case *net.TCPAddr:
		return a.IP.String()
	case *net.UnixAddr:
		return "127.0.0.1"
	}
	return ""
}

// ShortName is the name of the user whom a principal of Kerberos, or a name with a domain, stands for: its first part.
func ShortName(name string) string { return shortName(name) }

// OwnerName is the name of the user who has a connection's far end, without asking for it: DrWho in a trusted network, empty if
// that is not known.
func (d *Door) OwnerName(p *Peer) string {
	switch {
	case p.err != nil:
		return ""
	case p.from == here:
		return d.nameOf(p.uid)
	case p.name == nil:
		return DrWho
	case p.name.User != "":
		return p.name.User
	}
	return d.daemon
}

// Refuse records that a peer may not have the name that it claims.
func (d *Door) Refuse(p *Peer, claimed, real string, err error) {
	c := metadata.Caller{User: claimed, RealUser: real, Host: hostOf(p)}
	d.Record(Decision{Caller: c, Port: "door", Command: "claim", Reason: err.Error()})
}

// Caller is a user with groups and rights, for work that a server does in somebody's name.
func (d *Door) Caller(name string) metadata.Caller {
	if name == DrWho {
		return metadata.Caller{User: DrWho}
	}
	groups := d.groupsOf(name)
	return metadata.Caller{
		User:      name,
		Groups:    groups,
		Superuser: name == d.daemon || slices.Contains(groups, d.Supergroup()),
	}
}

// HTTPCaller answers who acts in an HTTP request: the user of its ticket, of its token, or user.name, for whom doas may name
// another, or DrWho. Of servers only namenodes and resource managers may say whom they act for: no other has a reason to ask by HTTP.
func (d *Door) HTTPCaller(r *http.Request) (metadata.Caller, error) {
	name, as, err := claims(r)
	if err != nil {
		return metadata.Caller{}, err
	}
	if c, ok, err := d.ticketCaller(r, name, as); ok {
		return c, err
	}
	if c, err := d.tokenOf(r); err != nil {
		return metadata.Caller{}, err
	} else if c != nil {
		return d.bearerCaller(r, c, name, as)
	}
	if p, _ := d.peerOfRequest(r); p != nil && p.from == elsewhere && p.err != nil { // nobody is anonymous there
		return metadata.Caller{}, d.challenge(r, p.err)
	}
	if p, err := d.peerOfRequest(r); err == nil && d.Proof(p) == Vouched {
		if name != "" && name != DrWho {
			err := metadata.Errorf(metadata.ErrUnauthorized, "%s may not act as %s: only namenodes and resource managers act for others here. "+
				"Ask on one of their machines, or with a user token (`hops login`)", p.name, printable(name))
			d.Refuse(p, name, "", err)
			return metadata.Caller{}, err
		}
	} else if err == nil && name == "" && p.name != nil { // the certificate says it
		name = d.OwnerName(p)
	}
	if name == "" || name == DrWho {
		if as != "" {
			return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "User: %s is not allowed to impersonate %s", DrWho, as)
		}
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		return metadata.Caller{User: DrWho, Host: host}, nil
	}
	p, err := d.peerOfRequest(r)
	if err != nil {
		return metadata.Caller{}, d.challenge(r, err)
	}
	if as == "" {
		return d.Claim(p, name, "")
	}
	return d.Claim(p, as, name)
}

// Own reports whether a request comes from this process's own user or root, whatever name it carries.
func (d *Door) Own(r *http.Request) bool {
	p, err := d.peerOfRequest(r)
	return err == nil && d.own(p)
}

// OwnPeer is Own for a connection.
func (d *Door) OwnPeer(p *Peer) bool { return d.own(p) }

// checkOwner refuses a name that the owner of the peer's socket may not use, and returns the peer's host.
func (d *Door) checkOwner(p *Peer, name string) (string, error) {
	if p.err != nil {
		return "", p.err
	}
	if owner := d.OwnerName(p); owner != name && !d.own(p) && !p.server() && (p.from != trusted || p.name != nil) {
		return "", metadata.Errorf(metadata.ErrUnauthorized, "user %s may not act as %s", owner, name)
	}
	return hostOf(p), nil
}

func (d *Door) mayProxy(real string, caller metadata.Caller) bool {
	rule, ok := d.Rules().ProxyUsers[real]
	if !ok {
		return false
	}
	host := slices.Contains(rule.Hosts, "*") || slices.Contains(rule.Hosts, caller.Host) ||
		slices.Contains(rule.Hosts, "localhost") && net.ParseIP(caller.Host).IsLoopback()
	who := slices.Contains(rule.Users, "*") || slices.Contains(rule.Users, caller.User) || slices.Contains(rule.Groups, "*") ||
		slices.ContainsFunc(caller.Groups, func(g string) bool { return slices.Contains(rule.Groups, g) })
	return host && who
}

// groupsOf looks a user up without holding anybody else up: a directory service may be slow.
func (d *Door) groupsOf(name string) []string {
	d.mu.Lock()
	c, ok := d.groups[name]
	lookups := d.lookups
	d.mu.Unlock()
	if now := time.Now(); ok && now.Before(c.until) {
		return c.names
	}
	names, _, _ := lookups.Do("groups of "+name, func() (any, error) { return d.config.Groups(name), nil })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lookups != lookups {
		return names.([]string)
	}
	if len(d.groups) > 10000 {
		clear(d.groups)
	}
	d.groups[name] = cachedGroups{names.([]string), time.Now().Add(groupTTL)}
	return names.([]string)
}

func (d *Door) nameOf(uid uint32) string {
	d.mu.Lock()
	name, ok := d.names[uid]
	lookups := d.lookups
	d.mu.Unlock()
	if ok {
		return name
	}
	id := strconv.FormatUint(uint64(uid), 10)
	found, _, _ := lookups.Do("name of "+id, func() (any, error) {
		if u, err := user.LookupId(id); err == nil {
			return u.Username, nil
		}
		return id, nil
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[uid] = found.(string)
	return found.(string)
}

func systemGroups(name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil {
			names = append(names, g.Name)
		}
	}
	return names
}

// shortName cuts a Kerberos-like name to its first part.
func shortName(name string) string {
	if i := strings.IndexAny(name, "/@"); i >= 0 {
		return name[:i]
	}
	return name
}

// checkName refuses what no user is called: names come into logs, caches, paths and the metadata log.
func checkName(name string) error {
	if len(name) > MaxUserName {
		return metadata.Errorf(metadata.ErrUnauthorized, "the name of the user has %d bytes, %d are allowed", len(name), MaxUserName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return metadata.Errorf(metadata.ErrUnauthorized, "%q is no name of a user", name)
	}
	return nil
}

// MayWrite refuses callers who have not said who they are: they may read what others may, and nothing else.
func MayWrite(c metadata.Caller) error {
	if c.User == DrWho {
		return metadata.Errorf(metadata.ErrPermission, "a request without user.name may read, and nothing else: add ?user.name=YOU")
	}
	return nil
}

// The parameters of a request that say who it is from.
const (
	userParameter = "user.name"
	asParameter   = "doas"
)

// IsClaim reports whether a parameter of a query says who the request is from.
func IsClaim(parameter string) bool {
	return strings.EqualFold(parameter, userParameter) || strings.EqualFold(parameter, asParameter)
}

// claims finds the user names of a request, whatever the case of the parameters, as WebHDFS does. Two that differ are
// refused: whoever reads the query next might take the other one.
func claims(r *http.Request) (name, as string, err error) {
	for parameter, values := range r.URL.Query() {
		into := &name
		switch {
		case strings.EqualFold(parameter, userParameter):
		case strings.EqualFold(parameter, asParameter):
			into = &as
		default:
			continue
		}
		for _, v := range values {
			if *into != "" && v != "" && v != *into {
				return "", "", metadata.Errorf(metadata.ErrUnauthorized, "the request has %s more than once", strings.ToLower(parameter))
			}
			if v != "" {
				*into = v
			}
		}
	}
	return name, as, nil
}
