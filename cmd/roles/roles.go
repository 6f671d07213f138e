// Package roles makes running servers of a configuration: the one place where the services meet. `hops server` runs one
// role a process, `hops dev` all of them in one; both are made here.
package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode/server"
)

// Builder makes the roles of one process. Set its fields, then call the roles' methods in the order in which they depend
// on each other: namenode, datanode, resource manager, node manager.
type Builder struct {
	// File is the whole configuration.
	File *config.File
	// Path is where File was read from; datanodes follow its list of namenodes. Empty: nothing is followed.
	Path string
	// Bootstrap makes a new cluster.
	Bootstrap bool
	// Executable is the hops program, which containers are started with.
	Executable string
	// Version is shown to users.
	Version string
	// Credentials and Door are the process's.
	Credentials security.Credentials
	Door        *security.Door
	// Timers of the Raft groups; zero: raftstore's defaults.
	Timers raftstore.Timers
	// Disk is what the volumes of datanodes lie on; nil: the machine's file systems.
	Disk vfs.FS
	// Listen opens a listener for a configured address; nil: Listen.
	Listen func(addr string) (net.Listener, error)
	// Alone: one process is the whole cluster, so containers end with it.
	Alone  bool
	Logger *slog.Logger
	// OnFatal ends the process, which must not go on, with a reason: a disk of a Raft group has failed. Nil: raftstore's, which logs it and exits.
	OnFatal func(error)

	membership *membership

	hosts   map[string]*raftstore.Host // by address
	audited bool                       // Door has an audit log
	volumes []string                   // of the datanodes made so far
	awaited []<-chan struct{}          // closed when a role that was made is of use
}

// New makes a builder of a configuration: it loads the secret and the identity, which Bootstrap makes if need be.
func New(file *config.File, bootstrap bool, executable, version string, logger *slog.Logger) (*Builder, error) {
	return NewAt(file, bootstrap, executable, version, logger, nil)
}

// NewAt is New for tests, which say what they take for this machine.
func NewAt(file *config.File, bootstrap bool, executable, version string, logger *slog.Logger, here func(remote, local netip.Addr) bool) (*Builder, error) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(file.Cluster.Identity), authorityFile)); err == nil {
		bootstrap = true // no namenode has served this cluster yet
	}
	var secret security.Secret
	if file.Cluster.SecretFile != "" {
		var err error
		if secret, err = security.LoadOrCreateSecret(file.Cluster.SecretFile, bootstrap); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("%w; copy it from another server of the cluster, or start the first one with --bootstrap", err)
			}
			return nil, err
		}
	}
	members, err := newMembership(file, logger)
	if errors.Is(err, os.ErrNotExist) {
		if !bootstrap {
			return nil, fmt.Errorf("%w; let this machine join (`hops join`), or start the first server of a new cluster with --bootstrap", err)
		}
		if err = found(file); err == nil {
			members, err = newMembership(file, logger)
		}
	}
	if err != nil {
		return nil, err
	}
	var groups func(string) []string // nil: those of the system
	if file.Users.GroupsFile != "" {
		if groups, err = security.GroupsFile(file.Users.GroupsFile, logger); err != nil {
			return nil, err
		}
	}
	properties := file.HadoopProperties()
	negotiator, err := negotiator(properties.Kerberos)
	if err != nil {
		return nil, err
	}
	networks, err := file.Clients.Networks()
	if err != nil {
		return nil, err
	}
	if len(networks) > 0 {
		status.Notices = []string{fmt.Sprintf("CLIENTS FROM %s ARE BELIEVED WITHOUT PROOF: whoever can send from there is whoever they say, the superuser too (clients.simple of hops.yaml)", strings.Join(file.Clients.Simple, ", "))}
		logger.Warn(status.Notices[0])
	}
	member := members.keeper.Member
	return &Builder{
		File: file, Bootstrap: bootstrap, Executable: executable, Version: version, Credentials: security.Credentials{Secret: secret, Member: member, Here: here}, Logger: logger,
		Door: security.NewDoor(security.Config{
			Supergroup: properties.Supergroup, ProxyUsers: properties.ProxyUsers, Member: member, Simple: networks, Hosts: file.Cluster.Hosts, Here: here,
			Groups: groups, Negotiator: negotiator, Users: members.users, Logger: logger,
		}),
		membership: members,
	}, nil
}

// found makes the authority of a new cluster, and the identity of this machine, which is the first one and may be everything.
func found(file *config.File) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	addresses := slices.Concat([]string{"localhost", "127.0.0.1", "::1", file.Cluster.Address}, file.Cluster.Hosts)
	return Found(file.Cluster.Identity, host, authority.Roles, addresses)
}

