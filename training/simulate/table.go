// Package simulate runs searches over recorded learning curves in virtual time: an epoch costs what it cost when it was recorded,
// and no machine. What it drives is the experiment's own state machine, optimizer and early stopping, so a simulated search
// does what a real one with these curves would. It has no clock, goroutine or I/O.
package simulate

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/training"
)

// Limits of a table.
const (
	MaxTableBytes = 512 << 20 // unpacked
	MaxRows       = training.MaxTrials
)

// Table holds the learning curves of configurations that were trained once.
type Table struct {
	// Parameters are the columns that a space may be searched by, beside id.
	Parameters []string
	Rows       []Row

	byID map[int64]int
}

// Row is one configuration.
type Row struct {
	ID     int64
	Params training.Params
	// Cost is the time of one epoch, in milliseconds; 1 where the table has none.
	Cost float64
	// Curve is the searched metric after each epoch, Test the same on other data; nil where the table has none.
	Curve, Test []float64
}

// costColumns are names of the column with the time of an epoch.
var costColumns = []string{"epoch_cpu_ms", "epoch_ms", "cost"}

// ReadTable reads CSV, packed with gzip or not, of one of two forms. Wide, a row per configuration: id, parameters, perhaps
// epoch_ms, and the metric after each epoch as val_1, val_2, …, perhaps test_1, …. Long, a row per step as `hops experiment
// export --curves` writes it: trial, step, metric, perhaps parameters as params.NAME and epoch_ms; the trial's number is the id.
func ReadTable(in io.Reader) (*Table, error) {
	b := bufio.NewReader(in)
	var from io.Reader = b
	if magic, _ := b.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		from = z
	}
	limited := &io.LimitedReader{R: from, N: MaxTableBytes}
	r := csv.NewReader(limited)
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("the curves have no header: %w", err)
	}
	header = slices.Clone(header)
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	t := &Table{byID: map[int64]int{}}
	row := t.wide
	switch {
	case slices.Contains(header, "val_1"):
	case slices.Contains(header, "trial") && slices.Contains(header, "step") && slices.Contains(header, "metric"):
		row = t.long
	default:
		return nil, fmt.Errorf("the curves have neither columns val_1, val_2, … nor trial, step, metric; they have %s", shorten(header))
	}
	c := columnsOf(header)
	t.Parameters = c.params
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := row(c, record); err != nil {
			line, _ := r.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if len(t.Rows) > MaxRows {
			return nil, fmt.Errorf("more than %d configurations", MaxRows)
		}
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("more than %d bytes", MaxTableBytes)
	}
	if len(t.Rows) == 0 {
		return nil, fmt.Errorf("the curves have no rows")
	}
	return t, nil
}

func shorten(names []string) string {
	if len(names) > 12 {
		names = append(slices.Clone(names[:12]), "…")
	}
	return strings.Join(names, ", ")
}

// columns is where things are in a record; -1 for what is not there.
type columns struct {
	id, step, metric, cost int
	val, test              []int
	params                 []string
	param                  []int // where they are
}

func columnsOf(header []string) columns {
	find := func(name string) int { return slices.Index(header, name) }
	c := columns{id: find("id"), step: find("step"), metric: find("metric"), cost: -1}
	for _, name := range costColumns {
		c.cost = max(c.cost, find(name))
	}
	long := find("val_1") < 0
	if long {
		c.id = find("trial")
	}
	for k := 1; find(fmt.Sprintf("val_%d", k)) >= 0; k++ {
		c.val = append(c.val, find(fmt.Sprintf("val_%d", k)))
		if at := find(fmt.Sprintf("test_%d", k)); at >= 0 {
			c.test = append(c.test, at)
		}
	}
	for i, name := range header {
		short, isParam := strings.CutPrefix(name, "params.")
		if !isParam && (long || i == c.id || i == c.cost || slices.Contains(c.val, i) || slices.Contains(c.test, i) || strings.HasPrefix(name, "test_")) {
			continue
		}
		c.params, c.param = append(c.params, short), append(c.param, i)
	}
	return c
}

// begin adds a row with what stands in a record beside the curve.
func (t *Table) begin(c columns, record []string) (*Row, error) {
	r := Row{ID: int64(len(t.Rows)), Cost: 1, Params: training.Params{}}
	var err error
	if c.id >= 0 {
		if r.ID, err = strconv.ParseInt(record[c.id], 10, 64); err != nil {
			return nil, fmt.Errorf("id %q is not a whole number", record[c.id])
		}
	}
	if c.cost >= 0 {
		if r.Cost, err = strconv.ParseFloat(record[c.cost], 64); err != nil || !(r.Cost >= 0) || math.IsInf(r.Cost, 0) {
			return nil, fmt.Errorf("the cost %q of an epoch is no time", record[c.cost])
		}
	}
	for i, name := range c.params {
		text := record[c.param[i]]
		v := training.String(text)
		if number := new(training.Value); text != "" && json.Unmarshal([]byte(text), number) == nil {
			v = *number
		} else if text == "" {
			continue
		}
		r.Params[name] = v
	}
	if _, twice := t.byID[r.ID]; twice {
		return nil, fmt.Errorf("id %d is there twice", r.ID)
	}
	t.byID[r.ID] = len(t.Rows)
	t.Rows = append(t.Rows, r)
	return &t.Rows[len(t.Rows)-1], nil
}

