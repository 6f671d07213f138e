package server

import (
	"errors"
	"maps"
	"math"
	"net/url"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

// The parameters of a door's request are within their bounds or refused as invalid, and one query always means the same.
func FuzzDoorQuery(f *testing.F) {
	for _, q := range []string{
		"op=CREATE&overwrite=true&blocksize=1048576&replication=3&permission=644&createparent=false&unmaskedpermission=1777",
		"op=OPEN&offset=5&length=10", "Offset=1&offset=2&OFFSET=3", "offset=-1&length=-2", "permission=1778&blocksize=0x10",
		"length=9223372036854775808", "permission=&offset=null", "overwrite=TRUE&createparent=maybe", "a=%zz&offset=%31", "op=a;offset=1",
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, err := url.ParseQuery(raw)
		if err != nil {
			return // as net/http does; URL.Query leaves such pairs out
		}
		q := query(values)
		if again := query(values); !maps.Equal(q, again) {
			t.Errorf("%v, then %v", q, again)
		}
		for name, value := range q {
			if name != strings.ToLower(name) || value == "" || value == "null" {
				t.Errorf("parameter %q is %q", name, value)
			}
		}
		for name, least := range map[string]int64{"offset": 0, "length": 0, "blocksize": 1, "replication": 1} {
			n, err := q.integer(name, math.MinInt64, least)
			_, there := q[name]
			if err == nil && there != (n >= least) {
				t.Errorf("%s=%q is %d", name, q[name], n)
			}
			mustBeInvalid(t, err)
		}
		for _, name := range []string{"permission", "unmaskedpermission"} {
			mode, err := q.permission(name, 0o644)
			if err == nil && mode > 0o1777 {
				t.Errorf("%s=%q is %o", name, q[name], mode)
			}
			mustBeInvalid(t, err)
		}
		for _, name := range []string{"overwrite", "createparent"} {
			_, err := q.boolean(name, true)
			mustBeInvalid(t, err)
		}
	})
}

func mustBeInvalid(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("error %v", err)
	}
}
