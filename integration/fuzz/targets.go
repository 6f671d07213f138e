package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/gohops/hops"

// pkg is a package with fuzz targets.
type pkg struct {
	path, dir string
	targets   []string
}

// short is the package's folder in the repository.
func (p pkg) short() string { return strings.TrimPrefix(strings.TrimPrefix(p.path, module), "/") }

// findTargets finds the targets of the repository that chosen matches, by reading the test files that would be compiled.
func findTargets(ctx context.Context, chosen *regexp.Regexp) ([]pkg, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", module+"/...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var listed struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&listed); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		p := pkg{path: listed.ImportPath, dir: listed.Dir}
		for _, name := range slices.Concat(listed.TestGoFiles, listed.XTestGoFiles) {
			targets, err := targetsOf(filepath.Join(listed.Dir, name), nil)
			if err != nil {
				return nil, err
			}
			for _, target := range targets {
				if chosen.MatchString(p.short() + "." + target) {
					p.targets = append(p.targets, target)
				}
			}
		}
		if len(p.targets) > 0 {
			packages = append(packages, p)
		}
	}
}

// targetsOf are the fuzz targets of a file: functions FuzzXxx(*testing.F). text is its content; nil: it is read.
func targetsOf(file string, text any) (targets []string, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") || len(f.Type.Params.List) != 1 {
			continue
		}
		if pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr); ok {
			if s, ok := pointer.X.(*ast.SelectorExpr); ok && s.Sel.Name == "F" {
				targets = append(targets, f.Name.Name)
			}
		}
	}
	return targets, nil
}
