package server

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// What lies on volumes of types that a storage policy given later does not want is moved when somebody asks for it. The trees that were asked for are an item of the register, so that the
// next leader goes on. The leader takes one after the other: it walks through the files, has those obey the policies that hold for them now for which quotas of types have room, and hands their blocks to the block manager, which
// moves replicas when nothing more urgent is to do; when no block waits any more, the tree is taken off the item.

// tierItem of the register are the inodes that were asked for, the first one at work.
const tierItem = "storage/satisfy"

const (
	// maxTiers is how many trees may be asked for at a time (dfs.storage.policy.satisfier.queue.limit).
	maxTiers = 1000
	// tierAhead is how many blocks may wait in the block manager before the walk does.
	tierAhead = 50_000
	// tierLook is how often the walk looks whether it can go on.
	tierLook = 100 * time.Millisecond
	// tierEnds is of how many trees the leader remembers how they ended.
	tierEnds = 2 * maxTiers
)

// tiers is what the leader remembers of the trees that are done.
type tiers struct {
	mu    sync.Mutex
	stuck map[metadata.INodeID]int64 // how many blocks could not be moved
	order []metadata.INodeID
}

func (t *tiers) end(id metadata.INodeID, stuck int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stuck == nil {
		t.stuck = map[metadata.INodeID]int64{}
	}
	if _, known := t.stuck[id]; !known {
		t.order = append(t.order, id)
	}
	t.stuck[id] = stuck
	if len(t.order) > tierEnds {
		delete(t.stuck, t.order[0])
		t.order = slices.Delete(t.order, 0, 1)
	}
}

func (t *tiers) forget(id metadata.INodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.stuck[id]; known {
		delete(t.stuck, id)
		t.order = slices.DeleteFunc(t.order, func(other metadata.INodeID) bool { return other == id })
	}
}

func (t *tiers) ended(id metadata.INodeID) (stuck int64, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stuck, known = t.stuck[id]
	return stuck, known
}

// tiersWanted are the trees that were asked for, the first one at work.
func (s *Server) tiersWanted() (ids []metadata.INodeID, version uint64) {
	value, version := s.ns.Item(tierItem)
	if value == nil {
		return nil, version
	}
	if err := json.Unmarshal(value, &ids); err != nil {
		s.log.Error("an item of the register cannot be read", "item", tierItem, "error", err)
		return nil, version
	}
	return ids, version
}

// changeTiers changes the list, again if others have changed it meanwhile. change is false when there is nothing to change.
func (s *Server) changeTiers(tries int, change func([]metadata.INodeID) ([]metadata.INodeID, bool, error), done func(error)) {
	ids, version := s.tiersWanted()
	next, changed, err := change(slices.Clone(ids))
	if err == nil && changed && tries == 0 {
		err = metadata.Errorf(metadata.ErrRetriable, "others ask for storage policies to be satisfied at the same time: try again")
	}
	if err != nil || !changed {
		done(err)
		return
	}
	item := itemChange(tierItem, next, version)
	if len(next) == 0 {
		item = itemChange(tierItem, nil, version)
	}
	s.proposeItems([]*logpb.ItemChange{item}, func(ok bool, err error) {
		if err != nil || ok {
			done(err)
			return
		}
		s.changeTiers(tries-1, change, done)
	})
}

// SatisfyStoragePolicy implements namenode.Attributes.
func (s *Server) SatisfyStoragePolicy(c metadata.Caller, path string, done func(error)) {
	s.startTier(c, path, func(_ metadata.INodeID, fresh bool, err error) {
		if err == nil && !fresh {
			err = metadata.Errorf(metadata.ErrIO, "Cannot request to call satisfy storage policy on path %s, as this file/dir was already called for satisfying storage policy.", path)
		}
		done(err)
	})
}

// startTier puts a tree on the list; fresh: it was not there.
func (s *Server) startTier(c metadata.Caller, path string, done func(id metadata.INodeID, fresh bool, err error)) {
	_, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	if err == nil && s.group.Level() < release.Tiers {
		err = metadata.Errorf(metadata.ErrUnsupported, "satisfying storage policies needs a cluster of level %d: raise it (`hops cluster finalize`)", release.Tiers)
	}
	if err != nil {
		done(0, false, err)
		return
	}
	s.read(&c, func(err error) {
		var id metadata.INodeID
		if err == nil {
			id, err = s.tierable(c, path)
		}
		if err != nil {
			done(0, false, err)
			return
		}
		fresh := false
		s.changeTiers(switchTries, func(ids []metadata.INodeID) ([]metadata.INodeID, bool, error) {
			fresh = false // another one may have been faster
			switch {
			case slices.Contains(ids, id):
				return nil, false, nil
			case len(ids) >= maxTiers:
				return nil, false, metadata.Errorf(metadata.ErrIO, "Cannot satisfy the storage policy of %s: %d other paths wait, which is the limit. Try again later", path, len(ids))
			}
			fresh = true
			return append(ids, id), true, nil
		}, func(err error) {
			if err == nil && fresh {
				s.tiers.forget(id)
			}
			done(id, fresh, err)
		})
	})
}

