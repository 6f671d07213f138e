package training

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Metric is one reported number. NaN and the infinities travel as the strings "NaN", "Infinity" and "-Infinity". What
// is not a number at all is kept in Text (a list or an object as its JSON), so that the report can be answered with a named error of its trial.
type Metric struct {
	Value float64
	Text  string
}

// M makes a metric.
func M(v float64) Metric { return Metric{Value: v} }

// Finite reports whether the metric is a number that can be compared.
func (m Metric) Finite() bool {
	return m.Text == "" && !math.IsNaN(m.Value) && !math.IsInf(m.Value, 0)
}

func (m Metric) String() string {
	if m.Text != "" {
		return strconv.Quote(m.Text)
	}
	return formatMetric(m.Value)
}

func formatMetric(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// MarshalJSON writes a number, or a string for what has no JSON number.
func (m Metric) MarshalJSON() ([]byte, error) {
	if m.Finite() {
		return strconv.AppendFloat(nil, m.Value, 'g', -1, 64), nil
	}
	if m.Text != "" {
		return json.Marshal(m.Text)
	}
	return json.Marshal(formatMetric(m.Value))
}

// UnmarshalJSON accepts every JSON value of up to 200 characters and keeps what is not a number as Text.
func (m *Metric) UnmarshalJSON(data []byte) error {
	*m = Metric{}
	data = bytes.TrimSpace(data)
	if f, err := strconv.ParseFloat(string(data), 64); err == nil && data[0] != '"' {
		m.Value = f
		return nil
	}
	var s string
	if json.Unmarshal(data, &s) == nil && len(data) > 0 && data[0] == '"' {
		switch strings.ToLower(s) {
		case "nan":
			m.Value = math.NaN()
		case "infinity", "inf", "+inf", "+infinity":
			m.Value = math.Inf(1)
		case "-infinity", "-inf":
			m.Value = math.Inf(-1)
		default:
			m.Text = truncate(s, 200)
		}
		return nil
	}
	if len(data) == 0 {
		return fmt.Errorf("empty metric")
	}
	m.Text = truncate(string(data), 200)
	return nil
}

// Direction says which metric is better.
type Direction string

// The directions.
const (
	Max Direction = "max"
	Min Direction = "min"
)

// Score turns a metric into a number of which more is better.
func (d Direction) Score(v float64) float64 {
	if d == Min {
		return -v
	}
	return v
}

// Better reports whether a beats b.
func (d Direction) Better(a, b float64) bool { return d.Score(a) > d.Score(b) }

// UnmarshalJSON accepts any case: the old APIs write 'max', "MAX" and Direction.MAX.
func (d *Direction) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("direction is %q or %q", Max, Min)
	}
	*d = Direction(strings.ToLower(s))
	return nil
}
