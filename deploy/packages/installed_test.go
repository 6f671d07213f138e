package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// built is the newest package of `make packages` that matches a pattern.
func built(t *testing.T, pattern string) string {
	t.Helper()
	if os.Getenv("HOPS_TEST_PACKAGES") == "" {
		t.Skip("HOPS_TEST_PACKAGES is not set: make packages, which builds what is tested here, sets it")
	}
	found, err := filepath.Glob("../../bin/packages/" + pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%v in bin/packages, want one of %s", found, pattern)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// needs skips a test where it cannot be done.
func needs(t *testing.T, root bool, programs ...string) {
	t.Helper()
	if root && os.Geteuid() != 0 {
		t.Skip("needs root, for a root directory of its own")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// fresh runs a script in a root directory of its own: this machine's with everything that the script writes apart from it, and gone at
// its end together with every process of it.
func fresh(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	setup := `
mount -t tmpfs none $DIR/upper && mkdir $DIR/upper/u $DIR/upper/w
mount -t overlay overlay -o lowerdir=/,upperdir=$DIR/upper/u,workdir=$DIR/upper/w $DIR/root || exit 77
mount -t proc proc $DIR/root/proc
mount --rbind /dev $DIR/root/dev
mount -t tmpfs none $DIR/root/tmp && chmod 1777 $DIR/root/tmp
mount -t tmpfs none $DIR/root/run
ip link set lo up
cp "$PACKAGE" $DIR/root/tmp/
printf '%s' "$SCRIPT" > $DIR/root/tmp/script
exec chroot $DIR/root sh -eu /tmp/script
`
	cmd := exec.Command("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private", "sh", "-eu", "-c", setup)
	cmd.Env = append(os.Environ(), "DIR="+dir, "SCRIPT="+script, "HOME=/root", "HADOOP_CONF_DIR=")
	for _, v := range []string{"deb", "rpm"} {
		if found, _ := filepath.Glob("../../bin/packages/*." + v); len(found) == 1 && strings.Contains(script, "."+v) {
			cmd.Env = append(cmd.Env, "PACKAGE="+found[0])
		}
	}
	out, err := cmd.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 77 {
		t.Skip("no overlay of the root directory on this kernel")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// cluster is a script that starts a namenode and a datanode as the package's user and moves a file through them.
const cluster = `
cat > /etc/hops/hops.yaml <<'YAML'
cluster: {name: lab, secret_file: /etc/hops/secret, conf: /etc/hops/conf}
namenodes: [{id: nn1, ipc: "127.0.0.1:8020", http: "127.0.0.1:9870", grpc: "127.0.0.1:8486", raft: "127.0.0.1:8487"}]
namenode: {id: nn1, data: /var/lib/hops/nn}
datanode: {volumes: [{path: /var/lib/hops/dn}], transfer: "127.0.0.1:9866", http: "127.0.0.1:9864", ipc: "127.0.0.1:9867", grpc: "127.0.0.1:9868", reserve: 1MiB}
audit: {dir: /var/log/hops}
properties: {dfs.replication: 1}
YAML
sed -i 's/data: .var.lib.hops.nn/&, reserve: 1MiB/' /etc/hops/hops.yaml
as() { setpriv --reuid=hops --regid=hops --init-groups --no-new-privs env -i PATH=/usr/bin:/bin HOME=/var/lib/hops HADOOP_CONF_DIR=/etc/hops/conf "$@"; }
as hops server --role namenode,datanode --bootstrap > /tmp/server.log 2>&1 &
server=$!
n=0
until grep -q ready /tmp/server.log; do
  n=$((n+1)); kill -0 $server 2>/dev/null && [ $n -lt 600 ] || { cat /tmp/server.log; exit 1; }
  sleep 0.1
done
as hops fs -put /etc/passwd /passwd || { cat /tmp/server.log; exit 1; }
as hops fs -cat /passwd | cmp - /etc/passwd
echo "a file went through the cluster"
ls /var/log/hops
kill $server; wait $server || true
`

// The deb is installed on a machine that never had it; its user, directories and program work; an upgrade leaves everything
// as it is, and neither removal nor purge touches data and keys.
func TestInstalledDebRuns(t *testing.T) {
	built(t, "*.deb")
	needs(t, true, "unshare", "dpkg", "setpriv", "ip", "chroot")
	out := fresh(t, `
dpkg -i /tmp/*.deb
dpkg -V hops
getent passwd hops
stat -c '%n %U:%G %a' /etc/hops /var/lib/hops /var/log/hops
hops version
test -s /usr/share/man/man1/hops.1.gz || test -n "$(ls /etc/dpkg/dpkg.cfg.d/ 2>/dev/null)" # images leave manuals out
bash -n /usr/share/bash-completion/completions/hops
zcat /usr/share/doc/hops/third-party-licenses.gz | grep -c '^===='
`+cluster+`
dpkg -i /tmp/*.deb
test -d /var/lib/hops/nn && test -s /etc/hops/secret
dpkg -r hops
! command -v hops
dpkg -P hops
test -d /var/lib/hops/nn && test -s /etc/hops/secret
test ! -e /var/log/hops
echo "data and keys are there after purge"
`)
	for _, want := range []string{"/etc/hops hops:hops 755", "/var/lib/hops hops:hops 711", "/var/log/hops hops:hops 750", "a file went through", "audit", "there after purge"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The rpm is installed with rpm itself, where there is one.
func TestInstalledRPMRuns(t *testing.T) {
	built(t, "*.rpm")
	needs(t, true, "unshare", "rpm", "setpriv", "ip", "chroot")
	out := fresh(t, `
rpm --initdb
rpm -i --nodeps /tmp/*.rpm
rpm -V --nodeps hops
stat -c '%n %U:%G %a' /etc/hops /var/lib/hops /var/log/hops
hops version
`+cluster+`
rpm -e hops
test -d /var/lib/hops/nn
`)
	for _, want := range []string{"/etc/hops hops:hops 755", "/var/lib/hops hops:hops 711", "a file went through"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The archive's and the image's program starts in a root directory that has nothing else.
func TestStaticProgramRunsAlone(t *testing.T) {
	image := built(t, "*-oci-*.tar")
	text, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, text)
	needs(t, true, "chroot", "tar")
	archive := built(t, "*-linux-*.tar.gz")
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", archive, "-C", dir, "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command("chroot", dir, "/hops", "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "hops ") {
		t.Errorf("%v: %s", err, out)
	}
	if err := checkStatic(filepath.Join(dir, "hops")); err != nil {
		t.Error(err)
	}
}

// Lintian finds no error; its warnings are about what Debian's archive wants of an upload.
func TestLintian(t *testing.T) {
	deb := built(t, "*.deb")
	needs(t, false, "lintian")
	out, _ := exec.Command("lintian", "--fail-on", "none", deb).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "E: ") {
			t.Error(strings.TrimSpace(line))
		}
	}
}

// Systemd reads the units without a complaint, with a program and a user that exist.
func TestUnitsPassSystemd(t *testing.T) {
	needs(t, false, "systemd-analyze")
	dir := t.TempDir()
	for _, name := range []string{"hops@.service", "hops@nodemanager.service", "hops.target"} {
		text, err := os.ReadFile("files/" + name)
		if err != nil {
			t.Fatal(err)
		}
		// verify looks whether the program, the page and the user are there
		text = []byte(strings.NewReplacer("/usr/bin/hops", "/bin/true", "man:hops(1)", "man:true(1)", "User=hops", "User=daemon", "Group=hops", "Group=daemon").Replace(string(text)))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, instance := range []string{"hops@namenode.service", "hops@nodemanager.service", "hops.target"} {
		path := filepath.Join(dir, instance)
		if instance == "hops@namenode.service" {
			if err := os.Symlink("hops@.service", path); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput()
		if err != nil || strings.Contains(string(out), dir) || strings.Contains(string(out), "Unknown") {
			t.Errorf("%s: %v\n%s", instance, err, out)
		}
	}
}
