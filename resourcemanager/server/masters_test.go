package server

import (
	"bytes"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// A master is reached at its own node, and over the network only with a certificate.
func TestWhereAMasterMayBe(t *testing.T) {
	alone := &rm.Node{ID: "127.0.0.1:8042", Host: "127.0.0.1", HTTP: "127.0.0.1:8042"}
	apart := &rm.Node{ID: "m1:8042", Host: "m1", HTTP: "10.0.0.1:8042"}
	pin := bytes.Repeat([]byte{7}, 32)
	for name, test := range map[string]struct {
		address     string
		certificate []byte
		node        *rm.Node
		want, says  string
	}{
		"no server":                                       {"", nil, apart, "", ""},
		"loopback, of a node alone":                       {"127.0.0.1:5", nil, alone, "127.0.0.1:5", ""},
		"loopback by name":                                {"localhost:5", nil, alone, "localhost:5", ""},
		"loopback, with a certificate":                    {"127.0.0.1:5", pin, alone, "127.0.0.1:5", ""},
		"its node, with a certificate":                    {"m1:5", pin, apart, "m1:5", ""},
		"its node's address, with a certificate":          {"10.0.0.1:5", pin, apart, "10.0.0.1:5", ""},
		"the node itself, with a certificate":             {":5", pin, apart, "10.0.0.1:5", ""},
		"the node itself, in plain":                       {":5", nil, apart, "", "serve TLS there and register http_certificate"},
		"its node, in plain":                              {"m1:5", nil, apart, "", "http_address m1:5 is reached over the network"},
		"the resource manager's loopback":                 {"127.0.0.1:5", nil, apart, "", "is not on the master's node m1:8042"},
		"the resource manager's loopback, by certificate": {"127.0.0.1:5", pin, apart, "", "is not on the master's node m1:8042"},
		"another machine, with a certificate":             {"10.0.0.2:5", pin, apart, "", "is not on the master's node m1:8042"},
		"half a certificate":                              {"m1:5", pin[:16], apart, "", "http_certificate has 16 bytes"},
		"a certificate of nothing":                        {"", pin, apart, "", "http_certificate has 32 bytes"},
		"no port":                                         {"m1", pin, apart, "", "is not host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := masterAddress(test.address, test.certificate, test.node)
			if got != test.want || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q %v, want %q %q", got, err, test.want, test.says)
			}
		})
	}
}
