package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sync"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
)

// versions are the states that the store can still show: those of complete checkpoints that are kept.
type versions struct {
	// content is held shared while a version is read, and alone while the store's whole content is exchanged.
	content sync.RWMutex

	mu sync.Mutex // guards what follows
	// current is the version that lookups use, 0 before there is one; apart says that it has directories in a class of their own. retained are those that snapshots of raft refer to; nil: nobody
	// has said so yet, and everything stays.
	current  uint64
	apart    bool
	retained []uint64
	open     map[uint64]int
	// floor is what the store was told: what no view at or above it sees may be gone.
	floor uint64
	// life counts the exchanges of the content: what was opened before one is gone.
	life int
	// receiving is the version that is being received, nil if there is none.
	receiving *intake
}

// use notes which version lookups use.
func (v *versions) use(index uint64, apart bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.current, v.apart = index, apart
}

// Retain names the versions that have to stay readable, also after a restart. The others go, but for the current one and those that are
// open.
func (ns *Namespace) Retain(indexes []uint64) {
	v := &ns.versions
	v.mu.Lock()
	v.retained = append([]uint64{}, indexes...)
	v.mu.Unlock()
	ns.discard()
}

// discard lets the store forget what no version shows that is to stay.
func (ns *Namespace) discard() {
	v := &ns.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.retained == nil || v.current == 0 {
		return
	}
	floor := v.current
	for _, index := range v.retained {
		floor = min(floor, index)
	}
	for index := range v.open {
		floor = min(floor, index)
	}
	v.floor = max(v.floor, floor)
	ns.cfg.Store.Discard(v.floor)
}

// version is a raftstore.Version: it never changes.
type version struct {
	ns      *Namespace
	ref     raftstore.Reference
	life    int
	marker  []byte
	closing sync.Once
	pieces  piece
	// mend: bodies that this member lacks are asked of another one, unless as many as unmended could not be had.
	mend     bool
	unmended int
}

// mostUnmended is how many bodies are asked for in vain before a copy is made without others that are missing.
const mostUnmended = 8

// body reads one for a piece.
func (v *version) body(r BodyRef) ([]byte, error) {
	data, err := v.ns.ReadBody(r)
	mend := v.ns.cfg.MendBody
	if !v.mend || mend == nil || v.unmended >= mostUnmended || !errors.Is(err, metadata.ErrReplicaNotFound) && !errors.Is(err, metadata.ErrCorrupt) {
		return data, err
	}
	mended, failed := mend(r, err)
	if failed != nil {
		v.unmended++
		return nil, err
	}
	return mended, r.Verify(mended)
}

var _ raftstore.Versioned = (*Namespace)(nil)

// Version opens a version for reading.
//
// Errors: fs.ErrNotExist when the store has it no more.
func (ns *Namespace) Version(ref raftstore.Reference) (raftstore.Version, error) {
	v := &ns.versions
	v.content.RLock()
	defer v.content.RUnlock()
	v.mu.Lock()
	if v.open == nil {
		v.open = map[uint64]int{}
	}
	v.open[ref.Index]++ // before the look: what is there then stays
	opened := &version{ns: ns, ref: ref, life: v.life}
	gone := ref.Index < v.floor
	v.mu.Unlock()
	view := ns.cfg.Store.View(ref.Index)
	defer view.Close()
	m, value, err := markerOf(view)
	switch {
	case err == nil && (gone || m == nil || m.Index != ref.Index || m.Hash != ref.Hash):
		err = fmt.Errorf("namespace: version %d: %w", ref.Index, fs.ErrNotExist)
	case err != nil:
		err = fmt.Errorf("namespace: version %d: %w", ref.Index, err)
	}
	if err != nil {
		opened.Close()
		return nil, err
	}
	opened.marker = value
	return opened, nil
}

// Close implements raftstore.Version.
func (v *version) Close() {
	v.closing.Do(func() {
		of := &v.ns.versions
		of.mu.Lock()
		if of.life == v.life {
			if of.open[v.ref.Index]--; of.open[v.ref.Index] == 0 {
				delete(of.open, v.ref.Index)
			}
		}
		of.mu.Unlock()
		v.ns.discard()
	})
}

