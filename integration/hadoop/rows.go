package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// run does the rows that are asked for, and reports: also those before one that cannot be done.
func (s *suite) run(ctx context.Context) error {
	err := s.inTurn(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if len(s.rows) == 0 {
			return err
		}
		err = fmt.Errorf("what comes after these was not run: %w", err)
	}
	return errors.Join(s.report(), err)
}

// inTurn does the rows that are asked for. webhdfs-stock and gohdfs-stock are controls, which run only when they are.
func (s *suite) inTurn(ctx context.Context) error {
	if err := s.fetch(); err != nil {
		return err
	}
	if s.wants("fsshell") || s.wants("fsshell-ha") || s.wants("hopsfs") || s.wants("hopsfs-stock") {
		if err := s.shells(ctx); err != nil {
			return err
		}
	}
	onOurs := func(row string, run func(c *cluster) error) error {
		if !s.wants(row) {
			return nil
		}
		ours, err := s.ours(ctx, 1)
		if err != nil {
			return err
		}
		return run(ours)
	}
	onStock := func(row string, run func(c *cluster) error) error {
		if !s.only[row] {
			return nil
		}
		stock, err := s.stock(ctx)
		if err != nil {
			return err
		}
		return run(stock)
	}
	for _, step := range []func() error{
		func() error {
			return onOurs("webhdfs", func(c *cluster) error { return s.webHDFSRow(ctx, "webhdfs", "recorded WebHDFS exchanges", c) })
		},
		func() error {
			return onStock("webhdfs-stock", func(c *cluster) error {
				return s.webHDFSRow(ctx, "webhdfs-stock", "recorded WebHDFS exchanges, Apache HDFS", c)
			})
		},
		func() error { return onOurs("curl", func(c *cluster) error { return s.curlRow(ctx, c) }) },
		func() error { return onOurs("fsspec", func(c *cluster) error { return s.fsspecRow(ctx, c) }) },
		func() error { return onOurs("publish", func(c *cluster) error { return s.publishRow(ctx, c) }) },
		func() error { // gohdfs and hdfsnative, below, leave directories behind, and a policy enabled, that the tools would list
			if !s.wants("tools") && !s.wants("hopstools") {
				return nil
			}
			return s.toolsRow(ctx)
		},
		func() error {
			if !s.wants("tools-cache") && !s.wants("hopstools-cache") {
				return nil
			}
			return s.cacheadminRow(ctx)
		},
		func() error { return onOurs("hdfsnative", func(c *cluster) error { return s.nativeRow(ctx, c) }) },
		func() error {
			return onOurs("gohdfs", func(c *cluster) error { return s.gohdfsRow(ctx, "gohdfs", "colinmarc/hdfs: its own tests", c) })
		},
		func() error {
			return onStock("gohdfs-stock", func(c *cluster) error {
				return s.gohdfsRow(ctx, "gohdfs-stock", "colinmarc/hdfs: its own tests, Apache HDFS", c)
			})
		},
		func() error {
			return onOurs("across", func(c *cluster) error {
				stock, err := s.stock(ctx)
				if err != nil {
					return err
				}
				fsShell, err := s.driver(ctx, stock, c)
				if err != nil {
					return err
				}
				return s.acrossRow(ctx, stock, c, fsShell.run)
			})
		},
		func() error {
			return onOurs("smallfiles", func(c *cluster) error {
				fsShell, err := s.driver(ctx, c)
				if err != nil {
					return err
				}
				return s.smallRow(ctx, c, fsShell.run)
			})
		},
	} {
		if err := step(); err != nil {
			return err
		}
		if ctx.Err() != nil { // a row that was cut off is no row
			return ctx.Err()
		}
	}
	if s.wants("tools-ha") || s.wants("hopstools-ha") {
		if err := s.haToolsRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("tokens") {
		if err := s.tokensRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("inotify") {
		if err := s.inotifyRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("storage") {
		if err := s.storageRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("tiers") || s.wants("shortcircuit") {
		if err := s.tiersRows(ctx); err != nil {
			return err
		}
	}
	if s.wants("balancers") {
		if err := s.balancersRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("kerberos") {
		if err := s.kerberosRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("yarn") {
		if err := s.yarnRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("stockyarn") {
		if err := s.stockYARNRow(ctx); err != nil {
			return err
		}
	}
	if s.wants("differ") {
		if err := s.differRow(ctx); err != nil {
			return err
		}
	}
	return nil
}

// shells runs the cases of FsShell in all combinations of shell and cluster.
func (s *suite) shells(ctx context.Context) error {
	stock, err := s.stock(ctx)
	if err != nil {
		return err
	}
	ours, err := s.ours(ctx, 1)
	if err != nil {
		return err
	}
	clusters := []*cluster{stock, ours}
	fsShell, err := s.driver(ctx, clusters...)
	if err != nil {
		return err
	}
	local := func(name string) string { return filepath.Join(s.dir, "local", name) }
	if err := s.askOracle(ctx, &shellRun{cluster: stock, shell: fsShell.run, api: fsShell.run, dir: local("stock")}); err != nil {
		return err
	}
	for _, r := range []struct {
		name, title string
		run         *shellRun
	}{
		{"fsshell", "FsShell on hops", &shellRun{cluster: ours, shell: fsShell.run, api: fsShell.run, dir: local("hops")}},
		{"hopsfs", "hops fs on hops", &shellRun{cluster: ours, shell: hopsFS(s.binary), api: fsShell.run, dir: local("hopsfs")}},
		{"hopsfs-stock", "hops fs on Apache HDFS", &shellRun{cluster: stock, shell: hopsFS(s.binary), api: fsShell.run, dir: local("hopsfs-stock")}},
	} {
		if !s.wants(r.name) {
			continue
		}
		if err := s.shellRow(ctx, r.name, r.title, r.run); err != nil {
			return err
		}
	}
	if !s.wants("fsshell-ha") {
		return nil
	}
	three, err := s.ours(ctx, 3)
	if err != nil {
		return err
	}
	fsShell, err = s.driver(ctx, three)
	if err != nil {
		return err
	}
	err = s.shellRow(ctx, "fsshell-ha", "FsShell on hops with 3 namenodes", &shellRun{cluster: three, shell: fsShell.run, api: fsShell.run, dir: local("hops-ha")})
	s.end(3) // nothing else needs so many servers
	return err
}

// askOracle runs the cases with FsShell on the stock HDFS: what all others are compared with.
func (s *suite) askOracle(ctx context.Context, r *shellRun) error {
	head, scenarios, err := s.scenarios()
	if err != nil {
		return err
	}
	say("FsShell on Apache HDFS: what the others are compared with")
	s.oracle = map[string][]outcome{}
	drift := 0
	for i, sc := range scenarios {
		got, err := r.run(ctx, sc)
		if err != nil {
			return err
		}
		s.oracle[sc.name] = got
		for k, st := range sc.steps {
			if d := difference(st.want, got[k]); d != "" && !s.record {
				if drift++; s.verbose {
					say("not as recorded: %s: %s\n%s", sc.name, st.title(), d)
				}
			}
			scenarios[i].steps[k].want = got[k]
		}
	}
	if s.record && s.cases == "" {
		return writeScenarios(filepath.Join(s.cache.source, "testdata", "fsshell.txt"), head, scenarios)
	}
	if drift > 0 {
		say("Apache HDFS answered %d commands otherwise than when testdata/fsshell.txt was recorded; the comparison is with what it answered now", drift)
	}
	return nil
}

// fetch makes the parts of the cache that the rows need, so that what is missing is said before anything runs.
func (s *suite) fetch() error {
	wants := func(rows ...string) bool { return slices.ContainsFunc(rows, s.wants) }
	var err error
	if wants("fsshell", "fsshell-ha", "hopsfs", "hopsfs-stock", "webhdfs-stock", "gohdfs-stock", "across", "smallfiles", "tools", "hopstools", "tools-ha", "hopstools-ha", "tools-cache", "hopstools-cache", "tokens", "inotify", "storage", "tiers", "shortcircuit", "balancers", "differ") {
		_, err = s.hadoop()
	}
	if err == nil && wants("publish") {
		err = need("python3", "make compat needs Python 3 with venv (Debian: apt-get install python3 python3-venv)")
	}
	if err == nil && wants("curl", "across", "publish") {
		err = need("curl", "make compat uses curl (Debian: apt-get install curl)")
	}
	if err == nil && wants("fsspec", "hdfsnative", "across") {
		_, err = s.cache.python()
	}
	if err == nil && wants("shortcircuit") {
		_, err = s.cache.nativeLibrary()
	}
	if err == nil && wants("gohdfs", "gohdfs-stock") {
		_, err = s.cache.gohdfs()
	}
	return err
}
