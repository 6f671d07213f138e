package roster

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/gohops/hops/internal/authority"
)

// Rotation is how far one authority has followed the other.
type Rotation struct {
	// Step is one word: none; announced: not all machines trust the next authority yet; issued: it issues, and not all machines have
	// a certificate of it yet.
	Step string `json:"step"`
	// Missing are the machines that are waited for.
	Missing []string `json:"missing,omitempty"`
}

// The steps.
const (
	Announced = "announced"
	Issued    = "issued"
	Unrotated = "none"
)

// Rotate begins to replace the authority: all machines learn to trust another one, and who knows the old one goes on to know the servers
// by a link. compromised: somebody else may have the old one's key, so that its word is worth nothing, and there is no link. It is no error
// when that has begun.
func (r *Roster) Rotate(ctx context.Context, compromised bool) error {
	return r.decide(ctx, func() ([]Change, error) {
		k, version, err := item[kept](r, authorityItem)
		if err != nil {
			return nil, err
		}
		if k == nil {
			return nil, ErrNone
		}
		roots, err := authority.ParseRoots(k.Roots)
		if err == nil && len(roots) > 1 && compromised && len(k.Links) > 0 {
			k.Links = nil
			return []Change{change(authorityItem, k, version)}, nil
		}
		if err != nil || len(roots) > 1 {
			return nil, err
		}
		next, err := authority.New(k.Cluster, r.now())
		if err != nil {
			return nil, err
		}
		if k.Next, err = r.sealed(next); err != nil {
			return nil, err
		}
		k.Roots = authority.MarshalRoots(append(roots, next.Root()))
		if k.Links, err = r.linked(k, next, compromised); err != nil {
			return nil, err
		}
		return []Change{change(authorityItem, k, version)}, nil
	})
}

// linked are the links with one more, from the authority that issues to the next.
func (r *Roster) linked(k *kept, next *authority.Authority, compromised bool) ([]byte, error) {
	if compromised {
		return nil, nil
	}
	now, err := r.open(k.Sealed)
	if err != nil {
		return nil, err
	}
	links, err := authority.ParseLinks(k.Links)
	if err != nil {
		return nil, err
	}
	link, err := now.Vouch(next.Root())
	if err != nil {
		return nil, err
	}
	if links, err = authority.AddLink(links, link, r.now()); err != nil {
		return nil, err
	}
	return authority.MarshalRoots(links), nil
}

// Advance takes the next step of a rotation when all machines are ready for it, or at once with force: machines that are not must
// join again.
func (r *Roster) Advance(ctx context.Context, force bool) error {
	return r.decide(ctx, func() ([]Change, error) {
		now, k, version, err := r.rotation()
		if err != nil || now.Step == Unrotated || len(now.Missing) > 0 && !force {
			return nil, err
		}
		if now.Step == Announced {
			k.Sealed, k.Next = k.Next, nil
		} else {
			a, err := r.open(k.Sealed)
			if err != nil {
				return nil, err
			}
			k.Roots = authority.MarshalRoots([]*x509.Certificate{a.Root()})
		}
		return []Change{change(authorityItem, k, version)}, nil
	})
}

// Rotation says how far the rotation is.
func (r *Roster) Rotation() (Rotation, error) {
	now, _, _, err := r.rotation()
	return now, err
}

func (r *Roster) rotation() (now Rotation, k *kept, version uint64, err error) {
	now.Step = Unrotated
	if k, version, err = item[kept](r, authorityItem); err != nil || k == nil {
		return now, k, version, err
	}
	roots, err := authority.ParseRoots(k.Roots)
	if err != nil || len(roots) == 1 {
		return now, k, version, err
	}
	sealed := k.Sealed
	if now.Step = Issued; k.Next != nil {
		now.Step, sealed = Announced, k.Next
	}
	next, err := r.open(sealed)
	if err != nil {
		return now, k, version, err
	}
	fingerprint := authority.FingerprintOf(next.Root())
	all, err := r.Machines()
	if err != nil {
		return now, k, version, err
	}
	for _, m := range all {
		if m.Removed.IsZero() && (now.Step == Announced && m.Knows != fingerprint && m.Issuer != fingerprint || now.Step == Issued && m.Issuer != fingerprint) {
			now.Missing = append(now.Missing, m.Name)
		}
	}
	return now, k, version, nil
}

// Issuer is the authority that issues certificates, by its root.
func (r *Roster) Issuer() (*x509.Certificate, error) {
	a, err := r.opened()
	if err != nil {
		return nil, err
	}
	return a.Root(), nil
}

// Confirm notes that a machine, which has shown that it is n, trusts an authority.
func (r *Roster) Confirm(ctx context.Context, n *authority.Name, knows authority.Fingerprint) error {
	return r.decide(ctx, func() ([]Change, error) {
		t, err := r.Trust()
		if err != nil {
			return nil, err
		}
		if t == nil || !slices.ContainsFunc(t.Roots, func(c *x509.Certificate) bool { return authority.FingerprintOf(c) == knows }) {
			return nil, fmt.Errorf("the authority that %s trusts: %w", n, ErrUnknown)
		}
		m, version, err := item[Machine](r, machines+n.Machine)
		if err != nil {
			return nil, err
		}
		if m == nil || !m.Removed.IsZero() || m.Generation != n.Generation {
			return nil, fmt.Errorf("%w: %s", authority.ErrRevoked, n)
		}
		if m.Knows == knows {
			return nil, nil
		}
		m.Knows = knows
		return []Change{change(machines+n.Machine, m, version)}, nil
	})
}