func (t *Table) wide(c columns, record []string) error {
	r, err := t.begin(c, record)
	if err != nil {
		return err
	}
	for k, at := range c.val {
		if record[at] == "" { // it ended earlier
			break
		}
		v, err := finite(record[at])
		if err != nil {
			return fmt.Errorf("val_%d: %w", k+1, err)
		}
		r.Curve = append(r.Curve, v)
		if k < len(c.test) {
			if v, err = finite(record[c.test[k]]); err != nil {
				return fmt.Errorf("test_%d: %w", k+1, err)
			}
			r.Test = append(r.Test, v)
		}
	}
	if len(r.Curve) == 0 {
		return fmt.Errorf("configuration %d has no epoch", r.ID)
	}
	return nil
}

func (t *Table) long(c columns, record []string) error {
	id, err := strconv.ParseInt(record[c.id], 10, 64)
	if err != nil {
		return fmt.Errorf("trial %q is not a number", record[c.id])
	}
	i, ok := t.byID[id]
	if !ok {
		if _, err := t.begin(c, record); err != nil {
			return err
		}
		i = len(t.Rows) - 1
	}
	v, err := finite(record[c.metric])
	if err != nil {
		return fmt.Errorf("metric: %w", err)
	}
	t.Rows[i].Curve = append(t.Rows[i].Curve, v)
	return nil
}

func finite(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a finite number", text)
	}
	return v, nil
}

// Check says whether a space can be searched in the table: by the number of the configuration, {"id": {"type": "INTEGER", "range":
// [0, 639]}}, or by columns, when a configuration is the row that is nearest to it.
func (t *Table) Check(space training.Space) error {
	if _, ok := space.Lookup("id"); ok && !slices.Contains(t.Parameters, "id") {
		if len(space) > 1 {
			return fmt.Errorf("the parameter id chooses a row; there can be no other beside it")
		}
		return nil
	}
	if len(space) == 0 {
		return fmt.Errorf("the study has no space; search by id or by the columns %s", strings.Join(t.Parameters, ", "))
	}
	for _, d := range space {
		if !slices.Contains(t.Parameters, d.Name) {
			return fmt.Errorf("parameter %q is no column of the curves, which have id, %s", d.Name, strings.Join(t.Parameters, ", "))
		}
	}
	return nil
}

// find is the row of a configuration. Of equally near ones it is the first.
func (t *Table) find(space training.Space, p training.Params) (*Row, error) {
	if id, ok := p["id"]; ok && !slices.Contains(t.Parameters, "id") {
		n, _ := id.Int()
		i, ok := t.byID[n]
		if !ok {
			return nil, fmt.Errorf("the curves have no configuration with id %v", id)
		}
		return &t.Rows[i], nil
	}
	nearest, least := 0, math.Inf(1)
	for i := range t.Rows {
		sum := 0.0
		for _, d := range space {
			if v, ok := p[d.Name]; ok {
				x := distance(d, v, t.Rows[i].Params[d.Name])
				sum += x * x
			}
		}
		if sum < least {
			nearest, least = i, sum
		}
	}
	return &t.Rows[nearest], nil
}

// distance of two values of a parameter, as a share of its range; a category is the same or 1 away.
func distance(d training.Parameter, v, w training.Value) float64 {
	a, ok := v.Float()
	b, ok2 := w.Float()
	if v.Equal(w) {
		return 0
	}
	if !ok || !ok2 || d.Type == training.Categorical {
		return 1
	}
	low, high := d.Min, d.Max
	if d.Type == training.Discrete {
		low, high = math.Inf(1), math.Inf(-1)
		for _, x := range d.Values {
			f, _ := x.Float()
			low, high = min(low, f), max(high, f)
		}
	}
	if d.Log && b > 0 {
		a, b, low, high = math.Log(a), math.Log(b), math.Log(low), math.Log(high)
	}
	if high == low {
		return 1
	}
	return (a - b) / (high - low)
}

// FullCost is the median time of a whole configuration.
func (t *Table) FullCost() float64 {
	costs := make([]float64, len(t.Rows))
	for i, r := range t.Rows {
		costs[i] = r.Cost * float64(len(r.Curve))
	}
	slices.Sort(costs)
	n := len(costs)
	return (costs[(n-1)/2] + costs[n/2]) / 2
}
