package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/gohops/hops/metadata"
)

var errClosed = wal.ErrClosed

// WAL opens one hashicorp/raft-wal in dir.
func WAL(dir string, segmentBytes int) (Backend, error) {
	return openWAL(dir, segmentBytes, walfs.New())
}

// openWAL is WAL on a given file layer.
func openWAL(dir string, segmentBytes int, vfs types.VFS) (_ Backend, err error) {
	filer := &sealingFiler{SegmentFiler: segment.NewFiler(dir, vfs)}
	meta := &sealingMeta{filer: filer}
	opened := false
	defer func() {
		if !opened { // raft-wal leaves it open, and whoever opens it next waits for its lock without end
			err = errors.Join(err, meta.Close())
		}
	}()
	w, err := wal.Open(dir,
		wal.WithSegmentSize(segmentBytes),
		wal.WithSegmentFiler(filer),
		wal.WithMetaStore(meta),
		wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		return nil, openError(err)
	}
	b := &walBackend{WAL: w, dir: dir}
	// After kill -9 the last batch may be in the page cache alone. raft will take it for stored.
	if err := b.sync(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	opened = true
	return b, nil
}

// openError gives an error of raft-wal the kind metadata.ErrCorrupt, unless it is the operating system's.
func openError(err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return metadata.Errorf(metadata.ErrCorrupt, "%v", err)
}

type walBackend struct {
	*wal.WAL
	dir string
}

// tail is the name of the newest file, "" if there is none.
func (w *walBackend) tail() (string, error) {
	names, err := os.ReadDir(w.dir) // sorted, and the names begin with the base index in 20 digits
	if err != nil {
		return "", err
	}
	for i := len(names) - 1; i >= 0; i-- {
		if strings.HasSuffix(names[i].Name(), ".wal") {
			return filepath.Join(w.dir, names[i].Name()), nil
		}
	}
	return "", nil
}

// RawTail is the file that raft-wal recovers frame by frame until the first one it does not understand.
func (w *walBackend) RawTail() ([]byte, error) {
	name, err := w.tail()
	if name == "" || err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

func (w *walBackend) sync() error {
	name, err := w.tail()
	if name == "" || err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), syncDir(w.dir))
}

// sealingMeta repairs what raft-wal v0.4.2 does not: when the process ends after a segment was filled and sealed in its
// file, but before the background rotation told the meta store, the reopened log takes the sealed segment for its tail
// and every later append fails with "segment is sealed". TestLogGoesOnAfterCrashBetweenSealAndRotation shows it.
type sealingMeta struct {
	metadb.BoltMetaDB
	filer *sealingFiler
}

// Load finishes a rotation that was cut short.
func (m *sealingMeta) Load(dir string) (types.PersistentState, error) {
	state, err := m.BoltMetaDB.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return state, err
	}
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return state, nil
	}
	w, err := m.filer.SegmentFiler.RecoverTail(*tail)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	sealed, indexStart, err := w.Sealed()
	if err != nil || !sealed {
		m.filer.recovered, m.filer.info = w, *tail
		return state, err
	}
	tail.IndexStart, tail.MaxIndex, tail.SealTime = indexStart, w.LastIndex(), time.Now()
	next := types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: tail.MaxIndex + 1, MinIndex: tail.MaxIndex + 1,
		SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: time.Now(),
	}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	if err := w.Close(); err != nil {
		return state, err
	}
	return state, m.CommitState(state)
}

// sealingFiler hands the tail that Load has recovered to raft-wal, which would read the file a second time.
type sealingFiler struct {
	types.SegmentFiler
	recovered types.SegmentWriter
	info      types.SegmentInfo
}

func (f *sealingFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	if w := f.recovered; w != nil && f.info == info {
		f.recovered = nil
		return w, nil
	}
	return f.SegmentFiler.RecoverTail(info)
}
