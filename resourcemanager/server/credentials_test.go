package server

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

const password = "the password of a token"

// fakeTokens is a filesystem that gives tokens.
type fakeTokens struct {
	life, renew time.Duration

	mu        sync.Mutex
	refuse    map[string]error    // by user
	hang      map[string]chan int // by user: until it is closed
	asked     map[string]int      // by user
	issued    []token.Identifier
	cancelled []int32
	renewals  map[int32]int
}

func (f *fakeTokens) Get(ctx context.Context, user string) (token.Token, error) {
	f.mu.Lock()
	hang := f.hang[user]
	f.asked[user]++
	f.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return token.Token{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse[user]; err != nil {
		return token.Token{}, err
	}
	now := time.Now().Add(time.Hour) // its clock is another
	id := token.Identifier{Owner: user, Renewer: "hops", Issued: now.UnixMilli(), MaxDate: now.Add(f.life).UnixMilli(), Sequence: int32(len(f.issued) + 1)}
	f.issued = append(f.issued, id)
	return token.Token{Identifier: id.Encode(), Password: []byte(password), Kind: token.Kind}, nil
}

func (f *fakeTokens) Renew(_ context.Context, t token.Token) (time.Time, error) {
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return time.Time{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.cancelled, id.Sequence) {
		return time.Time{}, metadata.Errorf(metadata.ErrToken, "can't be found in cache")
	}
	f.renewals[id.Sequence]++
	return time.Now().Add(time.Hour + f.renew), nil
}

func (f *fakeTokens) Cancel(_ context.Context, t token.Token) error {
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelled = append(f.cancelled, id.Sequence)
	return nil
}

func (f *fakeTokens) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeTokens) count() (issued, cancelled int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.issued), len(f.cancelled)
}

// tokenCluster is a cluster with one node whose filesystem gives tokens.
func tokenCluster(t *testing.T, tune func(*Config)) (*testCluster, *fakeTokens, *fakeNode) {
	tokens := &fakeTokens{life: 7 * 24 * time.Hour, renew: 24 * time.Hour, asked: map[string]int{}, refuse: map[string]error{}, hang: map[string]chan int{}, renewals: map[int32]int{}}
	c := newTestCluster(t, 1, func(config *Config) {
		config.Tokens = tokens
		if tune != nil {
			tune(config)
		}
	})
	n := c.node("127.0.0.1:9001", 0, nil)
	n.program = programs(c, untilStopped)
	c.awaitOpen(n)
	return c, tokens, n
}

// pull asks for the credentials of a container as its own node manager does.
func (c *testCluster) pull(id string, secrets bool) (*pb.CredentialsResponse, error) {
	c.t.Helper()
	return c.nodesAt(c.credentials.Key()).Credentials(c.t.Context(), &pb.CredentialsRequest{ContainerId: id, Secrets: secrets})
}

// worker waits for the one container of a job beside its master.
func (n *fakeNode) worker(app rm.ApplicationID) *pb.ContainerSpec {
	n.t.Helper()
	var found *pb.ContainerSpec
	eventually(n.t, "a container of "+app.String(), func() bool {
		for _, s := range n.running(false) {
			if s.ApplicationId == app.String() {
				found = s
			}
		}
		return found != nil
	})
	return found
}

// kill ends an application for its user.
func (c *testCluster) end(id rm.ApplicationID) {
	c.t.Helper()
	if _, err := c.leader().Kill(c.t.Context(), id, "the test ends it"); err != nil {
		c.t.Fatal(err)
	}
}

func sequenceOf(t *testing.T, p *pb.Token) int32 {
	t.Helper()
	id, err := token.ParseIdentifier(p.GetIdentifier())
	if err != nil {
		t.Fatal(err)
	}
	return id.Sequence
}

// memorySecrets keeps secrets of users.
type memorySecrets map[string]string

