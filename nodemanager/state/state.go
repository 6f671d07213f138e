// Package state remembers a node's containers on its own disk, so that a restarted node manager finds them again. One
// directory per container holds its record and everything else of it; a file names the node's life.
//
//	<work>/lock                    flocked while a node manager runs
//	<work>/node.json               layout version, incarnation, highest term obeyed (Node)
//	<work>/gpus.json               what happened to the devices since the machine was started
//	<work>/cache/                  downloaded artifacts (package localizer)
//	<work>/containers/<id>/        0700, or 0710 with the group of its user; see package supervisor for its own files in here
//	        record.json            Record
//	        token                  0600, or 0400 of its user
//	        work/                  the container's working directory
//	        logs/                  stdout, stderr and what the container puts beside them
//	        tmp/                   the container's TMPDIR
//
// Every file is replaced as a whole (package durable). node.json and gpus.json are fsynced. A record is not: it outlives every end of the
// processes here, and what a power cut may take of it, the power cut has made untrue, because it ended the container.
package state

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/durable"
)

// layout is the version of the directory. A later program refuses a newer one.
const layout = 1

// ErrInUse means that another node manager runs in the directory.
var ErrInUse = errors.New("the work directory is in use by another node manager")

// Node is what outlives the process besides containers.
type Node struct {
	Layout int `json:"layout"`
	// Incarnation changes when the directory was lost: then the containers are gone too.
	Incarnation string `json:"incarnation"`
	// Term is the highest term of a resource manager whose orders were obeyed.
	Term uint64 `json:"term"`
}

// Record is what is known about one container.
type Record struct {
	Spec  nodemanager.Spec  `json:"spec"`
	State nodemanager.State `json:"state"`
	// Boot is the machine's boot id when the container was admitted: after another boot its processes are gone.
	Boot string `json:"boot"`
	// Stop is the order that is being carried out.
	Stop *StopOrder `json:"stop,omitempty"`
	// Exit is set when State is COMPLETE.
	Exit *Exit `json:"exit,omitempty"`
	// Admitted, Started and Finished are milliseconds since 1970, 0: not yet.
	Admitted int64 `json:"admitted_ms"`
	Started  int64 `json:"started_ms,omitempty"`
	Finished int64 `json:"finished_ms,omitempty"`
	// Forgotten: the resource manager has recorded the end. Only the logs may still be on their way.
	Forgotten bool `json:"forgotten,omitempty"`
	// GPUs is what it has done with its devices, as of a minute ago at the latest.
	GPUs []nodemanager.GPUUse `json:"gpus,omitempty"`
	// Degraded says which limits of this container are polled instead of enforced, or are not kept.
	Degraded string `json:"degraded,omitempty"`
}

// StopOrder is why a container is to end.
type StopOrder struct {
	Status nodemanager.ExitStatus `json:"status"`
	Reason string                 `json:"reason"`
}

// Exit is how a container ended.
type Exit struct {
	Status      nodemanager.ExitStatus `json:"status"`
	Diagnostics string                 `json:"diagnostics,omitempty"`
	PeakMemory  int64                  `json:"peak_memory,omitempty"`
}

// check makes sure of what everybody who has a record relies on.
func (r *Record) check(id nodemanager.ContainerID) error {
	switch {
	case r.Spec.ID != id:
		return fmt.Errorf("the record in the directory of container %s is of container %.120q", id, string(r.Spec.ID))
	case !r.State.Known():
		return fmt.Errorf("the record of container %s has the state %.40q, which there is not", id, string(r.State))
	case r.State == nodemanager.Complete && r.Exit == nil:
		return fmt.Errorf("the record of container %s is %s without an exit", id, r.State)
	case r.State == nodemanager.Stopping && r.Stop == nil:
		return fmt.Errorf("the record of container %s is %s without an order", id, r.State)
	}
	return nil
}

// Store is an open work directory. It is safe for concurrent use; records of different containers are independent.
type Store struct {
	dir  string
	lock *flock.Flock

	mu   sync.Mutex
	node Node
	// recorded is the term in node.json; writing guards that file.
	recorded uint64
	writing  sync.Mutex
	// places bounds the records that are being written: a slow disk holds up so many threads and no more.
	places chan struct{}
}

// writers is how many records are written at one time.
const writers = 8

// Open makes or opens a work directory and locks it. ErrInUse: another node manager has it.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	// Containers of later versions run under other users and must reach their own directory through this one, no more.
	for _, d := range []string{"containers", "cache"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o711); err != nil {
			return nil, fmt.Errorf("work directory: %w", err)
		}
	}
	lock := flock.New(filepath.Join(dir, "lock"), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock work directory %s: %w", dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
	}
	s := &Store{dir: dir, lock: lock, places: make(chan struct{}, writers)}
	if err := s.openNode(); err != nil {
		lock.Unlock()
		return nil, err
	}
	return s, nil
}

