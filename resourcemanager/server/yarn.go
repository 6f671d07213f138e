package server

import (
	"context"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/internal/token"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/hadoop"
)

// hadoop describes the adapter to YARN's RPC.
func (s *Server) hadoop() hadoop.Config {
	var slow *slowlog.Operation
	if l := s.config.Slow; l != nil {
		slow = l.Operation("yarn-rpc", l.Limits.RPC)
	}
	return hadoop.Config{
		Cluster: s, Masters: s, Operator: s, Door: s.config.Door, Tokens: s.yarnTokens, Qualities: s.config.RPCProtection,
		LaunchWithin: s.config.LaunchWithin, HTTP: s.peer(s.config.ID).HTTP, Slow: slow, Logger: s.log,
	}
}

// Reign implements hadoop.Cluster.
func (s *Server) Reign() (number uint64, since time.Time) {
	r := s.reign.Load()
	if r == nil {
		return 0, time.Time{}
	}
	return r.epoch, r.since()
}

// serveHadoop speaks YARN's RPC on all of its listeners.
func (s *Server) serveHadoop(ctx context.Context) error {
	if len(s.config.IPC) == 0 {
		return nil
	}
	h := hadoop.New(s.hadoop())
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range s.config.IPC {
		g.Go(func() error {
			return h.Serve(ctx, s.config.Door.Guard(l, security.Doorway{Name: "resource manager IPC"}))
		})
	}
	return g.Wait()
}

// speaksYARN reports whether what runs in a container is a master that may speak YARN's RPC, and is told how.
func speaksYARN(a *rm.Application, c *rm.Container, launch *rm.Launch) bool {
	return c.Master && a.Kind == rm.KindMaster && launch.Dialect == rm.DialectYARN
}

// withMasterToken adds the token by which the master of an attempt is known on YARN's RPC to the credentials that its launch brings.
func (s *Server) withMasterToken(c *rm.Container, credentials []byte) ([]byte, error) {
	return token.Prepend(credentials, s.yarnTokens.Master(time.Now(), c.ID.Attempt))
}

// yarnEnvironment is what YARN's resource manager tells a master.
func yarnEnvironment(a *rm.Application) map[string]string {
	return map[string]string{
		"APPLICATION_WEB_PROXY_BASE": "/proxy/" + a.ID.String(),
		"APP_SUBMIT_TIME_ENV":        strconv.FormatInt(int64(a.Submitted), 10),
	}
}
