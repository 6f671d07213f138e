package namespace

import (
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	// maxForgotten is how many datanodes are remembered as given up; beyond that the first ones are waited for again.
	maxForgotten = 64
	// maxDatanodeID bounds a datanode's uuid, in bytes.
	maxDatanodeID = 255
)

// forgetDatanode remembers that an operator has given up a datanode, or that it came back. False: that was known.
//
// Errors: ErrInvalidArgument.
func (ns *Namespace) forgetDatanode(t *txn, op *logpb.ForgetDatanode) {
	if op.Uuid == "" || len(op.Uuid) > maxDatanodeID {
		t.failf(metadata.ErrInvalidArgument, "uuid of a datanode of %d bytes, want 1 to %d", len(op.Uuid), maxDatanodeID)
		return
	}
	m := &ns.meta
	i := slices.Index(m.forgotten, op.Uuid)
	switch {
	case !op.Recalled && i < 0:
		m.forgotten = append(slices.Clone(m.forgotten[max(0, len(m.forgotten)-maxForgotten+1):]), op.Uuid)
	case op.Recalled && i >= 0:
		m.forgotten = slices.Delete(slices.Clone(m.forgotten), i, i+1)
	default:
		return
	}
	t.result.OK = true
}

// Forgotten are the uuids of the datanodes that an operator has given up and that have not come back. It takes no lock; nobody
// changes what it returns.
func (ns *Namespace) Forgotten() []string {
	if l := ns.forgotten.Load(); l != nil {
		return *l
	}
	return nil
}

// publishForgotten makes Forgotten return meta's.
func (ns *Namespace) publishForgotten() {
	if !slices.Equal(ns.Forgotten(), ns.meta.forgotten) {
		list := ns.meta.forgotten
		ns.forgotten.Store(&list)
	}
}

// soundForgotten reports whether a list is as forgetDatanode leaves it.
func soundForgotten(list []string) bool {
	for i, id := range list {
		if id == "" || len(id) > maxDatanodeID || slices.Contains(list[:i], id) {
			return false
		}
	}
	return len(list) <= maxForgotten
}
