package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	dn "github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Files that were written to datanodes, by Hadoop's clients, become small files by themselves. The leader reads in the feed of changes what was closed, and when a short file has
// stayed as it is for Config.SmallFileDelay it gets its bytes from a datanode, as it likes, and proposes KeepFile. How far it has come is an item of the register: the next leader
// goes on from there. What the feed does not tell any more is left to `hops smallfiles PATH keep`.

const (
	// adoptFiles and adoptBytes are how many files, and bytes of them, become small ones a second, beside whatever users do: 43 million a day.
	adoptFiles = 500
	adoptBytes = 8 << 20
	// adoptRest is for how many times as long as it looked at a page of events it does nothing: they are about other files, mostly, and a new leader may have days of them in front of it.
	adoptRest = 9
	// adoptPage is how many events are taken at a time.
	adoptPage = 1000
	// A request to a datanode is about this many files and bytes at most; so many are under way, each for so long.
	adoptBatch      = 256
	adoptBatchBytes = 1 << 20
	adoptAtOnce     = 4
	adoptPatience   = 30 * time.Second
	// A file whose bytes cannot be had is tried again after a while, then after twice as long, and so on up to adoptSeldom times as long: its datanode may be away, or have trouble with a disk,
	// for as long as it likes. adoptRetries is how many such files are remembered, 150 bytes each, and adoptDue how many of them are tried at a time.
	adoptSeldom  = 64
	adoptRetries = 100_000
	adoptDue     = 1000
	// adoptNote is how often the register hears how far it has come.
	adoptNote = 10 * time.Minute
	// adoptPause is how long it waits where nothing may be done at the moment, and before it looks anew at most.
	adoptPause = 10 * time.Second
	// adoptUnwritten is how many bytes of bodies may wait for this namenode's disk: at four times as many commands wait, those of users too.
	adoptUnwritten = 16 << 20
	// adoptIdle is how long a connection to a datanode stays that is not used.
	adoptIdle = time.Minute
)

// adoptItem is the item of the register that says up to which position of the feed everything was looked at.
const adoptItem = "smallfiles/kept"

// adoptions counts what this namenode did.
type adoptions struct {
	files, bytes atomic.Int64
	// dropped are files that were given up, because too many wait; waiting those that will be tried again.
	dropped, waiting atomic.Int64
}

// adopt makes small files of what was closed, while this member leads, until ctx is done.
func (s *Server) adopt(ctx context.Context) error {
	if s.config.SmallFileDelay <= 0 {
		return nil
	}
	if s.feed == nil {
		s.log.Warn("files that are written to datanodes are not kept by the namenodes by themselves: there is no feed of changes, which says what was closed")
		return nil
	}
	for ctx.Err() == nil {
		if r := s.reign.Load(); r != nil && s.group.Level() >= release.SmallFiles {
			a := &adopting{s: s, reign: r, pause: s.adoptPause(), again: s.adoptAgain(), peers: map[string]*adoptPeer{}}
			a.run(ctx)
			a.close()
		}
		nap(ctx, s.adoptPause())
	}
	return nil
}

// adoptPause and adoptAgain are adoptPause, and how long a file waits for another try: not longer than files are left alone before.
func (s *Server) adoptPause() time.Duration { return min(adoptPause, s.config.SmallFileDelay) }
func (s *Server) adoptAgain() time.Duration { return min(time.Minute, s.config.SmallFileDelay) }

// mayAdopt says why nothing may be done at the moment.
func (s *Server) mayAdopt() error {
	if err := s.safe.check(s); err != nil {
		return err
	}
	if err := s.group.Writable(); err != nil {
		return err
	}
	if err := s.config.Host.Room(); err != nil {
		return err
	}
	if s.bodies.Figures().Waiting > adoptUnwritten {
		return errAdoptBehind
	}
	return nil
}

var errAdoptBehind = errors.New("the disk is behind with the bytes of small files")

// adopting is the work of a reign.
type adopting struct {
	s            *Server
	reign        *reign
	pause, again time.Duration

	at      metadata.Position // what is behind was not looked at
	missing bool              // it was said that events are missing

	noted   metadata.Position // of the register
	notedAt time.Time
	news    bool          // there were events since
	looked  time.Duration // how long the last page took, without what came of it
	retries []*adoptee
	// Of files, and of bytes.
	paceFiles, paceBytes pace.Budget

	peersMu    sync.Mutex
	peers      map[string]*adoptPeer
	complained time.Time
}

