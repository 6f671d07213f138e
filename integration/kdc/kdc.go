// Package kdc runs a realm of MIT Kerberos for tests: a KDC on ports of loopback, with its database, keytabs and krb5.conf in one
// directory. Nothing outside that directory is written, and no rights are needed.
package kdc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// Realm is the name of the realm.
const Realm = "HOPS.TEST"

// ErrMissing: a program of MIT Kerberos is not installed.
var ErrMissing = errors.New("MIT Kerberos is not installed (Debian: apt-get install krb5-kdc krb5-admin-server krb5-user)")

// packages are Debian's; kadmin.local is in that of the administration server.
var packages = []string{"krb5-kdc", "krb5-admin-server", "krb5-user"}

// KDC is a running realm.
type KDC struct {
	// Dir holds everything.
	Dir string

	ports   processes.Ports
	address string
	cmd     *exec.Cmd
	done    chan struct{}
}

// program finds a program, which for a user who is not root may be outside the path.
func program(name string) (string, error) {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, ErrMissing)
}

// Installed returns ErrMissing unless everything that a realm needs is there.
func Installed() error {
	for _, name := range []string{"krb5kdc", "kdb5_util", "kadmin.local", "kinit"} {
		if _, err := program(name); err != nil {
			return err
		}
	}
	return nil
}

// Install fetches MIT Kerberos if it is not there, which takes root and Debian's packages. Its KDC is not started.
func Install(ctx context.Context) error {
	if Installed() == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return ErrMissing
	}
	for _, args := range [][]string{{"update", "-qq"}, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		// A policy that denies keeps the package's own KDC from starting.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, processes.Tail(string(out), 3))
		}
	}
	return Installed()
}

// Start makes a realm in dir and starts its KDC.
func Start(dir string) (*KDC, error) {
	if err := Installed(); err != nil {
		return nil, err
	}
	k := &KDC{Dir: dir}
	addresses, err := k.ports.Take(1)
	if err != nil {
		return nil, err
	}
	k.address = addresses[0]
	_, port, _ := net.SplitHostPort(k.address)
	for name, text := range map[string]string{
		// Names of hosts are taken as they are: nobody is asked for another.
		"krb5.conf": fmt.Sprintf(`[libdefaults]
  default_realm = %[1]s
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  kdc_timeout = 30000
  max_retries = 1
[realms]
  %[1]s = {
    kdc = %[2]s
  }
[domain_realm]
  localhost = %[1]s
  .localhost = %[1]s
`, Realm, k.address),
		"kdc.conf": fmt.Sprintf(`[kdcdefaults]
  kdc_ports = %[2]s
  kdc_tcp_ports = %[2]s
  kdc_listen = %[4]s
  kdc_tcp_listen = %[4]s
[realms]
  %[1]s = {
    database_name = %[3]s/principal
    key_stash_file = %[3]s/stash
    acl_file = %[3]s/acl
    max_life = 10h
    max_renewable_life = 7d
    supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal aes256-cts-hmac-sha384-192:normal aes128-cts-hmac-sha256-128:normal
  }
[logging]
  kdc = FILE:%[3]s/kdc.log
  admin_server = FILE:%[3]s/admin.log
`, Realm, port, dir, k.address),
		"acl": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if _, err := k.run("kdb5_util", "create", "-s", "-r", Realm, "-P", "a password that nobody types"); err != nil {
		return nil, err
	}
	if err := k.Up(); err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

// Up starts the KDC, the first time or again.
func (k *KDC) Up() error {
	path, err := program("krb5kdc")
	if err != nil {
		return err
	}
	k.cmd = exec.Command(path, "-n", "-r", Realm, "-P", filepath.Join(k.Dir, "pid"))
	k.cmd.Env = k.environment()
	if err := processes.Spawn(k.cmd, syscall.SIGKILL); err != nil {
		return err
	}
	k.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(k.cmd, k.done)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", k.address); err == nil {
			return c.Close()
		}
		select {
		case <-k.done:
			return fmt.Errorf("krb5kdc ended: %s", processes.Tail(filepath.Join(k.Dir, "kdc.log"), 3))
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("krb5kdc does not listen on %s", k.address)
		}
	}
}

// Down ends the KDC; its database stays.
func (k *KDC) Down() {
	if k.cmd == nil {
		return
	}
	_ = syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL)
	<-k.done
	k.cmd = nil
}

// Stop ends the KDC for good.
func (k *KDC) Stop() {
	k.Down()
	_ = k.ports.Close()
}

// Config is the path of krb5.conf.
func (k *KDC) Config() string { return filepath.Join(k.Dir, "krb5.conf") }

// Env is what programs need to be in the realm, with the tickets of a cache, which may be empty.
func (k *KDC) Env(cache string) []string {
	return []string{"KRB5_CONFIG=" + k.Config(), "KRB5CCNAME=FILE:" + cache, "KRB5RCACHENAME=none:"}
}

func (k *KDC) environment() []string {
	return append(os.Environ(), append(k.Env(filepath.Join(k.Dir, "none")), "KRB5_KDC_PROFILE="+filepath.Join(k.Dir, "kdc.conf"))...)
}

func (k *KDC) run(name string, args ...string) (string, error) {
	path, err := program(name)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, args...)
	cmd.Env = k.environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// Keytab makes principals with keys of an encryption type, such as aes256-cts-hmac-sha1-96 (empty: all that the realm has), and
// writes the keys into a new file.
func (k *KDC) Keytab(path, enctype string, principals ...string) error {
	var keys []string
	if enctype != "" {
		keys = []string{"-e", enctype + ":normal"}
	}
	for _, p := range principals {
		if _, err := k.run("kadmin.local", append(append([]string{"-r", Realm, "addprinc", "-randkey"}, keys...), p)...); err != nil {
			return err
		}
		if _, err := k.run("kadmin.local", "-r", Realm, "ktadd", "-norandkey", "-k", path, p); err != nil {
			return err
		}
	}
	return os.Chmod(path, 0o400)
}

// User makes a principal and gets its tickets into a new cache, whose path is returned. More arguments are kinit's, such as -l 1h.
func (k *KDC) User(name string, args ...string) (string, error) {
	keytab := filepath.Join(k.Dir, name+".keytab")
	if _, err := os.Stat(keytab); err != nil {
		if err := k.Keytab(keytab, "", name+"@"+Realm); err != nil {
			return "", err
		}
	}
	cache := filepath.Join(k.Dir, name+".cache")
	_, err := k.run("kinit", append(append([]string{"-c", "FILE:" + cache, "-k", "-t", keytab}, args...), name+"@"+Realm)...)
	return cache, err
}
