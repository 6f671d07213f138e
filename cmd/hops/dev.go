package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/roles"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/program"
	"github.com/gohops/hops/internal/security"
	nmserver "github.com/gohops/hops/nodemanager/server"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run a whole cluster in this process, for one workstation",
		Description: "hops dev                        a cluster whose data stays in the cache directory\n" +
			"hops dev --ephemeral --ports random --gpus sim:4\n" +
			"hops dev -D dfs.replication=1 -D fs.trash.interval=60\n\n" +
			"Everything listens on loopback. DIR/conf holds core-site.xml, hdfs-site.xml and yarn-site.xml:\n" +
			"HADOOP_CONF_DIR=DIR/conf points every Hadoop client, and hops itself, at the cluster.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Usage: "`DIR` for all data, an empty or a new one; default: hops/dev in the user's cache directory"},
			&cli.BoolFlag{Name: "ephemeral", Usage: "keep the data in a temporary directory that is removed at the end"},
			&cli.IntFlag{Name: "datanodes", Value: 3, Usage: "`NUMBER` of datanodes"},
			&cli.StringFlag{Name: "gpus", Value: "auto", Usage: "`WHICH`: auto, none, sim:N, or a file that describes simulated ones"},
			&cli.StringFlag{Name: "ports", Value: "default", Usage: "`PORTS`: default, random, or the first of a range"},
			&cli.StringSliceFlag{Name: "D", Usage: "server setting under Hadoop's name, `NAME=VALUE`; may be repeated"},
			&cli.StringFlag{Name: "log-level", Value: "warn", Usage: "`LEVEL`: debug, info, warn or error"},
		},
		Action: runDev,
	}
}

// The ports of contracts: default, and for --ports BASE the distance from the base.
var devPorts = struct {
	ipc, http, rm, nm, grpc, raft, rmGRPC, rmIPC, nmIPC, nmShuffle, transfer int
	datanode                                                                 [4]int // transfer, HTTP, IPC, gRPC
}{8020, 9870, 8088, 8042, 8486, 8487, 8586, 8032, 8041, 13562, 8488, [4]int{9866, 9864, 9867, 9868}}

// devTransfer is the distance of the namenode's data transfer from the base, behind the four of the first datanode.
const devTransfer = 14

func runDev(c *cli.Context) error {
	started := time.Now()
	if c.Args().Present() {
		return fail(exitUsage, "dev takes no argument: %q", c.Args().First())
	}
	logger, err := newLogger(c)
	if err != nil {
		return err
	}
	steadyHeap()
	spareProcessor()
	if err := profiler(logger); err != nil {
		return err
	}
	open, properties, err := devOptions(c)
	if err != nil {
		return err
	}
	dir, cleanup, err := devData(c)
	if err != nil {
		return err
	}
	defer cleanup()
	file, err := devFile(c, dir, open, properties)
	if err != nil {
		open.close()
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		open.close()
		return err
	}
	b, err := roles.New(file, true, executable, version, logger)
	if err != nil {
		open.close()
		return err
	}
	b.Alone = true
	b.OnFatal = func(err error) {
		die(func() { logger.Error("stopping: the Raft store cannot go on", "err", err) }, os.Exit)
	}
	b.Listen = open.take
	// Everything stops at once but containers that do not want to: they must not outlive the cluster, however busy the machine.
	p := program.Program{Logger: logger, StopTimeout: nmserver.StopPatience + 2*time.Second}
	p.Add(b.Membership()...)
	makers := []func() ([]program.Part, error){b.Namenode}
	for i := range c.Int("datanodes") {
		makers = append(makers, func() ([]program.Part, error) { return b.DatanodeAt(devDatanode(file, dir, i, open)) })
	}
	for _, role := range append(makers, b.ResourceManager, b.NodeManager) {
		parts, err := role()
		if err != nil {
			open.close()
			return err
		}
		p.Add(parts...)
	}
	ready := make(chan struct{})
	p.Add(program.Part{Name: "first answers", Ready: ready, Run: func(ctx context.Context) error {
		if err := awaitDev(ctx, filepath.Join(dir, "conf"), c.Int("datanodes")); err != nil {
			return err
		}
		close(ready)
		<-ctx.Done() // the last part is the first to stop: everything else still works
		tellRunning(c.App.ErrWriter, filepath.Join(dir, "conf"))
		return nil
	}})
	return cause(p.Run(c.Context, func() {
		fmt.Fprintf(c.App.ErrWriter, "a cluster for this workstation, not for production; data in %s\n", dir)
		if r, n := file.HadoopProperties().Replication, c.Int("datanodes"); r > n {
			fmt.Fprintf(c.App.ErrWriter, "note: dfs.replication is %d and there are %d datanodes: blocks stay under-replicated\n", r, n)
		}
		fmt.Fprint(c.App.ErrWriter, devHints(dir))
		fmt.Fprintf(c.App.Writer, "ready in %.1fs  fs=%s  http=http://%s  rm=http://%s\n",
			time.Since(started).Seconds(), roles.FSURI(file), file.Namenodes[0].HTTP, file.ResourceManagers[0].HTTP)
	}), 3*logEnds)
}

