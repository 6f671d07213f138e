// Package roster is who has joined the cluster: the authority, the tokens to join with, and the machines with what they may
// be. It is kept in the namespace's register, so that every namenode knows the same and any of them that leads can take a
// machine in; each decision is one change of the register, which is done if nobody else has decided meanwhile.
package roster

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/release"
)

// Change of an item of the register; Value nil removes it.
type Change struct {
	Name    string
	Value   []byte
	Version uint64
}

// Register is the namespace's.
type Register interface {
	Item(name string) (value []byte, version uint64)
	Items(prefix string) iter.Seq2[string, []byte]
	RegisterVersion() uint64
	// Change does all of the changes, or none if one of the items has another version: false.
	Change(ctx context.Context, changes ...Change) (bool, error)
}

// Config of a roster.
type Config struct {
	Register Register
	// Seal is 32 bytes that the namenodes know and the register does not have: without it the authority in the log, in snapshots
	// and in backups signs nothing.
	Seal []byte
	Now  func() time.Time
}

// Roster is safe for concurrent use.
type Roster struct {
	register Register
	seal     cipher.AEAD
	now      func() time.Time
	joins    chan struct{} // capacity 1: who takes a machine in

	mu    sync.Mutex
	trust *authority.Trust
	at    uint64 // version of the register that trust is of
}

// New makes a roster. It reads nothing yet.
func New(c Config) (*Roster, error) {
	block, err := aes.NewCipher(c.Seal)
	if err != nil {
		return nil, fmt.Errorf("the seal of the authority: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &Roster{register: c.Register, seal: aead, now: c.Now, joins: make(chan struct{}, 1)}, nil
}

// The items.
const (
	authorityItem = "authority"
	serversItem   = "servers"
	levelItem     = "level"
	machines      = "machine/"
	invitations   = "invitation/"
)

// kept is the item of the authorities.
type kept struct {
	Cluster string `json:"cluster"`
	// Sealed is the authority that issues, with its key.
	Sealed []byte `json:"sealed"`
	// Next is the one that will, sealed like it, while not yet all machines trust it.
	Next []byte `json:"next,omitempty"`
	// Roots are the certificates of all that members trust, in PEM: its own, and while one follows another that of the other.
	Roots []byte `json:"roots"`
	// Links lead from earlier authorities to these, in PEM.
	Links []byte `json:"links,omitempty"`
}

// Machine is a machine that joined.
type Machine struct {
	Name       string           `json:"-"`
	Generation uint64           `json:"generation"`
	Roles      []authority.Role `json:"roles"`
	// Addresses are those that its certificate is good for.
	Addresses []string  `json:"addresses,omitempty"`
	Joined    time.Time `json:"joined"`
	// Expires is when its newest certificate ends.
	Expires time.Time `json:"expires"`
	// Removed is when it was removed; zero: it is a member.
	Removed time.Time `json:"removed,omitzero"`
	// By is the id of the token that it joined with; empty: it founded the cluster.
	By string `json:"by"`
	// Key is the one that it joined with, until it has another: who asks again with it does not know whether it was taken in.
	Key authority.Fingerprint `json:"key,omitzero"`
	// Issuer is the authority that issued its newest certificate, and Knows the newest one that it trusts.
	Issuer authority.Fingerprint `json:"issuer"`
	Knows  authority.Fingerprint `json:"knows"`
}

// Errors that callers tell apart; authority.ErrToken is another.
var (
	// ErrNone: the cluster has no authority yet.
	ErrNone = errors.New("this cluster has no certificate authority yet")
	// ErrMember: a machine of that name is a member.
	ErrMember = errors.New("a machine of that name is a member")
	// ErrAddress: another machine has that address.
	ErrAddress = errors.New("another machine has that address")
	// ErrServer: the group of the namenodes or resource managers cannot take another one in this way.
	ErrServer = errors.New("not supported")
	// ErrUnknown: no such machine or token.
	ErrUnknown = errors.New("not known")
	// ErrTooMany: a limit would be exceeded.
	ErrTooMany = errors.New("too many")
	// errRaced: others changed the same items again and again.
	errRaced = errors.New("others changed the same at the same time: try again")
)

// Limits.
const (
	maxMachines    = 20000
	maxInvitations = 1000
	// maxOver is how many tokens that are over are kept.
	maxOver = 32
	// MaxUses and MaxInvitation bound a token.
	MaxUses       = 10000
	MaxInvitation = 30 * 24 * time.Hour
	// attempts that a decision makes when others decide at the same time.
	attempts = 10
)

// decide runs a decision until its changes are done: who decides on what others have changed since decides again.
func (r *Roster) decide(ctx context.Context, decision func() ([]Change, error)) error {
	for range attempts {
		changes, err := decision()
		if err != nil || len(changes) == 0 {
			return err
		}
		done, err := r.register.Change(ctx, changes...)
		if err != nil || done {
			return err
		}
	}
	return errRaced
}

func item[T any](r *Roster, name string) (*T, uint64, error) {
	value, version := r.register.Item(name)
	if value == nil {
		return nil, version, nil
	}
	out := new(T)
	if err := json.Unmarshal(value, out); err != nil {
		return nil, 0, fmt.Errorf("item %s of the register: %w", name, err)
	}
	return out, version, nil
}

func change(name string, value any, version uint64) Change {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // of our own types
	}
	return Change{Name: name, Value: text, Version: version}
}

// Found gives a cluster that has none its authority, its first machine, which made it, and the list of its servers. It is no error
// when there is one already: it stays.
func (r *Roster) Found(ctx context.Context, a *authority.Authority, first Machine, servers config.Servers) error {
	return r.decide(ctx, func() ([]Change, error) {
		k, version, err := item[kept](r, authorityItem)
		if err != nil || k != nil {
			return nil, err
		}
		sealed, err := r.sealed(a)
		if err != nil {
			return nil, err
		}
		first.Issuer = authority.FingerprintOf(a.Root())
		_, member := r.register.Item(machines + first.Name)
		_, listed := r.register.Item(serversItem)
		_, level := r.register.Item(levelItem)
		return []Change{
			change(levelItem, Level{Level: release.Level}, level),
			change(authorityItem, kept{Cluster: a.Cluster(), Sealed: sealed, Roots: authority.MarshalRoots([]*x509.Certificate{a.Root()})}, version),
			change(machines+first.Name, first, member), change(serversItem, servers, listed),
		}, nil
	})
}

// Servers are the cluster's namenodes and resource managers.
func (r *Roster) Servers() (config.Servers, error) {
	s, _, err := item[config.Servers](r, serversItem)
	if err != nil || s == nil {
		return config.Servers{}, err
	}
	return *s, nil
}

// SetServers replaces the list of servers.
func (r *Roster) SetServers(ctx context.Context, servers config.Servers) error {
	return r.decide(ctx, func() ([]Change, error) {
		s, version, err := item[config.Servers](r, serversItem)
		if err != nil || s != nil && s.Equal(servers) {
			return nil, err
		}
		return []Change{change(serversItem, servers, version)}, nil
	})
}

func (r *Roster) sealed(a *authority.Authority) ([]byte, error) {
	text, err := a.Marshal()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, r.seal.NonceSize())
	rand.Read(nonce) // never fails (crypto/rand)
	return r.seal.Seal(nonce, nonce, text, []byte(authorityItem)), nil
}

