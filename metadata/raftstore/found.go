package raftstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// An empty member with Bootstrap makes a group of several only when every other member in its list has said that it is
// empty, too. Somebody who is away may have a history, in which this member may have acknowledged entries and given
// votes before it lost its disk; a group made beside that history would lose it.
//
// The question is a connection of its own kind (stream.go), which the acceptor answers with
//
//	0 | length, 2 bytes, little endian | knowledge as JSON
//
// and closes.

const (
	// foundEvery is how long a founding member waits, at first and at last, before it asks the others again.
	foundEvery, foundEveryMost = 20 * time.Millisecond, time.Second
	// foundTurn is at most how much later each member of the list stands for election in a new group than the one before it; firstTerm is the term in
	// which nobody has yet.
	foundTurn = 500 * time.Millisecond
	firstTerm = 1
	// foundSays is how often it says whom it waits for.
	foundSays = 10 * time.Second
	// knowPatience is how long an answer may take.
	knowPatience = 5 * time.Second
)

// knowledge is what a member says of itself.
type knowledge struct {
	Member  string `json:"member"`
	Cluster string `json:"cluster,omitempty"`
	// Recovered is how often the group was made anew of one member.
	Recovered int `json:"recovered,omitempty"`
	// History: its log is not empty. Roomy: it may well lead, because its disk has space and its state machine comes back.
	History bool `json:"history"`
	Roomy   bool `json:"roomy"`
	// Applied is the last entry that its state contains.
	Applied uint64 `json:"applied,omitempty"`
	// Members are those of its configuration.
	Members []string `json:"members,omitempty"`
	// Hashes are the newest of its state.
	Hashes []stateHash `json:"hashes,omitempty"`
}

func (k knowledge) roomy() bool { return k.Roomy }

// tellKnowledge answers the question behind a connection's header.
func (g *Group) tellKnowledge(conn net.Conn) error {
	id := g.identity()
	k := knowledge{
		Member: g.host.cfg.ID, Cluster: id.Cluster, Recovered: id.Recovered,
		History: g.raft.LastIndex() > 0, Roomy: g.willing(), Applied: g.fsm.applied.Load(), Hashes: g.hashes.all(),
	}
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		k.Members = append(k.Members, string(s.ID))
	}
	text, err := json.Marshal(k)
	if err == nil {
		_, err = conn.Write(append(binary.LittleEndian.AppendUint16([]byte{0}, uint16(len(text))), text...))
	}
	return errors.Join(err, conn.Close())
}

// askKnowledge asks the member at an address.
func (g *Group) askKnowledge(ctx context.Context, address string) (k knowledge, err error) {
	conn, err := g.streams.dial(ctx, knowMagic, raft.ServerAddress(address), knowPatience)
	if err != nil {
		return k, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(knowPatience)); err != nil {
		return k, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return k, fmt.Errorf("%s: %w", address, err)
	}
	text := make([]byte, binary.LittleEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, text); err != nil {
		return k, fmt.Errorf("%s: %w", address, err)
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, fmt.Errorf("%s: %w", address, err)
	}
	return k, nil
}

// found makes the group once all other members have said that they are empty, unless one has a history or a leader finds
// this member first.
func (g *Group) found() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-g.dying:
			cancel()
		case <-ctx.Done():
		}
	}()
	wait, said := foundEvery, time.Now()
	for g.raft.LastIndex() == 0 {
		history, missing := g.askAll(ctx)
		switch {
		case history != "":
			g.log.Warn("this member is empty, but another one has a history: it does not make a new group, it joins that one", "history", history)
			return
		case missing == nil && ctx.Err() == nil:
			if err := g.establish(); err != nil {
				g.log.Error("cannot make the group", "err", err)
			} else {
				g.log.Info("all members are empty: made a new group", "members", len(g.cfg.Members))
				g.standFirst()
			}
			return
		}
		if time.Since(said) >= foundSays {
			said = time.Now()
			g.log.Warn("not making a new group before every member in the list has said that it is empty: one that is away may have a history. "+
				"Start it, or take it off the list of members", "err", missing)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, foundEveryMost)
	}
}

// standFirst stands for election in a group that this member has just made, without the wait for the silence of a leader that never was. Several may
// have made it: who comes later in the list gives those before it a moment, and stands only if none of them has asked for its vote meanwhile.
func (g *Group) standFirst() {
	turn := slices.IndexFunc(g.cfg.Members, func(m Member) bool { return m.ID == g.host.cfg.ID })
	select {
	case <-time.After(time.Duration(turn) * min(g.cfg.Timers.Heartbeat/4, foundTurn)):
	case <-g.dying:
		return
	}
	if g.raft.State() == raft.Follower && g.raft.CurrentTerm() <= firstTerm && g.raft.LastIndex() == 1 {
		g.wire.electNow()
	}
}

