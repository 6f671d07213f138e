package hadoop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

const (
	nodeID  = rm.NodeID("n1:8042")
	address = "n1:8041"
)

var (
	noon    = time.UnixMilli(1_790_000_000_000)
	attempt = rm.AttemptID{Application: rm.ApplicationID{Cluster: 1_789_000_000_000, Sequence: 21}, Number: 1}
	issuer  = yarntoken.NewIssuer(security.NewSecret().MAC)
)

func containerID(n int64) rm.ContainerID { return rm.ContainerID{Attempt: attempt, Number: n} }

// fakeNode records what it is asked.
type fakeNode struct {
	mu       sync.Mutex
	launches []*rmpb.ContainerLaunch
	outcomes func(i int, id string) *rmpb.LaunchOutcome
	err      error
	signals  []int
	settled  []bool // what auxiliary services are told of launches
}

func (f *fakeNode) Verifier() *yarntoken.Verifier {
	return yarntoken.NewVerifier(issuer.NodeKeys(noon, nodeID))
}

func (f *fakeNode) Launch(_ context.Context, _ rm.AttemptID, launches []*rmpb.ContainerLaunch) ([]*rmpb.LaunchOutcome, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.launches = append(f.launches, launches...)
	var out []*rmpb.LaunchOutcome
	for i, l := range launches {
		o := &rmpb.LaunchOutcome{ContainerId: l.GetContainerId()}
		if f.outcomes != nil {
			o = f.outcomes(i, l.GetContainerId())
		}
		out = append(out, o)
	}
	return out, f.err
}

func (f *fakeNode) Status(id rm.ContainerID) (Status, bool) {
	switch id.Number {
	case 666:
		panic("a status that nobody expects")
	case 1:
		return Status{Running: true, Exit: -1000}, true
	case 2:
		return Status{Exit: 137, Diagnostics: "killed \xff"}, true
	}
	return Status{}, false
}

func (f *fakeNode) Service(app rm.ApplicationID, user, name string, data []byte) (func(bool), error) {
	switch {
	case name != "known":
		return nil, ErrNoService
	case app != attempt.Application || user != "alice" || string(data) != "token":
		return nil, errors.New("bad data")
	}
	return func(launched bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.settled = append(f.settled, launched)
	}, nil
}

func (f *fakeNode) Services() map[string][]byte { return map[string][]byte{"known": {1, 2}} }

func (f *fakeNode) Stop(id rm.ContainerID, _ string) bool { return id.Number < 3 }

func (f *fakeNode) Signal(id rm.ContainerID, signal int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = append(f.signals, signal)
	return id.Number < 3
}

