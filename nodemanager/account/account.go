// Package account finds the account of this machine under which a user's containers run, and says which users have none.
//
// Names are resolved as the machine resolves them (NSS: files, LDAP, SSSD): by the C library where the program was built with
// it, otherwise by the programs getent(1) and id(1), because Go by itself reads /etc/passwd and /etc/group only.
package account

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Account is a user of this machine.
type Account struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// Groups are all groups of the user, GID among them.
	Groups []uint32 `json:"groups"`
	// Home is the home directory, whether it exists or not.
	Home string `json:"home"`
}

// The rules where the configuration has none, as those of YARN's container-executor.cfg.
const DefaultMinUID = 1000

// DefaultBanned are the users whose containers run nowhere.
func DefaultBanned() []string { return []string{"root", "hdfs", "yarn", "mapred", "bin"} }

// Rules say whose containers run on this machine (YARN's min.user.id, banned.users and allowed.system.users).
type Rules struct {
	// MinUID is the least user id; 0: DefaultMinUID.
	MinUID uint32
	// Banned users run nothing; nil: DefaultBanned.
	Banned []string
	// Allowed users run although their id is below MinUID. Never the one with id 0.
	Allowed []string
}

// Forbids says why a name has no containers here, whatever its account; nil: it may have.
func (r Rules) Forbids(name string) error {
	banned := r.Banned
	if banned == nil {
		banned = DefaultBanned()
	}
	if slices.Contains(banned, name) {
		return fmt.Errorf("user %s is banned from containers (nodemanager.banned_users)", name)
	}
	return nil
}

// Check says why an account has no containers here.
func (r Rules) Check(a *Account) error {
	if err := r.Forbids(a.Name); err != nil {
		return err
	}
	least := cmp.Or(r.MinUID, DefaultMinUID)
	switch {
	case a.UID == 0 || a.GID == 0 && !slices.Contains(r.Allowed, a.Name):
		return fmt.Errorf("user %s has user id %d and group id %d on this node: no container runs as root", a.Name, a.UID, a.GID)
	case a.UID < least && !slices.Contains(r.Allowed, a.Name):
		return fmt.Errorf("user %s has user id %d on this node, and containers run from %d on (nodemanager.min_user_id; exceptions: nodemanager.allowed_system_users)", a.Name, a.UID, least)
	}
	return nil
}

// ErrUnknown means that the machine has no user of that name.
var ErrUnknown = errors.New("no such user")

// patience bounds one look-up: a directory service may hang.
const patience = 20 * time.Second

// Find looks up a user by name. ErrUnknown: there is none. Any other error means that it is not known.
func Find(ctx context.Context, name string) (*Account, error) {
	if err := plausible(name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	type answer struct {
		account *Account
		err     error
	}
	answers := make(chan answer, 1)
	go func() { // the C library cannot be interrupted
		a, err := find(ctx, name)
		answers <- answer{a, err}
	}()
	select {
	case a := <-answers:
		return a.account, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("look up user %s: %w", name, ctx.Err())
	}
}

func find(ctx context.Context, name string) (*Account, error) {
	if !libc {
		a, err := ask(ctx, name)
		if !errors.Is(err, exec.ErrNotFound) {
			return a, err
		}
	}
	return library(name)
}

// plausible refuses what a look-up would take for something else than a name: getent(1) takes digits for an id.
func plausible(name string) error {
	digits := true
	for _, r := range name {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(":/,\\", r) {
			return fmt.Errorf("%.80q: %w: it is no name of a user", name, ErrUnknown)
		}
		digits = digits && r >= '0' && r <= '9'
	}
	if name == "" || digits || name[0] == '-' || name[0] == '+' || name == "." || name == ".." || len(name) > 256 {
		return fmt.Errorf("%.80q: %w: it is no name of a user", name, ErrUnknown)
	}
	return nil
}

// library asks Go's library.
func library(name string) (*Account, error) {
	u, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return nil, fmt.Errorf("user %s: %w", name, ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("look up user %s: %w", name, err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up the groups of user %s: %w", name, err)
	}
	return assemble(name, u.Username, u.Uid, u.Gid, u.HomeDir, groups)
}

// ask asks getent and id.
func ask(ctx context.Context, name string) (*Account, error) {
	out, err := exec.CommandContext(ctx, "getent", "passwd", name).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 {
		return nil, fmt.Errorf("user %s: %w", name, ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("getent passwd %s: %w", name, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	fields := strings.Split(line, ":")
	if len(fields) < 6 {
		return nil, fmt.Errorf("getent passwd %s answers %.100q", name, line)
	}
	out, err = exec.CommandContext(ctx, "id", "-G", "--", name).Output()
	if err != nil {
		return nil, fmt.Errorf("id -G %s: %w", name, err)
	}
	return assemble(name, fields[0], fields[2], fields[3], fields[5], strings.Fields(string(out)))
}

// maxGroups is how many groups a process may have (NGROUPS_MAX).
const maxGroups = 65536

func assemble(asked, name, uid, gid, home string, groups []string) (*Account, error) {
	if name != asked {
		return nil, fmt.Errorf("user %s is called %s on this node: submit under that name", asked, name)
	}
	a := &Account{Name: name, Home: home}
	var err error
	if a.UID, err = id(uid); err != nil {
		return nil, fmt.Errorf("user id of %s: %w", name, err)
	}
	if a.GID, err = id(gid); err != nil {
		return nil, fmt.Errorf("group id of %s: %w", name, err)
	}
	for _, g := range groups[:min(len(groups), maxGroups)] {
		n, err := id(g)
		if err != nil {
			return nil, fmt.Errorf("group id of %s: %w", name, err)
		}
		a.Groups = append(a.Groups, n)
	}
	if !slices.Contains(a.Groups, a.GID) {
		a.Groups = append(a.Groups, a.GID)
	}
	return a, nil
}

// id reads an id; the highest one means "none" to the kernel.
func id(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(n) == ^uint32(0) {
		return 0, fmt.Errorf("%.40q is no id", text)
	}
	return uint32(n), nil
}
