package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/jobsecret"
	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// seal puts a secret into a filesystem as the resource manager does.
func seal(t *testing.T, f *memoryFS, user, name, text string) {
	t.Helper()
	sealed, err := jobsecret.Seal(credentials, user, name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	f.put(jobsecret.Dir(user)+"/"+name, string(sealed))
}

// tells looks for a text in everything that the node manager keeps and says of a container.
func tells(t *testing.T, n *node, work, text string) {
	t.Helper()
	err := filepath.WalkDir(work, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if content, err := os.ReadFile(path); err != nil || strings.Contains(string(content), text) {
			t.Errorf("%s tells the secret, %v", path, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, page := range []string{"/ws/v1/node/containers", "/ws/v1/node/info", "/ws/v1/node/apps"} {
		if _, body, _ := n.get(page+"?user.name="+me(), ""); strings.Contains(body, text) {
			t.Errorf("%s tells the secret: %s", page, body)
		}
	}
}

const secretScript = `stat -c '%a %n' $HOPS_SECRETS_DIR/*; test "$(cat $HOPS_SECRETS_DIR/db)" = "hunt""er2" && echo known; env | grep -c hunt""er2; touch $HOPS_SECRETS_DIR/x 2>/dev/null && echo written
	tr '\0' '\n' < /proc/self/environ | grep -c hunt""er2; echo > up; while ! test -e end; do sleep 0.05; done`

func TestSecretsOfAJob(t *testing.T) {
	for _, test := range []struct {
		name, user string
		isolation  Isolation
	}{
		{"as ourselves", me(), IsolationAny},
		{"as ourselves, confined", me(), IsolationAuto},
		{"without namespaces", me(), IsolationOff},
		{"as its user", "ann", IsolationAuto},
	} {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(test.name), func(t *testing.T) {
			m, memory := newManager(t, ""), newMemoryFS()
			work := t.TempDir()
			c := baseConfig(t, work, m.address)
			if test.user != me() {
				c.HTTP.Close()
				c, work = asRoot(t, m)
			}
			c.Isolation = test.isolation
			c.FS = func(string) (Filesystem, error) { return memory, nil }
			seal(t, memory, test.user, "db", "hunter2")
			seal(t, memory, test.user, "tls.key", "hunter2 too")
			n := run(t, c)
			<-n.Ready()
			if test.user != me() {
				n.private(t)
			}
			s := usersSpec(t, 1, test.user, secretScript)
			s.Secrets = []string{"db", "tls.key"}
			m.start(s)
			m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
			dir := filepath.Join(work, "containers", s.ContainerId)
			eventually(t, "it has looked", func() bool { _, err := os.Stat(dir + "/work/up"); return err == nil })
			want := "400 " + dir + "/secrets/db\n400 " + dir + "/secrets/tls.key\nknown\n0\n0\n"
			onDisk := test.isolation == IsolationOff || n.protection.exposed != "" && test.user == me()
			if onDisk { // it may write into a directory of its own user
				want = strings.Replace(want, "known\n0\n", "known\n0\nwritten\n", 1)
			} else {
				tells(t, n, work, "hunter2") // while it runs too
			}
			if got := output(t, work, s.ContainerId); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			if err := os.WriteFile(dir+"/work/end", nil, 0o644); err != nil {
				t.Fatal(err)
			}
			m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
			tells(t, n, work, "hunter2")
		})
	}
}

func TestSecretsThatAreNotToBeHad(t *testing.T) {
	m, memory := newManager(t, ""), newMemoryFS()
	work := t.TempDir()
	c := baseConfig(t, work, m.address)
	c.FS = func(string) (Filesystem, error) { return memory, nil }
	seal(t, memory, me(), "db", "hunter2")
	sealed := memory.get(jobsecret.Dir(me()) + "/db")
	memory.put(jobsecret.Dir(me())+"/renamed", sealed)
	memory.put(jobsecret.Dir(me())+"/plain", "hunter2")
	memory.put(jobsecret.Dir("eve")+"/db", sealed)
	run(t, c)
	for i, test := range []struct{ user, secret, want string }{
		{me(), "missing", me() + " has no secret missing: hops secret put missing"},
		{me(), "renamed", "secret renamed: it was changed, or moved here, or sealed by another cluster: put it again"},
		{me(), "plain", "secret plain: it was changed"},
		{"eve", "db", "secret db: it was changed, or moved here"},
		{me(), "../eve/db", "is no name of a secret"},
	} {
		s := usersSpec(t, i+1, test.user, "true")
		s.Secrets = []string{test.secret}
		m.start(s)
		got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		if got.GetExitStatus() != int32(nodemanager.Invalid) || !strings.Contains(got.GetDiagnostics(), test.want) || strings.Contains(got.GetDiagnostics(), "hunter2") {
			t.Errorf("%+v: %d %q", test, got.GetExitStatus(), got.GetDiagnostics())
		}
	}
}