// opened is the authority that issues.
func (r *Roster) opened() (*authority.Authority, error) {
	k, _, err := item[kept](r, authorityItem)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, ErrNone
	}
	return r.open(k.Sealed)
}

func (r *Roster) open(sealed []byte) (*authority.Authority, error) {
	if len(sealed) < r.seal.NonceSize() {
		return nil, errors.New("the authority in the register is cut off")
	}
	text, err := r.seal.Open(nil, sealed[:r.seal.NonceSize()], sealed[r.seal.NonceSize():], []byte(authorityItem))
	if err != nil {
		return nil, errors.New("this namenode's cluster secret does not open the cluster's authority: the secret file is of another cluster")
	}
	return authority.Parse(text)
}

// Trust is what members are to trust, as of now; nil while there is no authority.
func (r *Roster) Trust() (*authority.Trust, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version := r.register.RegisterVersion() // before it is read: a change in between is seen the next time
	if r.trust != nil && r.at == version {
		return r.trust, nil
	}
	k, _, err := item[kept](r, authorityItem)
	if err != nil || k == nil {
		return nil, err
	}
	t := &authority.Trust{Cluster: k.Cluster, Removed: map[string]uint64{}}
	if t.Roots, err = authority.ParseRoots(k.Roots); err != nil {
		return nil, fmt.Errorf("item %s of the register: %w", authorityItem, err)
	}
	if t.Links, err = authority.ParseLinks(k.Links); err != nil {
		return nil, fmt.Errorf("item %s of the register: %w", authorityItem, err)
	}
	all, err := r.Machines()
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if !m.Removed.IsZero() {
			t.Removed[m.Name] = m.Generation
		} else if m.Generation > 1 {
			t.Removed[m.Name] = m.Generation - 1
		}
	}
	r.trust, r.at = t, version
	return t, nil
}