// adoptee is a file that may become a small one.
type adoptee struct {
	inode  metadata.INodeID
	length int64
	event  metadata.Position
	tries  int
	next   time.Time
	block  metadata.Block
	// tried and failed are about this step.
	tried, failed bool
}

type adoptPeer struct {
	conn *grpc.ClientConn
	used time.Time
}

// run works until the reign is over, or ctx is done.
func (a *adopting) run(ctx context.Context) {
	s := a.s
	a.at = s.adoptedUpTo()
	a.noted = a.at
	defer s.adoptions.waiting.Store(0)
	for ctx.Err() == nil && s.reign.Load() == a.reign {
		wait, err := a.step(ctx)
		if err != nil {
			s.log.Debug("files that were closed do not become small files at the moment", "error", err)
			wait = a.pause
		}
		nap(ctx, wait)
	}
}

// step looks at a page of the feed, and at files that are due to be tried again. wait is how long there is nothing to do.
func (a *adopting) step(ctx context.Context) (wait time.Duration, err error) {
	s := a.s
	if err := s.mayAdopt(); err != nil {
		return 0, err
	}
	if s.isAhead(a.at) { // the state was restored from a backup
		a.at, a.retries = 0, nil
	}
	began := time.Now()
	page, err := s.feed.Read(a.at, adoptPage, maxEventBytes)
	if err != nil {
		return 0, err
	}
	a.news = a.news || len(page.Events) > 0
	if page.Missing && a.at > 0 && !a.missing {
		a.missing = true
		s.log.Info("the feed of changes does not tell of all files that were closed: those that are short become small files by `hops smallfiles PATH keep` alone", "from", a.at, "to", page.From)
	}
	due, wait := a.due(page.Events)
	files := a.candidates(page.Events[:due])
	tries := slices.Clone(files)
	for _, f := range a.retries {
		if f.tried, f.failed = len(tries) < len(files)+adoptDue && !began.Before(f.next), false; f.tried {
			tries = append(tries, f)
		}
	}
	batches := a.look(tries)
	a.looked = time.Since(began)
	if err := a.all(ctx, batches); err != nil {
		return 0, err
	}
	a.settle(files)
	switch {
	case due < len(page.Events):
		if due > 0 {
			a.at = page.Events[due-1].Position
		}
		wait = max(wait, a.pause/8)
	case len(page.Events) > 0:
		a.at = page.Next
		wait = adoptRest * a.looked
	default:
		a.at, wait = page.Next, a.pause
	}
	a.note(ctx)
	a.closeIdle()
	return min(wait, a.pause), nil
}

// due is how many of some events are old enough, and how long it takes until the next one is. Wall clocks may be wrong: what is of the future is taken for old.
func (a *adopting) due(events []metadata.Event) (n int, wait time.Duration) {
	now, delay := a.s.clock.wall(), metadata.Time(a.s.config.SmallFileDelay.Milliseconds())
	for i := range events {
		if at := events[i].Time; at <= now && at+delay > now {
			return i, time.Duration(at+delay-now) * time.Millisecond
		}
	}
	return len(events), 0
}

// candidates are the short files that events say were closed, or cut, each as it was left by the last of them.
func (a *adopting) candidates(events []metadata.Event) (files []*adoptee) {
	of := map[metadata.INodeID]*adoptee{}
	for i := range events {
		e := &events[i]
		if e.Kind != metadata.EventClose && e.Kind != metadata.EventTruncate || e.Length < 1 || strings.HasPrefix(e.Path, rewrites+"/") {
			continue
		}
		f := of[e.INode]
		if f == nil {
			f = &adoptee{inode: e.INode}
			of[e.INode] = f
			files = append(files, f)
		}
		f.length, f.event = e.Length, e.Position
	}
	most := int64(a.s.SmallFileLimit())
	return slices.DeleteFunc(files, func(f *adoptee) bool { return f.length > most })
}

