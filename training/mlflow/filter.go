package mlflow

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxFilter bounds a filter, in bytes, and maxClauses what it joins.
const (
	maxFilter  = 16 << 10
	maxClauses = 100
	// maxPattern bounds what LIKE compares with, in bytes: its work is the pattern's length times the text's.
	maxPattern = 500
)

// clause compares one value: metrics.acc > 0.9.
type clause struct {
	kind, key string // metric, param, tag, attribute
	op        string
	text      string
	number    float64
	numeric   bool
	list      []string
	like      *regexp.Regexp
}

// filter is clauses that all have to hold, in MLflow's language (Search Runs in its documentation).
type filter []clause

var token = regexp.MustCompile("^(?:'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|>=|<=|!=|=|<|>|\\(|\\)|,|-?[0-9][0-9eE.+-]*|[A-Za-z_][\\w/-]*(?:\\.(?:\"[^\"]*\"|`[^`]*`|[\\w./-]+))?)")

// scan splits a filter into words.
func scan(text string) ([]string, error) {
	var out []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		t := token.FindString(text)
		if t == "" {
			return nil, errorf(badValue, "the filter cannot be read at %.40q", text)
		}
		out = append(out, t)
		text = text[len(t):]
	}
	return out, nil
}

var kinds = map[string]string{
	"metric": "metric", "metrics": "metric", "param": "param", "params": "param", "parameter": "param", "parameters": "param",
	"tag": "tag", "tags": "tag", "attribute": "attribute", "attributes": "attribute", "attr": "attribute", "run": "attribute",
}

// identifier reads metrics.acc, tags."a b", status.
func identifier(t string, attributes map[string]bool) (kind, key string, err error) {
	prefix, rest, ok := strings.Cut(t, ".")
	if !ok || t[0] == '"' || t[0] == '`' {
		return "attribute", alias(strings.Trim(t, "\"`"), attributes), nil
	}
	kind, known := kinds[strings.ToLower(prefix)]
	if !known {
		return "", "", errorf(badValue, "a filter knows metrics, params, tags and attributes, not %q", prefix)
	}
	key = rest
	if len(rest) > 1 && (rest[0] == '"' || rest[0] == '`') {
		key = rest[1 : len(rest)-1]
	}
	if kind == "attribute" {
		key = alias(key, attributes)
	}
	return kind, key, nil
}

// alias names an attribute of runs as the protocol does.
func alias(key string, attributes map[string]bool) string {
	if _, ok := attributes[key]; ok {
		return key
	}
	switch strings.ToLower(key) {
	case "created", "start time":
		return "start_time"
	case "run name", "name":
		return "run_name"
	case "user", "user id":
		return "user_id"
	}
	return key
}

