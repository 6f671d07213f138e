package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// side is one running filesystem that is measured.
type side interface {
	// label names it in tables.
	label() string
	// connect makes a client; each has a connection of its own.
	connect() (*dfs.Client, error)
	// servers are the process ids of all servers by name.
	servers() map[string]int
	// killLeader ends the namenode that leads with SIGKILL and returns what brings the killed back; host: with all that
	// a lost machine would take along.
	killLeader(ctx context.Context, host bool) (revive func(ctx context.Context) error, err error)
	// died names a server that ended by itself.
	died() error
	// stop ends all servers.
	stop() error
}

// shape is what servers a filesystem consists of.
type shape struct {
	namenodes, datanodes int
}

// plainly makes a client that speaks to the namenodes at the addresses in plain.
func plainly(addresses []string) (*dfs.Client, error) {
	return dfs.New(dfs.Config{Namenodes: addresses, Logger: slog.New(slog.DiscardHandler)})
}

// load makes a bench on a side.
func (r *runner) load(ctx context.Context, s side, change func(*bench.Options)) (*bench.Bench, error) {
	o := bench.Options{
		Clients:     func(int) (*dfs.Client, error) { return s.connect() },
		Connections: 64, Outstanding: 64, Time: r.phase, Bytes: r.bytes, Servers: s.servers(), Live: r.live, Progress: r.screen,
		Label: fmt.Sprintf("[%.0f of %.0f min] %s, %s:", time.Since(r.started).Minutes(), r.estimate, r.label, s.label()),
		Root:  fmt.Sprintf("/benchmarks/%d", time.Now().UnixNano()),
	}
	if !r.live {
		o.Progress = nil
	}
	if change != nil {
		change(&o)
	}
	return bench.New(ctx, o)
}

// end closes a bench; after an interruption what it made stays, because it goes with the servers.
func end(ctx context.Context, b *bench.Bench) error {
	if ctx.Err() == nil {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	return b.Close(ctx)
}

// ready waits until a side answers, accepts changes and has its datanodes.
func ready(ctx context.Context, s side, datanodes int, patience time.Duration, died func() error) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	deadline := time.Now().Add(patience)
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := c.Mkdirs(attempt, "/benchmarks", 0o755, true)
		if err == nil {
			var live []dfs.Datanode
			if live, err = c.Datanodes(attempt, dfs.LiveDatanodes); err == nil && len(live) < datanodes {
				err = fmt.Errorf("%d of %d datanodes have registered", len(live), datanodes)
			}
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%s is not ready after %v: %w", s.label(), patience, err)
		}
		if died != nil {
			if err := died(); err != nil {
				return err
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// leader is the index of the namenode that leads.
func leader(ctx context.Context, s side) (int, error) {
	c, err := s.connect()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for range 100 {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		states := c.HAState(attempt)
		cancel()
		for i, st := range states {
			if st.State == "active" {
				return i, nil
			}
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s has no leader", s.label())
}

// standing waits until all namenodes answer, one of them as the leader.
func standing(ctx context.Context, s side) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var last error
	for range 1200 {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		states := c.HAState(attempt)
		cancel()
		active, standby := 0, 0
		for _, st := range states {
			switch {
			case st.State == "active":
				active++
			case st.State == "standby":
				standby++
			case st.Err != nil:
				last = st.Err
			}
		}
		if active == 1 && active+standby == len(states) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(fmt.Errorf("%s: not all namenodes came back within two minutes", s.label()), last)
}

// domainSocket is the property that says where the datanodes' Unix-domain sockets are.
const domainSocket = "dfs.domain.socket.path"

// ours is a hops cluster of processes.
type ours struct {
	cluster *processes.Cluster
}

// startOurs brings up a cluster of hops; change, if not nil, has the last word about what it is. Servers that are started later are not waited for.
func (r *runner) startOurs(ctx context.Context, name string, sh shape, change func(*processes.Config)) (*ours, error) {
	dir := filepath.Join(r.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	config := processes.Config{
		Binary: r.hops, Dir: dir, Name: "bench", Namenodes: sh.namenodes, Datanodes: sh.datanodes, Properties: map[string]string{"dfs.replication": "1"},
	}
	if change != nil {
		change(&config)
	}
	k, err := processes.New(config)
	if err != nil {
		return nil, err
	}
	o := &ours{k}
	err = k.StartAll()
	if err == nil {
		err = ready(ctx, o, sh.datanodes-len(config.Later), 30*time.Second, k.Died)
	}
	if err != nil {
		return nil, errors.Join(err, o.stop())
	}
	r.watch(o)
	return o, nil
}

func (o *ours) label() string { return labelHops }

// unsynced are our servers with dfs.datanode.synconclose=false.
type unsynced struct{ *ours }

func (unsynced) label() string { return labelUnsynced }

func (o *ours) died() error { return o.cluster.Died() }

func (o *ours) connect() (*dfs.Client, error) { return plainly(o.addresses()) }

// connectNear makes a client that uses the datanodes' Unix-domain sockets.
func (o *ours) connectNear() (*dfs.Client, error) {
	return dfs.New(dfs.Config{Namenodes: o.addresses(), DomainSocket: o.cluster.File().Properties[domainSocket], Logger: slog.New(slog.DiscardHandler)})
}

// addresses are the namenodes' for Hadoop's protocol.
func (o *ours) addresses() []string {
	var out []string
	for _, n := range o.cluster.File().Namenodes {
		out = append(out, n.IPC)
	}
	return out
}

func (o *ours) servers() map[string]int {
	out := map[string]int{}
	for _, name := range o.cluster.Names() {
		if pid := o.cluster.PID(name); pid != 0 {
			out[name] = pid
		}
	}
	return out
}

func (o *ours) killLeader(ctx context.Context, _ bool) (func(context.Context) error, error) {
	i, err := leader(ctx, o)
	if err != nil {
		return nil, err
	}
	name := o.cluster.File().Namenodes[i].ID
	if err := o.cluster.Kill(name); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := o.cluster.Start(name); err != nil {
			return err
		}
		return standing(ctx, o)
	}, nil
}

func (o *ours) stop() error {
	err := o.cluster.Stop()
	for _, pid := range o.cluster.Leftovers() {
		err = errors.Join(err, fmt.Errorf("process %d was left running: %s", pid, processes.Command(pid)), syscall.Kill(pid, syscall.SIGKILL))
	}
	return err
}