func (m memorySecrets) Put(context.Context, string, string, []byte) error { return nil }
func (m memorySecrets) List(context.Context, string) ([]rest.SecretInfo, error) {
	return nil, nil
}
func (m memorySecrets) Remove(context.Context, string, string) error { return nil }
func (m memorySecrets) Open(_ context.Context, user string, names []string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, name := range names {
		text, ok := m[user+"/"+name]
		switch {
		case !ok:
			return nil, metadata.Errorf(metadata.ErrNotExist, "%s has no secret %s: hops secret put %s", user, name, name)
		case text == "moved":
			return nil, fmt.Errorf("secret %s: %w: put it again", name, security.ErrSealed)
		case text == "down":
			return nil, metadata.Errorf(metadata.ErrStandby, "no namenode leads")
		}
		out[name] = []byte(text)
	}
	return out, nil
}

// Who asks for the credentials of a container, and what they get.
func TestWhoGetsTheCredentialsOfAContainer(t *testing.T) {
	c, tokens, n := tokenCluster(t, nil)
	me := c.door.Daemon()
	own := c.submit(me, map[string]any{"name": "j", "argv": []string{"x"}, "resources": map[string]any{"memory": "128MiB"}})
	worker := n.worker(own)
	var master *pb.ContainerSpec
	for _, s := range n.running(true) {
		master = s
	}
	ended := c.submit(me, map[string]any{"name": "e", "argv": []string{"x"}, "resources": map[string]any{"memory": "128MiB"}})
	gone := n.worker(ended)
	c.end(ended)
	eventually(t, "the end of its containers", func() bool { return len(n.running(false)) == 1 })
	ask := func(key security.Key, container string, options ...grpc.DialOption) (*pb.CredentialsResponse, error) {
		return c.nodesAt(key, options...).Credentials(t.Context(), &pb.CredentialsRequest{ContainerId: container})
	}
	trust := &authority.Trust{Cluster: c.authority.Cluster(), Roots: c.credentials.Member.Roots()}
	for _, test := range []struct {
		who, container string
		key            security.Key
		code           codes.Code
		says           string
	}{
		{"the node manager of its machine", worker.ContainerId, c.credentials.Key(), codes.OK, ""},
		{"the node manager of the master's machine", master.ContainerId, c.credentials.Key(), codes.OK, ""},
		{"another machine's node manager", worker.ContainerId, c.machine("m2", authority.NodeManager), codes.PermissionDenied, "is no container of machine m2"},
		{"another machine's node manager, for one that never was", strings.Replace(worker.ContainerId, "_000002", "_000999", 1), c.machine("m2", authority.NodeManager), codes.PermissionDenied, "is no container of machine m2"},
		{"its node manager, for one that never was", strings.Replace(worker.ContainerId, "_000002", "_000999", 1), c.credentials.Key(), codes.PermissionDenied, "is no container of machine test"},
		{"a node manager, for a path", "../../x", c.credentials.Key(), codes.InvalidArgument, ""},
		{"its node manager, after the application has ended", gone.ContainerId, c.credentials.Key(), codes.NotFound, "has ended"},
		{"a datanode", worker.ContainerId, c.machine("test", authority.Datanode), codes.Unavailable, ""},
		{"a namenode", worker.ContainerId, c.machine("test", authority.Namenode), codes.Unavailable, ""},
		{"another resource manager", worker.ContainerId, c.machine("test", authority.ResourceManager), codes.PermissionDenied, "has no right to"},
		{"the container itself, by its token", worker.ContainerId, security.TokenKey(trust, worker.ContainerId, worker.Token, authority.ResourceManager), codes.Unavailable, ""},
		{"the application's master, by its token", worker.ContainerId, security.TokenKey(trust, master.ContainerId, master.Token, authority.ResourceManager), codes.PermissionDenied, "is for servers, not for container"},
	} {
		t.Run(test.who, func(t *testing.T) {
			var options []grpc.DialOption
			if test.code == codes.Unavailable {
				options = append(options, stranger())
			}
			answer, err := ask(test.key, test.container, options...)
			if status.Code(err) != test.code || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Fatalf("%v, want %v %q", err, test.code, test.says)
			}
			if err == nil && (string(answer.Token.GetPassword()) != password || answer.AgainMs != time.Hour.Milliseconds() || len(answer.Secrets) != 0) {
				t.Errorf("%v", answer)
			}
			if err != nil && strings.Contains(err.Error(), password) {
				t.Error("the refusal tells the token")
			}
		})
	}
	if issued, _ := tokens.count(); issued != 2 {
		t.Errorf("%d tokens were got for two applications", issued)
	}
	t.Run("another machine's node manager reports for the node", func(t *testing.T) {
		stream, err := c.nodesAt(c.machine("m2", authority.NodeManager)).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(n.report()); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "is on machine test, and the certificate is that of machine m2") {
			t.Error(err)
		}
		if _, err := c.pull(worker.ContainerId, false); err != nil {
			t.Errorf("the node's own: %v", err)
		}
	})
	c.check()
}