// Machines are all machines that ever joined, by name.
func (r *Roster) Machines() ([]Machine, error) {
	var out []Machine
	for name, value := range r.register.Items(machines) {
		var m Machine
		if err := json.Unmarshal(value, &m); err != nil {
			return nil, fmt.Errorf("item %s of the register: %w", name, err)
		}
		m.Name = strings.TrimPrefix(name, machines)
		out = append(out, m)
	}
	return out, nil
}

// Machine is the one of a name, if it ever joined.
func (r *Roster) Machine(name string) (*Machine, bool) {
	m, _, err := item[Machine](r, machines+name)
	return m, err == nil && m != nil
}

// Invitations are the tokens that may still be used, without their secrets.
func (r *Roster) Invitations() ([]authority.Invitation, error) {
	var out []authority.Invitation
	for name, value := range r.register.Items(invitations) {
		var i authority.Invitation
		if err := json.Unmarshal(value, &i); err != nil {
			return nil, fmt.Errorf("item %s of the register: %w", name, err)
		}
		if i.Uses > 0 && r.now().Before(i.Expires) {
			out = append(out, i)
		}
	}
	return out, nil
}

// Invite makes a token for machines with some of the roles, good for a time and a number of uses. Tokens that are over go when there are many.
func (r *Roster) Invite(ctx context.Context, roles []authority.Role, life time.Duration, uses int) (authority.Token, error) {
	var token authority.Token
	if len(roles) == 0 || life <= 0 || life > MaxInvitation || uses < 1 || uses > MaxUses {
		return token, fmt.Errorf("a token is for at least one role, for up to %v and for 1 to %d uses; asked for were %d roles, %v and %d uses",
			MaxInvitation, MaxUses, len(roles), life, uses)
	}
	err := r.decide(ctx, func() ([]Change, error) {
		a, err := r.opened()
		if err != nil {
			return nil, err
		}
		now, alive := r.now(), 0
		var over []Change // tokens, which are known for a while so that who uses them hears why they are refused
		for name, value := range r.register.Items(invitations) {
			var i authority.Invitation
			if json.Unmarshal(value, &i) == nil && i.Uses > 0 && now.Before(i.Expires) {
				alive++
				continue
			}
			if _, version := r.register.Item(name); len(over) < maxOver {
				over = append(over, Change{Name: name, Version: version})
			}
		}
		var changes []Change
		if len(over) == maxOver {
			changes = over
		}
		if alive >= maxInvitations {
			return nil, fmt.Errorf("%w: %d tokens can be used: withdraw some", ErrTooMany, alive)
		}
		var kept authority.Invitation
		token, kept = authority.NewInvitation(authority.FingerprintOf(a.Root()), roles, now.Add(life), uses)
		return append(changes, change(invitations+kept.ID, kept, 0)), nil
	})
	return token, err
}

// Withdraw makes a token useless.
func (r *Roster) Withdraw(ctx context.Context, id string) error {
	return r.decide(ctx, func() ([]Change, error) {
		value, version := r.register.Item(invitations + id)
		if value == nil {
			return nil, fmt.Errorf("token %s: %w", id, ErrUnknown)
		}
		return []Change{{Name: invitations + id, Version: version}}, nil
	})
}

// Joining is what a machine asks for.
type Joining struct {
	Token string // its id
	// Proof shows that the machine has the token: of what was Asked on the connection that Bound is of.
	Proof, Bound, Asked []byte
	Machine             string           // its name
	Roles               []authority.Role // sorted
	// Addresses at which it answers: names or IP addresses.
	Addresses []string
	// Request for a certificate, in DER.
	Request []byte
	// Namenode is where that of its roles answers, Manager its resource manager; nil: it has none.
	Namenode *config.NamenodeMember
	Manager  *config.ManagerMember
}