// parseFilter reads a filter. attributes are those that there are, and whether each is a number.
func parseFilter(text string, attributes map[string]bool) (filter, error) {
	if len(text) > maxFilter {
		return nil, errorf(badValue, "the filter has %d bytes, at most %d", len(text), maxFilter)
	}
	words, err := scan(text)
	if err != nil {
		return nil, err
	}
	var out filter
	for len(words) > 0 {
		if len(out) > 0 {
			if !strings.EqualFold(words[0], "and") {
				return nil, errorf(badValue, "the filter has %q where AND is expected; OR is not supported, as in MLflow", words[0])
			}
			words = words[1:]
		}
		if len(out) == maxClauses {
			return nil, errorf(badValue, "the filter joins more than %d comparisons", maxClauses)
		}
		var c clause
		if c, words, err = parseClause(words, attributes); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func parseClause(words []string, attributes map[string]bool) (c clause, rest []string, err error) {
	if len(words) < 2 {
		return c, nil, errorf(badValue, "the filter ends in the middle: %q", strings.Join(words, " "))
	}
	if c.kind, c.key, err = identifier(words[0], attributes); err != nil {
		return c, nil, err
	}
	c.numeric = c.kind == "metric"
	if c.kind == "attribute" {
		isNumber, known := attributes[c.key]
		if !known {
			names := make([]string, 0, len(attributes))
			for k := range attributes {
				names = append(names, k)
			}
			slices.Sort(names)
			return c, nil, errorf(badValue, "there is no attribute %q; there are %s", c.key, strings.Join(names, ", "))
		}
		c.numeric = isNumber
	}
	c.op, rest = strings.ToUpper(words[1]), words[2:]
	take := func(word string) bool {
		if len(rest) > 0 && strings.EqualFold(rest[0], word) {
			rest = rest[1:]
			return true
		}
		return false
	}
	switch {
	case c.op == "IS":
		if take("not") {
			c.op = "IS NOT"
		}
		if !take("null") {
			return c, nil, errorf(badValue, "the filter has IS without NULL")
		}
		return c, rest, nil
	case c.op == "NOT" && take("in"), c.op == "IN":
		if c.op == "NOT" {
			c.op = "NOT IN"
		}
		if !take("(") {
			return c, nil, errorf(badValue, "%s takes a list in parentheses", c.op)
		}
		for !take(")") {
			if len(rest) == 0 || len(c.list) == 1000 {
				return c, nil, errorf(badValue, "the list of %s has no end, or more than 1000 values", c.op)
			}
			if rest[0] != "," {
				c.list = append(c.list, unquote(rest[0]))
			}
			rest = rest[1:]
		}
		if c.numeric {
			return c, nil, errorf(badValue, "%s is for text, not for the number %s", c.op, c.key)
		}
		return c, rest, nil
	}
	allowed := []string{"=", "!=", "LIKE", "ILIKE"}
	if c.numeric {
		allowed = []string{"=", "!=", "<", "<=", ">", ">="}
	}
	if !slices.Contains(allowed, c.op) || len(rest) == 0 {
		return c, nil, errorf(badValue, "%s %s is compared by one of %s and a value, not by %q", c.kind, c.key, strings.Join(allowed, " "), c.op)
	}
	value := rest[0]
	rest = rest[1:]
	if c.numeric {
		if c.number, err = strconv.ParseFloat(value, 64); err != nil {
			return c, nil, errorf(badValue, "%s %s is a number, %s is none", c.kind, c.key, value)
		}
		return c, rest, nil
	}
	if value[0] != '\'' && value[0] != '"' {
		return c, nil, errorf(badValue, "%s %s is text: write '%s' in quotes", c.kind, c.key, value)
	}
	c.text = unquote(value)
	if strings.HasSuffix(c.op, "LIKE") {
		if len(c.text) > maxPattern {
			return c, nil, errorf(badValue, "the pattern of %s has %d bytes, at most %d", c.op, len(c.text), maxPattern)
		}
		c.like = like(c.text, c.op == "ILIKE")
	}
	return c, rest, nil
}

func unquote(t string) string {
	if len(t) > 1 && t[0] == '\'' {
		return strings.ReplaceAll(t[1:len(t)-1], "''", "'")
	}
	return strings.Trim(t, "\"`")
}

// like makes SQL's pattern a regular expression, which Go matches in linear time.
func like(pattern string, anyCase bool) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("(?s")
	if anyCase {
		b.WriteString("i")
	}
	b.WriteString(")^")
	for _, r := range pattern {
		switch r {
		case '%':
			b.WriteString(".*")
		case '_':
			b.WriteString(".")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	b.WriteString("$")
	if !utf8.ValidString(pattern) {
		return regexp.MustCompile("$.^")
	}
	return regexp.MustCompile(b.String())
}

// value is what a clause compares with: text or a number, or neither.
type value struct {
	text    string
	number  float64
	present bool
}

func textValue(s string, ok bool) value { return value{text: s, present: ok} }

func numberValue(f float64, ok bool) value { return value{number: f, present: ok} }

// match reports whether all clauses hold; lookup finds the values.
func (f filter) match(lookup func(kind, key string) value) bool {
	for i := range f {
		if !f[i].holds(lookup(f[i].kind, f[i].key)) {
			return false
		}
	}
	return true
}

func (c *clause) holds(v value) bool {
	switch {
	case c.op == "IS":
		return !v.present
	case c.op == "IS NOT":
		return v.present
	case !v.present:
		return false
	case c.op == "IN":
		return slices.Contains(c.list, v.text)
	case c.op == "NOT IN":
		return !slices.Contains(c.list, v.text)
	case c.like != nil:
		return c.like.MatchString(v.text)
	case !c.numeric:
		return (v.text == c.text) == (c.op == "=")
	}
	switch c.op {
	case "=":
		return v.number == c.number
	case "!=":
		return v.number != c.number
	case "<":
		return v.number < c.number
	case "<=":
		return v.number <= c.number
	case ">":
		return v.number > c.number
	}
	return v.number >= c.number
}

// order is one of the columns that results are sorted by.
type order struct {
	kind, key  string
	descending bool
}

// parseOrder reads order_by: "metrics.acc DESC".
func parseOrder(list []string, attributes map[string]bool) ([]order, error) {
	var out []order
	if len(list) > 20 {
		return nil, errorf(badValue, "order_by names %d columns, at most 20", len(list))
	}
	for _, text := range list {
		o := order{}
		text = strings.TrimSpace(text)
		if i := strings.LastIndexByte(text, ' '); i > 0 {
			switch strings.ToUpper(text[i+1:]) {
			case "DESC":
				o.descending, text = true, strings.TrimSpace(text[:i])
			case "ASC":
				text = strings.TrimSpace(text[:i])
			}
		}
		if text == "" {
			return nil, errorf(badValue, "order_by names nothing")
		}
		var err error
		if o.kind, o.key, err = identifier(text, attributes); err != nil {
			return nil, err
		}
		if _, known := attributes[o.key]; o.kind == "attribute" && !known {
			return nil, errorf(badValue, "there is no attribute %q to order by", o.key)
		}
		out = append(out, o)
	}
	return out, nil
}

// compareValues orders two values; what is not there, and NaN, comes last whichever the direction.
func (o order) compareValues(a, b value) int {
	rank := func(v value) int {
		switch {
		case !v.present:
			return 2
		case math.IsNaN(v.number):
			return 1
		}
		return 0
	}
	if ra, rb := rank(a), rank(b); ra != 0 || rb != 0 {
		return cmp.Compare(ra, rb)
	}
	c := cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text))
	if o.descending {
		return -c
	}
	return c
}