// processUser is whom the cluster knows this process as by the owner of its sockets: it needs no ticket or token.
func processUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// tellTime bounds the question which jobs run, to a resource manager of this process: it is answered at once where the machine is not busy.
const tellTime = nmserver.StopPatience / 2

// tellRunning says which jobs run while the cluster is about to stop.
func tellRunning(w io.Writer, conf string) {
	c, err := client.New(client.Config{ConfDir: conf, User: processUser()})
	if err != nil {
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), tellTime)
	defer cancel()
	jobs, err := c.Jobs().List(ctx)
	if err != nil {
		return // it ends all the same
	}
	for _, j := range jobs {
		if !j.Ended() {
			fmt.Fprintf(w, "stopping with %s (%s) unfinished: its processes end\n", j.ID, j.Name)
		}
	}
}

// devHints are lines to paste. The default cluster is found by hops without them.
func devHints(dir string) string {
	export := "  export HADOOP_CONF_DIR=" + quoted(filepath.Join(dir, "conf"))
	ours, hadoops := "", export+"\n"
	if own, err := devDirectory(); err != nil || own != dir {
		ours, hadoops = export+"\n", ""
	}
	return "try:\n" + ours + "  hops fs -ls /\n  hops job run -- hostname\n" + hadoops + "  hadoop fs -ls /\n"
}

// devData finds and locks the data directory.
func devData(c *cli.Context) (dir string, cleanup func(), err error) {
	switch {
	case c.Bool("ephemeral") && c.String("data") != "":
		return "", nil, fail(exitUsage, "--ephemeral and --data exclude each other")
	case c.Bool("ephemeral"):
		if dir, err = os.MkdirTemp("", ephemeralPrefix); err != nil {
			return "", nil, err
		}
		sweepEphemeral(filepath.Dir(dir))
		unlock, err := lockDev(c.Context, dir)
		if err != nil {
			return "", nil, err
		}
		return dir, func() { os.RemoveAll(dir); unlock() }, nil
	case c.String("data") != "":
		if dir, err = filepath.Abs(c.String("data")); err != nil {
			return "", nil, err
		}
	default:
		if dir, err = devDirectory(); err != nil {
			return "", nil, err
		}
	}
	if strangers := notOurs(dir); len(strangers) > 0 {
		return "", nil, fail(exitUsage, "--data %s holds other things than a cluster (%s): name an empty or a new directory", dir, strings.Join(strangers[:min(len(strangers), 3)], ", "))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("data directory %s cannot be made (%w): choose another one with --data, or --ephemeral", dir, err)
	}
	unlock, err := lockDev(c.Context, dir)
	return dir, unlock, err
}

// notOurs are the names in a directory that no `hops dev` has used yet.
func notOurs(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // where that fails nothing can be made either, which is said then
	for _, e := range entries {
		switch e.Name() {
		case devLock: // the first thing that is made
			return nil
		case "lost+found":
		default:
			names = append(names, e.Name())
		}
	}
	return names
}

// lockPatience is for what only looks whether the lock is held.
const lockPatience = 300 * time.Millisecond

