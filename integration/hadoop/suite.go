package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// suite is one run: the clusters it has started, and what it has found out.
type suite struct {
	options
	cache *cache
	dir   string

	stockCluster *cluster
	oursBy       map[int]*cluster // by number of namenodes
	drivers      []*driver
	classPath    string
	oracle       map[string][]outcome // what FsShell does on the stock HDFS, by scenario
	rows         []*row
}

// verdict on one case.
type verdict int

const (
	passed verdict = iota
	failed
	// unsupported: the answer says that the operation is not there. It counts as failed in every percentage.
	unsupported
)

// row is a client, with its cases.
type row struct {
	name  string // in known.yaml and -only
	title string
	cases []result
	// open: what is known to differ need not occur.
	open bool
	// note is printed below the table. Without cases it says why they were not run.
	note string
}

type result struct {
	name    string
	verdict verdict
	detail  string
}

func (r *row) add(name string, v verdict, detail string) {
	r.cases = append(r.cases, result{name, v, detail})
}

// stop ends whatever was started.
func (s *suite) stop() {
	for _, d := range s.drivers {
		d.stop()
	}
	for _, c := range s.oursBy {
		c.stop()
	}
	if s.stockCluster != nil {
		s.stockCluster.stop()
	}
	s.drivers, s.oursBy, s.stockCluster = nil, nil, nil
}

// end stops a cluster of ours before the end of the run.
func (s *suite) end(namenodes int) {
	s.oursBy[namenodes].stop()
	delete(s.oursBy, namenodes)
}

// hadoop is the class path of Apache Hadoop.
func (s *suite) hadoop() (string, error) {
	var err error
	if s.classPath == "" {
		s.classPath, err = s.cache.hadoop()
	}
	return s.classPath, err
}

// stock is the stock HDFS, started when it is first asked for.
func (s *suite) stock(ctx context.Context) (*cluster, error) {
	if s.stockCluster != nil {
		return s.stockCluster, nil
	}
	classPath, err := s.hadoop()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, "stock")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	say("starting Apache HDFS: 1 namenode, %d datanodes", datanodes)
	s.stockCluster, err = startStock(ctx, classPath, dir)
	return s.stockCluster, err
}

// ours is a hops cluster with so many namenodes, started when it is first asked for.
func (s *suite) ours(ctx context.Context, namenodes int) (*cluster, error) {
	if c := s.oursBy[namenodes]; c != nil {
		return c, nil
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("hops%d", namenodes))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	say("starting hops: %d namenode(s), %d datanodes", namenodes, datanodes)
	c, err := startOurs(ctx, s.binary, dir, namenodes)
	if err != nil {
		return nil, err
	}
	if s.oursBy == nil {
		s.oursBy = map[int]*cluster{}
	}
	s.oursBy[namenodes] = c
	return c, nil
}

// driver starts a JVM for FsShell on some clusters.
func (s *suite) driver(ctx context.Context, clusters ...*cluster) (*driver, error) {
	classPath, err := s.hadoop()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("driver%d", len(s.drivers)+1))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d, err := startDriver(classPath, dir, clusters...)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, d.stop)
	s.drivers = append(s.drivers, d)
	return d, nil
}

// scenarios are the cases of FsShell, as far as they are asked for.
func (s *suite) scenarios() (head string, chosen []scenario, err error) {
	head, all, err := readScenarios(filepath.Join(s.cache.source, "testdata", "fsshell.txt"))
	for _, sc := range all {
		if strings.Contains(sc.name, s.cases) {
			chosen = append(chosen, sc)
		}
	}
	return head, chosen, err
}

// shellRow runs the cases with one shell against one cluster and compares with what FsShell did on the stock HDFS.
func (s *suite) shellRow(ctx context.Context, name, title string, r *shellRun) error {
	_, scenarios, err := s.scenarios()
	if err != nil {
		return err
	}
	say("%s", title)
	row := &row{name: name, title: title}
	s.rows = append(s.rows, row)
	for _, sc := range scenarios {
		got, err := r.run(ctx, sc)
		if err != nil {
			return err
		}
		s.judge(row, sc, s.oracle[sc.name], got)
	}
	return nil
}

// judge compares the outcomes of a scenario.
func (s *suite) judge(row *row, sc scenario, want, got []outcome) {
	seen := map[string]int{}
	for i, st := range sc.steps {
		id := sc.name + ": " + st.title()
		if seen[id]++; seen[id] > 1 {
			id = fmt.Sprintf("%s (%d)", id, seen[id])
		}
		d := difference(want[i], got[i])
		switch {
		case d == "":
			row.add(id, passed, "")
		case saysUnsupported(got[i].stderr):
			row.add(id, unsupported, d)
		default:
			row.add(id, failed, d)
		}
	}
}

var unsupportedWords = regexp.MustCompile(`Unknown method|\b(is|are) not supported|not supported by|UnsupportedOperationException|: Unknown command`)

// saysUnsupported recognises an answer that the operation is not there.
func saysUnsupported(message string) bool { return unsupportedWords.MatchString(message) }
