package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore/journal"
	"github.com/gohops/hops/metadata/smallfile"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// bodyStore has the bodies of small files of this member. Once it is being closed nothing more becomes durable, and it says so: a checkpoint that has
// a body of which the store took no notice any more must not be.
type bodyStore struct {
	*smallfile.Store
	closing atomic.Bool
}

// Sync implements namespace.Bodies.
func (b *bodyStore) Sync() error {
	if b.closing.Load() {
		return fs.ErrClosed
	}
	return b.Store.Sync()
}

func (s *Server) bodiesDir() string { return filepath.Join(s.config.Dir, "smallfiles") }

func (s *Server) openBodies() error {
	dir := s.bodiesDir()
	err := os.MkdirAll(dir, 0o700)
	if err == nil { // its name has to be as durable as what will be in it
		err = journal.FileSystem{}.SyncDir(s.config.Dir)
	}
	if err != nil {
		return fmt.Errorf("small files: %w", err)
	}
	store, err := smallfile.Open(smallfile.Config{
		Dir: dir, Disk: s.config.bodiesDisk, Room: s.config.Host.Room, Logger: s.log,
		Live: func(ids []metadata.BlockID) ([]bool, error) { return s.ns.LiveBodies(ids) },
	})
	if err != nil {
		return fmt.Errorf("small files: %w", err)
	}
	s.bodies = &bodyStore{Store: store}
	return nil
}

// closeBodies runs before the group ends, which may be waiting for room for a body.
func (s *Server) closeBodies() {
	if s.bodies == nil {
		return
	}
	s.bodies.closing.Store(true)
	if err := s.bodies.Close(); err != nil { // what is not in it comes again with the log
		s.log.Warn("the small files were not closed well", "error", err)
	}
}

// compactEvery is how often bodies that nobody needs any more are looked for.
const compactEvery = 10 * time.Minute

// compactBodies gives back the room of such bodies until ctx is done.
func (s *Server) compactBodies(ctx context.Context) error {
	every := s.config.CompactEvery
	if every <= 0 {
		every = compactEvery
	}
	for ticker := time.NewTicker(every); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return nil
		case <-ticker.C:
		}
		if n, _ := s.ns.Bodies(); n == 0 && s.bodies.Figures().Bytes == 0 {
			continue
		}
		freed, err := s.bodies.Compact(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.log.Warn("small files that are gone keep their room for now", "freed", freed, "error", err)
		case freed > 0:
			s.log.Info("small files that are gone were cleared away", "freed", freed)
		}
	}
}

// errNoSmallFiles sends a client to datanodes.
func errNoSmallFiles(why string) error {
	return metadata.Errorf(metadata.ErrUnsupported, "%s: create the file and write it to datanodes", why)
}

// smallFilesBuilt refuses what members of an older release do not know.
func (s *Server) smallFilesBuilt() error {
	if level := s.group.Level(); level < release.SmallFiles {
		return errNoSmallFiles(fmt.Sprintf("small files need level %d of the cluster, which is at %d", release.SmallFiles, level))
	}
	return nil
}

