package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Config configures a server.
type Config struct {
	// Store has the replicas. Nil: blocks are only read here, from Source.
	Store datanode.BlockStore
	// Source is what is read of where there is no Store.
	Source Source
	// UUID is this datanode's, and Move puts a replica of the Store on another of its volumes, of a type, while pace lets it; for balancers of Hadoop, who have no more than
	// Bandwidth bytes a second: nil, or 0, is HDFS's default.
	UUID      string
	Move      func(ctx context.Context, b metadata.Block, kind datanode.StorageType, pace func(n int64) error) error
	Bandwidth func() int64
	// MendRate bytes a second are sent at most to where replicas are missing; 0: no limit.
	MendRate int64
	// Trust says whose requests are served and where data may be sent.
	Trust Trust
	// BlockPool returns the pool that blocks must be of, empty while it is not known; nil accepts all.
	BlockPool func() string
	// Broken hears of replicas that this server could not read, or that did not match their checksums. It must not block;
	// nil does nothing.
	Broken func(id metadata.BlockID)
	// Answers reports whether the disk of a replica answers, once that is known; nil: all do. Who asks for no byte of a block wants to know that.
	Answers func(ctx context.Context, id metadata.BlockID) bool
	// Silent reports whether the disk of a replica is known not to answer; nil: all answer. Work that few may do at a time is left behind there.
	Silent func(id metadata.BlockID) bool
	// Mute says why nobody should wait for the bytes of a replica, as its disk does not answer at the moment; nil: all do. GaveUp reports whether the volume of a replica was given
	// up; nil: none was. Who calls HangUp when they begin to say so spares clients to wait.
	Mute   func(id metadata.BlockID) error
	GaveUp func(id metadata.BlockID) bool
	// Accused hears of replicas of which a client says that they do not match their checksums, and whose share the client's
	// connection uses. It must not block; nil does nothing.
	Accused func(id metadata.BlockID, user uint32)
	// Protection are the qualities of protection of which one has to be agreed on by a handshake of SASL, with clients and between
	// datanodes (dfs.data.transfer.protection); none: requests are served without. Encrypt asks for encryption, whatever Protection says
	// (dfs.encrypt.data.transfer). Prove reports whether a peer has to begin with a handshake all the same; nil: none has.
	Protection []sasl.Quality
	Encrypt    bool
	Prove      func(net.Conn) bool
	// UseHostnames makes the server find other datanodes by name instead of by address.
	UseHostnames bool
	// FirstRequest and KeepAlive are how long a connection may wait for its first and for a further request. 0 is 60 s and
	// 4 s, HDFS's values; clients keep idle connections for 3 s.
	FirstRequest, KeepAlive time.Duration
	// Read and Write limit how long a peer may be silent or not take data inside a request. 0 is 60 s, with 5 s more for
	// each datanode behind, and 480 s.
	Read, Write time.Duration
	// Packets bounds the memory of packets that are received, of all connections together; nil: the process's budget. Share
	// says whose share of it a connection uses; nil: that of this process's user.
	Packets *security.Budget
	Share   func(net.Conn) uint32
	// Unwelcome says why a connection is not served, on which a handshake of SASL has proved something or not; nil: every one is. It is asked
	// with a connection's first request.
	Unwelcome func(c net.Conn, proved bool) error
	// Dial connects to another datanode; nil: in plain.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Near connects to a datanode of this machine, by a way that never leaves it; nil, or a nil connection: there is none.
	Near func(ctx context.Context, addr string) net.Conn
	// Shared bounds the memory that readers on this machine share with the server; nil: the process's budget.
	Shared *security.Budget
	// Refused is told of requests without a right to their block, for the audit log; may be nil.
	Refused func(security.Decision)
	// Slow is told of disks, and of other datanodes, that take too long; nil: nobody is.
	Slow *slowlog.Log
	// Connect limits the dialling of another datanode, with the handshakes. 0 is 10 s.
	Connect time.Duration
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Source is the part of a datanode.BlockStore that reads need.
type Source interface {
	Open(b metadata.Block) (datanode.Reader, error)
	Wait(ctx context.Context, id metadata.BlockID, length int64)
}

// perHop is what each datanode further down a pipeline adds to the time-outs.
const perHop = 5 * time.Second

// Server is the data transfer side of a datanode.
type Server struct {
	cfg    Config
	store  datanode.BlockStore // nil: blocks are only read
	source Source
	log    *slog.Logger
	active atomic.Int64
	served sync.WaitGroup
	// mirrors are idle connections to other datanodes.
	mirrors mirrors
	// balancing is the pace of copies for the balancer.
	balancing pace.Budget
	replacing chan struct{} // maxReplacing at a time
	// mending is the pace of copies that mend, and of reads to compute internal blocks.
	mending pace.Budget
	slow    slow
	// recalculating bounds the checksums of lost internal blocks that are computed at a time.
	recalculating chan struct{}
	sheets        *sheets
	slots         *slots
	counts        counts
	growWait      time.Duration // the constant, more in tests
	stall, word   time.Duration // the constants, others in tests

	mu    sync.Mutex
	conns map[net.Conn]*conn // by what was accepted
	down  bool
	// serving is the context of Serve; nil: it does not run yet.
	serving context.Context
}

// New builds a server.
func New(cfg Config) *Server {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&cfg.FirstRequest, 60*time.Second)
	set(&cfg.KeepAlive, 4*time.Second)
	set(&cfg.Read, 60*time.Second)
	set(&cfg.Write, 480*time.Second)
	set(&cfg.Connect, 10*time.Second)
	if cfg.Packets == nil {
		cfg.Packets = security.Packets()
	}
	if cfg.Shared == nil {
		cfg.Shared = security.Shared()
	}
	if cfg.Share == nil {
		cfg.Share = func(net.Conn) uint32 { return uint32(os.Geteuid()) }
	}
	if cfg.Unwelcome == nil {
		cfg.Unwelcome = func(net.Conn, bool) error { return nil }
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Store != nil {
		cfg.Source = cfg.Store
	}
	return &Server{
		cfg: cfg, store: cfg.Store, source: cfg.Source, log: cfg.Logger, conns: map[net.Conn]*conn{},
		balancing: pace.Budget{Burst: pace.Burst}, mending: pace.Budget{Burst: pace.Burst},
		mirrors: mirrors{keep: cfg.KeepAlive * 3 / 4, idle: map[string][]*peer{}},
		slow:    newSlow(cfg.Slow), recalculating: make(chan struct{}, maxRecalculating), replacing: make(chan struct{}, maxReplacing),
		sheets: newSheets(cfg.Shared), slots: newSlots(), growWait: growWait, stall: stallTime, word: wordTime,
	}
}

// Active is the number of connections being served, HDFS's xceivers.
func (s *Server) Active() int { return int(s.active.Load()) }

// Serve accepts connections until ctx is done, then cuts them off and returns nil when all handlers have ended.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		for _, l := range listeners {
			l.Close()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.down = true
		for c := range s.conns {
			c.Close()
		}
	})
	defer stop()
	defer s.sheets.close()
	defer s.mirrors.close()
	defer func() {
		s.mu.Lock()
		s.down = true // also for Within
		s.mu.Unlock()
		s.served.Wait()
	}()
	s.mu.Lock()
	s.serving = ctx
	s.mu.Unlock()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.accept(ctx, l) }()
	}
	var err error
	for range listeners {
		if e := <-ended; e != nil && err == nil {
			err = e
			for _, l := range listeners {
				l.Close() // one that is broken ends the others
			}
		}
	}
	return err
}