// lockDev locks a data directory, which tells others that its cluster runs.
func lockDev(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	lock := flock.New(filepath.Join(dir, devLock))
	locked, err := lock.TryLock() // however late it is by now
	if err == nil && !locked {
		locked, err = lock.TryLockContext(ctx, 10*time.Millisecond)
	}
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("data directory %s cannot be used (%w): choose another one with --data, or --ephemeral", dir, err)
	}
	if !locked {
		return nil, fmt.Errorf("data directory %s is in use by another hops dev: end it, or choose another one with --data or --ephemeral", dir)
	}
	return func() { _ = lock.Unlock() }, nil
}

// ephemeralPrefix begins the names of temporary data directories.
const ephemeralPrefix = "hops-dev-"

// sweepEphemeral removes the temporary directories of clusters that were killed. One without a lock file is being made.
func sweepEphemeral(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, ephemeralPrefix+"*"))
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, devLock))
		if err == nil && time.Since(info.ModTime()) > time.Minute && ownedByUs(info) && devEnded(dir) {
			os.RemoveAll(dir)
		}
	}
}

func ownedByUs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// devListeners are opened before anything is made of them, so that addresses are known when the configuration is written.
type devListeners struct {
	byAddr map[string]net.Listener
	random bool
	base   int // 0: default ports
}

func (d *devListeners) open(standard, offset int) (string, error) {
	port := standard
	switch {
	case d.random:
		port = 0
	case d.base > 0:
		port = d.base + offset
	}
	l, err := security.Listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "")
	if err != nil {
		return "", fmt.Errorf("%w (or run hops dev with --ports random)", err)
	}
	d.byAddr[l.Addr().String()] = l
	return l.Addr().String(), nil
}

// next opens the first free port from a standard one on, for second and later datanodes.
func (d *devListeners) next(standard, offset int) (string, error) {
	if d.random || d.base > 0 {
		return d.open(standard, offset)
	}
	var err error
	for port := standard; port < standard+1000; port += 10 {
		var addr string
		if addr, err = d.open(port, 0); err == nil {
			return addr, nil
		}
	}
	return "", err
}

func (d *devListeners) take(addr string) (net.Listener, error) {
	l, ok := d.byAddr[addr]
	if !ok {
		return nil, fmt.Errorf("no listener was opened for %s", addr)
	}
	delete(d.byAddr, addr)
	return l, nil
}

func (d *devListeners) close() {
	for _, l := range d.byAddr {
		l.Close()
	}
}

// devOptions are what the options say that is right or wrong whatever runs and whatever is in the data directory.
func devOptions(c *cli.Context) (*devListeners, map[string]string, error) {
	open := &devListeners{byAddr: map[string]net.Listener{}}
	switch ports := c.String("ports"); ports {
	case "default":
	case "random":
		open.random = true
	default:
		base, err := strconv.Atoi(ports)
		if err != nil || base < 1024 || base > 65000 {
			return nil, nil, fail(exitUsage, "--ports %q is neither default, random nor a port from 1024 to 65000", ports)
		}
		open.base = base
	}
	if n := c.Int("datanodes"); n < 1 || n > 50 {
		return nil, nil, fail(exitUsage, "--datanodes %d is not 1 to 50", n)
	}
	properties := map[string]string{"fs.trash.interval": "1440"} // a day; the server's own default is Hadoop's, none
	for _, setting := range c.StringSlice("D") {
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return nil, nil, fail(exitUsage, "-D %q is not NAME=VALUE", setting)
		}
		properties[name] = value
	}
	return open, properties, nil
}

