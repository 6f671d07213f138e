// Package code makes code artifacts of Python programs: zips of source files with manifest.json, stored under their own
// SHA-256. The Python package makes the same (hops/_code.py); this one needs no Python on the submitting side.
package code

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The limits of an artifact.
const (
	MaxBytes = 16 << 20
	MaxFiles = 2000
)

// excluded folders are never part of a program.
var excluded = map[string]bool{
	"__pycache__": true, "node_modules": true, "venv": true, "env": true, "site-packages": true,
	"build": true, "dist": true, "hops": true, "maggy": true,
}

// Artifact is a program ready to travel.
type Artifact struct {
	// Entry is what to call, "module:qualname".
	Entry  string
	Data   []byte
	SHA256 string
}

type manifest struct {
	Entry   string         `json:"entry"`
	Python  string         `json:"python,omitempty"`
	Pickled bool           `json:"pickled"`
	Files   []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

var functionForm = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)

// Pack makes the artifact of "FILE.py:FUNCTION": the file and the Python files and packages beside it.
func Pack(entry string) (*Artifact, error) {
	file, function, ok := strings.Cut(entry, ":")
	if !ok || !strings.HasSuffix(file, ".py") || !functionForm.MatchString(function) {
		return nil, fmt.Errorf("entry %q is not FILE.py:FUNCTION", entry)
	}
	module := strings.TrimSuffix(filepath.Base(file), ".py")
	if !functionForm.MatchString(module) {
		return nil, fmt.Errorf("%s cannot be imported: its name is no Python identifier", file)
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if !regexp.MustCompile(`(?m)^(async )?def ` + regexp.QuoteMeta(strings.SplitN(function, ".", 2)[0]) + `\b|^class `).Match(source) {
		return nil, fmt.Errorf("%s defines no function %s at its top level", file, function)
	}
	files, err := beside(file)
	if err != nil {
		return nil, err
	}
	files[filepath.Base(file)] = source
	return New(module+":"+function, files)
}

// New makes an artifact of files by their slash-separated names.
func New(entry string, files map[string][]byte) (*Artifact, error) {
	m := manifest{Entry: entry}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256(files[name])
		m.Files = append(m.Files, manifestFile{name, len(files[name]), hex.EncodeToString(sum[:])})
		total += len(files[name])
	}
	if total > MaxBytes || len(files) > MaxFiles {
		return nil, fmt.Errorf("%s needs %d files of %d bytes in all, more than %d files or %d bytes: move the program into a folder of its own",
			entry, len(files), total, MaxFiles, MaxBytes)
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	add := func(name string, data []byte) error {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err == nil {
			_, err = f.Write(data)
		}
		return err
	}
	err = add("manifest.json", text)
	for _, f := range m.Files {
		err = errors.Join(err, add(f.Name, files[f.Name]))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b.Bytes())
	return &Artifact{Entry: entry, Data: b.Bytes(), SHA256: hex.EncodeToString(sum[:])}, nil
}

// beside collects the Python files and packages in the folder of a program.
func beside(file string) (map[string][]byte, error) {
	folder := filepath.Dir(file)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	take := func(full, name string) error {
		if len(files) >= MaxFiles {
			return fmt.Errorf("%s holds more than %d Python files: move the program into a folder of its own", folder, MaxFiles)
		}
		data, err := os.ReadFile(full)
		files[name] = data
		return err
	}
	for _, e := range entries {
		name := e.Name()
		full := filepath.Join(folder, name)
		if !e.IsDir() {
			if strings.HasSuffix(name, ".py") && name != filepath.Base(file) {
				if err := take(full, name); err != nil {
					return nil, err
				}
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(full, "__init__.py")); err != nil || excluded[name] {
			continue
		}
		err := filepath.WalkDir(full, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && p != full && (excluded[d.Name()] || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			if d.Type().IsRegular() && strings.HasSuffix(p, ".py") {
				rel, err := filepath.Rel(folder, p)
				if err != nil {
					return err
				}
				return take(p, path.Clean(filepath.ToSlash(rel)))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
