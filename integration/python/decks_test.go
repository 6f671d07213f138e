package python

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/integration/process"
)

// The snippets of talks and papers about HopsML and Maggy, as scripts: nothing guards their searches. Each prints what came out,
// and what it must be stands here. Those that take longest are in make train.
var decks = []struct {
	script string
	jobs   int
	says   string
}{
	{"hopsml", 4, `
GRID [('dropout', 5), ('learning_rate', 0.2)] 1.0
KEPT True True
RANDOM True True True
LAUNCH {'accuracy': 0.5}
TFLAUNCHER [b'1 3', b'2 3']`},
	{"maggy_new", 2, `
OBLIVIOUS True True
BASE 42.0
HERE 18 12`},
	{"custom", 1, `
CUSTOM [2, 4, 6, 8] ['COMPLETED', 'COMPLETED', 'STOPPED', 'STOPPED']`},
	{"gang", 5, `
MIRRORED 2 True
ALLREDUCE True ["0 of 2, ['0', '1'] found", "1 of 2, ['0', '1'] found"]
ONE {'cluster': 0}
TORCH {'lr': 3, 'metric': 2, 'same': {'lr': 3}}
NOTEBOOK 2`},
	{"files", 0, `
ONE an experiment is already running in this process: one at a time
LOGDIR True True
MODEL 1 2 True
FILES ['model.json', 'weights.bin']
REFUSED ModelNotFound
REFUSED ModelArchiveExists
REFUSED FileExistsError
END True
LEFT ['.summary.json', 'experiment.json', 'files.py', 'result.json', 'versioned_resources'] True
HDFS /Projects/deck/ True ['/Projects/deck/a/b/three.txt', '/Projects/deck/a/b/two.txt'] True 600 b'3' True True False True True False False 4
PUBLISH ['/Projects/deck/a/b/one.txt'] None step 2 of 2 (remove user.version of /Projects/deck/a/b): No matching attributes found for remove operation
MODULE 7 True`},
	{"journal", 0, `
JOURNAL 48 True True True`},
}

func TestSnippetsOfTheDecks(t *testing.T) {
	k := start(t)
	jobs := 0
	// The scripts spend their time in interpreters that start: three at once keep two cores busy.
	slots := make(chan struct{}, 3)
	t.Run("scripts", func(t *testing.T) {
		for _, d := range decks {
			t.Run(d.script, func(t *testing.T) {
				jobs += d.jobs
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				cmd, out := command(t, k, filepath.Join("decks", d.script+".py"))
				err := cmd.Run()
				for line := range strings.Lines(strings.TrimPrefix(d.says, "\n")) {
					if !strings.Contains(out.String(), strings.TrimSpace(line)+"\n") {
						t.Errorf("it does not say %q", line)
					}
				}
				if err != nil || t.Failed() {
					t.Fatalf("%v\n%s", err, out)
				}
			})
		}
	})
	list, err := k.Client("").Jobs().List(process.Context(t))
	if err != nil || len(list) != jobs {
		t.Errorf("%d applications for %d searches, %v", len(list), jobs, err)
	}
	noneRuns(t, k)
}
