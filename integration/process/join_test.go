package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/metadata/raftstore"
)

// machines are machines of one cluster: each has an address of loopback of its own, and directories.
type machines struct {
	t   *testing.T
	dir string
	net string // 127.x.y.
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{t: t, dir: Dir(t), net: fmt.Sprintf("127.%d.%d.", 64+rand.N(128), rand.N(256))}
	t.Cleanup(func() {
		for _, pid := range m.pids("") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		m.eventually("the end of all servers", func() error {
			if left := m.pids(""); len(left) > 0 {
				return fmt.Errorf("%v run", left)
			}
			return nil
		})
	})
	return m
}

func (m *machines) etc(n int) string     { return filepath.Join(m.dir, fmt.Sprint("m", n), "etc") }
func (m *machines) yaml(n int) string    { return filepath.Join(m.etc(n), "hops.yaml") }
func (m *machines) address(n int) string { return m.net + fmt.Sprint(n) }
func (m *machines) pids(below string) []int {
	return processes.Find("", filepath.Join(m.dir, below)+"/")
}

func (m *machines) log(n int, role string) string {
	text, _ := os.ReadFile(filepath.Join(m.dir, fmt.Sprint("m", n), "data", "logs", role+".log"))
	return string(text)
}

func (m *machines) run(args ...string) Result {
	m.t.Helper()
	return Hops{T: m.t, Timeout: 5 * time.Minute}.Run(args...)
}

