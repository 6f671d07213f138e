package namespace

import (
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Every operation has a description, and so has whatever a log may hold: or an error.
func FuzzDescribe(f *testing.F) {
	ops := new(logpb.Command).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		cmd := &logpb.Command{Caller: &logpb.Caller{User: "alice"}}
		fill(cmd.ProtoReflect().Mutable(ops.Get(i)).Message())
		raw, err := cmd.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		if c, err := Describe(raw); err != nil || c.Operation != string(ops.Get(i).Name()) || c.Caller != "alice" {
			f.Errorf("%s: %+v, %v", ops.Get(i).Name(), c, err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Describe(raw)
		if err != nil && !errors.Is(err, release.ErrOlder) && !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatal(err)
		}
		if strings.ContainsAny(c.String(), "\n\r\x1b") {
			t.Fatalf("%q", c.String())
		}
	})
}