// Read implements raftstore.Version.
func (v *version) Read(position []byte) (piece, next []byte, err error) {
	count, last, err := parsePosition(position)
	if err != nil {
		return nil, nil, err
	}
	of := &v.ns.versions
	of.content.RLock()
	defer of.content.RUnlock()
	of.mu.Lock()
	gone := of.life != v.life
	of.mu.Unlock()
	if gone {
		return nil, nil, fmt.Errorf("namespace: version %d: %w", v.ref.Index, fs.ErrNotExist)
	}
	view := v.ns.cfg.Store.View(v.ref.Index)
	defer view.Close()
	c := &v.pieces
	c.begin(count, last)
	more := false
	var bad error
	err = view.Scan(nil, last, func(key, value []byte) bool {
		if key[0] == classMarker || bytes.Equal(key, last) {
			return true
		}
		if c.full() {
			more = true
			return false
		}
		bad = c.record(key, value, v.body)
		return bad == nil
	})
	end := v.marker
	if more {
		end = nil
	}
	if err = errors.Join(err, bad); err == nil {
		err = c.finish(end, v.body)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("namespace: version %d: %w", v.ref.Index, err)
	}
	if !more {
		return c.bytes, nil, nil
	}
	return c.bytes, appendPosition(nil, c.count, c.last), nil
}

// WriteTo implements raftstore.Version: a copy, for Restore.
func (v *version) WriteTo(w io.Writer) (n int64, err error) {
	m, err := decodeMarker(v.marker)
	if err != nil {
		return 0, err
	}
	v.mend = true
	format := uint16(streamVersion)
	if m.Bodies > 0 || m.Sheets > 0 || m.DirectoriesApart {
		format = bodiesVersion
	}
	if err := writeHeader(w, v.ref.Index, format); err != nil {
		return 0, err
	}
	n = headerSize
	for position := []byte(nil); ; {
		piece, next, err := v.Read(position)
		if err != nil {
			return n, err
		}
		written, err := w.Write(piece)
		if n += int64(written); err != nil || next == nil {
			return n, err
		}
		position = next
	}
}

// intake is a raftstore.Intake: a version that is put beside the store's content and takes its place when all of it was checked.
type intake struct {
	verifier
	ns *Namespace
	// next goes into the store that is being filled and comes back with how to put something there, false when that has ended with err; end ends it.
	next func() (put func(key, value []byte) error, ok bool)
	end  func()
	err  error
	// apart: it is to have directories in a class of their own, which those of the sender may not be.
	apart bool
	// whole: it is to be kept. over: Commit or Cancel was called.
	whole, over bool
	mu          sync.Mutex       // held by each of the methods
	release     func()           // of the bodies that came, which no state has yet
	lacks       []metadata.Block // bodies that the sender does not have either
	frameBuffer []byte
}

var errGivenUp = errors.New("namespace: the version was not received to its end")

// Receive begins to take the version that ref names from elsewhere. One that was being received is given up.
func (ns *Namespace) Receive(ref raftstore.Reference) (raftstore.Intake, error) {
	return ns.receive(ref.Index, ref.Hash)
}

func (ns *Namespace) receive(index, hash uint64) (*intake, error) {
	in := &intake{ns: ns, apart: ns.cfg.Sheets == nil || ns.cfg.Sheets(), verifier: verifier{index: index, hash: hash}, release: func() {}}
	if ns.cfg.Bodies != nil {
		in.release = ns.cfg.Bodies.Hold()
		in.arrived = func(id metadata.BlockID, data []byte) { ns.cfg.Bodies.Put(id, bytes.Clone(data)) }
		in.lacked = func(r *BodyRef) { in.lacks = append(in.lacks, r.Block) }
	}
	v := &ns.versions
	v.mu.Lock()
	former := v.receiving
	v.receiving = in
	v.mu.Unlock()
	if former != nil {
		former.Cancel()
	}
	in.next, in.end = iter.Pull(func(yield func(func(key, value []byte) error) bool) {
		in.err = ns.cfg.Store.Replace(index, func(put func(key, value []byte) error) error {
			for yield(put) {
			}
			if !in.whole {
				return errGivenUp
			}
			return nil
		})
	})
	return in, nil
}

