// Package faulty wraps a kv.Store and fails the call that a test chooses, or tells the test about every call.
package faulty

import (
	"errors"
	"sync"

	"github.com/gohops/hops/metadata/kv"
)

// ErrInjected is what a failing call returns.
var ErrInjected = errors.New("faulty: injected failure")

// Call names a kind of call.
type Call string

// The calls that can fail.
const (
	Get     Call = "get"
	Scan    Call = "scan"
	Put     Call = "put"
	Delete  Call = "delete"
	Flush   Call = "flush"
	Sync    Call = "sync"
	Replace Call = "replace"
)

// Store passes calls on to another store. Before is asked first: when it returns an error the call fails with it and
// does not reach the store. n counts the calls since the last Reset, from 1.
type Store struct {
	kv.Store

	mu     sync.Mutex
	n      int
	before func(n int, call Call) error
}

// New wraps inner. A nil before lets everything pass.
func New(inner kv.Store, before func(n int, call Call) error) *Store {
	return &Store{Store: inner, before: before}
}

// FailAt makes a before that fails the nth of the given kinds of calls (of all, when none is given) and every later one.
func FailAt(n int, calls ...Call) func(int, Call) error {
	var mu sync.Mutex
	seen := 0
	return func(_ int, call Call) error {
		mu.Lock()
		defer mu.Unlock()
		match := len(calls) == 0
		for _, c := range calls {
			match = match || c == call
		}
		if match {
			seen++
		}
		if seen >= n {
			return ErrInjected
		}
		return nil
	}
}

// Reset installs another before and counts from the start.
func (s *Store) Reset(before func(n int, call Call) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.before = 0, before
}

// Calls returns how many calls were made since the last Reset.
func (s *Store) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *Store) ask(call Call) error {
	s.mu.Lock()
	s.n++
	n, before := s.n, s.before
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(n, call)
}

// View implements kv.Store.
func (s *Store) View(at uint64) kv.View { return &view{s.Store.View(at), s} }

// Batch implements kv.Store.
func (s *Store) Batch(at uint64) kv.Batch { return &batch{s.Store.Batch(at), s} }

// Sync implements kv.Store.
func (s *Store) Sync() error {
	if err := s.ask(Sync); err != nil {
		return err
	}
	return s.Store.Sync()
}

// Replace implements kv.Store. The puts of fill are calls of kind Put.
func (s *Store) Replace(at uint64, fill func(put func(key, value []byte) error) error) error {
	if err := s.ask(Replace); err != nil {
		return err
	}
	return s.Store.Replace(at, func(put func(key, value []byte) error) error {
		return fill(func(key, value []byte) error {
			if err := s.ask(Put); err != nil {
				return err
			}
			return put(key, value)
		})
	})
}

type view struct {
	kv.View
	store *Store
}

func (v *view) Get(key []byte) ([]byte, error) {
	if err := v.store.ask(Get); err != nil {
		return nil, err
	}
	return v.View.Get(key)
}

func (v *view) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	if err := v.store.ask(Scan); err != nil {
		return err
	}
	return v.View.Scan(prefix, from, fn)
}

type batch struct {
	kv.Batch
	store *Store
}

func (b *batch) Put(key, value []byte) error {
	if err := b.store.ask(Put); err != nil {
		return err
	}
	return b.Batch.Put(key, value)
}

func (b *batch) Delete(key []byte) error {
	if err := b.store.ask(Delete); err != nil {
		return err
	}
	return b.Batch.Delete(key)
}

func (b *batch) Flush() error {
	if err := b.store.ask(Flush); err != nil {
		return err
	}
	return b.Batch.Flush()
}
