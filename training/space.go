package training

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Type is the kind of a parameter, with Maggy's names.
type Type string

// The kinds of parameters.
const (
	Double      Type = "DOUBLE"      // a range of real numbers
	Integer     Type = "INTEGER"     // a range of whole numbers, both ends included
	Discrete    Type = "DISCRETE"    // a list of numbers
	Categorical Type = "CATEGORICAL" // a list of any scalars, without order
)

// Parameter is one dimension of a space. JSON:
//
//	{"type": "DOUBLE", "range": [1e-4, 1], "log": true}   {"type": "CATEGORICAL", "values": ["relu", "tanh"]}
//
// Maggy's pair is read too: ["INTEGER", [2, 8]].
type Parameter struct {
	Name string
	Type Type
	// Min and Max bound DOUBLE and INTEGER.
	Min, Max float64
	// Log draws DOUBLE and INTEGER evenly in the logarithm; Min must be positive.
	Log bool
	// Values lists DISCRETE and CATEGORICAL.
	Values []Value
	// When are conditions on parameters that stand before it; the parameter is part of a configuration only if all hold.
	When []Condition

	problem string // what could not be read; told by Validate
}

// Condition holds in configurations in which a DISCRETE or CATEGORICAL parameter is there and has one of some values.
type Condition struct {
	Parameter string
	Values    []Value
}

// Active reports whether the parameter is part of a configuration, as far as the parameters before it decide that.
func (p Parameter) Active(c Params) bool {
	for _, w := range p.When {
		v, ok := c[w.Parameter]
		if !ok || !slices.ContainsFunc(w.Values, v.Equal) {
			return false
		}
	}
	return true
}

// Ranged reports whether the parameter is a range rather than a list.
func (p Parameter) Ranged() bool { return p.Type == Double || p.Type == Integer }

// Size is how many values the parameter can take; ok is false when there is no end to them.
func (p Parameter) Size() (n uint64, ok bool) {
	switch p.Type {
	case Double:
		return 0, false
	case Integer:
		return uint64(p.Max-p.Min) + 1, true
	default:
		return uint64(len(p.Values)), true
	}
}

// Check says what is wrong with a value for this parameter, "" if nothing.
func (p Parameter) Check(v Value) string {
	switch p.Type {
	case Double, Integer:
		f, ok := v.Float()
		if !ok {
			return fmt.Sprintf("%s is not a number", v)
		}
		if p.Type == Integer && f != math.Trunc(f) {
			return fmt.Sprintf("%s is not a whole number", v)
		}
		if f < p.Min || f > p.Max {
			return fmt.Sprintf("%s is outside [%s, %s]", v, formatMetric(p.Min), formatMetric(p.Max))
		}
	default:
		if !slices.ContainsFunc(p.Values, v.Equal) {
			return fmt.Sprintf("%s is not one of %v", v, p.Values)
		}
	}
	return ""
}

type parameterJSON struct {
	Type   string            `json:"type"`
	Range  []json.RawMessage `json:"range,omitempty"`
	Values []Value           `json:"values,omitempty"`
	Log    bool              `json:"log,omitempty"`
	When   conditions        `json:"when,omitempty"`
}

// conditions as JSON are an object in their order: {"optimizer": ["sgd", "momentum"]}; a lone value stands for a list of one.
type conditions []Condition

func (c conditions) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, w := range c {
		if i > 0 {
			b = append(b, ',')
		}
		values, err := json.Marshal(w.Values)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, String(w.Parameter).text...), ':'), values...)
	}
	return append(b, '}'), nil
}

func (c *conditions) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf(`when is an object: {"parameter": [values]}`)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		w := Condition{Parameter: t.(string)} // the decoder yields only strings as keys
		if raw[0] != '[' {
			raw = append(append(json.RawMessage{'['}, raw...), ']')
		}
		if err := json.Unmarshal(raw, &w.Values); err != nil {
			return err
		}
		*c = append(*c, w)
	}
	return nil
}

// MarshalJSON writes the parameter without its name.
func (p Parameter) MarshalJSON() ([]byte, error) {
	j := parameterJSON{Type: string(p.Type), Values: p.Values, Log: p.Log, When: p.When}
	if p.Ranged() {
		for _, f := range []float64{p.Min, p.Max} {
			v := Float(f)
			if p.Type == Integer {
				v = Int(int64(f))
			}
			j.Range = append(j.Range, json.RawMessage(v.text))
		}
	}
	return json.Marshal(j)
}

