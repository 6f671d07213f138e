package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// The bounds of every attack: what it may cost.
const (
	mostGrown = 512 * mib
	mostWait  = 500.0 // milliseconds more than in calm
)

// report is a run.
type report struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Load    string    `json:"load_before"`
	Long    bool      `json:"long,omitempty"`
	// Alone: the attackers were the servers' own user, for want of root.
	Alone   bool      `json:"alone,omitempty"`
	Results []*result `json:"results"`
}

// result is what one attack did. Memory is in bytes, times are in milliseconds.
type result struct {
	Name string `json:"name"`
	What string `json:"what"`
	// Informative: there is no bound.
	Informative bool    `json:"informative,omitempty"`
	Skipped     string  `json:"skipped,omitempty"`
	Error       string  `json:"error,omitempty"`
	Seconds     float64 `json:"seconds"`

	// Target is the server whose memory was measured, if Memory: Grown at most, Kept at the end. Cut: the attack was ended
	// early for it, Killed: the server too.
	Memory bool   `json:"memory,omitempty"`
	Target string `json:"target,omitempty"`
	Grown  int64  `json:"grown,omitempty"`
	Kept   int64  `json:"kept,omitempty"`
	Cut    bool   `json:"cut,omitempty"`
	Killed bool   `json:"killed,omitempty"`
	// Sent are the bytes of all attackers.
	Sent        int64    `json:"sent,omitempty"`
	Connections int      `json:"connections,omitempty"`
	Dropped     int      `json:"dropped,omitempty"`
	Died        []string `json:"died,omitempty"`

	Calm   []waits `json:"calm,omitempty"`
	Beside []waits `json:"beside,omitempty"`

	// Found is what happened besides, Missed which bounds were passed.
	Found  []string `json:"found,omitempty"`
	Missed []string `json:"missed,omitempty"`
}

func (r *result) calm(w []waits)  { r.Calm = w }
func (r *result) waits(w []waits) { r.Beside = w }

func (r *result) sent(t sent) {
	r.Sent += t.Bytes
	r.Connections += t.Connections
	r.Dropped += t.Dropped
	if t.Note != "" {
		r.found("%s", t.Note)
	}
}

func (r *result) found(format string, args ...any) {
	r.Found = append(r.Found, fmt.Sprintf(format, args...))
}

func (r *result) missed(format string, args ...any) {
	r.Missed = append(r.Missed, fmt.Sprintf(format, args...))
}

// judge compares with the bounds.
func (r *result) judge() {
	slices.Sort(r.Died)
	r.Died = slices.Compact(r.Died)
	if r.Memory && r.Grown > mostGrown {
		r.missed("grew by %s", size(r.Grown))
	}
	for _, name := range r.Died {
		r.missed("%s died", name)
	}
	for i, w := range r.Beside {
		if cost := w.Worst - r.Calm[i].Worst; cost > mostWait {
			r.missed("%s waited %s", w.Name, duration(w.Worst))
		}
		if w.Failed > 0 {
			r.missed("%d of %d %s failed: %.150s", w.Failed, w.Done, w.Name, w.First)
		}
	}
	if r.Informative {
		r.Found, r.Missed = append(r.Found, r.Missed...), nil
	}
}

func (r *result) verdict() string {
	switch {
	case r.Skipped != "":
		return "left out: " + r.Skipped
	case r.Error != "":
		return "ERROR: " + r.Error
	case len(r.Missed) > 0:
		return "FAIL: " + strings.Join(r.Missed, "; ")
	case r.Informative:
		return "seen"
	}
	return "held"
}

func (r *report) held() bool {
	return !slices.ContainsFunc(r.Results, func(r *result) bool { return len(r.Missed) > 0 || r.Error != "" })
}

func readReport(path string) (*report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("%s is no result of this program: %w", path, err)
	}
	return r, nil
}

