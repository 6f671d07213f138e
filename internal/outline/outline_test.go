package outline

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

func TestNoSecretNoLineBreakNoFlood(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	nodes := strings.Split(strings.Repeat("d ", 1000), " ")
	for what, c := range map[string]struct {
		command *logpb.Command
		want    string
	}{
		"secrets":     {&logpb.Command{Op: &logpb.Command_RollBlockKeys{RollBlockKeys: &logpb.RollBlockKeys{Seeds: [][]byte{[]byte("s1"), []byte("s2")}}}}, "roll_block_keys seeds=[(hidden) (hidden)]"},
		"nested":      {&logpb.Command{Op: &logpb.Command_ChangeRegister{ChangeRegister: &logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: "n", Value: []byte("v")}}}}}, "change_register changes=[{name=n}]"},
		"line breaks": {&logpb.Command{Op: &logpb.Command_RenewLease{RenewLease: &logpb.RenewLease{ClientName: "a\n\x1b[2J"}}}, `renew_lease client_name="a\n\x1b[2J"`},
		"long text":   {&logpb.Command{Op: &logpb.Command_RenewLease{RenewLease: &logpb.RenewLease{ClientName: long}}}, "renew_lease client_name=" + long[:256] + "..."},
		"long list":   {&logpb.Command{Op: &logpb.Command_AddBlock{AddBlock: &logpb.AddBlock{Nodes: nodes}}}, "add_block nodes=[d d d d d d d d and 993 more]"},
		"mode":        {&logpb.Command{Op: &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: &logpb.Target{Path: "p"}, Mode: 0o1750}}}, "set_permission target=T mode=1750"},
		"enumeration": {&logpb.Command{Op: &logpb.Command_SetAcl{SetAcl: &logpb.SetACL{Change: logpb.SetACL_REMOVE}}}, "set_acl change=REMOVE"},
		"nil":         {&logpb.Command{Op: &logpb.Command_SetAcl{}}, "set_acl"},
		"empty text":  {&logpb.Command{Op: &logpb.Command_SetOwner{SetOwner: &logpb.SetOwner{Owner: "a b"}}}, `set_owner owner="a b"`},
	} {
		w := Writer{"hops.metadata.log.v1.Target": func(protoreflect.Message) string { return "T" }}
		if got, ok := w.Of(c.command, "op"); !ok || got.String() != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	if _, ok := (Writer{}).Of(&logpb.Command{}, "op"); ok {
		t.Error("an operation where there is none")
	}
}
