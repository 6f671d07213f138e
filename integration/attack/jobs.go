package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	rm "github.com/gohops/hops/resourcemanager"
)

// as is a client that calls itself by a name: the servers' user may.
func (s *scene) as(user string) (*client.Client, error) {
	return client.New(client.Config{
		FS:               &dfs.Config{Namenodes: s.ipc(), User: user},
		ResourceManagers: []string{"http://" + s.manager().HTTP}, User: user,
	})
}

// runJob submits a job as a user and waits for its end; what its containers wrote comes with it.
func (s *scene) runJob(ctx context.Context, user string, patience time.Duration, j client.Job) (client.JobStatus, string, error) {
	c, err := s.as(user)
	if err != nil {
		return client.JobStatus{}, "", err
	}
	defer c.Close()
	if j.Resources.Memory == "" {
		j.Resources = client.JobResources{Memory: "64MiB", VCores: 1}
	}
	id, err := c.Jobs().Submit(ctx, j, "")
	if err != nil {
		return client.JobStatus{}, "", err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var text bytes.Buffer
	followed, err := c.Follow(waiting, id, client.LogOptions{Follow: true}, &text, &text)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil { // it takes longer than is looked at
		err = c.Jobs().Stop(ctx, id)
	}
	return followed.Job, text.String(), err
}

// localized: what the node has fetched for one user is not for another one.
func localized(ctx context.Context, s *scene, r *result) error {
	const path, marker = "/scene/alices", "between alice and herself"
	if err := errors.Join(s.fs.WriteFile(ctx, path, []byte(marker), false), s.fs.SetOwner(ctx, path, "alice", "alice"), s.fs.SetPermission(ctx, path, 0o600)); err != nil {
		return err
	}
	status, err := s.fs.Stat(ctx, path)
	if err != nil {
		return err
	}
	run := func(user string, a rm.Artifact) (bool, string, error) {
		a.Name, a.URI, a.Kind = "in", path, "file"
		j, text, err := s.runJob(ctx, user, 30*time.Second, client.Job{Name: "reader", Argv: []string{"cat", "in"}, Artifacts: []rm.Artifact{a}})
		return strings.Contains(text, marker), j.Diagnostics, err
	}
	modified := int64(status.MTime)
	variants := []struct {
		name string
		a    rm.Artifact
	}{
		{"plain", rm.Artifact{}},
		{"public", rm.Artifact{Visibility: "public", Size: status.Length, Timestamp: modified}},
		{"by its hash", rm.Artifact{SHA256: hashOf(marker)}},
	}
	for _, when := range []string{"cold", "after alice's job"} {
		for _, v := range variants {
			if when != "cold" {
				if ok, why, err := run("alice", v.a); err != nil || !ok {
					return fmt.Errorf("alice does not get her own file, %s: %s %w", v.name, why, err)
				}
			}
			ok, why, err := run("mallory", v.a)
			if err != nil {
				return err
			}
			if ok {
				r.missed("another user's job read it %s, named %s", when, v.name)
			} else if len(r.Found) == 0 {
				r.found("%.150s", why)
			}
		}
	}
	return nil
}

// fatOrder is to submit large jobs.
type fatOrder struct {
	Manager, User string
	Jobs          int
}

// fatAnswer counts what became of them.
type fatAnswer struct {
	sent
	Accepted, Refused int
	Refusal           string
}

// submitFat submits jobs of half a megabyte, from eight connections.
func submitFat(ctx context.Context, _ *part, o fatOrder) (fatAnswer, error) {
	body, err := json.Marshal(map[string]any{
		"name": "fat", "argv": []string{"true"}, "resources": map[string]any{"memory": "64MiB", "vcores": 1},
		"artifacts": []map[string]any{{"name": "filler", "content": base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 370<<10))}},
	})
	if err != nil {
		return fatAnswer{}, err
	}
	url := fmt.Sprintf("http://%s/api/v1/jobs?user.name=%s", o.Manager, o.User)
	var out fatAnswer
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(int64(o.Jobs))
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
				if err != nil {
					return
				}
				q.Header.Set("Content-Type", "application/json")
				answer, err := http.DefaultClient.Do(q)
				mu.Lock()
				out.Connections++
				switch {
				case err != nil:
					out.Dropped++
				case answer.StatusCode == http.StatusCreated:
					out.Bytes += int64(len(body))
					out.Accepted++
				default:
					out.Bytes += int64(len(body))
					if out.Refused++; out.Refusal == "" {
						text, _ := io.ReadAll(io.LimitReader(answer.Body, 300)) // for a message
						out.Refusal = answer.Status + " " + string(text)
					}
				}
				mu.Unlock()
				if err == nil {
					_, _ = io.Copy(io.Discard, answer.Body) // so that the connection is used again
					answer.Body.Close()
				}
			}
		})
	}
	wait.Wait()
	out.Note = fmt.Sprintf("%d jobs accepted, %d refused %.120s", out.Accepted, out.Refused, out.Refusal)
	return out, nil
}

// nodeCores is what a node manager of a scene has (package processes); a master takes one.
const nodeCores = 8

// fatJobs: what is submitted stays in memory until it has ended, and for long after.
func fatJobs(ctx context.Context, s *scene, r *result) error {
	// One job takes the node, so that the others wait.
	if _, err := s.c.Jobs().Submit(ctx, client.Job{
		Name: "blocker", Argv: []string{"sleep", "300"}, Resources: client.JobResources{Memory: "64MiB", VCores: nodeCores - 1},
	}, ""); err != nil {
		return err
	}
	if _, err := s.tokens(ctx, 2); err != nil {
		return err
	}
	o := fatOrder{Manager: s.manager().HTTP, User: nameOf(attackerID), Jobs: 2000}
	return s.siege(ctx, r, siege{
		target: "rm1", probes: []probe{s.managerList()}, attackers: []order{{"fatjobs", o}},
		length: 40 * time.Second, settle: s.settling(), // or until all have been submitted
	})
}

// mostLogs is what the log of one container may take on this cluster's disks: a GiB on the node, one in the filesystem, and
// something for what has not been copied yet.
const mostLogs = 5 << 29

// logFlood: a job that writes as fast as it can.
func logFlood(ctx context.Context, s *scene, r *result) error {
	most := int64(0)
	stop := sample(300*time.Millisecond, func() { most = max(most, s.disk()) })
	// 3 GiB, whatever the node allows, for as long as a slow machine takes.
	j, _, err := s.runJob(ctx, "mallory", 50*time.Second, client.Job{Name: "flood", Argv: []string{"sh", "-c", "timeout 30 yes | head -c 3221225472"}})
	stop()
	most = max(most, s.disk())
	r.found("%s of disk; the job: %s %s %.100s", size(most), j.State, j.FinalStatus, j.Diagnostics)
	if most > mostLogs {
		r.missed("%s of disk", size(most))
	}
	return err
}

// disk is what the nodes' and the datanodes' directories take.
func (s *scene) disk() int64 {
	total := int64(0)
	for _, name := range s.k.Names() {
		if !strings.HasPrefix(name, "nm") && !strings.HasPrefix(name, "dn") {
			continue
		}
		_ = filepath.WalkDir(filepath.Join(s.dir, name), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // files come and go
			}
			if info, err := d.Info(); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					total += st.Blocks * 512
				}
			}
			return nil
		})
	}
	return total
}