func (s *Store) openNode() error {
	file := filepath.Join(s.dir, "node.json")
	err := durable.ReadJSON(file, &s.node)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.node = Node{Layout: layout, Incarnation: uuid.NewString()}
		return durable.WriteJSON(file, s.node, 0o600)
	case err != nil:
		return err
	case s.node.Layout != layout:
		return fmt.Errorf("work directory %s has layout %d, this program reads %d", s.dir, s.node.Layout, layout)
	case s.node.Incarnation == "":
		return fmt.Errorf("%s is damaged: no incarnation", file)
	}
	s.recorded = s.node.Term
	return nil
}

// Close unlocks the directory.
func (s *Store) Close() error { return s.lock.Unlock() }

// Dir is the work directory, absolute.
func (s *Store) Dir() string { return s.dir }

// Incarnation identifies the life of this directory.
func (s *Store) Incarnation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.Incarnation
}

// Term is the highest term obeyed.
func (s *Store) Term() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.Term
}

// Obey remembers that a term is obeyed, if it is the highest so far; it is not on disk before RecordTerm. behind reports
// whether the disk knows less.
func (s *Store) Obey(term uint64) (behind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.Term = max(s.node.Term, term)
	return s.node.Term > s.recorded
}

// RecordTerm writes down the highest term obeyed. Durable when it returns nil.
func (s *Store) RecordTerm() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	if err := durable.WriteJSON(filepath.Join(s.dir, "node.json"), node, 0o600); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded = node.Term
	return nil
}

// RecordedTerm is the highest term that is on disk.
func (s *Store) RecordedTerm() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recorded
}

// gpuRecords is gpus.json.
type gpuRecords struct {
	// Boot is the run of the machine's kernel in which it happened: a restart of the machine resets its devices.
	Boot string                  `json:"boot"`
	GPUs []nodemanager.GPURecord `json:"gpus"`
}

// GPUs reads what happened to devices; restarted: the machine was started anew since.
func (s *Store) GPUs() (records []nodemanager.GPURecord, restarted bool, err error) {
	var r gpuRecords
	err = durable.ReadJSON(filepath.Join(s.dir, "gpus.json"), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return r.GPUs, r.Boot != BootID(), err
}

// PutGPUs writes down what happened to devices, for one caller at a time. Durable when it returns nil.
func (s *Store) PutGPUs(records []nodemanager.GPURecord) error {
	return durable.WriteJSON(filepath.Join(s.dir, "gpus.json"), gpuRecords{BootID(), records}, 0o600)
}

// ContainerDir is the directory of a container, whether it exists or not.
func (s *Store) ContainerDir(id nodemanager.ContainerID) string {
	return filepath.Join(s.dir, "containers", string(id))
}

// Create makes the directory of a new container and its record.
func (s *Store) Create(r *Record) error {
	if !r.Spec.ID.Valid() {
		return fmt.Errorf("container id %.120q cannot be a directory", string(r.Spec.ID))
	}
	dir := s.ContainerDir(r.Spec.ID)
	for _, d := range []string{dir, filepath.Join(dir, "work"), filepath.Join(dir, "logs"), filepath.Join(dir, "tmp")} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return s.Put(r)
}

// Put replaces a record. It may wait for the disk, for as long as that takes.
func (s *Store) Put(r *Record) error {
	s.places <- struct{}{}
	defer func() { <-s.places }()
	return durable.ReplaceJSON(filepath.Join(s.ContainerDir(r.Spec.ID), "record.json"), r, 0o600)
}

// Delete removes everything of a container. A partial failure leaves the record, so that the next try finds it.
func (s *Store) Delete(id nodemanager.ContainerID) error {
	if !id.Valid() {
		return fmt.Errorf("container id %.120q is no directory of ours", string(id))
	}
	dir := s.ContainerDir(id)
	if err := os.Chmod(dir, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "record.json" {
			continue
		}
		if err := RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return RemoveAll(dir)
}

// Load reads all records, oldest first. damaged names the containers whose record cannot be read; their directories are
// still there.
func (s *Store) Load() (records []*Record, damaged map[nodemanager.ContainerID]error, err error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "containers"))
	if err != nil {
		return nil, nil, err
	}
	damaged = map[nodemanager.ContainerID]error{}
	for _, e := range entries {
		id := nodemanager.ContainerID(e.Name())
		if !id.Valid() || !e.IsDir() {
			continue // not ours
		}
		r := new(Record)
		err := durable.ReadJSON(filepath.Join(s.ContainerDir(id), "record.json"), r)
		if err == nil {
			err = r.check(id)
		}
		if errors.Is(err, fs.ErrNotExist) && s.neverRan(id) {
			continue
		}
		if err != nil {
			damaged[id] = err
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(a.Admitted, b.Admitted), cmp.Compare(a.Spec.ID, b.Spec.ID))
	})
	return records, damaged, nil
}

// neverRan removes the directory of a container that was about to be recorded, if that is what it is.
func (s *Store) neverRan(id nodemanager.ContainerID) bool {
	if _, err := os.Lstat(filepath.Join(s.ContainerDir(id), "launch.json")); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return RemoveAll(s.ContainerDir(id)) == nil
}

// BootID identifies this run of the machine's kernel.
func BootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
