package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gohops/hops/metadata"
)

// Files below a directory where small files are off are counted, and the first is named; what is the matter with others is told of each.
func TestKeepCountsFilesThatMayNotBeKept(t *testing.T) {
	for n, want := range map[int]string{
		0: "/d/broken: it cannot be read\n",
		1: "/d/broken: it cannot be read\n/d/f0: No small files may be stored below a directory of /d/f0\n",
		3: "/d/broken: it cannot be read\n3 files may not become small files, the first because: /d/f0: No small files may be stored below a directory of /d/f0\n",
	} {
		var out bytes.Buffer
		k := &keeping{errOut: &out}
		for i := range n {
			path := fmt.Sprintf("/d/f%d", i)
			if err := k.refused(t.Context(), path, metadata.Errorf(metadata.ErrUnsupported, "No small files may be stored below a directory of %s", path)); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.refused(t.Context(), "/d/broken", metadata.Errorf(metadata.ErrIO, "it cannot be read")); err != nil {
			t.Fatal(err)
		}
		if err := k.tellUnfit(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want || k.failed != n+1 {
			t.Errorf("%d failed, told:\n%swant:\n%s", k.failed, &out, want)
		}
	}
}
