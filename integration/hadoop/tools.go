package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// The operators' tools: dfsadmin, fsck and haadmin of Hadoop on a stock HDFS, on hops, and those of hops on hops. The cases are in
// testdata/tools.txt and testdata/haadmin.txt, a command line of a tool each; `@ ` lines are what is done to the cluster in between.

// toolPatience is for what a cluster does by itself.
const toolPatience = 90 * time.Second

// toolsRow compares the tools with those of the stock HDFS.
func (s *suite) toolsRow(ctx context.Context) error {
	stock, err := s.stock(ctx)
	if err != nil {
		return err
	}
	ours, err := s.ours(ctx, 1)
	if err != nil {
		return err
	}
	return s.toolRows(ctx, "tools.txt", "", stock, ours)
}

// haToolsRow compares haadmin on three namenodes each.
func (s *suite) haToolsRow(ctx context.Context) error {
	ours, err := s.ours(ctx, 3)
	if err != nil {
		return err
	}
	defer s.end(3)
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "stock3")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	say("starting Apache HDFS: 3 namenodes")
	stock, err := startStockHA(ctx, classPath, dir)
	if err != nil {
		return err
	}
	defer stock.stop()
	return s.toolRows(ctx, "haadmin.txt", "-ha", stock, ours)
}

// toolRows runs a file of cases with Hadoop's tools on both clusters, and with ours on ours.
func (s *suite) toolRows(ctx context.Context, file, suffix string, stock, ours *cluster) error {
	head, all, err := readScenarios(filepath.Join(s.cache.source, "testdata", file))
	if err != nil {
		return err
	}
	var chosen []scenario
	for _, sc := range all {
		if strings.Contains(sc.name, s.cases) {
			chosen = append(chosen, sc)
		}
	}
	d, err := s.driver(ctx, stock, ours)
	if err != nil {
		return err
	}
	java := func(ctx context.Context, c *cluster, user, stdin string, args []string) (outcome, error) {
		return d.run(ctx, c, user, stdin, append([]string{"!" + args[0]}, args[1:]...))
	}
	run := func(name string, c *cluster, tool runner) (map[string][]outcome, error) {
		w := &workshop{suite: s, java: d}
		defer w.close()
		r := &shellRun{cluster: c, shell: tool, api: w.act, dir: filepath.Join(s.dir, "local", name)}
		got := map[string][]outcome{}
		for _, sc := range chosen {
			o, err := r.run(ctx, sc)
			if err != nil {
				return nil, err
			}
			for i := range o {
				o[i].stdout, o[i].stderr = maskTool(o[i].stdout), maskTool(o[i].stderr)
			}
			got[sc.name] = o
		}
		return got, nil
	}
	say("operators' tools on Apache HDFS: what the others are compared with")
	want, err := run("tools-stock"+suffix, stock, java)
	if err != nil {
		return err
	}
	if s.record && s.cases == "" {
		for i := range all {
			for k := range all[i].steps {
				all[i].steps[k].want = want[all[i].name][k]
			}
		}
		if err := writeScenarios(filepath.Join(s.cache.source, "testdata", file), head, all); err != nil {
			return err
		}
	}
	for _, r := range []struct {
		name, title string
		tool        runner
	}{
		{"tools" + suffix, "Hadoop's operators' tools on hops", java},
		{"hopstools" + suffix, "hops dfsadmin, fsck, haadmin on hops", hopsTool(s.binary)},
	} {
		title := r.title
		if suffix == "-cache" {
			title = strings.Replace(strings.Replace(title, "operators' tools", "cacheadmin", 1), "dfsadmin, fsck, haadmin", "cacheadmin", 1)
		} else if suffix != "" {
			title += " with 3 namenodes"
		}
		say("%s", title)
		row := &row{name: r.name, title: title}
		s.rows = append(s.rows, row)
		got, err := run(r.name, ours, r.tool)
		if err != nil {
			return err
		}
		for _, sc := range chosen {
			s.judge(row, sc, want[sc.name], got[sc.name])
		}
	}
	return nil
}

