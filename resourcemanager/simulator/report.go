package simulator

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table is a table of a report; the first column of its rows says what the others are.
type Table struct {
	Title  string
	Header []string
	Rows   [][]string
}

// WriteText prints a table for a terminal.
func (t Table) WriteText(out io.Writer) error {
	fmt.Fprintf(out, "%s\n", t.Title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// WriteMarkdown prints a table for a page.
func (t Table) WriteMarkdown(out io.Writer) error {
	_, err := fmt.Fprintf(out, "**%s**\n\n| %s |\n|%s\n", t.Title, strings.Join(t.Header, " | "), strings.Repeat(" --- |", len(t.Header)))
	for _, row := range t.Rows {
		if err == nil {
			_, err = fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return err
}

// Tables compares results of one workload: all of it, by size, by queue, and why jobs waited.
func Tables(results []*Result) []Table {
	header := func(first string) []string {
		h := []string{first}
		for _, r := range results {
			h = append(h, r.Name())
		}
		return h
	}
	all := Table{Title: "All jobs", Header: header("")}
	for _, f := range figures {
		row := []string{f.name}
		for _, r := range results {
			row = append(row, f.of(r))
		}
		all.Rows = append(all.Rows, row)
	}
	out := []Table{all}
	classTable := func(title, first string, names []string, find func(*Result, string) *Class) {
		t := Table{Title: title, Header: header(first)}
		for _, name := range names {
			row := []string{name}
			for _, r := range results {
				if c := find(r, name); c == nil || c.Jobs == 0 {
					row = append(row, "-")
				} else {
					row = append(row, fmt.Sprintf("%s / %s, %s / %s", span(c.Waiting.Mean), span(c.Waiting.P99), span(c.Completion.Mean), span(c.Completion.P99)))
				}
			}
			t.Rows = append(t.Rows, row)
		}
		out = append(out, t)
	}
	var sizes, queues []string
	for _, c := range classes {
		if slices.ContainsFunc(results, func(r *Result) bool { return r.size(c.name) != nil }) {
			sizes = append(sizes, c.name)
		}
	}
	for _, r := range results {
		for _, q := range r.Queues {
			if !slices.Contains(queues, q.Name) {
				queues = append(queues, q.Name)
			}
		}
	}
	slices.Sort(queues)
	const what = ": waiting mean / p99, completion mean / p99"
	classTable("By GPUs of a job"+what, "GPUs", sizes, func(r *Result, name string) *Class { return r.size(name) })
	classTable("By queue"+what, "queue", queues, func(r *Result, name string) *Class {
		if q := r.queue(name); q != nil {
			return &q.Class
		}
		return nil
	})
	shares := Table{Title: "By queue: guarantee, share of the GPU time, GPU-hours below the guarantee while it waited", Header: header("queue")}
	for _, name := range queues {
		row := []string{name}
		for _, r := range results {
			if q := r.queue(name); q == nil {
				row = append(row, "-")
			} else {
				row = append(row, fmt.Sprintf("%s, %s, %s", percent(q.Guarantee), percent(q.Share), amount(q.Owed)))
			}
		}
		shares.Rows = append(shares.Rows, row)
	}
	out = append(out, shares)
	if reasons := reasonTable(results, header("reason")); len(reasons.Rows) > 0 {
		out = append(out, reasons)
	}
	return out
}

func reasonTable(results []*Result, header []string) Table {
	t := Table{Title: "Why jobs waited: job-hours by the scheduler's reason, and jobs that were not taken", Header: header}
	hours, refused := map[string]bool{}, map[string]bool{}
	for _, r := range results {
		for _, x := range r.Reasons {
			hours[string(x.Code)] = true
		}
		for why := range r.Refused {
			refused[why] = true
		}
	}
	for _, code := range sortedKeys(hours) {
		row := []string{code}
		for _, r := range results {
			i := slices.IndexFunc(r.Reasons, func(x ReasonTime) bool { return string(x.Code) == code })
			if i < 0 {
				row = append(row, "-")
			} else {
				row = append(row, amount(r.Reasons[i].Hours))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	for _, why := range sortedKeys(refused) {
		row := []string{"not taken: " + why}
		for _, r := range results {
			row = append(row, fmt.Sprint(r.Refused[why]))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (r *Result) size(name string) *Class {
	for i := range r.Sizes {
		if r.Sizes[i].Name == name {
			return &r.Sizes[i]
		}
	}
	return nil
}

func (r *Result) queue(name string) *Queue {
	for i := range r.Queues {
		if r.Queues[i].Name == name {
			return &r.Queues[i]
		}
	}
	return nil
}

// figures are the rows of a comparison.
var figures = []struct {
	name string
	of   func(*Result) string
}{
	{"jobs finished", func(r *Result) string { return fmt.Sprintf("%d of %d", r.Finished, r.Jobs) }},
	{"waiting: mean, p50", func(r *Result) string { return span(r.Waiting.Mean) + ", " + span(r.Waiting.P50) }},
	{"waiting: p90, p99", func(r *Result) string { return span(r.Waiting.P90) + ", " + span(r.Waiting.P99) }},
	{"completion: mean, p50", func(r *Result) string { return span(r.Completion.Mean) + ", " + span(r.Completion.P50) }},
	{"completion: p90, p99", func(r *Result) string { return span(r.Completion.P90) + ", " + span(r.Completion.P99) }},
	{"last end", func(r *Result) string { return span(r.Makespan) }},
	{"GPUs at work, to the last arrival", func(r *Result) string { return percent(r.Utilisation) }},
	{"GPUs at work while a 1-GPU trial waits", func(r *Result) string {
		if r.TrialsWaited == 0 {
			return "none waited"
		}
		return percent(r.BusyWhileTrials)
	}},
	{"GPU-hours held by gangs that cannot begin", func(r *Result) string { return amount(float64(r.HeldIdle) / 3600) }},
	{"gangs that gave up what they held", func(r *Result) string { return fmt.Sprint(r.GaveUp) }},
	{"containers preempted", func(r *Result) string { return fmt.Sprint(r.Preemptions) }},
	{"GPU-hours of work lost to preemption", func(r *Result) string { return amount(float64(r.LostToPreemption) / 3600) }},
	{"of these moved, and lost by it", func(r *Result) string { return fmt.Sprintf("%d, %s", r.Moved, amount(float64(r.LostToMoving)/3600)) }},
	{"GPU-hours of work lost to failures", func(r *Result) string { return amount(float64(r.LostToFailures) / 3600) }},
	{"finish-time fairness: mean, p99, worst", func(r *Result) string { return fmt.Sprintf("%.2f, %.1f, %.1f", r.RhoMean, r.RhoP99, r.RhoWorst) }},
	{"jobs worse off than with a share of their own", func(r *Result) string { return percent(r.Unfair) }},
	{"gangs on fewest nodes, in one rack", func(r *Result) string {
		if r.Gangs == 0 {
			return "no gangs"
		}
		return percent(r.Compact) + ", " + percent(r.OneRack)
	}},
	{"containers granted, passes", func(r *Result) string { return fmt.Sprintf("%d, %d", r.Grants, r.Passes) }},
}

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

func amount(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f < 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// Differences says for each queue what the second result has other than the first.
func Differences(a, b *Result) Table {
	t := Table{
		Title:  fmt.Sprintf("From %s to %s, by queue", a.Name(), b.Name()),
		Header: []string{"queue", "jobs finished", "waiting mean", "waiting p99", "completion mean", "completion p99", "share of GPU time", "GPU-hours owed"},
	}
	names := map[string]bool{}
	for _, r := range []*Result{a, b} {
		for _, q := range r.Queues {
			names[q.Name] = true
		}
	}
	line := func(name string, x, y Class, shares, owed string) {
		t.Rows = append(t.Rows, []string{
			name, change(int64(x.Jobs), int64(y.Jobs), func(n int64) string { return fmt.Sprint(n) }),
			change(x.Waiting.Mean, y.Waiting.Mean, span), change(x.Waiting.P99, y.Waiting.P99, span),
			change(x.Completion.Mean, y.Completion.Mean, span), change(x.Completion.P99, y.Completion.P99, span), shares, owed,
		})
	}
	for _, name := range sortedKeys(names) {
		var x, y Queue
		if q := a.queue(name); q != nil {
			x = *q
		}
		if q := b.queue(name); q != nil {
			y = *q
		}
		line(name, x.Class, y.Class, percent(x.Share)+" -> "+percent(y.Share), amount(x.Owed)+" -> "+amount(y.Owed))
	}
	line("all", Class{Jobs: a.Finished, Waiting: a.Waiting, Completion: a.Completion}, Class{Jobs: b.Finished, Waiting: b.Waiting, Completion: b.Completion}, "", "")
	return t
}

// change prints two values and the difference between them.
func change(a, b int64, show func(int64) string) string {
	if cmp.Compare(a, b) == 0 {
		return show(a)
	}
	text := show(a) + " -> " + show(b)
	if a > 0 {
		text += fmt.Sprintf(" (%+.0f %%)", 100*(float64(b)/float64(a)-1))
	}
	return text
}
