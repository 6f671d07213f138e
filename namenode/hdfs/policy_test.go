package hdfs

import (
	"errors"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestPoliciesAreFoundInAnyCase(t *testing.T) {
	for _, name := range []string{"ALL_SSD", "all_ssd", "All_SSD"} {
		if p, err := PolicyByName(name); err != nil || p.Name != "ALL_SSD" {
			t.Fatal(name, p, err)
		}
	}
	if p, err := PolicyByName("LUKEWARM"); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Fatal(p, err)
	}
}