// Masks of what the tools say of this run. The figures of space and of the datanodes' clocks are those of the machine.
var toolMasks = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`(?m)^((Configured |Present )?Capacity|(Non )?DFS (Used|Remaining)%?|Configured Capacity|Last contact|Last Block Report|Num of Blocks|Xceivers): .*$`), "$1: <N>"},
	{regexp.MustCompile(`(?m)^\t(Pending deletion blocks): \d+$`), "\t$1: <N>"}, // those of files that a case before has removed
	{regexp.MustCompile(`\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d [A-Z]+ \d{4}\b`), "<TIME>"},
	{regexp.MustCompile(`\bin \d+ milliseconds\b`), "in <N> milliseconds"},
	{regexp.MustCompile(`\bDS-[0-9a-f-]{36}\b`), "<STORAGE>"},
	{regexp.MustCompile(`\bhttp://[^/\s]+/fsck`), "http://<HOST>/fsck"},
	{regexp.MustCompile(`\bBP-\d+-[\d.]+-<MS>`), "<ID>"},
	{regexp.MustCompile(`(?m)^[A-Z][a-z]{2} \d+, 20\d\d, \d+:\d\d:\d\d.[AP]M +`), "<TIME> "},
	{regexp.MustCompile(`\bBalancing took .*`), "Balancing took <N>"},
	{regexp.MustCompile(`\bUptime: \d+, Software version: \S+`), "Uptime: <N>, Software version: <V>"},
	{regexp.MustCompile(`(localhost)?/?<HOST>`), "<HOST>"},
	{regexp.MustCompile(`(?m)^(Name: <HOST>) \(.*\)$`), "$1"},
	{regexp.MustCompile(`(?m)^(   <HOST>) \(.*?\)`), "$1"},
	{regexp.MustCompile(`(?m)^Hostname: .*$`), "Hostname: <HOST>"},
	{regexp.MustCompile(`\b(localhost|127\.0\.0\.1):\d+\b`), "<HOST>"},
	{regexp.MustCompile(`(?m)^(<TIME> .*  hdfs://)\$NN$`), "${1}<HOST>"}, // in the balancer's table, where Apache HDFS has the host's name
	{regexp.MustCompile(`(?m) +$`), ""},
	{regexp.MustCompile(`<TIME> +\d+ ACTIVE `), "<TIME> <ID> ACTIVE "},
	{regexp.MustCompile(`\n\n(Caused by: |\z)`), "\n$1"}, // where stack frames were, which hops does not send
}

func maskTool(text string) string {
	for _, m := range toolMasks {
		text = m.from.ReplaceAllString(text, m.to)
	}
	return text
}

// workshop does to a cluster what the cases ask for.
type workshop struct {
	*suite
	java *driver
	open []func()
}

// close ends what is being written.
func (w *workshop) close() {
	for _, end := range w.open {
		end()
	}
	w.open = nil
}

