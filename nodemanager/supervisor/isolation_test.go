package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAliasesOfAPath(t *testing.T) {
	table := parseMounts(`22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:2 / /data rw - ext4 /dev/sda2 rw
24 22 8:2 /hops/nn /mnt/name\040node rw - ext4 /dev/sda2 rw
25 22 8:2 / /srv/data rw - ext4 /dev/sda2 rw
26 22 8:2 /hops/nn/raft /export rw - ext4 /dev/sda2 rw
`)
	for path, want := range map[string][]string{
		"/etc/secret":   {"/etc/secret", "/etc/secret"},
		"/data/hops/nn": {"/data/hops/nn", "/data/hops/nn", "/mnt/name node", "/srv/data/hops/nn", "/export"},
		"/data/hops":    {"/data/hops", "/data/hops", "/mnt/name node", "/srv/data/hops", "/export"},
	} {
		if diff := cmp.Diff(want, table.aliases(path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// isolates skips a test where the kernel does not let this user isolate anything. HOPS_NEED_ISOLATION makes that a failure.
func isolates(t *testing.T) {
	t.Helper()
	if err := TryIsolation(t.Context(), []string{self(t), "supervisor"}, t.TempDir()); err != nil {
		if os.Getenv("HOPS_NEED_ISOLATION") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// What belongs to the servers is out of a container's reach by every way that its user id opens.
func TestAContainerCannotReachTheSecret(t *testing.T) {
	isolates(t)
	base := t.TempDir()
	secret, data := filepath.Join(base, "etc", "secret"), filepath.Join(base, "nn")
	other := filepath.Join(base, "nm", "containers", "other")
	for _, dir := range []string{filepath.Dir(secret), data, other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{secret, filepath.Join(data, "log"), filepath.Join(other, "token")} {
		if err := os.WriteFile(f, []byte("SECRET\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(secret) // by a server
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	t.Setenv("SERVERS_OWN", "SECRET")
	server := fmt.Sprintf("/proc/%d", os.Getpid())
	for name, attack := range map[string]string{
		"its path":                  "cat " + secret,
		"a symbolic link":           "cat " + base + "/link",
		"a hard link":               "ln " + secret + " mine && cat mine",
		"another name of the dir":   "mv " + base + "/etc " + base + "/e2 && cat " + base + "/e2/secret",
		"a copy":                    "cp " + secret + " mine; cat mine",
		"removing what lies on top": "rm -f " + secret + "; cat " + secret,
		"data of a server":          "cat " + data + "/log",
		"another container's token": "cat " + other + "/token",
		"the root of a server":      "cat " + server + "/root" + secret,
		"the directory of a server": "cat " + server + "/cwd" + secret + " " + server + "/cwd/*",
		"a descriptor of a server":  "for f in " + server + "/fd/*; do cat $f; done",
		"environment of a server":   "tr '\\0' '\\n' < " + server + "/environ",
		"its supervisor's root":     "cat /proc/$PPID/root" + secret + "; cat /proc/$PPID/cwd/../../../etc/secret",
		"unmounting":                "umount " + secret + "; umount -l " + secret + "; cat " + secret,
		"namespaces of its own":     "unshare -Urm sh -c 'umount -l " + secret + "; umount -l " + data + "; cat " + secret + " " + data + "/log'",
		"a mount of the whole":      "mkdir m; unshare -Urm sh -c 'mount --bind " + base + " m; cat m/etc/secret; mount --rbind / m; cat m" + secret + "'",
		"the namespace of a server": "nsenter -t " + fmt.Sprint(os.Getpid()) + " -m -U cat " + secret,
		"the disk":                  `for d in /dev/vd* /dev/sd* /dev/nvme*n*; do [ "$(head -c 1 $d | wc -c)" = 1 ] && echo SECRET of $d; done`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, "sh", "-c", attack)
			c.launch.Isolation = &Isolation{Hide: []string{secret, data, filepath.Join(base, "nm")}, Show: []string{c.dir}}
			c.start()
			c.end()
			out, err := os.ReadFile(c.launch.Stdout)
			if err != nil || strings.Contains(string(out), "SECRET") {
				t.Errorf("%s gives %q, %v", attack, out, err)
			}
			if strings.HasPrefix(name, "another name") {
				os.Rename(filepath.Join(base, "e2"), filepath.Join(base, "etc"))
			}
			if text, err := os.ReadFile(secret); string(text) != "SECRET\n" {
				t.Errorf("the secret itself: %q, %v", text, err)
			}
		})
	}
}

// What a container is for works as if it were not isolated.
func TestAnIsolatedContainerIsAtHome(t *testing.T) {
	isolates(t)
	base := t.TempDir()
	conf := filepath.Join(base, "conf")
	if err := os.Mkdir(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "core-site.xml"), []byte("CONF\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newContainer(t, "sh", "-c", `pwd; id -u; stat -c %u .; cat `+conf+`/core-site.xml; echo x > out; mv out ../logs/moved; head -c 1 /dev/zero | wc -c; exit 7`)
	if err := os.WriteFile(filepath.Join(c.dir, "token"), []byte("TOKEN\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.launch.Isolation = &Isolation{Hide: []string{base, filepath.Dir(c.dir)}, Show: []string{c.dir, conf}}
	c.start()
	if e := c.end(); e.Status != 7 {
		t.Errorf("%+v", e)
	}
	out, _ := os.ReadFile(c.launch.Stdout)
	me := fmt.Sprint(os.Geteuid())
	if want := c.launch.Dir + "\n" + me + "\n" + me + "\nCONF\n1\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
	info, err := os.Stat(filepath.Join(c.dir, "logs", "moved"))
	if err != nil || info.Size() != 2 {
		t.Errorf("%v %v", info, err)
	}
}
