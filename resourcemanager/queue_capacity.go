package resourcemanager

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/metadata"
)

// Unit is what a number in a capacity counts.
type Unit byte

// The units, in the order in which the children of a queue are given theirs: amounts first, percentages of what they leave,
// and weights share what those leave (YARN-10888).
const (
	UnitAmount Unit = iota // of the resource: bytes of memory, and pieces of everything else
	UnitPercent
	UnitWeight
)

// Quantity is one number of a capacity.
type Quantity struct {
	Unit Unit
	// Value is a percentage or a weight, Amount an amount.
	Value  float64
	Amount int64
}

// String writes the quantity of a resource: 40%, 2w, 8, 60GiB.
func (q Quantity) text(resource string) string {
	number := strconv.FormatFloat(q.Value, 'g', -1, 64)
	switch {
	case q.Unit == UnitPercent:
		return number + "%"
	case q.Unit == UnitWeight:
		return number + "w"
	case resource == MemoryName:
		return size.Format(q.Amount)
	}
	return strconv.FormatInt(q.Amount, 10)
}

// Capacity is how much of each resource a queue is guaranteed, or may use: YARN's QueueCapacityVector. The zero value is nothing
// of anything.
type Capacity struct {
	// Whole is for every resource alike, where Vector is nil.
	Whole Quantity
	// Vector is by the name of the resource; of what it does not name there is nothing guaranteed, and no maximum.
	Vector map[string]Quantity
}

// Of is the part of a capacity that is about one resource; false: it says nothing about it.
func (c Capacity) Of(resource string) (Quantity, bool) {
	if c.Vector == nil {
		return c.Whole, true
	}
	q, ok := c.Vector[resource]
	return q, ok
}

// String is the canonical text: 40%, 2w or [memory-mb=50%,vcores=2w,yarn.io/gpu=8].
func (c Capacity) String() string {
	if c.Vector == nil {
		return c.Whole.text("")
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.Vector)) {
		parts = append(parts, name+"="+c.Vector[name].text(name))
	}
	return "[" + strings.Join(parts, ",") + "]"
}

const (
	// maxWeight bounds a weight; it is larger than 0.
	maxWeight = 1e6
	// maxVector bounds the resources of a vector.
	maxVector = 100
)

// ParseCapacity reads a percentage of the parent ("40%", also "40"), a weight ("2w"), or a vector of these and of amounts
// ("[memory=60GiB, vcores=50%, yarn.io/gpu=8]"). memory is memory-mb and gpu is yarn.io/gpu; memory without a unit is in MiB, as in YARN.
func ParseCapacity(text string) (Capacity, error) {
	s := strings.TrimSpace(text)
	inner, vector := strings.CutPrefix(s, "[")
	if !vector {
		q, err := parseQuantity(s, "")
		return Capacity{Whole: q}, err
	}
	inner, ok := strings.CutSuffix(inner, "]")
	if !ok {
		return Capacity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.100q begins with [ and does not end with ]", text)
	}
	c := Capacity{Vector: map[string]Quantity{}}
	for part := range strings.SplitSeq(inner, ",") {
		name, value, ok := strings.Cut(part, "=")
		name = resourceName(strings.TrimSpace(name))
		if !ok || !ValidResourceName(name) {
			return Capacity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.100q is not RESOURCE=QUANTITY, as memory=50%%, vcores=2w or yarn.io/gpu=8", strings.TrimSpace(part))
		}
		if _, twice := c.Vector[name]; twice {
			return Capacity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%s is named twice", name)
		}
		q, err := parseQuantity(strings.TrimSpace(value), name)
		if err != nil {
			return Capacity{}, fmt.Errorf("%s: %w", name, err)
		}
		if c.Vector[name] = q; len(c.Vector) > maxVector {
			return Capacity{}, metadata.Errorf(metadata.ErrInvalidArgument, "more than %d resources", maxVector)
		}
	}
	return c, nil
}

// resourceName is the name of a resource whose short form people write.
func resourceName(s string) string {
	switch s {
	case "memory":
		return MemoryName
	case "gpu", "gpus":
		return GPUName
	}
	return s
}

