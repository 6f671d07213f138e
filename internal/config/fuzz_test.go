package config

import (
	"net"
	"strings"
	"testing"
)

// A file is refused with its name, or gives a configuration that can be validated again and listens where it may.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		whole, "namenode: {}\ndatanode: {}\n", "cluster: {name: x, secret_file: y}\nproperties: {dfs.replication: 2}\n",
		"cluster: &c {name: a, secret_file: b}\nnodemanager: {work: w, memory: 1g, vcores: 2}\n", "- a\n", "",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("hops.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "hops.yaml: ") {
				t.Errorf("error %q", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("it was valid, and is not any more: %v", err)
		}
		addresses := []string{}
		for _, n := range c.Namenodes {
			addresses = append(addresses, n.IPC, n.HTTP, n.GRPC, n.Raft)
		}
		if d := c.Datanode; d != nil {
			addresses = append(addresses, d.Transfer, d.HTTP, d.IPC, d.GRPC)
		}
		for _, a := range addresses {
			if host, _, err := net.SplitHostPort(a); err != nil || host == "" || host == "0.0.0.0" || host == "::" {
				t.Errorf("address %q", a)
			}
		}
	})
}
