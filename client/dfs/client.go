package dfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/kerberos"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// clientProtocol and its like are the protocols spoken.
const (
	clientProtocol         = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
	clientDatanodeProtocol = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"
)

// Config describes a Client. Only Namenodes is required.
type Config struct {
	// Namenodes are the IPC addresses, host:port each, of all namenodes of one file system.
	Namenodes []string
	// User acts; default: $HADOOP_USER_NAME, else the user of the process.
	User string
	// RealUser, if not empty, is who really runs this and acts for User; the cluster has to allow that.
	RealUser string
	// Token is a delegation token that proves to the namenodes who acts, whatever User says; nil: User is claimed.
	Token *token.Token
	// Refresh is Token as it is now, before it is shown on another connection: a program may live longer than its token. nil, or an answer
	// of nil: Token.
	Refresh func() *token.Token
	// Login, used without a Token, shows tickets of Kerberos to the namenodes, whatever User says; NamenodePrincipal is who they have
	// to be, where _HOST stands for the name of the host (dfs.namenode.kerberos.principal).
	Login             *kerberos.Login
	NamenodePrincipal string
	// Qualities of protection that are taken on connections on which a token or a ticket is shown, the preferred one first; default: any, the best
	// first (hadoop.rpc.protection).
	Qualities []sasl.Quality
	// Protection are the qualities of protection of which one is agreed on with datanodes before blocks move, the preferred one first
	// (dfs.data.transfer.protection); none: blocks move without, except for who shows a Token, which takes what the datanode offers.
	Protection []sasl.Quality
	// Name is the holder of the client's leases; it must not be shared by two clients. Default: a random one. Doors that
	// write for others put into it where they run (namenode.DoorWriter).
	Name string
	// Replication and BlockSize (bytes) of new files; default: what the server says. Servers refuse a replication that is
	// too large, and NoReplication.
	Replication int
	BlockSize   int64
	// Checksum is how the blocks of new files are checked (dfs.checksum.type, dfs.bytes-per-checksum); default: as the server says.
	Checksum ChecksumOption
	// Umask is cleared from the mode of new files and directories; nil means 022.
	Umask *metadata.Mode
	// UseHostname dials datanodes by host name in place of their address (dfs.client.use.datanode.hostname).
	UseHostname bool
	// DatanodeTimeout is how long a datanode may be silent before another one is tried. Default 60 s, as in Hadoop.
	DatanodeTimeout time.Duration
	// LeaveSilent is for who would rather do without some bytes than wait for the same datanode at each block: one that has said nothing for DatanodeTimeout, or could
	// not be reached, is read from no more until it has said a word, and what is nowhere else cannot be read until then. Default: it is asked last.
	LeaveSilent bool
	// CloseTimeout is how long Close, and the start of a new block, wait for the replicas of the last one. Default 60 s.
	CloseTimeout time.Duration
	// Unreachable is how long an operation tries when no namenode accepts a connection. Default 10 s; 1 s for a single
	// namenode that has never answered this client.
	Unreachable time.Duration
	// Leaderless is how long an operation tries while namenodes answer of which none leads; 0 is as long as the operation may take.
	Leaderless time.Duration
	// Waiting, if not nil, is called when an operation has been waiting for a namenode for a second and goes on waiting, with
	// the reason: that none answers, or that none leads. It must not block.
	Waiting func(why error)
	// Reads says which namenodes answer what changes nothing; default: the one that leads.
	Reads Reads
	// MaxStaleness, if not 0, has any namenode answer that can tell that its state contains everything that was acknowledged so long before, in whole
	// milliseconds, and everything that this client has seen (hops.client.max-staleness).
	MaxStaleness time.Duration
	// AutoMsync, for ReadAnywhere without MaxStaleness, is after how long a read is preceded by Msync: what others have done before that it shows. 0: none but
	// the first read is; less: each (dfs.client.failover.observer.auto-msync-period, where -1 and 0 say these two).
	AutoMsync time.Duration
	// ObserverRest is how long a namenode that does not lead and has failed to answer reads is left alone at the most. 0: 30 s; less: not at all
	// (dfs.client.failover.observer.probe.retry.period).
	ObserverRest time.Duration
	// Filesystem is the URI that the configuration names as the file system; it is told to who has given the address of a
	// port of another kind.
	Filesystem string
	// ReplaceDatanode says what happens when a datanode fails while a block is written.
	ReplaceDatanode ReplacePolicy
	// HedgedReads is how many reads may be under way that ask a second datanode because the first one is slow. 0 means 16,
	// -1 none (dfs.client.hedged.read.threadpool.size). HedgeAfter is after how long; 0 means three times what 99 of 100
	// requests take, between 50 ms and 1 s (dfs.client.hedged.read.threshold.millis).
	HedgedReads int
	HedgeAfter  time.Duration
	// NoSmallFiles makes and opens all files as Hadoop's clients do, also those whose bytes hops' namenodes would keep.
	NoSmallFiles bool
	// Dial connects to a server at addr, host:port, which has to be of the role "namenode" or "datanode". Default: as Roots
	// say.
	Dial func(ctx context.Context, role, addr string) (net.Conn, error)
	// Within connects to the datanode with this UUID if it runs in this process, for blocks that are written there; nil, or a nil
	// connection: it does not. A connection that has a method Lend(parts [][]byte) error may keep what it is given until the datanode has
	// answered or Close has returned.
	Within func(datanode string) net.Conn
	// DomainSocket is the path of the Unix-domain sockets of datanodes on this machine, with _PORT for the port of their TCP address
	// (dfs.domain.socket.path); empty: there are none. Datanodes of this machine are spoken to by them, and blocks are read by
	// descriptors that they hand over; where either cannot be done, TCP is the way.
	DomainSocket string
	// NoShortCircuit: blocks are not read by descriptors (dfs.client.read.shortcircuit). NoDomainTraffic: the sockets are for
	// descriptors alone (dfs.client.domain.socket.data.traffic).
	NoShortCircuit, NoDomainTraffic bool
	// Bearer is the user's token, which is shown to servers by TLS; nil, or empty: none. Default: that of `hops login`, where
	// Roots says that servers are known by it.
	Bearer func() string
	// Roots says how servers on other machines are known: the name of a file with the certificates of the cluster's
	// authorities in PEM (hops.cluster.roots); "none": they are not, and are spoken to in plain, in a network that is trusted;
	// empty: those of `hops login`. Servers on this machine are spoken to in plain.
	Roots string
	// Identity is the file with the machine's certificate and key (hops.cluster.identity). Who may read it, the servers' user and root,
	// speaks as a server of the machine, by any name; it does not count for others.
	Identity string
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

// Reads says which namenodes answer what changes nothing.
type Reads int

const (
	// ReadLeader: the one that leads. Reads are linearizable.
	ReadLeader Reads = iota
	// ReadAnywhere: any that has all that this client has seen, as observers of HDFS do: it sees what it has written itself, and never less than before.
	ReadAnywhere
)

// reading is how to read from namenodes that do not lead; nil: they are not asked.
func (c *Client) reading() *hrpc.Reading {
	if c.config.Reads == ReadLeader && c.config.MaxStaleness == 0 {
		return nil
	}
	return &hrpc.Reading{MaxStaleness: c.config.MaxStaleness, Sync: c.Msync, SyncEvery: c.config.AutoMsync, Rest: c.config.ObserverRest, Word: "getServerDefaults"}
}

// Client is a client of one file system. It is safe for concurrent use.
type Client struct {
	config Config
	umask  metadata.Mode
	name   string // holder of our leases
	log    *slog.Logger
	rpc    *hrpc.Failover
	peers  *peerPool
	ipc    *ipcPool
	local  *local
	leases *leaseRenewer

	packets, large sync.Pool // of *outPacket
	cells          sync.Pool // of *[]byte: buffers for the cells of stripes

	times    *times
	suspects *suspects
	hedging  *hedging
	stop     context.CancelFunc // ends what the client does by itself
	// mute, if not nil, knows datanodes that need not be asked for a word; only tests set it, where a busy machine must not
	// make others seem silent.
	mute func(*hadooppb.DatanodeInfoProto) bool

	defaultsMu   sync.Mutex
	defaults     *ServerDefaults
	defaultsTime time.Time

	encryption encryption
	small      smallFiles
	infos      ownCalls // getFileInfos
	publishes  ownCalls // publish
}

// clientCount makes the names of clients of one process different.
var clientCount atomic.Int64

// New makes a client. It connects when it is used first.
func New(config Config) (*Client, error) {
	if len(config.Namenodes) == 0 {
		return nil, fmt.Errorf("dfs: no namenode address is given: %w", metadata.ErrInvalidArgument)
	}
	if config.Replication < NoReplication || config.Replication > math.MaxInt16 {
		return nil, fmt.Errorf("dfs: replication %d is not in 1..%d: %w", config.Replication, metadata.MaxReplication, metadata.ErrInvalidArgument)
	}
	if config.DomainSocket != "" {
		if err := localsocket.CheckForm(config.DomainSocket); err != nil {
			return nil, fmt.Errorf("dfs: dfs.domain.socket.path: %w: %w", err, metadata.ErrInvalidArgument)
		}
	}
	if _, err := config.Checksum.over(dtp.DefaultChecksum); err != nil {
		return nil, fmt.Errorf("dfs: %w", err)
	}
	if s := config.MaxStaleness; s < 0 || s%time.Millisecond != 0 {
		return nil, fmt.Errorf("dfs: a staleness of %v is no number of milliseconds: %w", s, metadata.ErrInvalidArgument)
	}
	if config.BlockSize < 0 {
		return nil, fmt.Errorf("dfs: block size %d: %w", config.BlockSize, metadata.ErrInvalidArgument)
	}
	if config.Token != nil {
		id, err := token.ParseIdentifier(config.Token.Identifier)
		if err != nil {
			return nil, fmt.Errorf("dfs: %w", err)
		}
		config.User, config.RealUser = id.Owner, id.RealUser
	}
	if config.User == "" {
		config.User = currentUser()
	}
	if config.DatanodeTimeout == 0 {
		config.DatanodeTimeout = time.Minute
	}
	if config.CloseTimeout == 0 {
		config.CloseTimeout = time.Minute
	}
	c := &Client{
		config: config,
		umask:  0o022,
		name:   config.Name,
		log:    config.Logger,
	}
	if c.name == "" {
		c.name = fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_%d", rand.Int32(), clientCount.Add(1))
	}
	if config.Umask != nil {
		c.umask = *config.Umask
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if config.Dial == nil {
		var own *login.File
		if config.Roots == "" {
			var err error
			if own, err = login.Default(); err != nil {
				return nil, fmt.Errorf("dfs: %w", err)
			}
		}
		dialer, err := login.Dialer(config.Roots, own)
		if err != nil {
			return nil, fmt.Errorf("dfs: %w", err)
		}
		if i, err := authority.LoadIdentity(config.Identity); err == nil && config.Identity != "" {
			m, err := i.Member(time.Now)
			if err != nil {
				return nil, fmt.Errorf("dfs: %s: %w", config.Identity, err)
			}
			dialer = &security.Dialer{Member: m}
		}
		if own != nil && config.Bearer == nil {
			c.config.Bearer = func() string { return own.Token }
		}
		c.config.Dial = func(ctx context.Context, role, addr string) (net.Conn, error) {
			return dialer.Dial(ctx, addr, authority.Role(role))
		}
	}
	rpc, err := hrpc.NewFailover(hrpc.FailoverConfig{
		DialConfig:  c.dialConfig(clientProtocol, authority.Namenode),
		Addresses:   config.Namenodes,
		Unreachable: config.Unreachable,
		Leaderless:  config.Leaderless,
		Waiting:     config.Waiting,
		Leads: func(ctx context.Context, addr string) bool {
			state, err := c.haState(ctx, addr)
			return err == nil && state == "active"
		},
		Reading: c.reading(),
		Logger:  c.log,
	})
	if err != nil {
		return nil, fmt.Errorf("dfs: %w", err)
	}
	c.rpc = rpc
	c.ipc = newIPCPool()
	c.peers = newPeerPool(config.UseHostname, c.dialDatanode, c.secure)
	c.peers.within = config.Within
	c.local = newLocal(c)
	if c.local.near.Names() && !config.NoDomainTraffic {
		c.peers.near = c.local.dial
	}
	limits := defaultTimes
	limits.heartbeat = min(limits.heartbeat, config.DatanodeTimeout/2)
	limits.probe = min(limits.probe, config.DatanodeTimeout)
	c.times = &limits
	var life context.Context
	life, c.stop = context.WithCancel(context.Background())
	c.suspects = newSuspects(life, c.times)
	c.hedging = &hedging{times: c.times, after: config.HedgeAfter, most: max(firstSet(config.HedgedReads, defaultHedges), 0), credit: hedgeCredit}
	c.leases = newLeaseRenewer(c)
	return c, nil
}

// Close ends the client's connections. Files still open for writing are abandoned as if the process had died; their
// leases run out.
func (c *Client) Close() error {
	c.leases.stop()
	c.stop()
	c.suspects.close()
	c.peers.close()
	c.ipc.close()
	c.local.close()
	return c.rpc.Close()
}

// User is who acts.
func (c *Client) User() string { return c.config.User }

// Name is the client's name as the holder of leases.
func (c *Client) Name() string { return c.name }

// Home is the home directory of the user, by Hadoop's convention.
func (c *Client) Home() string { return "/user/" + c.config.User }

// Active is the address of the namenode that is asked first.
func (c *Client) Active() string { return c.rpc.Active() }

func currentUser() string {
	if name := os.Getenv("HADOOP_USER_NAME"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// call asks the namenode. op and name go into the error.
func (c *Client) call(ctx context.Context, op, name, method string, request, response hrpc.Message) error {
	return wrap(op, name, c.hinted(c.rpc.Call(ctx, clientProtocol, method, request, response)))
}

// read is call for what changes nothing, and may be answered by a namenode that does not lead if the client's Config says so.
func (c *Client) read(ctx context.Context, op, name, method string, request, response hrpc.Message) error {
	return wrap(op, name, c.hinted(c.rpc.Read(ctx, clientProtocol, method, request, response)))
}

// Msync has the client's later reads show all that anybody has been told is done by now, whichever namenode answers them.
func (c *Client) Msync(ctx context.Context) error {
	return c.call(ctx, "msync", "", "msync", new(hadooppb.MsyncRequestProto), new(hadooppb.MsyncResponseProto))
}

// hinted says what to do about an address where no namenode is.
func (c *Client) hinted(err error) error {
	if err == nil || len(c.config.Namenodes) > 1 {
		return err
	}
	addr := c.config.Namenodes[0]
	if _, wrong := errors.AsType[*hrpc.WrongPortError](err); wrong {
		if host, ok := strings.CutPrefix(c.config.Filesystem, "hdfs://"); ok && host != addr {
			return &unreachable{err, "the filesystem is " + c.config.Filesystem}
		}
		return &unreachable{err, "a namenode's port for clients is " + defaultPort + " unless it is configured otherwise"}
	}
	if _, none := errors.AsType[*hrpc.UnreachableError](err); none && errors.Is(err, syscall.ECONNREFUSED) {
		return &unreachable{err, "is the filesystem running there?"}
	}
	return err
}

// unreachable adds what to do about it to the error of a namenode that was not reached.
type unreachable struct {
	error
	hint string
}

func (u *unreachable) Error() string { return u.error.Error() + "; " + u.hint }
func (u *unreachable) Unwrap() error { return u.error }

// clean brings a path into the one form that goes on the wire.
func clean(op, name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", &Error{Op: op, Path: name, Kind: metadata.ErrInvalidPath, Message: "path is not absolute"}
	}
	if len(name) > metadata.MaxPathLength {
		return "", &Error{
			Op: op, Path: name[:100] + "...", Kind: metadata.ErrInvalidPath,
			Message: fmt.Sprintf("path of %d characters, %d are allowed", len(name), metadata.MaxPathLength),
		}
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", &Error{Op: op, Path: strings.ReplaceAll(name, "\x00", "?"), Kind: metadata.ErrInvalidPath, Message: "path with a zero byte"}
	}
	return path.Clean(name), nil
}

// ChecksumOption says how the blocks of a file are checked. What is not set is as the client's Config says, then the server. A block keeps
// what it was written with; bytes that others append to it are checked the same.
type ChecksumOption struct {
	// Type is CRC32C, CRC32, or NULL, with which what is on its way to the datanodes is not checked; there it is, in every case.
	Type string
	// BytesPer is how many bytes a checksum covers; it has to divide the block size.
	BytesPer int
}

// over completes an option by what a checksum is else.
func (o ChecksumOption) over(c dtp.Checksum) (dtp.Checksum, error) {
	if o.Type != "" {
		var ok bool
		if c.Type, ok = dtp.ParseChecksumType(o.Type); !ok {
			return c, metadata.Errorf(metadata.ErrInvalidArgument, "checksum type %q is none of CRC32C, CRC32 and NULL", o.Type)
		}
	}
	if o.BytesPer != 0 {
		c.BytesPer = o.BytesPer
	}
	if c.BytesPer <= 0 || c.BytesPer > dtp.MaxChunk {
		return c, metadata.Errorf(metadata.ErrInvalidArgument, "Invalid values: dfs.bytes-per-checksum (=%d) is not in 1..%d.", c.BytesPer, dtp.MaxChunk)
	}
	return c, nil
}

// checksum is how new blocks are checked.
func (c *Client) checksum(d ServerDefaults, o ChecksumOption) (dtp.Checksum, error) {
	sum := dtp.DefaultChecksum
	if d.BytesPerChecksum > 0 {
		sum = dtp.Checksum{Type: d.ChecksumType, BytesPer: d.BytesPerChecksum}
	}
	sum, err := c.config.Checksum.over(sum)
	if err == nil {
		sum, err = o.over(sum)
	}
	return sum, err
}