// parseQuantity reads a number with its unit; without a resource an amount makes no sense, and a bare number is a percentage.
func parseQuantity(s, resource string) (Quantity, error) {
	number := func(digits string, most float64) (float64, bool) {
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		return f, err == nil && f >= 0 && f <= most
	}
	if digits, ok := strings.CutSuffix(s, "w"); ok {
		f, ok := number(digits, maxWeight)
		if !ok || f == 0 {
			return Quantity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.40q is not a weight: a number above 0 and up to %.0f with w behind it", s, maxWeight)
		}
		return Quantity{Unit: UnitWeight, Value: f}, nil
	}
	if digits, ok := strings.CutSuffix(s, "%"); ok || resource == "" {
		f, ok := number(digits, 100)
		if !ok {
			return Quantity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.40q is not a percentage between 0 and 100, nor a weight (2w), nor a vector ([memory=50%%,yarn.io/gpu=8])", s)
		}
		return Quantity{Unit: UnitPercent, Value: f}, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && n <= maxAmount {
		if resource == MemoryName {
			if n > maxAmount/MiB {
				return Quantity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d MiB are more than any cluster has", n)
			}
			n *= MiB
		}
		return Quantity{Amount: n}, nil
	}
	if resource == MemoryName {
		if n, err := size.Parse(s); err == nil && n <= maxAmount {
			return Quantity{Amount: n}, nil
		}
	}
	return Quantity{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.40q is not an amount (8; of memory 60GiB), a percentage (50%%) or a weight (2w)", s)
}

// maxAmount bounds an amount; sums of it do not overflow.
const maxAmount = 1 << 53

// sumTolerance is by how much percentages may miss 100 together.
const sumTolerance = 1e-4

// SumError says that the capacities of a queue's children are no whole.
type SumError struct {
	// Queue is the path of the parent.
	Queue string
	// Resource is empty where no child tells resources apart.
	Resource string
	// Percent is their sum.
	Percent float64
	// Others: amounts or weights are beside the percentages, which may therefore be less than 100.
	Others bool
}

func (e *SumError) Error() string {
	of, want := "", ", not 100%"
	if e.Resource != "" {
		of = " of " + e.Resource
	}
	if e.Others {
		want = ": at most 100%"
	}
	return fmt.Sprintf("queue %s: capacities of its children add up to %g%%%s%s", e.Queue, math.Round(e.Percent*1e6)/1e6, of, want)
}

// checkSums verifies the percentages of the children of q: together 100 where nothing else is beside them (or 0 in a vector), and
// never more.
func (q *Queue) checkSums() []error {
	names := []string{""}
	for _, c := range q.Children {
		if c.Guarantee.Vector != nil {
			names = q.resourceNames()
			break
		}
	}
	var errs []error
	for _, name := range names {
		sum, others, whole := 0.0, q.AutoCreate != nil, name == ""
		for _, c := range q.Children {
			quantity, ok := c.Guarantee.Of(name)
			switch {
			case !ok:
			case quantity.Unit == UnitPercent:
				sum += quantity.Value
			case quantity.Unit == UnitWeight || quantity.Amount > 0:
				others = true
			}
		}
		if sum > 100+sumTolerance || !others && sum < 100-sumTolerance && (whole || sum > 0) {
			errs = append(errs, &SumError{q.Path, name, sum, others})
		}
	}
	return errs
}

// resourceNames are those that the vectors of q's children name.
func (q *Queue) resourceNames() []string {
	names := map[string]bool{}
	for _, c := range q.Children {
		for name := range c.Guarantee.Vector {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// checkMax says where a maximum is below what is guaranteed in the same unit.
func (q *Queue) checkMax() []error {
	var errs []error
	below := func(name string, max, min Quantity) {
		if max.Unit == min.Unit && (max.Value < min.Value || max.Amount < min.Amount) {
			of := ""
			if name != "" {
				of = " of " + name
			}
			errs = append(errs, fmt.Errorf("queue %s: max %s%s is below its capacity %s", q.Path, max.text(name), of, min.text(name)))
		}
	}
	if q.Limit.Vector == nil && q.Guarantee.Vector == nil {
		below("", q.Limit.Whole, q.Guarantee.Whole)
		return errs
	}
	names := map[string]bool{}
	for name := range q.Limit.Vector {
		names[name] = true
	}
	for name := range q.Guarantee.Vector {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		most, limited := q.Limit.Of(name)
		least, guaranteed := q.Guarantee.Of(name)
		if limited && guaranteed {
			below(name, most, least)
		}
	}
	return errs
}