func (p *Parameter) read(data []byte) {
	var j parameterJSON
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] == '[' {
		var pair []json.RawMessage
		var list []json.RawMessage
		if json.Unmarshal(data, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[0], &j.Type) != nil || json.Unmarshal(pair[1], &list) != nil {
			p.problem = `write {"type": …, "range" or "values": […]}`
			return
		}
		if t := Type(strings.ToUpper(j.Type)); t == Double || t == Integer {
			j.Range = list
		} else if err := json.Unmarshal(pair[1], &j.Values); err != nil {
			p.problem = err.Error()
			return
		}
	} else {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err := d.Decode(&j); err != nil {
			p.problem = strings.TrimPrefix(err.Error(), "json: ")
			return
		}
	}
	p.Type, p.Log, p.Values, p.When = Type(strings.ToUpper(j.Type)), j.Log, j.Values, j.When
	if !p.Ranged() {
		if len(j.Range) > 0 && (p.Type == Discrete || p.Type == Categorical) {
			p.problem = fmt.Sprintf("%s takes values, not a range", p.Type)
		}
		return
	}
	if len(j.Values) > 0 {
		p.problem = fmt.Sprintf("%s takes a range, not values", p.Type)
		return
	}
	if len(j.Range) != 2 {
		p.problem = fmt.Sprintf("range has %d ends, want [low, high]", len(j.Range))
		return
	}
	for i, to := range []*float64{&p.Min, &p.Max} {
		var v Value
		f, ok := 0.0, false
		if v.UnmarshalJSON(j.Range[i]) == nil {
			f, ok = v.Float()
		}
		if !ok {
			p.problem = fmt.Sprintf("range end %s is not a number", truncate(string(j.Range[i]), 40))
			return
		}
		*to = f
	}
}

// maxInteger is the largest whole number that a float64 and so every JSON reader keeps exactly.
const maxInteger = 1 << 53

func (p Parameter) problems() []string {
	if p.problem != "" {
		return []string{p.problem}
	}
	var out []string
	switch p.Type {
	case Double, Integer:
		switch {
		case !(p.Min <= p.Max), math.IsInf(p.Min, 0), math.IsInf(p.Max, 0):
			out = append(out, fmt.Sprintf("the range [%s, %s] is empty", formatMetric(p.Min), formatMetric(p.Max)))
		case p.Log && p.Min <= 0:
			out = append(out, fmt.Sprintf("log needs a range above 0, not from %s", formatMetric(p.Min)))
		}
		if p.Type == Integer {
			for _, f := range []float64{p.Min, p.Max} {
				if f != math.Trunc(f) || math.Abs(f) > maxInteger {
					out = append(out, fmt.Sprintf("range end %s is not a whole number of at most 2^53", formatMetric(f)))
				}
			}
		}
	case Discrete, Categorical:
		if len(p.Values) == 0 {
			out = append(out, "the list of values is empty")
		}
		if p.Log {
			out = append(out, fmt.Sprintf("log has no meaning for %s", p.Type))
		}
		for i, v := range p.Values {
			if _, ok := v.Float(); p.Type == Discrete && !ok {
				out = append(out, fmt.Sprintf("DISCRETE value %s is not a number (CATEGORICAL takes any)", v))
			}
			if slices.ContainsFunc(p.Values[:i], v.Equal) {
				out = append(out, fmt.Sprintf("value %s is there twice", v))
			}
		}
	default:
		out = append(out, fmt.Sprintf("unknown type %q: DOUBLE, INTEGER, DISCRETE or CATEGORICAL", p.Type))
	}
	return out
}

// Space is the set of configurations that a search chooses from. As JSON it is an object; its order is kept, since the
// order of a grid depends on it.
type Space []Parameter

// Lookup finds a parameter by name.
func (s Space) Lookup(name string) (Parameter, bool) {
	for _, p := range s {
		if p.Name == name {
			return p, true
		}
	}
	return Parameter{}, false
}

// Conditional reports whether any parameter has conditions.
func (s Space) Conditional() bool {
	return slices.ContainsFunc(s, func(p Parameter) bool { return len(p.When) > 0 })
}

// Size is how many configurations there are; ok is false when there is no end to them (or more than 2^62).
func (s Space) Size() (n uint64, ok bool) { return s.SizeFrom(0, Params{}) }

