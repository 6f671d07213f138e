package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
	"github.com/gohops/hops/metadata"
)

// The balancers of Hadoop, which move replicas themselves, on hops: that of the volumes of a datanode, and that of datanodes. Disks have to be small for it to matter how full
// they are: they are file systems in memory, which only root can mount.

const (
	// smallDisk is the size of a disk, of which startOursOn leaves 64 MiB alone.
	smallDisk = "size=160m"
	// balanced files have a block each, of balancedBytes.
	balancedFiles = 60
	balancedBytes = 1 << 20
)

func (s *suite) balancersRow(ctx context.Context) error {
	row := &row{name: "balancers", title: "Hadoop's diskbalancer and balancer on hops"}
	s.rows = append(s.rows, row)
	if os.Geteuid() != 0 {
		row.note = "not run: it mounts small disks, which is for root"
		return nil
	}
	dir := filepath.Join(s.dir, "balancers")
	disk := func(name string) (string, error) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", err
		}
		return path, syscall.Mount("tmpfs", path, "tmpfs", 0, smallDisk)
	}
	defer func() {
		mounted, _ := filepath.Glob(filepath.Join(dir, "dn*"))
		for _, path := range mounted {
			_ = syscall.Unmount(path, syscall.MNT_DETACH) // those that are
		}
	}()
	for i := range datanodes {
		if _, err := disk(fmt.Sprintf("dn%d", i+1)); err != nil {
			return err
		}
	}
	say("starting hops: 1 namenode, %d datanodes with small disks", datanodes)
	c, err := startOurs(ctx, s.binary, dir, 1)
	if err != nil {
		return err
	}
	defer c.stop()
	driver, err := s.driver(ctx, c)
	if err != nil {
		return err
	}
	b := &balancing{suite: s, c: c, row: row, java: driver.run, files: map[string][]byte{}}
	if err := b.fill(ctx); err != nil {
		return err
	}
	second, err := disk("dn1-second")
	if err != nil {
		return err
	}
	if err := b.grow(ctx, dir, second); err != nil {
		return err
	}
	say("balancers")
	b.disks(ctx)
	b.nodes(ctx)
	return nil
}

// balancing is a cluster that is out of balance.
type balancing struct {
	*suite
	c     *cluster
	row   *row
	java  runner
	fs    *dfs.Client
	files map[string][]byte
	first string // address of the datanode that gets another disk, for its operators
}

func (b *balancing) add(name string, err error) {
	switch {
	case !strings.Contains(name, b.cases):
	case err != nil:
		b.row.add(name, failed, "  "+err.Error()+"\n")
	default:
		b.row.add(name, passed, "")
	}
}

// run runs a tool of Hadoop, whose own files have to fit on the disks, and wants an exit status.
func (b *balancing) run(ctx context.Context, user string, status int, args ...string) (string, error) {
	args = slices.Insert(args, 1, "-D", fmt.Sprintf("dfs.blocksize=%d", balancedBytes))
	o, err := b.java(ctx, b.c, user, "", args)
	if err == nil && o.status != status {
		err = fmt.Errorf("%s: exit %d: %s", strings.Join(args, " "), o.status, strings.TrimSpace(o.stderr+o.stdout))
	}
	return o.stdout + o.stderr, err
}

// fill writes files with two replicas.
func (b *balancing) fill(ctx context.Context) error {
	var err error
	if b.fs, err = b.c.client(""); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(5, 6))
	for i := range balancedFiles {
		data := make([]byte, balancedBytes)
		for k := range data {
			data[k] = byte(random.Uint32())
		}
		name := fmt.Sprintf("/balance/f%02d", i)
		f, err := b.fs.Create(ctx, name, dfs.CreateOptions{Overwrite: true, Parents: true, Replication: 2, BlockSize: balancedBytes})
		if err != nil {
			return err
		}
		if _, err := f.Write(data); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		b.files[name] = data
	}
	return nil
}

