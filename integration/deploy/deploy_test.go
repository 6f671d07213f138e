// Package deploy tests what lies in deploy/ against running servers.
package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/gohops/hops/integration/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// figures are the names that servers export, each with its labels and their values.
type figures map[string]map[string][]string

var (
	exported = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	label    = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	// used is a figure in an expression, with its matchers and what an aggregation or a match is by.
	used = regexp.MustCompile(`\b((?:hops|process|go)_[a-z_]+)\b(?:\{([^}]*)\})?`)
	by   = regexp.MustCompile(`\b(?:by|on|ignoring) \(([a-z_, ]*)\)`)
)

// scraped are labels that Prometheus adds.
var scraped = []string{"instance", "job"}

func gather(t *testing.T, addresses ...string) figures {
	t.Helper()
	f := figures{}
	for _, a := range addresses {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", a, resp.Status, err)
		}
		if problems, err := promlint.New(bytes.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("%s: promtool check metrics would say %v %v", a, problems, err)
		}
		for line := range strings.Lines(string(text)) {
			m := exported.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			if f[m[1]] == nil {
				f[m[1]] = map[string][]string{}
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				f[m[1]][l[1]] = append(f[m[1]][l[1]], l[2])
			}
		}
	}
	return f
}

// question is an expression, and where it stands.
type question struct{ where, expr string }

// check complains of what an expression asks for and no server exports.
func (f figures) check(q question) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, q.where+": "+fmt.Sprintf(format, args...)) }
	var labels []string
	found := used.FindAllStringSubmatch(q.expr, -1)
	if len(found) == 0 && !strings.HasPrefix(q.expr, "up{") {
		complain("no figure of ours in %q", q.expr)
	}
	for _, m := range found {
		have, ok := f[m[1]]
		if !ok {
			complain("no server has %s", m[1])
			continue
		}
		for name := range have {
			labels = append(labels, name)
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(scraped, l[1]) && !slices.Contains(have[l[1]], l[2]) {
				complain("%s has no %s=%q, but %q", m[1], l[1], l[2], have[l[1]])
			}
		}
	}
	for _, m := range by.FindAllStringSubmatch(q.expr, -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			if name = strings.TrimSpace(name); !slices.Contains(scraped, name) && !slices.Contains(labels, name) {
				complain("nothing in %q has a label %s", q.expr, name)
			}
		}
	}
	return wrong
}

// Every figure, label and value that an alert or a panel of the dashboard asks for is exported by some server of a cluster of three namenodes.
func TestAlertsAndDashboardAskForFiguresThatExist(t *testing.T) {
	c := cluster.Start(t, cluster.Config{Namenodes: 3, NodeManager: true, GPUs: "sim:2"})
	var addresses []string
	for _, n := range c.File().Namenodes {
		addresses = append(addresses, n.HTTP)
	}
	addresses = append(addresses, c.File().ResourceManagers[0].HTTP, c.Server("dn1").Datanode.HTTP, c.Server("nm1").NodeManager.HTTP)
	var questions []question

	alerts, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	name, n := "", 0
	for line := range strings.Lines(string(alerts)) {
		line = strings.TrimSpace(line)
		if alert, ok := strings.CutPrefix(line, "- alert: "); ok {
			name = alert
		}
		if expr, ok := strings.CutPrefix(line, "expr: "); ok {
			n++
			questions = append(questions, question{"alert " + name, expr})
		}
	}
	if n < 20 {
		t.Errorf("%d expressions found in the alert rules", n)
	}

	text, err := os.ReadFile("../../deploy/grafana/hops.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, p := range dashboard.Panels {
		if slices.Contains(ids, p.ID) {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids = append(ids, p.ID)
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			questions = append(questions, question{"panel " + p.Title, target.Expr})
		}
	}
	if len(ids) < 30 {
		t.Errorf("%d panels found in the dashboard", len(ids))
	}
	// Servers are asked one after the other, and some figures only the namenode has that leads just then.
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		f := gather(t, addresses...)
		var wrong []string
		for _, q := range questions {
			wrong = append(wrong, f.check(q)...)
		}
		if len(wrong) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Error(strings.Join(wrong, "\n"))
			break
		}
	}
	promtool(t, dashboardRules(t, text))
}

// dashboardRules makes rules of the dashboard's expressions, for promtool to parse.
func dashboardRules(t *testing.T, text []byte) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("groups: [{name: dashboard, rules: [\n")
	for _, m := range regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(text, -1) {
		b.WriteString("{record: 'panel', labels: {n: '" + string(rune('a'+b.Len()%26)) + "'}, expr: " + string(m[1]) + "},\n")
	}
	b.WriteString("]}]\n")
	path := t.TempDir() + "/dashboard.yaml"
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func promtool(t *testing.T, dashboard string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed (Debian: prometheus): rules and expressions are not parsed")
		return
	}
	for _, words := range [][]string{
		{"check", "rules", "--lint=none", dashboard}, {"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "prometheus.yaml"},
	} {
		cmd := exec.Command(program, words...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(words, " "), err, out)
		}
	}
}

// Each alert has a unit test that makes it fire and the how-to says what to do about it.
func TestEachAlertIsTestedAndExplained(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tests, page := read("../../deploy/prometheus/alerts_test.yaml"), read("../../docs/how-to/monitoring.md")
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read("../../deploy/prometheus/alerts.yaml"), -1) {
		if !strings.Contains(tests, "alertname: "+m[1]+"\n        exp_alerts:\n") {
			t.Errorf("no unit test makes %s fire", m[1])
		}
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("docs/how-to/monitoring.md does not say what to do for %s", m[1])
		}
	}
}