// good runs a command that must succeed.
func (m *machines) good(args ...string) string {
	m.t.Helper()
	r := m.run(args...)
	if r.Status != 0 {
		m.t.Fatalf("hops %s: %d\n%s%s", strings.Join(args, " "), r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// place are the options that say which machine it is.
func (m *machines) place(n int) []string {
	return []string{"--machine", fmt.Sprint("m", n), "--address", m.address(n), "--dir", m.etc(n), "--data", filepath.Join(m.dir, fmt.Sprint("m", n), "data"), "--gpus", "none"}
}

func (m *machines) init(roles string) (token string) {
	m.t.Helper()
	out := m.good(append([]string{"cluster", "init", "--name", "lab", "--roles", roles}, m.place(1)...)...)
	_, line, _ := strings.Cut(out, "hops join "+m.address(1)+":8486 --token ")
	if line == "" {
		m.t.Fatalf("init does not say how to join:\n%s", out)
	}
	return strings.TrimSpace(line)
}

func (m *machines) token(options ...string) string {
	m.t.Helper()
	var token struct{ Token string }
	out := m.good(append([]string{"cluster", "token", "-c", m.yaml(1), "-o", "json"}, options...)...)
	if err := json.Unmarshal([]byte(out), &token); err != nil {
		m.t.Fatal(err)
	}
	return token.Token
}

func (m *machines) join(n int, token string, options ...string) Result {
	m.t.Helper()
	args := append([]string{"join", m.address(1) + ":8486", "--token", token}, m.place(n)...)
	return m.run(append(args, options...)...)
}

// joined has a machine join a cluster of several namenodes. Where their lead is lost while they give it its vote it says so, and the same command goes on.
func (m *machines) joined(n int, token, roles string) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("m%d joins", n), func() error {
		r := m.join(n, token, "--roles", roles)
		if r.Status != 0 && !strings.Contains(r.Stderr, raftstore.ErrUnknown.Error()) {
			m.t.Fatalf("m%d: %d\n%s%s", n, r.Status, r.Stdout, r.Stderr)
		}
		if r.Status != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}

func (m *machines) eventually(what string, check func() error) {
	m.t.Helper()
	var err error
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	m.t.Fatalf("%s: %v", what, err)
}

// lead has a machine lead a group of three voters, as often as that takes: on a busy machine a handover takes longer than an election may.
func (m *machines) lead(role, id string) {
	m.t.Helper()
	m.eventually(id+" leads the "+role+"s", func() error {
		var rows []struct {
			ID, State string
			Voter     bool
		}
		r := m.run(role, "list", "-c", m.yaml(1), "-o", "json")
		err := json.Unmarshal([]byte(r.Stdout), &rows)
		leads, voters := "", 0
		for _, row := range rows {
			if row.State == "active" {
				leads = row.ID
			}
			if row.Voter {
				voters++
			}
		}
		switch {
		case err != nil || voters != 3:
			return fmt.Errorf("%d of 3 vote: %s%s", voters, r.Stdout, r.Stderr)
		case leads != id:
			r := m.run("cluster", "transfer", "-c", m.yaml(1), role, id)
			return fmt.Errorf("%q leads; transferred: %s%s", leads, r.Stdout, r.Stderr)
		}
		return nil
	})
}

// alone is a configuration like machine n's whose list has one namenode.
func (m *machines) alone(n int, id string) string {
	m.t.Helper()
	dir := filepath.Join(m.dir, "alone")
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	servers, err := config.LoadServers(filepath.Join(m.etc(n), "servers.yaml"))
	if err != nil {
		m.t.Fatal(err)
	}
	servers.Namenodes = slices.DeleteFunc(servers.Namenodes, func(other config.NamenodeMember) bool { return other.ID != id })
	list := filepath.Join(dir, "servers.yaml")
	if err := servers.Write(list); err != nil {
		m.t.Fatal(err)
	}
	text, err := os.ReadFile(m.yaml(n))
	if err != nil {
		m.t.Fatal(err)
	}
	path := filepath.Join(dir, "hops.yaml")
	if err := os.WriteFile(path, bytes.Replace(text, []byte("cluster:\n"), fmt.Appendf(nil, "cluster:\n  servers: %q\n", list), 1), 0o644); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// Three commands make a cluster of three machines; one of them is removed, and comes back with a new token.
func TestThreeCommandsMakeACluster(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	token := m.init("namenode,datanode,resourcemanager,nodemanager")
	if _, err := os.Stat(filepath.Join(m.etc(1), "authority.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the authority's key lies in a file: %v", err)
	}
	for n := 2; n <= 3; n++ {
		if r := m.join(n, token, "--roles", "datanode"); r.Status != 0 || !strings.Contains(r.Stdout, fmt.Sprintf("m%d is in cluster lab: ready in ", n)) {
			t.Fatalf("m%d: %d\n%s%s", n, r.Status, r.Stdout, r.Stderr)
		}
		if _, err := os.Stat(filepath.Join(m.etc(n), "secret")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a datanode has the namenodes' secret: %v", err)
		}
	}
	files := Hops{T: t, Conf: filepath.Join(m.etc(3), "conf")}
	if r := files.Input(onDatanodes, "fs", "-put", "-", "/f"); r.Status != 0 {
		t.Fatal(r.Stderr)
	}
	if r := files.Run("fs", "-cat", "/f"); r.Stdout != onDatanodes {
		t.Fatal(len(r.Stdout), r.Stderr)
	}

	if r := m.run(append([]string{"cluster", "init"}, m.place(1)...)...); r.Status == 0 || !strings.Contains(r.Stderr, "this machine is in a cluster already") {
		t.Errorf("a second init: %d %s", r.Status, r.Stderr)
	}

	m.takeOutOfService(files)
	m.good("cluster", "remove", "-c", m.yaml(1), "m3")
	m.eventually("the datanode of the removed machine says what to do", func() error {
		if log := m.log(3, "datanode"); !strings.Contains(log, "this machine was removed from the cluster") || !strings.Contains(log, "join with a new token") {
			return errors.New(log)
		}
		return nil
	})
	m.eventually("the others hear of it", func() error {
		text, err := os.ReadFile(filepath.Join(m.etc(2), "servers.yaml"))
		if err == nil && !strings.Contains(string(text), "m3: 1") {
			err = errors.New(string(text))
		}
		return err
	})
	if r := m.join(3, token, "--roles", "datanode"); r.Status == 0 || !strings.Contains(r.Stderr, "in a cluster already") {
		t.Errorf("joining again over the old files: %d %s", r.Status, r.Stderr)
	}
	for _, pid := range m.pids("m3") {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	m.eventually("the removed machine's servers end", func() error {
		if left := m.pids("m3"); len(left) > 0 {
			return fmt.Errorf("%v run", left)
		}
		return nil
	})
	for _, name := range []string{"hops.yaml", "identity.pem", "servers.yaml"} {
		if err := os.Remove(filepath.Join(m.etc(3), name)); err != nil {
			t.Fatal(err)
		}
	}
	if r := m.join(3, token, "--roles", "datanode"); r.Status != 0 {
		t.Errorf("with its data, and a token: %d %s", r.Status, r.Stderr)
	}
	m.rotate()
}

// rotate replaces the authority while everything runs.
func (m *machines) rotate() {
	m.t.Helper()
	root := func(n int) string {
		i, err := authority.LoadIdentity(filepath.Join(m.etc(n), "identity.pem"))
		if err != nil {
			m.t.Fatal(err)
		}
		if len(i.Roots) != 1 {
			return ""
		}
		return authority.FingerprintOf(i.Roots[0]).String()
	}
	before := root(1)
	userLogin := filepath.Join(m.dir, "login")
	m.good("user", "token", "ann", "-c", m.yaml(1), "--out", userLogin)
	known := filepath.Join(m.dir, "known.pem") // as a curl of somebody's has it
	if err := os.WriteFile(known, m.roots(1), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.good("cluster", "rotate", "-c", m.yaml(1))
	m.eventually("all machines have the new authority alone", func() error {
		for n := 1; n <= 3; n++ {
			if now := root(n); now == "" || now == before || now != root(1) {
				return fmt.Errorf("m%d has %q, m1 %q; it was %q", n, now, root(1), before)
			}
		}
		return nil
	})
	for who, files := range map[string]Hops{
		"a server's machine": {T: m.t, Conf: filepath.Join(m.etc(3), "conf")}, "a login from before": {T: m.t, Env: []string{"HOPS_LOGIN=" + userLogin}},
	} {
		if r := files.Run("fs", "-cat", "/f"); r.Stdout != onDatanodes {
			m.t.Error(who, r.Stdout, r.Stderr)
		}
	}
	m.afterRotation(userLogin, known)
	for n := 1; n <= 3; n++ {
		if log := m.log(n, "datanode"); strings.Contains(log, "nobody speaks to it") && n != 3 {
			m.t.Errorf("m%d was without its cluster:\n%s", n, log)
		}
	}
}

// roots are the authorities that a machine trusts, in PEM.
func (m *machines) roots(n int) []byte {
	m.t.Helper()
	i, err := authority.LoadIdentity(filepath.Join(m.etc(n), "identity.pem"))
	if err != nil {
		m.t.Fatal(err)
	}
	return authority.MarshalRoots(i.Roots)
}

// afterRotation makes sure that clients that are not Go's still know the servers, and that a login that is made anew knows the new
// authority alone.
func (m *machines) afterRotation(path, known string) {
	m.t.Helper()
	old, err := login.Load(path)
	if err != nil {
		m.t.Fatal(err)
	}
	if curl, err := exec.LookPath("curl"); err == nil {
		// The address is one of loopback, so that whether it is the cluster's is all that curl looks at.
		if out, err := exec.Command(curl, "-sS", "--max-time", "30", "--cacert", known, "https://"+m.address(1)+":9870/readyz").CombinedOutput(); err != nil {
			m.t.Errorf("curl: %v: %s", err, out)
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		sources, err := filepath.Abs("../../client/python")
		if err != nil {
			m.t.Fatal(err)
		}
		cmd := exec.Command(python, "-c", "from hops import hdfs\nprint(hdfs.load('/f'))")
		cmd.Env = Environ(m.t, "", "PYTHONPATH="+sources, "PYTHONDONTWRITEBYTECODE=1", "HOPS_LOGIN="+path)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "on datanodes") {
			m.t.Errorf("Python: %v: %s", err, out)
		}
	}
	token := filepath.Join(m.dir, "token")
	if err := os.WriteFile(token, []byte(old.Token), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if r := (Hops{T: m.t, Env: []string{"HOPS_LOGIN=" + path}}).Run("login", "--token", token); r.Status != 0 {
		m.t.Fatal(r.Stderr)
	}
	renewed, err := login.Load(path)
	if err != nil {
		m.t.Fatal(err)
	}
	if renewed.Authorities != string(m.roots(1)) || renewed.Authorities == old.Authorities {
		m.t.Errorf("a login that was made anew knows\n%s", renewed.Authorities)
	}
	if out := m.good("cluster", "nodes", "-c", m.yaml(1)); !strings.Contains(out, "authority sha256:") {
		m.t.Error(out)
	}
}

// takeOutOfService does with machines, by their names, what operators do before they take one out, and has queues read anew.
func (m *machines) takeOutOfService(files Hops) {
	t := m.t
	t.Helper()
	service := func(option string, names ...string) {
		t.Helper()
		if r := files.Run(append([]string{"dfsadmin", option}, names...)...); r.Status != 0 {
			t.Fatalf("dfsadmin %s %v: %d %s", option, names, r.Status, r.Stderr)
		}
	}
	service("-decommission", "m1", "m2") // so that the next file is on m3 alone
	m.eventually("both to leave", func() error {
		if r := files.Run("dfsadmin", "-report", "-decommissioning"); !strings.Contains(r.Stdout, "Decommissioning datanodes (2)") {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
	if r := files.Input(onDatanodes, "fs", "-D", "dfs.replication=1", "-put", "-", "/only"); r.Status != 0 {
		t.Fatal(r.Stderr)
	}
	if r := m.run("cluster", "remove", "-c", m.yaml(1), "m3"); r.Status != 1 || !strings.Contains(r.Stdout, "m3: datanode ") ||
		!strings.Contains(r.Stderr, "m3 has 1 blocks that no other living datanode has, and they would be lost") {
		t.Errorf("removal of the only replica: %d %s %s", r.Status, r.Stdout, r.Stderr)
	}
	service("-recommission", "m1", "m2")
	if r := files.Run("fs", "-rm", "-skipTrash", "/only"); r.Status != 0 {
		t.Fatal(r.Stderr)
	}

	rmadmin := func(args ...string) Result { return m.run(append([]string{"rmadmin", "-c", m.yaml(1)}, args...)...) }
	state := func(want string) {
		t.Helper()
		m.eventually("the node to be "+want, func() error {
			r := files.Run("node", "-list", "-all")
			if !strings.Contains(r.Stdout, "\t"+fmt.Sprintf("%15s", want)+"\t") {
				return errors.New(r.Stdout + r.Stderr)
			}
			return nil
		})
	}
	if r := rmadmin("-decommission", "m1", "--timeout", "1h"); r.Status != 0 || !strings.Contains(r.Stdout, "is being decommissioned") {
		t.Errorf("rmadmin -decommission: %d %s%s", r.Status, r.Stdout, r.Stderr)
	}
	state("DECOMMISSIONED")
	if r := rmadmin("-recommission", "m1"); r.Status != 0 {
		t.Errorf("rmadmin -recommission: %d %s", r.Status, r.Stderr)
	}
	state("RUNNING")
	for _, row := range []struct {
		args   []string
		status int
		words  string
	}{
		{[]string{"-decommission", "m9"}, 255, `decommission: no node "m9": give a machine's name`},
		{[]string{"-getServiceState", "m1"}, 255, "Cannot run -getServiceState when ResourceManager HA is not enabled"},
		{[]string{"-replaceLabelsOnNode", "m1=x"}, 255, "Not all labels being replaced contained by known label collections, please check, new labels=[x]"},
		{[]string{"-explode"}, 255, "explode: Unknown command"},
		{[]string{"-refreshNodes", "-g", "soon", "-server"}, 255, "refreshNodes: Invalid timeout specified : soon"},
		{[]string{"-refreshNodes", "-g", "60"}, 255, "Usage: yarn rmadmin [-refreshNodes"},
		{[]string{"-refreshNodes", "-g", "60", "-client"}, 0, "Graceful decommissioning completed in 0 seconds."},
		{[]string{"-updateNodeResource", "m1", "1", "1"}, 255, "updateNodeResource: Invalid NodeId [m1]. Expected host:port"},
		{[]string{"-updateNodeResource", "m1:1", "-1", "1"}, 255, "updateNodeResource: Invalid resource value: (-1,1) for updateNodeResource."},
		{[]string{"-getGroups", "nobody-of-that-name"}, 0, "nobody-of-that-name :"},
		{[]string{"-refreshUserToGroupsMappings"}, 0, ""},
		{[]string{"-refreshSuperUserGroupsConfiguration"}, 0, ""},
		{[]string{"-refreshAdminAcls"}, 0, ""},
	} {
		if r := rmadmin(row.args...); r.Status != row.status || !strings.Contains(r.Stdout+r.Stderr, row.words) {
			t.Errorf("rmadmin %v: %d %s%s, want %d %s", row.args, r.Status, r.Stdout, r.Stderr, row.status, row.words)
		}
	}

	text, err := os.ReadFile(m.yaml(1))
	if err != nil {
		t.Fatal(err)
	}
	write := func(from, to string) {
		t.Helper()
		if err := os.WriteFile(m.yaml(1), []byte(strings.Replace(string(text), from, to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("default: {capacity: 100%}", "default: {capacity: 90%}")
	if r := rmadmin("-refreshQueues"); r.Status != 255 || !strings.Contains(r.Stderr, "add up to 90%, not 100%") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("bad queues: %d %s", r.Status, r.Stderr)
	}
	write("default: {capacity: 100%}", "default: {capacity: 60%}, night: {capacity: 40%}")
	if r := rmadmin("-refreshQueues"); r.Status != 0 {
		t.Errorf("good queues: %d %s", r.Status, r.Stderr)
	}
	answer, err := http.Get("http://" + m.address(1) + ":8088/api/v1/queues")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if queues, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(queues), "root.night") {
		t.Errorf("the new queues: %s %v", queues, err)
	}
	write("", "")
	if r := rmadmin("-refreshQueues"); r.Status != 0 {
		t.Errorf("the first queues again: %d %s", r.Status, r.Stderr)
	}
}

// A namenode joins the group of namenodes, which then works without the first one's lead.
func TestANamenodeJoinsTheGroup(t *testing.T) {
	m := newMachines(t)
	m.init("namenode,datanode")
	for n := 2; n <= 3; n++ {
		m.joined(n, m.token("--roles", "namenode"), "namenode")
	}
	m.lead("namenode", "m2")
	// Who joins at a namenode that does not lead is sent to the one that does.
	m.joined(4, m.token("--roles", "datanode"), "datanode")
	// The command knows m2 alone: on a busy machine another one may have been elected since, and that would do it.
	alone := m.alone(4, "m2")
	m.eventually("the machine that leads does not remove itself", func() error {
		m.lead("namenode", "m2")
		r := m.run("cluster", "remove", "-c", alone, "m2")
		if r.Status == 0 {
			t.Fatal("m2 has removed itself")
		}
		if !strings.Contains(r.Stderr, "hand that over first") {
			return errors.New(r.Stderr)
		}
		return nil
	})
	m.eventually("another one is removed", func() error {
		r := m.run("cluster", "remove", "-c", m.yaml(1), "m3")
		switch {
		case r.Status == 0:
			return nil
		case strings.Contains(r.Stderr, "hand that over first"):
			m.lead("namenode", "m2")
		}
		return errors.New(r.Stderr)
	})
	m.eventually("its vote goes, too", func() error {
		if r := m.run("namenode", "list", "-c", m.yaml(1), "-o", "json"); strings.Contains(r.Stdout, `"id":"m3"`) {
			return errors.New(r.Stdout)
		}
		return nil
	})
}

// What a machine that joins can have wrong: one line each, which says what to do.
func TestWhoIsNotLetJoin(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	token := m.init("namenode")
	expired, used := m.token("--ttl", "1ms"), m.token("--roles", "datanode")
	if r := m.join(2, used, "--roles", "datanode"); r.Status != 0 {
		t.Fatal(r.Stderr)
	}
	fresh, anything := m.token("--uses", "50"), m.token("--roles", "nodemanager")
	guessed := []byte(fresh)
	if i := len(guessed) - 3; guessed[i] != 'A' {
		guessed[i] = 'A'
	} else {
		guessed[i] = 'B'
	}
	a, err := authority.New("CID-other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign, _ := authority.NewInvitation(authority.FingerprintOf(a.Root()), authority.Roles, time.Now().Add(time.Hour), 1)
	withdrawn := m.token()
	m.good("cluster", "token", "-c", m.yaml(1), "--withdraw", strings.Split(withdrawn, ".")[1])
	nobody, err := net.Listen("tcp", m.address(9)+":0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	at := func(addr string) []string {
		return append([]string{"join", addr, "--token", fresh, "--roles", "datanode"}, m.place(3)...)
	}
	with := func(token string, more ...string) []string {
		return append(append([]string{"join", m.address(1) + ":8486", "--token", token, "--roles", "datanode"}, m.place(3)...), more...)
	}
	for what, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no token":                      {with(""), 2, "`hops cluster token` prints one"},
		"half a token":                  {with(fresh[:40]), 2, "copy it again as a whole"},
		"a guessed token":               {with(string(guessed)), 4, "the cluster does not know it"},
		"a token of another cluster":    {with(foreign.String()), 4, "of another cluster, or somebody stands in between"},
		"an expired token":              {with(expired), 4, "`hops cluster token` prints a new one"},
		"a token used up":               {with(used), 4, "used as often as it may be"},
		"a token withdrawn":             {with(withdrawn), 4, "it was withdrawn"},
		"a role that it is not for":     {with(token, "--roles", "namenode"), 4, "it is for datanode, nodemanager, not for namenode"},
		"a node manager without any":    {with(anything, "--roles", "nodemanager"), 1, "this cluster has no resource manager, which node managers report to"},
		"no such role":                  {with(fresh, "--roles", "king"), 2, "is no role"},
		"a port where nobody is":        {at(nobody.Addr().String()), 3, "the port is that of gRPC"},
		"a port of another protocol":    {at(m.address(1) + ":9870"), 3, "the port is that of gRPC"},
		"no port":                       {at(m.address(1)), 2, "is not HOST:PORT"},
		"the name of another machine":   {with(fresh, "--machine", "m2"), 1, "a machine of that name is a member"},
		"a name that is none":           {with(fresh, "--machine", "a/b"), 2, "is no name of a machine"},
		"a name that nobody has":        {with(fresh, "--address", "no-such-host.invalid"), 1, "enter it in the DNS or in /etc/hosts of every machine"},
		"no address of this machine":    {with(fresh, "--address", "192.0.2.7"), 1, "192.0.2.7 is no address of this machine"},
		"the address of another":        {with(fresh, "--address", m.address(1)), 1, "another machine has that address"},
		"an address that others use":    {with(fresh, "--address", m.address(2)), 1, "is taken by another program"},
		"an address that is everywhere": {with(fresh, "--address", "0.0.0.0"), 2, "is no address that anybody can reach"},
	} {
		t.Run(what, func(t *testing.T) {
			r := Hops{T: t}.Run(c.args...)
			if r.Status != c.status || !strings.Contains(strings.ToLower(r.Stderr), strings.ToLower(c.says)) || strings.Count(r.Stderr, "\n") != 1 {
				t.Errorf("status %d, want %d with %q:\n%s%s", r.Status, c.status, c.says, r.Stdout, r.Stderr)
			}
			if entries, err := os.ReadDir(m.etc(3)); err == nil && len(entries) > 0 {
				t.Errorf("%v is left", entries)
			}
		})
	}
	t.Run("what an interrupted join left", func(t *testing.T) {
		if err := os.MkdirAll(m.etc(3), 0o755); err != nil {
			t.Fatal(err)
		}
		half := filepath.Join(m.etc(3), "identity.pem")
		if err := os.WriteFile(half, []byte("-----BEGIN CERTIFICATE-----\nMII"), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := m.run(with(fresh)...); r.Status != 1 || !strings.Contains(r.Stderr, "rm -f ") || !strings.Contains(r.Stderr, half) {
			t.Errorf("%d %s", r.Status, r.Stderr)
		}
		if err := os.Remove(half); err != nil {
			t.Fatal(err)
		}
		if r := m.run(with(fresh)...); r.Status != 0 {
			t.Errorf("after that: %d %s", r.Status, r.Stderr)
		}
	})
	t.Run("half a certificate file", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(m.etc(2), "identity.pem"))
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range m.pids("m2") {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		if err := os.WriteFile(filepath.Join(m.etc(2), "identity.pem"), text[:len(text)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if r := m.run("server", "--role", "datanode", "-c", m.yaml(2)); r.Status == 0 || !strings.Contains(r.Stderr, "is damaged") || !strings.Contains(r.Stderr, "let the machine join again") {
			t.Errorf("%d %s", r.Status, r.Stderr)
		}
	})
	t.Run("who is not a superuser", func(t *testing.T) {
		for _, args := range [][]string{{"token"}, {"nodes"}, {"remove", "m2"}, {"rotate"}} {
			args = append(slices.Clone(append([]string{"cluster"}, args...)), "-c", m.yaml(1), "--user", "ann")
			if r := m.run(args...); r.Status != 4 || !strings.Contains(r.Stderr, "not a superuser") {
				t.Errorf("%q: %d %s", args, r.Status, r.Stderr)
			}
		}
	})
}

// A join that is killed when the cluster has taken the machine in and before it hears that, or when it has written half of what it was told, goes on when the same command is given again: the
// token has one use, and the machine the same key.
func TestAJoinThatWasKilledGoesOn(t *testing.T) {
	m := newMachines(t)
	m.init("namenode")
	token := m.token("--roles", "datanode")
	cmd := exec.Command(Binary(t), append([]string{"join", deaf(t, m.address(1)+":8486"), "--token", token, "--roles", "datanode"}, m.place(2)...)...)
	cmd.Env = Environ(t, "")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.eventually("m2 is taken in", func() error {
		if out := m.good("cluster", "nodes", "-c", m.yaml(1)); !strings.Contains(out, "m2") {
			return errors.New(out)
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := os.Stat(m.yaml(2)); err == nil {
		t.Fatal("it has heard that")
	}
	half := filepath.Join(m.etc(2), "servers.yaml")
	if err := os.WriteFile(half, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := m.join(2, token, "--roles", "datanode"); r.Status != 0 {
		t.Fatalf("%d %s", r.Status, r.Stderr)
	}
	if _, err := os.Stat(filepath.Join(m.etc(2), "joining.pem")); err == nil {
		t.Error("the key is kept in two files")
	}
}

// deaf passes on what comes to a namenode, and what it answers until a machine that joins has asked: where it is.
func deaf(t *testing.T, namenode string) (addr string) {
	t.Helper()
	host, _, err := net.SplitHostPort(namenode)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go passUntilAsked(in, namenode)
		}
	}()
	return l.Addr().String()
}

// passUntilAsked is deaf for one connection.
func passUntilAsked(in net.Conn, namenode string) {
	defer in.Close()
	out, err := net.Dial("tcp", namenode)
	if err != nil {
		return
	}
	defer out.Close()
	var asked atomic.Bool
	go func() {
		b := make([]byte, 32<<10)
		for {
			n, err := out.Read(b)
			if err != nil {
				return
			}
			if asked.Load() {
				continue
			}
			if _, err := in.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	for {
		header := make([]byte, 5) // of a record of TLS: its kind, 23 for data, and in the last two bytes its length
		if _, err := io.ReadFull(in, header); err != nil {
			return
		}
		record := make([]byte, int(header[3])<<8|int(header[4]))
		if _, err := io.ReadFull(in, record); err != nil {
			return
		}
		if header[0] == 23 && len(record) > 300 { // with a request for a certificate in it
			asked.Store(true)
		}
		if _, err := out.Write(append(header, record...)); err != nil {
			return
		}
	}
}

// A machine on which init fails is as it was.
func TestInitThatFailsLeavesNothing(t *testing.T) {
	m := newMachines(t)
	l, err := net.Listen("tcp", m.address(1)+":8020")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"cluster", "init", "--roles", "namenode"}, m.place(1)...)
	if r := m.run(args...); r.Status != 1 || !strings.Contains(r.Stderr, ":8020 is taken by another program") {
		t.Errorf("%d %s", r.Status, r.Stderr)
	}
	l.Close()
	for what, c := range map[string]struct {
		more []string
		says string
	}{
		"without a namenode":         {[]string{"--roles", "datanode"}, "add namenode to --roles"},
		"without a resource manager": {[]string{"--roles", "namenode,nodemanager"}, "add resourcemanager to --roles"},
		"a name that is none":        {[]string{"--name", "a/b"}, "is no name of a cluster"},
	} {
		t.Run(what, func(t *testing.T) {
			if r := m.run(append(slices.Clone(args), c.more...)...); r.Status != 2 || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("%d %s", r.Status, r.Stderr)
			}
		})
	}
	if entries, err := os.ReadDir(m.etc(1)); err == nil && len(entries) > 0 {
		t.Errorf("%v is left", entries)
	}
	m.init("namenode")
}

// Resource managers become three; a machine that burnt with both of its servers is replaced by one command and the line that it prints.
func TestALostMachineIsReplaced(t *testing.T) {
	m := newMachines(t)
	m.init("namenode,resourcemanager")
	for n := 2; n <= 3; n++ {
		m.joined(n, m.token("--roles", "namenode,resourcemanager"), "namenode,resourcemanager")
	}
	if r := m.run("cluster", "replace", "-c", m.yaml(1), "m3"); r.Status != 2 || !strings.Contains(r.Stderr, "m3 is not lost") {
		t.Errorf("a machine that runs is replaced: %d %s", r.Status, r.Stderr)
	}
	for _, pid := range m.pids("m3") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.eventually("the end of m3", func() error {
		if left := m.pids("m3"); len(left) > 0 {
			return fmt.Errorf("%v run", left)
		}
		return nil
	})
	if err := os.RemoveAll(filepath.Join(m.dir, "m3")); err != nil {
		t.Fatal(err)
	}
	var said struct{ Token string }
	m.eventually("m3 is replaced", func() error { // m3 may have led both groups, and on a busy machine an election takes longer than a command waits
		r := m.run("cluster", "replace", "-c", m.yaml(1), "-o", "json", "m3")
		if r.Status != 0 {
			return errors.New(r.Stderr)
		}
		return json.Unmarshal([]byte(r.Stdout), &said)
	})
	m.joined(3, said.Token, "namenode,resourcemanager")
	for _, role := range []string{"namenode", "resourcemanager"} {
		m.lead(role, "m3")
	}
}

// A machine whose servers run in the foreground, as in a container: it gets in once, and is the same after it was ended. The token is in a file.
func TestServersRunInTheForeground(t *testing.T) {
	m := newMachines(t)
	run := func(n int, args ...string) (stop func()) {
		t.Helper()
		var said bytes.Buffer
		cmd := exec.Command(Binary(t), append(append(args, m.place(n)...), "--run")...)
		cmd.Env, cmd.Stdout, cmd.Stderr = Environ(t, ""), &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		m.eventually(fmt.Sprintf("m%d serves", n), func() error {
			r := m.run("datanode", "list", "--conf", filepath.Join(m.etc(1), "conf"))
			if r.Status != 0 || strings.Count(r.Stdout, " live ") < n {
				return errors.New(r.Stdout + r.Stderr)
			}
			return nil
		})
		return func() {
			t.Helper()
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := <-done; err != nil {
				t.Errorf("m%d: %v\n%s", n, err, said.String())
			}
			if left := m.pids(fmt.Sprint("m", n)); len(left) > 0 {
				t.Errorf("m%d: %v run", n, left)
			}
		}
	}
	first := []string{"cluster", "init", "--name", "lab", "--roles", "namenode,datanode"}
	stopFirst := run(1, first...)
	token := filepath.Join(m.dir, "token")
	if err := os.WriteFile(token, []byte(m.token("--roles", "datanode")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := []string{"join", m.address(1) + ":8486", "--roles", "datanode", "--token-file", token}
	stopSecond := run(2, second...)
	stopSecond()
	stopFirst()
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	stopFirst = run(1, first...)
	run(2, second...)
	for _, pid := range m.pids("m2") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.eventually("all of m2 ends with its server", func() error {
		if left := m.pids("m2"); len(left) > 0 {
			return fmt.Errorf("%v run", left)
		}
		return nil
	})
	stopFirst()
	for what, c := range map[string]struct {
		args []string
		says string
	}{
		"no file with the token": {[]string{"--token-file", token}, "no such file"},
		"both":                   {[]string{"--token-file", token, "--token", "hops1.x"}, "give --token or --token-file"},
	} {
		t.Run(what, func(t *testing.T) {
			if r := m.run(append(append([]string{"join", m.address(1) + ":8486"}, c.args...), m.place(3)...)...); r.Status == 0 || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("%d %s", r.Status, r.Stderr)
			}
		})
	}
}

// A machine that dies when it has written its files, and before the groups of its servers have taken them, is taken when it is run again.
func TestAMachineThatDiedWhileItJoinedIsTaken(t *testing.T) {
	m := newMachines(t)
	m.init("namenode")
	const roles = "namenode,resourcemanager"
	// Both are made before: when the machine dies it may have a vote, without which nobody leads.
	first, second := m.token("--roles", roles), m.token("--roles", roles)
	run := func(token string) *exec.Cmd {
		t.Helper()
		args := append([]string{"join", m.address(1) + ":8486", "--roles", roles, "--run"}, m.place(2)...)
		cmd := exec.Command(Binary(t), append(args, "--token", token)...)
		cmd.Env = Environ(t, "")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	cmd := run(first)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(m.yaml(2)); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not join")
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, pid := range m.pids("m2") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	m.eventually("the end of m2", func() error {
		if left := m.pids("m2"); len(left) > 0 {
			return fmt.Errorf("%v run", left)
		}
		return nil
	})
	run(second)
	for role, voters := range map[string]int{"namenode": 2, "resourcemanager": 1} {
		m.eventually("a vote of its "+role, func() error {
			if r := m.run(role, "list", "-c", m.yaml(2), "-o", "json"); strings.Count(r.Stdout, `"voter":true`) != voters || !strings.Contains(r.Stdout, `"state":"active"`) {
				return errors.New(r.Stdout + r.Stderr)
			}
			return nil
		})
	}
	m.eventually("nothing is left to do", func() error {
		if _, err := os.Stat(filepath.Join(m.etc(2), "joining")); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the groups have not taken it: %v", err)
		}
		return nil
	})
}
