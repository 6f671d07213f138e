package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The machine of the only namenode is lost. A backup makes it anew: the same authority, the same files; datanodes of other machines
// come back to it by themselves, and machines can join.
func TestALostClusterIsRestored(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	token := m.init("namenode")
	if r := m.join(2, token, "--roles", "datanode"); r.Status != 0 {
		t.Fatal(r.Stdout, r.Stderr)
	}
	put := func(name string) {
		if r := (Hops{T: t, Conf: filepath.Join(m.etc(2), "conf")}).Input("in "+name+"\n", "fs", "-put", "-", name); r.Status != 0 {
			t.Fatal(r.Stderr)
		}
	}
	put("/kept")
	file, key, none := filepath.Join(m.dir, "backup"), filepath.Join(m.dir, "key"), filepath.Join(m.dir, "plain")
	if err := errors.Join(os.WriteFile(key, []byte("correct horse battery\n"), 0o600), os.WriteFile(key+"2", []byte("staple staple staple\n"), 0o600), os.WriteFile(key+"3", []byte("short\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	m.good("cluster", "backup", file, "--key", key, "-c", m.yaml(1))
	if said := m.good("cluster", "backup", none, "-c", m.yaml(1)); !strings.Contains(said, "not encrypted") {
		t.Errorf("a backup without a key: %s", said)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	refuse := func(name, want string, args ...string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			if r := m.run(append([]string{"cluster"}, args...)...); r.Status == 0 || !strings.Contains(r.Stderr, want) {
				t.Errorf("%d %s%s; want %s", r.Status, r.Stdout, r.Stderr, want)
			}
		})
	}
	refuse("over another backup", "is there already: nothing is overwritten", "backup", file, "-c", m.yaml(1))
	refuse("on a machine without a namenode", "this machine has no namenode", "backup", file+"2", "-c", m.yaml(2))
	refuse("a passphrase that is too short", "at least 12 characters, this one has 5", "backup", file+"2", "--key", key+"3", "-c", m.yaml(1))
	refuse("a user who is none", "is not a superuser", "backup", file+"2", "--user", "ann", "-c", m.yaml(1))
	refuse("restoring over a machine that is there", "is there already, and nothing is overwritten", "restore", file, "--key", key)
	if left, _ := filepath.Glob(file + "2"); len(left) > 0 {
		t.Error("a backup that failed left a file")
	}
	put("/since")

	for _, pid := range m.pids("m1") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.eventually("the namenode is dead", func() error {
		if left := m.pids("m1"); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	if err := os.RemoveAll(filepath.Join(m.dir, "m1")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(m.dir, "half")
	if err := os.WriteFile(half, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	text[len(text)-20] ^= 1
	damaged := filepath.Join(m.dir, "damaged")
	if err := os.WriteFile(damaged, text, 0o600); err != nil {
		t.Fatal(err)
	}
	refuse("half a backup", "cut off", "restore", half, "--key", key)
	refuse("a damaged backup", "damaged", "restore", damaged, "--key", key)
	refuse("another passphrase", "the passphrase is not that of the backup", "restore", file, "--key", key+"2")
	refuse("no passphrase", "the backup is encrypted: give the passphrase with --key", "restore", file)
	refuse("what is no backup", "this is no backup", "restore", m.yaml(2))
	if _, err := os.Stat(filepath.Join(m.dir, "m1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a restore that failed left something: %v", err)
	}

	m.good("cluster", "restore", file, "--key", key)
	pid := m.serve(1, "namenode")
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	files := Hops{T: t, Conf: filepath.Join(m.etc(2), "conf")}
	m.eventually("the file is there", func() error {
		if r := files.Run("fs", "-cat", "/kept"); r.Stdout != "in /kept\n" {
			return errors.New(r.Stdout + r.Stderr + m.log(1, "namenode"))
		}
		return nil
	})
	if r := files.Run("fs", "-ls", "/since"); r.Status == 0 {
		t.Errorf("what came after the backup is there: %s", r.Stdout)
	}
	put("/after")
	if r := m.join(3, m.token("--roles", "datanode"), "--roles", "datanode"); r.Status != 0 {
		t.Errorf("the authority takes no machine in: %s%s", r.Stdout, r.Stderr)
	}
}

// serve starts a role of a machine as a person does.
func (m *machines) serve(n int, role string) (pid int) {
	m.t.Helper()
	logs := filepath.Join(m.dir, fmt.Sprint("m", n), "data", "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		m.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(logs, role+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	p, err := os.StartProcess(Binary(m.t), []string{"hops", "server", "--role", role, "-c", m.yaml(n)},
		&os.ProcAttr{Files: []*os.File{nil, log, log}, Env: Environ(m.t, ""), Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		m.t.Fatal(err)
	}
	go func() { _, _ = p.Wait() }()
	return p.Pid
}