// settle sorts out what failed, of those that were tried again and of new ones: it is tried again. If these become too many, those that wait longest are given up.
func (a *adopting) settle(fresh []*adoptee) {
	a.retries = slices.DeleteFunc(a.retries, func(f *adoptee) bool { return f.tried && !f.failed })
	for _, f := range fresh {
		if f.failed {
			a.retries = append(a.retries, f)
		}
	}
	now := time.Now()
	for _, f := range a.retries {
		if f.failed {
			f.next, f.failed = now.Add(a.again*time.Duration(min(1<<min(f.tries, 30), adoptSeldom))), false
			f.tries++
		}
	}
	if over := len(a.retries) - adoptRetries; over > 0 {
		a.retries = slices.Delete(a.retries, 0, over)
		a.s.adoptions.dropped.Add(int64(over))
		a.s.log.Info("files stay on datanodes, because their bytes could not be had, and too many are to be tried again: `hops smallfiles PATH keep` does", "files", over)
	}
	a.s.adoptions.waiting.Store(int64(len(a.retries)))
}

// adoptRequest is what is asked of one datanode at a time.
type adoptRequest struct {
	node  *namenode.Node
	files []*adoptee
	bytes int64
}

// look finds out which files can become small ones, and who has their bytes.
func (a *adopting) look(files []*adoptee) (batches []*adoptRequest) {
	open := map[namenode.NodeID]*adoptRequest{}
	s := a.s
	for _, f := range files {
		var ok bool
		if f.block, ok = s.ns.Keepable(f.inode, f.length, s.config.SmallFiles); !ok {
			continue
		}
		s.soft.mu.Lock()
		at, corrupt := s.soft.m.Locate(f.block.ID, "")
		s.soft.mu.Unlock()
		if len(at) == 0 || corrupt {
			f.failed = true
			continue
		}
		node := at[f.tries%len(at)].Node // the best first, another one the next time; of equals each block has another order
		b := open[node.ID]
		if b == nil || len(b.files) == adoptBatch || b.bytes+f.length > adoptBatchBytes {
			b = &adoptRequest{node: node}
			open[node.ID] = b
			batches = append(batches, b)
		}
		b.files, b.bytes = append(b.files, f), b.bytes+f.length
	}
	return batches
}

// all makes small files of those that can be. An error is not of any one of them: nothing is settled then, and all are looked at again.
func (a *adopting) all(ctx context.Context, batches []*adoptRequest) error {
	s := a.s
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(adoptAtOnce)
	for _, b := range batches {
		group.Go(func() error {
			if err := a.paceFiles.Take(ctx, int64(len(b.files)), adoptFiles); err != nil {
				return err
			}
			if err := a.paceBytes.Take(ctx, b.bytes, adoptBytes); err != nil {
				return err
			}
			if err := s.mayAdopt(); err != nil {
				return err
			}
			return a.some(ctx, b.node, b.files)
		})
	}
	return group.Wait()
}

