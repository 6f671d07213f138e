package differ

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config describes a run.
type Config struct {
	// Want is the oracle, Got is held to it.
	Want, Got *Side
	// Seed of the sequences.
	Seed uint64
	// Sequences and Steps of each; Sequences zero: until Until.
	Sequences, Steps int
	Until            time.Time
	// Strict compares the messages of exceptions too.
	Strict bool
	// Report is told of each difference when it has been shrunk.
	Report func(Difference)
	// Progress is told now and then how far the run is.
	Progress func(sequences, steps int)
}

// Difference is what a sequence came upon, shrunk.
type Difference struct {
	// Signature names what differs without the paths: differences with the same one are told once.
	Signature string
	Sequence  int
	Script    []Operation
	// Detail is what was expected and what came, several lines.
	Detail string
	// Times it was seen.
	Times int
}

// String prints the script and what is wrong at its end.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (sequence %d, seen %d times)\n", d.Signature, d.Sequence, d.Times)
	for _, o := range d.Script {
		fmt.Fprintf(&b, "    %s\n", o)
	}
	b.WriteString(d.Detail)
	return b.String()
}

// Result of a run.
type Result struct {
	Sequences, Steps int
	// Differences by signature, in the order of their first appearance; Of has the signature of each sequence, empty for a
	// clean one.
	Differences []*Difference
	Of          []string
	// Unsupported are the features that Got says it does not have; no sequence used them.
	Unsupported []string
	// Kinds of operations that were drawn.
	Kinds int
	// Outcomes counts what both sides answered, by kind: ok, false, nothing, or an exception.
	Outcomes map[string]map[string]int
	// Accidents counts where sequences met what HDFS does by accident, by name.
	Accidents map[string]int
}

// Table says how often each kind of operation was tried, and what it came to.
func (r *Result) Table() string {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(r.Outcomes)) {
		outcomes, all := r.Outcomes[kind], 0
		order := slices.SortedFunc(maps.Keys(outcomes), func(x, y string) int {
			return cmp.Or(cmp.Compare(outcomes[y], outcomes[x]), cmp.Compare(x, y))
		})
		var parts []string
		for _, what := range order {
			all += outcomes[what]
			parts = append(parts, fmt.Sprintf("%s %d", what, outcomes[what]))
		}
		fmt.Fprintf(&b, "%-12s %6d: %s\n", kind, all, strings.Join(parts, ", "))
	}
	return b.String()
}

// Features are those that a side may lack as a whole.
var Features = []string{quotas, concats, cuts, xattrs, acls, snapshots}

// checkpoint is how many operations lie between two comparisons of the tree.
const checkpoint = 15

// tries bounds the replays that shrink one difference.
const tries = 120

// Run compares until the sequences or the time have run out. Its error is that of a side which does not answer.
func Run(ctx context.Context, c Config) (*Result, error) {
	r := newRunner(c, c.Want, c.Got)
	defer c.Want.close()
	defer c.Got.close()
	if err := r.probe(ctx); err != nil {
		return nil, err
	}
	for i := 0; (c.Sequences > 0 && i < c.Sequences) || (c.Sequences == 0 && time.Now().Before(c.Until)); i++ {
		if err := r.sequence(ctx, i); err != nil {
			return nil, err
		}
		if c.Progress != nil && i%20 == 19 {
			c.Progress(i+1, r.result.Steps)
		}
	}
	return r.result, nil
}

// system is a side as the runner sees it.
type system interface {
	name() string
	begin(ctx context.Context, root string) error
	do(ctx context.Context, root string, o Operation) answer
	tree(ctx context.Context, root string, without map[string]bool) (string, error)
	exists(ctx context.Context, path string) bool
	end(ctx context.Context, root string)
}

type runner struct {
	Config
	want, got system

	result  *Result
	byName  map[string]*Difference
	without map[string]bool
	roots   int
}

func newRunner(c Config, want, got system) *runner {
	return &runner{
		Config: c, want: want, got: got, byName: map[string]*Difference{}, without: map[string]bool{},
		result: &Result{Outcomes: map[string]map[string]int{}, Accidents: map[string]int{}},
	}
}