// StoreFile implements namenode.SmallFiles.
func (s *Server) StoreFile(c metadata.Caller, r namenode.CreateRequest, data []byte, done func(*metadata.FileStatus, error)) {
	t, err := target(r.Path)
	var reign *reign
	if err == nil {
		reign, err = s.leading()
	}
	if err == nil {
		err = s.safe.check(s)
	}
	if err == nil {
		err = s.smallFilesBuilt()
	}
	switch {
	case err != nil:
	case len(data) > s.SmallFileLimit():
		err = errNoSmallFiles(fmt.Sprintf("%d bytes are more than the %d of a small file", len(data), s.SmallFileLimit()))
	case r.Policy != "" && r.Policy != namenode.ReplicationPolicy:
		err = errNoSmallFiles("a small file has no erasure coding policy, and " + r.Policy + " was asked for")
	case len(data) == 0 || r.Policy != "":
		// An empty file has nothing to be kept, and what is appended to it is to be coded at once. A small file becomes coded there as well when it grows, which this one is not to.
		if policy, coded := s.ns.CodingAt(c, r.Path); coded {
			err = errNoSmallFiles("files that are made there are coded by " + policy.Name)
		}
	}
	if err != nil {
		done(nil, err)
		return
	}
	if s.config.Properties.MinBlockSize == 0 && r.BlockSize == 0 {
		r.BlockSize = 1 // as Create
	}
	kind := blockID
	if len(data) == 0 {
		kind = noID
	}
	s.newBlock(reign, kind, func(b metadata.Block, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		op := &logpb.Store{Create: &logpb.Create{
			Target: t, Mode: uint32(r.Mode), Unmasked: unmasked(r.Unmasked), ClientName: r.Client, Overwrite: r.Overwrite, Create: r.Create, CreateParent: r.Parents,
			Replication: uint32(max(r.Replication, 0)), BlockSize: r.BlockSize, MinBlockSize: max(1, int64(s.config.Properties.MinBlockSize)),
			LazyPersist: s.lazily(&r),
		}}
		if len(data) > 0 {
			b.Length = int64(len(data))
			op.Body, op.Crc, op.Data, op.ByDefault = blockOf(b), crcOf(data), data, s.config.SmallFiles
		}
		e := newEnvelope()
		e.command.Op = &logpb.Command_Store{Store: op}
		s.change(&c, r.Retry, e, func(result *namespace.Result, err error) {
			if err != nil {
				if result != nil {
					s.expired(result.Expired)
				}
				done(nil, err)
				return
			}
			done(result.Status, nil)
		})
	})
}

// KeepFile implements namenode.SmallFiles.
func (s *Server) KeepFile(c metadata.Caller, r namenode.KeepFileRequest, done func(error)) {
	t, err := target(r.Path)
	var reign *reign
	if err == nil {
		reign, err = s.leading()
	}
	if err == nil {
		err = s.safe.check(s)
	}
	if err == nil {
		err = s.smallFilesBuilt()
	}
	if err == nil && len(r.Data) > s.SmallFileLimit() {
		err = errNoSmallFiles(fmt.Sprintf("%d bytes are more than the %d of a small file", len(r.Data), s.SmallFileLimit()))
	}
	if err != nil {
		done(err)
		return
	}
	s.keep(c, reign, r.Retry, &logpb.KeepFile{Target: t, Blocks: namespace.BlocksSum(r.Blocks), Data: r.Data}, done)
}

// keep proposes to make a small file of the bytes that were read from an ordinary one.
func (s *Server) keep(c metadata.Caller, reign *reign, retry namenode.Retry, op *logpb.KeepFile, done func(error)) {
	s.newBlock(reign, blockID, func(b metadata.Block, err error) {
		if err != nil {
			done(err)
			return
		}
		b.Length = int64(len(op.Data))
		op.Body, op.Crc, op.ByDefault = blockOf(b), crcOf(op.Data), s.config.SmallFiles
		e := newEnvelope()
		e.command.Op = &logpb.Command_KeepFile{KeepFile: op}
		s.simple(&c, retry, e, done)
	})
}

func crcOf(data []byte) uint32 { return crc32.Checksum(data, crc32c) }

var crc32c = crc32.MakeTable(crc32.Castagnoli)

// SmallFileLimit implements namenode.SmallFiles.
func (s *Server) SmallFileLimit() int {
	if limit := s.config.SmallFileLimit; limit > 0 {
		return min(limit, metadata.MaxBody)
	}
	return metadata.MaxBody
}

// FileWithData implements namenode.SmallFiles.
func (s *Server) FileWithData(c metadata.Caller, r namenode.FileWithDataRequest, done func(*namenode.FileWithData, error)) {
	if r.Length <= 0 {
		r.Length = math.MaxInt64
	}
	look := func() (*namespace.FileBlocks, error) { return s.ns.Blocks(c, r.Path, 0, r.Length) }
	var f *namespace.FileBlocks
	var err error
	if s.glance(func() { f, err = look() }) {
		s.withData(c, r, f, err, done)
		return
	}
	askGroup(s, &c, func(f *namespace.FileBlocks, err error) {
		if err == nil && f.Body != nil && f.Body.Data == nil { // which is on a disk, and others wait behind this read
			s.beside(func(err error) { done(nil, err) }, func() { s.withData(c, r, f, nil, done) })
			return
		}
		s.withData(c, r, f, err, done)
	}, look)
}

