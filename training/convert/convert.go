// Package convert writes studies of ours from descriptions of other services: CloudML and Vizier, SageMaker, Katib, Ray Tune.
// What has no counterpart is told, never dropped in silence. It is pure: text in, text out.
package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/yaml"
	"github.com/gohops/hops/training"
)

// Formats are the names of what is read; auto finds out.
var Formats = []string{"auto", "cloudml", "vizier", "sagemaker", "katib", "ray"}

// Warning is something that the study does not say as the source did.
type Warning struct {
	// Key is where it stands in the source; empty: nowhere in particular.
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
}

func (w Warning) String() string {
	if w.Key == "" {
		return w.Message
	}
	return w.Key + ": " + w.Message
}

// Result is a study in YAML.
type Result struct {
	From     string
	YAML     []byte
	Warnings []Warning
}

// MaxBytes bounds a source.
const MaxBytes = 1 << 20

// Convert reads a description, in YAML or JSON. name is the file's, for messages; from is one of Formats. entry, if not empty, is
// the function that the study runs: no source names it.
func Convert(name string, text []byte, from, entry string) (*Result, error) {
	if !slices.Contains(Formats, from) {
		return nil, fmt.Errorf("unknown format %q: one of %s", from, strings.Join(Formats, ", "))
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", name, len(text), MaxBytes)
	}
	if looksLikePython(text) {
		return nil, fmt.Errorf(`%s is Python, which is not run here: write what it hands to tune as JSON or YAML, {"lr": {"loguniform": [1e-4, 1e-1]}, "layers": {"choice": [1, 2]}}`, name)
	}
	document, err := yaml.ToJSON(name, text)
	if err != nil {
		return nil, err
	}
	tree, err := parse(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !tree.object() {
		return nil, fmt.Errorf("%s is no description of a search: it has no keys", name)
	}
	if from == "auto" {
		if from = detect(tree); from == "" {
			if tree.has("space") || tree.has("optimizer") {
				return nil, fmt.Errorf("%s is a study as it is: hops experiment run %s", name, name)
			}
			return nil, fmt.Errorf("%s is none of the formats that are known: name one of %s with --from", name, strings.Join(Formats[1:], ", "))
		}
	}
	s := &study{from: from, entry: entry}
	tree.read = true
	switch from {
	case "cloudml":
		s.cloudML(tree)
	case "vizier":
		s.vizier(tree)
	case "sagemaker":
		s.sageMaker(tree)
	case "katib":
		s.katib(tree)
	case "ray":
		s.ray(tree)
	}
	tree.unread(func(path string) { s.warn(path, "has no counterpart, left out") })
	if entry == "" {
		s.warn("", "entry: the function is not named by the source: write entry: FILE.py:FUNCTION, or give --entry")
	}
	if len(s.space) == 0 {
		return nil, fmt.Errorf("%s has no parameters as %s writes them", name, from)
	}
	s.agree()
	out := s.write(name)
	for _, m := range mistakes(name, out, entry) {
		s.warn("", "the study cannot run as it is: %s", training.Mistakes{m}.Error())
	}
	return &Result{From: from, YAML: s.write(name), Warnings: s.warnings}, nil
}

// agree makes the search one that can decide by several objectives, if there are several.
func (s *study) agree() {
	if len(s.objectives) < 2 {
		return
	}
	if o := cmp.Or(s.optimizer, training.Random); !slices.Contains([]string{training.Random, training.Grid, "sobol", "tpe"}, o) {
		s.warn("", "%s decides by one metric: tpe is written, for %d objectives", o, len(s.objectives))
		s.optimizer, s.options = "tpe", nil
	}
	if s.stop != nil {
		s.warn("", "early stopping compares one metric, and there are %d objectives: it is left out", len(s.objectives))
		s.stop = nil
	}
}

// mistakes are what `hops experiment run` would refuse the study for.
func mistakes(name string, study []byte, entry string) training.Mistakes {
	document, err := yaml.ToJSON(name, study)
	if err == nil {
		_, err = training.ParseSpec(document, "user")
	}
	found, ok := errors.AsType[training.Mistakes](err)
	if err != nil && !ok {
		return training.Mistakes{{Message: err.Error()}}
	}
	return slices.DeleteFunc(found, func(m training.Problem) bool { return entry == "" && m.Field == "entry" })
}

var pythonForm = regexp.MustCompile(`(?m)^\s*(import \w|from \w[\w.]* import |def \w+\(|.*\btune\.(run|Tuner|loguniform|uniform|choice)\()`)

func looksLikePython(text []byte) bool { return pythonForm.Match(text) }

// detect finds the format by keys that only it has.
func detect(n *node) string {
	spec := n.fields["spec"]
	switch {
	case n.has("trainingInput"), n.has("hyperparameters") && n.fields["hyperparameters"].has("params"), n.has("params", "goal"):
		return "cloudml"
	case n.has("studySpec"), n.has("study_spec"), n.has("parameters", "metrics"):
		return "vizier"
	case n.has("HyperParameterTuningJobConfig"), n.has("ParameterRanges"):
		return "sagemaker"
	case n.has("apiVersion") && strings.HasPrefix(n.fields["apiVersion"].text(), "kubeflow.org/"), spec.has("objective", "parameters"):
		return "katib"
	case n.has("space") || n.has("optimizer"):
		return ""
	case n.has("param_space"), n.has("config"), n.has("tune_config"):
		return "ray"
	}
	for _, k := range n.keys {
		if distribution(n.fields[k]) != "" {
			return "ray"
		}
	}
	return ""
}

// parameter is one of the space.
type parameter struct {
	name     string
	kind     training.Type
	min, max training.Value
	log      bool
	values   []training.Value
	when     *training.Condition
}

// setting is a key with JSON as its value.
type setting struct{ key, json string }

// study is what is written.
type study struct {
	from, entry string
	name        string
	space       []parameter
	optimizer   string
	options     []setting
	stop        []setting // early_stop
	metric      string
	direction   training.Direction
	objectives  []setting // of several: metric and direction
	trials      string
	executors   string
	seed        string
	timeout     string
	trialLimit  string
	maxEpochs   string
	arguments   []setting
	resources   []setting
	warnings    []Warning
}

func (s *study) warn(key, format string, args ...any) {
	s.warnings = append(s.warnings, Warning{key, fmt.Sprintf(format, args...)})
}

// whole reads a whole number of at least least; "" if there is none.
func (s *study) whole(n *node, least int64) string {
	if n.null() {
		return ""
	}
	v, ok := n.number()
	i, whole := v.Int()
	if !ok || !whole || i < least {
		s.warn(n.path, "%s is no whole number of at least %d, left out", short(n.raw()), least)
		return ""
	}
	return fmt.Sprint(i)
}

// real reads a number; "" if there is none.
func (s *study) real(n *node) string {
	if n.null() {
		return ""
	}
	v, ok := n.number()
	if !ok {
		s.warn(n.path, "%s is no number, left out", short(n.raw()))
		return ""
	}
	return literal(v)
}

// seconds is a time limit.
func (s *study) seconds(n *node) string {
	if text := s.whole(n, 1); text != "" {
		return text + "s"
	}
	return ""
}

func (s *study) option(key, value string) {
	if value != "" {
		s.options = append(s.options, setting{key, value})
	}
}

// goal reads MAXIMIZE, Minimize, max, ...
func (s *study) goal(n *node) {
	text := strings.ToLower(n.text())
	switch {
	case n.null():
	case strings.HasPrefix(text, "max"):
		s.direction = training.Max
	case strings.HasPrefix(text, "min"):
		s.direction = training.Min
	default:
		s.warn(n.path, "%q is neither a maximum nor a minimum: max is written", n.text())
		s.direction = training.Max
	}
}

var identifier = regexp.MustCompile(`^[A-Za-z_]\w*$`)

// add takes a parameter. Its name becomes one that a Python function can have as an argument; values of one kind stay as they are.
func (s *study) add(n *node, p parameter) {
	given := p.name
	if !identifier.MatchString(p.name) {
		p.name = strings.Map(func(r rune) rune {
			if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, strings.TrimLeft(p.name, "-")) // as command lines write them
		if p.name == "" || p.name[0] >= '0' && p.name[0] <= '9' {
			p.name = "p" + p.name
		}
	}
	for i := 2; slices.ContainsFunc(s.space, func(q parameter) bool { return q.name == p.name }); i++ {
		p.name = fmt.Sprintf("%s_%d", strings.TrimSuffix(p.name, fmt.Sprintf("_%d", i-1)), i)
	}
	if p.name != given {
		s.warn(n.path, "parameter %q is called %s: it becomes an argument of a Python function", given, p.name)
	}
	switch p.kind {
	case training.Double, training.Integer:
		low, ok1 := p.min.Float()
		high, ok2 := p.max.Float()
		if !ok1 || !ok2 {
			s.warn(n.path, "parameter %s has no bounds that are numbers, left out", p.name)
			return
		}
		if low > high {
			s.warn(n.path, "parameter %s: its range [%s, %s] is empty, left out", p.name, p.min, p.max)
			return
		}
		if p.kind == training.Integer && (low != math.Trunc(low) || high != math.Trunc(high)) {
			s.warn(n.path, "parameter %s: the bounds of whole numbers are rounded inwards", p.name)
			low, high = math.Ceil(low), math.Floor(high)
		}
		if p.kind == training.Integer {
			p.min, p.max = training.Int(int64(low)), training.Int(int64(high))
		}
		if p.log && low <= 0 {
			s.warn(n.path, "parameter %s: a logarithmic scale needs a range above 0: it is linear", p.name)
			p.log = false
		}
	default:
		if len(p.values) == 0 {
			s.warn(n.path, "parameter %s has no values, left out", p.name)
			return
		}
		var distinct []training.Value
		for _, v := range p.values {
			if !slices.ContainsFunc(distinct, v.Equal) {
				distinct = append(distinct, v)
			}
		}
		if len(distinct) < len(p.values) {
			s.warn(n.path, "parameter %s: values that stand there more than once are written once, so they are no likelier", p.name)
			p.values = distinct
		}
	}
	s.space = append(s.space, p)
}

// values reads a list of scalars; texts that are numbers become numbers if numeric.
func (s *study) values(n *node, numeric bool) (out []training.Value) {
	if n.null() {
		return nil
	}
	n.taken()
	items := n.items
	if !n.list && n.scalar != nil && strings.Contains(n.text(), ",") { // "a, b", as Katib's older versions take it
		for part := range strings.SplitSeq(n.text(), ",") {
			text, _ := json.Marshal(strings.TrimSpace(part)) // a string always encodes
			items = append(items, &node{path: n.path, scalar: text})
		}
	} else if !n.list {
		items = []*node{n}
	}
	for _, item := range items {
		var v training.Value
		if numeric {
			var ok bool
			if v, ok = item.number(); !ok {
				s.warn(item.path, "%s is no number, left out", short(item.raw()))
				continue
			}
		} else if item.scalar == nil || v.UnmarshalJSON(item.scalar) != nil {
			s.warn(item.path, "%s is no number, text or truth value, left out", short(item.raw()))
			continue
		}
		out = append(out, v)
	}
	return out
}

// maxSteps is how many values a range with a step may become.
const maxSteps = 1000

// stepped makes a list of a range with a step.
func (s *study) stepped(n *node, p parameter, step float64) parameter {
	low, ok1 := p.min.Float()
	high, ok2 := p.max.Float()
	if !ok1 || !ok2 || step <= 0 || (high-low)/step > maxSteps {
		s.warn(n.path, "parameter %s: the step %s is left out", p.name, literal(training.Float(step)))
		return p
	}
	if p.kind == training.Integer && step == 1 {
		return p
	}
	if p.log {
		s.warn(n.path, "parameter %s: of a range with a step the values are written, all as likely: the logarithmic scale is left out", p.name)
		p.log = false
	}
	for i := 0; ; i++ {
		v := low + float64(i)*step
		if v > high+step*1e-9 {
			break
		}
		v = math.Round(v*1e12) / 1e12
		if p.kind == training.Integer {
			p.values = append(p.values, training.Int(int64(v)))
		} else {
			p.values = append(p.values, training.Float(v))
		}
	}
	p.kind = training.Discrete
	return p
}

// literal is a value in YAML: its JSON, which YAML reads the same; exponents with a point, without which YAML 1.1 has text.
func literal(v training.Value) string {
	b, err := v.MarshalJSON()
	if err != nil {
		return "null"
	}
	text := string(b)
	if _, ok := v.Float(); ok && text[0] != '"' {
		if i := strings.IndexByte(text, 'e'); i >= 0 && !strings.Contains(text[:i], ".") {
			text = text[:i] + ".0" + text[i:]
		}
	}
	return text
}

func short(b []byte) string {
	if r := []rune(string(b)); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return string(b)
}

// quoted is text as YAML takes it.
func quoted(s string) string { return literal(training.String(s)) }

var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9 _./-]*$`)

// word is text, without quotes where it needs none.
func word(s string) string {
	if plain.MatchString(s) && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(s)) && strings.TrimSpace(s) == s {
		return s
	}
	return quoted(s)
}

func flow(list []setting) string {
	parts := make([]string, len(list))
	for i, x := range list {
		parts[i] = x.key + ": " + x.json
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// write makes the YAML.
func (s *study) write(source string) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	comment := func(text string) string {
		return strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, text)
	}
	line("# from %s (%s), by hops experiment convert", comment(source), s.from)
	for _, w := range s.warnings {
		line("# %s", comment(w.String()))
	}
	line("name: %s", word(cmp.Or(s.name, "converted")))
	if s.entry != "" {
		line("entry: %s", quoted(s.entry))
	}
	line("space:")
	for _, p := range s.space {
		var parts []setting
		parts = append(parts, setting{"type", string(p.kind)})
		if len(p.values) > 0 {
			var values []string
			for _, v := range p.values {
				values = append(values, literal(v))
			}
			parts = append(parts, setting{"values", "[" + strings.Join(values, ", ") + "]"})
		} else {
			parts = append(parts, setting{"range", "[" + literal(p.min) + ", " + literal(p.max) + "]"})
		}
		if p.log {
			parts = append(parts, setting{"log", "true"})
		}
		if p.when != nil {
			var values []string
			for _, v := range p.when.Values {
				values = append(values, literal(v))
			}
			parts = append(parts, setting{"when", "{" + word(p.when.Parameter) + ": [" + strings.Join(values, ", ") + "]}"})
		}
		line("  %s: %s", word(p.name), flow(parts))
	}
	if len(s.arguments) > 0 {
		line("arguments:")
		for _, a := range s.arguments {
			line("  %s: %s", word(a.key), a.json)
		}
	}
	line("optimizer: %s", flow(append([]setting{{"type", cmp.Or(s.optimizer, training.Random)}}, s.options...)))
	if len(s.stop) > 0 {
		line("early_stop: %s", flow(s.stop))
	}
	if s.metric != "" {
		line("metric: %s", word(s.metric))
	}
	line("direction: %s", cmp.Or(s.direction, training.Max))
	if len(s.objectives) > 1 {
		line("objectives:")
		for _, o := range s.objectives {
			line("  - {metric: %s, direction: %s}", word(o.key), o.json)
		}
	}
	for _, x := range []setting{
		{"trials", s.trials}, {"executors", s.executors}, {"max_epochs", s.maxEpochs}, {"seed", s.seed}, {"timeout", s.timeout}, {"trial_timeout", s.trialLimit},
	} {
		if x.json != "" {
			line("%s: %s", x.key, x.json)
		}
	}
	if len(s.resources) > 0 {
		line("resources: %s", flow(s.resources))
	}
	return []byte(b.String())
}
