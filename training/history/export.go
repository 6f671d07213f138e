package history

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/gohops/hops/training"
)

// Table is named columns of values: nil, bool, int64, float64 or string.
type Table struct {
	Columns []string
	Rows    [][]any
}

// TrialTable is one row per trial: its parameters, each in a column "params.<name>", its metric, state and times; with several
// objectives the value of each in a column "objectives.<metric>".
func (r *Record) TrialTable() *Table {
	params := map[string]bool{}
	for _, t := range r.Trials {
		for name := range t.Params {
			params[name] = true
		}
	}
	names := sortedKeys(params)
	t := &Table{Columns: []string{"experiment", "trial", "state", "metric", "epochs", "attempts", "failures", "started_ms", "ended_ms", "duration_s", "host", "note"}}
	for _, name := range names {
		t.Columns = append(t.Columns, "params."+name)
	}
	objectives := r.objectives()
	for _, name := range objectives {
		t.Columns = append(t.Columns, "objectives."+name)
	}
	for _, row := range r.Trials {
		note := row.Reason
		if row.Error != nil {
			note = row.Error.Error()
		}
		cells := []any{
			r.ID, row.Trial.String(), string(row.State), number(row.Metric), int64(row.Epochs), int64(row.Attempt), int64(row.Failures),
			moment(row.Started), moment(row.Ended), nil, text(row.Host), text(note),
		}
		if row.Started > 0 && row.Ended >= row.Started {
			cells[9] = float64(row.Ended-row.Started) / 1000
		}
		for _, name := range names {
			cells = append(cells, value(row.Params, name))
		}
		for i := range objectives {
			if i < len(row.Values) {
				cells = append(cells, row.Values[i])
			} else {
				cells = append(cells, nil)
			}
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// CurveTable is one row per step of each trial.
func (r *Record) CurveTable() *Table {
	t := &Table{Columns: []string{"experiment", "trial", "step", "metric"}}
	for _, row := range r.Trials {
		for _, p := range row.Curve {
			t.Rows = append(t.Rows, []any{r.ID, row.Trial.String(), p.Step, p.Value})
		}
	}
	return t
}

func number(f *float64) any {
	if f == nil {
		return nil
	}
	return *f
}

func moment(t training.Millis) any {
	if t == 0 {
		return nil
	}
	return int64(t)
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// value is a parameter as the kind of value that it was written as.
func value(p training.Params, name string) any {
	v, ok := p[name]
	if !ok || v == (training.Value{}) {
		return nil
	}
	if i, ok := v.Int(); ok {
		return i
	}
	if f, ok := v.Float(); ok {
		return f
	}
	if v == training.Bool(true) || v == training.Bool(false) {
		return v == training.Bool(true)
	}
	return v.String()
}

// WriteCSV writes the table as RFC 4180 has it, with a header. Nothing is an empty cell.
func (t *Table) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write(t.Columns); err != nil {
		return err
	}
	line := make([]string, len(t.Columns))
	for _, row := range t.Rows {
		for i, v := range row {
			line[i] = cell(v)
		}
		if err := c.Write(line); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		return formatFloat(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		return strconv.FormatBool(v)
	}
	return fmt.Sprint(v)
}

// WriteJSON writes a list of objects. What is no JSON number is text, "NaN" or "Infinity".
func (t *Table) WriteJSON(w io.Writer) error {
	rows := make([]map[string]any, 0, len(t.Rows))
	for _, row := range t.Rows {
		o := map[string]any{}
		for i, v := range row {
			if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
				v = training.M(f)
			}
			o[t.Columns[i]] = v
		}
		rows = append(rows, o)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(rows)
}