// withData answers with the bytes of a file that is small enough, or with its blocks.
func (s *Server) withData(c metadata.Caller, r namenode.FileWithDataRequest, f *namespace.FileBlocks, err error, done func(*namenode.FileWithData, error)) {
	most := r.Most
	if most <= 0 || most > metadata.MaxBody {
		most = metadata.MaxBody
	}
	if err != nil || !isWhole(f, most) {
		locate := namenode.LocateRequest{Path: r.Path, Length: r.Length, Unnoticed: r.Unnoticed, Tails: true, Admit: r.Admit}
		s.located(c, locate, f, err, func(l *namenode.LocatedFile, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(&namenode.FileWithData{LocatedFile: *l}, nil)
		})
		return
	}
	if !r.Unnoticed && !f.InSnapshot && s.unread(&f.Status) {
		if err := s.accessed(&c, &f.Status); err != nil {
			done(nil, err)
			return
		}
	}
	out := &namenode.FileWithData{Whole: true, LocatedFile: namenode.LocatedFile{Status: f.Status, Length: f.Length, UnderConstruction: f.UnderConstruction, LastComplete: true}}
	if f.Body == nil {
		done(out, nil)
		return
	}
	var inMemory bool
	if out.Data, inMemory = s.ns.GlanceBody(*f.Body); inMemory {
		done(out, nil)
		return
	}
	s.beside(func(err error) { done(nil, err) }, func() { // others wait behind this call, and not for its disk
		ctx, cancel := context.WithTimeout(s.watching, bodyPatience)
		defer cancel()
		data, err := s.getBody(ctx, c.User, f.Body)
		if err != nil {
			done(nil, err)
			return
		}
		out.Data = data
		done(out, nil)
	})
}

const (
	// maxBodyReads is how many calls may read bodies from the disk at a time: each has a thread of the operating system while the disk is silent, and a process has 10,000.
	maxBodyReads = 256
	// bodyReadPatience is how long a call waits for a place among them, and bodyPatience how long it waits for a body in all where its client has said nothing. Hadoop's clients wait for
	// a minute.
	bodyReadPatience, bodyPatience = 5 * time.Second, 30 * time.Second
	// doorReadPatience is bodyReadPatience at the block door, where all wait in one line, and whose clients take a file for lost that is refused.
	doorReadPatience = 20 * time.Second
	// doorShare and memberShare are whose share of the places it is where no user is known: all who read at the block door, and the other namenodes.
	doorShare, memberShare = "\x00door", "\x00namenodes"
)