// probe finds out which features Got has.
func (r *runner) probe(ctx context.Context) error {
	root, err := r.root(ctx)
	if err != nil {
		return err
	}
	for _, o := range []Operation{
		op("write", "src", "$R/f", "length", 1024, "blocksize", 1024),
		op("write", "src", "$R/g", "length", 10, "blocksize", 1024),
	} {
		if a := r.got.do(ctx, root, o); a.broken != nil || a.class != "" {
			return fmt.Errorf("%s: %s answers %s", o, r.got.name(), a)
		}
	}
	for _, p := range []struct {
		group string
		o     Operation
	}{
		{concats, op("concat", "dst", "$R/f", "srcs", "$R/g")},
		{cuts, op("truncate", "src", "$R/f", "length", 0, "holder", "writer-1")},
		{quotas, op("quota", "src", root, "names", 1000, "space", resetIt)},
		{xattrs, op("setxattr", "src", "$R/f", "name", "USER:k", "value", "v", "flag", 3)},
		{acls, op("acl", "src", "$R/f", "how", "modify", "entries", "user:alice:7")},
		{snapshots, op("allowsnapshot", "src", "$R/f")},
	} {
		if r.got.do(ctx, root, p.o).unsupported() {
			r.without[p.group] = true
			r.result.Unsupported = append(r.result.Unsupported, p.group)
		}
	}
	for _, name := range kindNames {
		if !r.without[kinds[name].group] {
			r.result.Kinds++
		}
	}
	return nil
}

// root makes a fresh directory on both sides, under the same name.
func (r *runner) root(ctx context.Context) (string, error) {
	r.roots++
	root := fmt.Sprintf("/differ/%d-%d", time.Now().UnixNano()/1e6, r.roots)
	if err := r.want.begin(ctx, root); err != nil {
		return "", err
	}
	return root, r.got.begin(ctx, root)
}

// found is a difference at the end of a sequence of operations.
type found struct {
	signature, detail string
	// at is the number of operations done.
	at int
}

// replay runs operations on a fresh root until something differs. With count the outcomes are counted.
func (r *runner) replay(ctx context.Context, script []Operation, trees, count bool) (*found, error) {
	root, err := r.root(ctx)
	if err != nil {
		return nil, err
	}
	defer r.want.end(ctx, root)
	defer r.got.end(ctx, root)
	for i, o := range script {
		want, got := both(r, func(s system) answer { return s.do(ctx, root, o) })
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if count {
			r.result.Steps++
			r.count(o, want)
		}
		if name := r.accident(ctx, root, o, want, got); name != "" {
			if count {
				r.result.Accidents[name]++
			}
			return nil, nil
		}
		refused := !o.absolute() && want.class != "" && got.class != ""
		if !refused && !want.accepts(got, r.Strict) {
			return &found{signature(o, want, got), detail(want.String(), got.String(), r.want.name(), r.got.name()), i + 1}, nil
		}
		if (trees && (i+1)%checkpoint == 0) || i == len(script)-1 {
			want, got := both(r, func(s system) string {
				text, err := s.tree(ctx, root, r.without)
				if err != nil {
					return err.Error()
				}
				return text
			})
			if name := treeAccident(script[:i+1], want, got); name != "" {
				if count {
					r.result.Accidents[name]++
				}
				return nil, nil
			}
			if want != got {
				what, lines := treeDifference(want, got, r.want.name(), r.got.name())
				return &found{"tree: " + what, lines, i + 1}, nil
			}
		}
	}
	return nil, nil
}

// both asks the two sides at once: each waits for its own datanodes.
func both[T any](r *runner, ask func(s system) T) (want, got T) {
	var wg sync.WaitGroup
	wg.Go(func() { want = ask(r.want) })
	got = ask(r.got)
	wg.Wait()
	return want, got
}

func (r *runner) count(o Operation, a answer) {
	outcomes := r.result.Outcomes[o.Kind]
	if outcomes == nil {
		outcomes = map[string]int{}
		r.result.Outcomes[o.Kind] = outcomes
	}
	switch {
	case a.broken != nil:
		outcomes["no answer"]++
	case a.class != "":
		outcomes[a.class[strings.LastIndexAny(a.class, ".$")+1:]]++
	case a.result == "false", a.result == "none":
		outcomes[a.result]++
	default:
		outcomes["ok"]++
	}
}