// act is a runner for the @ lines.
func (w *workshop) act(ctx context.Context, c *cluster, user, stdin string, args []string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*toolPatience)
	defer cancel()
	client, err := c.client(user)
	if err != nil {
		return outcome{}, err
	}
	keep := false
	defer func() {
		if !keep {
			client.Close()
		}
	}()
	switch args[0] {
	case "@file": // PATH BYTES REPLICATION
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return outcome{}, err
		}
		replication, err := strconv.Atoi(args[3])
		if err != nil {
			return outcome{}, err
		}
		return outcome{}, write(ctx, client, args[1], n, replication)
	case "@open": // PATH BYTES
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return outcome{}, err
		}
		f, err := client.Create(ctx, args[1], dfs.CreateOptions{Overwrite: true, Parents: true})
		if err != nil {
			return outcome{}, err
		}
		keep = true
		w.open = append(w.open, func() {
			_ = f.Close()
			client.Close()
		})
		if _, err := f.Write(bytes.Repeat([]byte{'o'}, n)); err != nil {
			return outcome{}, err
		}
		return outcome{}, f.Hflush(ctx)
	case "@close": // all that is open
		w.close()
		return outcome{}, nil
	case "@damage", "@lose": // PATH: one replica of each block gets other bytes; all replicas are deleted
		return outcome{}, w.damage(ctx, c, client, args[1], args[0] == "@lose")
	case "@healed":
		return outcome{}, c.await(ctx, toolPatience, func() error {
			r, err := client.Report(ctx)
			if err == nil && r.Corrupt+r.Missing+r.Under > 0 {
				err = fmt.Errorf("%+v", r)
			}
			return err
		})
	case "@mkdir":
		if err := client.Mkdirs(ctx, args[1], 0o755, true); err != nil {
			return outcome{status: 1}, nil
		}
		return outcome{}, nil
	case "@snapshot": // DIR NAME
		_, err := client.CreateSnapshot(ctx, args[1], args[2])
		return outcome{}, err
	case "@deleteSnapshot": // DIR NAME
		return outcome{}, client.DeleteSnapshot(ctx, args[1], args[2])
	case "@rename": // FROM TO
		return outcome{}, client.RenameStrict(ctx, args[1], args[2])
	case "@rm":
		_, err := client.Delete(ctx, args[1], true)
		return outcome{}, err
	case "@active", "@lead": // ID: wait until that namenode leads; have it lead
		number, err := strconv.Atoi(strings.TrimPrefix(args[1], "nn"))
		if err != nil || number < 1 || number > len(c.ipc) {
			return outcome{}, fmt.Errorf("there is no namenode %s", args[1])
		}
		return outcome{}, c.await(ctx, toolPatience, func() error {
			state, err := client.ServiceStatus(ctx, c.ipc[number-1])
			if err != nil || state.State == "active" {
				return err
			}
			if args[0] == "@lead" { // Apache HDFS takes two that lead
				for i, addr := range c.ipc {
					if other, err := client.ServiceStatus(ctx, addr); i != number-1 && err == nil && other.State == "active" {
						_ = client.Transition(ctx, addr, false)
					}
				}
				_ = client.Transition(ctx, c.ipc[number-1], true)
			}
			return fmt.Errorf("%s is %s", args[1], state.State)
		})
	}
	return w.java.run(ctx, c, user, stdin, args)
}

func write(ctx context.Context, client *dfs.Client, path string, n, replication int) error {
	f, err := client.Create(ctx, path, dfs.CreateOptions{Overwrite: true, Parents: true, Replication: replication})
	if err != nil {
		return err
	}
	if _, err := f.Write(bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]); err != nil {
		return err
	}
	return f.Close()
}

// damage spoils replicas on the datanodes' disks and reads until the namenode knows of it.
func (w *workshop) damage(ctx context.Context, c *cluster, client *dfs.Client, path string, all bool) error {
	blocks, err := client.BlockLocations(ctx, path, 0, 1<<40)
	if err != nil {
		return err
	}
	before, err := client.Report(ctx)
	if err != nil {
		return err
	}
	spoiled := map[string][]byte{}
	for _, b := range blocks {
		for i, n := range b.Datanodes {
			store := c.stores[net.JoinHostPort(n.IP, strconv.Itoa(n.TransferPort))]
			f, err := replica(store, uint64(b.Block.ID))
			switch {
			case err != nil:
			case all:
				err = os.Remove(f)
			case i == 0: // a reader's first choice, at least of one who asks again
				spoiled[f] = bytes.Repeat([]byte{'!'}, int(b.Length))
				err = os.WriteFile(f, spoiled[f], 0o644) //nolint:gosec // it is there
			}
			if err != nil {
				return err
			}
		}
	}
	return c.await(ctx, toolPatience, func() error {
		_, _ = client.ReadFile(ctx, path) // it reports what it finds
		for f, bad := range spoiled {
			if now, err := os.ReadFile(f); err != nil || !bytes.Equal(now, bad) { // repaired already
				delete(spoiled, f)
			}
		}
		if !all && len(spoiled) == 0 {
			return nil
		}
		r, err := client.Report(ctx)
		if err == nil && r.Corrupt+r.Missing == before.Corrupt+before.Missing {
			err = fmt.Errorf("nobody has noticed what became of %s", path)
		}
		return err
	})
}

// replica is the file of data of a block below a directory.
func replica(dir string, id uint64) (found string, err error) {
	name := fmt.Sprintf("blk_%d", id)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			found = path
		}
		return nil // what vanishes meanwhile is none
	})
	if found == "" {
		err = fmt.Errorf("no replica of block %d lies below %s", id, dir)
	}
	return found, err
}
