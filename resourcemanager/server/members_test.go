package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
)

// steady has groups of one behave as those of several: a leader that is only slow stays.
func steady(c *Config) {
	c.Timers = raftstore.Timers{Heartbeat: 2 * time.Second, Election: 2 * time.Second, Lease: 2 * time.Second}
}

// grow adds the process of a member that the group does not know.
func (c *testCluster) grow(id string) {
	c.t.Helper()
	a, err := c.ports.Take(3)
	if err != nil {
		c.t.Fatal(err)
	}
	c.peers, c.raft, c.dirs = append(c.peers, Peer{id, a[0], a[1]}), append(c.raft, raftstore.Member{ID: id, Address: a[2]}), append(c.dirs, c.t.TempDir())
	c.live = append(c.live, nil)
	c.start(len(c.live) - 1)
	for _, m := range c.live { // as those hear who follow the list of servers
		if m != nil {
			m.SetPeers(slices.Clone(c.peers))
		}
	}
}

func (c *testCluster) members() (out []string) {
	c.t.Helper()
	var list struct{ Members []rest.MemberView }
	c.http("GET", "/api/v1/resourcemanagers", "", nil, &list)
	for _, m := range list.Members {
		if m.Voter {
			out = append(out, m.ID)
		}
	}
	slices.Sort(out)
	return out
}

// One resource manager becomes three while a job runs; the first one, which is all that the job's containers know from their start, is taken
// out, and the one that led after it dies without a word; the job ends well.
func TestAGroupOfResourceManagersGrowsAndItsFirstMemberGoes(t *testing.T) {
	c := newTestCluster(t, 1, steady)
	super := c.door.Daemon()
	done := make(chan struct{})
	n := c.node("127.0.0.1:1001", 2, programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		select {
		case <-ctx.Done():
			return 143
		case <-done:
			return 0
		}
	}))
	id := c.submit("ann", `{"argv":["train"],"instances":2,"resources":{"gpus":1}}`)
	eventually(t, "two commands to run", func() bool { return len(n.running(false)) == 2 })

	change := func(want int, says, method, path, user string) {
		t.Helper()
		var text string
		code, _ := c.http(method, path, user, nil, &text)
		unknown := false
		for end := time.Now().Add(time.Minute); time.Now().Before(end); code, _ = c.http(method, path, user, nil, &text) {
			if code == http.StatusGatewayTimeout { // which says that nobody knows
				unknown = true
			} else if !strings.Contains(text, "start the others first") { // whom a leader that is new, or has slept, has not heard of yet
				break
			}
		}
		if unknown && method == "DELETE" && strings.Contains(text, "is not a member") {
			return // any more
		}
		if code != want || !strings.Contains(text, says) {
			t.Fatalf("%s %s by %s: %d %s, want %d with %q", method, path, user, code, text, want, says)
		}
	}
	add := func(i int) string {
		return "/api/v1/resourcemanagers/" + c.raft[i].ID + "?raft=" + url.QueryEscape(c.raft[i].Address)
	}
	c.grow("rm2")
	change(http.StatusForbidden, "bob is not a superuser", "PUT", add(1), "bob")
	change(http.StatusForbidden, "bob is not a superuser", "DELETE", "/api/v1/resourcemanagers/rm1", "bob")
	change(http.StatusForbidden, "bob is not a superuser", "POST", "/api/v1/leader", "bob")
	change(http.StatusBadRequest, "want host:port", "PUT", "/api/v1/resourcemanagers/rm2?raft=there", super)
	change(http.StatusBadRequest, "rm1 is the last member", "DELETE", "/api/v1/resourcemanagers/rm1", super)
	change(http.StatusOK, "", "PUT", add(1), super)
	c.grow("rm3")
	change(http.StatusOK, "", "PUT", add(2), super)
	if now := c.members(); !slices.Equal(now, []string{"rm1", "rm2", "rm3"}) {
		t.Fatalf("members are %v", now)
	}
	change(http.StatusBadRequest, "rm9 is not a member", "DELETE", "/api/v1/resourcemanagers/rm9", super)
	change(http.StatusBadRequest, "rm9 is no voter", "POST", "/api/v1/leader?to=rm9", super)

	first := c.live[0]
	eventually(t, "rm2 to lead", func() bool { // on a busy machine a hand-over may fail, or another one lead behind it
		if c.live[1].Leading() && !first.Leading() {
			return true
		}
		c.http("POST", "/api/v1/leader?to=rm2", super, nil, nil)
		return false
	})
	c.awaitOpen(n)
	heard := func() bool {
		r := c.leader().reign.Load()
		if r == nil {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, m := range r.masters {
			if m.streams > 0 {
				return true
			}
		}
		return false
	}
	eventually(t, "the job's master to follow, to which rm1 names rm2", heard)
	change(http.StatusOK, "", "DELETE", "/api/v1/resourcemanagers/rm1", super)
	c.kill(0)
	if now := c.members(); !slices.Equal(now, []string{"rm2", "rm3"}) {
		t.Errorf("members are %v", now)
	}
	c.grow("rm4")
	change(http.StatusOK, "", "PUT", add(3), super)
	c.kill(1)
	eventually(t, "the job's master at the leader of which nobody told it but the list", heard)
	c.awaitOpen(n)
	if len(n.running(false)) != 2 {
		t.Error("containers did not survive")
	}
	close(done)
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("%+v", j)
	}
	c.check()
}

