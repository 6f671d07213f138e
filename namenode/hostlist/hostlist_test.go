package hostlist

import (
	"strings"
	"testing"

	"github.com/gohops/hops/namenode"
)

func TestListsSayWhoServesAndWhoLeaves(t *testing.T) {
	t.Parallel()
	node := func(ip, host string, port uint32) *namenode.Node {
		return &namenode.Node{IP: ip, Host: host, TransferPort: port}
	}
	one, two := node("10.0.0.1", "dn1", 9866), node("10.0.0.2", "dn2", 9866)
	other, six := node("10.0.0.2", "dn2", 9867), node("fd00::6", "dn6", 9866)
	for _, c := range []struct {
		name, include, exclude string
		n                      *namenode.Node
		admits                 bool
		wish                   namenode.AdminState
	}{
		{"no files", "", "", one, true, namenode.Normal},
		{"only comments", "# nobody\n\n", "", one, true, namenode.Normal},
		{"included by name", "DN1 dn3\n", "", one, true, namenode.Normal},
		{"not included", "dn1\ndn3 # the new one\n", "", two, false, namenode.Normal},
		{"excluded by address", "", "10.0.0.2", two, true, namenode.Decommissioned},
		{"excluded by port", "", "dn2:9867", other, true, namenode.Decommissioned},
		{"another port is excluded", "", "dn2:9867", two, true, namenode.Normal},
		{"IPv6", "", "[fd00::6]:9866", six, true, namenode.Decommissioned},
		{"IPv6 without port", "", "fd00::6", six, true, namenode.Decommissioned},
		{"JSON: decommissioned", `[{"hostName":"dn1"},{"hostName":"dn2","port":9866,"adminState":"DECOMMISSIONED"}]`, "", two, true, namenode.Decommissioned},
		{"JSON: not there", `[{"hostName":"dn1"}]`, "", two, false, namenode.Normal},
		{"JSON, one after the other", `{"hostName":"dn1"} {"hostName":"dn2","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":101}`, "", two, true, namenode.InMaintenance},
		{"JSON: its time is over", `[{"hostName":"dn2","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":99}]`, "", two, true, namenode.Normal},
		{"JSON: for ever", `[{"hostName":"dn2","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":9223372036854775807}]`, "", two, true, namenode.InMaintenance},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := Parse([]byte(c.include), []byte(c.exclude))
			if err != nil {
				t.Fatal(err)
			}
			if a, w := l.Admits(c.n), l.Wish(c.n, 100); a != c.admits || w != c.wish {
				t.Errorf("admits %t, wish %v; want %t, %v", a, w, c.admits, c.wish)
			}
		})
	}
}

func TestMistakesInListsAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ include, exclude, words string }{
		{"", "dn1\ndn2:x\n", `dfs.hosts.exclude: line 2: "dn2:x" is neither HOST nor HOST:PORT`},
		{"dn1:70000", "", `dfs.hosts: line 1`},
		{`[{"hostName":"dn1","adminState":"GONE"}]`, "", `adminState "GONE" of dn1: want NORMAL, DECOMMISSIONED or IN_MAINTENANCE`},
		{`[{"port":1}]`, "", "a datanode without hostName"},
		{`[{"hostName":`, "", "dfs.hosts: unexpected EOF"},
	} {
		if _, err := Parse([]byte(c.include), []byte(c.exclude)); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q %q: %v, want %q", c.include, c.exclude, err, c.words)
		}
	}
}
