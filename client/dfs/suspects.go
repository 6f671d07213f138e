package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// times are the client's own limits. Tests have shorter ones.
type times struct {
	// heartbeat is how long a pipeline may be silent: half of the 60 s that datanodes wait, as in Hadoop.
	heartbeat time.Duration
	// stall is how long nothing may be acknowledged before the datanodes are asked who of them is alive.
	stall time.Duration
	// probe is how long a datanode has for a word when it is asked.
	probe time.Duration
	// forgive is how long a suspect is left alone before it is asked again, at first; the pause grows to maxForgive.
	forgive time.Duration
	// hedgeMin and hedgeMax bound how long a reader waits for one datanode before it asks a second one as well.
	hedgeMin, hedgeMax time.Duration
	// retry is the pause before the locations of a block that nobody gave are asked for again; the next ones are 4 and 16
	// times as long.
	retry time.Duration
	// tell is how long a reader that has its bytes waits for the namenode to hear of the replicas that are bad. One that does not
	// is told by the next reader, or finds them itself.
	tell time.Duration
	// many is how long a datanode may say nothing to who reads many files: an error of one of them is better than that all wait. It is also for how long a block is asked for again that is on
	// disks alone which do not answer, as their datanodes say.
	many time.Duration
	// abort bounds what is done about a file that was given up.
	abort time.Duration
	// exchange is how long a finished copy of a file may take to take its place.
	exchange time.Duration
}

var defaultTimes = times{
	heartbeat: 30 * time.Second,
	stall:     2 * time.Second,
	probe:     2500 * time.Millisecond,
	forgive:   time.Second,
	hedgeMin:  50 * time.Millisecond,
	hedgeMax:  time.Second,
	retry:     100 * time.Millisecond,
	tell:      2 * time.Second,
	many:      15 * time.Second,
	abort:     2 * time.Second,
	exchange:  5 * time.Minute,
}

const (
	maxForgive = 30 * time.Second
	// maxSuspects bounds what a client remembers of datanodes; the oldest suspicion is forgotten.
	maxSuspects = 1024
)

// suspects are the datanodes that did not answer in time, whatever block it was about. All readers and writers of a client
// leave them for others where there are others. A suspect that says a word is one no more: it is asked when it is looked
// up, at growing intervals, so that nothing is asked of anybody when nobody reads or writes.
type suspects struct {
	life  context.Context
	going sync.WaitGroup
	times *times

	mu   sync.Mutex
	of   map[string]*suspicion // by the address of the transfer port
	done bool
}

type suspicion struct {
	node        *hadooppb.DatanodeInfoProto
	since, next time.Time
	pause       time.Duration
	asking      bool
	left        bool // it has said nothing for as long as it may, or could not be reached
	ask         func(context.Context) error
	// heard is closed when one that may only have been slow, and was asked at once, has said a word, or nothing. nil: it had said nothing when it was asked.
	heard chan struct{}
	once  sync.Once // closes heard
}

func newSuspects(life context.Context, t *times) *suspects {
	return &suspects{life: life, times: t, of: map[string]*suspicion{}}
}

// suspect notes that a datanode is silent. ask is how to find out whether it is still. now: it is asked at once, because
// it may only have been slow.
func (s *suspects) suspect(addr string, node *hadooppb.DatanodeInfoProto, now bool, ask func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || s.of[addr] != nil {
		return
	}
	if len(s.of) >= maxSuspects {
		oldest := ""
		for a, x := range s.of {
			if oldest == "" || x.since.Before(s.of[oldest].since) {
				oldest = a
			}
		}
		delete(s.of, oldest)
	}
	x := &suspicion{node: node, since: time.Now(), pause: s.times.forgive, ask: ask}
	x.next = x.since.Add(x.pause)
	s.of[addr] = x
	if now {
		x.heard = make(chan struct{})
		s.askLocked(addr, x)
	}
}

// forgiven reports whether a datanode is suspected no more. One that may only have been slow, and has just been asked for a word, is waited for.
func (s *suspects) forgiven(ctx context.Context, addr string) bool {
	s.mu.Lock()
	x := s.of[addr]
	s.mu.Unlock()
	if x != nil && x.heard != nil {
		select {
		case <-x.heard:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[addr] == nil
}

// is reports whether a datanode is suspected.
func (s *suspects) is(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.of[addr]
	if x == nil {
		return false
	}
	if !x.asking && !s.done && !time.Now().Before(x.next) {
		s.askLocked(addr, x)
	}
	return true
}

// leave notes that a suspect has had all its time.
func (s *suspects) leave(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.of[addr]; x != nil {
		x.left = true
	}
}

// left reports whether a datanode has had all its time and has said no word since.
func (s *suspects) left(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.of[addr]
	return x != nil && x.left
}

// nodes are all suspects.
func (s *suspects) nodes() []*hadooppb.DatanodeInfoProto {
	s.mu.Lock()
	defer s.mu.Unlock()
	var nodes []*hadooppb.DatanodeInfoProto
	for addr, x := range s.of {
		nodes = append(nodes, x.node)
		if !x.asking && !s.done && !time.Now().Before(x.next) {
			s.askLocked(addr, x)
		}
	}
	return nodes
}

// askLocked asks a suspect for a word. s.mu is held.
func (s *suspects) askLocked(addr string, x *suspicion) {
	x.asking = true
	s.going.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, s.times.probe)
		defer cancel()
		err := x.ask(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if x.heard != nil {
			x.once.Do(func() { close(x.heard) })
		}
		if s.of[addr] != x {
			return
		}
		if err == nil {
			delete(s.of, addr)
			return
		}
		x.asking = false
		x.next = time.Now().Add(x.pause)
		x.pause = min(2*x.pause, maxForgive)
	})
}