// some gets the bytes of files from one datanode, and has the namenodes keep them.
func (a *adopting) some(ctx context.Context, node *namenode.Node, files []*adoptee) error {
	s := a.s
	if s.reign.Load() != a.reign {
		return errReignOver
	}
	replicas, err := a.read(ctx, node, files)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.complain(node, len(files), err)
		for _, f := range files {
			f.failed = true
		}
		return nil
	}
	type outcome struct {
		f   *adoptee
		err error
	}
	answers, proposed := make(chan outcome, len(files)), 0
	for i, f := range files {
		r := replicas[i]
		switch {
		case r.Error != "" || int64(len(r.Data)) != f.length:
			s.log.Debug("a datanode does not give the bytes of a short file", "node", node.ID, "block", f.block, "error", r.Error)
			f.failed = true
			continue
		case (dn.Checksum{Type: dn.ChecksumType(r.Checksum), BytesPer: r.BytesPerChecksum}) != dn.DefaultChecksum:
			continue // its checksum would be another one: the door makes the usual ones
		}
		proposed++
		op := &logpb.KeepFile{Target: &logpb.Target{Base: uint64(f.inode)}, Blocks: namespace.BlocksSum([]metadata.Block{f.block}), Data: r.Data, InPlace: true}
		s.keep(s.myself(), a.reign, namenode.Retry{}, op, func(err error) { answers <- outcome{f, err} })
	}
	for range proposed {
		select {
		case o := <-answers:
			switch {
			case o.err == nil:
				s.adoptions.files.Add(1)
				s.adoptions.bytes.Add(o.f.length)
			case slices.Contains(adoptTemporary, metadata.KindOf(o.err)):
				o.f.failed = true
			default: // it was changed, or deleted, meanwhile, or may not be one
				s.log.Debug("a file does not become a small file", "inode", uint64(o.f.inode), "error", o.err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.reign.Load() != a.reign {
		return errReignOver
	}
	return nil
}

// complain says, once a minute at most, that a datanode gives no bytes.
func (a *adopting) complain(node *namenode.Node, files int, err error) {
	a.peersMu.Lock()
	defer a.peersMu.Unlock()
	if time.Since(a.complained) < time.Minute {
		return
	}
	a.complained = time.Now()
	a.s.log.Warn("a datanode does not give the bytes of short files, which the namenodes would keep: they are tried again", "node", node.ID, "files", files, "error", err)
}

// adoptTemporary are the errors that say nothing about a file.
var adoptTemporary = []*metadata.Kind{metadata.ErrStandby, metadata.ErrSafeMode, metadata.ErrRetriable, metadata.ErrNoSpace}

// read asks a datanode for replicas.
func (a *adopting) read(ctx context.Context, node *namenode.Node, files []*adoptee) ([]*datanodepb.SmallReplica, error) {
	conn, err := a.peer(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
	r := &datanodepb.ReadSmallRequest{Blocks: make([]*pb.Block, len(files))}
	for i, f := range files {
		r.Blocks[i] = wireBlock(f.block)
	}
	answer, err := datanodepb.NewContentsClient(conn).ReadSmall(ctx, r)
	if err == nil && len(answer.Replicas) != len(files) {
		err = fmt.Errorf("it answers with %d replicas, asked for %d", len(answer.Replicas), len(files))
	}
	if err != nil {
		return nil, err
	}
	return answer.Replicas, nil
}

func (a *adopting) peer(node *namenode.Node) (*grpc.ClientConn, error) {
	addr := net.JoinHostPort(node.IP, fmt.Sprint(node.GRPCPort))
	a.peersMu.Lock()
	defer a.peersMu.Unlock()
	p := a.peers[addr]
	if p == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(a.s.config.Credentials.Key(authority.Datanode).Credentials()))
		if err != nil {
			return nil, err
		}
		p = &adoptPeer{conn: conn}
		a.peers[addr] = p
	}
	p.used = time.Now()
	return p.conn, nil
}

func (a *adopting) closeIdle() {
	for addr, p := range a.peers {
		if time.Since(p.used) > adoptIdle {
			p.conn.Close()
			delete(a.peers, addr)
		}
	}
}

func (a *adopting) close() {
	for _, p := range a.peers {
		p.conn.Close()
	}
}

// adoptedUpTo is the position up to which a leader has looked at everything.
func (s *Server) adoptedUpTo() metadata.Position {
	value, _ := s.ns.Item(adoptItem)
	if value == nil {
		return 0
	}
	var text string
	err := json.Unmarshal(value, &text)
	var at metadata.Position
	if err == nil {
		at, err = metadata.ParsePosition(text)
	}
	if err != nil {
		s.log.Error("an item of the register cannot be read", "item", adoptItem, "error", err)
		return 0
	}
	return at
}

// note tells the register how far it has come, if that was long ago. What is tried again is looked at anew by the next leader.
func (a *adopting) note(ctx context.Context) {
	upTo := a.at
	for _, f := range a.retries {
		upTo = min(upTo, f.event-1)
	}
	if !a.news || upTo == a.noted || time.Since(a.notedAt) < adoptNote {
		return
	}
	_, version := a.s.ns.Item(adoptItem)
	done := make(chan error, 1)
	a.s.proposeItems([]*logpb.ItemChange{itemChange(adoptItem, upTo.String(), version)}, func(ok bool, err error) {
		if err == nil && !ok {
			err = errors.New("another leader was faster")
		}
		done <- err
	})
	select {
	case err := <-done:
		if a.notedAt = time.Now(); err != nil {
			a.s.log.Debug("the register does not say how many files were looked at", "error", err)
			return
		}
		a.noted, a.news = upTo, false
	case <-ctx.Done():
	}
}
