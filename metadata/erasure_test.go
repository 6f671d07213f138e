package metadata

import "testing"

func TestErasurePoliciesAreHDFS(t *testing.T) {
	t.Parallel()
	for i, p := range ErasurePolicies() {
		if err := p.Layout.Validate(); err != nil || int(p.ID) != i+1 {
			t.Errorf("%+v: %v", p, err)
		}
		byID, known := ErasurePolicyOf(p.ID)
		byName, named := ErasurePolicyNamed(p.Name)
		if !known || !named || byID != p || byName != p {
			t.Errorf("%+v is not found by its id or name", p)
		}
	}
	for _, id := range []ErasurePolicyID{0, 6, 64, 255} {
		if _, known := ErasurePolicyOf(id); known {
			t.Errorf("policy %d is known", id)
		}
	}
	if p, named := ErasurePolicyNamed(DefaultErasurePolicy); !named || !p.Built() {
		t.Error("the default policy is not built")
	}
}

func TestInternalBlocksBelongToTheirGroup(t *testing.T) {
	t.Parallel()
	for _, group := range []BlockID{FirstGroupID, FirstGroupID + GroupStep, -GroupStep, -1 << 40} {
		for i := range int(GroupStep) {
			id := group.Internal(i)
			if !id.Striped() || id.Group() != group || id.Unit() != i {
				t.Errorf("block %d of group %d: %d, of group %d, number %d", i, group, id, id.Group(), id.Unit())
			}
		}
	}
	for _, id := range []BlockID{0, FirstBlockID, 1<<63 - 1} {
		if id.Striped() || id.Group() != id || id.Unit() != 0 {
			t.Errorf("block %d is of group %d", id, id.Group())
		}
	}
}