// sequence makes and runs sequence i, and shrinks what it comes upon.
func (r *runner) sequence(ctx context.Context, i int) error {
	g := newGenerator(r.Seed, uint64(i), r.without)
	script := make([]Operation, r.Steps)
	for k := range script {
		script[k] = g.next()
	}
	f, err := r.replay(ctx, script, true, true)
	if err != nil {
		return err
	}
	r.result.Sequences++
	if f == nil {
		r.result.Of = append(r.result.Of, "")
		return nil
	}
	if d := r.byName[f.signature]; d != nil {
		d.Times++
		r.result.Of = append(r.result.Of, f.signature)
		return nil
	}
	script, f, err = r.shrink(ctx, script[:f.at], f)
	if err != nil {
		return err
	}
	r.result.Of = append(r.result.Of, f.signature)
	if d := r.byName[f.signature]; d != nil {
		d.Times++
		return nil
	}
	d := &Difference{Signature: f.signature, Sequence: i, Script: script, Detail: f.detail, Times: 1}
	r.byName[f.signature] = d
	r.result.Differences = append(r.result.Differences, d)
	if r.Report != nil {
		r.Report(*d)
	}
	return nil
}

// shrink leaves out operations as long as the same difference remains. Comparing the tree on the way may be part of it:
// reading changes times. What does not come again is left as it is, and said to be so.
func (r *runner) shrink(ctx context.Context, script []Operation, f *found) ([]Operation, *found, error) {
	again := func(script []Operation, trees bool) (*found, error) {
		g, err := r.replay(ctx, script, trees, false)
		if err != nil || g == nil || g.signature != f.signature {
			return nil, err
		}
		return g, nil
	}
	trees := false
	g, err := again(script, trees)
	if err == nil && g == nil {
		trees = true
		g, err = again(script, trees)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case g == nil:
		f.detail += "  (the same operations did not show it again)\n"
		return script, f, nil
	}
	script, f = script[:g.at], g
	left := tries
	for size := max(1, len(script)/2); ; size /= 2 {
		for from := 0; from < len(script) && left > 0; {
			to := min(from+size, len(script))
			shorter := slices.Concat(script[:from], script[to:])
			if len(shorter) == 0 {
				break
			}
			left--
			g, err := again(shorter, trees)
			if err != nil {
				return nil, nil, err
			}
			if g != nil {
				script, f = shorter[:g.at], g
				continue
			}
			from = to
		}
		if size <= 1 || left == 0 {
			return script, f, nil
		}
	}
}

func signature(o Operation, want, got answer) string {
	say := func(a answer) string {
		switch {
		case a.broken != nil:
			return "no answer"
		case a.class != "":
			return a.class[strings.LastIndexAny(a.class, ".$")+1:]
		default:
			return "a result"
		}
	}
	if say(want) == say(got) {
		return fmt.Sprintf("%s: another %s", o.Kind, strings.TrimPrefix(say(want), "a "))
	}
	return fmt.Sprintf("%s: %s, not %s", o.Kind, say(got), say(want))
}

func detail(want, got, wantName, gotName string) string {
	return fmt.Sprintf("  %s: %s\n  %s: %s\n", wantName, want, gotName, got)
}

// treeDifference shows the lines that differ, and names the first thing in the first of them that does.
func treeDifference(want, got, wantName, gotName string) (what, lines string) {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var b strings.Builder
	for i := range max(len(w), len(g)) {
		var x, y string
		if i < len(w) {
			x = w[i]
		}
		if i < len(g) {
			y = g[i]
		}
		if x == y {
			continue
		}
		if what == "" {
			what = firstDifferent(x, y)
		}
		fmt.Fprintf(&b, "  %s: %s\n  %s: %s\n", wantName, x, gotName, y)
		if b.Len() > 2000 {
			b.WriteString("  ...\n")
			break
		}
	}
	return what, b.String()
}

// firstDifferent names the first field in which two lines of a tree differ.
func firstDifferent(x, y string) string {
	a, b := strings.Fields(x), strings.Fields(y)
	if len(a) == 0 || len(b) == 0 || (len(a) != len(b)) || (a[0] != b[0]) {
		return "entries"
	}
	for i := range a {
		if a[i] != b[i] {
			name, _, ok := strings.Cut(a[i], "=")
			if !ok {
				return a[0]
			}
			return name
		}
	}
	return "entries"
}