// Admit takes a machine in and returns its certificate in DER. One use of the token is gone then. Machines that come at the same time are taken in one after
// another: they may have the same token, or addresses. One that asks for the same once more, with its key and token, because it has not heard an answer, is
// answered like the first time.
//
// Errors: authority.ErrToken, ErrMember, ErrAddress, ErrServer, ErrTooMany, and what is wrong with the request.
func (r *Roster) Admit(ctx context.Context, j Joining) (certificate []byte, err error) {
	select {
	case r.joins <- struct{}{}:
		defer func() { <-r.joins }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err = r.decide(ctx, func() ([]Change, error) {
		a, err := r.opened()
		if err != nil {
			return nil, err
		}
		i, invited, err := item[authority.Invitation](r, invitations+j.Token)
		if err != nil {
			return nil, err
		}
		if i == nil {
			i = &authority.Invitation{} // nobody knows its secret
		}
		now := r.now()
		m, joined, err := item[Machine](r, machines+j.Machine)
		if err != nil {
			return nil, err
		}
		again, err := r.asksAgain(m, j)
		if err != nil {
			return nil, err
		}
		if again {
			i.Uses++ // which it took
		}
		if err := i.Admit(j.Proof, j.Bound, j.Asked, j.Roles, now); err != nil {
			return nil, err
		}
		switch {
		case again:
			if certificate, err = r.issue(a, j.Machine, m, j.Request, now); err != nil {
				return nil, err
			}
			return []Change{change(machines+j.Machine, m, joined)}, nil
		case m == nil:
			m = &Machine{}
			if r.count() >= maxMachines {
				return nil, fmt.Errorf("%w: %d machines have joined", ErrTooMany, maxMachines)
			}
		case m.Removed.IsZero():
			return nil, fmt.Errorf("%w: %s joined at %s; give this machine another name, or remove that one first (`hops cluster remove %s`)",
				ErrMember, j.Machine, m.Joined.UTC().Format(time.RFC3339), j.Machine)
		}
		if err := r.free(j.Machine, j.Addresses); err != nil {
			return nil, err
		}
		changes, err := r.list(j)
		if err != nil {
			return nil, err
		}
		*m = Machine{Generation: m.Generation + 1, Roles: slices.Clone(j.Roles), Addresses: slices.Clone(j.Addresses), Joined: now, By: j.Token}
		if certificate, err = r.issue(a, j.Machine, m, j.Request, now); err != nil {
			return nil, err
		}
		level, err := r.Level()
		if err == nil && level.Level >= release.JoinKeys {
			m.Key, err = authority.KeyOf(j.Request)
		}
		if err != nil {
			return nil, err
		}
		i.Uses--
		return append(changes, change(invitations+j.Token, i, invited), change(machines+j.Machine, m, joined)), nil
	})
	return certificate, err
}

// asksAgain reports whether a machine asks for what it was given already. What it had in mind then, the lists of servers say.
func (r *Roster) asksAgain(m *Machine, j Joining) (bool, error) {
	if m == nil || !m.Removed.IsZero() || m.Key == (authority.Fingerprint{}) || m.By != j.Token || !slices.Equal(m.Roles, j.Roles) || !slices.Equal(m.Addresses, j.Addresses) {
		return false, nil
	}
	if key, err := authority.KeyOf(j.Request); err != nil || key != m.Key {
		return false, nil //nolint:nilerr // whose request is none is told by who issues
	}
	s, err := r.Servers()
	return (j.Namenode == nil || slices.Contains(s.Namenodes, *j.Namenode)) && (j.Manager == nil || slices.Contains(s.ResourceManagers, *j.Manager)), err
}

// free makes sure that no other machine has one of the addresses.
func (r *Roster) free(machine string, addresses []string) error {
	all, err := r.Machines()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Name == machine || !m.Removed.IsZero() {
			continue
		}
		for _, a := range addresses {
			if slices.Contains(m.Addresses, a) {
				return fmt.Errorf("%w: %s is %s; give this one's by --address, or remove that one first (`hops cluster remove %s`)", ErrAddress, a, m.Name, m.Name)
			}
		}
	}
	return nil
}