// accept serves the connections of a listener.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	for {
		nc, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || isTooManyFiles(err) {
				s.log.Warn("data transfer connection not accepted", "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			return fmt.Errorf("data transfer listener: %w", err)
		}
		c := newConn(s, nc)
		if !s.track(c) {
			nc.Close()
			continue
		}
		s.served.Go(func() {
			defer s.untrack(nc)
			c.serve(ctx)
		})
	}
}

// track registers a connection to be closed at shutdown; false when that has begun.
func (s *Server) track(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return false
	}
	s.conns[c.nc] = c
	s.active.Add(1)
	return true
}

func (s *Server) untrack(nc net.Conn) {
	nc.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[nc]; ok {
		delete(s.conns, nc)
		s.active.Add(-1)
	}
}

// conn is one accepted connection.
type conn struct {
	*Server
	nc net.Conn
	r  *bufio.Reader
	// proved: the peer has begun with a handshake; unproved: it should have, and has not.
	proved, unproved bool
	own              bool // of this process itself (Within)
	near             bool // it never leaves this machine: a Unix-domain socket
	// work is what the request under way is about; nil between requests, and when it was hung up on.
	work atomic.Pointer[work]
}

// idleBuffer is the buffer that requests are read through, and acknowledgements: both are small.
const idleBuffer = 4 << 10

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{Server: s, nc: nc, r: bufio.NewReaderSize(nc, idleBuffer), near: security.Local(nc) != nil}
}

