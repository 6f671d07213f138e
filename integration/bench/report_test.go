package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gohops/hops/cmd/bench"
)

func sample(sides ...string) *table {
	t := &table{Group: "single", Title: "One <server>", Sides: sides}
	for _, s := range sides {
		for _, rate := range []float64{300, 100, 200} {
			if s != labelSynced {
				t.add(s, bench.Result{Name: "stat", Unit: "ops/s", PerSecond: rate * 1000, ServerCPU: 20000 / rate / 10, P50: 1, P99: 2})
			}
			t.add(s, bench.Result{Name: "write 4 KiB x1", Unit: "ops/s", PerSecond: rate, ServerCPU: 20000 / rate})
		}
	}
	return t
}

func TestRatiosStandOnlyWhereBothSidesRan(t *testing.T) {
	r := report{Tables: []*table{sample(labelHops, labelHDFS, labelSynced)}}
	text := r.markdown("x")
	for _, want := range []string{"| stat | 200k (100k-300k) | 200k (100k-300k) | 1.00 |", "write 4 KiB x1, HDFS with synconclose", "≤ 80.0: **missed**; ≤ 0.06 of HDFS: **missed** |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "stat, HDFS with synconclose") {
		t.Error("a side that did not run has a row")
	}
	both := sample(labelHops, labelHDFS, labelUnsynced)
	if text := (&report{Tables: []*table{both}}).markdown("x"); !strings.Contains(text, "| write 4 KiB x1, without synconclose, as HDFS's default | 200 (100-300) | 200 (100-300) | 1.00 |") ||
		!strings.Contains(text, "≥ 1.1 times HDFS's rate: **missed** |") {
		t.Error(text)
	}
	alone := report{Alone: true, Tables: []*table{sample(labelHops)}}
	text = alone.markdown("x")
	if strings.Contains(text, "hops / HDFS") || strings.Contains(text, "of HDFS:") || !strings.Contains(text, "was not measured") {
		t.Errorf("a table without a peer shows ratios, or not why:\n%s", text)
	}
}

func TestGoalsThatAreRates(t *testing.T) {
	for _, c := range []struct {
		ours, hdfs float64
		want       string
	}{{2000, 1000, "≥ 2.0 times HDFS's rate: reached"}, {1999, 1000, "≥ 2.0 times HDFS's rate: **missed**"}, {2000, 0, ""}} {
		table := &table{Group: "single", Sides: []string{labelHops}}
		table.add(labelHops, bench.Result{Name: "read seq x1, near", PerSecond: c.ours})
		if c.hdfs > 0 {
			table.add(labelHDFS, bench.Result{Name: "read seq x1, near", PerSecond: c.hdfs})
		}
		if got := new(report).verdict(table, table.Rows[0]); got != c.want {
			t.Errorf("%v and %v: %q, want %q", c.ours, c.hdfs, got, c.want)
		}
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	for _, table := range []*table{sample(labelHops, labelHDFS, labelSynced), sample(labelHops), codedSample(labelHops, labelHDFS, labelOurClient)} {
		d := xml.NewDecoder(strings.NewReader(plot(table)))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestNumbersKeepThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.12", 9.876: "9.88", 12.34: "12.3", 123.4: "123", 9999: "9999", 12345: "12.3k", 123456: "123k"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestGoalsAboveTheEmptyServer(t *testing.T) {
	both := sample(labelHops, labelEmpty)
	for _, res := range []float64{7, 8, 9} {
		both.add(labelEmpty, bench.Result{Name: "open", ServerCPU: res})
		both.add(labelHops, bench.Result{Name: "open", ServerCPU: res + 2})
	}
	r := report{Tables: []*table{both}}
	text := r.markdown("x")
	for _, want := range []string{
		"0.00 above the empty server, ≤ 2.50: reached; ≤ 0.30 of it: reached |",
		"2.00 above the empty server, ≤ 3.00: reached; ≤ 0.36 of it: reached |",
		"| open | 0.00 (0.00-0.00) | 0.00, 0.00 | 8.00 (7.00-9.00) | 10.0 (9.00-11.0) | 2.00 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	alone := report{Tables: []*table{sample(labelHops)}}
	if text := alone.markdown("x"); strings.Contains(text, "above the empty server") {
		t.Errorf("a figure above what was not measured in\n%s", text)
	}
}

// codedSample is a table of group erasure: hops moves a megabyte with so much CPU less than HDFS.
func codedSample(sides ...string) *table {
	t := &table{Group: groupErasure, Title: "Coded", Sides: sides}
	for _, s := range sides {
		cpu := map[string]float64{labelHops: 1000, labelNear: 500, labelHDFS: 2500, labelOurClient: 1500}[s]
		for _, name := range []string{rowCodedWrite, rowCodedRead, rowCodedLost} {
			t.add(s, bench.Result{Name: name, Unit: megabytes, PerSecond: 100, ServerCPU: 0.3 * cpu, ClientCPU: 0.7 * cpu})
		}
		if c := (coded{name: s}); !c.flushes() {
			continue
		}
		t.add(s, bench.Result{Name: rowFlush, PerSecond: 1000, P99: 50})
		t.add(s, bench.Result{Name: rowFlush + followed, PerSecond: 900, P50: 1, P99: 11})
	}
	t.add(labelHops, bench.Result{Name: rowFlushCoded, PerSecond: 790, P99: 50})
	t.add(labelHops, bench.Result{Name: rowFlushCoded + followed, PerSecond: 700, P50: 1, P99: 9})
	return t
}

func TestCodedGoals(t *testing.T) {
	r := report{Tables: []*table{codedSample(labelHops, labelNear, labelHDFS, labelOurClient)}}
	text := r.markdown("x")
	for _, want := range []string{
		"| 1000 (1000-1000) |  | 0.00 |  |", // no goal beside itself
		"| 400 (400-400) | 2.50 | 0.00 | ≥ 2.00 times: reached |",
		"| 400 (400-400) | 2.50 | 0.00 | ≥ 3.00 times: **missed** |",
		"| 2000 (2000-2000) |  | 0.00 | 5.00 of HDFS, ≥ 2.00 times: reached |",
		"| 667 (667-667) | 1.50 | 0.00 |  |", // the goals are of Hadoop's client
		"| 1.00 | 0.00 | ≥ 1.00: reached |",
		"| 0.79 | 0.00 | ≥ 0.80: **missed** |",
		"p99 ≤ 10 ms: **missed** |", "p99 ≤ 10 ms: reached |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	alone := report{Alone: true, Tables: []*table{codedSample(labelHops)}}
	if text := alone.markdown("x"); strings.Contains(text, "times: ") || strings.Contains(text, "≥ 0.80") {
		t.Errorf("a share of what was not measured in\n%s", text)
	}
}
