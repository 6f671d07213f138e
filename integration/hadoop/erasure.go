package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gohops/hops/client/dfs"
)

// codedPolicy fits the datanodes of the clusters.
const codedPolicy = "XOR-2-1-1024k"

// acrossCoded is the part of the row with a directory that has an erasure coding policy: all clients on ours, and Hadoop's and ours with the files of a
// stock HDFS.
func (s *suite) acrossCoded(ctx context.Context, row *row, stock, ours *cluster, fsShell runner) error {
	const dir = "/across-ec"
	for _, c := range []*cluster{stock, ours} {
		fs, err := c.client("")
		if err != nil {
			return err
		}
		defer fs.Close()
		if err := codedDirectory(ctx, fs, dir); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := s.across(ctx, row, stock, ours, fsShell, dir, codedPolicy+": "); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(s.dir, "across.bin"))
	if err != nil {
		return err
	}
	hops := hopsFS(s.binary)
	clients := map[string]runner{"FsShell": fsShell, "hops fs": hops}
	for _, writer := range []string{"FsShell", "hops fs"} {
		path := dir + "/" + strings.ReplaceAll(writer, " ", "-")
		o, err := clients[writer](ctx, stock, superuser(), "", []string{"-put", filepath.Join(s.dir, "across.bin"), path})
		if err == nil && o.status != 0 {
			err = fmt.Errorf("exit %d: %s", o.status, strings.TrimSpace(o.stderr))
		}
		for _, reader := range []string{"FsShell", "hops fs"} {
			name := fmt.Sprintf("%s: %s reads from Apache HDFS what %s wrote", codedPolicy, reader, writer)
			var got []byte
			e := err
			if e == nil {
				got, e = s.getBy(clients[reader], stock, path)
			}
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case e != nil:
				row.add(name, failed, "  "+e.Error()+"\n")
			case !bytes.Equal(got, data):
				row.add(name, failed, fmt.Sprintf("  %d bytes, want %d, the first difference at %d\n", len(got), len(data), firstDifference(got, data)))
			default:
				row.add(name, passed, "")
			}
		}
	}
	return nil
}

// codedDirectory makes a directory with the policy.
func codedDirectory(ctx context.Context, fs *dfs.Client, dir string) error {
	if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return err
	}
	if err := fs.SwitchErasurePolicy(ctx, codedPolicy, true); err != nil {
		return err
	}
	if err := fs.SetErasurePolicy(ctx, dir, codedPolicy); err != nil {
		return err
	}
	if p, err := fs.ErasurePolicy(ctx, dir); err != nil || p == nil || p.Name != codedPolicy {
		return fmt.Errorf("the policy of %s: %v, %w", dir, p, err)
	}
	return nil
}
