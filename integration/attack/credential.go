package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// The methods that are called to see who is let in.
const (
	registerDatanode = "/hops.namenode.v1.Datanodes/Register"
	recoverReplica   = "/hops.datanode.v1.Replicas/InitReplicaRecovery"
	nodeSession      = "/hops.resourcemanager.v1.NodeManagers/Session"
)

// squatOn starts a squatter on a server's port, which it gets as soon as it is free.
func (s *scene) squatOn(o squatOrder) (*child, error) { return s.start(attackerID, "squat", o) }

// bound waits until a squatter has its port.
func bound(ctx context.Context, c *child) error {
	var word string
	return c.await(ctx, 15*time.Second, &word)
}

// credential: a squatter in the place of a namenode and of the resource manager. What servers say to it is shown to all
// servers afterwards, and the token of a master that was told to nobody else is looked for in it.
func credential(ctx context.Context, s *scene, r *result) error {
	nn, rm := s.namenode(0), s.manager()
	dn, err := s.datanode(0)
	if err != nil {
		return err
	}
	if _, err := s.c.Jobs().Submit(ctx, client.Job{
		Name: "sleeper", Argv: []string{"sleep", "300"}, Resources: client.JobResources{Memory: "64MiB", VCores: 1},
	}, ""); err != nil {
		return err
	}
	tokens, err := s.tokens(ctx, 2) // the master's and its one container's
	if err != nil {
		return err
	}
	// A call without anything is refused, or the rest would show nothing.
	doors := []struct{ server, addr, method string }{
		{"namenode", nn.GRPC, registerDatanode}, {"datanode", dn.GRPC, recoverReplica}, {"resource manager", rm.GRPC, nodeSession},
	}
	for _, d := range doors {
		var answer string
		if err := s.once(ctx, "knock", knockOrder{Addr: d.addr, Method: d.method}, &answer); err != nil {
			return err
		}
		if answer != refused {
			r.missed("the %s lets in whoever comes: %s", d.server, answer)
		}
	}
	var caught []catch
	for _, victim := range []struct{ name, addr string }{{"nn1", nn.GRPC}, {"rm1", rm.GRPC}} {
		c, err := s.squatOn(squatOrder{Addr: victim.addr})
		if err != nil {
			return err
		}
		if err := s.kill(victim.name); err != nil {
			return err
		}
		if err := bound(ctx, c); err != nil {
			return err
		}
		pause(ctx, 5*time.Second) // servers come back every second or so
		var got catch
		if err := c.end(&got); err != nil {
			return err
		}
		if got.Connections == 0 {
			return fmt.Errorf("nobody connected to the squatter in the place of %s", victim.name)
		}
		caught = append(caught, got)
		if err := s.restart(victim.name); err != nil {
			return err
		}
	}
	if err := s.ready(ctx, shape{datanodes: 1, nodeManagers: 1}); err != nil {
		return err
	}
	shown, replayed := 0, map[string]bool{}
	for i, got := range caught {
		r.Connections += got.Connections
		for file, token := range tokens {
			if bytes.Contains(got.Raw, []byte(token)) || heard(got.Headers, token) {
				shown++
				r.missed("the %s's squatter read a master's token (%s)", []string{"namenode", "resource manager"}[i], file)
			}
		}
		for _, headers := range got.Headers {
			for _, d := range doors {
				var answer string
				if err := s.once(ctx, "knock", knockOrder{Addr: d.addr, Method: d.method, Headers: headers}, &answer); err != nil {
					return err
				}
				if answer != refused && !replayed[d.server] {
					replayed[d.server] = true
					r.missed("what the %s's squatter was shown lets in at the %s", []string{"namenode", "resource manager"}[i], d.server)
				}
			}
		}
	}
	r.found("%d connections to squatters, %d kinds of headers, %d tokens, let in at %d of %d servers",
		r.Connections, len(caught[0].Headers)+len(caught[1].Headers), shown, len(replayed), len(doors))
	return nil
}

func heard(headers []map[string]string, token string) bool {
	for _, h := range headers {
		for _, value := range h {
			if strings.Contains(value, token) {
				return true
			}
		}
	}
	return false
}

// tokens reads the token files of at least n containers, by name. The servers' user may.
func (s *scene) tokens(ctx context.Context, n int) (map[string]string, error) {
	var out map[string]string
	err := s.k.Await(40*time.Second, "the containers' tokens", func() error {
		out = map[string]string{}
		err := filepath.WalkDir(filepath.Join(s.dir, "nm1"), func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil // containers come and go
			case err != nil:
				return err
			case d.Name() == "token" && d.Type().IsRegular():
				text, err := os.ReadFile(path)
				if token := strings.TrimSpace(string(text)); err == nil && token != "" {
					out[filepath.Base(filepath.Dir(path))] = token
				}
			}
			return ctx.Err()
		})
		if err == nil && len(out) < n {
			err = fmt.Errorf("%d of %d are there", len(out), n)
		}
		return err
	})
	return out, err
}