// devFile is the configuration of the cluster, with one namenode and one resource manager.
func devFile(c *cli.Context, dir string, open *devListeners, properties map[string]string) (*config.File, error) {
	var errs []error
	at := func(standard, offset int) string {
		addr, err := open.open(standard, offset)
		errs = append(errs, err)
		return addr
	}
	nn := config.NamenodeMember{
		ID: "nn1", IPC: at(devPorts.ipc, 0), HTTP: at(devPorts.http, 1), GRPC: at(devPorts.grpc, 4), Raft: at(devPorts.raft, 5),
	}
	rm := config.ManagerMember{ID: "nn1", HTTP: at(devPorts.rm, 2), GRPC: at(devPorts.rmGRPC, 6), Raft: nn.Raft, IPC: at(devPorts.rmIPC, 7)}
	nm, nmIPC, shuffle, transfer := at(devPorts.nm, 3), at(devPorts.nmIPC, 8), at(devPorts.nmShuffle, 9), at(devPorts.transfer, devTransfer)
	if err := errors.Join(errs...); err != nil {
		for _, e := range errs { // the first is enough: the others are the same program's ports
			if e != nil {
				return nil, e
			}
		}
	}
	file := &config.File{
		Cluster:          config.Cluster{Name: "dev", SecretFile: filepath.Join(dir, "secret"), Conf: filepath.Join(dir, "conf")},
		Namenodes:        []config.NamenodeMember{nn},
		ResourceManagers: []config.ManagerMember{rm},
		Namenode:         &config.Namenode{ID: nn.ID, Data: filepath.Join(dir, "nn"), Transfer: transfer, Heartbeat: time.Second, DeadAfter: 30 * time.Second, Search: true},
		ResourceManager:  &config.ResourceManager{ID: rm.ID, Data: filepath.Join(dir, "nn"), Queues: config.DefaultQueues()},
		NodeManager:      &config.NodeManager{Work: filepath.Join(dir, "nm"), HTTP: nm, IPC: nmIPC, Shuffle: shuffle, Isolation: "any", GPUs: c.String("gpus"), Memory: machine().memory, VCores: machine().cores},
		Properties:       properties,
	}
	if _, ok := properties[config.SocketProperty]; !ok {
		properties[config.SocketProperty] = devSocket(dir)
	}
	return file, file.Validate()
}

// devSocket is the path of the datanodes' Unix-domain sockets; empty where none may be, because the path is too long, or others
// could put something there.
func devSocket(dir string) string {
	at := filepath.Join(dir, "sockets")
	path := filepath.Join(at, "dn"+localsocket.Port)
	if localsocket.CheckForm(path) != nil || os.MkdirAll(at, 0o755) != nil || localsocket.CheckPlace(at) != nil {
		return ""
	}
	return path
}

// devDatanode is the configuration of datanode i.
func devDatanode(file *config.File, dir string, i int, open *devListeners) (config.Datanode, error) {
	d := config.Datanode{Volumes: []config.Volume{{Path: filepath.Join(dir, fmt.Sprintf("dn%d", i+1)), Type: "DISK"}}, Reserve: file.Namenode.Reserve}
	var errs []error
	for k, field := range []*string{&d.Transfer, &d.HTTP, &d.IPC, &d.GRPC} {
		var err error
		*field, err = open.next(devPorts.datanode[k], 10+10*i+k)
		errs = append(errs, err)
	}
	return d, errors.Join(errs...)
}

// awaitDev waits until files can be written and jobs be submitted.
func awaitDev(ctx context.Context, conf string, datanodes int) error {
	c, err := client.New(client.Config{ConfDir: conf, User: processUser()})
	if err != nil {
		return err
	}
	defer c.Close()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		live, err := c.FS().Datanodes(ctx, dfs.LiveDatanodes)
		if err == nil && len(live) < datanodes {
			err = fmt.Errorf("%d of %d datanodes are there", len(live), datanodes)
		}
		if err == nil {
			err = blocksKnown(ctx, c.FS(), live)
		}
		if err == nil {
			var nodes []client.Node
			if nodes, err = c.Jobs().Nodes(ctx); err == nil && len(nodes) == 0 {
				err = errors.New("the node manager is not there")
			}
		}
		if err == nil {
			if _, err = c.FS().Stat(ctx, "/tmp"); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting: %w", err)
		case <-time.After(pause):
		}
	}
}

// blocksKnown is an error while a namenode that has started with files waits for the datanodes to tell of their blocks. When all have told, it
// does not wait for what is still missing.
func blocksKnown(ctx context.Context, files *dfs.Client, live []dfs.Datanode) error {
	if !slices.ContainsFunc(live, func(n dfs.Datanode) bool { return n.LastReport == 0 }) {
		return nil
	}
	safe, err := files.SafeMode(ctx, dfs.SafeModeGet)
	if err == nil && safe {
		err = errors.New("the datanodes have not told of all blocks yet")
	}
	return err
}
