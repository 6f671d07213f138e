// Command packages builds what hops is shipped as: a deb, an rpm, an archive of the static program, a container image and a Python wheel. The same
// commit gives the same bytes with the same Go and, for deb and rpm, the same C library. See docs/how-to/install.md.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", ".", "the repository")
	out := flag.String("out", "bin/packages", "where the packages go; emptied first")
	nfpm := flag.String("nfpm", "bin/tools/nfpm", "nfpm, which writes deb and rpm")
	flag.Parse()
	if err := run(*root, *out, *nfpm, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

// maxGlibc is the newest C library that the program of deb and rpm may need: Debian 12, Ubuntu 22.04 and RHEL 9 have it.
const maxGlibc = "2.35"

// shipment is what all packages have in common.
type shipment struct {
	root, stage, out string
	version          string // as packages write it
	arch             string
	mtime            time.Time
}

func run(root, out, nfpm string, stdout io.Writer) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("packages are for Linux; this is %s", runtime.GOOS)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if nfpm, err = exec.LookPath(nfpm); err != nil {
		return fmt.Errorf("%w: make packages installs it", err)
	}
	described, err := git(root, "describe", "--tags", "--always", "--dirty")
	if err != nil {
		return err
	}
	mtime, err := sourceDate(root)
	if err != nil {
		return err
	}
	s := shipment{root: root, out: out, version: packageVersion(described, mtime), arch: runtime.GOARCH, mtime: mtime}
	if s.stage, err = os.MkdirTemp("", "hops-packages-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.stage)
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	// The program of deb and rpm: C for NVML and for the users and groups of the system (SSSD, LDAP).
	if err := s.build("hops", true); err != nil {
		return err
	}
	glibc, err := neededGlibc(s.staged("hops"))
	if err != nil {
		return err
	}
	if newer(glibc, maxGlibc) {
		return fmt.Errorf("the program would need glibc %s, and so not start on machines that have %s: build on an older one", glibc, maxGlibc)
	}
	// The one of archive and image: no C at all.
	if err := s.build("hops-static", false); err != nil {
		return err
	}
	if err := checkStatic(s.staged("hops-static")); err != nil {
		return err
	}
	if err := s.papers(); err != nil {
		return err
	}
	if err := s.nfpm(nfpm, glibc); err != nil {
		return err
	}
	if err := s.archive(); err != nil {
		return err
	}
	if err := s.image(); err != nil {
		return err
	}
	if err := s.wheel(); err != nil {
		return err
	}
	return s.sums(stdout, glibc)
}

func (s *shipment) staged(name string) string { return filepath.Join(s.stage, name) }

func git(root string, words ...string) (string, error) {
	cmd := exec.Command("git", words...)
	cmd.Dir = root
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: packages are built from a clone", strings.Join(words, " "), err)
	}
	return strings.TrimSpace(string(text)), nil
}

