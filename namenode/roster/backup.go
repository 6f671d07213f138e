package roster

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gohops/hops/internal/authority"
)

// Backup is the cluster's authority as the register has it: sealed.
func (r *Roster) Backup() ([]byte, error) {
	value, _ := r.register.Item(authorityItem)
	if value == nil {
		return nil, ErrNone
	}
	return value, nil
}

// Reissue makes a machine's identity anew out of what Backup returned: the key and the certificate of the old one may be lost or
// have ended since. seal is that of the roster.
func Reissue(seal, backup []byte, old *authority.Identity, now time.Time) (*authority.Identity, error) {
	r, err := New(Config{Seal: seal, Now: func() time.Time { return now }})
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(backup, &k); err != nil {
		return nil, fmt.Errorf("the authority in the backup: %w", err)
	}
	a, err := r.open(k.Sealed)
	if err != nil {
		return nil, err
	}
	roots, err := authority.ParseRoots(k.Roots)
	if err != nil {
		return nil, err
	}
	links, err := authority.ParseLinks(k.Links)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(old.Certificate)
	if err != nil {
		return nil, err
	}
	name, err := (&authority.Trust{Cluster: k.Cluster, Roots: roots}).Verify(leaf, leaf.NotBefore)
	if err != nil {
		return nil, fmt.Errorf("the identity in the backup: %w", err)
	}
	if name.Machine == "" {
		return nil, errors.New("the identity in the backup is of no machine")
	}
	addresses := leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		addresses = append(addresses, ip.String())
	}
	key, err := authority.NewKey()
	if err != nil {
		return nil, err
	}
	request, err := authority.Request(key)
	if err != nil {
		return nil, err
	}
	der, err := a.Issue(request, *name, addresses, now, authority.MachineLife)
	if err != nil {
		return nil, err
	}
	return &authority.Identity{Certificate: der, Key: key, Roots: roots, Links: links}, nil
}
