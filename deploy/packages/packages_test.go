package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestVersionsSortByAge(t *testing.T) {
	commit := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for described, want := range map[string]string{
		"v1.2.3":                  "1.2.3",
		"v1.2.3-dirty":            "1.2.3.dirty",
		"v1.2.3-4-gabcdef0":       "1.2.3+4.gabcdef0",
		"v1.2.3-4-gabcdef0-dirty": "1.2.3+4.gabcdef0.dirty",
		"abcdef0":                 "0.0.0+20260102030405.abcdef0",
		"abcdef0-dirty":           "0.0.0+20260102030405.abcdef0.dirty",
	} {
		if got := packageVersion(described, commit); got != want {
			t.Errorf("packageVersion(%q) = %q, want %q", described, got, want)
		}
	}
}

func TestSourceDate(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if at, err := sourceDate("."); err != nil || at.Unix() != 1700000000 {
		t.Error(at, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := sourceDate("."); err == nil || !strings.Contains(err.Error(), `"yesterday" is not a number of seconds`) {
		t.Error(err)
	}
}

func TestNewerComparesNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"2.34", "2.9", true}, {"2.9", "2.34", false}, {"2.34", "2.34", false}, {"2.2.5", "2.2", true}, {"2.2.5", "", true}} {
		if newer(c.a, c.b) != c.want {
			t.Errorf("newer(%q, %q) is not %v", c.a, c.b, c.want)
		}
	}
}

func TestConfigurationWithoutAValueIsRefused(t *testing.T) {
	if _, err := expand("version: ${VERSION}\narch: ${ARCH}", map[string]string{"ARCH": "amd64"}); err == nil || !strings.Contains(err.Error(), "no value for VERSION") {
		t.Error(err)
	}
}

// staged is a shipment whose program is a few bytes.
func staged(t *testing.T) *shipment {
	s := &shipment{stage: t.TempDir(), out: t.TempDir(), version: "1.2.3+4.gabc", arch: "amd64", mtime: time.Unix(1700000000, 0).UTC()}
	for _, name := range []string{"hops-static", "third-party-licenses.gz", "LICENSE", "hops.1.gz", "hops.bash", "hops.fish", "_hops"} {
		if err := os.WriteFile(s.staged(name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// The image is a layout of OCI's: every digest and size is that of the blob it names, and the layer has the program and a user.
func TestImageIsAnOCILayout(t *testing.T) {
	s := staged(t)
	if err := s.image(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(s.out, "hops-1.2.3+4.gabc-oci-amd64.tar"))
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, text)
}

func checkImage(t *testing.T, text []byte) {
	t.Helper()
	files := untar(t, text)
	if string(files["oci-layout"].text) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", files["oci-layout"].text)
	}
	blob := func(d descriptor) []byte {
		t.Helper()
		b := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")].text
		if len(b) != d.Size || "sha256:"+digest(b) != d.Digest {
			t.Fatalf("%s: %d bytes of digest %s, want %d of %s", d.MediaType, len(b), digest(b), d.Size, d.Digest)
		}
		return b
	}
	parse := func(text []byte, into any) {
		t.Helper()
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	var index imageIndex
	parse(files["index.json"].text, &index)
	var m manifest
	parse(blob(index.Manifests[0]), &m)
	var conf imageConfig
	parse(blob(m.Config), &conf)
	z, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if conf.RootFS.DiffIDs[0] != "sha256:"+digest(layer) || conf.Config.User != "10100:10100" {
		t.Errorf("configuration %+v", conf)
	}
	root := untar(t, layer)
	if h := root["usr/bin/hops"].header; h.Mode != 0o755 || h.Uid != 0 {
		t.Errorf("the program: %+v", h)
	}
	if h := root["var/lib/hops/"].header; h.Uid != imageUser || h.Mode != 0o711 {
		t.Errorf("the data: %+v", h)
	}
	if !strings.Contains(string(root["etc/passwd"].text), "\nhops:x:10100:10100:") {
		t.Errorf("users: %s", root["etc/passwd"].text)
	}
}

func untar(t *testing.T, text []byte) map[string]file {
	t.Helper()
	files := map[string]file{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = file{*h, b}
	}
}

// The same files give the same bytes, whenever and in whichever order they are added.
func TestArchiveAndImageAreReproducible(t *testing.T) {
	one, two := staged(t), staged(t)
	for _, s := range []*shipment{one, two} {
		if err := errors.Join(s.archive(), s.image()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hops-1.2.3+4.gabc-oci-amd64.tar", "hops-1.2.3+4.gabc-linux-amd64.tar.gz"} {
		a, err := os.ReadFile(filepath.Join(one.out, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(two.out, name))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
}

func TestStaticAndDynamicProgramsAreToldApart(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Skip("no /bin/sh")
	}
	f, err := elf.Open(shell)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) == 0 || libraries[0] != "libc.so.6" {
		t.Skipf("%s does not need glibc alone", shell)
	}
	if version, err := neededGlibc(shell); err != nil || !newer(version, "2.1") {
		t.Errorf("neededGlibc(%s) = %q, %v", shell, version, err)
	}
	if err := checkStatic(shell); err == nil || !strings.Contains(err.Error(), "is not static") {
		t.Errorf("checkStatic(%s) = %v", shell, err)
	}
}