func serve(t *testing.T, node Node) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(Config{Node: node, Door: security.NewDoor(security.Config{}), Address: func() string { return address }, Now: func() time.Time { return noon }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// call connects as the bearer of a token, nil: by a bare name, and calls a method.
func call(t *testing.T, addr string, shown *token.Token, method string, q, answer hrpc.Message) error {
	t.Helper()
	c := hrpc.DialConfig{Protocol: Protocol, User: attempt.String()}
	if shown != nil {
		c.User, c.Token = "", func(string) (hrpc.Token, bool) {
			return hrpc.Token{Identifier: shown.Identifier, Password: shown.Password}, true
		}
	}
	client, err := hrpc.Dial(t.Context(), addr, c)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Call(t.Context(), Protocol, method, q, answer)
}

func nmToken() *token.Token {
	tok := issuer.Node(noon, nodeID, yarntoken.Visit{Attempt: attempt, Address: address, User: "alice"})
	return &tok
}

func containerToken(change func(*yarntoken.Grant)) *pb.TokenProto {
	g := yarntoken.Grant{Container: containerID(1), Address: address, User: "alice", Expires: metadata.TimeOf(noon.Add(time.Minute))}
	if change != nil {
		change(&g)
	}
	return yarntoken.Write(issuer.Container(noon, nodeID, g))
}

// sparks is a launch context as Spark's master makes it.
func sparks() *pb.ContainerLaunchContextProto {
	return &pb.ContainerLaunchContextProto{
		LocalResources: []*pb.StringLocalResourceMapProto{{Key: new("__spark_libs__"), Value: &pb.LocalResourceProto{
			Resource: &pb.URLProto{Scheme: new("hdfs"), Host: new("nn"), Port: new(int32(8020)), File: new("/user/alice/.sparkStaging/libs 1.zip")},
			Size:     new(int64(416)), Timestamp: new(int64(1000)), Type: pb.LocalResourceTypeProto_ARCHIVE.Enum(), Visibility: pb.LocalResourceVisibilityProto_PRIVATE.Enum(),
		}}},
		Tokens:      append(token.File{}.Encode(), make([]byte, 9)...),
		Environment: []*pb.StringStringMapProto{{Key: new("CLASSPATH"), Value: new("{{PWD}}<CPS>x")}},
		Command:     []string{"{{JAVA_HOME}}/bin/java", "1> <LOG_DIR>/stdout"},
	}
}

func TestStartContainersBecomesALaunch(t *testing.T) {
	node := new(fakeNode)
	answer := new(pb.StartContainersResponseProto)
	err := call(t, serve(t, node), nmToken(), "startContainers", &pb.StartContainersRequestProto{StartContainerRequest: []*pb.StartContainerRequestProto{
		{ContainerLaunchContext: sparks(), ContainerToken: containerToken(nil)},
	}}, answer)
	if err != nil || len(answer.SucceededRequests) != 1 || len(answer.FailedRequests) != 0 {
		t.Fatalf("%v %v", answer, err)
	}
	l := node.launches[0].GetLaunch()
	if node.launches[0].GetContainerId() != containerID(1).String() || l.GetDialect() != "yarn" || l.GetTokens() != nil ||
		l.GetArgv()[0] != "{{JAVA_HOME}}/bin/java 1> <LOG_DIR>/stdout" || l.GetEnv()["CLASSPATH"] != "{{PWD}}<CPS>x" {
		t.Errorf("%v", node.launches[0])
	}
	a := l.GetArtifacts()[0]
	if a.GetName() != "__spark_libs__" || a.GetUri() != "hdfs://nn:8020/user/alice/.sparkStaging/libs%201.zip" || a.GetKind() != "archive" || a.GetVisibility() != "private" ||
		a.GetSize() != 416 || a.GetTimestamp() != 1000 {
		t.Errorf("%v", a)
	}
}

func TestWhatIsNotStarted(t *testing.T) {
	other := attempt
	other.Number = 2
	big := func(change func(*pb.ContainerLaunchContextProto)) *pb.ContainerLaunchContextProto {
		c := sparks()
		change(c)
		return c
	}
	resource := func(name string, change func(*pb.LocalResourceProto)) *pb.ContainerLaunchContextProto {
		return big(func(c *pb.ContainerLaunchContextProto) {
			c.LocalResources[0].Key = &name
			if change != nil {
				change(c.LocalResources[0].Value)
			}
		})
	}
	for name, c := range map[string]struct {
		token       *pb.TokenProto
		context     *pb.ContainerLaunchContextProto
		outcome     *rmpb.LaunchOutcome
		class, want string
	}{
		"auxiliary service": {context: big(func(c *pb.ContainerLaunchContextProto) {
			c.ServiceData = []*pb.StringBytesMapProto{{Key: new("spark_shuffle")}}
		}), class: classAux, want: "The auxService:spark_shuffle does not exist"},
		"data of an auxiliary service": {context: big(func(c *pb.ContainerLaunchContextProto) {
			c.ServiceData = []*pb.StringBytesMapProto{{Key: new("known"), Value: []byte("other")}}
		}), class: classYARN, want: "auxService:known: bad data"},
		"auxiliary services": {context: big(func(c *pb.ContainerLaunchContextProto) {
			c.ServiceData = make([]*pb.StringBytesMapProto, maxServices+1)
		}), class: classYARN, want: "the launch context names 17 auxiliary services, the most are 16"},
		"expired":         {token: containerToken(func(g *yarntoken.Grant) { g.Expires = 1 }), class: classYARN, want: "This token is expired. current time is 1790000000000 found 1"},
		"another attempt": {token: containerToken(func(g *yarntoken.Grant) { g.Container.Attempt = other }), class: classYARN, want: "NMToken for application attempt : appattempt_1789000000000_0021_000001 was used for starting container with container token issued for application attempt : appattempt_1789000000000_0021_000002"},
		"another node":    {token: containerToken(func(g *yarntoken.Grant) { g.Address = "n2:8041" }), class: classYARN, want: "is for n2:8041"},
		"a master":        {token: containerToken(func(g *yarntoken.Grant) { g.Master = true }), class: classYARN, want: "master's own"},
		"no command":      {context: big(func(c *pb.ContainerLaunchContextProto) { c.Command = nil }), class: classYARN, want: "no command"},
		"many resources": {context: big(func(c *pb.ContainerLaunchContextProto) {
			for len(c.LocalResources) < 2000 {
				c.LocalResources = append(c.LocalResources, &pb.StringLocalResourceMapProto{})
			}
		}), class: classYARN, want: "2000 local resources, the most are 1024"},
		"long":         {context: big(func(c *pb.ContainerLaunchContextProto) { c.Command = []string{strings.Repeat("/", 2<<20)} }), class: classYARN, want: "the most is 1048576"},
		"many tokens":  {context: big(func(c *pb.ContainerLaunchContextProto) { c.Tokens = []byte(strings.Repeat("/", 1<<20)) }), class: classYARN, want: "1048576 bytes of tokens"},
		"no tokens":    {context: big(func(c *pb.ContainerLaunchContextProto) { c.Tokens = []byte("x") }), class: classYARN, want: "the tokens of the launch context"},
		"link":         {context: resource("../x", nil), class: classYARN, want: "outside of the container's directory"},
		"absolute":     {context: resource("/x", nil), class: classYARN, want: "outside of the container's directory"},
		"no place":     {context: resource("x", func(r *pb.LocalResourceProto) { r.Resource = nil }), class: classYARN, want: "Null resource URL for local resource x"},
		"no type":      {context: resource("x", func(r *pb.LocalResourceProto) { r.Type = nil }), class: classYARN, want: "Null resource type"},
		"visibility":   {context: resource("x", func(r *pb.LocalResourceProto) { r.Visibility = nil }), class: classYARN, want: "Null resource visibility"},
		"runs already": {outcome: &rmpb.LaunchOutcome{Code: int32(codes.AlreadyExists)}, class: classInvalid, want: "already is running on this node!!"},
		"has ended":    {outcome: &rmpb.LaunchOutcome{Code: int32(codes.NotFound), Message: "gone"}, class: classYARN, want: "gone"},
		"not ours":     {outcome: &rmpb.LaunchOutcome{Code: int32(codes.PermissionDenied), Message: "no"}, class: classYARN, want: "Unauthorized request to start container. no"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.token == nil {
				c.token = containerToken(nil)
			}
			if c.context == nil {
				c.context = sparks()
			}
			node := new(fakeNode)
			if c.outcome != nil {
				node.outcomes = func(int, string) *rmpb.LaunchOutcome { return c.outcome }
			}
			answer := new(pb.StartContainersResponseProto)
			// A good one goes with it, and is not touched.
			err := call(t, serve(t, node), nmToken(), "startContainers", &pb.StartContainersRequestProto{StartContainerRequest: []*pb.StartContainerRequestProto{
				{ContainerLaunchContext: c.context, ContainerToken: c.token},
			}}, answer)
			if err != nil || len(answer.FailedRequests) != 1 || len(answer.SucceededRequests) != 0 {
				t.Fatalf("%v %v", answer, err)
			}
			e := answer.FailedRequests[0].GetException()
			if e.GetClassName() != c.class || !strings.Contains(e.GetMessage(), c.want) {
				t.Errorf("%s: %s; want %s: %s", e.GetClassName(), e.GetMessage(), c.class, c.want)
			}
		})
	}
}

// Auxiliary services hear whether the container may start with which their data came.
func TestServicesHearWhetherAContainerStarts(t *testing.T) {
	with := func(tok *pb.TokenProto, more ...string) *pb.StartContainerRequestProto {
		c := sparks()
		c.ServiceData = []*pb.StringBytesMapProto{{Key: new("known"), Value: []byte("token")}}
		for _, name := range more {
			c.ServiceData = append(c.ServiceData, &pb.StringBytesMapProto{Key: &name})
		}
		return &pb.StartContainerRequestProto{ContainerLaunchContext: c, ContainerToken: tok}
	}
	refused := func(i int, id string) *rmpb.LaunchOutcome {
		return &rmpb.LaunchOutcome{ContainerId: id, Code: int32(codes.NotFound) * int32(i)}
	}
	for name, c := range map[string]struct {
		node *fakeNode
		last *pb.StartContainerRequestProto
		want []bool
	}{
		"started, and refused":           {&fakeNode{outcomes: refused}, with(containerToken(nil)), []bool{true, false}},
		"nobody knows":                   {&fakeNode{err: errors.New("away"), outcomes: refused}, with(containerToken(nil)), []bool{true, true}},
		"a service that is not there":    {&fakeNode{}, with(containerToken(nil), "spark_shuffle"), []bool{false, true}},
		"a request that is not answered": {&fakeNode{}, with(nil), []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			node := c.node
			_ = call(t, serve(t, node), nmToken(), "startContainers", &pb.StartContainersRequestProto{StartContainerRequest: []*pb.StartContainerRequestProto{with(containerToken(nil)), c.last}},
				new(pb.StartContainersResponseProto))
			node.mu.Lock()
			defer node.mu.Unlock()
			if !slices.Equal(node.settled, c.want) {
				t.Errorf("told %v, want %v", node.settled, c.want)
			}
		})
	}
}