// SizeFrom is in how many ways a configuration can go on whose parameters before the i-th are decided.
func (s Space) SizeFrom(i int, decided Params) (n uint64, ok bool) {
	n = 1
	for ; i < len(s); i++ {
		p := s[i]
		if !p.Active(decided) {
			continue
		}
		if !s.decides(i) {
			k, ok := p.Size()
			if !ok || k == 0 || n > 1<<62/k {
				return 0, false
			}
			n *= k
			continue
		}
		sum := uint64(0)
		for _, v := range p.Values {
			decided[p.Name] = v
			k, ok := s.SizeFrom(i+1, decided)
			if !ok || k > 1<<62-sum {
				delete(decided, p.Name)
				return 0, false
			}
			sum += k
		}
		delete(decided, p.Name)
		if sum == 0 || n > 1<<62/sum {
			return 0, false
		}
		return n * sum, true
	}
	return n, true
}

// decides reports whether a later parameter has a condition on the i-th.
func (s Space) decides(i int) bool {
	return slices.ContainsFunc(s[i+1:], func(p Parameter) bool {
		return slices.ContainsFunc(p.When, func(w Condition) bool { return w.Parameter == s[i].Name })
	})
}

// maxDecisions bounds the combinations of values of the parameters that others depend on.
const maxDecisions = 10_000

// conditionProblems says what is wrong with the conditions of the i-th parameter.
func (s Space) conditionProblems(i int) []string {
	var out []string
	for k, w := range s[i].When {
		j := slices.IndexFunc(s[:i], func(q Parameter) bool { return q.Name == w.Parameter })
		switch {
		case j < 0 && slices.ContainsFunc(s, func(q Parameter) bool { return q.Name == w.Parameter }):
			out = append(out, fmt.Sprintf("depends on %q, which has to stand before it", w.Parameter))
		case j < 0:
			out = append(out, fmt.Sprintf("depends on %q, which is not in the space", w.Parameter))
		case s[j].Ranged():
			out = append(out, fmt.Sprintf("depends on %q, a %s; only DISCRETE and CATEGORICAL parameters decide", w.Parameter, s[j].Type))
		case len(w.Values) == 0:
			out = append(out, fmt.Sprintf("depends on %q, but on none of its values", w.Parameter))
		default:
			for _, v := range w.Values {
				if why := s[j].Check(v); why != "" {
					out = append(out, fmt.Sprintf("depends on %q: %s", w.Parameter, why))
				}
			}
		}
		if slices.ContainsFunc(s[i].When[:k], func(q Condition) bool { return q.Parameter == w.Parameter }) {
			out = append(out, fmt.Sprintf("depends on %q twice; list the values in one condition", w.Parameter))
		}
	}
	return out
}

// decisions is how many combinations of values the parameters have that others depend on, up to maxDecisions+1.
func (s Space) decisions() int {
	n := 1
	for i, p := range s {
		if s.decides(i) {
			n = min(n*max(len(p.Values), 1), maxDecisions+1)
		}
	}
	return n
}

// Check lists what is wrong with a configuration: names that are missing, unknown or not active in it, values outside the space.
func (s Space) Check(p Params) []string {
	var out []string
	for _, d := range s {
		v, ok := p[d.Name]
		if !d.Active(p) {
			if ok {
				out = append(out, fmt.Sprintf("parameter %q has a value, and its conditions do not hold", d.Name))
			}
		} else if !ok {
			out = append(out, fmt.Sprintf("parameter %q has no value", d.Name))
		} else if why := d.Check(v); why != "" {
			out = append(out, fmt.Sprintf("parameter %q: %s", d.Name, why))
		}
	}
	names := make([]string, 0, len(p))
	for name := range p {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, ok := s.Lookup(name); !ok {
			out = append(out, fmt.Sprintf("parameter %q is not in the space", name))
		}
	}
	return out
}

// MarshalJSON writes an object in the order of the space.
func (s Space) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, p := range s {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, String(p.Name).text...), ':')
		v, err := p.MarshalJSON()
		if err != nil {
			return nil, err
		}
		b = append(b, v...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads an object. Mistakes inside a parameter are kept for Validate, so that all are told at once.
func (s *Space) UnmarshalJSON(data []byte) error {
	*s = nil
	if string(bytes.TrimSpace(data)) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("the space is an object of parameters by name")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		p := Parameter{Name: t.(string)} // the decoder yields only strings as keys
		p.read(raw)
		*s = append(*s, p)
	}
	return nil
}
