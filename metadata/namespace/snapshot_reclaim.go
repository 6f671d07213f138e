package namespace

import (
	"encoding/binary"
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// sweepSnapshots takes deleted snapshots apart, the oldest first, by up to limit records: each goes to the next older snapshot
// that has the inode or the directory, unless something was kept for that one, or goes.
func (ns *Namespace) sweepSnapshots(limit int) {
	for limit > 0 && len(ns.snaps.deleted) > 0 {
		s := ns.snaps.byID[ns.snaps.deleted[0]]
		prefix := keptKey(string(classSnapshotIndex), s.id)
		var keys []string
		err := ns.scanKept(prefix, max(prefix, ns.snaps.swept), func(key, _ []byte) bool {
			keys = append(keys, string(key))
			return len(keys) < limit
		})
		for _, key := range keys {
			if err != nil {
				break
			}
			err = ns.inherit(s, key[len(prefix):])
			ns.snaps.swept = key
		}
		if err != nil {
			ns.fatal(err)
		}
		if limit -= max(1, len(keys)); len(keys) == 0 {
			ns.endSnapshot(s)
		}
	}
}

// endSnapshot forgets a snapshot for which nothing is kept any more.
func (ns *Namespace) endSnapshot(s *dirSnapshot) {
	key := snapshotKey(s.id)
	ns.hash -= hashRecord([]byte(key), s.encode())
	ns.changed = true
	ns.pending[key] = nil
	delete(ns.snaps.byID, s.id)
	without(ns.snaps.of, s)
	if ns.snaps.born == s.nextINode {
		ns.snaps.born = 0
		for _, other := range ns.snaps.byID {
			ns.snaps.born = max(ns.snaps.born, other.nextINode)
		}
	}
	ns.snaps.deleted, ns.snaps.swept = ns.snaps.deleted[1:], ""
	ns.meta.snapshots--
}

// inherit is bequeath, and tells the quotas what becomes of what was kept of an inode.
func (ns *Namespace) inherit(s *dirSnapshot, prefix string) error {
	if prefix[0] != classSnapshotINode {
		_, err := ns.bequeath(s, prefix)
		return err
	}
	id := metadata.INodeID(binary.BigEndian.Uint64([]byte(prefix[1:])))
	return ns.rewrite(id, func() (uint32, error) { return ns.bequeath(s, prefix) })
}

// bequeath hands what was kept under a prefix for a snapshot that goes to the one that needs it now, which it returns; 0: it is gone.
func (ns *Namespace) bequeath(s *dirSnapshot, prefix string) (heir uint32, err error) {
	key := keptKey(prefix, s.id)
	value, err := ns.getNow(key)
	if err != nil {
		return 0, err
	}
	owner := metadata.INodeID(binary.BigEndian.Uint64([]byte(prefix[1:])))
	var gone *inode
	var spans []span
	if value != nil && prefix[0] == classSnapshotINode {
		gone, spans, err = decodeKept("", value)
	} else {
		var r logpb.SnapshotEntry
		if err = r.UnmarshalVT(value); err != nil || value == nil {
			return 0, corrupt("record %q of snapshot %d: %v", prefix, s.id, err)
		}
		spans = decodeSpans(r.Spans)
	}
	if err != nil {
		return 0, err
	}
	ns.dropKept(key, value)
	var older []byte
	heir = newest(ns.snaps.of, spans, owner, s.id-1, 0)
	if heir != 0 {
		if older, err = ns.getNow(keptKey(prefix, heir)); err != nil {
			return 0, err
		}
		if older == nil {
			ns.putKept(keptKey(prefix, heir), value)
			return heir, nil
		}
	}
	if gone == nil {
		return 0, nil
	}
	return 0, ns.release(gone, prefix, s.id, older)
}

// release lets the blocks go that only the state gone of a file had, which was kept for the snapshot s. older is what was
// kept for the next older snapshot that has the file; nil: there is none.
func (ns *Namespace) release(gone *inode, prefix string, s uint32, older []byte) error {
	blocks := gone.finished()
	if len(blocks) == 0 {
		return nil
	}
	var others [2][]metadata.Block
	_, newer, err := ns.kept(prefix, s+1)
	if err != nil {
		return err
	}
	for i, value := range [][]byte{older, newer} {
		if value == nil {
			continue
		}
		n, _, err := decodeKept("", value)
		if err != nil {
			return err
		}
		others[i] = n.finished()
	}
	source, err := ns.sourceOf(gone.id)
	if err != nil {
		return err
	}
	for i, b := range blocks {
		if b.ID == source { // it is being copied, and goes when that is done
			continue
		}
		body := gone.isBody(i)
		if i < len(others[0]) && others[0][i].ID == b.ID || i < len(others[1]) && others[1][i].ID == b.ID {
			continue
		}
		key := idKey(classSnapshotBlock, uint64(b.ID))
		value, err := ns.getNow(key)
		if err != nil {
			return err
		}
		if value == nil { // the file has it, or had it when no snapshot was left
			continue
		}
		ns.putDerived(key, nil)
		ns.meta.blocks--
		if body {
			ns.bodyGone(b, gone.hasInlined(i))
			continue
		}
		ns.effects.Removed = append(ns.effects.Removed, b)
	}
	return nil
}

// sourceOf is the block that the last one of an inode is being made of; 0: there is none.
func (ns *Namespace) sourceOf(id metadata.INodeID) (metadata.BlockID, error) {
	n, err := ns.stateNow(id)
	if err != nil || n == nil || n.file == nil || n.file.open == nil {
		return 0, err
	}
	return n.file.open.source.ID, nil
}

// dropSource lets the block go that the last one of n was made of, or is not any more, unless a snapshot has it.
func (ns *Namespace) dropSource(n *inode, id metadata.BlockID) {
	if id == 0 {
		return
	}
	key := idKey(classSnapshotBlock, uint64(id))
	owner, kept, err := ns.keptBlock(id)
	if err == nil && kept {
		prefix := stateKey(n.id)
		var bad error
		err = ns.scanKept(prefix, prefix, func(_, value []byte) bool {
			var was *inode
			if was, _, bad = decodeKept("", value); bad == nil && slices.ContainsFunc(was.finished(), func(b metadata.Block) bool { return b.ID == id }) {
				kept = false
			}
			return bad == nil && kept
		})
		if err == nil {
			err = bad
		}
	}
	if err != nil {
		ns.fatal(err)
	}
	if kept { // and no snapshot has it
		ns.putDerived(key, nil)
		ns.meta.blocks--
		ns.effects.Removed = append(ns.effects.Removed, owner.Block)
	}
}