func TestWhoIsLetIn(t *testing.T) {
	addr := serve(t, new(fakeNode))
	q, answer := new(pb.GetContainerStatusesRequestProto), new(pb.GetContainerStatusesResponseProto)
	if err := call(t, addr, nil, "getContainerStatuses", q, answer); err == nil {
		t.Error("a bare name is let in")
	}
	forged := nmToken()
	forged.Password[0]++
	elsewhere := issuer.Node(noon, "n2:8042", yarntoken.Visit{Attempt: attempt, Address: address})
	masters := issuer.Master(noon, attempt)
	for name, shown := range map[string]*token.Token{"forged": forged, "for another node": &elsewhere, "a master's": &masters} {
		if err := call(t, addr, shown, "getContainerStatuses", q, answer); err == nil {
			t.Errorf("a token that is %s is taken", name)
		}
	}
	if err := call(t, addr, nmToken(), "getContainerStatuses", q, answer); err != nil {
		t.Error(err)
	}
}

func TestContainersThatAreHere(t *testing.T) {
	node := new(fakeNode)
	addr := serve(t, node)
	foreign := containerID(1)
	foreign.Attempt.Application.Sequence++
	ids := []*pb.ContainerIdProto{pb.Container(containerID(1)), pb.Container(containerID(2)), pb.Container(containerID(3)), pb.Container(foreign), {}}
	statuses := new(pb.GetContainerStatusesResponseProto)
	if err := call(t, addr, nmToken(), "getContainerStatuses", &pb.GetContainerStatusesRequestProto{ContainerId: ids}, statuses); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range statuses.Status {
		got = append(got, fmt.Sprintf("%v %d %s", s.GetState(), s.GetExitStatus(), s.GetDiagnostics()))
	}
	if want := "C_RUNNING -1000 |C_COMPLETE 137 killed ?"; strings.Join(got, "|") != want || len(statuses.FailedRequests) != 3 {
		t.Errorf("%q %v", got, statuses.FailedRequests)
	}
	stopped := new(pb.StopContainersResponseProto)
	if err := call(t, addr, nmToken(), "stopContainers", &pb.StopContainersRequestProto{ContainerId: ids}, stopped); err != nil || len(stopped.SucceededRequests) != 2 || len(stopped.FailedRequests) != 3 {
		t.Errorf("%v %v", stopped, err)
	}
	if m := stopped.FailedRequests[0].GetException().GetMessage(); m != "Container container_1789000000000_0021_01_000003 is not handled by this NodeManager" {
		t.Error(m)
	}
	for command, want := range map[pb.SignalContainerCommandProto]int{1: 3, 2: 15, 3: 9} {
		q := &pb.SignalContainerRequestProto{ContainerId: ids[0], Command: &command}
		if err := call(t, addr, nmToken(), "signalToContainer", q, new(pb.SignalContainerResponseProto)); err != nil || node.signals[len(node.signals)-1] != want {
			t.Errorf("%v: %v %v", command, node.signals, err)
		}
	}
	err := call(t, addr, nmToken(), "reInitializeContainer", new(pb.ReInitializeContainerRequestProto), new(pb.ReInitializeContainerResponseProto))
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); !ok || remote.Class != "java.lang.UnsupportedOperationException" {
		t.Errorf("%v", err)
	}
}