// takeReadPlace waits for one of a user's places to read bodies from the disk. Errors: ErrRetriable when none comes, as where the disk is silent; that of ctx.
func (s *Server) takeReadPlace(ctx context.Context, user string) error {
	if s.bodyReads.try(user) {
		return nil
	}
	limit := bodyReadPatience
	if user == doorShare {
		limit = doorReadPatience
	}
	patience, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch {
	case s.bodyReads.take(user, patience.Done()):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	most, mostOfOne := s.bodyReads.limits()
	return metadata.Errorf(metadata.ErrRetriable, "%d calls, or %d of one user's, read small files from the disk of this namenode already, which is slow or silent", most, mostOfOne)
}

// inPlace runs read, which reads bodies from the disk, beside the caller, who has taken a place for it, and gives it up when ctx is done: the place is free when the disk has answered.
// Errors: ErrRetriable when that takes too long; that of ctx; ErrIO when read panics.
func (s *Server) inPlace(ctx context.Context, user string, read func()) (err error) {
	done := make(chan struct{})
	var panicked error
	go func() {
		defer close(done)
		defer s.bodyReads.give(user)
		defer s.caught(func(err error) { panicked = err })
		read()
	}()
	select {
	case <-done:
		return panicked
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return metadata.Errorf(metadata.ErrRetriable, "the disk of this namenode does not give a small file")
	}
	return ctx.Err()
}

// readBody reads a body, from memory or else with one of a user's places from the disk. why: this namenode cannot read it. Errors: those of takeReadPlace and inPlace.
func (s *Server) readBody(ctx context.Context, user string, r *namespace.BodyRef) (data []byte, why, err error) {
	if data, inMemory := s.ns.GlanceBody(*r); inMemory {
		return data, nil, nil
	}
	if err := s.takeReadPlace(ctx, user); err != nil {
		return nil, nil, err
	}
	var read struct {
		data []byte
		err  error
	}
	if err := s.inPlace(ctx, user, func() { read.data, read.err = s.ns.ReadBody(*r) }); err != nil {
		return nil, nil, err
	}
	if read.err != nil {
		return nil, read.err, nil
	}
	return read.data, nil, nil
}

// getBody is readBody of a body that is got from another namenode when this one cannot read it.
func (s *Server) getBody(ctx context.Context, user string, r *namespace.BodyRef) ([]byte, error) {
	m := s.mending(ctx) // before the look
	defer m.end()
	data, why, err := s.readBody(ctx, user, r)
	switch {
	case err == nil && why == nil:
		return data, nil
	case err == nil:
	case ctx.Err() == nil && r.Data == nil && !s.bodies.Has(r.Block.ID):
		why = err // it is damaged or missing here as far as is known: others are asked though it was not read
	default:
		return nil, err
	}
	return m.body(r, why)
}

// FilesWithData implements namenode.SmallFiles.
func (s *Server) FilesWithData(ctx context.Context, c metadata.Caller, paths []string, most int64, done func([]namenode.OpenedFile, error)) {
	type many struct {
		files []namenode.OpenedFile
		refs  []namespace.BodyRef
		at    []int
	}
	askGroup(s, &c, func(m *many, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		s.beside(func(err error) { done(nil, err) }, func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(s.watching, cancel)()
			err := s.readBodies(ctx, c.User, m.refs, func(k int, data []byte, err error) {
				f := &m.files[m.at[k]]
				f.Data, f.Err, f.Whole = data, err, err == nil
			})
			if err != nil {
				done(nil, err)
				return
			}
			done(m.files, nil)
		})
	}, func() (*many, error) {
		m, size := &many{files: make([]namenode.OpenedFile, 0, len(paths))}, int64(0)
		for _, path := range paths {
			f, err := s.ns.Blocks(c, path, 0, metadata.MaxBody)
			small := err == nil && isWhole(f, metadata.MaxBody)
			if small && !f.InSnapshot && s.unread(&f.Status) {
				err = s.accessed(&c, &f.Status)
			}
			if small && err == nil {
				if size += f.Status.Length; size > most && len(m.files) > 0 {
					break
				}
				if f.Body != nil {
					m.refs, m.at = append(m.refs, *f.Body), append(m.at, len(m.files))
				}
			}
			m.files = append(m.files, namenode.OpenedFile{Whole: small && err == nil, Err: err})
		}
		return m, nil
	})
}

// isWhole reports whether a file has most bytes at most, and nothing but a body.
func isWhole(f *namespace.FileBlocks, most int64) bool {
	return f.Status.Length <= most && (f.Last == nil || f.Body != nil && f.Last.Block.ID == f.Body.Block.ID)
}

// Body implements namenode.SmallFiles.
func (s *Server) Body(ctx context.Context, id metadata.BlockID, generation metadata.Generation) ([]byte, error) {
	return s.bodyFor(ctx, doorShare, id, generation)
}

// bodyFor is Body, for a user.
func (s *Server) bodyFor(ctx context.Context, user string, id metadata.BlockID, generation metadata.Generation) ([]byte, error) {
	r, err := s.ns.FindBody(id, generation)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found for blk_%d_%d", id, generation)
	}
	return s.getBody(ctx, user, r)
}

const (
	// mendTime is how long the other namenodes may take to give what one request wants of them.
	mendTime = 5 * time.Second
	// mendHedge is how long one of them may take before another one is asked as well.
	mendHedge = 300 * time.Millisecond
	// maxMends is how many bodies are asked for at a time.
	maxMends = 16
)