// close waits for what is being asked; the life of the suspects has to be over.
func (s *suspects) close() {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	s.going.Wait()
}

// transferAddr is where a datanode takes data.
func (c *Client) transferAddr(node *hadooppb.DatanodeInfoProto) string {
	return dtp.TransferAddr(node.GetId(), c.config.UseHostname)
}

// suspected reports whether a datanode is held to be silent.
func (c *Client) suspected(node *hadooppb.DatanodeInfoProto) bool {
	return c.suspects.is(c.transferAddr(node))
}

// leaves reports whether a datanode is read from no more for now (Config.LeaveSilent).
func (c *Client) leaves(node *hadooppb.DatanodeInfoProto) bool {
	return c.config.LeaveSilent && c.suspects.left(c.transferAddr(node))
}

// suspect notes that a datanode was silent about a block.
func (c *Client) suspect(node *hadooppb.DatanodeInfoProto, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto, now bool) {
	c.suspects.suspect(c.transferAddr(node), node, now, func(ctx context.Context) error { return c.probe(ctx, node, b, token) })
}

// probe asks a datanode for no byte of a block. Any answer, a refusal too, is a sign of life: nil. It takes the way that
// data takes, so a datanode that only answers elsewhere is no better for it, and works with Hadoop's as with ours.
func (c *Client) probe(ctx context.Context, node *hadooppb.DatanodeInfoProto, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) error {
	if c.mute != nil && c.mute(node) {
		return os.ErrDeadlineExceeded
	}
	s, err := c.openStream(ctx, &located{block: b, token: tokenOf(token)}, node.GetId(), 0, 0)
	if err != nil {
		if _, answered := errors.AsType[*dtp.ResponseError](err); answered {
			return nil
		}
		return err
	}
	s.until(ctx)
	if _, err := s.read(); !errors.Is(err, io.EOF) {
		s.close()
	}
	return nil
}

// silent asks all of nodes at once and returns the positions of those that say nothing. When nobody says
// anything, that is nobody's fault in particular: the network's, or this machine's.
func (c *Client) silent(ctx context.Context, nodes []*hadooppb.DatanodeInfoProto, b *hadooppb.ExtendedBlockProto, token *hadooppb.TokenProto) []int {
	ctx, cancel := context.WithTimeout(ctx, c.times.probe)
	defer cancel()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { errs[i] = c.probe(ctx, node, b, token) })
	}
	wg.Wait()
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	var at []int
	for i, err := range errs {
		if err != nil {
			at = append(at, i)
		}
	}
	for _, i := range at {
		if len(at) < len(nodes) {
			c.suspect(nodes[i], b, token, false)
		}
	}
	return at
}

// withSuspects adds the datanodes that are suspected to a list of those to leave out.
func (c *Client) withSuspects(nodes []*hadooppb.DatanodeInfoProto) []*hadooppb.DatanodeInfoProto {
	all := slices.Clip(nodes)
	for _, node := range c.suspects.nodes() {
		if !slices.ContainsFunc(nodes, func(n *hadooppb.DatanodeInfoProto) bool {
			return n.GetId().GetDatanodeUuid() == node.GetId().GetDatanodeUuid()
		}) {
			all = append(all, node)
		}
	}
	return all
}

// silence is why a datanode that says nothing is left.
func silence(node string, after time.Duration) error {
	return fmt.Errorf("%s has said nothing for %v", node, after.Round(time.Millisecond))
}

// preferred puts the datanodes that are not suspected first, in the order they come in.
func (c *Client) preferred(nodes []*hadooppb.DatanodeInfoProto) []*hadooppb.DatanodeInfoProto {
	var good, bad []*hadooppb.DatanodeInfoProto
	for _, node := range nodes {
		if c.suspected(node) {
			bad = append(bad, node)
		} else {
			good = append(good, node)
		}
	}
	if len(bad) == 0 {
		return nodes
	}
	return slices.Concat(good, bad)
}
