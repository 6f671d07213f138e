package authority

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Role is what a server of the cluster may do.
type Role string

// The roles of servers.
const (
	Namenode        Role = "namenode"
	Datanode        Role = "datanode"
	ResourceManager Role = "resourcemanager"
	NodeManager     Role = "nodemanager"
)

// Roles are all of them.
var Roles = []Role{Namenode, Datanode, ResourceManager, NodeManager}

// ParseRoles reads a list with commas between the roles.
func ParseRoles(text string) ([]Role, error) {
	var out []Role
	for word := range strings.SplitSeq(text, ",") {
		r := Role(strings.TrimSpace(word))
		if !slices.Contains(Roles, r) {
			return nil, fmt.Errorf("%q is no role; the roles are %s", string(r), join(Roles))
		}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out, nil
}

func join(roles []Role) string {
	var b strings.Builder
	for i, r := range roles {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(r))
	}
	return b.String()
}

// Name is whom a certificate speaks of: a machine with its roles, or a user.
type Name struct {
	// Cluster is the cluster's id.
	Cluster string
	// Machine is the name under which a machine joined, and Generation counts how often that name did, from 1. A machine that
	// was removed may join again: what its earlier generations hold stays void.
	Machine    string
	Generation uint64
	// Roles of the machine, sorted.
	Roles []Role
	// User is whom a client's certificate speaks of; a certificate speaks of a machine or of a user.
	User string
	// ID is what a user's certificate is called when it is revoked; empty: it cannot be.
	ID string
}

// Has reports whether the name is a machine's with that role.
func (n *Name) Has(r Role) bool { return n.Machine != "" && slices.Contains(n.Roles, r) }

func (n *Name) String() string {
	if n.User != "" {
		return "user " + n.User
	}
	return fmt.Sprintf("machine %s (%s)", n.Machine, join(n.Roles))
}

const scheme = "hops"

// A machine's name is a label of hosts' names or several; a cluster's id looks alike.
var words = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)

// A host's name is labels of letters, digits and dashes (RFC 1123).
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\.?$`)

const maxUser = 255

// Validate says what is wrong with a name that shall be certified.
func (n *Name) Validate() error {
	switch {
	case !words.MatchString(n.Cluster):
		return fmt.Errorf("%q is no id of a cluster", n.Cluster)
	case (n.Machine == "") == (n.User == ""):
		return errors.New("a certificate speaks of a machine or of a user")
	case len(n.User) > maxUser || strings.ContainsFunc(n.User, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%q is no name of a user: at most %d bytes without control characters", n.User, maxUser)
	case n.User != "" && (len(n.Roles) > 0 || n.Generation != 0):
		return errors.New("a user's certificate has no role")
	case n.ID != "" && (n.User == "" || !words.MatchString(n.ID)):
		return fmt.Errorf("%q is no id of a user's certificate", n.ID)
	case n.User != "":
		return nil
	case !words.MatchString(n.Machine):
		return fmt.Errorf("%q is no name of a machine: up to 64 letters, digits, dots and dashes", n.Machine)
	case n.Generation == 0:
		return errors.New("a machine's certificate has a generation")
	case len(n.Roles) == 0:
		return fmt.Errorf("machine %s has no role; the roles are %s", n.Machine, join(Roles))
	}
	for i, r := range n.Roles {
		if !slices.Contains(Roles, r) {
			return fmt.Errorf("%q is no role; the roles are %s", string(r), join(Roles))
		}
		if i > 0 && n.Roles[i-1] >= r {
			return errors.New("the roles are not sorted, or one stands twice")
		}
	}
	return nil
}

// uris are the name as it stands in a certificate:
//
//	hops://CLUSTER/machine/NAME/GENERATION, and hops://CLUSTER/role/ROLE for each role
//	hops://CLUSTER/user/NAME, or hops://CLUSTER/user/NAME/ID
func (n *Name) uris() []*url.URL {
	one := func(path string) *url.URL {
		plain, _ := url.PathUnescape(path) // it was escaped here
		return &url.URL{Scheme: scheme, Host: n.Cluster, Path: plain, RawPath: path}
	}
	if n.User != "" {
		path := "/user/" + url.PathEscape(n.User)
		if n.ID != "" {
			path += "/" + n.ID
		}
		return []*url.URL{one(path)}
	}
	out := []*url.URL{one("/machine/" + n.Machine + "/" + strconv.FormatUint(n.Generation, 10))}
	for _, r := range n.Roles {
		out = append(out, one("/role/"+string(r)))
	}
	return out
}

// parseName is the inverse of uris. It takes nothing else, so that there is one way to write a name.
func parseName(uris []*url.URL) (*Name, error) {
	n := &Name{}
	for i, u := range uris {
		if u.Scheme != scheme || u.User != nil || u.RawQuery != "" || u.Fragment != "" || i > 0 && u.Host != n.Cluster {
			return nil, fmt.Errorf("%s is no name of a cluster's member", u)
		}
		n.Cluster = u.Host
		parts := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
		switch {
		case len(parts) == 3 && parts[0] == "machine" && n.Machine == "":
			generation, err := strconv.ParseUint(parts[2], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s has no generation", u)
			}
			n.Machine, n.Generation = parts[1], generation
		case len(parts) == 2 && parts[0] == "role":
			n.Roles = append(n.Roles, Role(parts[1]))
		case (len(parts) == 2 || len(parts) == 3 && parts[2] != "") && parts[0] == "user" && n.User == "":
			user, err := url.PathUnescape(parts[1])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", u, err)
			}
			if n.User = user; len(parts) == 3 {
				n.ID = parts[2]
			}
		default:
			return nil, fmt.Errorf("%s is no name of a cluster's member", u)
		}
	}
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return n, nil
}