// tierable is the inode of a path, if the caller may have its replicas moved.
func (s *Server) tierable(c metadata.Caller, path string) (metadata.INodeID, error) {
	if err := s.ns.CheckChange(c, path); err != nil {
		return 0, err
	}
	st, err := s.ns.Stat(c, path)
	switch {
	case err != nil:
		return 0, err
	case st == nil:
		return 0, metadata.Errorf(metadata.ErrNotExist, "File/Directory does not exist: %s", path)
	}
	if c.Changed != nil {
		*c.Changed = metadata.Changed{Owner: st.Owner, Group: st.Group, Mode: st.Mode}
	}
	return st.ID, nil
}

// Tier implements namenode.Cluster.
func (s *Server) Tier(c metadata.Caller, r namenode.TierRequest, done func(*namenode.Tiered, error)) {
	answer := func(id metadata.INodeID, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		ids, _ := s.tiersWanted()
		t := &namenode.Tiered{Waiting: slices.Contains(ids, id), Paths: len(ids)}
		t.Stuck, t.Known = s.tiers.ended(id)
		x := s.tieredBlocks()
		t.Blocks, t.Moving, t.Moved, t.Replicas, t.Failed = x.Waiting, x.Moving, x.Moved, x.Replicas, x.Failed
		done(t, nil)
	}
	if r.Start {
		s.startTier(c, r.Path, func(id metadata.INodeID, fresh bool, err error) {
			if fresh && err == nil { // not that it is asked about, again and again
				s.config.Door.Record(security.Decision{Allowed: true, Caller: c, Port: "rpc", Command: "satisfyStoragePolicy", Source: r.Path})
			}
			answer(id, err)
		})
		return
	}
	if _, err := s.leading(); err != nil {
		done(nil, err)
		return
	}
	s.read(&c, func(err error) {
		var id metadata.INodeID
		if err == nil {
			id, err = s.tierable(c, r.Path)
		}
		answer(id, err)
	})
}

func (s *Server) tieredBlocks() blockmanager.Tiered {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return s.soft.m.Tiered()
}

// heedTiers begins to work on the trees that were asked for, on a goroutine of its own.
func (s *Server) heedTiers(r *reign) {
	if s.listing.Load() || s.safe.check(s) != nil {
		return
	}
	if value, _ := s.ns.Item(tierItem); value == nil || s.group.Level() < release.Tiers || !r.tiering.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer r.tiering.Store(false)
		for {
			ids, _ := s.tiersWanted()
			if len(ids) == 0 {
				return
			}
			if err := s.tier(r, ids[0]); err != nil {
				if !errors.Is(err, errReignOver) {
					s.log.Warn("storage policies are not satisfied yet, trying again", "inode", ids[0], "error", err)
				}
				return // the next pass begins anew
			}
		}
	}()
}

var errReignOver = errors.New("another namenode leads")

// tier brings the replicas of a tree to where its policies want them, as far as that can be done, and takes it off the list.
func (s *Server) tier(r *reign, id metadata.INodeID) error {
	began, before := time.Now(), s.tieredBlocks()
	files, full := 0, int64(0) // full: blocks for which quotas have no room
	err := s.ns.Files(id, func(page []namespace.PlacedFile) error {
		files += len(page)
		stale := slices.DeleteFunc(slices.Clone(page), func(f namespace.PlacedFile) bool { return !f.Stale })
		for part := range slices.Chunk(stale, namespace.PlaceAtOnce) {
			roomy, over, err := s.ns.Placeable(part)
			if err != nil {
				return err
			}
			if full += over; len(roomy) == 0 {
				continue
			}
			if err := s.awaitReign(r, func(done func(error)) {
				s.send(&logpb.Command{Op: &logpb.Command_PlaceFiles{PlaceFiles: &logpb.PlaceFiles{Inodes: roomy}}}, func(_ *namespace.Result, err error) { done(err) })
			}); err != nil {
				return err
			}
		}
		s.soft.mu.Lock()
		for _, f := range page {
			for _, b := range f.Blocks {
				s.soft.m.Tier(b)
			}
		}
		s.soft.mu.Unlock()
		return s.tierUntil(r, tierAhead)
	})
	if err == nil {
		err = s.tierUntil(r, 0)
	}
	if err != nil {
		return err
	}
	after := s.tieredBlocks()
	s.tiers.end(id, after.Stuck-before.Stuck+full)
	if err := s.awaitReign(r, func(done func(error)) {
		s.changeTiers(switchTries, func(ids []metadata.INodeID) ([]metadata.INodeID, bool, error) {
			i := slices.Index(ids, id)
			if i < 0 {
				return nil, false, nil
			}
			return slices.Delete(ids, i, i+1), true, nil
		}, done)
	}); err != nil {
		return err
	}
	s.log.Info("storage policies are satisfied", "inode", id, "files", files, "moved", after.Replicas-before.Replicas, "bytes", after.Moved-before.Moved,
		"stuck", after.Stuck-before.Stuck, "over quotas of types", full, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// awaitReign is await while a reign lasts.
func (s *Server) awaitReign(r *reign, call func(func(error))) error {
	if s.reign.Load() != r {
		return errReignOver
	}
	return s.await(call)
}

// tierUntil waits until no more than so many blocks wait to be moved.
func (s *Server) tierUntil(r *reign, most int) error {
	t := time.NewTicker(tierLook)
	defer t.Stop()
	for s.tieredBlocks().Waiting > most {
		if s.reign.Load() != r {
			return errReignOver
		}
		select {
		case <-t.C:
		case <-s.stopped:
			return errReignOver
		}
	}
	if s.reign.Load() != r { // its blocks were forgotten with it
		return errReignOver
	}
	return nil
}