// sourceDate is the time of everything in the packages: SOURCE_DATE_EPOCH, or the commit's.
func sourceDate(root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = git(root, "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// packageVersion makes a version that dpkg and rpm sort by age of what `git describe --tags --always --dirty` says: v1.2.3 is
// 1.2.3, commits after it 1.2.3+4.gabcdef, a commit with no tag before it 0.0.0+20060102150405.abcdef.
func packageVersion(described string, commit time.Time) string {
	clean, dirty := strings.CutSuffix(described, "-dirty")
	version := ""
	if tag, ok := strings.CutPrefix(clean, "v"); ok && strings.Contains(tag, ".") {
		parts := strings.SplitN(tag, "-", 2)
		if version = parts[0]; len(parts) == 2 {
			version += "+" + strings.ReplaceAll(parts[1], "-", ".")
		}
	} else {
		version = "0.0.0+" + commit.UTC().Format("20060102150405") + "." + clean
	}
	if dirty {
		version += ".dirty"
	}
	return version
}

// build makes the program, with C or without.
func (s *shipment) build(name string, c bool) error {
	cgo := "CGO_ENABLED=0"
	if c {
		cgo = "CGO_ENABLED=1"
	}
	// No build id: the linker's depends on the directory.
	flags := "-s -w -buildid= -X main.version=" + s.version
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", s.staged(name), "./cmd/hops")
	cmd.Dir, cmd.Env = s.root, append(os.Environ(), cgo, "GOFLAGS=", "CGO_CFLAGS=-O2 -g0", "CGO_LDFLAGS=-Wl,--build-id=none")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build (%s): %w\n%s", cgo, err, text)
	}
	return nil
}

// papers makes the manual page, the completions and the licences.
func (s *shipment) papers() error {
	hops := func(words ...string) ([]byte, error) {
		text, err := exec.Command(s.staged("hops"), words...).Output()
		if err != nil {
			return nil, fmt.Errorf("hops %s: %w", strings.Join(words, " "), err)
		}
		return text, nil
	}
	page, err := hops("man")
	if err != nil {
		return err
	}
	files := map[string][]byte{"hops.1.gz": compressed(page)}
	for name, shell := range map[string]string{"hops.bash": "bash", "hops.fish": "fish", "_hops": "zsh"} {
		if files[name], err = hops("completion", shell); err != nil {
			return err
		}
	}
	if files["LICENSE"], err = os.ReadFile(filepath.Join(s.root, "LICENSE")); err != nil {
		return err
	}
	texts, err := licences(s.root, s.staged("hops"))
	if err != nil {
		return err
	}
	files["third-party-licenses.gz"] = compressed(texts)
	files["copyright"] = []byte(copyright)
	files["changelog.Debian.gz"] = compressed(fmt.Appendf(nil, "hops (%s) stable; urgency=medium\n\n  * Built from this version; the history is in the repository.\n\n -- The hops authors <gohops@users.noreply.github.com>  %s\n",
		s.version, s.mtime.Format(time.RFC1123Z)))
	for name, text := range files {
		if err := os.WriteFile(s.staged(name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compressed is text in gzip, without name and time.
func compressed(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = w.Write(text) // into memory
	_ = w.Close()
	return b.Bytes()
}

// nfpm writes deb and rpm.
func (s *shipment) nfpm(program, glibc string) error {
	here := filepath.Join(s.root, "deploy", "packages")
	text, err := os.ReadFile(filepath.Join(here, "nfpm.yaml"))
	if err != nil {
		return err
	}
	for packager, units := range map[string]string{"deb": "/lib/systemd/system", "rpm": "/usr/lib/systemd/system"} {
		conf, err := expand(string(text), map[string]string{
			"ARCH": s.arch, "VERSION": s.version, "MTIME": s.mtime.Format(time.RFC3339), "STAGE": s.stage,
			"FILES": filepath.Join(here, "files"), "UNITS": units, "GLIBC": glibc,
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.staged("nfpm.yaml"), []byte(conf), 0o644); err != nil {
			return err
		}
		cmd := exec.Command(program, "package", "--config", s.staged("nfpm.yaml"), "--packager", packager, "--target", s.out)
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(s.mtime.Unix(), 10))
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nfpm (%s): %w\n%s", packager, err, text)
		}
	}
	return nil
}

// expand replaces ${NAME}; a name that is not there is an error.
func expand(text string, values map[string]string) (string, error) {
	var missing []string
	text = os.Expand(text, func(name string) string {
		v, ok := values[name]
		if !ok {
			missing = append(missing, name)
		}
		return v
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("nfpm.yaml: no value for %s", strings.Join(missing, ", "))
	}
	return text, nil
}

// archive writes the static program with its papers as a tar.
func (s *shipment) archive() error {
	name := fmt.Sprintf("hops-%s-linux-%s", s.version, s.arch)
	t := tree{mtime: s.mtime}
	for file, to := range map[string]string{
		"hops-static": "hops", "hops.1.gz": "share/man/man1/hops.1.gz", "hops.bash": "share/bash-completion/completions/hops",
		"hops.fish": "share/fish/vendor_completions.d/hops.fish", "_hops": "share/zsh/site-functions/_hops", "LICENSE": "LICENSE",
		"third-party-licenses.gz": "third-party-licenses.gz",
	} {
		text, err := os.ReadFile(s.staged(file))
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if file == "hops-static" {
			mode = 0o755
		}
		t.add(tar.Header{Name: name + "/" + to, Mode: mode}, text)
	}
	return os.WriteFile(filepath.Join(s.out, name+".tar.gz"), compressed(t.bytes()), 0o644)
}

// sums writes SHA256SUMS and tells what was made.
func (s *shipment) sums(stdout io.Writer, glibc string) error {
	entries, err := os.ReadDir(s.out)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(s.out, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		lines = append(lines, hex.EncodeToString(sum[:])+"  "+e.Name()+"\n")
		fmt.Fprintf(stdout, "%7.1f MB  %s\n", float64(len(text))/1e6, filepath.Join(s.out, e.Name()))
	}
	slices.Sort(lines)
	fmt.Fprintf(stdout, "deb and rpm: the C library %s or later and no other library, NVML where there is a driver; archive and image: static, no NVML\n", glibc)
	return os.WriteFile(filepath.Join(s.out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
