package server

import (
	"context"
	"errors"
	"io"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/resourcemanager/rest"
)

// DFSLogs reads logs through clients of the file system, which the function makes for a user.
func DFSLogs(client func(user string) (*dfs.Client, error)) rest.Logs { return dfsLogs(client) }

type dfsLogs func(user string) (*dfs.Client, error)

// maxLogFiles bounds a listing.
const maxLogFiles = 10_000

// List implements rest.Logs.
func (l dfsLogs) List(ctx context.Context, user, dir string) ([]rest.LogFile, error) {
	c, err := l(user)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var files []rest.LogFile
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		entries, err := c.List(ctx, dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch {
			case len(files) >= maxLogFiles:
				return metadata.Errorf(metadata.ErrDirectoryFull, "more than %d log files below %s", maxLogFiles, dir)
			case !e.IsDir():
				files = append(files, rest.LogFile{Path: dir + "/" + e.Name, Size: e.Length, Modified: e.MTime})
			case depth > 0:
				if err := walk(dir+"/"+e.Name, depth-1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return files, walk(dir, 3)
}

// Open implements rest.Logs.
func (l dfsLogs) Open(ctx context.Context, user, path string) (io.ReadCloser, error) {
	c, err := l(user)
	if err != nil {
		return nil, err
	}
	f, err := c.Open(ctx, path)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return logReader{f, c}, nil
}

// logReader is a file with the client that reads it.
type logReader struct {
	io.ReadCloser
	client *dfs.Client
}

func (r logReader) Close() error { return errors.Join(r.ReadCloser.Close(), r.client.Close()) }