// share is whose share of what is limited the connection uses.
func (c *conn) share() uint32 {
	if c.own {
		return uint32(os.Geteuid())
	}
	return c.cfg.Share(c.nc)
}

// errDone ends a connection without anything to say about it.
var errDone = errors.New("connection is done")

// serve serves a connection to its end. A panic ends that connection, not the datanode.
func (c *conn) serve(ctx context.Context) {
	defer func() {
		if what := recover(); what != nil {
			c.log.Error("a mistake of this program: a data transfer panicked; please report it", "remote", c.nc.RemoteAddr().String(), "panic", what, "stack", string(debug.Stack()))
		}
	}()
	wait := c.cfg.FirstRequest
	c.deadlines(wait, c.cfg.Write)
	if c.near {
		c.counts.near.Add(1)
	}
	if err := c.secure(ctx); err != nil {
		c.log.Warn("data transfer handshake refused", "remote", c.nc.RemoteAddr().String(), "err", err)
		return
	}
	for {
		c.deadlines(wait, c.cfg.Write)
		op, request, err := dtp.ReadOp(c.r)
		if err != nil {
			if errors.Is(err, dtp.ErrProtocol) {
				c.log.Warn("data transfer request refused", "remote", c.nc.RemoteAddr().String(), "err", err)
			}
			return
		}
		if err := c.dispatch(ctx, op, request); err != nil {
			if !errors.Is(err, errDone) && ctx.Err() == nil {
				c.log.Info("data transfer ended", "op", op.String(), "remote", c.nc.RemoteAddr().String(), "err", err)
			}
			return
		}
		wait = c.cfg.KeepAlive
	}
}

// dispatch serves one request. Nil means that another one may follow on the connection.
func (c *conn) dispatch(ctx context.Context, op dtp.Op, request dtp.Message) error {
	c.deadlines(c.cfg.Read, c.cfg.Write)
	header, mode := blockOfRequest(request)
	if c.unproved {
		err := metadata.Errorf(metadata.ErrUnauthorized, "this datanode takes requests only after a handshake of SASL, with protection %s: set dfs.data.transfer.protection, or connect by TLS", sasl.FormatQualities(c.qualities()))
		c.refused(op, header, err)
		return c.refuse(op, hadooppb.Status_ERROR, "", err)
	}
	switch m := request.(type) {
	case *hadooppb.ShortCircuitShmRequestProto:
		return c.shareSlots(m)
	case *hadooppb.ReleaseShortCircuitAccessRequestProto:
		return c.releaseSlot(m)
	}
	if mode == 0 {
		return c.refuse(op, hadooppb.Status_ERROR_UNSUPPORTED, "", metadata.Errorf(metadata.ErrUnsupported, "%v is not supported", op))
	}
	var err error
	if !c.own {
		err = c.cfg.Unwelcome(c.nc, c.proved)
	}
	if err == nil {
		err = c.authorize(ctx, header, mode)
		if err != nil && wantsWord(request) && c.authorize(ctx, header, security.WriteBlock) == nil {
			err = nil
		}
	}
	if err != nil {
		c.refused(op, header, err)
		err = c.refuse(op, hadooppb.Status_ERROR_ACCESS_TOKEN, "", err)
		if w, ok := request.(*hadooppb.OpWriteBlockProto); ok && follows(w) {
			c.linger()
		}
		return err
	}
	w := &work{metadata.BlockID(header.GetBlock().GetBlockId()), mode == security.ReadBlock || mode == security.CopyBlock}
	c.work.Store(w)
	defer c.work.Store(nil)
	if err := c.silent(w, request); err != nil {
		return c.refuseSilent(op, err)
	}
	switch m := request.(type) {
	case *hadooppb.OpReadBlockProto:
		return c.read(ctx, m)
	case *hadooppb.OpBlockChecksumProto:
		return c.checksum(m)
	}
	if c.store == nil {
		err := c.refuse(op, hadooppb.Status_ERROR_UNSUPPORTED, "", metadata.Errorf(metadata.ErrUnsupported, "%v is not supported here: blocks are only read", op))
		if w, ok := request.(*hadooppb.OpWriteBlockProto); ok && follows(w) {
			c.linger()
		}
		return err
	}
	switch m := request.(type) {
	case *hadooppb.OpWriteBlockProto:
		return c.write(ctx, m)
	case *hadooppb.OpTransferBlockProto:
		return c.transfer(ctx, m)
	case *hadooppb.OpRequestShortCircuitAccessProto:
		return c.shortCircuit(m)
	case *hadooppb.OpBlockGroupChecksumProto:
		return c.groupChecksum(ctx, m)
	case *hadooppb.OpReplaceBlockProto:
		return c.replace(ctx, m)
	case *hadooppb.OpCopyBlockProto:
		return c.copyBlock(ctx, m)
	}
	return c.refuse(op, hadooppb.Status_ERROR_UNSUPPORTED, "", metadata.Errorf(metadata.ErrUnsupported, "%v is not supported", op))
}

