package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gohops/hops/internal/pace"
)

// A copy of a version is a file from which a state machine can be restored without the store. A backup is one. A group of one member, which
// has nobody to pull from, keeps the newest, and the log from there on: its store may be lost. A copy costs what the state is large; a new
// one is made when copyAgain times as much log has come, so that the cost is a part of that of the log.

const (
	// copiesLook is how often a group of one looks whether a copy is due.
	copiesLook = time.Second
	// copyAgain is how many times the last copy the log behind it takes when the next one is due. What it saves is to be read and carried out when the
	// store is lost.
	copyAgain = 2
	// backupStays is how long the copy of a backup stays in a group of several.
	backupStays = time.Hour
)

// wantsCopy reports whether a copy stays although two newer snapshots came.
func (g *Group) wantsCopy(newest, s stored) bool {
	return !g.several(newest) || time.Since(s.made()) < backupStays
}

// copyDue reports whether a group of one has to make a copy, of its newest snapshot.
func (g *Group) copyDue() (stored, bool) {
	list := g.snapshots.all()
	if len(list) == 0 || g.others() || list[0].ref == nil || list[0].whole() || list[0].hollow {
		return stored{}, false
	}
	var last stored
	for _, s := range list {
		if s.copied() {
			last = s
			break
		}
	}
	if first, err := g.journal.FirstIndex(); err == nil && first > last.meta.Index+1 {
		return list[0], true // the log does not reach back to the copy, which was a backup's of a group of several, or to the beginning
	}
	// What of the log lies before the last copy, for older snapshots and for who pulls a version, is in that.
	return list[0], g.journal.Behind(last.meta.Index) >= max(copyAgain*last.size, g.cfg.SnapshotBytes)
}

// logBytes is how much the log takes on disk.
func (g *Group) logBytes() (sum int64) {
	// A file that goes while this looks does not matter.
	_ = filepath.WalkDir(g.dir.logs(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(d.Name()) == ".log" { // not those that wait to be used again
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}

// watchCopies makes copies where they are due, until the group ends.
func (g *Group) watchCopies() {
	var pause time.Time
	look := func() {
		s, due := g.copyDue()
		if !due || time.Now().Before(pause) || g.host.space.room(s.ref.Bytes+s.ref.Bytes/4) != nil {
			return
		}
		if _, err := g.copyOf(s); err != nil && !errors.Is(err, errClosed) {
			g.log.Warn("cannot copy the state", "index", s.meta.Index, "err", err)
			pause = time.Now().Add(10 * time.Second)
		}
	}
	t := pace.NewBeat(copiesLook)
	defer t.Stop()
	for {
		select {
		case <-g.dying:
			return
		case <-g.copyNow:
		case <-t.C:
			t.Next()
		}
		look()
	}
}

// copyOf writes a copy of the version that a snapshot refers to, in the place of that.
func (g *Group) copyOf(s stored) (_ stored, err error) {
	g.copying.Lock()
	defer g.copying.Unlock()
	if g.over.Load() {
		return stored{}, errClosed
	}
	v, err := g.versioned().Version(*s.ref)
	if err != nil {
		return stored{}, err
	}
	defer v.Close()
	began := time.Now()
	made, err := g.snapshots.Create(1, s.meta.Index, s.meta.Term, s.meta.Configuration, s.meta.ConfigIndex, nil)
	if err != nil {
		return stored{}, err
	}
	sink, ok := made.(*snapshotSink)
	if !ok {
		return stored{}, errors.Join(errors.New("no sink"), made.Cancel())
	}
	err = sink.refer(*s.ref)
	var w *frameWriter
	if err == nil {
		w, err = newFrameWriter(abortable{sink, g.dying}, s.ref.Index)
	}
	if err == nil {
		_, err = v.WriteTo(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return stored{}, errors.Join(fmt.Errorf("copy of version %d: %w", s.ref.Index, err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return stored{}, err
	}
	g.log.Info("copied the state", "index", s.meta.Index, "bytes", sink.size, "took", time.Since(began).Round(time.Millisecond))
	return sink.stored, nil
}

// newestCopy takes a snapshot of now and makes a copy of it.
func (g *Group) newestCopy() (stored, error) {
	if err := g.Save(); err != nil {
		return stored{}, err
	}
	list := g.snapshots.all()
	switch {
	case len(list) == 0:
		return stored{}, errors.New("the group is empty: there is nothing to save")
	case list[0].whole():
		return list[0], g.snapshots.verify(list[0].id)
	case list[0].hollow:
		return stored{}, fmt.Errorf("the version at entry %d is gone; another snapshot is being taken, try again", list[0].meta.Index)
	}
	return g.copyOf(list[0])
}