// Found makes the authority of a new cluster, and the identity of its first machine. The namenode takes the authority into the
// register, and the file goes. Several servers may do so at the same time.
func Found(path, machine string, may []authority.Role, addresses []string) error {
	file := filepath.Join(filepath.Dir(path), authorityFile)
	a, err := authority.New("CID-"+uuid.NewString(), time.Now())
	if err != nil {
		return err
	}
	err = a.Create(file)
	mine := err == nil
	if errors.Is(err, os.ErrExist) {
		a, err = readAuthority(file)
	}
	if err != nil {
		return err
	}
	i, err := a.Self(machine, may, addresses, time.Now())
	if err != nil {
		return err
	}
	err = i.Create(path)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if !mine {
		return nil
	}
	there, err := authority.LoadIdentity(path)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there.Roots, a.Root().Equal) { // another one was faster, and its authority is in the register already
		return os.Remove(file)
	}
	return nil
}

func readAuthority(file string) (*authority.Authority, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	a, err := authority.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return a, nil
}

// founding is what a new cluster begins with, if this machine has made it.
func (b *Builder) founding() (*server.Founding, error) {
	a, err := readAuthority(b.authorityFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := b.Credentials.Member
	if authority.FingerprintOf(a.Root()) != m.Issuer() {
		return nil, fmt.Errorf("%s did not issue this machine's certificate: it is of another cluster", b.authorityFile())
	}
	return &server.Founding{Authority: a, First: server.Founder(m.Self(), m.Certificate(), time.Now())}, nil
}

// founded removes the file of the authority, which the register has, sealed.
func (b *Builder) founded(t *authority.Trust) {
	file := b.authorityFile()
	a, err := readAuthority(file)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil && !slices.ContainsFunc(t.Roots, a.Root().Equal) {
		err = errors.New("it is not this cluster's")
	}
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		b.Logger.Warn("the file of an authority stays where it is", "file", file, "error", err)
		return
	}
	b.Logger.Info("the cluster's authority is in the register, and its file is gone", "file", file)
}

func (b *Builder) authorityFile() string {
	return filepath.Join(filepath.Dir(b.File.Cluster.Identity), authorityFile)
}

// authorityFile is beside the identity of the first machine.
const authorityFile = "authority.pem"

// Awaited is a part to be the last one, which is ready when every datanode and node manager that was made is of use: when those
// that it serves know it. Nothing waits for that but who is told that the process is ready: a node manager, say, must speak
// to its resource manager whether or not there is a namenode.
func (b *Builder) Awaited() program.Part {
	ready := make(chan struct{})
	return program.Part{Name: "registration", Ready: ready, Run: func(ctx context.Context) error {
		for _, useful := range b.awaited {
			select {
			case <-useful:
			case <-ctx.Done():
				return nil
			}
		}
		close(ready)
		<-ctx.Done()
		return nil
	}}
}

// listeners opens several, or none.
func (b *Builder) listeners(addrs ...string) ([]net.Listener, error) {
	var open []net.Listener
	for _, a := range addrs {
		l, err := b.listen(a)
		if err != nil {
			for _, l := range open {
				l.Close()
			}
			return nil, err
		}
		open = append(open, l)
	}
	return open, nil
}

// host is the Raft host at an address; groups of the process at one address share it.
func (b *Builder) host(role authority.Role, id, addr, dir string, reserve int64, slow *slowlog.Log) (*raftstore.Host, []program.Part, error) {
	if h := b.hosts[addr]; h != nil {
		return h, nil, nil
	}
	l, err := b.listeners(addr)
	if err != nil {
		return nil, nil, err
	}
	h, err := raftstore.NewHost(raftstore.HostConfig{
		ID: id, Listener: l[0], Advertise: addr, Dir: dir, Credentials: b.Credentials, Role: role, Door: b.Door, Logger: b.Logger, Reserve: reserve, SlowAppend: slow.Operation("append", slow.Limits.Append),
		OnFatal: b.OnFatal,
	})
	if err != nil {
		l[0].Close()
		return nil, nil, err
	}
	if b.hosts == nil {
		b.hosts = map[string]*raftstore.Host{}
	}
	b.hosts[addr] = h
	return h, []program.Part{{Name: "raft", Run: h.Run}}, nil
}

// slow is where a role tells what takes too long.
func (b *Builder) slow() *slowlog.Log {
	limits := b.File.Slow
	return &slowlog.Log{Limits: slowlog.Limits{RPC: limits.RPC, IO: limits.IO, Append: limits.Append}, Logger: b.Logger}
}

