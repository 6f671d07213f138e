package differ

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// fake is a file system of names only: mkdirs makes one, delete removes one, stat looks. Everything else does nothing.
type fake struct {
	label string
	paths map[string]string
	// plant changes an answer, or what is there.
	plant func(f *fake, o Operation, a *answer)
	// notes are for plant, of the sequence.
	notes map[string]bool
	// reads counts how often the tree was read.
	reads int
}

func (f *fake) name() string { return f.label }

func (f *fake) begin(context.Context, string) error {
	f.paths, f.notes, f.reads = map[string]string{}, map[string]bool{}, 0
	return nil
}

func (f *fake) end(context.Context, string) {}

func (f *fake) exists(_ context.Context, path string) bool { return f.paths[path] != "" }

func (f *fake) do(_ context.Context, root string, o Operation) answer {
	src := strings.ReplaceAll(o.text("src"), "$R", root)
	var a answer
	switch o.Kind {
	case "mkdirs":
		f.paths[src] = o.text("mode")
	case "delete":
		delete(f.paths, src)
	case "stat":
		a.result = f.paths[src]
	}
	if f.plant != nil {
		f.plant(f, o, &a)
	}
	return a
}

func (f *fake) tree(_ context.Context, root string, _ map[string]bool) (string, error) {
	f.reads++
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(f.paths)) {
		fmt.Fprintf(&b, "%s mode=%s\n", strings.Replace(path, root, "$R", 1), f.paths[path])
	}
	return b.String(), nil
}

// runFakes runs sequences of one seed until a difference has been found in one of them.
func runFakes(t *testing.T, sequences int, plant func(f *fake, o Operation, a *answer)) *runner {
	t.Helper()
	r := newRunner(Config{Seed: 5, Steps: 60}, &fake{label: "oracle"}, &fake{label: "planted", plant: plant})
	for i := range sequences {
		if err := r.sequence(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func kindsOf(d *Difference) []string {
	var list []string
	for _, o := range d.Script {
		list = append(list, o.Kind)
	}
	return list
}

func TestEqualSidesHaveNoDifference(t *testing.T) {
	r := runFakes(t, 50, nil)
	if len(r.result.Differences) != 0 || r.result.Steps < 50*begin || r.result.Sequences != 50 {
		t.Errorf("%d differences, %d steps in %d sequences", len(r.result.Differences), r.result.Steps, r.result.Sequences)
	}
	total := 0
	for _, outcomes := range r.result.Outcomes {
		for _, n := range outcomes {
			total += n
		}
	}
	if total != r.result.Steps || !strings.Contains(r.result.Table(), "mkdirs") {
		t.Errorf("outcomes of %d operations, want %d:\n%s", total, r.result.Steps, r.result.Table())
	}
}

// A planted wrong answer that needs three operations in a row is found and shrunk to just these.
func TestPlantedAnswerIsShrunkToWhatItNeeds(t *testing.T) {
	r := runFakes(t, 40, func(f *fake, o Operation, a *answer) {
		switch {
		case o.Kind == "mkdirs" && o.text("src") == "$R/a":
			f.notes["made"] = true
		case o.Kind == "delete" && o.text("src") == "$R/a":
			clear(f.notes)
		case o.Kind == "owner" && f.notes["made"]:
			f.notes["owned"] = true
		case o.Kind == "rename" && f.notes["owned"]:
			*a = answer{class: "java.io.IOException", message: "planted"}
		}
	})
	var d *Difference
	for _, d = range r.result.Differences {
		if d.Signature == "rename: IOException, not a result" {
			break
		}
	}
	if d == nil {
		t.Fatal("the difference was not found")
	}
	if got := kindsOf(d); !slices.Equal(got, []string{"mkdirs", "owner", "rename"}) {
		t.Errorf("shrunk to %v\n%s", got, d)
	}
	if text := d.String(); !strings.Contains(text, "mkdirs mode=") || !strings.Contains(text, "planted: java.io.IOException: planted") {
		t.Errorf("printed as:\n%s", text)
	}
}

// What only the tree shows is found at the next checkpoint.
func TestPlantedStateIsShrunk(t *testing.T) {
	r := runFakes(t, 40, func(f *fake, o Operation, _ *answer) {
		if o.Kind == "permission" {
			for path := range f.paths {
				f.paths[path] = "wrong"
			}
		}
	})
	i := slices.IndexFunc(r.result.Differences, func(d *Difference) bool { return d.Signature == "tree: mode" })
	if i < 0 {
		t.Fatalf("found %v", r.result.Differences)
	}
	if got := kindsOf(r.result.Differences[i]); !slices.Equal(got, []string{"mkdirs", "permission"}) {
		t.Errorf("shrunk to %v", got)
	}
}

// A difference that takes two looks at the tree is shrunk with both of them.
func TestDifferenceMadeByReadingTheTreeIsShrunk(t *testing.T) {
	r := runFakes(t, 5, func(f *fake, o Operation, a *answer) {
		if f.reads > 0 && o.Kind == "stat" {
			a.result = "seen"
		}
	})
	if len(r.result.Differences) == 0 {
		t.Fatal("nothing was found")
	}
	d := r.result.Differences[0]
	if len(d.Script) != checkpoint+1 || strings.Contains(d.Detail, "again") {
		t.Errorf("%d operations remain\n%s", len(d.Script), d)
	}
}

// A difference of one moment is reported whole, and not shrunk to something else.
func TestDifferenceThatDoesNotComeAgainIsReported(t *testing.T) {
	once := true
	r := runFakes(t, 5, func(_ *fake, o Operation, a *answer) {
		if once && o.Kind == "stat" {
			a.result, once = "once", false
		}
	})
	if len(r.result.Differences) != 1 || !strings.Contains(r.result.Differences[0].Detail, "did not show it again") {
		t.Errorf("%v", r.result.Differences)
	}
}

func TestSequencesAreMadeFromSeedAndNumber(t *testing.T) {
	text := func(seed, sequence uint64) string {
		g := newGenerator(seed, sequence, nil)
		var b strings.Builder
		for range 200 {
			fmt.Fprintln(&b, g.next())
		}
		return b.String()
	}
	first := text(3, 4)
	if text(3, 4) != first {
		t.Error("the same seed and number made two sequences")
	}
	if text(3, 5) == first || text(4, 4) == first {
		t.Error("another seed or number made the same sequence")
	}
}

func TestInodesInPathsAreWrittenOut(t *testing.T) {
	for in, want := range map[string]string{"$R/a": "/root/a", "": "", "a,$R/b": "a,/root/b"} {
		got := new(Side).located(t.Context(), "/root", op("stat", "src", in)).text("src")
		if got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
