package job

import (
	"fmt"
	"strconv"
	"strings"
)

// Array are the members of a command that is run once for each of some numbers.
type Array struct {
	// From and To are the first and the largest number.
	From int `json:"from,omitempty"`
	To   int `json:"to"`
	// Step lies between two numbers; 0 is 1.
	Step int `json:"step,omitempty"`
	// AtOnce is how many members run at a time at most; 0: as many as there is room for.
	AtOnce int `json:"at_once,omitempty"`
}

// maxIndex bounds the numbers of members.
const maxIndex = 1 << 30

// ParseArray reads FROM-TO[:STEP][%AT_ONCE], or one number (sbatch --array).
func ParseArray(text string) (*Array, error) {
	bad := fmt.Errorf("array %.100q: want FROM-TO[:STEP][%%AT_ONCE], as 0-99%%10", text)
	number := func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > maxIndex || strings.HasPrefix(s, "+") {
			return 0, bad
		}
		return n, nil
	}
	var a Array
	var err error
	rest, atOnce, limited := strings.Cut(text, "%")
	if limited {
		if a.AtOnce, err = number(atOnce); err != nil || a.AtOnce == 0 {
			return nil, bad
		}
	}
	rest, step, stepped := strings.Cut(rest, ":")
	if stepped {
		if a.Step, err = number(step); err != nil || a.Step == 0 {
			return nil, bad
		}
	}
	from, to, several := strings.Cut(rest, "-")
	if a.From, err = number(from); err != nil {
		return nil, err
	}
	if a.To = a.From; several {
		if a.To, err = number(to); err != nil {
			return nil, err
		}
	}
	return &a, nil
}

// step is Step with its default.
func (a *Array) step() int { return max(a.Step, 1) }

// Count is the number of members.
func (a *Array) Count() int { return (a.To-a.From)/a.step() + 1 }

// Numbers are those of the instances: an array's own, or from 0 on.
func (s *Spec) Numbers() []int {
	var out []int
	if s.Array == nil {
		for i := range s.Instances {
			out = append(out, i)
		}
		return out
	}
	for n := s.Array.From; n <= s.Array.To; n += s.Array.step() {
		out = append(out, n)
	}
	return out
}

// Environment is what all members of an array find beside HOPS_ARRAY_INDEX, their own number.
func (a *Array) Environment() map[string]string {
	return map[string]string{
		EnvArrayCount: strconv.Itoa(a.Count()), "HOPS_ARRAY_FROM": strconv.Itoa(a.From), "HOPS_ARRAY_TO": strconv.Itoa(a.To), "HOPS_ARRAY_STEP": strconv.Itoa(a.step()),
	}
}

// EnvArrayCount is in the environment of an array's members alone, EnvArrayIndex is the number of each.
const (
	EnvArrayCount = "HOPS_ARRAY_COUNT"
	EnvArrayIndex = "HOPS_ARRAY_INDEX"
)

// checkArray looks at an array, and makes the number of instances of it. It comes before what looks at instances.
func (s *Spec) checkArray(wrong func(ok bool, format string, args ...any)) {
	a := s.Array
	if a == nil {
		return
	}
	ok := a.From >= 0 && a.To >= a.From && a.To <= maxIndex && a.Step >= 0 && a.Step <= maxIndex && a.AtOnce >= 0
	wrong(ok, "array: from %d to %d in steps of %d, %d at once: want numbers from 0 to %d that go up", a.From, a.To, a.Step, a.AtOnce, maxIndex)
	wrong(s.Gang == Gang{}, "array and gang: members of an array run on their own")
	if !ok {
		return
	}
	n := a.Count()
	wrong(s.Instances <= 1 || s.Instances == n, "instances: the array has %d, instances says %d", n, s.Instances)
	s.Instances = n
}
