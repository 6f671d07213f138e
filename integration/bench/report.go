package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/cmd/bench"
)

// report is everything that a run found out.
type report struct {
	Quick     bool      `json:"quick"`
	Alone     bool      `json:"alone,omitempty"`
	Started   time.Time `json:"started"`
	Seconds   float64   `json:"seconds"`
	Version   string    `json:"version"`
	Rounds    int       `json:"rounds"`
	Phase     float64   `json:"phase_seconds"`
	Machine   machine   `json:"machine"`
	LoadAfter string    `json:"load_after"`
	// Took is the minutes of each group.
	Took map[string]float64 `json:"group_minutes"`
	// Missing are groups that could not be measured, Cut those that were left out for time.
	Missing []string `json:"missing,omitempty"`
	// Repeated are turns that failed and were taken a second time.
	Repeated  []string  `json:"repeated,omitempty"`
	Cut       []string  `json:"cut,omitempty"`
	Promises  []promise `json:"promises,omitempty"`
	Tables    []*table  `json:"tables,omitempty"`
	Failovers []failed  `json:"failovers,omitempty"`
	Large     []large   `json:"large,omitempty"`
}

// promise is one of hops's own.
type promise struct {
	What     string  `json:"what"`
	Unit     string  `json:"unit"`
	Measured float64 `json:"measured"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	N        int     `json:"n"`
	Goal     string  `json:"goal"`
	Kept     bool    `json:"kept"`
	Note     string  `json:"note,omitempty"`
}

// table is the rows of one comparison.
type table struct {
	Group string   `json:"group"`
	Title string   `json:"title"`
	Sides []string `json:"sides"`
	Rows  []*row   `json:"rows"`
}

// row is one operation with the results of all rounds by side.
type row struct {
	Name   string                    `json:"name"`
	Unit   string                    `json:"unit"`
	Rounds map[string][]bench.Result `json:"rounds"`
}

// megabytes is the unit of what is measured in bytes; one operation of anything else but files is one request.
const megabytes = "MB/s"

// units is what a row's figures are of: per is behind its name, and one behind its rate. Nothing for operations.
func (w *row) units() (per, one string) {
	switch w.Unit {
	case megabytes:
		return ", per MB", " MB"
	case "files/s":
		return ", per file", " files"
	}
	return "", ""
}

func (t *table) add(side string, res bench.Result) {
	for _, w := range t.Rows {
		if w.Name == res.Name {
			w.Rounds[side] = append(w.Rounds[side], res)
			return
		}
	}
	t.Rows = append(t.Rows, &row{Name: res.Name, Unit: res.Unit, Rounds: map[string][]bench.Result{side: {res}}})
}

// spread is a median with its range.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	n := len(sorted)
	return spread{(sorted[n/2] + sorted[(n-1)/2]) / 2, sorted[0], sorted[n-1]}
}

func (w *row) of(side string, value func(bench.Result) float64) spread {
	var all []float64
	for _, res := range w.Rounds[side] {
		all = append(all, value(res))
	}
	return spreadOf(all)
}

func rate(r bench.Result) float64      { return r.PerSecond }
func serverCPU(r bench.Result) float64 { return r.ServerCPU }
func clientCPU(r bench.Result) float64 { return r.ClientCPU }
func half(r bench.Result) float64      { return r.P50 }
func tail(r bench.Result) float64      { return r.P99 }
func others(r bench.Result) float64    { return r.Others }

// goal is the least to reach: the servers' CPU in microseconds an operation (per megabyte: 1e6 / megabytes per CPU
// second), and what a peer took on the idle machine where it was set: the least that was seen of HDFS, or what an empty
// server took. Machines differ, so the goal also stands as a share of what the peer takes in the same run.
type goal struct {
	most, peer float64 // peer 0: there is no share
	above      string  // what the goal is above: labelEmpty, or the row of one server; empty: nothing
	rate       float64 // if not 0, the goal is so many times HDFS's rate, and no CPU time
	half       float64 // if not 0, the goal is that half of the operations take so many milliseconds at most
}

const (
	oneServer = "one server"
	// emptyRequest is what an empty server took, in microseconds a request, where the goals above it were set.
	emptyRequest = 8.3
)

var goals = map[string]map[string]goal{
	"single": {
		"mkdir": {most: 18, peer: 26}, "create+close": {most: 40, peer: 65},
		"stat": {most: 2.5, peer: emptyRequest, above: labelEmpty}, "open": {most: 3, peer: emptyRequest, above: labelEmpty},
		"list of 16": {most: 6, peer: emptyRequest, above: labelEmpty}, "rename": {most: 18, peer: 34}, "delete": {most: 18, peer: 31},
		"spotify mix": {most: 15, peer: 37}, "stat, 4 x 64": {most: 1.6},
		"write 4 KiB x1": {most: 80, peer: 1400}, "read 4 KiB x1": {most: 25, peer: 150},
		"write seq x1": {most: 1e6 / 1000, peer: 1e6 / 950}, "read seq x1": {most: 1e6 / 3000, peer: 1e6 / 3068},
		"write seq x1, near": {rate: 1.1}, "read seq x1, near": {rate: 2}, rowJavaWrite: {half: 60}, rowJavaRead: {half: 10},
	},
	"replicated": {
		"mkdir": {most: 38, peer: 48}, "create+close": {most: 80, peer: 108},
		"stat": {most: 1, above: oneServer}, "rename": {most: 38, peer: 55}, "delete": {most: 38, peer: 59}, "spotify mix": {most: 22, peer: 52},
		"write 4 KiB x3": {most: 200, peer: 3600}, "read 4 KiB x3": {most: 25, peer: 150},
		"write seq x3": {most: 1e6 / 420, peer: 1e6 / 288}, "read seq x3": {most: 1e6 / 3000, peer: 1e6 / 3068},
	},
}

// unsyncedGoal is how many times as fast as HDFS hops is to write without synconclose.
const unsyncedGoal = 1.1

// verdict says whether the goal of a row is reached, by itself and as a share of the peer's CPU; empty: there is no goal, or what it is
// above was not measured.
func (r *report) verdict(t *table, w *row) string {
	g, ok := goals[t.Group][w.Name]
	if !ok {
		return ""
	}
	if g.half > 0 {
		return fmt.Sprintf("p50 ≤ %s ms: %s", number(g.half), reached(w.of(labelHops, half).median <= g.half))
	}
	if g.rate > 0 {
		ours, peer := w.of(labelHops, rate).median, w.of(labelHDFS, rate).median
		if peer == 0 {
			return ""
		}
		return fasterBy(g.rate, ours, peer)
	}
	ours, peer, of := w.of(labelHops, serverCPU).median, w.of(labelHDFS, serverCPU).median, labelHDFS
	switch g.above {
	case labelEmpty:
		peer, of = w.of(labelEmpty, serverCPU).median, "it"
		ours -= peer
	case oneServer:
		peer, of = r.row("single", w.Name).of(labelHops, serverCPU).median, "it"
		ours -= peer
	}
	if g.above == "" {
		return g.judge(ours, peer, of)
	}
	if peer == 0 {
		return ""
	}
	return number(ours) + " above the " + g.above + ", " + g.judge(ours, peer, of)
}

// row finds a row; one without results if there is none.
func (r *report) row(group, name string) *row {
	for _, t := range r.Tables {
		for _, w := range t.Rows {
			if t.Group == group && w.Name == name {
				return w
			}
		}
	}
	return &row{}
}

// judge says whether the goal is reached, by itself and as a share of the peer's CPU (0: the peer did not run).
func (g goal) judge(ours, peer float64, of string) string {
	text := fmt.Sprintf("≤ %s: %s", number(g.most), reached(ours <= g.most))
	if peer > 0 && g.peer > 0 {
		share := g.most / g.peer
		text += fmt.Sprintf("; ≤ %.2f of %s: %s", share, of, reached(ours <= share*peer))
	}
	return text
}

// fasterBy says whether a rate is so many times the peer's.
func fasterBy(times, ours, peer float64) string {
	return fmt.Sprintf("≥ %.1f times HDFS's rate: %s", times, reached(ours >= times*peer))
}

// number prints three digits that count.
func number(v float64) string {
	switch {
	case v >= 100000:
		return fmt.Sprintf("%.0fk", v/1000)
	case v >= 10000:
		return fmt.Sprintf("%.1fk", v/1000)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (s spread) String() string {
	return fmt.Sprintf("%s (%s-%s)", number(s.median), number(s.low), number(s.high))
}

func ratio(a, b float64) string {
	if a <= 0 || b <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

// markdown is the report for people.
func (r *report) markdown(name string) string {
	var b strings.Builder
	title := "Benchmark"
	if r.Quick {
		title = "Quick benchmark: main rows of one server, few rounds"
	}
	if len(r.Missing) > 0 {
		title = "INCOMPLETE: " + title
	}
	m := r.Machine
	fmt.Fprintf(&b, "# %s\n\n%s, %s, %d cores (%s), %.0f GiB, %s, Linux %s, TCP %s, %s, %s. Took %.0f minutes. Before, others used %.2f cores, load average %s; after, load average %s.\n\n",
		title, r.Started.Format("2006-01-02 15:04 UTC"), r.Version, m.Cores, m.CPU, m.MemoryGiB, m.Filesystem, m.Kernel, cmp.Or(m.Congestion, "unknown"), m.Go, cmp.Or(m.Java, "no Java"), r.Seconds/60, m.Busy, m.Load, r.LoadAfter)
	for _, what := range r.Missing {
		fmt.Fprintf(&b, "**Missing, because it failed:** %s\n\n", what)
	}
	for _, what := range r.Repeated {
		fmt.Fprintf(&b, "**Failed, then repeated:** %s\n\n", what)
	}
	for _, what := range r.Cut {
		fmt.Fprintf(&b, "**Left out for time:** %s\n\n", what)
	}
	if r.Alone {
		b.WriteString("**Apache HDFS was not measured**, so there are no ratios.\n\n")
	}
	fmt.Fprintf(&b, "Median (lowest-highest) of %d rounds of %.3g s an operation, the sides taking turns, after warm-up. Clients and servers share the cores. "+
		"CPU is user + system time of all servers, or of the client, per operation. *Others* is what the rest of the machine used meanwhile: rates fall with it, CPU per operation hardly. "+
		"64 clients with a connection each, one request at a time; rows with \"4 x 64\": 4 connections with 64 requests at a time each. The same Go client on both sides. "+
		"Minor rows have every second round only, and say how many. Goals were set where HDFS was faster or slower than here, so they stand twice: as set, and as the share of HDFS's CPU that they were then. How it is measured: [benchmarks](../../../docs/explanation/benchmarks.md).\n", r.Rounds, r.Phase)
	if len(r.Promises) > 0 {
		b.WriteString("\n## Promises\n\n| what | measured | n | goal | kept |\n| --- | --- | --- | --- | --- |\n")
		for _, p := range r.Promises {
			kept := "yes"
			if !p.Kept {
				kept = "**no**"
			}
			what := p.What
			if p.Note != "" {
				what += " (" + p.Note + ")"
			}
			fmt.Fprintf(&b, "| %s | %s %s | %d | %s | %s |\n", what, spread{p.Measured, p.Low, p.High}, p.Unit, p.N, p.Goal, kept)
		}
	}
	for _, t := range r.Tables {
		r.table(&b, t)
		fmt.Fprintf(&b, "\n![%s](%s-%s.svg)\n", t.Title, name, t.Group)
	}
	if len(r.Failovers) > 0 {
		b.WriteString("\n## Failover under load\n\n16 clients create files, a server is killed, every acknowledged file is looked for afterwards.\n\n" +
			"| side | what dies | seconds to the first success, by run | last writer | acknowledged | lost |\n| --- | --- | --- | --- | --- | --- |\n")
		for _, f := range r.Failovers {
			var first, last []string
			acknowledged, lost := int64(0), int64(0)
			for _, run := range f.Runs {
				first, last = append(first, fmt.Sprintf("%.2f", run.Seconds)), append(last, fmt.Sprintf("%.2f", run.Last))
				acknowledged += run.Acknowledged
				lost += run.Lost
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %d |\n", f.Side, f.What, strings.Join(first, " · "), strings.Join(last, " · "), acknowledged, lost)
		}
	}
	if len(r.Failovers) > 0 {
		fmt.Fprintf(&b, "\n![Failover](%s-failover.svg)\n", name)
	}
	if len(r.Large) > 0 {
		r.largeTable(&b)
		fmt.Fprintf(&b, "\n![A large namespace](%s-large.svg)\n", name)
	}
	if len(r.Took) > 0 {
		var took []string
		for _, g := range groups {
			if minutes, ok := r.Took[g.name]; ok {
				took = append(took, fmt.Sprintf("%s %.1f", g.name, minutes))
			}
		}
		fmt.Fprintf(&b, "\nMinutes: %s.\n", strings.Join(took, ", "))
	}
	return b.String()
}

// millions prints a number of files.
func millions(n int64) string { return fmt.Sprintf("%.3g M", float64(n)/1e6) }

// largeTable has a row per figure and a column per side, because sides may have different numbers of files.
func (r *report) largeTable(b *strings.Builder) {
	b.WriteString("\n## A large namespace\n\nEmpty files, a thousand a directory, filled over 4 connections with 64 requests at a time each. The namenode is killed with kill -9 and started again; " +
		"HDFS has a checkpoint made just before, hops what it has made by itself. Waits are the longest of another client's stats, in a loop.\n\n| figure |")
	for _, l := range r.Large {
		fmt.Fprintf(b, " %s, %s files |", l.Side, millions(l.Files))
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(r.Large)) + "\n")
	for _, f := range largeFigures {
		fmt.Fprintf(b, "| %s |", f.name)
		for _, l := range r.Large {
			s, n := f.of(l)
			if n == 1 {
				fmt.Fprintf(b, " %s |", number(s.median))
			} else {
				fmt.Fprintf(b, " %s, n=%d |", s, n)
			}
		}
		b.WriteString("\n")
	}
}

// figure is one property of a large namespace.
type figure struct {
	name string
	of   func(large) (spread, int)
}

var largeFigures = func() []figure {
	one := func(value func(large) float64) func(large) (spread, int) {
		return func(l large) (spread, int) { return spreadOf([]float64{value(l)}), 1 }
	}
	many := func(values func(large) []float64) func(large) (spread, int) {
		return func(l large) (spread, int) { return spreadOf(values(l)), len(values(l)) }
	}
	tree := func(name string, value func(bench.Subtree) float64) func(large) (spread, int) {
		return many(func(l large) []float64 {
			var out []float64
			for _, s := range l.Subtrees {
				if strings.HasPrefix(s.Name, name) {
					out = append(out, value(s))
				}
			}
			return out
		})
	}
	took := func(s bench.Subtree) float64 { return s.Seconds * 1000 }
	return []figure{
		{"filled, files/s", one(func(l large) float64 { return l.Fill.PerSecond })},
		{"servers' CPU per file, us", one(func(l large) float64 { return l.Fill.ServerCPU })},
		{"namenode resident, filled, GB", one(func(l large) float64 { return float64(l.Resident) / 1e9 })},
		{"the same after the restart, GB", one(func(l large) float64 { return float64(l.Restarted) / 1e9 })},
		{"restart to the first answer, s", many(func(l large) []float64 { return l.Restart })},
		{"shell, `-ls /`, s", many(func(l large) []float64 { return l.Shell })},
		{"rename of the directory, ms", tree("rename", took)},
		{"others' longest wait meanwhile, ms", tree("rename", func(s bench.Subtree) float64 { return s.Stall })},
		{"delete of the directory, ms", tree("delete", took)},
		{"others' longest wait meanwhile and 1 s later, ms", tree("delete", func(s bench.Subtree) float64 { return s.Stall })},
		{"others' longest wait while nothing happens, ms", tree("", func(s bench.Subtree) float64 { return s.Quiet })},
	}
}()

func (r *report) table(b *strings.Builder, t *table) {
	switch {
	case slices.Contains(t.Sides, labelTLS):
		tlsTable(b, t)
		return
	case t.Group == groupErasure:
		codedTable(b, t)
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", t.Title)
	both := slices.Contains(t.Sides, labelHDFS)
	if both {
		b.WriteString("| operation | hops, per second | HDFS, per second | hops / HDFS | hops p50, p99 ms | HDFS p50, p99 ms | hops servers, CPU us | HDFS servers, CPU us | HDFS / hops | client CPU us, hops; HDFS | others, cores | goal, CPU us |\n")
		b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	} else {
		b.WriteString("| operation | hops, per second | p50, p99 ms | servers, CPU us | client CPU us | others, cores | goal, CPU us |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	}
	for _, w := range t.Rows {
		per, unit := w.units()
		name := w.Name + per
		h := w.of(labelHops, serverCPU)
		verdict := r.verdict(t, w)
		latency := func(side string) string {
			return fmt.Sprintf("%s, %s", number(w.of(side, half).median), number(w.of(side, tail).median))
		}
		if !both {
			name += failures(w, labelHops)
			fmt.Fprintf(b, "| %s | %s%s | %s | %s | %s | %s | %s |\n", name, w.of(labelHops, rate), unit, latency(labelHops), h, number(w.of(labelHops, clientCPU).median), number(w.of(labelHops, others).median), verdict)
			continue
		}
		pairs := [][2]string{{labelHops, labelHDFS}, {labelHops, labelSynced}, {labelUnsynced, labelHDFS}}
		for i, pair := range pairs {
			ours, peer := pair[0], pair[1]
			if i > 0 && (len(w.Rounds[ours]) == 0 || len(w.Rounds[peer]) == 0) {
				continue
			}
			label := name
			switch {
			case peer == labelSynced:
				label += ", HDFS with synconclose"
				verdict = ""
			case ours == labelUnsynced:
				label += ", without synconclose, as HDFS's default"
				verdict = fasterBy(unsyncedGoal, w.of(ours, rate).median, w.of(peer, rate).median)
			}
			if n := len(w.Rounds[peer]); n < r.Rounds {
				label += fmt.Sprintf(" (n=%d)", n)
			}
			label += failures(w, ours, peer)
			h, p := w.of(ours, serverCPU), w.of(peer, serverCPU)
			fmt.Fprintf(b, "| %s | %s%s | %s%s | %s | %s | %s | %s | %s | %s | %s; %s | %s; %s | %s |\n", label,
				w.of(ours, rate), unit, w.of(peer, rate), unit, ratio(w.of(ours, rate).median, w.of(peer, rate).median),
				latency(ours), latency(peer), h, p, ratio(p.median, h.median),
				number(w.of(ours, clientCPU).median), number(w.of(peer, clientCPU).median),
				number(w.of(ours, others).median), number(w.of(peer, others).median), verdict)
		}
	}
	r.emptyTable(b, t)
	if both && t.Group == "single" {
		b.WriteString("\nhops fsyncs a block before close returns; HDFS does only with `dfs.datanode.synconclose`, so rows with data stand there twice, and one of them also with a hops that has it off. " +
			"Rows with \"near\": hops' client uses the datanode's Unix-domain socket, and reads by descriptors; HDFS has no native library for either, so its client stays with TCP.\n")
	} else if both {
		b.WriteString("\nhops fsyncs every replica of a block before close returns; HDFS does only with `dfs.datanode.synconclose`, so rows with data stand there twice, and one of them also with a hops that has it off; the second HDFS and hops have one namenode.\n")
	}
}

// emptyTable has what the empty server takes, and what hops takes above it.
func (r *report) emptyTable(b *strings.Builder, t *table) {
	if !slices.Contains(t.Sides, labelEmpty) {
		return
	}
	b.WriteString("\nThe empty server answers the same requests with the same bytes, and does nothing else: what a request over loopback costs any server in Go. create+close and rename are as many requests as here.\n\n" +
		"| operation | empty server, per second | p50, p99 ms | empty server, CPU us | hops servers, CPU us | above the empty server, us |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, w := range t.Rows {
		if len(w.Rounds[labelEmpty]) == 0 {
			continue
		}
		e, h := w.of(labelEmpty, serverCPU), w.of(labelHops, serverCPU)
		fmt.Fprintf(b, "| %s | %s | %s, %s | %s | %s | %s |\n", w.Name+failures(w, labelEmpty), w.of(labelEmpty, rate), number(w.of(labelEmpty, half).median),
			number(w.of(labelEmpty, tail).median), e, h, number(h.median-e.median))
	}
}

// failures says how many operations of a row failed.
func failures(w *row, sides ...string) string {
	var out string
	for _, side := range sides {
		failed, done := int64(0), int64(0)
		for _, res := range w.Rounds[side] {
			failed, done = failed+res.Errors, done+res.Ops
		}
		if failed > 0 {
			out += fmt.Sprintf(" (%s: %d of %d FAILED)", side, failed, done)
		}
	}
	return out
}

// empty: nothing was measured.
func (r *report) empty() bool {
	return len(r.Promises)+len(r.Tables)+len(r.Failovers)+len(r.Large) == 0
}

// write stores the report: JSON, Markdown and plots.
func (r *runner) write() error {
	name := "full"
	if r.quick {
		name = "quick"
	}
	if r.groups != "" || r.alone {
		name = "part"
	}
	missing := strings.Join(r.report.Missing, "; ")
	if missing != "" {
		name = "incomplete"
		if r.report.empty() {
			return errors.New(missing)
		}
	}
	if err := os.MkdirAll(r.options.out, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r.report, "", " ")
	if err != nil {
		return err
	}
	text := r.report.markdown(name)
	files := map[string][]byte{name + ".json": append(raw, '\n'), name + ".md": []byte(text)}
	for _, t := range r.report.Tables {
		files[name+"-"+t.Group+".svg"] = []byte(plot(t))
	}
	if len(r.report.Failovers) > 0 {
		files[name+"-failover.svg"] = []byte(plotFailovers(r.report.Failovers))
	}
	if len(r.report.Large) > 0 {
		files[name+"-large.svg"] = []byte(plotLarge(r.report.Large))
	}
	for file, data := range files {
		if err := os.WriteFile(filepath.Join(r.options.out, file), data, 0o644); err != nil {
			return err
		}
	}
	written := filepath.Join(r.options.out, name+".md")
	if missing != "" {
		return fmt.Errorf("INCOMPLETE, what there is stands in %s; missing: %s", written, missing)
	}
	fmt.Fprintf(r.screen, "\n%s\nwritten to %s\n", text, written)
	if r.quick {
		fmt.Fprintln(r.screen, "This was the quick run: one server, few rounds. `make bench` does all rows.")
	}
	return nil
}