// inside runs fn where the store is being filled.
func (in *intake) inside(fn func(put func(key, value []byte) error) error) error {
	if in.over {
		return errGivenUp
	}
	put, ok := in.next()
	if !ok {
		return in.err
	}
	return fn(func(key, value []byte) error {
		if in.apart {
			var err error
			if key, value, err = in.setApart(key, value); err != nil {
				return err
			}
		}
		return put(key, value)
	})
}

// setApart is a record, which was checked, as a checkpoint with directories apart has it.
func (in *intake) setApart(key, value []byte) (_, _ []byte, err error) {
	switch key[0] {
	case classEntry:
		if file, _, _ := kindOf(value); !file {
			key = bytes.Clone(key)
			key[0] = classDirectory
		}
	case classMarker:
		m, err := decodeMarker(value)
		if err != nil {
			return nil, nil, err
		}
		if !m.DirectoriesApart {
			m.DirectoriesApart = true
			value = marshal(nil, m)
		}
	}
	return key, value, nil
}

// Position implements raftstore.Intake.
func (in *intake) Position() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.count == 0 {
		return nil
	}
	return appendPosition(nil, in.count, in.last)
}

// Put implements raftstore.Intake.
func (in *intake) Put(piece []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.read(bytes.NewReader(piece))
}

// read takes frames to the end of r.
func (in *intake) read(r io.Reader) error {
	return in.inside(func(put func(key, value []byte) error) error {
		for {
			kind, payload, err := readFrame(r, &in.frameBuffer)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := in.frame(kind, payload, put); err != nil {
				return err
			}
		}
	})
}

// Complete implements raftstore.Intake.
func (in *intake) Complete() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.marker != nil
}

// Cancel implements raftstore.Intake.
func (in *intake) Cancel() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cancel()
}

func (in *intake) cancel() {
	if in.over {
		return
	}
	in.over = true
	in.end()
	in.ns.versions.forget(in)
	in.release()
}

func (v *versions) forget(in *intake) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.receiving == in {
		v.receiving = nil
	}
}

// Commit implements raftstore.Intake. It runs on the goroutine of Apply. An error leaves the namespace as it was, or broken.
func (in *intake) Commit() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over || in.marker == nil {
		return errGivenUp
	}
	defer in.release()
	ns := in.ns
	ns.checkpointMu.Lock()
	defer ns.checkpointMu.Unlock()
	for _, b := range in.lacks { // not before: the state that is here may have them in its log
		ns.cfg.Bodies.Lack(b.ID, int(b.Length))
	}
	err := ns.syncBodies()
	if err == nil {
		err = in.exchange()
	}
	if err != nil {
		return fmt.Errorf("namespace: taking over the version at %d: %w", in.index, err)
	}
	ns.gaps.Add(int64(in.gaps))
	if ns.cfg.OnEffects != nil {
		ns.cfg.OnEffects(Effects{Index: in.index, Reset: true})
	}
	return nil
}

func (in *intake) exchange() error {
	ns := in.ns
	v := &ns.versions
	v.content.Lock() // nobody may read while the store's content is exchanged
	defer v.content.Unlock()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	former := ns.view
	ns.closeView()
	ns.pins.Wait() // the content is exchanged under no view
	in.whole = true
	in.over = true
	in.end()
	v.forget(in)
	if in.err != nil {
		ns.openView(former.at, former.ids, former.layout)
		return in.err
	}
	v.mu.Lock()
	v.life++
	v.open = nil
	v.retained, v.floor = nil, 0 // of the former content
	v.mu.Unlock()
	if err := ns.load(); err != nil {
		ns.broken = err
		return err
	}
	return nil
}

// Restore replaces everything by the copy that r has. It verifies the whole of it, the hash included, before it gives up what is there; an
// error leaves the namespace as it was.
func (ns *Namespace) Restore(r io.Reader) error {
	if err := ns.restore(r); err != nil {
		return fmt.Errorf("namespace: restoring a copy: %w", err)
	}
	return nil
}

func (ns *Namespace) restore(r io.Reader) error {
	index, _, err := readHeader(r)
	if err != nil {
		return err
	}
	in, err := ns.receive(index, 0)
	if err != nil {
		return err
	}
	defer in.Cancel()
	in.mu.Lock()
	err = in.read(r)
	in.mu.Unlock()
	if err != nil {
		return err
	}
	if !in.Complete() {
		return corrupt("the copy ends early, behind record %d", in.count)
	}
	return in.Commit()
}
