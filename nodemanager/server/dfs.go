package server

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager/localizer"
)

// OverDFS makes Config.FS of a function that makes clients of the cluster's filesystem.
func OverDFS(client func(user string) (*dfs.Client, error)) func(user string) (Filesystem, error) {
	return func(user string) (Filesystem, error) {
		c, err := client(user)
		if err != nil {
			return nil, err
		}
		return distributed{c}, nil
	}
}

// credentialsOf is a token under all names by which Hadoop's clients look for one of the cluster's filesystem, those of WebHDFS too.
func credentialsOf(c *Cluster, t token.Token) token.Credentials {
	var all token.Credentials
	seen := map[string]bool{}
	add := func(kind, service string) {
		t.Kind, t.Service = kind, service
		alias := service // as Hadoop's clients have it
		if kind == token.SecureWebKind {
			alias = kind + " " + service
		}
		if !seen[alias] {
			seen[alias] = true
			all = append(all, token.Entry{Alias: alias, Token: t})
		}
	}
	for _, service := range dfs.TokenServices(strings.TrimSuffix(strings.TrimPrefix(c.FS, "hdfs://"), "/"), c.Namenodes) {
		add(token.Kind, service)
	}
	for _, addr := range c.WebHDFS {
		addr = strings.TrimSuffix(strings.TrimPrefix(addr, "http://"), "/")
		for _, service := range dfs.TokenServices("", []string{addr}) {
			add(token.WebKind, service)
			add(token.SecureWebKind, service)
		}
	}
	return all
}

// distributed is client/dfs behind our small interface.
type distributed struct{ client *dfs.Client }

func (d distributed) Close() error { return d.client.Close() }

func (d distributed) Stat(ctx context.Context, path string) (localizer.Info, error) {
	st, err := d.client.Stat(ctx, path)
	if err != nil {
		return localizer.Info{}, err
	}
	return localizer.Info{ID: uint64(st.ID), Size: st.Length, Modified: int64(st.MTime), Dir: st.IsDir(), Mode: st.FSMode()}, nil
}

func (d distributed) Readable(ctx context.Context, path string) error {
	return d.client.CheckAccess(ctx, path, metadata.Read)
}

func (d distributed) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	return d.client.Open(ctx, path)
}

// Who may read the logs of a container: its user, and the group of the directory for logs, which is that of superusers.
// Others see them through the resource manager, which knows who administers a queue.
const (
	logDirMode  metadata.Mode = 0o750
	logFileMode metadata.Mode = 0o640
)

// logReplication is the most replicas of a log file: what a container prints costs the cluster that many times its size.
const logReplication = 2

// OpenLog opens a log with a context that bounds the opening only: a Writer lives with the one that it is made with.
func (d distributed) OpenLog(ctx context.Context, name string) (LogFile, error) {
	w, err := dfs.Within(ctx, func(life context.Context) (*dfs.Writer, error) { return d.openLog(life, name) })
	if err != nil {
		return nil, err
	}
	return logWriter{w}, nil
}

// openLog appends to what is there. A file that a node manager left open when it was killed is taken away from it; that
// takes a moment, so the first try may fail with ErrRecoveryInProgress.
func (d distributed) openLog(ctx context.Context, name string) (*dfs.Writer, error) {
	w, err := d.client.Append(ctx, name)
	switch {
	case err == nil:
		return w, nil
	case errors.Is(err, metadata.ErrBeingCreated):
		if closed, recoverErr := d.client.RecoverLease(ctx, name); recoverErr != nil || !closed {
			return nil, errors.Join(err, recoverErr)
		}
		return d.client.Append(ctx, name)
	case !errors.Is(err, metadata.ErrNotExist):
		return nil, err
	}
	if err := d.client.Mkdirs(ctx, path.Dir(name), logDirMode, true); err != nil {
		return nil, err
	}
	defaults, err := d.client.ServerDefaults(ctx)
	if err != nil {
		return nil, err
	}
	return d.client.Create(ctx, name, dfs.CreateOptions{Mode: logFileMode, Replication: min(logReplication, defaults.Replication)})
}

func (d distributed) ListLogs(ctx context.Context, dir string) (map[string]int64, error) {
	entries, err := d.client.List(ctx, dir)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	files := map[string]int64{}
	for _, e := range entries {
		if !e.IsDir() {
			files[e.Name] = e.Length
		}
	}
	return files, nil
}

func (d distributed) RemoveLog(ctx context.Context, path string) error {
	_, err := d.client.Delete(ctx, path, false)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil
	}
	return err
}

type logWriter struct{ *dfs.Writer }

func (w logWriter) Flush(ctx context.Context) error { return w.Hflush(ctx) }