// grow gives the first datanode another disk.
func (b *balancing) grow(ctx context.Context, dir, disk string) error {
	path := filepath.Join(dir, "datanode1.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f config.File
	if err := yaml.UnmarshalStrict(path, text, &f); err != nil {
		return err
	}
	b.first = f.Datanode.IPC
	f.Datanode.Volumes = append(f.Datanode.Volumes, config.Volume{Path: disk, Type: "DISK"})
	if err := writeYAML(path, f); err != nil {
		return err
	}
	if _, err := b.run(ctx, superuser(), 0, "!dfsadmin", "-reconfig", "datanode", b.first, "start"); err != nil {
		return err
	}
	return b.c.await(ctx, toolPatience, func() error {
		out, err := b.run(ctx, superuser(), 0, "!diskbalancer", "-report", "-node", b.uuid(ctx))
		if err == nil && !strings.Contains(out, "2 volumes") {
			err = errors.New(out)
		}
		return err
	})
}

// uuid is that of the datanode with two disks: they are all at one address.
func (b *balancing) uuid(ctx context.Context) string {
	nodes, _ := b.fs.Datanodes(ctx, dfs.LiveDatanodes)
	for i := range nodes {
		if strings.HasSuffix(b.first, fmt.Sprintf(":%d", nodes[i].IPCPort)) {
			return nodes[i].UUID
		}
	}
	return "nobody"
}

// disks evens out the two volumes of a datanode with hdfs diskbalancer.
func (b *balancing) disks(ctx context.Context) {
	node := b.uuid(ctx)
	_, err := b.run(ctx, "alice", 1, "!diskbalancer", "-plan", node)
	b.add("-plan is for superusers", err)
	plan := func(dir string, more ...string) (string, error) {
		out, err := b.run(ctx, superuser(), 0, append([]string{"!diskbalancer", "-plan", node, "-out", dir, "-thresholdPercentage", "5", "-v"}, more...)...)
		if err != nil {
			return "", err
		}
		_, err = b.fs.Stat(ctx, dir+"/"+node+".plan.json")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return dir + "/" + node + ".plan.json", err
	}
	slow, err := plan("/plan1", "-bandwidth", "1")
	b.add("-plan writes a plan", err)
	if err != nil {
		return
	}
	_, err = b.run(ctx, superuser(), 0, "!diskbalancer", "-execute", slow)
	b.add("-execute begins", err)
	out, err := b.run(ctx, superuser(), 0, "!diskbalancer", "-query", b.first, "-v")
	if err == nil && !strings.Contains(out, "PLAN_UNDER_PROGRESS") {
		err = errors.New(out)
	}
	b.add("-query says that it goes on", err)
	_, err = b.run(ctx, superuser(), 0, "!diskbalancer", "-cancel", slow)
	b.add("-cancel", err)
	fast, err := plan("/plan2", "-bandwidth", "1000")
	b.add("-plan once more", err)
	err = b.c.await(ctx, toolPatience, func() error { // the one before ends in its own time
		_, err := b.run(ctx, superuser(), 0, "!diskbalancer", "-execute", fast)
		return err
	})
	b.add("-execute of the other one", err)
	err = b.c.await(ctx, toolPatience, func() error {
		out, err := b.run(ctx, superuser(), 0, "!diskbalancer", "-query", b.first)
		if err == nil && !strings.Contains(out, "PLAN_DONE") {
			err = errors.New(out)
		}
		return err
	})
	b.add("-query says that it is done", err)
	err = b.c.await(ctx, toolPatience, func() error {
		out, err := b.run(ctx, superuser(), 0, "!diskbalancer", "-report", "-node", node)
		if err == nil && !regexp.MustCompile(`density 0\.[01]`).MatchString(out) {
			err = errors.New(out)
		}
		return err
	})
	b.add("-report says that the volumes are even", err)
	b.add("all is there after that", b.whole(ctx))
}

// nodes has hdfs balancer fill the datanode that is emptier now.
func (b *balancing) nodes(ctx context.Context) {
	balancer := func(user string, status int, more ...string) (string, error) {
		return b.run(ctx, user, status, append([]string{
			"!balancer", "-D", "dfs.heartbeat.interval=1", "-D", "dfs.namenode.redundancy.interval.seconds=1", "-D", "dfs.balancer.getBlocks.min-block-size=1",
			// Of the few blocks that it asks for at a time, from a place by chance, it may be able to move none: it looks at them for a minute then, before it asks for others.
			"-D", "dfs.balancer.max-no-move-interval=1000", "-threshold", "4",
		}, more...)...)
	}
	_, err := balancer("alice", 252)
	b.add("balancer is for superusers", err)
	before, err := b.spread(ctx)
	out, failed := balancer(superuser(), 0)
	if err == nil {
		err = failed
	}
	if err == nil && !strings.Contains(out, "The cluster is balanced. Exiting...") {
		err = errors.New(out)
	}
	b.add("balancer balances", err)
	err = b.c.await(ctx, toolPatience, func() error {
		after, err := b.spread(ctx)
		if err == nil && after > 9 {
			err = fmt.Errorf("the fullest and the emptiest datanode were %.1f %% apart, and are %.1f %%\n%s", before, after, out)
		}
		return err
	})
	b.add("the datanodes are even", err)
	err = b.c.await(ctx, toolPatience, func() error {
		r, err := b.fs.Report(ctx)
		if err == nil && r.Corrupt+r.Missing+r.Under > 0 {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	b.add("no block lacks a replica", err)
	b.add("each block has two", b.replicas(ctx))
	b.add("all is there", b.whole(ctx))
	err = nil
	if _, there := b.fs.Stat(ctx, "/system/balancer.id"); !errors.Is(there, metadata.ErrNotExist) {
		err = errors.Join(errors.New("/system/balancer.id may still be there"), there)
	}
	b.add("its mark is gone", err)
	f, err := b.fs.Create(ctx, "/system/balancer.id", dfs.CreateOptions{Parents: true})
	if err == nil {
		out, err = balancer(superuser(), 252)
		if err == nil && !strings.Contains(out, "Another Balancer is running") {
			err = errors.New(out)
		}
		_ = f.Close()
	}
	b.add("there is one balancer at a time", err)
}

// spread is how many percent of their capacity the fullest and the emptiest datanode are apart.
func (b *balancing) spread(ctx context.Context) (float64, error) {
	nodes, err := b.fs.Datanodes(ctx, dfs.LiveDatanodes)
	if err == nil && len(nodes) != datanodes {
		err = fmt.Errorf("%d datanodes are there", len(nodes))
	}
	if err != nil {
		return 0, err
	}
	least, most := 100.0, 0.0
	for i := range nodes {
		used := 100 * float64(nodes[i].Used) / float64(max(nodes[i].Capacity, 1))
		least, most = min(least, used), max(most, used)
	}
	return most - least, nil
}

// replicas waits until each block has as many as it should, after the balancer.
func (b *balancing) replicas(ctx context.Context) error {
	return b.c.await(ctx, toolPatience, func() error {
		for name := range b.files {
			blocks, err := b.fs.BlockLocations(ctx, name, 0, balancedBytes)
			if err != nil {
				return err
			}
			if len(blocks) != 1 || len(blocks[0].Datanodes) != 2 {
				return fmt.Errorf("%s is at %v", name, blocks)
			}
		}
		return nil
	})
}

// whole reads all files.
func (b *balancing) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for name, want := range b.files {
		got, err := b.fs.ReadFile(ctx, name)
		if err == nil && string(got) != string(want) {
			err = fmt.Errorf("%s has other bytes", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