// A panic ends the call, and neither the connection nor the node manager.
func TestAPanicEndsOneCall(t *testing.T) {
	addr := serve(t, new(fakeNode))
	for number, want := range map[int64]string{666: "internal error in getContainerStatuses", 1: ""} {
		q := &pb.GetContainerStatusesRequestProto{ContainerId: []*pb.ContainerIdProto{pb.Container(containerID(number))}}
		err := call(t, addr, nmToken(), "getContainerStatuses", q, new(pb.GetContainerStatusesResponseProto))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("container %d: %v, want %q", number, err, want)
		}
	}
}

func FuzzStartContainers(f *testing.F) {
	seed, err := (&pb.StartContainersRequestProto{StartContainerRequest: []*pb.StartContainerRequestProto{
		{ContainerLaunchContext: sparks(), ContainerToken: containerToken(nil)},
	}}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(pb.StartContainersRequestProto)
		if q.UnmarshalVT(b) != nil {
			return
		}
		for _, r := range q.GetStartContainerRequest() {
			if l, err := launchOf(r.GetContainerLaunchContext()); err == nil && (len(l.GetArgv()) != 1 || l.GetDialect() != "yarn") {
				t.Errorf("%v", l)
			}
		}
		node := new(fakeNode)
		s := &service{Config: Config{Node: node, Address: func() string { return address }, Now: func() time.Time { return noon }}}
		_, _ = s.start(context.Background(), attempt, q)
		for _, l := range node.launches {
			if l.GetContainerId() != containerID(1).String() {
				t.Errorf("launched %s without a token for it", l.GetContainerId())
			}
		}
	})
}

