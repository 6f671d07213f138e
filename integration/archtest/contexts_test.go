package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// The context that a dfs.Writer or dfs.Reader is opened with lives with it, and no compiler says so.
func TestNothingIsReturnedOpenWithAContextThatEnds(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range returnedOpen(file) {
				t.Errorf("%s: the context of what is returned ends with this function: use dfs.Within, or the caller's context", fset.Position(at))
			}
		}
	}
}

func TestReturnedOpenIsFound(t *testing.T) {
	const head = "package p\nfunc f(ctx context.Context, c *dfs.Client) (any, error) {\n"
	const bound = "bounded, cancel := context.WithTimeout(ctx, time.Second)\ndefer cancel()\n"
	for body, want := range map[string]int{
		bound + `return c.Open(bounded, "/f")`:                                                        1,
		bound + `w, err := c.Create(bounded, "/f", options); return &file{w: w}, err`:                 1,
		bound + `w, err := c.Append(bounded, "/f"); if err != nil { return nil, err }; return w, nil`: 1,
		bound + `return c.Open(ctx, "/f")`:                                                            0,
		bound + `w, err := c.Append(bounded, "/f"); return w.Close(), err`:                            0,
		`bounded, cancel := context.WithCancel(ctx); return c.open(bounded, cancel)`:                  0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", head+body+"\n}", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := returnedOpen(file); len(got) != want {
			t.Errorf("%d found, want %d, in\n%s", len(got), want, body)
		}
	}
}

// returnedOpen finds the return statements that give away what was opened with a context whose end is deferred.
func returnedOpen(file *ast.File) []token.Pos {
	var found []token.Pos
	ast.Inspect(file, func(n ast.Node) bool {
		switch f := n.(type) {
		case *ast.FuncDecl:
			if f.Body != nil {
				found = append(found, openIn(f.Body)...)
			}
		case *ast.FuncLit:
			found = append(found, openIn(f.Body)...)
		}
		return true
	})
	return found
}

func openIn(body *ast.BlockStmt) []token.Pos {
	deferred, bounded, opened := map[string]bool{}, map[string]bool{}, map[string]bool{}
	name := func(e ast.Expr) string {
		if id, ok := e.(*ast.Ident); ok {
			return id.Name
		}
		return ""
	}
	selected := func(e ast.Expr) (string, []ast.Expr) {
		if call, ok := e.(*ast.CallExpr); ok {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				return s.Sel.Name, call.Args
			}
		}
		return "", nil
	}
	opens := func(e ast.Expr) bool {
		method, args := selected(e)
		return len(args) > 0 && bounded[name(args[0])] && slices.Contains([]string{"Open", "Create", "Append", "AppendWith", "open", "create"}, method)
	}
	var gives func(e ast.Expr) bool
	gives = func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.Ident:
			return opened[e.Name]
		case *ast.UnaryExpr:
			return gives(e.X)
		case *ast.KeyValueExpr:
			return gives(e.Value)
		case *ast.CompositeLit:
			return slices.ContainsFunc(e.Elts, gives)
		}
		return opens(e)
	}
	var found []token.Pos
	each := func(visit func(n ast.Node)) {
		ast.Inspect(body, func(n ast.Node) bool {
			visit(n)
			_, inner := n.(*ast.FuncLit)
			return !inner
		})
	}
	each(func(n ast.Node) {
		if d, ok := n.(*ast.DeferStmt); ok {
			deferred[name(d.Call.Fun)] = true
		}
	})
	each(func(n ast.Node) {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Rhs) == 1 && len(a.Lhs) == 2 {
			method, _ := selected(a.Rhs[0])
			switch {
			case slices.Contains([]string{"WithTimeout", "WithDeadline", "WithCancel"}, method) && deferred[name(a.Lhs[1])]:
				bounded[name(a.Lhs[0])] = true
			case opens(a.Rhs[0]):
				opened[name(a.Lhs[0])] = true
			}
		}
	})
	each(func(n ast.Node) {
		if r, ok := n.(*ast.ReturnStmt); ok && slices.ContainsFunc(r.Results, gives) {
			found = append(found, r.Pos())
		}
	})
	return found
}
