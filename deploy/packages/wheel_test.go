package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The wheel's RECORD tells the truth, and Python imports from it.
func TestWheel(t *testing.T) {
	var wheels [][]byte
	var path string
	for range 2 {
		s := &shipment{root: "../..", out: t.TempDir(), mtime: time.Unix(1_700_000_000, 0).UTC()}
		if err := s.wheel(); err != nil {
			t.Fatal(err)
		}
		found, err := filepath.Glob(filepath.Join(s.out, "hops_platform-*-py3-none-any.whl"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		wheels, path = append(wheels, text), found[0]
	}
	if !bytes.Equal(wheels[0], wheels[1]) {
		t.Error("two wheels of the same sources differ")
	}
	z, err := zip.NewReader(bytes.NewReader(wheels[0]), int64(len(wheels[0])))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var record string
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		files[f.Name] = "sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + "," + strconv.Itoa(len(text))
		if strings.HasSuffix(f.Name, "/RECORD") {
			record, files[f.Name] = string(text), ","
		}
	}
	for _, line := range strings.Fields(record) {
		name, want, _ := strings.Cut(line, ",")
		if files[name] != want {
			t.Errorf("%s is %q, the record says %q", name, files[name], want)
		}
		delete(files, name)
	}
	if len(files) != 0 {
		t.Errorf("not in the record: %v", files)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	cmd := exec.Command("python3", "-c", "import hops.experiment, maggy.core.exceptions, maggy.ablation, tensorflowonspark.TFCluster as t; print(t.__file__)")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), path) {
		t.Errorf("%v\n%s", err, out)
	}
}