// refuse answers a request with an error; the connection ends.
func (c *conn) refuse(op dtp.Op, status hadooppb.Status, badLink string, cause error) error {
	return c.refuseWith(op, dtp.Failure(status, badLink, cause.Error()), cause)
}

func (c *conn) refuseWith(op dtp.Op, answer *hadooppb.BlockOpResponseProto, cause error) error {
	if err := dtp.WriteResponse(c.nc, answer); err != nil {
		return fmt.Errorf("%w; and the answer could not be sent: %w", cause, err)
	}
	c.log.Info("data transfer request failed", "op", op.String(), "remote", c.nc.RemoteAddr().String(), "status", answer.GetStatus().String(), "err", cause)
	return errDone
}

// statusOf is the wire's word for an error.
func statusOf(err error) hadooppb.Status {
	switch {
	case errors.Is(err, metadata.ErrCorrupt), errors.Is(err, dtp.ErrChecksum):
		return hadooppb.Status_ERROR_CHECKSUM
	case errors.Is(err, metadata.ErrUnsupported):
		return hadooppb.Status_ERROR_UNSUPPORTED
	default:
		return hadooppb.Status_ERROR
	}
}

// deadlines limits how long the peer may be silent and how long it may take no data, from now.
func (c *conn) deadlines(read, write time.Duration) {
	now := time.Now()
	_ = c.nc.SetReadDeadline(now.Add(read))
	_ = c.nc.SetWriteDeadline(now.Add(write))
}

// blockOf converts the block of a request and refuses one of another pool.
func (s *Server) blockOf(b *hadooppb.ExtendedBlockProto) (metadata.Block, error) {
	if s.cfg.BlockPool != nil {
		if pool := s.cfg.BlockPool(); pool != "" && b.GetPoolId() != pool {
			return metadata.Block{}, metadata.Errorf(metadata.ErrInvalidArgument, "block pool %q is not served here, %q is", b.GetPoolId(), pool)
		}
	}
	if b.GetGenerationStamp() == 0 {
		return metadata.Block{}, metadata.Errorf(metadata.ErrInvalidArgument, "block %d has no generation stamp", b.GetBlockId())
	}
	length := int64(b.GetNumBytes())
	if length < 0 {
		return metadata.Block{}, metadata.Errorf(metadata.ErrInvalidArgument, "block %d has length %d", b.GetBlockId(), length)
	}
	return metadata.Block{ID: metadata.BlockID(b.GetBlockId()), Generation: metadata.Generation(b.GetGenerationStamp()), Length: length}, nil
}

// protoOf is the block as a request names it.
func protoOf(pool string, b metadata.Block) *hadooppb.ExtendedBlockProto {
	return &hadooppb.ExtendedBlockProto{
		PoolId:          &pool,
		BlockId:         new(uint64(b.ID)),
		GenerationStamp: new(uint64(b.Generation)),
		NumBytes:        new(uint64(b.Length)),
	}
}

func isTooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
