package roster

import (
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
)

// FuzzAdmit: whatever a machine with a token asks for, it becomes nothing that it was not given.
func FuzzAdmit(f *testing.F) {
	key, err := authority.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	good, err := authority.Request(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("m1", "datanode", "10.0.0.1", good)
	f.Add("first", "namenode,datanode", "::1", []byte{0x30})
	f.Add("a/../b", "", "a b", []byte{})
	f.Fuzz(func(t *testing.T, machine, roles, address string, request []byte) {
		x := newFixture(t)
		token := x.invite(t, 1, authority.Datanode)
		j := Joining{Token: token.ID, Proof: token.Prove(nil, nil), Machine: machine, Addresses: []string{address}, Request: request}
		for word := range strings.SplitSeq(roles, ",") {
			j.Roles = append(j.Roles, authority.Role(word))
		}
		der, err := x.Admit(t.Context(), j)
		if err != nil {
			if all, err := x.Machines(); err != nil || len(all) != 1 {
				t.Errorf("%v %v", all, err)
			}
			return
		}
		n, err := x.verify(t, der)
		if err != nil || n.Machine != machine || len(n.Roles) != 1 || n.Roles[0] != authority.Datanode {
			t.Errorf("%v %v", n, err)
		}
	})
}