// relayed: the squatter in the place of one namenode passes the challenge of another one on, and speaks in the client's
// place once that has proved itself.
func relayed(ctx context.Context, s *scene, r *result) error {
	leader, err := s.standing(ctx)
	if err != nil {
		return err
	}
	var victim, live string
	for _, n := range s.k.File().Namenodes {
		switch {
		case n.ID != leader && victim == "":
			victim = n.ID
		case n.ID == leader:
			live = n.GRPC
		}
	}
	var addr string
	for _, n := range s.k.File().Namenodes {
		if n.ID == victim {
			addr = n.GRPC
		}
	}
	c, err := s.squatOn(squatOrder{Addr: addr, Relay: live, Knock: registerDatanode})
	if err != nil {
		return err
	}
	if err := s.kill(victim); err != nil {
		return err
	}
	if err := bound(ctx, c); err != nil {
		return err
	}
	pause(ctx, 8*time.Second)
	var got catch
	if err := c.end(&got); err != nil {
		return err
	}
	r.Connections = got.Connections
	if got.Connections == 0 {
		return errors.New("nobody connected to the squatter")
	}
	let := 0
	for _, answer := range got.Knocked {
		if answer != refused {
			let++
		}
	}
	r.found("%d connections to the squatter, %d speak in clear behind a proof that was passed on, %d of %d calls of its own let in", got.Connections, got.Relayed, let, len(got.Knocked))
	if let > 0 {
		r.missed("a proof that is passed on lets the one in who passed it on")
	}
	return nil
}

// sleeper is an experiment's function that takes its time.
const sleeper = `import time

def train(lr):
    time.sleep(300)
    return lr
`

// askOrder is to ask for a page through the resource manager, again and again.
type askOrder struct{ URL string }

func ask(ctx context.Context, _ *part, o askOrder) (sent, error) {
	var asked atomic.Int64
	var wait sync.WaitGroup
	for range 8 { // the time between a controller's death and its manager's news of it is short
		wait.Go(func() {
			for ctx.Err() == nil {
				q, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
				if err != nil {
					return
				}
				asked.Add(1)
				if answer, err := http.DefaultClient.Do(q); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body) // only that it was asked counts
					answer.Body.Close()
				}
				pause(ctx, 2*time.Millisecond)
			}
		})
	}
	wait.Wait()
	return sent{Connections: int(asked.Load())}, nil
}

// controllerPort: what the resource manager's proxy and the executors show to whoever has the port of a controller.
func controllerPort(ctx context.Context, s *scene, r *result) error {
	for _, dir := range []string{"/Projects", "/user/ann", "/logs"} {
		if err := errors.Join(s.fs.Mkdirs(ctx, dir, 0o777, true), s.fs.SetPermission(ctx, dir, 0o777)); err != nil {
			return err
		}
	}
	c, err := s.as("ann")
	if err != nil {
		return err
	}
	defer c.Close()
	program, err := code.New("sleeper:train", map[string][]byte{"sleeper.py": []byte(sleeper)})
	if err != nil {
		return err
	}
	id, err := c.Experiments().Submit(ctx, client.Study{Spec: training.Spec{
		Name: "sleeper", Project: "attack", Space: training.Space{{Name: "lr", Type: training.Double, Min: 0.1, Max: 1}},
		Optimizer: training.Optimizer{Type: training.Random}, Direction: training.Max, Metric: "lr", Trials: 2, Executors: 1,
		Resources: training.Resources{Memory: 256 << 20, VCores: 1},
	}}, program)
	if err != nil {
		return err
	}
	status := &protocol.ExperimentStatus{}
	executors := func() error {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err := c.Jobs().Proxy(attempt, id, "/v1/experiments/"+c.Experiments().ID(id), status)
		if err == nil && len(status.Executors) == 0 {
			err = errors.New("no executor has registered")
		}
		return err
	}
	if err := s.k.Await(40*time.Second, "an executor (Python 3.9 runs it)", executors); err != nil {
		return err
	}
	tokens, err := s.tokens(ctx, 2)
	if err != nil {
		return err
	}
	text, err := c.FS().ReadFile(ctx, status.Directory+"/"+protocol.WhereaboutsName)
	if err != nil {
		return err
	}
	var at protocol.Whereabouts
	if err := json.Unmarshal(text, &at); err != nil {
		return err
	}
	u, err := url.Parse(at.URL)
	if err != nil {
		return err
	}
	squatter, err := s.squatOn(squatOrder{Addr: u.Host})
	if err != nil {
		return err
	}
	asking, err := s.start(attackerID, "ask", askOrder{URL: "http://" + s.manager().HTTP + "/proxy/" + id + "/"})
	if err != nil {
		return err
	}
	killed := 0
	for _, pid := range processes.Find(s.dir+"/", "hops controller") {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		return errors.New("no process of a controller was found")
	}
	err = bound(ctx, squatter)
	pause(ctx, 5*time.Second)
	var got catch
	if err = errors.Join(err, asking.end(nil), squatter.end(&got)); err != nil {
		return err
	}
	r.Connections = got.Connections
	if got.Connections == 0 {
		return errors.New("nobody connected to the squatter")
	}
	shown := 0
	for container, token := range tokens {
		if bytes.Contains(got.Raw, []byte(token)) || heard(got.Headers, token) {
			shown++
			whose := "an executor's"
			if strings.HasSuffix(container, "_000001") {
				whose = "the master's"
			}
			r.missed("the squatter read %s token (%s)", whose, container)
		}
	}
	r.found("%d connections to the squatter, %d of %d tokens", got.Connections, shown, len(tokens))
	return nil
}
