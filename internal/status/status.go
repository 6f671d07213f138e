// Package status is what every server tells of itself, at the same addresses of every HTTP port: a page for people at "/",
// probes at /livez and /readyz, facts as JSON at /health, and figures for Prometheus at /metrics. None of it needs a right:
// it names no user, path or file.
package status

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gohops/hops/internal/jmx"
	"github.com/gohops/hops/internal/latest"
	"github.com/gohops/hops/internal/security"
)

// Version is the program's, set once when it starts.
var Version = "unknown"

// Report is how a server is at this moment.
type Report struct {
	// ID is its name among those of its role, "" where there are no names.
	ID string
	// State is one word, for example "active".
	State string
	// Problem says why the server is not ready; "": it is.
	Problem string
	// Warnings are what is wrong although it is ready.
	Warnings []string
	// Facts and Links are shown on the page, in this order.
	Facts []Fact
	Links []Link
	// Detail is a struct whose members /health has behind those of Health; nil: no more. Names may not be used twice.
	Detail any
}

// Fact is one line of the page.
type Fact struct{ Name, Value string }

// Link is an address that a reader of the page may go to.
type Link struct{ Address, Text string }

// Sample takes the figures of one scrape. Names begin with hops_ and end in their unit; counters end in _total. Labels are
// pairs of name and value.
type Sample interface {
	Gauge(name, help string, value float64, labels ...string)
	Counter(name, help string, value float64, labels ...string)
}

// Config describes the pages of one server. The functions are called at requests, each of them one call at a time, and Report ten times a second at most. They had
// better not wait: what has not come after Patience the pages do without, as described there.
type Config struct {
	// Role is what the server is, for example "namenode".
	Role string
	// Port is how the list of rights calls the HTTP port.
	Port string
	// Page is where the page for people is. Default "/".
	Page string
	// Aliases are paths at which users of Hadoop look for the page; they lead to it.
	Aliases []string
	Report  func() Report
	// Figures may be nil.
	Figures func(Sample)
	// Beans are what tools that watch Hadoop find at /jmx, beside those of the process; nil: no more.
	Beans func() []jmx.Bean
}

// Pages serves what a server tells of itself.
type Pages struct {
	config  Config
	started time.Time
	mux     *http.ServeMux

	// Whoever watches a server has to hear that it hangs, and must not pile up what hangs: so each of these is waited for by one goroutine, and by who asks for Patience.
	reports latest.Value[Report]
	figures latest.Value[[]prometheus.Metric]
	beans   latest.Value[[]jmx.Bean]
}

// Patience is how long a page waits for what the server says. After that it has what the server said last, and once it has waited for Hangs the server is not ready:
// something that it needs to say how it is, such as a lock, is held by what does not come to an end, such as a read of a silent disk.
const (
	Patience = 2 * time.Second
	Hangs    = 5 * time.Second
)

// pause lies between the beginnings of two reports. Anybody may ask at any rate, and making one walks what the server has
// under its locks.
const pause = 100 * time.Millisecond

// report is how the server is. What happened before the call is in it: an operator who asks after a change sees the change.
// So who asks too soon waits for the next report, together with all the others who do.
func (p *Pages) report() Report {
	a := p.reports.Ask(Patience, p.config.Report)
	r := a.Value
	if a.Late.IsZero() {
		return r
	}
	what := fmt.Sprintf("it has not said how it is since %s, for %.0f s: something that it waits for does not come, a disk for example", Stamp(a.Late), a.Since().Seconds())
	switch {
	case !a.Known():
		r.State, r.Problem = "unknown", what
	case a.Since() < Hangs:
		r.Warnings = append(slices.Clone(r.Warnings), what)
	default:
		r.Problem = what + "; all else is as of " + Stamp(a.At)
	}
	return r
}

// Stamp is a point of time as pages have it, in UTC.
func Stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05Z") }

// New makes the pages of a server.
func New(c Config) *Pages {
	if c.Page == "" {
		c.Page = "/"
	}
	p := &Pages{config: c, started: time.Now(), mux: http.NewServeMux()}
	p.reports.Pause = pause
	for _, r := range p.routes() {
		p.mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "no-store")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("X-Frame-Options", "DENY")
			h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
			r.serve(w, req)
		})
	}
	return p
}

