package raftstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Hasher is a StateMachine that keeps a hash of its state. Members at one index have one hash; raftstore compares them.
type Hasher interface {
	// StateHash returns the index of the last applied entry and the hash of the state at it.
	StateHash() (index, hash uint64)
}

const (
	// hashEvery is the distance of the entries at which a member notes its hash, and hashesKept how many it remembers:
	// the last 8,192 entries, some seconds of the heaviest load.
	hashEvery  = 64
	hashesKept = 128
	// hashLook is how often a member compares its hashes with those of the others.
	hashLook = 5 * time.Second
)

// stateHash is the hash of the state at an index.
type stateHash struct {
	Index uint64 `json:"i"`
	Hash  uint64 `json:"h"`
}

// hashes are the newest ones of this member, in the order of their indexes.
type hashes struct {
	mu   sync.Mutex
	list []stateHash
}

// note takes the hash of a state machine when the entry that it has just applied is one to be noted.
func (h *hashes) note(index uint64, machine StateMachine) {
	if index%hashEvery != 0 {
		return
	}
	m, ok := machine.(Hasher)
	if !ok {
		return
	}
	at, hash := m.StateHash()
	if at != index { // the state is ahead of the entry
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, stateHash{index, hash})
	if len(h.list) > hashesKept {
		h.list = append(h.list[:0], h.list[1:]...)
	}
}

func (h *hashes) all() []stateHash {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

// differs looks for an entry at which others have another hash than this member, the newest first. wrong: so many of the
// voters agree on it that this member's state is the wrong one.
func differs(own []stateHash, others []knowledge, voters int) (at uint64, names []string, wrong bool) {
	for _, mine := range slices.Backward(own) {
		by := map[uint64][]string{}
		for _, k := range others {
			for _, theirs := range k.Hashes {
				if theirs.Index == mine.Index && theirs.Hash != mine.Hash {
					by[theirs.Hash] = append(by[theirs.Hash], k.Member)
				}
			}
		}
		for _, members := range by {
			if len(members) > len(names) {
				at, names = mine.Index, members
			}
		}
		if at != 0 {
			return at, names, len(names) > voters/2
		}
	}
	return 0, nil, false
}

// watchHashes compares the state with that of the other members until the group ends.
func (g *Group) watchHashes() {
	var said time.Time
	g.every(g.host.hashLook, func() (goOn bool) {
		at, names, wrong := g.compareHashes()
		switch {
		case wrong:
			g.disown(at, names)
			return false
		case at != 0 && time.Since(said) > time.Minute:
			said = time.Now()
			g.log.Error("the state of the members differs, and no majority says whose is right: stop changing it, and compare them", "entry", at, "others", names)
		}
		return true
	})
}

// compareHashes asks the other voters for theirs.
func (g *Group) compareHashes() (at uint64, names []string, wrong bool) {
	own := g.hashes.all()
	c := g.raft.GetConfiguration().Configuration()
	if len(own) == 0 || voters(c) < 2 {
		return 0, nil, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), knowPatience)
	defer cancel()
	go func() {
		select {
		case <-g.dying:
			cancel()
		case <-ctx.Done():
		}
	}()
	return differs(own, g.askVoters(ctx, c.Servers), voters(c))
}

// disown ends a member whose state is not that of the others, and keeps it from starting again as it is.
func (g *Group) disown(at uint64, names []string) {
	why := fmt.Sprintf("the state after entry %d is not that of %v", at, names)
	err := g.alter(func(i *identity) { i.Damaged = why })
	if err != nil {
		g.log.Error("cannot note that the state is damaged", "err", err)
	}
	g.fail(fmt.Errorf("%s: this member's state is wrong and it does not serve; reinstall it from its peers", why))
}

// askVoters asks the other voters of a configuration what they know.
func (g *Group) askVoters(ctx context.Context, servers []raft.Server) (known []knowledge) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, s := range servers {
		if s.ID == raft.ServerID(g.host.cfg.ID) || s.Suffrage != raft.Voter {
			continue
		}
		wait.Go(func() {
			at := s.Address
			if a, err := g.members.ServerAddr(s.ID); err == nil {
				at = a
			}
			if k, err := g.askKnowledge(ctx, string(at)); err == nil {
				mu.Lock()
				defer mu.Unlock()
				known = append(known, k)
			}
		})
	}
	wait.Wait()
	return known
}