// The secrets that a job names come with the credentials of its containers, and no others.
func TestSecretsComeWithTheCredentials(t *testing.T) {
	me := security.NewDoor(security.Config{}).Daemon()
	c, _, n := tokenCluster(t, func(config *Config) {
		config.Secrets = memorySecrets{me + "/db": "hunter2", me + "/bad": "moved", me + "/slow": "down", "eve/key": "eve's"}
	})
	for _, test := range []struct {
		who     string
		secrets []string
		code    codes.Code
		says    string
	}{
		{"a job with a secret", []string{"db"}, codes.OK, ""},
		{"a job without", nil, codes.OK, ""},
		{"another user's secret", []string{"key"}, codes.InvalidArgument, me + " has no secret key: hops secret put key"},
		{"a sealed file that was moved", []string{"db", "bad"}, codes.InvalidArgument, "secret bad: it was changed, or moved here, or sealed by another cluster: put it again"},
		{"a filesystem without a leader", []string{"slow"}, codes.Unavailable, "the secrets of the job cannot be read now: no namenode leads"},
	} {
		t.Run(test.who, func(t *testing.T) {
			id := c.submit(me, map[string]any{"name": "j", "argv": []string{"x"}, "secrets": test.secrets, "resources": map[string]any{"memory": "128MiB"}})
			defer c.end(id)
			w := n.worker(id)
			answer, err := c.pull(w.ContainerId, true)
			if status.Code(err) != test.code || !strings.Contains(fmt.Sprint(err), test.says) || strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Fatalf("%v, want %v %q", err, test.code, test.says)
			}
			if want := len(test.secrets); err == nil && (len(answer.Secrets) != want || want > 0 && string(answer.Secrets["db"]) != "hunter2") {
				t.Errorf("%v", answer.Secrets)
			}
			if answer, err := c.pull(w.ContainerId, false); err != nil || len(answer.Secrets) > 0 {
				t.Errorf("for a refresh: %v %v", answer.GetSecrets(), err)
			}
			for _, m := range n.running(true) {
				if m.ApplicationId != id.String() { // that of the job before, which may still have to stop
					continue
				}
				if answer, err := c.pull(m.ContainerId, true); err != nil || len(answer.Secrets) > 0 {
					t.Errorf("the master: %v %v", answer.GetSecrets(), err)
				}
			}
		})
	}
}

