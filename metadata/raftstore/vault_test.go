package raftstore

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
)

// disk is what a vault finds again after a restart: its versions.
type disk struct {
	mu       sync.Mutex
	versions map[uint64]map[string]string
	newest   uint64
	retained []uint64
}

func newDisk() *disk { return &disk{versions: map[uint64]map[string]string{}} }

// lose is what becomes of a disk whose content is damaged.
func (d *disk) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions, d.newest, d.retained = map[uint64]map[string]string{}, 0, nil
}

// vault is a machine that keeps versions on a disk. Pieces have one register.
type vault struct {
	*machine
	disk *disk
	// pulled is called for each piece that is read here, before.
	pulled func(piece int) error
	// told changes pieces on their way out.
	told func(piece []byte) []byte
	// retaining is called before it is noted what to retain, and taken when a version that was pulled shows.
	retaining, taken func()
	// written is called when a version has been written, before the snapshot ends.
	written func()
	// broken: the store takes nothing more.
	broken atomic.Bool
	mu     sync.Mutex
	open   int // versions and intakes
}

func newVault(d *disk) *vault {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := &vault{machine: newMachine(), disk: d}
	v.index, v.values = d.newest, maps.Clone(d.versions[d.newest])
	if v.values == nil {
		v.values = map[string]string{}
	}
	return v
}

func (v *vault) count(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open += n
}

func (v *vault) opened() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open
}

func hashOf(index uint64, values map[string]string) uint64 {
	h := fnv.New64a()
	for _, k := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(h, "%s=%s\n", k, values[k])
	}
	fmt.Fprint(h, index)
	return h.Sum64()
}

func (v *vault) Freeze() (Snapshot, error) {
	v.machine.mu.Lock()
	defer v.machine.mu.Unlock()
	return &vaultSnapshot{v, v.index, maps.Clone(v.values)}, nil
}

type vaultSnapshot struct {
	v      *vault
	index  uint64
	values map[string]string
}

func (s *vaultSnapshot) Index() uint64 { return s.index }
func (s *vaultSnapshot) Release()      {}

func (s *vaultSnapshot) Write() (Reference, error) {
	if s.v.broken.Load() {
		return Reference{}, fmt.Errorf("disk of ice: %w", ErrStoreFailed)
	}
	if s.v.written != nil {
		defer s.v.written()
	}
	d := s.v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions[s.index], d.newest = s.values, s.index
	return Reference{s.index, hashOf(s.index, s.values), int64(len(s.values))}, nil
}

func (s *vaultSnapshot) WriteTo(io.Writer) (int64, error) {
	return 0, errors.New("nobody copies the state for a snapshot")
}

func (v *vault) Retain(indexes []uint64) {
	if v.retaining != nil {
		v.retaining()
	}
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retained = slices.Clone(indexes)
	maps.DeleteFunc(d.versions, func(index uint64, _ map[string]string) bool {
		return index != d.newest && !slices.Contains(indexes, index)
	})
}

func (v *vault) Version(ref Reference) (Version, error) {
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	values, ok := d.versions[ref.Index]
	if !ok || hashOf(ref.Index, values) != ref.Hash {
		return nil, fs.ErrNotExist
	}
	v.count(1)
	return &vaultVersion{v, ref, values}, nil
}

type vaultVersion struct {
	v      *vault
	ref    Reference
	values map[string]string
}

func (v *vaultVersion) Close() { v.v.count(-1) }

func (v *vaultVersion) Read(position []byte) (piece, next []byte, err error) {
	keys := slices.Sorted(maps.Keys(v.values))
	i, _ := slices.BinarySearch(keys, string(position))
	if v.v.pulled != nil {
		if err := v.v.pulled(i); err != nil {
			return nil, nil, err
		}
	}
	if i < len(keys) {
		piece = fmt.Appendf(nil, "%s %s", keys[i], v.values[keys[i]])
		next = []byte(keys[i] + "\x00")
	} else {
		piece = []byte("end")
	}
	if v.v.told != nil {
		piece = v.v.told(piece)
	}
	return piece, next, nil
}

func (v *vaultVersion) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(machineState{v.ref.Index, v.values}); err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

func (v *vault) Restore(r io.Reader) error {
	if err := v.machine.Restore(r); err != nil {
		return err
	}
	d := v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions, d.newest = map[uint64]map[string]string{v.index: maps.Clone(v.values)}, v.index
	return nil
}

func (v *vault) Receive(ref Reference) (Intake, error) {
	v.count(1)
	return &vaultIntake{v: v, ref: ref, values: map[string]string{}}, nil
}

type vaultIntake struct {
	v        *vault
	ref      Reference
	mu       sync.Mutex
	values   map[string]string
	last     string
	complete bool
	over     bool
}

func (in *vaultIntake) Position() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.last == "" {
		return nil
	}
	return []byte(in.last + "\x00")
}

func (in *vaultIntake) Put(piece []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if string(piece) == "end" {
		if hashOf(in.ref.Index, in.values) != in.ref.Hash {
			return metadata.Errorf(metadata.ErrCorrupt, "another state")
		}
		in.complete = true
		return nil
	}
	var key, value string
	if _, err := fmt.Sscan(string(piece), &key, &value); err != nil || key <= in.last {
		return metadata.Errorf(metadata.ErrCorrupt, "piece %q behind %q", piece, in.last)
	}
	in.values[key], in.last = value, key
	return nil
}

func (in *vaultIntake) Complete() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.complete
}

func (in *vaultIntake) Commit() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.complete || in.over {
		return errors.New("not complete")
	}
	in.over = true
	in.v.count(-1)
	d := in.v.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions, d.newest = map[uint64]map[string]string{in.ref.Index: maps.Clone(in.values)}, in.ref.Index
	m := in.v.machine
	m.mu.Lock()
	m.index, m.values = in.ref.Index, in.values
	m.restored++
	m.mu.Unlock()
	if in.v.taken != nil {
		in.v.taken()
	}
	return nil
}

func (in *vaultIntake) Cancel() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.over {
		in.over = true
		in.v.count(-1)
	}
}