// errUnanswered is that of a body that nobody gave, while not everybody has said that he has it not.
var errUnanswered = errors.New("a namenode that does not answer may have it")

// mending gets bodies from the other namenodes, for one request: its goroutine alone uses it.
type mending struct {
	*Server
	ctx    context.Context // of who asks
	budget context.Context // mendTime from the first body on; nil before that
	cancel context.CancelFunc
	peers  bodyPeers
	former bool // bodies of before the state was lost were to be looked through when it began
}

func (s *Server) mending(ctx context.Context) *mending {
	return &mending{Server: s, ctx: ctx, cancel: func() {}, former: s.formerPending.Load()}
}

func (m *mending) end() {
	m.cancel()
	m.peers.close()
}

// mendBody is body for a request that wants one.
func (s *Server) mendBody(ctx context.Context, r *namespace.BodyRef, why error) ([]byte, error) {
	m := s.mending(ctx)
	defer m.end()
	return m.body(r, why)
}

// body gets a body that this member cannot read, for the given reason, from another one, and keeps it, unless its disk is behind.
//
// Errors: ErrCorrupt when nobody that answers has it, and errUnanswered too when somebody does not, or former bodies are to be looked through here; why, if that says nothing of the
// bytes here; that of ctx.
func (m *mending) body(r *namespace.BodyRef, why error) ([]byte, error) {
	if m.budget == nil {
		m.budget, m.cancel = context.WithTimeout(m.ctx, mendTime)
		var err error
		if m.peers, err = m.bodyPeers(); err != nil {
			m.budget, m.cancel = nil, func() {}
			return nil, err
		}
	}
	spent := m.budget.Err() != nil
	data, from, err := m.fetchBody(m.budget, m.peers, r)
	switch {
	case err == nil:
	case m.ctx.Err() != nil:
		return nil, m.ctx.Err()
	default:
		if !spent {
			m.log.Warn("no other namenode gives a body of a small file that is missing or damaged here", "body", r.Block, "was", why, "error", err)
		}
		if !proven(why) {
			return nil, fmt.Errorf("%w, and no other namenode that answers has it", why)
		}
		corrupt := metadata.Errorf(metadata.ErrCorrupt, "The bytes of block %v, of a small file, are missing or damaged on this namenode (%v), and no other one that answers has them", r.Block, why)
		if errors.Is(err, errUnanswered) || errors.Is(err, context.DeadlineExceeded) || m.former {
			corrupt = fmt.Errorf("%w: %w", corrupt, errUnanswered)
		}
		return nil, corrupt
	}
	m.log.Warn("a body of a small file was missing or damaged here, and came from another namenode", "body", r.Block, "namenode", from, "was", why)
	m.mended.Add(1)
	if !errors.Is(why, fs.ErrClosed) && r.Data == nil {
		m.bodies.Offer(r.Block.ID, data)
	}
	return data, nil
}

// proven reports whether an error of reading a body says that its bytes are not here. Others may pass, as that of a disk does that cannot read.
func proven(err error) bool {
	return (errors.Is(err, metadata.ErrCorrupt) || errors.Is(err, metadata.ErrReplicaNotFound)) && !errors.Is(err, syscall.EIO)
}

// bodyLost reports whether an error of getting a body says that no namenode has it.
func bodyLost(err error) bool {
	return metadata.KindOf(err) == metadata.ErrCorrupt && proven(err) && !errors.Is(err, errUnanswered)
}

// bodyPeers are the other namenodes, as givers of bodies. Nobody is connected to before it is asked.
type bodyPeers []*bodyPeer

type bodyPeer struct {
	id   string
	conn *grpc.ClientConn
}

func (p bodyPeers) close() {
	for _, n := range p {
		n.conn.Close()
	}
}

func (s *Server) bodyPeers() (peers bodyPeers, err error) {
	servers, err := s.roster.Servers()
	if err != nil {
		return nil, err
	}
	key := s.config.Credentials.Key(authority.Namenode)
	for _, n := range servers.Namenodes {
		if n.ID == s.config.ID {
			continue
		}
		conn, err := grpc.NewClient("passthrough:///"+n.GRPC, grpc.WithTransportCredentials(key.Credentials()))
		if err != nil {
			peers.close()
			return nil, err
		}
		peers = append(peers, &bodyPeer{n.ID, conn})
	}
	return peers, nil
}

