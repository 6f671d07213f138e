package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// PerDirectory is how many files a worker puts into one directory, as in hammer-bench.
const PerDirectory = 16

func (b *Bench) file(w, n int) string {
	return path.Join(b.Root, fmt.Sprintf("w%d/d%d/f%d", w, n/PerDirectory, n%PerDirectory))
}

// Meta measures each metadata operation by itself: mkdir, create + close, stat, open (block locations), list of a
// directory of 16, rename and delete. Files are empty.
func (b *Bench) Meta(ctx context.Context) ([]Result, error) {
	var results []Result
	var err error
	phase := func(name string, perWorker int, op operation) int {
		if err != nil {
			return 0
		}
		var r Result
		if r, err = b.measure(ctx, name, perWorker, op); err == nil {
			results = append(results, r)
		}
		return int(r.Ops) / b.Outstanding
	}
	phase("mkdir", 0, func(ctx context.Context, c *dfs.Client, w, n int) error {
		return c.Mkdirs(ctx, path.Join(b.Root, fmt.Sprintf("m%d/%d", w, n)), 0o755, true)
	})
	made := make([]int, b.Outstanding)
	phase("create+close", 0, func(ctx context.Context, c *dfs.Client, w, n int) error {
		made[w] = n + 1
		return b.create(ctx, c, b.file(w, n), nil)
	})
	// Reads pick among what the worker made.
	pick := func(w int) string { return b.file(w, rand.IntN(max(1, made[w]))) }
	phase("stat", 0, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		_, err := c.Stat(ctx, pick(w))
		return err
	})
	phase("open", 0, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		_, err := c.BlockLocations(ctx, pick(w), 0, 1<<30)
		return err
	})
	phase("list of 16", 0, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		full := max(1, made[w]/PerDirectory)
		_, err := c.List(ctx, path.Dir(b.file(w, rand.IntN(full)*PerDirectory)))
		return err
	})
	least := made[0]
	for _, m := range made {
		least = min(least, m)
	}
	renamed := make([]int, b.Outstanding)
	phase("rename", least, func(ctx context.Context, c *dfs.Client, w, n int) error {
		renamed[w] = n + 1
		ok, err := c.Rename(ctx, b.file(w, n), b.file(w, n)+"r")
		if err == nil && !ok {
			err = fmt.Errorf("rename of %s was refused", b.file(w, n))
		}
		return err
	})
	phase("delete", least, func(ctx context.Context, c *dfs.Client, w, n int) error {
		name := b.file(w, n)
		if n < renamed[w] {
			name += "r"
		}
		ok, err := c.Delete(ctx, name, false)
		if err == nil && !ok {
			err = fmt.Errorf("%s was not there", name)
		}
		return err
	})
	return results, err
}

// CreateAndStat measures two operations only: empty files, created and completed, and their status.
func (b *Bench) CreateAndStat(ctx context.Context) ([]Result, error) {
	made := make([]int, b.Outstanding)
	create, err := b.measure(ctx, "create+close", 0, func(ctx context.Context, c *dfs.Client, w, n int) error {
		made[w] = n + 1
		return b.create(ctx, c, b.file(w, n), nil)
	})
	if err != nil {
		return nil, err
	}
	stat, err := b.measure(ctx, "stat", 0, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		_, err := c.Stat(ctx, b.file(w, rand.IntN(max(1, made[w]))))
		return err
	})
	return []Result{create, stat}, err
}

func (b *Bench) create(ctx context.Context, c *dfs.Client, name string, data []byte) error {
	w, err := c.Create(ctx, name, dfs.CreateOptions{Parents: true, Overwrite: true, Replication: b.Replication, Late: len(data) > 0})
	if err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := w.Write(data); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Close()
}

// mixed is an operation of the Spotify mix with its share in hundredths of a percent (hammer-bench, interleaved.*).
type mixed struct {
	name  string
	share int
}

var spotify = []mixed{
	{"read", 6873},
	{"stat file", 1304},
	{"ls dir", 852},
	{"stat dir", 396},
	{"create", 270},
	{"rename", 130},
	{"delete", 75},
	{"ls file", 49},
	{"chown dir", 32},
	{"setrep", 14},
	{"chmod file", 2},
	{"mkdir", 2},
	{"chmod dir", 1},
}

// Mix measures the Spotify mix on empty files, operations drawn by their share: each worker on 100 files of its own, in a
// tree of its own as hammer-bench has it, or shared: all in the same directories, which shows how a namespace takes
// changes of one directory.
func (b *Bench) Mix(ctx context.Context, shared bool) ([]Result, error) {
	const files = 100
	type tree struct {
		rng   *rand.Rand
		names []string
		next  int
		dir   int
	}
	trees := make([]*tree, b.Outstanding)
	for w := range trees {
		trees[w] = &tree{rng: rand.New(rand.NewPCG(uint64(w), 7))}
	}
	label := "spotify mix"
	if shared {
		label = "mix, shared"
	}
	fresh := func(w int) string {
		t := trees[w]
		t.next++
		if shared {
			return path.Join(b.Root, fmt.Sprintf("shared/d%d/w%d-%d", t.next/PerDirectory, w, t.next))
		}
		return b.file(w, t.next)
	}
	setup := *b
	setup.Progress, setup.Time = nil, time.Hour
	if _, err := setup.measure(ctx, label+": setup", files, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		name := fresh(w)
		trees[w].names = append(trees[w].names, name)
		return b.create(ctx, c, name, nil)
	}); err != nil {
		return nil, err
	}
	r, err := b.measure(ctx, label, 0, func(ctx context.Context, c *dfs.Client, w, _ int) error {
		t := trees[w]
		draw := t.rng.IntN(10000)
		k := 0
		for draw >= spotify[k].share {
			draw -= spotify[k].share
			k++
		}
		if len(t.names) < 2 && (spotify[k].name == "delete" || spotify[k].name == "rename") {
			k = 4
		}
		i := t.rng.IntN(len(t.names))
		name := t.names[i]
		var err error
		switch spotify[k].name {
		case "read":
			_, err = c.BlockLocations(ctx, name, 0, 1<<30)
		case "stat file":
			_, err = c.Stat(ctx, name)
		case "ls dir":
			_, err = c.List(ctx, path.Dir(name))
		case "stat dir":
			_, err = c.Stat(ctx, path.Dir(name))
		case "create":
			created := fresh(w)
			t.names = append(t.names, created)
			err = b.create(ctx, c, created, nil)
		case "rename":
			to := name + "x"
			if _, err = c.Rename(ctx, name, to); err == nil {
				t.names[i] = to
			}
		case "delete":
			if _, err = c.Delete(ctx, name, true); err == nil {
				t.names[i] = t.names[len(t.names)-1]
				t.names = t.names[:len(t.names)-1]
			}
		case "ls file":
			_, err = c.List(ctx, name)
		case "chown dir":
			err = c.SetOwner(ctx, path.Dir(name), c.User(), "")
		case "setrep":
			_, err = c.SetReplication(ctx, name, 3)
		case "chmod file":
			err = c.SetPermission(ctx, name, 0o777)
		case "mkdir":
			t.dir++
			err = c.Mkdirs(ctx, path.Join(b.Root, fmt.Sprintf("w%d/m%d", w, t.dir)), 0o755, true)
		case "chmod dir":
			err = c.SetPermission(ctx, path.Dir(name), metadata.Mode(0o777))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return []Result{r}, nil
}