// askAll asks all others of the list at once: missing says why somebody was not heard, history names who has one.
func (g *Group) askAll(ctx context.Context) (history string, missing error) {
	known, missing := g.askEach(ctx)
	for _, k := range known {
		if k.History {
			history = k.Member
			if k.Cluster != "" {
				history += " of cluster " + k.Cluster
			}
		}
	}
	return history, missing
}

// askEach asks all others of the list at once.
func (g *Group) askEach(ctx context.Context) (known []knowledge, missing error) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, m := range g.cfg.Members {
		if m.ID == g.host.cfg.ID {
			continue
		}
		wait.Go(func() {
			k, err := g.askKnowledge(ctx, m.Address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = errors.Join(missing, fmt.Errorf("member %s: %w", m.ID, err))
			} else {
				known = append(known, k)
			}
		})
	}
	wait.Wait()
	return known, missing
}

const (
	// strangerLook is how often a member without a leader asks the others about itself, and strangerAfter how long it
	// waits for one before it speaks of it.
	strangerLook  = 2 * time.Second
	strangerAfter = 10 * time.Second
)

// watchStanding asks the others of the list what they know of this member: at the start, and while no leader is heard.
// One that is in no configuration says so. One whose group was recovered without it must not go on with its old history.
func (g *Group) watchStanding() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-g.dying:
			cancel()
		case <-stop:
		}
	}()
	t := time.NewTicker(strangerLook)
	defer t.Stop()
	var said time.Time
	for first := true; ; first = false {
		silent := time.Since(g.wire.heardAt())
		switch {
		case g.raft.State() == raft.Leader && !first, silent < strangerLook && !first:
			g.stranger.Store(nil)
		default:
			known, _ := g.askEach(ctx)
			own := g.identity().Recovered
			for _, k := range known {
				if k.Recovered > own && g.raft.LastIndex() > 0 {
					g.fail(fmt.Errorf("the group was recovered on %s without this member, whose history is not the group's any more: "+
						"reinstall it%s and add it again", k.Member, g.command(" (", "reinstall", ")")))
					return
				}
			}
			why := g.strangeness(known)
			if why == "" || silent < g.strangerAfter() {
				break
			}
			g.stranger.Store(&why)
			if time.Since(said) > time.Minute {
				said = time.Now()
				g.log.Error(why)
			}
		}
		select {
		case <-t.C:
		case <-g.dying:
			return
		}
	}
}

func (g *Group) strangerAfter() time.Duration { return max(strangerAfter, 10*g.cfg.Timers.Election) }

// strangeness says that this member is in no configuration of those who have one, "" when it is or nobody knows.
func (g *Group) strangeness(known []knowledge) string {
	why := ""
	for _, k := range known {
		if len(k.Members) == 0 {
			continue
		}
		if slices.Contains(k.Members, g.host.cfg.ID) {
			return ""
		}
		why = fmt.Sprintf("%s is not a member of the group %s of cluster %s; its members are %s. It has to be added%s",
			g.host.cfg.ID, g.name, cmp.Or(k.Cluster, "(unnamed)"), strings.Join(k.Members, ", "),
			g.command(": ", "add "+g.host.cfg.ID+" "+g.host.cfg.Advertise, ""))
	}
	return why
}

// command is how people do something with the group, between two words; empty when there is no program for it.
func (g *Group) command(before, verb, after string) string {
	if g.cfg.Command == "" {
		return ""
	}
	return before + g.cfg.Command + " " + verb + after
}

// establish makes the first entry of the group. A crash before it leaves an empty log, so that the others are asked again.
func (g *Group) establish() error {
	if err := g.setJoining(false); err != nil {
		return err
	}
	if err := g.settle(g.raft.BootstrapCluster(g.cfg.configuration())); err != nil {
		return errors.Join(err, g.setJoining(true)) // a leader was here first
	}
	g.joining.Store(false)
	return nil
}

// setJoining changes what the directory says of this member.
func (g *Group) setJoining(joining bool) error {
	return g.alter(func(i *identity) { i.Joining = joining })
}

// configuration is the first one of the group.
func (c *GroupConfig) configuration() (first raft.Configuration) {
	for _, m := range c.Members {
		first.Servers = append(first.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
	}
	return first
}
