package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/cmd/demo"
	"github.com/gohops/hops/integration/process"
)

// What `hops dev` says to try works when it is pasted, whatever its directory is called.
func TestWhatDevSaysToTryWorks(t *testing.T) {
	binary := process.Binary(t)
	dev := process.StartDev(t, filepath.Join(process.Dir(t), "it's my data"))
	_, rest, _ := strings.Cut(dev.Output(), "try:\n")
	var lines []string
	for line := range strings.Lines(rest) {
		if command, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(command, "hadoop ") {
			lines = append(lines, command)
		}
	}
	script := strings.Join(lines, "")
	if !strings.Contains(script, "hops fs ") || !strings.Contains(script, "hops job run ") {
		t.Fatalf("it says:\n%s", dev.Output())
	}
	cmd := exec.CommandContext(process.Context(t), "sh", "-e")
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = append(process.Environ(t, ""), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "/tmp") {
		t.Errorf("%s\n%v\n%s", script, err, out)
	}
	// What is removed goes to the trash, for a day.
	hops := dev.Hops()
	hops.OK("fs", "-touchz", "/tmp/gone")
	hops.OK("fs", "-rm", "/tmp/gone")
	hops.OK("fs", "-test", "-e", ".Trash/Current/tmp/gone")
}

// The directories that every user needs are looked at: that they are there, and open.
func TestTheDoctorMissesSystemDirectories(t *testing.T) {
	hops := process.StartDev(t, process.Dir(t), "-D", "fs.protected.directories=").Hops()
	if r := hops.Run("doctor"); !strings.Contains(r.Stdout, "ok    directories        /Projects, /logs, /tmp, /user are there\n") {
		t.Errorf("%+v", r)
	}
	hops.OK("fs", "-rm", "-r", "-skipTrash", "/Projects")
	hops.OK("fs", "-chmod", "755", "/logs")
	r := hops.Run("doctor")
	if r.Status != 1 || !regexp.MustCompile(`(?m)^FAIL  directories        /Projects is missing; /logs is for \S+ alone: mode 755, not 1777$`).MatchString(r.Stdout) {
		t.Errorf("%+v", r)
	}
}

// The commands with which the demo ends work on an empty cluster.
func TestWhatTheDemoSaysToTryWorks(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dev := process.StartDev(t, process.Dir(t))
	hops := dev.Hops()
	for _, line := range demo.Next {
		words := strings.Fields(line[0])
		if words[0] != "bin/hops" {
			t.Fatalf("%q", line[0])
		}
		if words[1] != "fs" { // hops dev, which runs, and the search, which takes its time
			continue
		}
		for i, w := range words {
			if strings.HasPrefix(w, "examples/") {
				words[i] = filepath.Join(root, w)
			}
		}
		hops.OK(words[1:]...)
	}
	study, err := os.ReadFile(filepath.Join(root, "examples/digits.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	data := regexp.MustCompile(`/data/[a-z.]+`).FindAllString(string(study), -1)
	if len(data) == 0 {
		t.Fatal("the study names no data")
	}
	hops.OK("fs", "-test", "-e", data[len(data)-1])
}

// What is wrong with the options is said whether or not another cluster runs; and a directory that holds other things, or that
// others use, stays as it is.
func TestDevRefusesBeforeItTouchesAnything(t *testing.T) {
	hops := process.Hops{T: t}
	used := process.Dir(t)
	lock, err := os.Create(filepath.Join(used, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	hops.Fails(1, []string{"is in use by another hops dev"}, "dev", "--data", used)
	hops.Fails(2, []string{`--ports "foo" is neither default, random nor a port`}, "dev", "--data", used, "--ports", "foo")
	hops.Fails(2, []string{"--datanodes 0 is not 1 to 50"}, "dev", "--data", used, "--datanodes", "0")
	hops.Fails(2, []string{`-D "x" is not NAME=VALUE`}, "dev", "--data", used, "-D", "x")

	other := process.Dir(t)
	if err := os.WriteFile(filepath.Join(other, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	hops.Fails(2, []string{other, "thesis.tex", "name an empty or a new directory"}, "dev", "--data", other)
	if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// A setting that cannot be met by this cluster is said.
func TestDevSaysThatFilesWantMoreReplicasThanThereAreDatanodes(t *testing.T) {
	note := "note: dfs.replication is 5 and there are 1 datanodes: blocks stay under-replicated\n"
	if out := process.StartDev(t, process.Dir(t), "-D", "dfs.replication=5").Output(); !strings.Contains(out, note) {
		t.Errorf("it says:\n%s", out)
	}
	if out := process.StartDev(t, process.Dir(t)).Output(); strings.Contains(out, "note: ") {
		t.Errorf("it says:\n%s", out)
	}
}