// write stores the results. Those of a file that is there already stay where they are of the same binary and of attacks
// that were not made now.
func (r *report) write(path string) error {
	all := *r
	all.Results = slices.Clone(r.Results)
	if old, err := readReport(path); err == nil && old.Version == r.Version {
		for _, one := range old.Results {
			if r.find(one.Name) == nil {
				all.Results = append(all.Results, one)
			}
		}
		order := map[string]int{}
		for i, a := range attacks() {
			order[a.name] = i
		}
		slices.SortStableFunc(all.Results, func(a, b *result) int { return order[a.Name] - order[b.Name] })
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := json.MarshalIndent(&all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}

func (r *report) find(name string) *result {
	for _, one := range r.Results {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// print shows the table; old, if there is one, is the state before.
func (r *report) print(w io.Writer, old *report) {
	fmt.Fprintf(w, "\n%s, %s, %.1f minutes, load average before %s.\n", r.Version, r.Started.Format("2006-01-02 15:04 UTC"), r.Seconds/60, r.Load)
	fmt.Fprintf(w, "Bounds: memory +%s, no death, a healthy client's worst wait %s above that in calm, no failure of its.\n", size(mostGrown), duration(mostWait))
	if r.Alone {
		fmt.Fprintln(w, "Without root there are no other users: attackers and healthy client are the servers' own user, whom servers may give more than others.")
	}
	if old != nil {
		fmt.Fprintf(w, "Before → after; before is %s of %s.\n", old.Version, old.Started.Format("2006-01-02 15:04 UTC"))
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Options.SeparateRows = true
	t.AppendHeader(table.Row{"attack", "memory", "death", "healthy client's worst wait", "found", "verdict"})
	var columns []table.ColumnConfig
	for i, width := range []int{44, 26, 14, 46, 44, 34} {
		columns = append(columns, table.ColumnConfig{Number: i + 1, WidthMax: width, WidthMaxEnforcer: wrap})
	}
	t.SetColumnConfigs(columns)
	for _, one := range r.Results {
		row := one.cells()
		if old != nil {
			before := &result{Skipped: "not run"}
			if b := old.find(one.Name); b != nil {
				before = b
			}
			for i, cell := range before.cells() {
				row[i] = beside(cell, row[i])
			}
		}
		out := table.Row{fmt.Sprintf("%s: %s", one.Name, one.What)}
		for _, cell := range row {
			out = append(out, cell)
		}
		t.AppendRow(out)
	}
	fmt.Fprintln(w, t.Render())
}

// wrap breaks lines between words, and keeps those that are there.
func wrap(cell string, width int) string {
	var lines []string
	for line := range strings.SplitSeq(cell, "\n") {
		lines = append(lines, text.WrapSoft(line, width))
	}
	return strings.Join(lines, "\n")
}

// beside joins what was before with what is now.
func beside(before, now string) string {
	if before == "" && now == "" {
		return ""
	}
	if before == "" {
		before = "-"
	}
	if now == "" {
		now = "-"
	}
	return before + "\n→ " + now
}

// cells are the columns after the first.
func (r *result) cells() []string {
	var memory, death, wait string
	if r.Memory {
		memory = fmt.Sprintf("%s +%s", r.Target, size(r.Grown))
		if r.Cut {
			memory += ", then ended"
		}
		if r.Sent > 0 {
			memory += fmt.Sprintf(" (%s sent)", size(r.Sent))
		}
	}
	if r.Skipped == "" && r.Error == "" {
		death = "none"
	}
	if len(r.Died) > 0 {
		death = strings.Join(r.Died, " ")
		if r.Killed {
			death += " (killed at the ceiling)"
		}
	}
	var lines []string
	for i, w := range r.Beside {
		line := fmt.Sprintf("%s %s (calm %s)", w.Name, duration(w.Worst), duration(r.Calm[i].Worst))
		if w.Failed > 0 {
			line += fmt.Sprintf(", %d of %d failed", w.Failed, w.Done)
		}
		lines = append(lines, line)
	}
	wait = strings.Join(lines, "\n")
	verdict := r.verdict()
	if len(r.Missed) > 0 {
		verdict = "FAIL"
		// What the other columns say already is not repeated.
		for _, m := range r.Missed {
			if !strings.HasPrefix(m, "grew") && !strings.HasSuffix(m, "died") && !strings.Contains(m, " waited ") && !strings.Contains(m, " failed: ") {
				verdict += "\n" + m
			}
		}
	}
	return []string{memory, death, wait, strings.Join(r.Found, "\n"), verdict}
}

// size prints bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10*mib:
		return fmt.Sprintf("%d MiB", n/mib)
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// duration prints milliseconds for people.
func duration(ms float64) string {
	if ms >= 1000 {
		return fmt.Sprintf("%.1f s", ms/1000)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