// A token is got before anything of an application starts, outlives the process that got it, sealed, and is cancelled after the last container.
func TestATokenLivesAsLongAsItsApplication(t *testing.T) {
	c, tokens, n := tokenCluster(t, nil)
	me := c.door.Daemon()
	id := c.submit(me, map[string]any{"name": "j", "argv": []string{"x"}, "resources": map[string]any{"memory": "128MiB"}})
	w := n.worker(id)
	before, err := c.pull(w.ContainerId, false)
	if err != nil {
		t.Fatal(err)
	}
	c.kill(0)
	err = filepath.WalkDir(c.dirs[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if text, err := os.ReadFile(path); err != nil || bytes.Contains(text, []byte(password)) || bytes.Contains(text, before.Token.Identifier) {
			t.Errorf("%s tells the token, %v", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.start(0)
	c.awaitOpen(n)
	after, err := c.pull(w.ContainerId, false)
	if err != nil || !bytes.Equal(before.Token.Identifier, after.Token.Identifier) || !bytes.Equal(before.Token.Password, after.Token.Password) {
		t.Errorf("%v, then %v %v", before.Token, after.GetToken(), err)
	}
	c.end(id)
	eventually(t, "the token is cancelled", func() bool {
		_, cancelled := tokens.count()
		return cancelled == 1
	})
	eventually(t, "it is forgotten", func() bool {
		for range c.leader().View().AllCredentials() {
			return false
		}
		return true
	})
	if issued, cancelled := tokens.count(); issued != 1 || cancelled != 1 {
		t.Errorf("%d got, %d cancelled", issued, cancelled)
	}
	c.check()
}

// Tokens are renewed while they are used, replaced in good time, and those before stay good until their own end.
func TestTokensAreRenewedAndReplaced(t *testing.T) {
	c, tokens, n := tokenCluster(t, nil)
	tokens.set(func() { tokens.life, tokens.renew = 1600*time.Millisecond, 400*time.Millisecond })
	id := c.submit(c.door.Daemon(), map[string]any{"name": "j", "argv": []string{"x"}, "resources": map[string]any{"memory": "128MiB"}})
	w := n.worker(id)
	first, err := c.pull(w.ContainerId, false)
	if err != nil || first.AgainMs != minAgain.Milliseconds() {
		t.Fatalf("%v %v", first, err)
	}
	eventually(t, "another token", func() bool {
		now, err := c.pull(w.ContainerId, false)
		return err == nil && sequenceOf(t, now.Token) >= 2
	})
	eventually(t, "one and its successor are renewed, and none is cancelled", func() bool { // a machine that is busy may miss the time of the first
		tokens.mu.Lock()
		defer tokens.mu.Unlock()
		for i := range tokens.renewals {
			if tokens.renewals[i] > 1 && tokens.renewals[i+1] > 0 {
				return len(tokens.cancelled) == 0
			}
		}
		return false
	})
	last := int64(0) // for a moment there may be none
	eventually(t, "the first one is over and forgotten", func() bool {
		all := c.leader().View().Credentials(id)
		if len(all) == 0 || all[0].Number == 1 {
			return false
		}
		last = all[len(all)-1].Number
		return true
	})
	// Its user cancels it.
	tokens.set(func() { tokens.cancelled = append(tokens.cancelled, int32(len(tokens.issued))) })
	eventually(t, "another one takes its place", func() bool {
		all := c.leader().View().Credentials(id)
		return len(all) > 0 && all[len(all)-1].Number > last
	})
	if j := c.job(id); j.State != rm.StateRunning {
		t.Errorf("the job is %s", j.State)
	}
}

// Where the filesystem gives no token, an application waits and says why, nobody else waits for it, and in the end it fails with one line.
func TestApplicationsWithoutAToken(t *testing.T) {
	c, tokens, n := tokenCluster(t, func(config *Config) { config.TokenPatience = 300 * time.Millisecond })
	me := c.door.Daemon()
	document := map[string]any{"name": "j", "argv": []string{"x"}, "resources": map[string]any{"memory": "128MiB"}}
	for _, test := range []struct {
		what string
		why  error
		says string
	}{
		{"no namenode answers", metadata.Errorf(metadata.ErrStandby, "no namenode leads"), "the filesystem gives no delegation token for user u, which the containers of %v need: no namenode leads (tried for 300ms)"},
		{"it is refused", metadata.Errorf(metadata.ErrPermission, "u has too many"), "the filesystem gives no delegation token for user u, which the containers of %v need: u has too many"},
	} {
		t.Run(test.what, func(t *testing.T) {
			tokens.set(func() { tokens.refuse["u"] = test.why })
			id := c.submit("u", document)
			j := c.await(id, rm.StateFailed)
			if want := fmt.Sprintf(test.says, id); !strings.Contains(j.Diagnostics, want) {
				t.Errorf("%q, want %q", j.Diagnostics, want)
			}
			if got := n.running(true); len(got) > 0 {
				t.Errorf("its master was started: %v", got)
			}
		})
	}
	t.Run("it hangs for one user", func(t *testing.T) {
		hang := make(chan int)
		tokens.set(func() { tokens.hang["slow"] = hang })
		var waiting []rm.ApplicationID
		for range tokensAtOnce/2 + 2 {
			waiting = append(waiting, c.submit("slow", document))
		}
		eventually(t, "the reason", func() bool { return c.waits(waiting[0]) == rm.ReasonCredential })
		id := c.submit(me, document)
		n.worker(id)
		eventually(t, "the reason of the last one", func() bool { return c.waits(waiting[len(waiting)-1]) == rm.ReasonCredential })
		for _, w := range waiting[1:] {
			c.end(w)
		}
		close(hang)
		n.worker(waiting[0])
		eventually(t, "tokens that came too late are cancelled, too", func() bool {
			tokens.mu.Lock()
			defer tokens.mu.Unlock()
			return len(tokens.cancelled) >= len(tokens.issued)-2
		})
		c.end(id)
		c.end(waiting[0])
	})
	t.Run("it is back in time", func(t *testing.T) {
		tokens.set(func() { tokens.refuse["late"] = metadata.Errorf(metadata.ErrStandby, "no namenode leads") })
		id := c.submit("late", document)
		eventually(t, "the reason", func() bool { return c.waits(id) == rm.ReasonCredential || c.job(id).State.Final() })
		tokens.set(func() { delete(tokens.refuse, "late") })
		eventually(t, "it runs, or was too late", func() bool { s := c.job(id).State; return s == rm.StateRunning || s == rm.StateFailed })
		c.end(id)
	})
}

// However many applications come, and however often their tokens fail, all applications are looked at only after a rest: the first token of each is asked
// for at once, by its id, and that of who finds no place when there is one.
func TestTokensThatFailAtOnceCostNoLooks(t *testing.T) {
	var looks atomic.Int64
	c, tokens, _ := tokenCluster(t, func(config *Config) {
		config.tokenRest = func(time.Duration) time.Duration { // the first look is that of the beginning
			looks.Add(1)
			return time.Hour
		}
	})
	eventually(t, "the first look", func() bool { return looks.Load() == 1 })
	asked := func(user string) int {
		tokens.mu.Lock()
		defer tokens.mu.Unlock()
		return tokens.asked[user]
	}
	const many = 3 * tokensAtOnce
	free := make(chan int)
	tokens.set(func() {
		tokens.refuse["ann"] = context.DeadlineExceeded
		tokens.hang["carol"] = free
	})
	var carols []rm.ApplicationID
	for range many {
		c.submit("ann", `{"argv":["train"]}`)
		carols = append(carols, c.submit("carol", `{"argv":["train"]}`))
	}
	eventually(t, "each of ann's to be asked for once", func() bool { return asked("ann") == many })
	eventually(t, "half of the places to be carol's", func() bool { return asked("carol") == tokensAtOnce/2 })
	bob := c.submit("bob", `{"argv":["train"]}`)
	eventually(t, "bob to have a token", func() bool { return len(c.leader().View().Credentials(bob)) == 1 })
	for _, id := range carols[:many/2] {
		c.end(id)
	}
	close(free)
	for _, id := range carols[many/2:] {
		eventually(t, "the next in line to have a token", func() bool { return len(c.leader().View().Credentials(id)) == 1 })
	}
	c.end(bob)
	eventually(t, "the token of one that has ended to be cancelled", func() bool { return len(c.leader().View().Credentials(bob)) == 0 })
	if n := looks.Load(); n != 1 || asked("ann") != many {
		t.Errorf("%d looks, and ann's %d applications were asked for %d times", n, many, asked("ann"))
	}
}

func TestLooksRestInProportion(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: 2 * time.Millisecond, 20 * time.Millisecond: time.Second, time.Minute: 5 * time.Second} {
		if got := tokenRest(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}
