package differ

import (
	"math/rand/v2"
	"strings"
)

// generator draws operations. It knows nothing of the tree: with few names most paths hit something.
type generator struct {
	*rand.Rand
	kinds []string // drawn from, each as often as it weighs
}

func newGenerator(seed, sequence uint64, without map[string]bool) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, sequence))}
	for _, name := range kindNames {
		k := kinds[name]
		if k.group != "" && without[k.group] {
			continue
		}
		for range k.weight {
			g.kinds = append(g.kinds, name)
		}
	}
	return g
}

func (g *generator) next() Operation {
	o := kinds[g.kinds[g.IntN(len(g.kinds))]].make(g)
	switch g.IntN(10) {
	case 0, 1, 2:
		o.User = "alice"
	case 3:
		o.User = "bob"
	}
	return o
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

var names = []string{"a", "a", "a", "b", "b", "c", "d"}

// path draws a path below the root, which is written $R; seldom an odd one.
func (g *generator) path() string {
	if g.chance(6) {
		return pick(g, oddPaths...)
	}
	depth := pick(g, 1, 1, 1, 2, 2, 2, 3, 3, 4)
	parts := make([]string, depth)
	for i := range parts {
		parts[i] = pick(g, names...)
	}
	return "$R/" + strings.Join(parts, "/")
}

// oddPaths leave out "//", which is everybody's root, and the names of snapshots.
var oddPaths = []string{
	"$R", "$R/", "$R//a", "$R/a/", "$R/a//b", "$R/./a", "$R/a/../b", "$R/a/.", "$R/..", "", "a", "a/b", "$R/a:b", "$R/ü", "$R/日本",
	"$R/with space", "$R/a*", "$R/" + strings.Repeat("n", 255), "$R/" + strings.Repeat("n", 256), "$R/" + strings.Repeat("ü", 128), "$R/-x", "$R/%41",
	"$R/" + strings.Repeat("p/", 30) + "q", "$R/\\", "$R/\x7f",
}

func (g *generator) mode() mode {
	return pick[mode](g, 0o755, 0o755, 0o700, 0o777, 0o1777, 0o644, 0o600, 0o640, 0o000, 0o111, 0o444, 0o222, 0o750, 0o1000, 0o7777)
}

// An empty owner or group is not drawn: HDFS stores it, here it means that the old one stays.
func (g *generator) owner() string { return pick(g, "alice", "bob", "root", "nobody", "two words") }

func (g *generator) group() string { return pick(g, "staff", "supergroup", "alice", "x:y") }

func (g *generator) replication() int {
	if g.chance(8) {
		return pick(g, 0, -1, 512, 513, 100)
	}
	return pick(g, 1, 1, 2, 3)
}

func (g *generator) blockSize() int {
	if g.chance(8) {
		return pick(g, 0, -1, 1, 511, 1<<20)
	}
	return pick(g, 512, 1024, 2048)
}

func (g *generator) holder() string { return pick(g, "writer-1", "writer-1", "writer-2") }

// several draws up to four paths with commas between.
func (g *generator) several() string {
	n := g.IntN(4) + 1
	if g.chance(3) {
		n = 0
	}
	var list []string
	for range n {
		list = append(list, "$R/"+pick(g, names...))
	}
	return strings.Join(list, ",")
}