// bodyAnswer is what one of them says.
type bodyAnswer struct {
	from *bodyPeer
	data []byte
	err  error
}

// fetchBody asks the others for a body, for mendTime at most: one after the other, each mendHedge after the one before if that has not answered by then, and those last that were
// silent when they were asked before. The first sound answer counts. Errors: ErrCorrupt when nobody that answers has it, and errUnanswered too when somebody does not; that of ctx.
func (s *Server) fetchBody(ctx context.Context, peers bodyPeers, r *namespace.BodyRef) (data []byte, from string, err error) {
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	select {
	case s.mends <- struct{}{}:
		defer func() { <-s.mends }()
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	asking, cancel := context.WithTimeout(ctx, mendTime)
	defer cancel()
	request := &pb.BodyRequest{Id: int64(r.Block.ID), Generation: uint64(r.Block.Generation), Applied: s.ns.AppliedIndex()}
	waiting := s.inTurn(peers)
	asked := map[*bodyPeer]time.Time{} // who has not answered
	answers := make(chan bodyAnswer, len(peers))
	hedge := time.NewTimer(mendHedge)
	defer hedge.Stop()
	ask := func() {
		if len(waiting) == 0 {
			return
		}
		n := waiting[0]
		waiting, asked[n] = waiting[1:], time.Now()
		hedge.Reset(mendHedge)
		go func() {
			data, err := n.body(asking, request, r)
			answers <- bodyAnswer{n, data, err}
		}()
	}
	var said []error
	silent := false
	for ask(); len(asked) > 0; {
		var a bodyAnswer
		select {
		case <-hedge.C:
			ask()
			continue
		case a = <-answers:
		}
		delete(asked, a.from)
		switch code := status.Code(a.err); {
		case a.err == nil:
			s.silent.Delete(a.from.id)
			for n, since := range asked { // who was overtaken
				if time.Since(since) >= mendHedge {
					s.silent.Store(n.id, struct{}{})
				}
			}
			return a.data, a.from.id, nil
		case errors.Is(a.err, metadata.ErrCorrupt), code == codes.NotFound, code == codes.DataLoss: // other bytes came; or none
			s.silent.Delete(a.from.id)
		default:
			silent = true
			if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) { // else nobody has waited for it
				s.silent.Store(a.from.id, struct{}{})
			}
		}
		said = append(said, fmt.Errorf("%s: %w", a.from.id, a.err))
		ask()
	}
	if ctx.Err() != nil && len(peers) > 0 {
		return nil, "", ctx.Err()
	}
	err = metadata.Errorf(metadata.ErrCorrupt, "nobody else has the body %v: %v", r.Block, errors.Join(said...))
	if silent {
		err = fmt.Errorf("%w: %w", err, errUnanswered)
	}
	return nil, "", err
}

// inTurn is in which order others are asked.
func (s *Server) inTurn(peers bodyPeers) bodyPeers {
	var turn, last bodyPeers
	for _, n := range peers {
		if _, silent := s.silent.Load(n.id); silent {
			last = append(last, n)
		} else {
			turn = append(turn, n)
		}
	}
	return append(turn, last...)
}

func (n *bodyPeer) body(ctx context.Context, request *pb.BodyRequest, r *namespace.BodyRef) ([]byte, error) {
	answer, err := pb.NewMembershipClient(n.conn).Body(ctx, request)
	if err == nil {
		err = r.Verify(answer.GetData())
	}
	return answer.GetData(), err
}