// A machine's resource manager enlists by its certificate, whose name it becomes a member by; no other server does.
func TestOnlyResourceManagersEnlist(t *testing.T) {
	credentials, a, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	c := newTestCluster(t, 0, steady)
	c.credentials = credentials
	c.grow("rm1")
	eventually(t, "it leads", func() bool { return c.live[0].Leading() })
	enlist := func(as security.Credentials, raft string, options ...grpc.DialOption) error {
		t.Helper()
		conn := dial(t, c.peers[0].GRPC, as.Key(authority.ResourceManager), options...)
		defer conn.Close()
		_, err := pb.NewResourceManagersClient(conn).Enlist(t.Context(), &pb.EnlistRequest{Raft: raft})
		return err
	}
	joined := func(roles ...authority.Role) security.Credentials {
		out, err := securitytest.Join(a, credentials.Secret, roles...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	foreign, _, err := securitytest.Make(security.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	for what, tried := range map[string]struct {
		as   security.Credentials
		raft string
		code codes.Code
		says string
	}{
		"a node manager":                 {joined(authority.NodeManager), "127.0.0.1:9", codes.PermissionDenied, "has no right to"},
		"a datanode":                     {joined(authority.Datanode), "127.0.0.1:9", codes.Unavailable, ""},
		"a server of another cluster":    {foreign, "127.0.0.1:9", codes.Unavailable, ""},
		"a resource manager, no address": {joined(authority.ResourceManager), "", codes.InvalidArgument, "want host:port"},
		"a resource manager, port 0":     {joined(authority.ResourceManager), "127.0.0.1:0", codes.InvalidArgument, "want host:port"},
	} {
		t.Run(what, func(t *testing.T) {
			var options []grpc.DialOption
			if tried.code == codes.Unavailable {
				options = append(options, stranger())
			}
			if err := enlist(tried.as, tried.raft, options...); status.Code(err) != tried.code || !strings.Contains(err.Error(), tried.says) {
				t.Errorf("%v, want %v with %q", err, tried.code, tried.says)
			}
		})
	}
	t.Run("a resource manager that reports as a node", func(t *testing.T) {
		s, err := c.nodesAt(joined(authority.ResourceManager).Key(authority.ResourceManager)).Session(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})
	own := credentials.Member.Self().Machine
	c.grow(own)
	eventually(t, "it to be a member", func() bool { // on a busy machine leaders change, and nobody knows what has become of it
		err := enlist(credentials, c.raft[1].Address)
		return err == nil || slices.Contains(c.members(), own)
	})
	if now := c.members(); !slices.Contains(now, own) || len(now) != 2 {
		t.Errorf("members are %v", now)
	}
}

// Containers are told of the filesystem as it is when they start, not as it was when this process did.
func TestContainersAreToldOfTheFilesystemOfNow(t *testing.T) {
	c := newTestCluster(t, 1, func(k *Config) { k.Environment = Environment{FS: "hdfs://nn1:8020", WebHDFS: []string{"nn1:9870"}} })
	told := make(chan map[string]string, 10)
	c.node("127.0.0.1:1001", 0, programs(c, func(_ context.Context, spec *pb.ContainerSpec) int {
		told <- spec.Env
		return 0
	}))
	for _, want := range []Environment{
		{FS: "hdfs://nn1:8020", WebHDFS: []string{"nn1:9870"}},
		{FS: "hdfs://lab", WebHDFS: []string{"nn2:9870", "nn3:9870"}, HadoopConfDir: "/etc/hops/conf"},
	} {
		c.live[0].SetEnvironment(want)
		c.await(c.submit("ann", `{"argv":["train"]}`), rm.StateFinished)
		got := <-told
		if got["HOPS_FS"] != want.FS || got["HOPS_WEBHDFS"] != strings.Join(want.WebHDFS, ",") || got["HADOOP_CONF_DIR"] != want.HadoopConfDir {
			t.Errorf("%v, want %+v", got, want)
		}
	}
}

// Who may act as anybody may take a copy of everything, and nobody else may.
func TestABackupIsForSuperusers(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	id := c.submit("ann", `{"argv":["train"]}`)
	if code, _ := c.http("POST", "/api/v1/backup", "ann", nil, nil); code != http.StatusForbidden {
		t.Errorf("a user: %d", code)
	}
	answer, err := http.Post("http://"+c.peers[0].HTTP+"/api/v1/backup?user.name="+c.door.Daemon(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	var b raftstore.Backup
	if err != nil || answer.StatusCode != http.StatusOK || json.Unmarshal([]byte(answer.Header.Get(rest.BackupHeader)), &b) != nil || b.Index == 0 || int64(len(text)) != answer.ContentLength {
		t.Fatalf("%s, %d bytes, %+v, %v", answer.Status, len(text), b, err)
	}
	restored := state.New(state.Config{})
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: "rm1", Listener: listen(t, "127.0.0.1:0"), Advertise: c.raft[0].Address, Dir: t.TempDir(), Door: security.NewDoor(security.Config{}), Credentials: c.credentials, Role: authority.ResourceManager,
		Reserve: -1, Logger: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	group := raftstore.GroupConfig{Name: GroupName, Members: c.raft}
	if err := host.Restore(group, b, bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	g, err := host.Open(group, restored)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if restored.View().Application(id) == nil {
		t.Errorf("%v is not in it", id)
	}
}