type route struct {
	pattern string
	serve   http.HandlerFunc
}

func (p *Pages) routes() []route {
	out := []route{
		{pattern(p.config.Page), p.page},
		{"GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }},
		{"GET /readyz", p.ready},
		{"GET /health", p.health},
		{"GET /metrics", p.metrics().ServeHTTP},
		{"GET /jmx", p.jmx()},
	}
	for _, alias := range p.config.Aliases {
		out = append(out, route{pattern(alias), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, p.config.Page, http.StatusFound) }})
	}
	return out
}

// pattern is the pattern of one path alone.
func pattern(path string) string {
	if path == "/" {
		return "GET /{$}"
	}
	return "GET " + path
}

// Routes lists what the pages serve.
func (p *Pages) Routes() []security.Route {
	var out []security.Route
	for _, r := range p.routes() {
		out = append(out, security.Route{Port: p.config.Port, Name: r.pattern, Right: security.Open})
	}
	return out
}

// Serves reports whether the request is for one of the pages.
func (p *Pages) Serves(r *http.Request) bool {
	_, pattern := p.mux.Handler(r)
	return pattern != ""
}

func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, s) // the client has gone
}

func (r *Report) code() int {
	if r.Problem != "" {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// ready answers in Kubernetes' form: a line for what was looked at, and 503 while the server is of no use.
func (p *Pages) ready(w http.ResponseWriter, _ *http.Request) {
	r := p.report()
	if r.Problem != "" {
		text(w, r.code(), fmt.Sprintf("[-]%s %s\nnot ready\n", r.State, r.Problem))
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[+]%s\n", r.State)
	for _, warning := range r.Warnings {
		fmt.Fprintf(&b, "[!]%s\n", warning)
	}
	b.WriteString("ok\n")
	text(w, r.code(), b.String())
}

// Health is what every /health begins with; the members behind it depend on the role.
type Health struct {
	Role     string   `json:"role"`
	ID       string   `json:"id,omitempty"`
	Version  string   `json:"version"`
	State    string   `json:"state"`
	Ready    bool     `json:"ready"`
	Problem  string   `json:"problem,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Notices are what everybody should know of the server's configuration (Notices).
	Notices []string `json:"notices,omitempty"`
}

// Notices are said with every health answer and on every page of this process: choices by which it is less safe than it could be.
// They are set before the first page is served.
var Notices []string

func (p *Pages) health(w http.ResponseWriter, _ *http.Request) {
	r := p.report()
	body, err := json.Marshal(Health{
		Role: p.config.Role, ID: r.ID, Version: Version, State: r.State, Ready: r.Problem == "", Problem: r.Problem, Warnings: r.Warnings, Notices: Notices,
	})
	if err == nil && r.Detail != nil {
		var detail []byte
		if detail, err = json.Marshal(r.Detail); len(detail) > len("{}") {
			body = append(append(body[:len(body)-1], ','), detail[1:]...)
		}
	}
	if err != nil {
		text(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(r.code())
	_, _ = w.Write(append(body, '\n')) // the client has gone
}

// Scrapes at the same time beyond this many are refused: each walks what the server has.
const mostScrapes = 4

// jmx serves the beans, to as many at a time as there may be scrapes.
func (p *Pages) jmx() http.HandlerFunc {
	beans := jmx.Handler(func() []jmx.Bean {
		out := jmx.Process(Version)
		if p.config.Beans != nil {
			out = append(slices.Clone(p.beans.Ask(Patience, p.config.Beans).Value), out...)
		}
		return out
	})
	turns := make(chan struct{}, mostScrapes)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			beans.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			text(w, http.StatusServiceUnavailable, fmt.Sprintf("%d others ask already: try again\n", mostScrapes))
		}
	}
}

func (p *Pages) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{p})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes, Timeout: 10 * time.Second})
}

// collector collects what the server says at each scrape; nothing is declared before.
type collector struct{ *Pages }

// Describe implements prometheus.Collector: without descriptions a collector is an unchecked one.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Figures that do not come are those that came last.
func (c collector) Collect(to chan<- prometheus.Metric) {
	var r Report
	var of latest.Answer[[]prometheus.Metric]
	latest.Together(func() { r = c.report() }, func() {
		if c.config.Figures != nil {
			of = c.figures.Ask(Patience, func() []prometheus.Metric {
				var s sample
				c.config.Figures(&s)
				return s.all
			})
		}
	})
	s := sample{all: slices.Clone(of.Value)}
	s.Gauge("hops_build_info", "The program's version; always 1.", 1, "version", Version, "role", c.config.Role)
	s.Gauge("hops_ready", "1 while the server is ready, as /readyz says.", Bool(r.Problem == ""), "role", c.config.Role)
	s.Gauge("hops_figures_late_seconds", "For how long the server has not said the other figures of hops, which are old then; 0: they are of now.", of.Since().Seconds(), "role", c.config.Role)
	for _, m := range s.all {
		to <- m
	}
}

// sample is a Sample that keeps what it gets.
type sample struct{ all []prometheus.Metric }

func (s *sample) Gauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

func (s *sample) Counter(name, help string, value float64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, value, labels)
}

func (s *sample) send(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, strings.ToValidUTF8(labels[i+1], "\ufffd"))
	}
	desc := prometheus.NewDesc(name, help, names, nil)
	m, err := prometheus.NewConstMetric(desc, kind, value, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	s.all = append(s.all, m)
}

// Bool is 1 or 0, as Prometheus has truth.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>hops {{.Role}}{{with .ID}} {{.}}{{end}}: {{.State}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: .15em 1.5em .15em 0; font-weight: normal; }
th { color: #666; }
.bad { color: #b00020; font-weight: 600; }
.good { color: #1b6e1b; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } th { color: #999; } a { color: #8ab4f8; } .bad { color: #ff8a80; } .good { color: #9ccc9c; } }
</style>
</head>
<body>
<h1>hops {{.Role}}{{with .ID}} {{.}}{{end}}</h1>
<p>{{if .Problem}}<span class="bad">not ready</span> ({{.State}}): {{.Problem}}{{else}}<span class="good">ready</span> ({{.State}}){{end}}</p>
{{range .Notices}}<p class="bad">{{.}}</p>
{{end}}{{range .Warnings}}<p class="bad">{{.}}</p>
{{end}}<table>
{{range .Facts}}<tr><th>{{.Name}}</th><td>{{.Value}}</td></tr>
{{end}}</table>
<ul>
{{range .Links}}<li><a href="{{.Address}}">{{.Address}}</a> {{.Text}}</li>
{{end}}</ul>
</body>
</html>
`))

// probes are the links of every page.
var probes = []Link{
	{"/health", "how it is, as JSON"},
	{"/readyz", "200 while it is of use, 503 while it is not"},
	{"/livez", "200 while the process works"},
	{"/metrics", "figures for Prometheus"},
	{"/jmx", "figures for tools that watch Hadoop"},
}

func (p *Pages) page(w http.ResponseWriter, r *http.Request) {
	report := p.report()
	facts := append([]Fact{{"version", Version}, {"up since", p.started.UTC().Format("2006-01-02 15:04:05 UTC")}}, report.Facts...)
	links := append(append([]Link{}, report.Links...), probes...)
	if !strings.Contains(r.Header.Get("Accept"), "text/html") { // curl
		var b strings.Builder
		fmt.Fprintf(&b, "hops %s", p.config.Role)
		if report.ID != "" {
			fmt.Fprintf(&b, " %s", report.ID)
		}
		if report.Problem != "" {
			fmt.Fprintf(&b, ": not ready (%s): %s\n\n", report.State, report.Problem)
		} else {
			fmt.Fprintf(&b, ": ready (%s)\n\n", report.State)
		}
		for _, notice := range Notices {
			fmt.Fprintf(&b, "notice: %s\n", notice)
		}
		for _, warning := range report.Warnings {
			fmt.Fprintf(&b, "warning: %s\n", warning)
		}
		for _, f := range facts {
			fmt.Fprintf(&b, "%-20s %s\n", f.Name, f.Value)
		}
		b.WriteByte('\n')
		for _, l := range links {
			fmt.Fprintf(&b, "%-28s %s\n", l.Address, l.Text)
		}
		text(w, http.StatusOK, b.String())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, map[string]any{ // the client has gone
		"Role": p.config.Role, "ID": report.ID, "State": report.State, "Problem": report.Problem, "Warnings": report.Warnings, "Notices": Notices, "Facts": facts, "Links": links,
	})
}