// slowNode takes its time to stop a container.
type slowNode struct {
	fakeNode
	begun, goesOn chan struct{}
}

func (s *slowNode) Stop(rm.ContainerID, string) bool {
	close(s.begun)
	<-s.goesOn
	return true
}

// What a master that has gone still wants done is done when the server has ended: nobody touches the node after that.
func TestAServerEndsWithItsCalls(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	node := &slowNode{begun: make(chan struct{}), goesOn: make(chan struct{})}
	srv := NewServer(Config{Node: node, Door: security.NewDoor(security.Config{}), Address: func() string { return address }, Now: func() time.Time { return noon }})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	shown := nmToken()
	client, err := hrpc.Dial(t.Context(), l.Addr().String(), hrpc.DialConfig{Protocol: Protocol, Token: func(string) (hrpc.Token, bool) {
		return hrpc.Token{Identifier: shown.Identifier, Password: shown.Password}, true
	}})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		asked <- client.Call(t.Context(), Protocol, "stopContainers", &pb.StopContainersRequestProto{ContainerId: []*pb.ContainerIdProto{pb.Container(containerID(1))}}, &pb.StopContainersResponseProto{})
	}()
	<-node.begun
	client.Close()
	if err := <-asked; err == nil {
		t.Error("a call was answered that goes on")
	}
	cancel()
	select {
	case <-done:
		close(node.goesOn)
		t.Fatal("the server has ended while it stops a container")
	case <-time.After(200 * time.Millisecond):
	}
	close(node.goesOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
