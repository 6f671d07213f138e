package dfs

import (
	"context"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// CreateSnapshot makes a snapshot of a directory and returns its path; an empty name lets the server choose.
func (c *Client) CreateSnapshot(ctx context.Context, dir, name string) (string, error) {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return "", err
	}
	request := &hadooppb.CreateSnapshotRequestProto{SnapshotRoot: &dir}
	if name != "" {
		request.SnapshotName = &name
	}
	var answer hadooppb.CreateSnapshotResponseProto
	err = c.call(ctx, "snapshot", dir, "createSnapshot", request, &answer)
	return answer.GetSnapshotPath(), err
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, dir, name string) error {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return err
	}
	return c.call(ctx, "snapshot", dir, "deleteSnapshot",
		&hadooppb.DeleteSnapshotRequestProto{SnapshotRoot: &dir, SnapshotName: &name}, new(hadooppb.DeleteSnapshotResponseProto))
}

// RenameSnapshot gives a snapshot another name.
func (c *Client) RenameSnapshot(ctx context.Context, dir, from, to string) error {
	dir, err := clean("snapshot", dir)
	if err != nil {
		return err
	}
	return c.call(ctx, "snapshot", dir, "renameSnapshot",
		&hadooppb.RenameSnapshotRequestProto{SnapshotRoot: &dir, SnapshotOldName: &from, SnapshotNewName: &to}, new(hadooppb.RenameSnapshotResponseProto))
}
