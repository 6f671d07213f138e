package resourcemanager

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWrongWordsOfQueuesAreNamedAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := NewQueues(QueueConfig{
		Capacity: "50%", Mapping: []MappingRule{{User: "ann"}, {User: "a", Group: "b", Queue: "root.nowhere"}, {User: "*", Queue: "root.a.%who", Fallback: "panic"}},
		Children: map[string]QueueConfig{
			"a": {Capacity: "[memory=50%,memory-mb=2w]"}, "b": {Capacity: "[memory=1GiB", Max: "2w"}, "c": {Capacity: "0w"}, "d": {Capacity: "101%"},
			"e": {State: "DRAINING", UserLimit: "2w", UserLimitFactor: -1, MaxApplications: -1, MasterShare: "x", Ordering: "lifo", MaxLifetime: "1h", DefaultLifetime: "2h"},
			"f": {DefaultPriority: 5, MaxPriority: 3, Priority: -1, MaxLifetime: "-3s", Mapping: []MappingRule{{}}},
			"g": {AutoCreate: &QueueConfig{Capacity: "40%", Children: map[string]QueueConfig{"x": {}}}},
			"h": {Capacity: "[vcores=-1]"}, "i": {Capacity: "[vcores]"}, "j": {Capacity: "[memory=9EiB]"}, "k": {Max: "[gpu=8]", Capacity: "[gpu=9]"},
		},
	})
	for _, want := range []string{
		"queue root: its capacity and max are the whole cluster", "root.a: capacity: memory-mb is named twice", "root.b: capacity: \"[memory=1GiB\" begins with [",
		"root.b: max: 2w has a weight", "root.c: capacity: \"0w\" is not a weight", "root.d: capacity: \"101%\" is not a percentage",
		"root.e: state: \"DRAINING\" is neither", "root.e: user_limit: \"2w\"", "root.e: user_limit_factor: -1", "root.e: max_applications: -1", "root.e: master_share: \"x\"", "root.e: ordering: \"lifo\"",
		"root.e: default_lifetime: 2h0m0s is longer", "root.f: default_priority: 5 is above", "root.f: priority: -1", "root.f: max_lifetime: \"-3s\"", "root.f: mapping: rules are the root's",
		"root.g: auto_create: the queues that are made have none below", "root.g: auto_create: capacity 40%: a queue that is made has a weight",
		"root.h: capacity: vcores: \"-1\"", "root.i: capacity: \"vcores\" is not RESOURCE=QUANTITY", "root.j: capacity: memory-mb: \"9EiB\"", "root.k: max 8 of yarn.io/gpu is below its capacity 9",
		"mapping: rule 1: it names no queue", "rule 2: it names one of user, group and application", "rule 2: \"root.nowhere\" is no queue", "rule 3: fallback: \"panic\"", "rule 3: \"root.a.%who\": the variables",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
	for _, c := range []QueueConfig{
		{Children: map[string]QueueConfig{"a": {Capacity: "60%"}, "b": {Capacity: "30%"}}},
		{Children: map[string]QueueConfig{"a": {Capacity: "[memory=60%]"}, "b": {Capacity: "[memory=30%]"}}},
		{Children: map[string]QueueConfig{"a": {Capacity: "90%"}, "b": {Capacity: "[memory=10%,vcores=20%]"}}},
		{Children: map[string]QueueConfig{"a": {Capacity: "90%"}, "b": {Capacity: "20%"}, "c": {Capacity: "1w"}}},
	} {
		_, err := NewQueues(c)
		if sum := (*SumError)(nil); !errors.As(err, &sum) || sum.Queue != "root" {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestWhatQueuesAreGuaranteed(t *testing.T) {
	t.Parallel()
	tree, err := NewQueues(QueueConfig{Children: map[string]QueueConfig{
		"fixed": {Capacity: "[memory=100GiB, yarn.io/gpu=8, vcores=50%]", Max: "[gpu=12]"},
		"half":  {Capacity: "50%"},
		"light": {Capacity: "1w", MaxLifetime: "2h"},
		"heavy": {Capacity: "[memory=3w, gpu=3w]", Children: map[string]QueueConfig{"x": {Capacity: "25%"}, "y": {Capacity: "75%", Max: "80%"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	const gib = 1 << 30
	low, high := tree.Resolve(Resource{Memory: 300 * gib, VCores: 100, GPUs: 24})
	for path, want := range map[string][2]Resource{
		"root":         {{Memory: 300 * gib, VCores: 100, GPUs: 24}, {Memory: 300 * gib, VCores: 100, GPUs: 24}},
		"root.fixed":   {{Memory: 100 * gib, VCores: 50, GPUs: 8}, {Memory: 300 * gib, VCores: 100, GPUs: 12}},
		"root.half":    {{Memory: 100 * gib, VCores: 50, GPUs: 8}, {Memory: 300 * gib, VCores: 100, GPUs: 24}},
		"root.light":   {{Memory: 25 * gib, GPUs: 2}, {Memory: 300 * gib, VCores: 100, GPUs: 24}},
		"root.heavy":   {{Memory: 75 * gib, GPUs: 6}, {Memory: 300 * gib, VCores: 100, GPUs: 24}},
		"root.heavy.x": {{Memory: 75 * gib / 4, GPUs: 1}, {Memory: 300 * gib, VCores: 100, GPUs: 24}},
		"root.heavy.y": {{Memory: 225 * gib / 4, GPUs: 4}, {Memory: 240 * gib, VCores: 80, GPUs: 19}},
	} {
		i := tree.Find(path).index
		if low[i] != want[0] || high[i] != want[1] {
			t.Errorf("%s: %v to %v, want %v", path, low[i], high[i], want)
		}
	}
	// A cluster that has shrunk: amounts shrink alike.
	low, _ = tree.Resolve(Resource{Memory: 50 * gib, VCores: 8, GPUs: 4})
	if got := low[tree.Find("fixed").index]; got != (Resource{Memory: 50 * gib, VCores: 4, GPUs: 4}) || !low[tree.Find("heavy").index].IsZero() {
		t.Errorf("%v", low)
	}
	if q := tree.Find("light"); q.MaxLifetime.Hours() != 2 || q.DefaultLifetime != 0 || tree.Find("heavy.x") != nil {
		t.Errorf("%+v", q)
	}
}

func drawCapacity(t *rapid.T, weights bool) string {
	quantity := func(name string) string {
		switch n := rapid.IntRange(0, 2).Draw(t, "unit"); {
		case n == 0 && weights:
			return fmt.Sprintf("%dw", rapid.IntRange(1, 9).Draw(t, "weight"))
		case n == 1 && name != "":
			return fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "amount"))
		}
		return fmt.Sprintf("%.2f%%", rapid.Float64Range(0, 33).Draw(t, "percent"))
	}
	if rapid.Bool().Draw(t, "vector") {
		return fmt.Sprintf("[memory=%s,vcores=%s,gpu=%s,x.org/fpga=%s]", quantity("memory"), quantity("vcores"), quantity("gpu"), quantity("fpga"))
	}
	return quantity("")
}

// What queues are guaranteed fits into their parents and their maxima, uses up what weights share, and shrinks for nobody when the
// cluster grows.
func TestGuaranteesFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		children := func(depth int) map[string]QueueConfig { return nil }
		children = func(depth int) map[string]QueueConfig {
			if depth == 0 || depth < 3 && rapid.Bool().Draw(t, "leaf") {
				return nil
			}
			out := map[string]QueueConfig{"w": {Capacity: "1w"}} // so that any percentages will do
			for i := range rapid.IntRange(0, 2).Draw(t, "children") {
				c := QueueConfig{Capacity: drawCapacity(t, true), Children: children(depth - 1)}
				if rapid.Bool().Draw(t, "max") {
					c.Max = drawCapacity(t, false)
				}
				out[fmt.Sprintf("q%d", i)] = c
			}
			return out
		}
		tree, err := NewQueues(QueueConfig{Children: children(3)})
		if err != nil {
			if !strings.Contains(err.Error(), "is below its capacity") {
				t.Fatal(err)
			}
			t.Skip()
		}
		draw := func(label string) Resource {
			fpgas, err := NewAmounts(map[string]int64{"x.org/fpga": int64(rapid.IntRange(0, 50).Draw(t, label+" fpgas"))})
			if err != nil {
				t.Fatal(err)
			}
			return Resource{
				Memory: rapid.Int64Range(0, 1<<44).Draw(t, label+" memory"), VCores: rapid.IntRange(0, 5000).Draw(t, label+" vcores"),
				GPUs: rapid.IntRange(0, 400).Draw(t, label+" gpus"), Other: fpgas,
			}
		}
		total, more := draw("total"), draw("more")
		low, high := tree.Resolve(total)
		grown, _ := tree.Resolve(total.Add(more))
		if low[0] != total || high[0] != total {
			t.Fatalf("the root has %v to %v of %v", low[0], high[0], total)
		}
		for i, q := range tree.All {
			if !low[i].FitsIn(high[i]) {
				t.Fatalf("%s: guaranteed %v, at most %v", q.Path, low[i], high[i])
			}
			for _, name := range total.Names() {
				if low[i].Get(name) < 0 || low[i].Get(name) > grown[i].Get(name)+1 { // +1: a byte of rounding
					t.Fatalf("%s: %d of %s in %v, %d in %v", q.Path, low[i].Get(name), name, total, grown[i].Get(name), total.Add(more))
				}
			}
			var sum Resource
			for _, c := range q.Children {
				sum = sum.Add(low[c.index])
				if !high[c.index].FitsIn(high[i]) {
					t.Fatalf("%s: at most %v, %s %v", q.Path, high[i], c.Path, high[c.index])
				}
			}
			if !sum.FitsIn(low[i]) {
				t.Fatalf("%s is guaranteed %v, its children %v", q.Path, low[i], sum)
			}
		}
	})
}

func TestQueuesThatAreMade(t *testing.T) {
	t.Parallel()
	tree, err := NewQueues(QueueConfig{
		Mapping: []MappingRule{
			{Application: "etl", Queue: "root.batch"},
			{Group: "ops", Queue: "root.%primary_group", Fallback: FallbackReject},
			{User: "*", Queue: "root.users.%user"},
			{Group: "*", Queue: "root.users.%application", Fallback: FallbackDefault},
		},
		Children: map[string]QueueConfig{
			"default": {Capacity: "20%"}, "batch": {Capacity: "60%"},
			"users": {Capacity: "20%", MaxLifetime: "1h", AutoCreate: &QueueConfig{MaxApplications: 3}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if tree.Find("users").Leaf() || tree.Find("root.users.ann") != nil {
		t.Error("users is a leaf, or ann has a queue")
	}
	for _, c := range []struct {
		user, group, app string
		want             string
		rule             int
		refused          bool
	}{
		{"ann", "staff", "etl", "root.batch", 1, false},
		{"ann", "staff", "x", "root.users.ann", 3, false},
		{"a.b", "staff", "x", "root.users.a_dot_b", 3, false},
		{"bob", "ops", "x", "", 2, true},
		{"ümit", "staff", "x y", "root.default", 4, false},
		{"ümit", "", "x", "", 0, false},
	} {
		var groups []string
		if c.group != "" {
			groups = []string{c.group}
		}
		q, rule, refusal := tree.Map(c.user, groups, c.app)
		path := ""
		if q != nil {
			path = q.Path
		}
		if path != c.want || rule != c.rule || (refusal != "") != c.refused {
			t.Errorf("%+v: %s by rule %d, %s", c, path, rule, refusal)
		}
	}
	hash := tree.Hash()
	grown := tree.With([]string{"root.users.bob", "root.users.ann", "root.batch.x", "root.batch"})
	ann := grown.Find("root.users.ann")
	if ann == nil || !ann.Created || ann.MaxApplications != 3 || ann.MaxLifetime.Hours() != 1 || len(grown.All) != len(tree.All)+2 || grown.Hash() != hash {
		t.Fatalf("%+v", ann)
	}
	if low, _ := grown.Resolve(Resource{GPUs: 100}); low[ann.index].GPUs != 10 {
		t.Errorf("ann is guaranteed %v", low[ann.index])
	}
	taken := tree.With([]string{"root.users.default", "root.users.batch"})
	if d, b := taken.Find("default"), taken.Place("batch"); d == nil || d.Path != "root.default" || b == nil || b.Path != "root.batch" || taken.Find("root.users.batch") == nil {
		t.Errorf("a queue that was made has the name of a configured one: %v, %v", d, b)
	}
	if again := grown.With([]string{"root.users.ann", "root.users.bob"}); again != grown {
		t.Error("the same tree is built again")
	}
	if less := grown.With(nil); less.Find("root.users.ann") != nil || len(less.All) != len(tree.All) {
		t.Error("the queues are still there")
	}
}

// More queues than a tree may have are not made, and those that are there stay.
func TestTooManyQueuesThatAreMade(t *testing.T) {
	t.Parallel()
	tree, err := NewQueues(QueueConfig{Children: map[string]QueueConfig{"users": {Capacity: "100%", AutoCreate: &QueueConfig{}}}})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i := range maxQueues + 10 {
		paths = append(paths, fmt.Sprintf("root.users.u%06d", i))
	}
	grown := tree.With(paths)
	if n := len(grown.All); n != maxQueues-1 || grown.Find(paths[0]) == nil {
		t.Errorf("%d queues", n)
	}
	users := grown.Find("users")
	for _, c := range []struct {
		made, below int
		full        bool
	}{{0, 0, false}, {maxMade - 1, maxMade - 1, false}, {maxMade, maxMade, true}, {maxQueues - spareQueues - 3, 0, false}, {maxQueues - spareQueues - 2, 0, true}} {
		if err := grown.RoomToMake(users, c.made, c.below); errors.Is(err, ErrQueueFull) != c.full {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func FuzzCapacity(f *testing.F) {
	for _, s := range []string{"40%", "2w", "[memory=60GiB,gpu=8,vcores=50%]", "[]", "[,]", "[memory=1e400]", "NaN", "[x/y=1w]", "1e-320w"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCapacity(s)
		if err != nil {
			return
		}
		if again, err := ParseCapacity(c.String()); err != nil || again.String() != c.String() {
			t.Errorf("%q is %s, which is %s, %v", s, c, again, err)
		}
	})
}
