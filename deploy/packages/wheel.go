package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gohops/hops/client/python"
)

// wheel writes the Python package as pip installs it: a zip of the sources that executors get, with the three files that the wheel
// format 1.0 (PEP 427) asks for. Its name, version and the Python that it wants are those of client/python/pyproject.toml.
func (s *shipment) wheel() error {
	project, err := os.ReadFile(filepath.Join(s.root, "client/python/pyproject.toml"))
	if err != nil {
		return err
	}
	sources, _ := python.Zip()
	z, err := zip.NewReader(bytes.NewReader(sources), int64(len(sources)))
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return err
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			return err
		}
	}
	if err := sameFiles(filepath.Join(s.root, "client/python"), files); err != nil {
		return err
	}
	field := func(text []byte, form string) string {
		m := regexp.MustCompile(form).FindSubmatch(text)
		if m == nil {
			err = errors.Join(err, fmt.Errorf("wheel: nothing matches %s", form))
			return ""
		}
		return string(m[1])
	}
	name := field(project, `(?m)^name = "(.*)"`)
	version := field(files["hops/__init__.py"], `(?m)^VERSION = "(.*)"`)
	wants := field(project, `(?m)^requires-python = "(.*)"`)
	summary := field(project, `(?m)^description = "(.*)"`)
	if err != nil {
		return err
	}
	file := strings.ReplaceAll(name, "-", "_") + "-" + version
	info := file + ".dist-info/"
	files[info+"METADATA"] = fmt.Appendf(nil, "Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: %s\nLicense: Apache-2.0\nRequires-Python: %s\n", name, version, summary, wants)
	files[info+"WHEEL"] = []byte("Wheel-Version: 1.0\nGenerator: hops\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
	licence, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return err
	}
	files[info+"LICENSE"] = licence
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { // PEP 427 wants the dist-info last
		if c := strings.Compare(fmt.Sprint(strings.HasPrefix(a, info)), fmt.Sprint(strings.HasPrefix(b, info))); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	var record strings.Builder
	for _, name := range names {
		sum := sha256.Sum256(files[name])
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files[info+"RECORD"] = []byte(record.String())
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range append(names, info+"RECORD") {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: s.mtime}
		h.SetMode(0o644)
		f, err := w.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(files[name]); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.out, file+"-py3-none-any.whl"), b.Bytes(), 0o644)
}

// sameFiles says which Python source of the repository is not among the embedded ones: a new package has to be named where they are.
func sameFiles(dir string, embedded map[string][]byte) error {
	var missing []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "tests" || strings.HasSuffix(name, ".egg-info") || name == "build"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".py") && embedded[filepath.ToSlash(name)] == nil:
			missing = append(missing, name)
		}
		return nil
	})
	if err == nil && missing != nil {
		err = fmt.Errorf("wheel: %s: not embedded; see client/python/embed.go", strings.Join(missing, ", "))
	}
	return err
}
