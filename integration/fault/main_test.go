package fault

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/integration/process"
)

var (
	inject  = flag.Bool("fault", false, "run the fault matrix: minutes to hours")
	repeats = flag.Int("repeats", 3, "how often a row that can be repeated is")
	seed    = flag.Uint64("seed", 1, "of places and moments")
	longer  = flag.Duration("linearize", 5*time.Minute, "how long histories of the namespace are made and checked")
)

// table is what `make fault` ends with.
var table struct {
	sync.Mutex
	rows []*row
}

// row is a line of the table.
type row struct {
	t          *testing.T
	id, what   string
	began      time.Time
	took       time.Duration
	said       []string
	without    string // why it was not run
	calm, busy int    // rounds with enough load before the fault, and all
	random     *rand.Rand
	keep       int // how many files of the load stay; 0: all
}

// leastLoad is how many operations a second have to be acknowledged before a fault for a round to count.
const leastLoad = 20

// begin makes a row of the table of a test. The ids are those of the fault matrix in docs/explanation/faults.md.
func begin(t *testing.T, id, what string) *row {
	t.Helper()
	if !*inject {
		t.Skip("make fault")
	}
	var name uint64
	for _, c := range id {
		name = name<<8 | uint64(c)
	}
	r := &row{t: t, id: id, what: what, began: time.Now(), random: rand.New(rand.NewPCG(*seed, name))}
	table.Lock()
	table.rows = append(table.rows, r)
	table.Unlock()
	t.Cleanup(func() { r.took = time.Since(r.began) })
	return r
}

// note says something in the row.
func (r *row) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.said = append(r.said, text)
	r.t.Logf("%s: %s", r.id, text)
}

// without ends a row that this machine cannot run.
func (r *row) skip(why string) {
	r.without = why
	r.t.Skip(why)
}

func (r *row) result() string {
	switch {
	case r.without != "":
		return "not run"
	case r.t.Failed():
		return "FAILED"
	case r.t.Skipped():
		return "not run"
	}
	return "ok"
}

// absent are rows that no test of this package is, with what there is instead.
var absent = [][3]string{
	{"M2", "leader cut off the network", "make cluster (machines of network namespaces)"},
	{"M5", "power cut of all namenodes", "crash clones of every store in make test; no filesystem that drops what was not synced here"},
	{"M15", "wrong wall clock", "TestNamespaceIsLinearizable steps clocks"},
	{"D2", "power cut of all datanodes", "crash clones of the block store in make test"},
}

func TestMain(m *testing.M) { process.Main(summing{m}) }

// summing prints the table behind the tests.
type summing struct{ m *testing.M }

func (s summing) Run() int {
	code := s.m.Run()
	table.Lock()
	defer table.Unlock()
	if len(table.rows) == 0 {
		return code
	}
	fmt.Printf("\n%-6s %-52s %-8s %7s  %s\n", "row", "fault", "result", "took", "seen")
	for _, r := range table.rows {
		said := strings.Join(r.said, "; ")
		if r.without != "" {
			said = r.without
		}
		if r.busy > r.calm {
			said += fmt.Sprintf("; %d of %d rounds had less than %d acknowledged operations a second before the fault", r.busy-r.calm, r.busy, leastLoad)
		}
		fmt.Printf("%-6s %-52s %-8s %6.0fs  %s\n", r.id, r.what, r.result(), r.took.Seconds(), said)
	}
	for _, a := range absent {
		fmt.Printf("%-6s %-52s %-8s %7s  %s\n", a[0], a[1], "-", "", a[2])
	}
	fmt.Fprintf(os.Stdout, "seed %d\n", *seed)
	return code
}