// list adds the namenode and the resource manager of a machine to the cluster's servers.
func (r *Roster) list(j Joining) ([]Change, error) {
	s, version, err := item[config.Servers](r, serversItem)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &config.Servers{}
	}
	if slices.Contains(j.Roles, authority.NodeManager) && j.Manager == nil && len(s.ResourceManagers) == 0 {
		return nil, fmt.Errorf("%w: this cluster has no resource manager, which node managers report to: let a machine join as one first (--roles resourcemanager), or leave nodemanager out of --roles", ErrServer)
	}
	if j.Namenode == nil && j.Manager == nil {
		return nil, nil
	}
	if n := j.Namenode; n != nil {
		s.Namenodes = append(slices.DeleteFunc(s.Namenodes, func(m config.NamenodeMember) bool { return m.ID == n.ID }), *n)
	}
	if r := j.Manager; r != nil {
		s.ResourceManagers = append(slices.DeleteFunc(s.ResourceManagers, func(m config.ManagerMember) bool { return m.ID == r.ID }), *r)
	}
	return []Change{change(serversItem, s, version)}, nil
}

func (r *Roster) count() (n int) {
	for range r.register.Items(machines) {
		n++
	}
	return n
}

// issue certifies a machine and notes until when.
func (r *Roster) issue(a *authority.Authority, name string, m *Machine, request []byte, now time.Time) ([]byte, error) {
	der, err := a.Issue(request, authority.Name{Machine: name, Generation: m.Generation, Roles: m.Roles}, m.Addresses, now, authority.MachineLife)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	m.Expires, m.Issuer = c.NotAfter, authority.FingerprintOf(a.Root())
	return der, nil
}

// Renew gives a machine that has shown that it is n a new certificate, with the roles and addresses that it joined with.
func (r *Roster) Renew(ctx context.Context, n *authority.Name, request []byte) (certificate []byte, err error) {
	err = r.decide(ctx, func() ([]Change, error) {
		a, err := r.opened()
		if err != nil {
			return nil, err
		}
		m, version, err := item[Machine](r, machines+n.Machine)
		if err != nil {
			return nil, err
		}
		if m == nil || !m.Removed.IsZero() || m.Generation != n.Generation {
			return nil, fmt.Errorf("%w: %s", authority.ErrRevoked, n)
		}
		if certificate, err = r.issue(a, n.Machine, m, request, r.now()); err != nil {
			return nil, err
		}
		m.Key = authority.Fingerprint{} // it knows that it is in
		return []Change{change(machines+n.Machine, m, version)}, nil
	})
	return certificate, err
}

// Certify issues a client's certificate to a user, in DER.
func (r *Roster) Certify(user, id string, request []byte, life time.Duration) ([]byte, error) {
	a, err := r.opened()
	if err != nil {
		return nil, err
	}
	return a.Issue(request, authority.Name{Cluster: a.Cluster(), User: user, ID: id}, nil, r.now(), life)
}

// LastManager says why a machine is not removed without more words.
func LastManager(name string) string {
	return name + " runs the last resource manager, with which the applications and their history go: let another machine join as one first (`hops cluster token --roles resourcemanager`), or say --last-resourcemanager"
}

// Remove takes a machine out: its certificates are void from now on. Its name may join again, by a new token. last: although it runs
// the last resource manager.
func (r *Roster) Remove(ctx context.Context, name string, last bool) error {
	return r.decide(ctx, func() ([]Change, error) {
		m, version, err := item[Machine](r, machines+name)
		if err != nil {
			return nil, err
		}
		if m == nil {
			return nil, fmt.Errorf("machine %s: %w: `hops cluster nodes` lists those that joined", name, ErrUnknown)
		}
		if !m.Removed.IsZero() {
			return nil, nil
		}
		s, listed, err := item[config.Servers](r, serversItem)
		if err != nil {
			return nil, err
		}
		var changes []Change
		if s != nil {
			before := len(s.Namenodes) + len(s.ResourceManagers)
			managed := len(s.ResourceManagers) > 0
			s.Namenodes = slices.DeleteFunc(s.Namenodes, func(n config.NamenodeMember) bool { return n.ID == name })
			s.ResourceManagers = slices.DeleteFunc(s.ResourceManagers, func(o config.ManagerMember) bool { return o.ID == name })
			switch {
			case len(s.Namenodes) == 0:
				return nil, fmt.Errorf("%w: %s is the last namenode", ErrServer, name)
			case managed && len(s.ResourceManagers) == 0 && !last:
				return nil, fmt.Errorf("%w: %s", ErrServer, LastManager(name))
			case len(s.Namenodes)+len(s.ResourceManagers) < before:
				changes = append(changes, change(serversItem, s, listed))
			}
		}
		m.Removed = r.now()
		return append(changes, change(machines+name, m, version)), nil
	})
}
