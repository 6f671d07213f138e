package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/token"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// tokenOf is a token of a user's, as a resource manager gives it.
func tokenOf(user string, number int32) *rmpb.Token {
	id := token.Identifier{Owner: user, Renewer: "hdfs", Sequence: number}
	return &rmpb.Token{Identifier: id.Encode(), Password: []byte("hunter2"), Kind: token.Kind}
}

// sequence is the number of the token in a file of credentials, 0 if it cannot be read.
func sequence(file string) int32 {
	all, err := token.Load(file)
	if err != nil {
		return 0
	}
	t, _ := all.For("127.0.0.1:8020")
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return 0
	}
	return id.Sequence
}

// The names under which Hadoop's clients look for a token: those of a single namenode, and of several.
func TestNamesOfATokenInTheFile(t *testing.T) {
	for _, test := range []struct {
		cluster Cluster
		want    []string
	}{
		{Cluster{FS: "hdfs://127.0.0.1:8020", Namenodes: []string{"127.0.0.1:8020"}, WebHDFS: []string{"http://127.0.0.1:9870"}}, []string{
			"HDFS_DELEGATION_TOKEN 127.0.0.1:8020", "WEBHDFS delegation 127.0.0.1:9870", "SWEBHDFS delegation 127.0.0.1:9870",
		}},
		{Cluster{FS: "hdfs://lab", Namenodes: []string{"127.0.0.1:8020", "127.0.0.2:8020"}, WebHDFS: []string{"127.0.0.1:9870"}}, []string{
			"HDFS_DELEGATION_TOKEN ha-hdfs:lab", "HDFS_DELEGATION_TOKEN 127.0.0.1:8020", "HDFS_DELEGATION_TOKEN 127.0.0.2:8020",
			"WEBHDFS delegation 127.0.0.1:9870", "SWEBHDFS delegation 127.0.0.1:9870",
		}},
	} {
		all, err := token.Parse(credentialsOf(&test.cluster, token.Token{Identifier: []byte("id"), Password: []byte("p"), Kind: token.Kind}).Encode())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		aliases := map[string]bool{}
		for _, e := range all {
			got = append(got, e.Token.Kind+" "+e.Token.Service)
			aliases[e.Alias] = true
		}
		if !slices.Equal(got, test.want) || len(aliases) != len(all) { // Java keeps one of each alias
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// tells looks for a text in everything that the node manager keeps and says of a container.
func tells(t *testing.T, n *node, work, text string) {
	t.Helper()
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), text) {
			t.Errorf("%s tells the secret", path)
		}
		return err
	}
	err := filepath.WalkDir(work, look)
	for errors.Is(err, fs.ErrNotExist) { // a file was renamed meanwhile: its new name may have been passed by
		err = filepath.WalkDir(work, look)
	}
	if err != nil {
		t.Error(err)
	}
	for _, page := range []string{"/ws/v1/node/containers", "/ws/v1/node/info", "/ws/v1/node/apps"} {
		if _, body, _ := n.get(page+"?user.name="+me(), ""); strings.Contains(body, text) {
			t.Errorf("%s tells the secret: %s", page, body)
		}
	}
}

