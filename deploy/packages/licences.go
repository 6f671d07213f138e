package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: hops
Source: https://github.com/gohops/hops

Files: *
Copyright: The hops authors
License: Apache-2.0
Comment: The program contains other modules; their versions and licences are in
 /usr/share/doc/hops/third-party-licenses.gz. Modules under MPL-2.0 are
 unmodified: their source is what the Go module proxy has under that version.

License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
`

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([-._].*)?$`)

// licences gathers what the modules in a program, and Go itself, say about their use. A module without a licence is an error.
func licences(root, program string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	dirs, err := moduleDirs(root)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	if err := licence(&b, "Go "+info.GoVersion, strings.TrimSpace(string(goroot))); err != nil {
		return nil, err
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if dirs[m.Path] == "" {
			return nil, fmt.Errorf("module %s is in the program but not on this machine: go mod download", m.Path)
		}
		if err := licence(&b, m.Path+" "+m.Version, dirs[m.Path]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func moduleDirs(root string) (map[string]string, error) {
	cmd := exec.Command("go", "list", "-m", "-json", "all")
	cmd.Dir = root
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var m struct{ Path, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, err
		}
		dirs[m.Path] = m.Dir
	}
}

// licence writes the licences at the top of dir. Go's own lies above its root in Debian's packages, which have it in the documents.
func licence(b *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "==== %s: %s\n\n%s\n\n", name, e.Name(), bytes.TrimSpace(text))
		n++
	}
	if n == 0 {
		return fmt.Errorf("%s has no licence in %s", name, dir)
	}
	return nil
}
