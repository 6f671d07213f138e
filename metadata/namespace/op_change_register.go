package namespace

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Limits of the register, which is wholly in memory.
const (
	// MaxItemName and MaxItem bound the name and value of an item, in bytes.
	MaxItemName = 255
	MaxItem     = 64 << 10
	// maxRegister bounds what all items take, in bytes, names and a little for each included.
	maxRegister = 256 << 20
	// itemOverhead is what an item counts beside its name and value.
	itemOverhead = 128
	// maxItemChanges of one command.
	maxItemChanges = 64
	// maxItemVersion that a command may ask for.
	maxItemVersion = 1 << 40
)

// item of the register.
type item struct {
	version uint64
	value   []byte // nobody changes what is in it
	hash    uint64
}

func itemKey(name string) string { return string(classItem) + name }

func itemSize(name string, value []byte) int { return len(name) + len(value) + itemOverhead }

// changeRegister gives items new values and removes others: all, or none when one of them is not of the version that the proposer
// saw, which is false.
//
// Errors: ErrInvalidArgument.
func (ns *Namespace) changeRegister(t *txn, op *logpb.ChangeRegister) {
	if n := len(op.Changes); n == 0 || n > maxItemChanges {
		t.failf(metadata.ErrInvalidArgument, "%d changes of the register at once, want 1 to %d", n, maxItemChanges)
		return
	}
	if op.AtLeast > maxItemVersion {
		t.failf(metadata.ErrInvalidArgument, "A change of the register with versions from %d on, at most %d is allowed", op.AtLeast, int64(maxItemVersion))
		return
	}
	fits, grows := true, 0
	for i, c := range op.Changes {
		switch {
		case c.Name == "" || len(c.Name) > MaxItemName:
			t.failf(metadata.ErrInvalidArgument, "An item of the register has a name of %d bytes, want 1 to %d", len(c.Name), MaxItemName)
			return
		case len(c.Value) > MaxItem:
			t.failf(metadata.ErrInvalidArgument, "Item %s of the register has %d bytes, %d are allowed", c.Name, len(c.Value), MaxItem)
			return
		case slices.ContainsFunc(op.Changes[:i], func(o *logpb.ItemChange) bool { return o.Name == c.Name }):
			t.failf(metadata.ErrInvalidArgument, "Item %s of the register is changed twice at once", c.Name)
			return
		}
		var version uint64
		if old := ns.items[c.Name]; old != nil {
			version = old.version
			grows -= itemSize(c.Name, old.value)
		}
		fits = fits && version == c.Version
		if !c.Remove {
			grows += itemSize(c.Name, c.Value)
		}
	}
	if !fits {
		return
	}
	if grows > 0 && ns.itemBytes+grows > maxRegister {
		t.failf(metadata.ErrInvalidArgument, "The register is full: %d bytes, %d are allowed", ns.itemBytes, maxRegister)
		return
	}
	t.result.OK = true
	ns.changed = true
	ns.itemBytes += grows
	if op.AtLeast > 0 {
		ns.meta.itemVersion = max(ns.meta.itemVersion, op.AtLeast-1)
	}
	for _, c := range op.Changes {
		key := itemKey(c.Name)
		if old := ns.items[c.Name]; old != nil {
			ns.hash -= old.hash
		}
		ns.meta.itemVersion++
		if c.Remove {
			delete(ns.items, c.Name)
			ns.pending[key] = nil
			continue
		}
		value := marshal(nil, &logpb.Item{Version: ns.meta.itemVersion, Value: c.Value})
		it := &item{version: ns.meta.itemVersion, value: slices.Clone(c.Value), hash: hashRecord([]byte(key), value)}
		ns.items[c.Name] = it
		ns.hash += it.hash
		ns.pending[key] = value
	}
}

func (ns *Namespace) loadItems() error {
	var bad error
	err := ns.view.Scan([]byte{classItem}, nil, func(key, value []byte) bool {
		var r logpb.Item
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		if r.Version == 0 || r.Version > ns.meta.itemVersion {
			bad = fmt.Errorf("version %d of %d", r.Version, ns.meta.itemVersion)
			return false
		}
		name := string(key[1:])
		ns.items[name] = &item{r.Version, slices.Clone(r.Value), hashRecord(key, value)}
		ns.itemBytes += itemSize(name, r.Value)
		return true
	})
	if err == nil && bad != nil {
		err = fmt.Errorf("register: %w: %w", bad, metadata.ErrCorrupt)
	}
	return err
}

// Item is what the register has under a name, and its version, which a change has to name; 0 and nil when there is nothing.
// Nobody may change the value.
func (ns *Namespace) Item(name string) (value []byte, version uint64) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if it := ns.items[name]; it != nil {
		return it.value, it.version
	}
	return nil, 0
}

// RegisterVersion grows with every change of the register. It takes no lock: who reads items behind it finds those of this version, or of a later one.
func (ns *Namespace) RegisterVersion() uint64 { return ns.registerVersion.Load() }

// Items are the names of the register that begin with a prefix, in their order, with their values as of one moment. Nobody may
// change the values.
func (ns *Namespace) Items(prefix string) iter.Seq2[string, []byte] {
	ns.mu.RLock()
	found := map[string][]byte{}
	for name, it := range ns.items {
		if strings.HasPrefix(name, prefix) {
			found[name] = it.value
		}
	}
	ns.mu.RUnlock()
	return func(yield func(string, []byte) bool) {
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if !yield(name, found[name]) {
				return
			}
		}
	}
}
