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
	for _, want := range []string{"| stat | 200k (100k-300k) | 200k (100k-300k) | 1.00 |", "write 4 KiB x1, HDFS with synconclose", "≤ 150: reached; ≤ 0.11 of HDFS: **missed** |"} {
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

func TestPlotIsWellFormed(t *testing.T) {
	for _, table := range []*table{sample(labelHops, labelHDFS, labelSynced), sample(labelHops)} {
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
