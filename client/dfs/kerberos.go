package dfs

import (
	"fmt"
	"net"
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/kerberos"
	"github.com/gohops/hops/internal/sasl"
)

// login takes the tickets of the process's user (KRB5CCNAME, KRB5_CLIENT_KTNAME) where the configuration wants Kerberos and no token is at hand. The
// client's user is who they are of.
func (c *Config) login(conf *HadoopConf) error {
	switch method := conf.Properties["hadoop.security.authentication"]; {
	case c.Token != nil, method == "", method == "simple":
		return nil
	case method != "kerberos":
		return fmt.Errorf("hadoop.security.authentication: %q is neither simple nor kerberos", method)
	}
	principal := conf.Properties["dfs.namenode.kerberos.principal"]
	if principal == "" {
		return fmt.Errorf("hadoop.security.authentication is kerberos, and dfs.namenode.kerberos.principal does not say who the namenodes are")
	}
	l, err := kerberos.NewLogin()
	if err != nil {
		return err
	}
	rules, err := kerberos.ParseRules(conf.Properties["hadoop.security.auth_to_local"], l.Principal().Realm)
	if err != nil {
		return fmt.Errorf("hadoop.security.auth_to_local: %w", err)
	}
	if c.User, err = rules.ShortName(l.Principal()); err != nil {
		return err
	}
	c.Login, c.NamenodePrincipal = l, principal
	return nil
}

// exchange begins an exchange of Kerberos with a namenode that says which service it is, on which host: it has to be the one that
// is configured for its address, so that no other service can take its place.
func (c *Config) exchange(addr, service, host string, qualities []sasl.Quality) (hrpc.Initiator, error) {
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if strings.Contains(c.NamenodePrincipal, "/_HOST@") {
		if ip := net.ParseIP(name); ip != nil { // principals have names; this asks the resolver, as Hadoop's clients do
			if names, err := net.LookupAddr(name); err == nil && len(names) > 0 {
				name = strings.TrimSuffix(names[0], ".")
			}
		}
	}
	want, err := kerberos.ServicePrincipal(c.NamenodePrincipal, name)
	if err != nil {
		return nil, fmt.Errorf("dfs.namenode.kerberos.principal: %w", err)
	}
	if service != want.Service() || host != want.Host() {
		return nil, fmt.Errorf("Server has invalid Kerberos principal: %.100q/%.200q, expecting: %s (dfs.namenode.kerberos.principal)", service, host, want)
	}
	return c.Login.Exchange(want, qualities...), nil
}
