package search

import (
	"encoding/json"
	"sort"

	"github.com/gohops/hops/training"
)

// Curve is the searched metric of one trial by step, in rising order of steps.
type Curve struct {
	steps  []int64
	values []float64
	sums   []float64 // running sums of values
}

// Len is the number of steps, which is the number of epochs.
func (c *Curve) Len() int { return len(c.steps) }

// At is the i-th point.
func (c *Curve) At(i int) (step int64, value float64) { return c.steps[i], c.values[i] }

// Last is the newest point; ok is false for an empty curve.
func (c *Curve) Last() (step int64, value float64, ok bool) {
	if len(c.steps) == 0 {
		return 0, 0, false
	}
	i := len(c.steps) - 1
	return c.steps[i], c.values[i], true
}

// Until is the number of points at or before a step.
func (c *Curve) Until(step int64) int {
	return sort.Search(len(c.steps), func(i int) bool { return c.steps[i] > step })
}

// Put appends a point. What was known at or after its step is replaced; the number of points that went is returned.
func (c *Curve) Put(step int64, value float64) (dropped int) {
	dropped = c.cut(sort.Search(len(c.steps), func(i int) bool { return c.steps[i] >= step }))
	sum := value
	if n := len(c.sums); n > 0 {
		sum += c.sums[n-1]
	}
	c.steps, c.values, c.sums = append(c.steps, step), append(c.values, value), append(c.sums, sum)
	return dropped
}

// Cut drops the points after a step and says how many those were.
func (c *Curve) Cut(step int64) int { return c.cut(c.Until(step)) }

func (c *Curve) cut(n int) int {
	dropped := len(c.steps) - n
	c.steps, c.values, c.sums = c.steps[:n], c.values[:n], c.sums[:n]
	return dropped
}

// Mean is the running mean of the points at or before a step; ok is false if there are none.
func (c *Curve) Mean(step int64) (mean float64, ok bool) {
	n := c.Until(step)
	if n == 0 {
		return 0, false
	}
	return c.sums[n-1] / float64(n), true
}

// Best is the best of all points.
func (c *Curve) Best(d training.Direction) (best float64, ok bool) {
	for i, v := range c.values {
		if i == 0 || d.Better(v, best) {
			best = v
		}
	}
	return best, len(c.values) > 0
}

// MarshalJSON writes [[step, value], …].
func (c Curve) MarshalJSON() ([]byte, error) {
	pairs := make([][2]any, len(c.steps))
	for i := range pairs {
		pairs[i] = [2]any{c.steps[i], c.values[i]}
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads it.
func (c *Curve) UnmarshalJSON(data []byte) error {
	var pairs []json.RawMessage
	if err := json.Unmarshal(data, &pairs); err != nil {
		return err
	}
	*c = Curve{}
	for _, raw := range pairs {
		var step int64
		var value float64
		if err := json.Unmarshal(raw, &[2]any{&step, &value}); err != nil {
			return err
		}
		c.Put(step, value)
	}
	return nil
}
