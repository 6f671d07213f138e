package main

import (
	"context"
	"fmt"
	"os/user"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/sasl"
)

// datanodes of each of the clusters.
const datanodes = 3

// cluster is one of the two sides: a stock HDFS or ours.
type cluster struct {
	name string
	// uri is the file system's, authority the part of it that messages show.
	uri, authority string
	ipc, http      []string
	// datanode is the IPC address of one.
	datanode string
	// stores are the directories of the datanodes, by the address of data transfer.
	stores map[string]string
	// conf holds the configuration of clients.
	conf string
	// protection is that of data transfer, if there has to be any.
	protection []sasl.Quality
	parts      []*process
}

// settings are what both sides run with, under HDFS's names.
func settings() [][2]string {
	return [][2]string{
		{"dfs.replication", "1"},
		{"dfs.namenode.fs-limits.min-block-size", "0"},
		{"fs.trash.interval", "0"},
		{"fs.protected.directories", ""}, // HDFS has none, and contract tests empty the root
		// Listings come in pages of so many entries, so that everybody's paging is used.
		{"dfs.ls.limit", "7"},
		{"hadoop.proxyuser." + superuser() + ".hosts", "*"},
		{"hadoop.proxyuser." + superuser() + ".users", "*"},
	}
}

// superuser of both clusters: the user of this process.
func superuser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "root"
}

// clientSettings are those that only Java clients read.
var clientSettings = [][2]string{
	// The first pause of a client whose last block no datanode has reported yet; 400 ms by default.
	{"dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "10"},
	// Hadoop's -failover takes no target without a fencer; the namenodes of hops fence each other.
	{"dfs.ha.fencing.methods", "shell(/bin/true)"},
	{"fs.permissions.umask-mode", "022"},
	// Each command looks for the leader of three namenodes anew, and would pause before it asks the third one.
	{"dfs.client.failover.sleep.base.millis", "5"},
	{"dfs.client.failover.sleep.max.millis", "200"},
	// A refused connection is an answer, not a reason to wait.
	{"ipc.client.connect.max.retries", "2"},
	{"ipc.client.connect.retry.interval", "200"},
}

// ready waits until every datanode is there and a file can be written.
func (c *cluster) ready(ctx context.Context, patience time.Duration) error {
	fs, err := c.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	return c.await(ctx, patience, func() error {
		live, err := fs.Datanodes(ctx, dfs.LiveDatanodes)
		if err != nil {
			return err
		}
		if len(live) < datanodes {
			return fmt.Errorf("%d of %d datanodes are there", len(live), datanodes)
		}
		return fs.WriteFile(ctx, "/.ready", []byte("ready\n"), true)
	})
}

// await polls until check is satisfied. It fails at once when a server has ended by itself.
func (c *cluster) await(ctx context.Context, patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if died := c.died(); died != nil {
			return died
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the %s cluster is not ready within %v: %w (-keep keeps the logs)", c.name, patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// died names a server that ended by itself.
func (c *cluster) died() error {
	for _, p := range c.parts {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// client of the cluster for a user; empty is the superuser.
func (c *cluster) client(user string) (*dfs.Client, error) {
	if user == "" {
		user = superuser()
	}
	return dfs.New(dfs.Config{Namenodes: c.ipc, User: user, Protection: c.protection, Logger: quiet})
}

// stop ends every server, those first that were started last.
func (c *cluster) stop() {
	for _, p := range c.parts {
		p.stop()
	}
	c.parts = nil
}
