package roles

import (
	"context"
	"errors"
	"io"
	"path"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/resourcemanager/rest"
)

// logs reads the logs of containers from the filesystem. The resource manager has checked that the user may; a client of
// the user's own checks again.
type logs struct{ b *Builder }

func (l logs) List(ctx context.Context, user, dir string) ([]rest.LogFile, error) {
	fs, err := l.b.filesystem(user)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	return listLogs(ctx, fs, dir)
}

func listLogs(ctx context.Context, fs *dfs.Client, dir string) ([]rest.LogFile, error) {
	entries, err := fs.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	var files []rest.LogFile
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if !e.IsDir() {
			files = append(files, rest.LogFile{Path: name, Size: e.Length, Modified: e.MTime})
			continue
		}
		below, err := listLogs(ctx, fs, name)
		if err != nil && !errors.Is(err, metadata.ErrNotExist) {
			return nil, err
		}
		files = append(files, below...)
	}
	return files, nil
}

func (l logs) Open(ctx context.Context, user, name string) (io.ReadCloser, error) {
	fs, err := l.b.filesystem(user)
	if err != nil {
		return nil, err
	}
	r, err := fs.Open(ctx, name)
	if err != nil {
		fs.Close()
		return nil, err
	}
	return &logReader{r, fs}, nil
}

// logReader closes its client with itself.
type logReader struct {
	*dfs.Reader
	fs *dfs.Client
}

func (r *logReader) Close() error { return errors.Join(r.Reader.Close(), r.fs.Close()) }
