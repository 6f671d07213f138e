package process

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
)

// A program that cannot start says what is wrong, where, and what to do, in one error; it changes nothing and leaves no
// process.
func TestDevThatCannotStartSaysWhy(t *testing.T) {
	used := Dir(t)
	StartDev(t, used).Stop(syscall.SIGTERM)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port

	inUse := StartDev(t, Dir(t))

	edit := func(name, old, new string) func(string) {
		return func(dir string) {
			t.Helper()
			file := filepath.Join(dir, name)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(text, []byte(old)) {
				t.Fatalf("%s does not have %q: %s", name, old, text)
			}
			text = bytes.Replace(text, []byte(old), []byte(new), 1)
			if head, _, ok := bytes.Cut(text, []byte("crc32c=")); ok { // a file that vouches for itself
				text = fmt.Appendf(head, "crc32c=%08x\n", crc32.Checksum(head, crc32.MakeTable(crc32.Castagnoli)))
			}
			writeFile(t, file, string(text))
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(dir string) // of a copy of a used directory; nil: a new directory
		args    []string
		status  int
		words   []string
	}{
		{"a port that is taken", nil, []string{"--ports", fmt.Sprint(port)}, 1, []string{taken.Addr().String(), "taken by another program", "--ports random"}},
		{"a directory in use", nil, []string{"--data", inUse.Data}, 1, []string{inUse.Data, "in use by another hops dev", "--data or --ephemeral"}},
		{"a directory that cannot be", nil, []string{"--data", "/dev/null/hops"}, 1, []string{"/dev/null", "not a directory", "--data"}},
		{"a volume of another version", edit("dn1/VERSION", "layoutVersion=", "layoutVersion=99"), nil, 1, []string{"dn1", "layout version", `"99`, "reads "}},
		{"a volume whose identity is damaged", func(dir string) { writeFile(t, filepath.Join(dir, "dn1/VERSION"), "layoutVersion=1\n") }, nil, 1, []string{"dn1", "VERSION"}},
		{"a journal of another version", func(dir string) {
			writeFile(t, filepath.Join(dir, "nn/raft/namespace/member.json"), `{"format":9,"group":"namespace","member":"nn1"}`)
		}, nil, 1, []string{"nn/raft/namespace", "format 9", "start the version that wrote it"}},
		{"a work directory of another version", edit("nm/node.json", `"layout": 1`, `"layout": 2`), nil, 1, []string{"nm", "layout 2", "reads 1"}},
		{"volumes of another cluster", func(dir string) { os.RemoveAll(filepath.Join(dir, "nn")) }, nil, 1, []string{"dn1", "belongs to cluster CID-", "this is cluster CID-"}},
		{"a secret that others can read", func(dir string) { _ = os.Chmod(filepath.Join(dir, "secret"), 0o644) }, nil, 1, []string{"secret", "chmod 600"}},
		{"an unknown property", nil, []string{"-D", "dfs.replicatoin=2"}, 1, []string{"unknown property dfs.replicatoin", "did you mean dfs.replication?"}},
		{"a property with a wrong value", nil, []string{"-D", "dfs.replication=many"}, 1, []string{"dfs.replication", `"many"`, "from 1 to 512"}},
		{"a property without a value", nil, []string{"-D", "dfs.replication"}, 2, []string{"NAME=VALUE"}},
		{"no such GPUs", nil, []string{"--gpus", "sim:many"}, 1, []string{`"sim:many"`, "sim:4"}},
		{"no datanode", nil, []string{"--datanodes", "0"}, 2, []string{"--datanodes 0"}},
		{"an unknown flag", nil, []string{"--replicas", "2"}, 2, []string{"-replicas"}},
		{"two places for data", nil, []string{"--ephemeral"}, 2, []string{"--ephemeral and --data"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := Dir(t)
			if c.prepare != nil {
				if err := os.CopyFS(dir, os.DirFS(used)); err != nil {
					t.Fatal(err)
				}
				for _, private := range []string{"secret", "identity.pem", "authority.pem"} { // CopyFS does not keep modes below the umask
					_ = os.Chmod(filepath.Join(dir, private), 0o600)
				}
				c.prepare(dir)
			}
			dev := LaunchDev(t, dir, c.args...)
			r := dev.Wait()
			r.Says(t, c.status, c.words...)
			if left := dev.Processes(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
	t.Run("the directory is as good as before", func(t *testing.T) {
		StartDev(t, used).Stop(syscall.SIGTERM)
	})
	t.Run("a directory without rights", func(t *testing.T) {
		dir := Dir(t)
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(dir, 0o700) }()
		cmd := exec.Command(Binary(t), "dev", "--data", filepath.Join(dir, "data"), "--ports", "random")
		cmd.Env = Environ(t, "")
		if os.Geteuid() == 0 { // root may write everywhere: be nobody
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, fs.ErrPermission) {
			t.Skip("nobody may not run the program where it lies")
		}
		Result{Stderr: string(out), Status: cmd.ProcessState.ExitCode()}.Says(t, 1, "permission denied", "--data")
	})
}

func TestServerThatCannotStartSaysWhy(t *testing.T) {
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, NodeManagers: 1})
	dir := filepath.Dir(k.Log("nn1"))
	var ports processes.Ports
	t.Cleanup(func() { ports.Close() })
	free := func() string {
		a, err := ports.Take(1)
		if err != nil {
			t.Fatal(err)
		}
		return a[0]
	}
	// other writes the configuration of a second server, which shares what change leaves as it was.
	other := func(t *testing.T, name string, change func(*config.File)) string {
		t.Helper()
		f, err := k.Server(name)
		if err != nil {
			t.Fatal(err)
		}
		change(f)
		text, err := yaml.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "hops.yaml")
		writeFile(t, file, string(text))
		return file
	}
	elsewhere := func(f *config.File) {
		f.Cluster.Conf = ""
		for i := range f.Namenodes {
			n := &f.Namenodes[i]
			n.IPC, n.HTTP, n.GRPC, n.Raft = free(), free(), free(), free()
		}
		for i := range f.ResourceManagers {
			m := &f.ResourceManagers[i]
			m.HTTP, m.GRPC, m.Raft = free(), free(), free()
		}
		if d := f.Datanode; d != nil {
			d.Transfer, d.HTTP, d.IPC, d.GRPC = free(), free(), free(), free()
		}
		if n := f.NodeManager; n != nil {
			n.HTTP = free()
		}
	}
	for _, c := range []struct {
		name, server, role string
		change             func(*config.File)
		words              []string
	}{
		{"a port that is taken", "dn1", "datanode", func(*config.File) {}, []string{"datanode", "taken by another program"}},
		{"a namenode's directory in use", "nn1", "namenode", elsewhere, []string{"nn1", "in use"}},
		{"a volume in use", "dn1", "datanode", elsewhere, []string{"dn1", "in use"}},
		{"a resource manager's directory in use", "rm1", "resourcemanager", elsewhere, []string{"rm1", "in use"}},
		{"a node manager's directory in use", "nm1", "nodemanager", elsewhere, []string{"nm1", "in use"}},
		{"an address of the network", "nn1", "namenode", func(f *config.File) {
			f.Namenodes[0].IPC = "0.0.0.0:8020"
		}, []string{"0.0.0.0:8020", "no address that anybody can reach", "cluster.bind"}},
		{"a section that is missing", "nn1", "datanode", func(*config.File) {}, []string{`no section "datanode"`}},
		{"no secret", "nn1", "namenode", func(f *config.File) {
			f.Cluster.SecretFile = filepath.Join(dir, "none")
		}, []string{"none", "--bootstrap"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := other(t, c.server, c.change)
			status := 1
			if strings.Contains(c.name, "section") {
				status = 2
			}
			Hops{T: t}.Fails(status, c.words, "server", "--role", c.role, "-c", file)
		})
	}
	t.Run("another member's directory", func(t *testing.T) {
		k.must(k.Kill("nn1"))
		file := other(t, "nn1", func(f *config.File) {
			elsewhere(f)
			f.Namenodes[0].ID, f.Namenode.ID = "nn2", "nn2"
		})
		Hops{T: t}.Fails(1, []string{"belongs to member nn1, not to nn2"}, "server", "--role", "namenode", "-c", file)
		k.must(k.Start("nn1"))
	})
	t.Run("a datanode of another cluster", func(t *testing.T) {
		stranger := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, Name: "stranger"})
		stranger.must(stranger.Kill("dn1"))
		file := other(t, "dn1", func(f *config.File) {
			elsewhere(f)
			s := stranger.File()
			f.Namenodes, f.Cluster.SecretFile, f.Cluster.Identity = s.Namenodes, s.Cluster.SecretFile, s.Cluster.Identity
		})
		k.must(k.Kill("dn1"))
		Hops{T: t}.Fails(1, []string{"belongs to cluster CID-"}, "server", "--role", "datanode", "-c", file)
		k.must(k.Start("dn1"))
	})
	k.Ready()
}

