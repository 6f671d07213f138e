package config

import (
	"errors"
	"fmt"

	"github.com/gohops/hops/internal/kerberos"
)

// Kerberos are the settings of who takes tickets, under Hadoop's names. The zero value: nobody does.
type Kerberos struct {
	// Authentication is simple or kerberos (hadoop.security.authentication, simple). With kerberos the namenodes' IPC takes
	// tickets.
	Authentication string
	// NamenodePrincipal and NamenodeKeytab are those of Hadoop IPC at a namenode (dfs.namenode.kerberos.principal,
	// dfs.namenode.keytab.file).
	NamenodePrincipal, NamenodeKeytab string
	// DatanodePrincipal and DatanodeKeytab are those of Hadoop IPC at a datanode (dfs.datanode.kerberos.principal,
	// dfs.datanode.keytab.file).
	DatanodePrincipal, DatanodeKeytab string
	// WebPrincipal and WebKeytab are those of HTTP at every server (dfs.web.authentication.kerberos.principal,
	// dfs.web.authentication.kerberos.keytab).
	WebPrincipal, WebKeytab string
	// Rules make short names of principals (hadoop.security.auth_to_local, DEFAULT).
	Rules string
}

// Enabled reports whether tickets are taken.
func (k *Kerberos) Enabled() bool { return k.Authentication == "kerberos" }

// kerberosProperties are listed only when they are set: Hadoop has no values of its own for them.
var kerberosProperties = []property{
	{
		"hadoop.security.authentication",
		func(p *Properties) string { return p.Kerberos.Authentication },
		func(p *Properties, v string) error {
			if v != "simple" && v != "kerberos" {
				return fmt.Errorf("%q is neither simple nor kerberos", v)
			}
			p.Kerberos.Authentication = v
			return nil
		},
	},
	{
		"hadoop.security.auth_to_local",
		func(p *Properties) string { return p.Kerberos.Rules },
		func(p *Properties, v string) error {
			_, err := kerberos.ParseRules(v, "")
			p.Kerberos.Rules = v
			return err
		},
	},
	servicePrincipal("dfs.namenode.kerberos.principal", func(p *Properties) *string { return &p.Kerberos.NamenodePrincipal }),
	servicePrincipal("dfs.datanode.kerberos.principal", func(p *Properties) *string { return &p.Kerberos.DatanodePrincipal }),
	servicePrincipal("dfs.web.authentication.kerberos.principal", func(p *Properties) *string { return &p.Kerberos.WebPrincipal }),
	file("dfs.namenode.keytab.file", func(p *Properties) *string { return &p.Kerberos.NamenodeKeytab }),
	file("dfs.datanode.keytab.file", func(p *Properties) *string { return &p.Kerberos.DatanodeKeytab }),
	file("dfs.web.authentication.kerberos.keytab", func(p *Properties) *string { return &p.Kerberos.WebKeytab }),
}

func servicePrincipal(name string, field func(*Properties) *string) property {
	return property{name, func(p *Properties) string { return *field(p) }, func(p *Properties, v string) error {
		_, err := kerberos.ServicePrincipal(v, "localhost")
		*field(p) = v
		return err
	}}
}

// check refuses half a configuration.
func (k *Kerberos) check() error {
	var errs []error
	for _, pair := range []struct{ principal, principalName, keytab, keytabName string }{
		{k.NamenodePrincipal, "dfs.namenode.kerberos.principal", k.NamenodeKeytab, "dfs.namenode.keytab.file"},
		{k.DatanodePrincipal, "dfs.datanode.kerberos.principal", k.DatanodeKeytab, "dfs.datanode.keytab.file"},
		{k.WebPrincipal, "dfs.web.authentication.kerberos.principal", k.WebKeytab, "dfs.web.authentication.kerberos.keytab"},
	} {
		switch {
		case pair.principal != "" && pair.keytab == "":
			errs = append(errs, fmt.Errorf("%s is set, and %s is not", pair.principalName, pair.keytabName))
		case pair.principal == "" && pair.keytab != "":
			errs = append(errs, fmt.Errorf("%s is set, and %s is not", pair.keytabName, pair.principalName))
		case pair.principal != "" && !k.Enabled():
			errs = append(errs, fmt.Errorf("%s is set, and hadoop.security.authentication is not kerberos", pair.principalName))
		}
	}
	if k.Enabled() && k.NamenodePrincipal == "" {
		errs = append(errs, errors.New("hadoop.security.authentication is kerberos: dfs.namenode.kerberos.principal and dfs.namenode.keytab.file are missing"))
	}
	return errors.Join(errs...)
}
