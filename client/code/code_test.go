package code

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPackTakesTheProgramAndWhatLiesBesideIt(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"digits.py": "def train(lr):\n    return lr\n", "helper.py": "X = 1\n", "data.csv": "1\n",
		"net/__init__.py": "", "net/layers.py": "Y = 2\n", "net/__pycache__/layers.pyc": "", "venv/__init__.py": "", "plain/z.py": "",
	} {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Pack(filepath.Join(dir, "digits.py") + ":train")
	if err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(a.Data), int64(len(a.Data)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if want := []string{"manifest.json", "digits.py", "helper.py", "net/__init__.py", "net/layers.py"}; !slices.Equal(names, want) || a.Entry != "digits:train" {
		t.Errorf("%s: %v, want %v", a.Entry, names, want)
	}
	again, _ := Pack(filepath.Join(dir, "digits.py") + ":train")
	if again.SHA256 != a.SHA256 {
		t.Error("the same program made another artifact")
	}
}

func TestPackRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.py")
	os.WriteFile(file, []byte("x = 1\n"), 0o644)
	for entry, want := range map[string]string{
		"digits":                    "not FILE.py:FUNCTION",
		file + ":train":             "defines no function train",
		file + ":tr ain":            "not FILE.py:FUNCTION",
		"/nonexistent/b.py:train":   "no such file",
		"/nonexistent/b-c.py:train": "no Python identifier",
	} {
		if _, err := Pack(entry); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Pack(%q) = %v, want %q", entry, err, want)
		}
	}
}
