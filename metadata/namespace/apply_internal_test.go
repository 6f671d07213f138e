package namespace

import (
	"testing"

	"google.golang.org/protobuf/proto"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Callers that are remembered are who the command says, in whatever way the command spells it, and a strange command
// does not change them.
func TestDecodingGivesTheCommandsOwnCaller(t *testing.T) {
	ns := new(Namespace)
	marshal := func(c *logpb.Command) []byte {
		data, err := c.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	check := func(what string, data []byte) {
		t.Helper()
		var want logpb.Command
		if err := want.UnmarshalVT(data); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got := new(logpb.Command)
			if err := ns.decode(data, got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, &want) {
				t.Errorf("%s: %v, want %v", what, got, &want)
			}
		}
	}
	op := &logpb.Command_Delete{Delete: &logpb.Delete{Target: to("/a")}}
	var whole []byte
	for user := 'a'; user <= 'z'; user++ {
		for _, groups := range [][]string{nil, {"g"}, {"g", "h"}} {
			whole = marshal(&logpb.Command{Caller: &logpb.Caller{User: string(user), Groups: groups, Host: "h"}, CallId: 3, Op: op})
			check("caller first", whole)
		}
	}
	only := marshal(&logpb.Command{Caller: &logpb.Caller{User: "other", Groups: []string{"x"}, Superuser: true}})
	check("two callers", append(append([]byte(nil), whole...), only...))
	check("after two callers", whole)
	check("caller last", append(marshal(&logpb.Command{CallId: 3, Op: op}), only...))
	check("no caller", marshal(&logpb.Command{CallId: 3, Op: op}))
	if err := ns.decode([]byte{0x0a, 0x05, 0x0a}, new(logpb.Command)); err == nil {
		t.Error("a caller that runs over the end is decoded")
	}
	if err := ns.decode([]byte{0x0a, 0x02, 0x0a, 0x05}, new(logpb.Command)); err == nil {
		t.Error("a damaged caller is decoded")
	}
}
