// Package archtest holds the rules that keep the packages apart. They are tests so that nobody has to remember them.
package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"strings"
	"testing"
)

const module = "github.com/gohops/hops"

type listed struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	CgoFiles   []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles,CgoFiles", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// layer places a package: a package imports only packages of lower layers, or of its own where sameLayer allows.
//
//	0 wire     generated protocols and log schemas, the plumbing of internal/
//	1 words    the root of each top-level folder
//	2 engines  what does the work, with no service around it; client/dfs, the protocol engine of the file system, too
//	3 adapters server, rest, controller, am, hadoop: what listens or talks
//	4 client   the SDK, and the Python package it carries
//	5 top      cmd, integration, examples
func layer(pkg string) int {
	rel := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
	top, rest, _ := strings.Cut(rel, "/")
	switch top {
	case "cmd", "integration", "examples":
		return 5
	case "internal":
		return 0
	case "client":
		if rest == "dfs" || strings.HasPrefix(rest, "dfs/") || rest == "python" {
			return 2
		}
		return 4
	}
	if rest == "" {
		return 1
	}
	if strings.Contains(rest, "/v1") || strings.HasSuffix(rest, "pb") {
		return 0
	}
	for element := range strings.SplitSeq(rest, "/") {
		switch element {
		case "server", "rest", "controller", "am", "hadoop":
			return 3
		}
	}
	return 2
}

// words may be used by everybody: vocabulary without behaviour.
func words(pkg string) bool { return layer(pkg) == 1 }

func TestLayers(t *testing.T) {
	for _, p := range packages(t) {
		from := layer(p.ImportPath)
		for _, imported := range p.Imports {
			if !strings.HasPrefix(imported, module) || words(imported) {
				continue
			}
			if to := layer(imported); to > from {
				t.Errorf("%s (layer %d) imports %s (layer %d): words <- engines <- adapters <- client <- cmd, integration", p.ImportPath, from, imported, to)
			}
			if service(p.ImportPath) != service(imported) && layer(imported) == 3 && from < 4 {
				t.Errorf("%s imports %s: services meet in words and wire packages only", p.ImportPath, imported)
			}
		}
	}
}

func service(pkg string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/"), "/")
	return top
}

// pure packages decide; they have no clock, goroutine, logger or global random source, so that every decision can be
// replayed.
var pure = []string{
	"internal/stripe", "datanode/erasure", "metadata/namespace", "namenode/blockmanager", "namenode/placement",
	"resourcemanager/scheduler", "resourcemanager/state",
	"training/convert", "training/search", "training/experiment", "training/protocol", "training/simulate", "training/rendezvous",
}

func TestPurePackagesHaveNoClockNoGoroutineNoLogger(t *testing.T) {
	forbidden := map[string]string{"log": "", "log/slog": "", "math/rand": "", "net": "", "net/http": "", "os": "", "os/exec": ""}
	for _, p := range packages(t) {
		isPure := false
		for _, name := range pure {
			isPure = isPure || p.ImportPath == module+"/"+name
		}
		if !isPure {
			continue
		}
		for _, imported := range p.Imports {
			if _, bad := forbidden[imported]; bad {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
		set := token.NewFileSet()
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(set, path.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine in a pure package", set.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since" || n.Sel.Name == "Sleep" || n.Sel.Name == "After") {
						t.Errorf("%s: time.%s in a pure package", set.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue
		}
		documented := 0
		generated := true
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			if !strings.HasSuffix(name, ".pb.go") {
				generated = false
			}
			file, err := parser.ParseFile(token.NewFileSet(), path.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && !strings.HasSuffix(name, ".pb.go") {
				documented++
			}
		}
		if !generated && documented != 1 {
			t.Errorf("%s has %d package comments, want one", p.ImportPath, documented)
		}
	}
}

func TestThirdPartiesStayBehindTheirPackage(t *testing.T) {
	homes := map[string][]string{
		"github.com/urfave/cli":        {"cmd/"},
		"github.com/hashicorp/raft":    {"metadata/raftstore"},
		"github.com/dgraph-io/badger":  {"metadata/kv"},
		"github.com/NVIDIA/go-nvml":    {"nodemanager/gpu"},
		"github.com/goccy/go-yaml":     {"internal/yaml"},
		"github.com/tidwall/btree":     {"metadata/", "namenode/", "resourcemanager/"},
		"github.com/jedib0t/go-pretty": {"cmd/", "integration/"},
	}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			for library, allowed := range homes {
				if !strings.HasPrefix(imported, library) {
					continue
				}
				ok := false
				for _, home := range allowed {
					ok = ok || strings.HasPrefix(rel, home)
				}
				if !ok {
					t.Errorf("%s imports %s, which belongs in %v", rel, imported, allowed)
				}
			}
		}
	}
}