const secretScript = `stat -c '%a %n' $HADOOP_TOKEN_FILE_LOCATION; cp $HADOOP_TOKEN_FILE_LOCATION tokens.copy && chmod 600 tokens.copy; rm $HADOOP_TOKEN_FILE_LOCATION 2>/dev/null && echo removed; stat -c '%a %n' $HOPS_SECRETS_DIR/*; test "$(cat $HOPS_SECRETS_DIR/db)" = "hunt""er2" && echo known; env | grep -c hunt""er2; touch $HOPS_SECRETS_DIR/x 2>/dev/null && echo written
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
			m := newManager(t, "")
			work := t.TempDir()
			c := baseConfig(t, work, m.address)
			if test.user != me() {
				c.HTTP.Close()
				c, work = asRoot(t, m)
			}
			c.Isolation, c.Cluster.Namenodes = test.isolation, []string{"127.0.0.1:8020"}
			m.give = func(q *rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
				if q.ContainerId != containerName(1) || !q.Secrets {
					t.Errorf("asked for %v", q)
				}
				return &rmpb.CredentialsResponse{Token: tokenOf(test.user, 7), Secrets: map[string][]byte{"db": []byte("hunter2"), "tls.key": []byte("hunter2 too")}}, nil
			}
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
			if got := sequence(filepath.Join(dir, "work", "tokens.copy")); got != 7 {
				t.Errorf("the container has token %d", got)
			}
			if err := os.Remove(filepath.Join(dir, "work", "tokens.copy")); err != nil {
				t.Error(err)
			}
			removed := "" // what is its own
			if test.user == me() {
				removed = "removed\n"
			}
			want := "400 " + dir + "/credentials/tokens\n" + removed + "400 " + dir + "/secrets/db\n400 " + dir + "/secrets/tls.key\nknown\n0\n0\n"
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

// What the resource manager says when a container's credentials are asked for, and what becomes of the container.
func TestSecretsThatAreNotToBeHad(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	run(t, c)
	for i, test := range []struct {
		err  error
		give map[string][]byte
		want string
	}{
		{status.Error(codes.InvalidArgument, "ann has no secret db: hops secret put db"), nil, "could not be localized: ann has no secret db: hops secret put db"},
		{status.Error(codes.PermissionDenied, "it is no container of machine m3"), nil, "no container of machine m3"},
		{status.Error(codes.NotFound, "it has ended"), nil, "could not be localized: it has ended"},
		{nil, map[string][]byte{"other": []byte("hunter2")}, "the resource manager has not given secret db"},
		{nil, map[string][]byte{"db": []byte("hunter2"), "../token": []byte("hunter2")}, `"../token" is no name of a file`},
	} {
		m.set(func() {
			m.give = func(*rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
				return &rmpb.CredentialsResponse{Secrets: test.give}, test.err
			}
		})
		s := usersSpec(t, i+1, me(), "true")
		s.Secrets = []string{"db"}
		m.start(s)
		got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
		if got.GetExitStatus() >= 0 || !strings.Contains(got.GetDiagnostics(), test.want) || strings.Contains(got.GetDiagnostics(), "hunter2") {
			t.Errorf("%q: %d %q", test.want, got.GetExitStatus(), got.GetDiagnostics())
		}
	}
}

// A container waits, and says for what, until the resource manager has its credentials; those that it has are replaced while it runs, also
// by a node manager that was started again.
func TestCredentialsAreRefreshed(t *testing.T) {
	for i, test := range []struct {
		name, user string
		isolation  Isolation
	}{{"as ourselves", me(), IsolationAny}, {"without namespaces", me(), IsolationOff}, {"as its user", "ann", IsolationAuto}} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			t.Parallel() // it waits most of its time
			m := newManager(t, "")
			work := t.TempDir()
			c := baseConfig(t, work, m.address)
			if test.user != me() {
				c.HTTP.Close()
				c, work = asRoot(t, m)
			}
			c.Isolation, c.Cluster.Namenodes = test.isolation, []string{"127.0.0.1:8020"}
			c.NodeID = nodeName(20 + i)
			refuse := func(*rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
				return nil, status.Error(codes.Unavailable, "the filesystem has given no delegation token for user ann yet")
			}
			number := int32(1)
			give := func(*rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
				m.mu.Lock()
				defer m.mu.Unlock()
				return &rmpb.CredentialsResponse{Token: tokenOf(test.user, number), AgainMs: 20}, nil
			}
			m.set(func() { m.give = refuse })
			n := run(t, c)
			if test.user != me() {
				n.private(t)
			}
			// The file is in memory of the container's own: what it sees is what it copies.
			const copies = `while ! test -e end; do cp $HADOOP_TOKEN_FILE_LOCATION next && chmod 644 next && mv -f next seen; sleep 0.02; done`
			s := usersSpec(t, 1, test.user, copies)
			m.start(s)
			m.until("it says what it waits for", func(r *rmpb.NodeReport) bool {
				st := find(r, s.ContainerId)
				return st.GetState() == rmpb.ContainerStatus_LOCALIZING && strings.Contains(st.GetDiagnostics(), "waits for the resource manager: the filesystem has given no delegation token")
			})
			m.set(func() { m.give = give })
			m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
			dir := filepath.Join(work, "containers", s.ContainerId)
			sees := func(want int32) {
				t.Helper()
				eventually(t, fmt.Sprint("it sees token ", want), func() bool { return sequence(dir+"/work/seen") == want })
			}
			sees(1)
			m.set(func() { number = 2 })
			sees(2)
			n.close(false)
			m.set(func() { number = 3 })
			c.HTTP = baseConfig(t, work).HTTP
			run(t, c)
			sees(3)
			if err := os.WriteFile(dir+"/work/end", nil, 0o644); err != nil {
				t.Fatal(err)
			}
			m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
			m.set(func() { // as that of an application that has ended
				m.give = func(*rmpb.CredentialsRequest) (*rmpb.CredentialsResponse, error) {
					return nil, status.Error(codes.NotFound, "it has ended")
				}
			})
		})
	}
}
