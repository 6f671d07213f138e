package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
//	0 | 1 the member is empty, 2 it has a history | 1 its disk has space, 0 it has not | length, cluster id
//
// and closes.
const (
	knowsNothing byte = 1
	knowsHistory byte = 2
)

const (
	// foundEvery is how long a founding member waits, at first and at last, before it asks the others again.
	foundEvery, foundEveryMost = 20 * time.Millisecond, time.Second
	// foundSays is how often it says whom it waits for.
	foundSays = 10 * time.Second
	// knowPatience is how long an answer may take.
	knowPatience = 2 * time.Second
)

// knowledge is what a member says of itself.
type knowledge struct {
	// history: its log is not empty. roomy: its disk has space.
	history, roomy bool
	cluster        string
}

// tellKnowledge answers the question behind a connection's header.
func (g *Group) tellKnowledge(conn net.Conn) error {
	b := []byte{0, knowsNothing, 0, byte(len(g.dir.Cluster))}
	if g.raft.LastIndex() > 0 {
		b[1] = knowsHistory
	}
	if g.host.space.roomy() {
		b[2] = 1
	}
	_, err := conn.Write(append(b, g.dir.Cluster...))
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
	var b [2]byte
	if _, err = io.ReadFull(conn, b[:]); err == nil {
		k.cluster, err = readShort(conn)
	}
	switch {
	case err != nil:
		return k, fmt.Errorf("%s: %w", address, err)
	case b[0] != knowsNothing && b[0] != knowsHistory || b[1] > 1:
		return k, fmt.Errorf("%s: unknown answer %d %d", address, b[0], b[1])
	}
	k.history, k.roomy = b[0] == knowsHistory, b[1] == 1
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
		missing, history := g.askAll(ctx)
		switch {
		case history != "":
			g.log.Warn("this member is empty, but another one has a history: it does not make a new group, it joins that one", "history", history)
			return
		case missing == nil && ctx.Err() == nil:
			if err := g.establish(); err != nil {
				g.log.Error("cannot make the group", "err", err)
			} else {
				g.log.Info("all members are empty: made a new group", "members", len(g.cfg.Members))
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

// askAll asks all others at once: missing says why somebody was not heard, history names who has one.
func (g *Group) askAll(ctx context.Context) (missing error, history string) {
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
			} else if k.history {
				history = m.ID
				if k.cluster != "" {
					history += " of cluster " + k.cluster
				}
			}
		})
	}
	wait.Wait()
	return missing, history
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
	g.dirMu.Lock()
	defer g.dirMu.Unlock()
	g.dir.Joining = joining
	return g.dir.save()
}

// configuration is the first one of the group.
func (c *GroupConfig) configuration() (first raft.Configuration) {
	for _, m := range c.Members {
		first.Servers = append(first.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
	}
	return first
}
