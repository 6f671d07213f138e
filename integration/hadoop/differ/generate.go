package differ

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// generator draws operations. It knows nothing of the tree, but with few names most paths hit something, and it returns to
// the paths that it has had made.
type generator struct {
	*rand.Rand
	kinds              []string // drawn from, each as often as it weighs
	files, directories recent
	// snapshots: some are made, of roots.
	snapshots bool
	roots     recent
	// queue are the operations of a story that is being told.
	queue []Operation
	// drawn is how many there were already.
	drawn int
}

// begin is how many operations of a sequence only make something, so that the others find it.
const begin = 7

// recent are the paths used last.
type recent []string

func (r *recent) add(path string) {
	if len(path) > 400 {
		return
	}
	if len(*r) == 8 {
		*r = slices.Delete(*r, 0, 1)
	}
	*r = append(*r, path)
}

func newGenerator(seed, sequence uint64, without map[string]bool) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, sequence))}
	g.snapshots = !without[snapshots] && withSnapshots(sequence)
	for _, name := range kindNames {
		k := kinds[name]
		if k.group != "" && without[k.group] || k.group == snapshots && !g.snapshots || k.group == quotas && g.snapshots {
			continue
		}
		for range k.weight {
			g.kinds = append(g.kinds, name)
		}
	}
	return g
}

// next draws an operation and who does it: the superuser, two users without a group, and one who has one.
func (g *generator) next() Operation {
	if g.drawn++; g.drawn <= begin {
		o := kinds[pick(g, "mkdirs", "mkdirs", "write", "write", "create")].make(g)
		o.Args["parents"] = "true"
		if g.chance(40) {
			o.User = "alice"
		}
		return o
	}
	if len(g.queue) == 0 && g.chance(11) {
		g.queue = g.story()
		g.queue = slices.DeleteFunc(g.queue, func(o Operation) bool { return !slices.Contains(g.kinds, o.Kind) })
	}
	if len(g.queue) > 0 {
		o := g.queue[0]
		g.queue = g.queue[1:]
		return o
	}
	o := kinds[g.kinds[g.IntN(len(g.kinds))]].make(g)
	switch g.IntN(10) {
	case 0, 1, 2:
		o.User = "alice"
	case 3:
		o.User = "bob"
	case 4:
		o.User = member
	}
	return o
}

// member is a user, and a group of which he is the member, wherever there are users.
const member = "daemon"

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

var names = []string{"a", "a", "a", "b", "b", "c", "d"}

// path draws a path below the root, which is written $R; seldom an odd one.
func (g *generator) path() string {
	if g.chance(5) {
		return pick(g, oddPaths...)
	}
	if len(g.roots) > 0 && g.chance(12) {
		return g.inSnapshot()
	}
	if g.chance(55) {
		if known := append(slices.Clone(g.files), g.directories...); len(known) > 0 {
			path := pick(g, known...)
			switch g.IntN(24) {
			case 0, 1, 2, 3, 4:
				path += "/" + pick(g, names...)
			case 5, 6:
				path = above(path)
			case 7:
				path = "/.reserved/.inodes/$ID(" + path + ")"
			case 8:
				path = "/.reserved/.inodes/$ID(" + path + ")/" + pick(g, names...)
			}
			return path
		}
	}
	depth := pick(g, 1, 1, 1, 1, 2, 2, 2, 3, 4)
	parts := make([]string, depth)
	for i := range parts {
		parts[i] = pick(g, names...)
	}
	return "$R/" + strings.Join(parts, "/")
}

// above is the directory of a path in the sequence's root.
func above(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 && !strings.HasPrefix(path, "/") {
		return path[:i]
	}
	return "$R"
}

// file draws a path that is likely to be a file's.
func (g *generator) file() string {
	if len(g.files) > 0 && g.chance(75) {
		return pick(g, g.files...)
	}
	return g.path()
}

// directory draws a path that is likely to be a directory's.
func (g *generator) directory() string {
	if len(g.directories) > 0 && g.chance(65) {
		return pick(g, g.directories...)
	}
	if g.chance(10) {
		return "$R"
	}
	return g.path()
}

// oddPaths leave out "//", which is everybody's root, the names of snapshots, and ".." behind an inode, for which HDFS has
// the directory above and forgets what follows.
var oddPaths = []string{
	"$R", "$R/", "$R//a", "$R/a/", "$R/a//b", "$R/./a", "$R/a/../b", "$R/a/.", "$R/..", "", "a", "a/b", "$R/a:b", "$R/ü", "$R/日本",
	"$R/with space", "$R/a*", "$R/" + strings.Repeat("n", 255), "$R/" + strings.Repeat("n", 256), "$R/" + strings.Repeat("ü", 128), "$R/-x", "$R/%41",
	"$R/a/" + strings.Repeat("n", 256), "$R/a/b/" + strings.Repeat("ü", 130),
	"$R/" + strings.Repeat("p/", 30) + "q", "$R/\\", "$R/\x7f", "$R/" + strings.Repeat(strings.Repeat("l", 199)+"/", 42), "$R/" + strings.Repeat("x/", 1001),
	"/.reserved", "/.reserved/", "/.reserved/.inodes", "/.reserved/.inodes/", "/.reserved/.inodes/x", "/.reserved/.inodes/1",
	"/.reserved/.inodes/-1", "/.reserved/nothing", "$R/.reserved", "$R/.reserved/.inodes/1", "/.reserved/.inodes/$ID($R)", "/.reserved/.inodes/$ID($R)/a",
}

func (g *generator) mode() mode {
	return pick[mode](g, 0o755, 0o755, 0o700, 0o777, 0o777, 0o1777, 0o644, 0o600, 0o640, 0o000, 0o111, 0o444, 0o222, 0o750, 0o070, 0o1000, 0o1770, 0o7777)
}

// An empty owner or group is not drawn: HDFS stores it, here it means that the old one stays.
func (g *generator) owner() string {
	return pick(g, "alice", "alice", "bob", "bob", member, "root", "nobody", "two words")
}

func (g *generator) group() string {
	return pick(g, "staff", "supergroup", "alice", member, member, "x:y")
}

func (g *generator) replication() int {
	if g.chance(8) {
		return pick(g, 0, -1, 512, 513, 100)
	}
	return pick(g, 1, 1, 2, 3)
}

func (g *generator) blockSize() int {
	if g.chance(8) {
		return pick(g, 0, -1, 1, 511, 513, 1000, 1<<20, 1<<40)
	}
	return pick(g, 512, 1024, 2048)
}

func (g *generator) holder() string { return pick(g, "writer-1", "writer-1", "writer-2") }

// several draws up to four paths with commas between, most of them in the directory of beside.
func (g *generator) several(beside string) string {
	n := g.IntN(3) + 1
	if g.chance(3) {
		n = 0
	}
	var known, list []string
	for _, path := range g.files {
		if above(path) == above(beside) && path != beside && !strings.Contains(path, ",") {
			known = append(known, path)
		}
	}
	for range n {
		switch {
		case len(known) > 0 && g.chance(90):
			list = append(list, pick(g, known...))
		case g.chance(70):
			list = append(list, above(beside)+"/"+pick(g, names...))
		default:
			list = append(list, g.path())
		}
	}
	return strings.Join(list, ",")
}
