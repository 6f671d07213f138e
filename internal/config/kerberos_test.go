package config

import (
	"strings"
	"testing"
)

func TestKerberosProperties(t *testing.T) {
	const nn = "  dfs.namenode.kerberos.principal: nn/_HOST@EXAMPLE.COM\n  dfs.namenode.keytab.file: /etc/hops/nn.keytab\n"
	for _, c := range []struct{ name, properties, want string }{
		{"whole", "  hadoop.security.authentication: kerberos\n" + nn + "  hadoop.security.auth_to_local: 'RULE:[2:$1](nn)s/.*/hdfs/ DEFAULT'\n", ""},
		{"simple", "  hadoop.security.authentication: simple\n", ""},
		{"a wrong method", "  hadoop.security.authentication: ldap\n", `hadoop.security.authentication: "ldap" is neither simple nor kerberos`},
		{"without principals", "  hadoop.security.authentication: kerberos\n", "dfs.namenode.kerberos.principal and dfs.namenode.keytab.file are missing"},
		{"not switched on", nn, "dfs.namenode.kerberos.principal is set, and hadoop.security.authentication is not kerberos"},
		{"a principal without keytab", "  hadoop.security.authentication: kerberos\n" + nn + "  dfs.web.authentication.kerberos.principal: HTTP/_HOST@EXAMPLE.COM\n", "dfs.web.authentication.kerberos.principal is set, and dfs.web.authentication.kerberos.keytab is not"},
		{"a keytab without principal", "  hadoop.security.authentication: kerberos\n" + nn + "  dfs.datanode.keytab.file: /x\n", "dfs.datanode.keytab.file is set, and dfs.datanode.kerberos.principal is not"},
		{"a user's principal", "  hadoop.security.authentication: kerberos\n  dfs.namenode.kerberos.principal: nn@EXAMPLE.COM\n", `"nn@EXAMPLE.COM" is no principal of a service: SERVICE/HOST@REALM is`},
		{"no realm", "  hadoop.security.authentication: kerberos\n  dfs.namenode.kerberos.principal: nn/_HOST\n", `"nn/_HOST" is no Kerberos principal`},
		{"a relative keytab", "  dfs.namenode.keytab.file: nn.keytab\n", `dfs.namenode.keytab.file: "nn.keytab" is no absolute path`},
		{"a wrong rule", "  hadoop.security.auth_to_local: RULE:x\n", `"RULE:x" is no rule`},
		{"a misspelt name", "  dfs.namenode.kerberos.principle: x\n", "did you mean dfs.namenode.kerberos.principal?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse("hops.yaml", []byte(strings.Replace(whole, `properties: {dfs.replication: 2, dfs.blocksize: 64MiB, hadoop.proxyuser.hue.hosts: "*"}`, "properties:\n"+c.properties, 1)))
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var again Properties
			for _, pair := range f.HadoopProperties().Pairs() {
				if err := again.Set(pair[0], pair[1]); err != nil {
					t.Fatal(err)
				}
			}
			if again.Kerberos != f.HadoopProperties().Kerberos {
				t.Errorf("%+v comes back as %+v", f.HadoopProperties().Kerberos, again.Kerberos)
			}
		})
	}
}