// A server whose log is a file writes there, begins a new file where that was moved away, and works on where it cannot write at all.
func TestAServerWritesItsLogIntoAFile(t *testing.T) {
	dir := Dir(t)
	logs := filepath.Join(dir, "logs")
	k := Lay(t, processes.Config{Dir: dir, Namenodes: 1, Datanodes: 1, Properties: map[string]string{"dfs.replication": "1"}, Adjust: func(_ string, f *config.File) { f.Log.Dir = logs }})
	k.must(k.StartAll())
	k.Ready()
	log := filepath.Join(logs, "namenode.log")
	said := func(words string) func() error {
		return func() error {
			text, err := os.ReadFile(log)
			if err == nil && !strings.Contains(string(text), words) {
				err = fmt.Errorf("no %q in %s", words, text)
			}
			return err
		}
	}
	k.Await("the log", said("datanode registered"))
	if text, err := os.ReadFile(k.Log("nn1")); err != nil || strings.Contains(string(text), "datanode registered") {
		t.Errorf("standard error has it too: %v\n%s", err, text)
	}
	k.must(os.RemoveAll(logs)) // and it cannot be made again: there is no directory
	fs := Dial(t, k.Conf(), "").FS()
	k.Await("a changed threshold", func() error { // each is a line
		_, err := fs.Balance(Context(t), dfs.BalanceRequest{Session: fmt.Sprint(time.Now()), Threshold: 10, Stop: true})
		text, failed := os.ReadFile(k.Log("nn1"))
		if err == nil && failed == nil && !strings.Contains(string(text), "the log cannot be written") {
			err = errors.New("nobody says that the log is not written")
		}
		return err
	})
	k.must(os.MkdirAll(logs, 0o755))
	k.Await("the log again", func() error {
		_, _ = fs.Balance(Context(t), dfs.BalanceRequest{Session: fmt.Sprint(time.Now()), Threshold: 10, Stop: true})
		return said("a balancer ends")()
	})
}