// Body implements pb.MembershipServer: as this namenode has it, and nobody else is asked. What may pass is no answer: who asks may delete the file of a body that nobody has.
func (m *membership) Body(ctx context.Context, r *pb.BodyRequest) (*pb.BodyResponse, error) {
	if _, err := callerAs(ctx, authority.Namenode); err != nil {
		return nil, err
	}
	s := m.server
	applied := s.ns.AppliedIndex() // before the look
	found, err := s.ns.FindBody(metadata.BlockID(r.Id), metadata.Generation(r.Generation))
	switch {
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	case found == nil && applied < r.Applied:
		return nil, status.Errorf(codes.Unavailable, "there is no such body here yet: entry %d was applied, and %d where it is looked for", applied, r.Applied)
	case found == nil:
		return nil, status.Error(codes.NotFound, "there is no such body here")
	}
	pending := s.formerPending.Load() // before the look
	data, why, err := s.readBody(ctx, memberShare, found)
	switch err := cmp.Or(err, why); {
	case err == nil:
		return &pb.BodyResponse{Data: data}, nil
	case pending && proven(err):
		return nil, status.Errorf(codes.Unavailable, "%v; small files of before the state was lost are still to be looked through", err)
	case proven(err):
		return nil, status.Error(codes.DataLoss, err.Error())
	default:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
}

// SetSmallFiles implements namenode.SmallFiles.
func (s *Server) SetSmallFiles(c metadata.Caller, path string, policy namenode.SmallFilePolicy, done func(error)) {
	t, err := target(path)
	if err == nil {
		_, err = s.leading()
	}
	if err == nil && s.group.Level() < release.SmallFiles {
		err = metadata.Errorf(metadata.ErrUnsupported, "policies of small files need level %d of the cluster, which is at %d", release.SmallFiles, s.group.Level())
	}
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetStoragePolicy{SetStoragePolicy: &logpb.SetStoragePolicy{Target: t, SmallFiles: 1 + uint32(policy)}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// SmallFilesAt implements namenode.SmallFiles.
func (s *Server) SmallFilesAt(c metadata.Caller, path string, done func(namenode.SmallFilePolicy, bool, error)) {
	type said struct{ on, own bool }
	ask(s, &c, func(at said, err error) {
		policy := namenode.SmallFilesOff
		if at.on {
			policy = namenode.SmallFilesOn
		}
		done(policy, at.own, err)
	}, func() (at said, err error) {
		at.on, at.own, err = s.ns.SmallFilesAt(c, path, s.config.SmallFiles)
		return at, err
	})
}

// bodyToCut finds the body that a truncation cuts inside of, and how much of it is to stay; nil: it does not.
func (s *Server) bodyToCut(c metadata.Caller, path string, length int64) (body *namespace.BodyRef, stays int64, err error) {
	if n, _ := s.ns.Bodies(); n == 0 || length <= 0 {
		return nil, 0, nil
	}
	id, err := s.ns.Resolve(c, path)
	if err != nil {
		return nil, 0, nil // the command tells
	}
	f, ok := s.ns.FileByID(id)
	if !ok {
		return nil, 0, nil
	}
	stays = length
	for i, b := range f.Blocks {
		if stays < b.Length {
			if stays > 0 && f.IsBody(i) {
				body, err = s.ns.FindBody(b.ID, b.Generation)
			}
			break
		}
		stays -= b.Length
	}
	return body, stays, err
}

// cutBody truncates a file inside of a body: another one, of the bytes that stay, takes its place.
func (s *Server) cutBody(r *reign, c metadata.Caller, retry namenode.Retry, op *logpb.Truncate, body *namespace.BodyRef, stays int64, done func(bool, error)) {
	ctx, cancel := context.WithTimeout(s.watching, bodyPatience)
	defer cancel()
	data, err := s.bodyFor(ctx, c.User, body.Block.ID, body.Block.Generation)
	if err != nil {
		done(false, err)
		return
	}
	s.newBlock(r, blockID, func(b metadata.Block, err error) {
		if err != nil {
			done(false, err)
			return
		}
		op.NewBlock, op.RecoveryId, op.CutBody = int64(b.ID), uint64(b.Generation), int64(body.Block.ID)
		op.Data = data[:stays]
		op.Crc = crcOf(op.Data)
		e := newEnvelope()
		e.command.Op = &logpb.Command_Truncate{Truncate: op}
		s.change(&c, retry, e, func(result *namespace.Result, err error) {
			if err != nil && result != nil {
				s.expired(result.Expired)
			}
			done(err == nil && result.OK, err)
		})
	})
}
