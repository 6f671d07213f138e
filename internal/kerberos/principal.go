package kerberos

import (
	"fmt"
	"os"
	"strings"
)

// Principal is a name in a realm, such as nn/host.example.com@EXAMPLE.COM.
type Principal struct {
	// Components are the parts between slashes; one for a user, two for a service on a host.
	Components []string
	Realm      string
}

// hostPattern stands for the name of the host in the principals of a configuration.
const hostPattern = "_HOST"

// maxName bounds the parts and the length of a principal's name.
const (
	maxComponents = 8
	maxName       = 1024
)

// ParsePrincipal reads NAME[/INSTANCE]@REALM.
func ParsePrincipal(text string) (Principal, error) {
	name, realm, ok := strings.Cut(text, "@")
	p := Principal{strings.Split(name, "/"), realm}
	if err := p.check(); err != nil || !ok || strings.ContainsAny(realm, "@/") {
		return Principal{}, fmt.Errorf("%q is no Kerberos principal: SERVICE/HOST@REALM or USER@REALM is", text)
	}
	return p, nil
}

// ServicePrincipal reads SERVICE/HOST@REALM, where _HOST stands for host, in small letters, as in Hadoop. An empty host is
// this machine's name.
func ServicePrincipal(text, host string) (Principal, error) {
	p, err := ParsePrincipal(text)
	if err != nil {
		return Principal{}, err
	}
	if len(p.Components) == 2 && p.Components[1] == hostPattern {
		if host == "" {
			if host, err = os.Hostname(); err != nil {
				return Principal{}, fmt.Errorf("%s: %w", text, err)
			}
		}
		p.Components[1] = strings.ToLower(host)
	}
	if len(p.Components) != 2 {
		return Principal{}, fmt.Errorf("%q is no principal of a service: SERVICE/HOST@REALM is", text)
	}
	return p, nil
}

// Service is the first part of the name: the service's, or the user's.
func (p Principal) Service() string { return p.part(0) }

// Host is the second part of the name; empty when there is one only.
func (p Principal) Host() string { return p.part(1) }

func (p Principal) part(i int) string {
	if i < len(p.Components) {
		return p.Components[i]
	}
	return ""
}

func (p Principal) String() string { return strings.Join(p.Components, "/") + "@" + p.Realm }

// check refuses what cannot be written as text and read again, or is too long for logs and caches.
func (p Principal) check() error {
	size := len(p.Realm)
	for _, c := range p.Components {
		size += len(c) + 1
	}
	bad := len(p.Components) == 0 || len(p.Components) > maxComponents || size > maxName || p.Realm == "" || !plain(p.Realm)
	for _, c := range p.Components {
		bad = bad || c == "" || !plain(c)
	}
	if bad {
		return fmt.Errorf("%.100q is no name of a principal", p.String())
	}
	return nil
}

// plain reports whether a part of a name is text without characters that separate or control.
func plain(part string) bool {
	for _, r := range part {
		if r <= ' ' || r == 0x7f || r == '/' || r == '@' || r == '\\' || r == 0xFFFD {
			return false
		}
	}
	return true
}
