package roles

import (
	"fmt"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/kerberos"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
)

// acceptor takes tickets for a principal of the configuration; nil when there is none.
func acceptor(k config.Kerberos, principal, keytab string) (*kerberos.Acceptor, error) {
	if principal == "" {
		return nil, nil
	}
	p, err := kerberos.ServicePrincipal(principal, "")
	if err != nil {
		return nil, fmt.Errorf("Kerberos: %w", err)
	}
	rules, err := kerberos.ParseRules(k.Rules, p.Realm)
	if err != nil {
		return nil, fmt.Errorf("hadoop.security.auth_to_local: %w", err)
	}
	a, err := kerberos.NewAcceptor(kerberos.Config{Keytab: keytab, Principals: []kerberos.Principal{p}, Rules: rules})
	if err != nil {
		return nil, fmt.Errorf("Kerberos: %w", err)
	}
	return a, nil
}

// negotiator takes tickets in HTTP requests; nil when the configuration has no principal for that.
func negotiator(k config.Kerberos) (security.Negotiator, error) {
	a, err := acceptor(k, k.WebPrincipal, k.WebKeytab)
	if a == nil {
		return nil, err
	}
	return a, nil
}

// tickets are what a server of Hadoop IPC offers to who has tickets for a principal: nothing when there is none.
func tickets(properties config.Properties, principal, keytab string) ([]hrpc.Offer, error) {
	a, err := acceptor(properties.Kerberos, principal, keytab)
	if a == nil {
		return nil, err
	}
	return []hrpc.Offer{{
		Method: sasl.Kerberos, Mechanism: kerberos.GSSAPI, Protocol: a.Principal().Service(), ServerID: a.Principal().Host(),
		New: func(*security.Peer) (sasl.Mechanism, error) { return a.Exchange(properties.RPCProtection...), nil },
	}}, nil
}
