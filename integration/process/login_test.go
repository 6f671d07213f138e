package process

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
)

// A machine that has a login and nothing else of a cluster: the commands and Python's programs find it, and are who the token says.
func TestALoginIsEnough(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.init("namenode,datanode,resourcemanager")
	path := filepath.Join(m.dir, "login")
	m.good("user", "token", "ann", "-c", m.yaml(1), "--out", path)
	good, err := login.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	hops := Hops{T: t, Env: []string{"HOPS_LOGIN=" + path}}
	m.eventually("a datanode", func() error {
		if r := hops.Run("datanode", "list"); r.Status != 0 || !strings.Contains(r.Stdout, "live") {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
	m.superuser("fs", "-mkdir", "/benchmarks")
	m.superuser("fs", "-chmod", "1777", "/benchmarks")
	for _, c := range []struct {
		name  string
		stdin string
		args  []string
		want  string
	}{
		{"the doctor", "", []string{"doctor"}, "ok    filesystem         writable"},
		{"a benchmark", "", []string{"bench", "meta", "--time", "20ms", "--outstanding", "2", "--connections", "1"}, "mkdir"},
		{"the states of the namenodes", "", []string{"haadmin", "-getServiceState", "nn1"}, "active"},
		{"a file", "of ann\n", []string{"fs", "-put", "-", "/tmp/f"}, ""},
		{"its completion", "", []string{"fs", "-cat", "/tmp/", "--generate-bash-completion"}, "/tmp/f\n"},
		{"completion of jobs", "", []string{"job", "status", "", "--generate-bash-completion"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := hops.Input(c.stdin, c.args...); r.Status != 0 && c.name != "the doctor" || // which misses a node manager
				!strings.Contains(r.Stdout, c.want) {
				t.Errorf("%d\n%s%s", r.Status, r.Stdout, r.Stderr)
			}
		})
	}

	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	sources, err := filepath.Abs("../../client/python")
	if err != nil {
		t.Fatal(err)
	}
	// script runs a program and returns the last line of what it says.
	script := func(t *testing.T, program string, env ...string) string {
		t.Helper()
		cmd := exec.Command(python, "-c", program)
		cmd.Env = Environ(t, "", append([]string{"PYTHONPATH=" + sources, "PYTHONDONTWRITEBYTECODE=1", "HOME=" + t.TempDir()}, env...)...)
		out, _ := cmd.CombinedOutput() // what it says tells how it ended
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		return string(lines[len(lines)-1])
	}
	const files = "from hops import hdfs\nhdfs.dump('by TLS', '/tmp/p'); print(hdfs.load('/tmp/p'), hdfs.stat('/tmp/p')['owner'], hdfs.load('/tmp/f'))"
	if said := script(t, files, "HOPS_LOGIN="+path); said != `b'by TLS' ann b'of ann\n'` {
		t.Errorf("Python's files: %s", said)
	}
	const jobs = "from hops import _jobs\nprint(_jobs.Jobs().call('GET', '/api/v1/jobs'))"
	if said := script(t, jobs, "HOPS_LOGIN="+path); !strings.HasPrefix(said, "(200, ") {
		t.Errorf("Python's jobs: %s", said)
	}

	// What a container has: a delegation token, and the authorities' certificates. That the servers are elsewhere is made up.
	tokens, roots := filepath.Join(m.dir, "tokens"), filepath.Join(m.dir, "authority.pem")
	m.superuser("fetchdt", "--renewer", "nobody", tokens)
	if err := os.WriteFile(roots, []byte(good.Authorities), 0o600); err != nil {
		t.Fatal(err)
	}
	inside := []string{
		"HOPS_CONTAINER_ID=container_1_0001_01_000002", "HOPS_WEBHDFS=" + good.Namenodes[0].HTTP, "HOPS_FS=hdfs://" + good.Namenodes[0].IPC,
		"HOPS_AUTHORITY=" + roots, "HADOOP_TOKEN_FILE_LOCATION=" + tokens,
	}
	const elsewhere = "from hops import _login, hdfs\n_login.here = lambda remote, local: False\n"
	const checkpoint = elsewhere + "hdfs.dump('kept', '/tmp/c'); hdfs.rename('/tmp/c', '/tmp/d'); print(hdfs.load('/tmp/d'), hdfs.stat('/tmp/d')['owner'] == hdfs.project_user())"
	if said := script(t, checkpoint, inside...); said != "b'kept' True" {
		t.Errorf("a container's files: %s", said)
	}
	m.superuser("fetchdt", "--cancel", tokens)
	if said := script(t, elsewhere+"hdfs.load('/tmp/d')", inside...); !strings.Contains(said, "InvalidToken: ") || !strings.Contains(said, "it was cancelled, has expired") {
		t.Errorf("a token that was cancelled: %s", said)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(m.dir, "home")
	if err := good.Write(filepath.Join(home, ".hops", "login")); err != nil {
		t.Fatal(err)
	}
	if said := script(t, files, "HOME="+home); !strings.Contains(said, "ann") {
		t.Errorf("the login of the home directory: %s", said)
	}
	credentials, foreign, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	datanode, err := securitytest.Join(foreign, credentials.Secret, authority.Datanode)
	if err != nil {
		t.Fatal(err)
	}
	wrong := serveTLS(t, datanode.Member)
	of := func(namenode string) string { // a login for the other cluster
		f := *good
		f.Cluster, f.Authorities, f.Namenodes = foreign.Cluster(), string(authority.MarshalRoots([]*x509.Certificate{foreign.Root()})), []login.Namenode{{HTTP: namenode, IPC: namenode}}
		text, err := f.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	replace := func(old, new string) string {
		if !strings.Contains(string(text), old) {
			t.Fatalf("%s is not in %s", old, text)
		}
		return strings.Replace(string(text), old, new, 1)
	}
	namenode := good.Namenodes[0].HTTP
	expires, err := good.Expires.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"half of it", string(text[:len(text)/2]), 0o600, "it is cut off: run `hops login` again"},
		{"without its last bracket", strings.TrimSuffix(string(text), "}\n"), 0o600, "it is cut off: run `hops login` again"},
		{"nothing", "", 0o600, "it is cut off: run `hops login` again"},
		{"twice", string(text) + string(text), 0o600, "something follows its end"},
		{"Hadoop's", "<configuration/>", 0o600, "it is not a login"},
		{"another version", replace(`"version": 1`, `"version": 2`), 0o600, "it has version 2, this program reads version 1"},
		{"no certificate", replace("BEGIN CERT", "BEGIN DIRT"), 0o600, "the certificates of the cluster's authorities"},
		{"another cluster's certificate", replace(`"cluster": "CID-`, `"cluster": "DIC-`), 0o600, "and its certificates are of hops://" + good.Cluster},
		{"no port", replace(namenode, "nn1"), 0o600, "'nn1' is not host:port"},
		{"a token with the end of a line", replace(good.Token, `a\r\nX: y`), 0o600, "characters that no token has"},
		{"a time that is none", replace(string(expires), "soon"), 0o600, "no time as in RFC 3339"},
		{"expired", replace(string(expires), "2020-01-01T00:00:00Z"), 0o600, "your login expired at 2020-01-01 00:00:00: run `hops login` again"},
		{"readable by others", string(text), 0o640, "has mode 0640 and others could read the token: chmod 600 it"},
		{"more than is allowed", string(text) + strings.Repeat(" ", 256<<10), 0o600, "more than the 262144 bytes that are allowed"},
		{"a forged token", replace(good.Token, good.Token[:len(good.Token)-4]+"AAAA"), 0o600, "its signature is wrong: it was changed, or is forged"},
		{"a server of another cluster", of(namenode), 0o600, "shows no certificate of cluster " + foreign.Cluster() + " that is good"},
		{"a datanode in place of a namenode", of(wrong), 0o600, "is no namenode of cluster " + foreign.Cluster() + ": its certificate does not allow that role"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "login")
			if err := os.WriteFile(bad, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			if said := script(t, files, "HOPS_LOGIN="+bad); !strings.Contains(said, c.want) {
				t.Errorf("%s; want %s", said, c.want)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		if said := script(t, files, "HOPS_LOGIN="+path+"-"); !strings.Contains(said, "and no file is there") {
			t.Error(said)
		}
	})
	t.Run("a revoked token", func(t *testing.T) {
		m.good("user", "revoke", good.ID, "-c", m.yaml(1))
		m.eventually("it is refused", func() error {
			if said := script(t, files, "HOPS_LOGIN="+path); !strings.Contains(said, "revoked") {
				return errors.New(said)
			}
			return nil
		})
	})
}

// superuser runs a command as who made the cluster, on its first machine.
func (m *machines) superuser(args ...string) string {
	m.t.Helper()
	return Hops{T: m.t, Conf: filepath.Join(m.etc(1), "conf")}.OK(args...)
}

// serveTLS accepts connections as a member of a cluster, and answers nothing.
func serveTLS(t *testing.T, m *authority.Member) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if t, err := m.Accept(context.Background(), c, authority.Door{Strangers: true}); err == nil {
				t.Close()
			}
		}
	}()
	return l.Addr().String()
}

// A user's certificate, as curl shows it: it counts in place of who runs curl, ends when it is revoked, and gets nothing that lasts longer.
func TestAUserHasACertificate(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl")
	}
	m := newMachines(t)
	m.init("namenode")
	own, known := filepath.Join(m.dir, "ann.pem"), filepath.Join(m.dir, "ca.pem")
	make := []string{"user", "certificate", "-c", m.yaml(1), "--out", own, "--authorities", known}
	m.good(append(make, "ann")...)
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	ask := func(path string, options ...string) string {
		t.Helper()
		args := append([]string{"-sS", "--max-time", "30", "--cacert", known, "--cert", own, "-w", " %{http_code}"}, options...)
		out, _ := exec.Command(curl, append(args, "https://"+m.address(1)+":9870"+path)...).CombinedOutput() // what it says tells how it ended
		return string(out)
	}
	for name, c := range map[string]struct {
		path, want string
		options    []string
	}{
		"who it is":                    {path: "/api/v1/whoami", want: `"user":"ann"`},
		"how that is known":            {path: "/api/v1/whoami", want: `"proved_by":"certificate"`},
		"a request of WebHDFS":         {path: "/webhdfs/v1/?op=GETHOMEDIRECTORY", want: "/user/ann"},
		"another name":                 {path: "/webhdfs/v1/?op=GETHOMEDIRECTORY&user.name=root", want: "user ann may not act as root"},
		"for somebody else":            {path: "/webhdfs/v1/?op=GETHOMEDIRECTORY&doas=root", want: "not allowed to impersonate"},
		"another certificate":          {path: "/api/v1/user-certificates", options: []string{"-d", "{}"}, want: "a certificate gets no other certificate"},
		"one for somebody else":        {path: "/api/v1/user-certificates", options: []string{"-d", `{"user":"bob"}`}, want: "is not a superuser, and gets a certificate for nobody else"},
		"a token, to last longer":      {path: "/api/v1/user-tokens", options: []string{"-d", "{}"}, want: "a certificate gets no other token"},
		"a token to join with":         {path: "/api/v1/cluster/tokens?roles=datanode&ttl=1h&uses=1", options: []string{"-X", "POST"}, want: "not a superuser"},
		"the list of those of others":  {path: "/api/v1/user-tokens", want: `"user":"ann"`},
		"the same, as a token":         {path: "/api/v1/whoami", options: []string{"-H", "Authorization: Bearer x"}, want: "401"},
		"a route of servers' machines": {path: "/api/v1/cluster/machines", want: "not a superuser"},
	} {
		t.Run(name, func(t *testing.T) {
			if said := ask(c.path, c.options...); !strings.Contains(said, c.want) {
				t.Errorf("%s; want %s", said, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		more   []string
		status int
		want   string
	}{
		"for a year":                         {[]string{"--life", "8760h", "ann"}, 2, "for 1m to 720h0m0s, not for 8760h0m0s"},
		"for nobody":                         {[]string{"dr.who"}, 2, "is nobody"},
		"of a name that is none":             {[]string{"a/b"}, 2, "is no name"},
		"of another user, by a user":         {[]string{"--user", "ann", "bob"}, 4, "is not a superuser, and gets a certificate for nobody else"},
		"of two":                             {[]string{"ann", "bob"}, 2, "give one NAME"},
		"into a directory that is not there": {[]string{"--out", filepath.Join(m.dir, "none", "x"), "ann"}, 1, "no such file or directory"},
	} {
		t.Run("one "+name, func(t *testing.T) {
			if r := m.run(append(slices.Clone(make), c.more...)...); r.Status != c.status || !strings.Contains(r.Stderr, c.want) {
				t.Errorf("%d %s", r.Status, r.Stderr)
			}
		})
	}
	listed := m.good("user", "tokens", "-c", m.yaml(1))
	if n := strings.Count(listed, " ann "); n != 1 {
		t.Errorf("requests that failed have left certificates:\n%s", listed)
	}
	var id string
	for line := range strings.Lines(listed) {
		if strings.Contains(line, "certificate") && strings.Contains(line, " ann ") {
			id = strings.Fields(line)[0]
			break
		}
	}
	if id == "" {
		t.Fatal(listed)
	}
	m.good("user", "revoke", id, "-c", m.yaml(1))
	m.eventually("it is refused", func() error {
		if said := ask("/api/v1/whoami"); !strings.Contains(said, "the certificate was revoked: "+id+" of user ann") || !strings.Contains(said, "403") {
			return errors.New(said)
		}
		return nil
	})
	m.eventually("it stays so over a restart", func() error {
		text, err := os.ReadFile(filepath.Join(m.etc(1), "servers.yaml"))
		if err == nil && !strings.Contains(string(text), id) {
			err = errors.New(string(text))
		}
		return err
	})
}