// audit gives the process an audit log, if it has none: dir is the role's own directory.
func (b *Builder) audit(role, dir string) ([]program.Part, error) {
	if b.File.Audit.Dir != "" {
		dir = b.File.Audit.Dir
	}
	if b.audited {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	a, err := security.OpenAudit(security.AuditConfig{Path: filepath.Join(dir, role+"-audit.log"), Reads: b.File.Audit.Reads, Size: int64(b.File.Audit.Size), Keep: b.File.Audit.Keep, Logger: b.Logger})
	if err != nil {
		return nil, err
	}
	b.audited = true
	b.Door.SetAudit(a)
	return []program.Part{{Name: "audit log", Run: a.Run}}, nil
}

// FSURI is the filesystem's URI: the namenode's address, or with several the cluster's name, which clients resolve by
// their configuration.
func FSURI(f *config.File) string {
	if len(f.Namenodes) == 1 {
		return "hdfs://" + f.Namenodes[0].IPC
	}
	return "hdfs://" + f.Cluster.Name
}

func namenodes(f *config.File, address func(config.NamenodeMember) string) []string {
	var out []string
	for _, n := range f.Namenodes {
		out = append(out, address(n))
	}
	return out
}

func managers(f *config.File, address func(config.ManagerMember) string) []string {
	var out []string
	for _, m := range f.ResourceManagers {
		out = append(out, address(m))
	}
	return out
}

// ipc are the namenodes' addresses for Hadoop's protocol.
func ipc(f *config.File) []string {
	return namenodes(f, func(n config.NamenodeMember) string { return n.IPC })
}

// ipc are those of now.
func (b *Builder) ipc() []string {
	return ipc(&config.File{Namenodes: b.membership.now().Namenodes})
}

// filesystem is a client of the cluster's filesystem for a user; empty is the user of this process.
func (b *Builder) filesystem(user string) (*dfs.Client, error) {
	return dfs.New(dfs.Config{Namenodes: b.ipc(), User: user, Protection: b.File.HadoopProperties().TransferProtection, DomainSocket: b.File.SocketPath(b.File.Datanode), Dial: b.dial, Logger: b.Logger, Unreachable: 30 * time.Second})
}

// outdated is how long a client of the namenodes of before stays open for who has got it: longer than a call takes.
const outdated = 5 * time.Minute

// keptFilesystem gives a client of this process's user that is kept while the namenodes are the same.
func (b *Builder) keptFilesystem() func() (*dfs.Client, error) {
	var mu sync.Mutex
	var kept *dfs.Client
	var of []string
	return func() (*dfs.Client, error) {
		mu.Lock()
		defer mu.Unlock()
		now := b.ipc()
		if kept != nil && slices.Equal(of, now) {
			return kept, nil
		}
		c, err := b.filesystem("")
		if err != nil {
			return nil, err
		}
		if old := kept; old != nil {
			time.AfterFunc(outdated, func() {
				if err := old.Close(); err != nil {
					b.Logger.Debug("a client of the namenodes of before", "error", err)
				}
			})
		}
		kept, of = c, now
		return c, nil
	}
}

// dial connects to another server of the cluster.
func (b *Builder) dial(ctx context.Context, role, addr string) (net.Conn, error) {
	return b.Credentials.Dialer().Dial(ctx, addr, authority.Role(role))
}

// directoriesEvery is how often the system directories are looked after.
const directoriesEvery = 30 * time.Second

// directories keeps the directories there that every user needs, beside a namenode. A new cluster gets all of them; later those
// that are protected (fs.protected.directories) are made when they are missing, whoever removed them. Those that are there
// stay as they are.
func (b *Builder) directories(ctx context.Context) error {
	own := directoriesConfig(b.File, b.Logger)
	own.Dial = b.dial
	fs, err := dfs.New(own)
	if err != nil {
		return err
	}
	defer fs.Close()
	wanted := b.File.HadoopProperties().Protected
	if b.Bootstrap {
		wanted = config.SystemDirectories
	}
	for pause := 100 * time.Millisecond; ; {
		err := makeDirectories(ctx, fs, wanted)
		if err == nil {
			wanted, pause = b.File.HadoopProperties().Protected, directoriesEvery
		} else if ctx.Err() == nil {
			b.Logger.Debug("the system directories cannot be made now", "err", err)
			pause = min(2*pause, 5*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// directoriesConfig is of a client whose directories get the modes that are asked for.
func directoriesConfig(f *config.File, logger *slog.Logger) dfs.Config {
	return dfs.Config{Namenodes: ipc(f), Umask: new(metadata.Mode(0)), DomainSocket: f.SocketPath(f.Datanode), Logger: logger, Unreachable: 30 * time.Second}
}

// makeDirectories makes those system directories that are wanted and missing, and the home of the servers' user with /user. Each is made
// with its mode by one change: those that are there are left alone, also ones that somebody was interrupted at.
func makeDirectories(ctx context.Context, fs *dfs.Client, wanted []string) error {
	for _, d := range config.SystemDirectories {
		if !slices.Contains(wanted, d) {
			continue
		}
		if _, err := fs.Stat(ctx, d); !errors.Is(err, metadata.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		name, mode := d, metadata.Mode(0o1777)
		if d == "/user" {
			name, mode = fs.Home(), 0o755
		}
		if err := fs.Mkdirs(ctx, name, mode, true); err != nil {
			return err
		}
	}
	return nil
}
