// Package mem is a kv.Store in memory: for namespaces that need no disk, and for tests that cut the power.
package mem

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"github.com/tidwall/btree"

	"github.com/gohops/hops/metadata/kv"
)

// Store keeps every version that Discard has not released. The zero value is not usable; call New.
type Store struct {
	mu        sync.RWMutex
	tree      *btree.BTreeG[version]
	last      uint64
	unsynced  []version
	condemned bool
}

type version struct {
	key     string
	at      uint64
	value   []byte
	deleted bool
}

// Versions of a key are ordered newest first, so that the first one at or below a timestamp is the visible one.
func less(a, b version) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return a.at > b.at
}

// New makes an empty store.
func New() *Store { return &Store{tree: newTree()} }

func newTree() *btree.BTreeG[version] {
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

// View implements kv.Store.
func (s *Store) View(at uint64) kv.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &view{tree: s.tree.Copy(), at: at}
}

// Batch implements kv.Store.
func (s *Store) Batch(at uint64) kv.Batch { return &batch{store: s, at: at} }

// Sync implements kv.Store.
func (s *Store) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsynced = nil
	return nil
}

// Discard implements kv.Store.
func (s *Store) Discard(at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var old []version
	var key string
	kept := false // whether the version that a view at `at` sees was met
	s.tree.Scan(func(v version) bool {
		if v.key != key {
			key, kept = v.key, false
		}
		if v.at <= at {
			if kept || v.deleted {
				old = append(old, v)
			}
			kept = true
		}
		return true
	})
	for _, v := range old {
		s.tree.Delete(v)
	}
}

// Last implements kv.Store.
func (s *Store) Last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Replace implements kv.Store.
func (s *Store) Replace(at uint64, fill func(put func(key, value []byte) error) error) error {
	fresh := newTree()
	err := fill(func(key, value []byte) error {
		if err := kv.CheckSize(key, value); err != nil {
			return err
		}
		fresh.Set(version{key: string(key), at: at, value: bytes.Clone(value)})
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree, s.last, s.unsynced, s.condemned = fresh, at, nil, false
	return nil
}

// SetAside implements kv.Store.
func (s *Store) SetAside(error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree, s.last, s.unsynced, s.condemned = newTree(), 0, nil, false
	return nil
}

// Condemn implements kv.Store: a clone made by Crash starts empty.
func (s *Store) Condemn() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condemned = true
	return nil
}

// Close implements kv.Store.
func (s *Store) Close() error { return nil }

// Crash returns the store that a process would find which starts after this one died. Without a source that is a
// killed process, which loses nothing that was written. With one, it is a power cut: of the writes after the last Sync
// each survives or not, as the source decides.
func (s *Store) Crash(source *rand.Rand) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.condemned {
		return New()
	}
	clone := &Store{tree: s.tree.Copy(), last: s.last}
	if source != nil {
		for _, v := range s.unsynced {
			if source.IntN(2) == 0 {
				clone.tree.Delete(v)
			}
		}
	}
	return clone
}

type view struct {
	tree *btree.BTreeG[version]
	at   uint64
}

func (v *view) Get(key []byte) ([]byte, error) {
	value, err := []byte(nil), kv.ErrNotFound
	v.tree.Ascend(version{key: string(key), at: v.at}, func(found version) bool {
		if found.key == string(key) && !found.deleted {
			value, err = bytes.Clone(found.value), nil
		}
		return false
	})
	return value, err
}

func (v *view) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	start := string(prefix)
	if string(from) > start {
		start = string(from)
	}
	done := "" // the key whose visible version was met
	first := true
	v.tree.Ascend(version{key: start, at: kv.Newest}, func(found version) bool {
		if !bytes.HasPrefix([]byte(found.key), prefix) {
			return false
		}
		if found.at > v.at || !first && found.key == done {
			return true
		}
		first, done = false, found.key
		if found.deleted {
			return true
		}
		return fn([]byte(found.key), found.value)
	})
	return nil
}

func (v *view) Close() {}

type batch struct {
	store *Store
	at    uint64
}

// Put writes through, because a store may make any part of a batch visible before Flush.
func (b *batch) Put(key, value []byte) error {
	if err := kv.CheckSize(key, value); err != nil {
		return err
	}
	b.write(version{key: string(key), at: b.at, value: bytes.Clone(value)})
	return nil
}

func (b *batch) Delete(key []byte) error {
	b.write(version{key: string(key), at: b.at, deleted: true})
	return nil
}

func (b *batch) write(v version) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.tree.Set(v)
	b.store.last = max(b.store.last, v.at)
	b.store.unsynced = append(b.store.unsynced, v)
}

func (b *batch) Flush() error { return nil }

func (b *batch) Cancel() {}
