package hdfs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestKindsAndClassesRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range table {
		if seen[row.class] {
			t.Errorf("%s stands for two kinds", row.class)
		}
		seen[row.class] = true
		err := fmt.Errorf("rename /a: %w", metadata.Errorf(row.kind, "because of %s", "/a"))
		class, message := Exception(err)
		if class != row.class || message != "rename /a: because of /a" {
			t.Errorf("%v: got %s %q", row.kind, class, message)
		}
		back := Error(class, message)
		if !errors.Is(back, row.kind) || back.Error() != message {
			t.Errorf("%s: came back as %v of kind %v", class, back, metadata.KindOf(back))
		}
	}
}

// Every kind that metadata declares has a class, also those added later.
func TestEveryKindHasAClass(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../metadata/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok {
			if id, ok := lit.Type.(*ast.Ident); ok && id.Name == "Kind" {
				declared++
			}
		}
		return true
	})
	if declared != len(table) {
		t.Errorf("metadata declares %d kinds, the table has %d", declared, len(table))
	}
}

func TestErrorsWithoutKindAreIOExceptions(t *testing.T) {
	class, message := Exception(errors.New("disk on fire"))
	if class != IOException || message != "disk on fire" {
		t.Errorf("got %s %q", class, message)
	}
}

func TestForeignClasses(t *testing.T) {
	for class, want := range map[string]error{
		"java.io.FileNotFoundException":                                                  fs.ErrNotExist,
		"org.apache.hadoop.fs.FileAlreadyExistsException":                                fs.ErrExist,
		"org.apache.hadoop.security.AccessControlException":                              fs.ErrPermission,
		"java.lang.IllegalArgumentException":                                             metadata.ErrInvalidArgument,
		"org.apache.hadoop.ipc.ObserverRetryOnActiveException":                           metadata.ErrAskLeader,
		"com.example.NobodyKnows":                                                        metadata.ErrIO,
		"org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException": metadata.ErrNameTooLong,
	} {
		if err := Error(class, "m"); !errors.Is(err, want) {
			t.Errorf("%s: got kind %v, want %v", class, metadata.KindOf(err), want)
		}
	}
}

func TestJavaStackIsCutOff(t *testing.T) {
	err := Error(FileNotFound, "File does not exist: /x\n\tat org.apache.hadoop.hdfs.Y.z(Y.java:1)\n")
	if err.Error() != "File does not exist: /x" {
		t.Errorf("got %q", err)
	}
}

func TestSimpleNames(t *testing.T) {
	for class, want := range map[string]string{
		FileNotFound: "FileNotFoundException", PathComponentTooLong: "PathComponentTooLongException", "X": "X",
	} {
		if got := Simple(class); got != want {
			t.Errorf("%s: got %s, want %s", class, got, want)
		}
	}
}
