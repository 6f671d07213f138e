package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// maxJob bounds job.json, in bytes.
const maxJob = 16 << 20

// FromEnvironment makes an Env from the environment of an application master's container: HOPS_APPLICATION_ID,
// HOPS_ATTEMPT, HOPS_USER, HOPS_WORK_DIR (with job.json), HOPS_RM_GRPC, HOPS_CONTAINER_ID, HOPS_TOKEN, HOPS_AUTHORITY and, if set,
// NM_HOST. files is a client of HOPS_FS that
// acts as HOPS_USER; sdk is the Python package. The closer is for after Run. Every variable that is missing is named in
// the error.
func FromEnvironment(getenv func(string) string, files *dfs.Client, sdk func() ([]byte, string), log *slog.Logger) (Env, io.Closer, error) {
	var lacking []string
	need := func(name string) string {
		v := getenv(name)
		if v == "" {
			lacking = append(lacking, name)
		}
		return v
	}
	env := Env{Application: need("HOPS_APPLICATION_ID"), User: need("HOPS_USER"), FS: DFS(files), SDK: sdk, Logger: log, WorkDir: getenv("HOPS_WORK_DIR")}
	attempt, work, managers, container, tokenFile, authorityFile := need("HOPS_ATTEMPT"), need("HOPS_WORK_DIR"), need("HOPS_RM_GRPC"), need("HOPS_CONTAINER_ID"), need("HOPS_TOKEN"), need("HOPS_AUTHORITY")
	if len(lacking) > 0 {
		return Env{}, nil, fmt.Errorf("not in the container of an application master: %s is not set", strings.Join(lacking, ", "))
	}
	var err error
	if env.Attempt, err = strconv.Atoi(attempt); err != nil || env.Attempt < 1 {
		return Env{}, nil, fmt.Errorf("HOPS_ATTEMPT is %q, want a number from 1", attempt)
	}
	job, err := os.Open(filepath.Join(work, "job.json"))
	if err != nil {
		return Env{}, nil, err
	}
	defer job.Close()
	if env.Job, err = io.ReadAll(io.LimitReader(job, maxJob+1)); err != nil {
		return Env{}, nil, err
	}
	if len(env.Job) > maxJob {
		return Env{}, nil, errors.New("job.json is longer than 16 MiB")
	}
	secret, err := os.ReadFile(tokenFile)
	if err != nil {
		return Env{}, nil, fmt.Errorf("token: %w", err)
	}
	token := strings.TrimSpace(string(secret))
	trust, err := authority.TrustFile(authorityFile)
	if err != nil {
		return Env{}, nil, fmt.Errorf("HOPS_AUTHORITY: %w", err)
	}
	if err = env.listen(getenv("NM_HOST")); err != nil {
		return Env{}, nil, err
	}
	env.Door = security.NewDoor(security.Config{Pinned: env.Certificate, Logger: log})
	env.Caller = proxied(env.Door, token, env.Listener.Addr().String())
	rm, err := dialResourceManagers(strings.Split(managers, ","), trust, container, token, env.Logger)
	if err != nil {
		return Env{}, nil, errors.Join(err, env.Listener.Close())
	}
	env.RM = rm
	env.Ended = func(ctx context.Context) (string, bool) { return rm.ended(ctx, env.Application, env.Attempt) }
	return env, rm, nil
}

// listen opens the server's port at the node's address, host: with a certificate of its own, if others reach it there.
func (e *Env) listen(host string) (err error) {
	if host == "" || security.Loopback(host) {
		e.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}
	if e.Certificate, err = authority.NewPinned(time.Now()); err != nil {
		return err
	}
	at := net.JoinHostPort(host, "0")
	if e.Listener, err = security.Listen(at, ""); errors.Is(err, security.ErrElsewhere) { // translated on the way here
		e.Listener, err = security.Listen(at, "0.0.0.0")
	}
	return err
}

// proxied finds the user of a request that arrived at the address host: whom the resource manager names, who signs with a
// key that follows from the token of this container, or else who owns the connection.
func proxied(door *security.Door, token, host string) func(*http.Request) (metadata.Caller, error) {
	key := security.NewRequestKey(token, security.ProxiedRequests)
	var admission security.Admission
	return func(r *http.Request) (metadata.Caller, error) {
		s, ok := security.ParseSignature(r)
		if !ok {
			return door.HTTPCaller(r)
		}
		user := r.Header.Get(security.UserHeader)
		if !key.Signed(r, host, s) || user == "" {
			return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "the request is not signed by the resource manager for %s, or it names no user", host)
		}
		if err := admission.Admit(s.Number, time.Now()); err != nil {
			return metadata.Caller{}, metadata.Errorf(metadata.ErrUnauthorized, "%v", err)
		}
		return door.Caller(user), nil
	}
}
