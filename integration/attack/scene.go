package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// shape is what servers a scene has.
type shape struct {
	namenodes, datanodes, nodeManagers int
	// replication of files; default all datanodes, at most 3.
	replication int
	// everybodySubmits opens the queue to all local users.
	everybodySubmits bool
	// descriptors, if not 0, is RLIMIT_NOFILE of the servers.
	descriptors int
}

// scene is a fresh cluster that is attacked.
type scene struct {
	h   *harness
	k   *processes.Cluster
	dir string
	c   *client.Client // of the servers' user
	fs  *dfs.Client

	mu       sync.Mutex
	killed   map[string]bool // on purpose, and not started again
	children []*child
}

// scene starts a cluster and waits until it works. The directories /scene/free, where everybody may write, and
// /scene/probe, which the healthy client looks at, are there.
func (h *harness) scene(ctx context.Context, sh shape) (_ *scene, err error) {
	h.scenes++
	dir := filepath.Join(h.dir, fmt.Sprintf("scene%d", h.scenes))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	binary := h.hops
	if sh.descriptors > 0 {
		binary = filepath.Join(dir, "hops")
		script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", sh.descriptors, h.hops)
		if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
			return nil, err
		}
	}
	if sh.replication == 0 {
		sh.replication = max(1, min(3, sh.datanodes))
	}
	k, err := processes.New(processes.Config{
		Binary: binary, Dir: dir, Name: "attack", Namenodes: sh.namenodes, Datanodes: sh.datanodes, NodeManagers: sh.nodeManagers, GPUs: 2,
		Properties: map[string]string{"dfs.replication": fmt.Sprint(sh.replication)},
		Adjust: func(_ string, f *config.File) {
			if f.ResourceManager != nil && sh.everybodySubmits {
				f.ResourceManager.Queues = config.Queues{"root": {ACLSubmit: []string{"*"}, Children: config.Queues{"default": {Capacity: "100%", ACLSubmit: []string{"*"}}}}}
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s := &scene{h: h, k: k, dir: dir, killed: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := k.StartAll(); err != nil {
		return nil, err
	}
	fs := dfs.Config{Namenodes: s.ipc(), Logger: slog.New(slog.DiscardHandler)}
	managers := []string{"http://127.0.0.1:1"} // there is none
	if sh.nodeManagers > 0 {
		managers = []string{"http://" + k.File().ResourceManagers[0].HTTP}
	}
	if s.c, err = client.New(client.Config{FS: &fs, ResourceManagers: managers}); err != nil {
		return nil, err
	}
	s.fs = s.c.FS()
	if err := s.ready(ctx, sh); err != nil {
		return nil, err
	}
	for _, name := range []string{"/scene/free", "/scene/probe"} {
		if err := errors.Join(s.fs.Mkdirs(ctx, name, 0o777, true), s.fs.SetPermission(ctx, name, 0o777)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// ready waits until all servers have registered.
func (s *scene) ready(ctx context.Context, sh shape) error {
	return s.k.Await(time.Minute, "the cluster", func() error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := s.fs.Mkdirs(attempt, "/scene", 0o755, true); err != nil {
			return err
		}
		live, err := s.fs.Datanodes(attempt, dfs.LiveDatanodes)
		if err == nil && len(live) < sh.datanodes {
			err = fmt.Errorf("%d of %d datanodes have registered", len(live), sh.datanodes)
		}
		if err != nil || sh.nodeManagers == 0 {
			return err
		}
		nodes, err := s.c.Jobs().Nodes(attempt)
		if err == nil && len(nodes) < sh.nodeManagers {
			err = fmt.Errorf("%d of %d node managers have registered", len(nodes), sh.nodeManagers)
		}
		return err
	})
}

// close ends the cluster at once: nobody will read what is on its disks.
func (s *scene) close() error {
	var errs []error
	s.mu.Lock()
	children := s.children
	s.mu.Unlock()
	for _, c := range children { // those of an attack that failed
		c.kill()
	}
	if s.c != nil {
		errs = append(errs, s.c.Close())
	}
	for _, name := range s.k.Names() {
		if s.k.PID(name) != 0 {
			_ = s.k.Signal(name, syscall.SIGKILL) // those that have ended already are no news
		}
	}
	for _, name := range s.k.Names() {
		if s.k.PID(name) != 0 {
			<-s.k.Ended(name)
		}
	}
	errs = append(errs, s.k.Stop())
	// Containers outlive the node manager, and those that were just being started write until they notice.
	var left []int
	var err error
	for range 250 {
		if left = s.k.Leftovers(); len(left) == 0 {
			if s.h.keep {
				break
			}
			if err = os.RemoveAll(s.dir); err == nil {
				break
			}
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("processes %v were left running", left))
	}
	errs = append(errs, err)
	return errors.Join(errs...)
}

// start runs a task as a user.
func (s *scene) start(uid uint32, task string, order any) (*child, error) {
	c, err := s.h.start(uid, task, order)
	if err == nil {
		s.mu.Lock()
		s.children = append(s.children, c)
		s.mu.Unlock()
	}
	return c, err
}

// ipc are the namenodes' addresses for clients.
func (s *scene) ipc() []string {
	var out []string
	for _, n := range s.k.File().Namenodes {
		out = append(out, n.IPC)
	}
	return out
}

func (s *scene) namenode(i int) config.NamenodeMember { return s.k.File().Namenodes[i] }

func (s *scene) manager() config.ManagerMember { return s.k.File().ResourceManagers[0] }

// datanode is the configuration of the i-th, from 0.
func (s *scene) datanode(i int) (*config.Datanode, error) {
	f, err := s.k.Server(fmt.Sprintf("dn%d", i+1))
	if err != nil {
		return nil, err
	}
	return f.Datanode, nil
}

// dead names servers that have ended by themselves.
func (s *scene) dead() []string {
	var out []string
	for _, name := range s.k.Names() {
		if s.k.PID(name) == 0 {
			continue
		}
		s.mu.Lock()
		expected := s.killed[name]
		s.mu.Unlock()
		select {
		case <-s.k.Ended(name):
			if !expected {
				out = append(out, name)
			}
		default:
		}
	}
	return out
}

// kill ends a server as a part of the attack.
func (s *scene) kill(name string) error {
	s.mu.Lock()
	s.killed[name] = true
	s.mu.Unlock()
	return s.k.Kill(name)
}

// restart starts one that was killed.
func (s *scene) restart(name string) error {
	s.mu.Lock()
	delete(s.killed, name)
	s.mu.Unlock()
	return s.k.Start(name)
}

// The probes that rows have in common.

func (s *scene) stat() probe {
	return probe{Name: "stat", Kind: "stat", Namenodes: s.ipc(), Path: "/scene/probe", Every: 20}
}

func (s *scene) newStat() probe {
	return probe{Name: "stat, new connection", Kind: "newstat", Namenodes: s.ipc(), Path: "/scene/probe", Every: 100}
}

func (s *scene) webHDFS() probe {
	return probe{Name: "WebHDFS", Kind: "get", URL: "http://" + s.namenode(0).HTTP + "/webhdfs/v1/scene/probe?op=GETFILESTATUS&user.name=" + nameOf(healthyID), Every: 100}
}

func (s *scene) write() probe {
	return probe{Name: "write", Kind: "write", Namenodes: s.ipc(), Path: "/scene/free", Every: 100}
}

func (s *scene) newWrite() probe {
	return probe{Name: "write, new connections", Kind: "newwrite", Namenodes: s.ipc(), Path: "/scene/free", Every: 100}
}

func (s *scene) health(name, addr string) probe {
	return probe{Name: name + "'s health", Kind: "get", URL: "http://" + addr + "/health", Every: 100}
}

func (s *scene) managerList() probe {
	return probe{Name: "job list", Kind: "get", URL: "http://" + s.manager().HTTP + "/api/v1/jobs?user.name=" + nameOf(healthyID), Every: 100}
}

// siege is an attack beside a healthy client.
type siege struct {
	// target is the server whose memory is watched, as nn1.
	target string
	probes []probe
	// attackers are tasks with their orders, as the attacker's user.
	attackers []order
	// work, if not nil, is done by the director beside the attackers; its end is the end of the attack.
	work func(context.Context) error
	// length of the attack.
	length time.Duration
	// settle waits after it until the memory is back.
	settle time.Duration
}

type order struct {
	task string
	as   any
}

// sent is what attackers answer.
type sent struct {
	Bytes       int64  `json:"bytes"`
	Connections int    `json:"connections"`
	Dropped     int    `json:"dropped"`
	Note        string `json:"note,omitempty"`
}

// siege measures one.
func (s *scene) siege(ctx context.Context, r *result, g siege) error {
	calm, err := s.calm(ctx, g.probes)
	if err != nil {
		return err
	}
	r.calm(calm)
	ctx, cancel := context.WithTimeout(ctx, g.length)
	defer cancel()
	pid := s.k.PID(g.target)
	m := watchMemory(pid, s.h.ceiling, func(grown int64) {
		r.Cut = true
		cancel()
		if grown > 2*s.h.ceiling && s.k.Signal(g.target, syscall.SIGKILL) == nil {
			r.Killed = true
		}
	})
	healthy, err := s.healthy(ctx, g.probes)
	if err != nil {
		m.end()
		return err
	}
	var attackers []*child
	for _, o := range g.attackers {
		a, err := s.start(attackerID, o.task, o.as)
		if err != nil {
			m.end()
			return err
		}
		attackers = append(attackers, a)
	}
	var errs []error
	if g.work != nil {
		if err := g.work(ctx); err != nil && ctx.Err() == nil {
			errs = append(errs, err)
		}
	} else {
		for _, a := range attackers { // until the last one is through, or the time is over
			select {
			case <-a.ended:
			case <-ctx.Done():
			}
		}
	}
	var total sent
	for _, a := range attackers {
		var one sent
		errs = append(errs, a.end(&one))
		total.Bytes += one.Bytes
		total.Connections += one.Connections
		total.Dropped += one.Dropped
		if one.Note != "" {
			total.Note = one.Note
		}
	}
	if len(g.attackers) > 0 && total.Connections == 0 {
		errs = append(errs, fmt.Errorf("the attackers did nothing: %s", total.Note))
	}
	var seen []waits
	errs = append(errs, healthy.end(&seen))
	r.waits(seen)
	m.settle(g.settle)
	r.Memory = true
	r.Target = g.target
	r.Grown, r.Kept = m.end()
	r.sent(total)
	r.Died = append(r.Died, s.dead()...)
	return errors.Join(errs...)
}

// calm is what the healthy client sees without an attack.
func (s *scene) calm(ctx context.Context, probes []probe) ([]waits, error) {
	c, err := s.healthy(ctx, probes)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(s.h.calmFor):
	}
	var out []waits
	err = c.end(&out)
	return out, err
}

// healthy starts the healthy client and waits until it works.
func (s *scene) healthy(ctx context.Context, probes []probe) (*child, error) {
	c, err := s.start(healthyID, "healthy", healthyOrder{User: nameOf(healthyID), Probes: probes})
	if err != nil {
		return nil, err
	}
	var word string
	return c, c.await(ctx, time.Minute, &word)
}

// once runs a task as the attacker to its end.
func (s *scene) once(ctx context.Context, task string, order, into any) error {
	c, err := s.start(attackerID, task, order)
	if err != nil {
		return err
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	return c.end(into)
}
