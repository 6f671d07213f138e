package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/hadoop"
	"github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

const (
	clientProtocol = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
	masterProtocol = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
	adminProtocol  = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB"
)

// yarnCluster has one member that speaks YARN's RPC at an address, and a node that says that it does, too.
func yarnCluster(t *testing.T) (*testCluster, *fakeNode, string) {
	l := listen(t, "127.0.0.1:0")
	c := newTestCluster(t, 1, func(c *Config) { c.IPC = []net.Listener{l} })
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	n.set(func() { n.spoil = func(r *pb.NodeReport) { r.IpcAddress = "127.0.0.1:1002" } })
	c.awaitOpen(n)
	c.raise()
	eventually(t, "the node's ipc", func() bool { return c.leader().View().Node(rm.NodeID(n.id)).IPC != "" })
	return c, n, l.Addr().String()
}

// dialYARN opens a connection as a user, or as the bearer of a token.
func dialYARN(t *testing.T, addr, protocol, user string, with *token.Token) *hrpc.Client {
	t.Helper()
	config := hrpc.DialConfig{Protocol: protocol, User: user, DialTimeout: time.Minute}
	if with != nil {
		config.Token = func(string) (hrpc.Token, bool) {
			return hrpc.Token{Identifier: with.Identifier, Password: with.Password}, true
		}
	}
	conn, err := hrpc.Dial(t.Context(), addr, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func ask(t *testing.T, conn *hrpc.Client, protocol, method string, request, answer hrpc.Message) {
	t.Helper()
	if err := conn.Call(t.Context(), protocol, method, request, answer); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
}

// wantClass checks that a call is refused by a Java class, with words.
func wantClass(t *testing.T, conn *hrpc.Client, protocol, method string, request hrpc.Message, class, words string) {
	t.Helper()
	if err := classed(t, conn, protocol, method, request, class, words); err != nil {
		t.Error(err)
	}
}

// classed says how a call is not refused by a Java class, with words; nil: it is.
func classed(t *testing.T, conn *hrpc.Client, protocol, method string, request hrpc.Message, class, words string) error {
	err := conn.Call(t.Context(), protocol, method, request, &yarnpb.SubmitApplicationResponseProto{})
	remote, ok := errors.AsType[*hrpc.RemoteError](err)
	if !ok || !strings.HasSuffix(remote.Class, class) || !strings.Contains(remote.Message, words) {
		return fmt.Errorf("%s: %v, want %s: …%s…", method, err, class, words)
	}
	return nil
}

// whileLeading has something said to a member that leads, one of those that may, and returns that one. On a busy machine leaders change without being
// told to: what fails for that is said again from its beginning, to who leads then.
func (c *testCluster) whileLeading(may func(*member) bool, say func(*member) error) *member {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		m := c.leader()
		r := m.reign.Load()
		err := errors.New("nobody leads who may")
		switch {
		case r == nil:
		case may(m):
			if err = say(m); err == nil {
				return m
			}
			if m.group.Load().ReadWait(c.t.Context()) == nil && m.group.Load().Status().Term == r.term { // it has led all the time
				c.t.Fatal(err)
			}
		default:
			i := slices.IndexFunc(c.live, func(next *member) bool { return next != nil && may(next) })
			_ = m.group.Load().TransferLeadership(c.t.Context(), c.peers[i].ID) // it may lead no more
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

func anybody(*member) bool { return true }

func capability(mib int64, gpus int64) *yarnpb.ResourceProto {
	return &yarnpb.ResourceProto{Memory: &mib, VirtualCores: new(int32(1)), ResourceValueMap: []*yarnpb.ResourceInformationProto{{Key: new(rm.GPUName), Value: &gpus}}}
}

// submitYARN submits an application as a user, with credentials of its own.
func submitYARN(t *testing.T, conn *hrpc.Client) rm.ApplicationID {
	t.Helper()
	id, err := submittedYARN(t, conn)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func submittedYARN(t *testing.T, conn *hrpc.Client) (rm.ApplicationID, error) {
	var made yarnpb.GetNewApplicationResponseProto
	if err := conn.Call(t.Context(), clientProtocol, "getNewApplication", &yarnpb.GetNewApplicationRequestProto{}, &made); err != nil {
		return rm.ApplicationID{}, err
	}
	own := token.Credentials{{Alias: "fs", Token: token.Token{Identifier: []byte("i"), Password: []byte("p"), Kind: "K", Service: "s"}}}.Encode()
	err := conn.Call(t.Context(), clientProtocol, "submitApplication", &yarnpb.SubmitApplicationRequestProto{ApplicationSubmissionContext: &yarnpb.ApplicationSubmissionContextProto{
		ApplicationId: made.ApplicationId, ApplicationName: new("pi"), ApplicationType: new("SPARK"), Resource: capability(512, 0), ApplicationTags: []string{"A"},
		AmContainerSpec: &yarnpb.ContainerLaunchContextProto{
			Command: []string{"{{JAVA_HOME}}/bin/java", "Main", "1>", "<LOG_DIR>/stdout"}, Tokens: own,
			Environment: []*yarnpb.StringStringMapProto{{Key: new("CLASSPATH"), Value: new("{{PWD}}<CPS>x")}},
			LocalResources: []*yarnpb.StringLocalResourceMapProto{{Key: new("__libs__"), Value: &yarnpb.LocalResourceProto{
				Resource: &yarnpb.URLProto{Scheme: new("hdfs"), Host: new("nn"), Port: new(int32(8020)), File: new("/libs.zip")}, Size: new(int64(7)), Timestamp: new(int64(9)),
				Type: yarnpb.LocalResourceTypeProto_ARCHIVE.Enum(), Visibility: yarnpb.LocalResourceVisibilityProto_PRIVATE.Enum(),
			}}},
		},
	}}, &yarnpb.SubmitApplicationResponseProto{})
	id, _ := yarnpb.ParseApplication(made.ApplicationId)
	return id, err
}

// The seven methods that Spark uses, but for startContainers, which is the node manager's.
func TestAnApplicationByYARNsRPC(t *testing.T) {
	c, n, addr := yarnCluster(t)
	alice := dialYARN(t, addr, clientProtocol, "alice", nil)
	app := submitYARN(t, alice)
	report := func() *yarnpb.ApplicationReportProto {
		var out yarnpb.GetApplicationReportResponseProto
		ask(t, alice, clientProtocol, "getApplicationReport", &yarnpb.GetApplicationReportRequestProto{ApplicationId: yarnpb.Application(app)}, &out)
		return out.ApplicationReport
	}
	if r := report(); r.GetYarnApplicationState() != yarnpb.YarnApplicationStateProto_ACCEPTED || r.GetUser() != "alice" || r.GetQueue() != "root.default" || r.GetHost() != "N/A" || r.GetRpcPort() != -1 {
		t.Errorf("after submission: %v", r)
	}
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	spec := n.running(true)[0]
	if spec.Argv[0] != "{{JAVA_HOME}}/bin/java Main 1> <LOG_DIR>/stdout" || spec.Dialect != rm.DialectYARN || !spec.Tokens || spec.Env["CLASSPATH"] != "{{PWD}}<CPS>x" ||
		spec.Env["APPLICATION_WEB_PROXY_BASE"] != "/proxy/"+app.String() || spec.Artifacts[0].Uri != "hdfs://nn:8020/libs.zip" || spec.Artifacts[0].Kind != "archive" {
		t.Errorf("what the node is told to run: %+v", spec)
	}
	pulled, err := c.pull(spec.ContainerId, true)
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := token.Parse(pulled.LaunchTokens)
	if err != nil || len(credentials) != 2 || credentials[0].Token.Kind != yarntoken.MasterKind || credentials[1].Alias != "fs" {
		t.Fatalf("the master's credentials: %v, %v", credentials, err)
	}

	am := dialYARN(t, addr, masterProtocol, "", &credentials[0].Token)
	wantClass(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(int32)}, "ApplicationMasterNotRegisteredException", "")
	wantClass(t, am, clientProtocol, "getApplications", &yarnpb.GetApplicationsRequestProto{}, "AccessControlException", "is for what a master asks")
	wantClass(t, alice, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{}, "AccessControlException", "shows the token")
	var registered yarnpb.RegisterApplicationMasterResponseProto
	ask(t, am, masterProtocol, "registerApplicationMaster", &yarnpb.RegisterApplicationMasterRequestProto{Host: new("h"), RpcPort: new(int32(4321)), TrackingUrl: new("http://driver:4040")}, &registered)
	if registered.GetQueue() != "root.default" || registered.MaximumCapability.GetMemory() != 16<<10 || !slices.ContainsFunc(registered.ResourceTypes, func(r *yarnpb.ResourceTypeInfoProto) bool { return r.GetName() == rm.GPUName }) {
		t.Errorf("registered: %v", &registered)
	}
	if r := report(); r.GetYarnApplicationState() != yarnpb.YarnApplicationStateProto_RUNNING || r.GetHost() != "h" || r.GetRpcPort() != 4321 || r.GetOriginalTrackingUrl() != "http://driver:4040" {
		t.Errorf("after registration: %v", r)
	}

	next := int32(0)
	allocate := func(q *yarnpb.AllocateRequestProto) *yarnpb.AllocateResponseProto {
		t.Helper()
		q.ResponseId = new(next)
		var out yarnpb.AllocateResponseProto
		ask(t, am, masterProtocol, "allocate", q, &out)
		if next++; out.GetResponseId() != next {
			t.Fatalf("answer %d, want %d", out.GetResponseId(), next)
		}
		return &out
	}
	row := func(n int32) *yarnpb.ResourceRequestProto {
		return &yarnpb.ResourceRequestProto{Priority: &yarnpb.PriorityProto{Priority: new(int32(3))}, ResourceName: new("*"), Capability: capability(896, 1), NumContainers: &n, AllocationRequestId: new(int64(5))}
	}
	period := yarntoken.KeyID(time.Now())
	var got []*yarnpb.ContainerProto
	var visits []*yarnpb.NMTokenProto
	take := func(a *yarnpb.AllocateResponseProto) {
		got, visits = append(got, a.AllocatedContainers...), append(visits, a.NmTokens...)
	}
	take(allocate(&yarnpb.AllocateRequestProto{Ask: []*yarnpb.ResourceRequestProto{row(2)}, Progress: new(float32(0.1))}))
	eventually(t, "two containers", func() bool {
		if len(got) < 2 {
			take(allocate(&yarnpb.AllocateRequestProto{}))
		}
		return len(got) == 2
	})
	if len(visits) != 1 && yarntoken.KeyID(time.Now()) == period || yarnpb.ParseNode(visits[0].NodeId) != "127.0.0.1:1002" {
		t.Errorf("NMTokens %v: one for the node is enough, of a day", visits)
	}
	// What the node manager can tell of the tokens by the keys that it was given with its orders.
	verifier := yarntoken.NewVerifier(c.leader().yarnTokens.NodeKeys(time.Now(), rm.NodeID(n.id)))
	if _, visit, err := verifier.Node(time.Now(), visits[0].Token.Identifier); err != nil || visit.Attempt.Application != app || visit.User != "alice" {
		t.Errorf("NMToken: %v, %v", visit, err)
	}
	grant, err := verifier.Container(time.Now(), yarntoken.Read(got[0].ContainerToken))
	if id, _ := yarnpb.ParseContainer(got[0].Id); err != nil || grant.Container != id || grant.Resource.GPUs != 1 || grant.Request != 5 || got[0].GetAllocationRequestId() != 5 || got[0].Priority.GetPriority() != 3 {
		t.Errorf("ContainerToken: %+v, %v", grant, err)
	}

	// The answer was lost, and is asked for again: it is the same. One before it is an error.
	var again yarnpb.AllocateResponseProto
	ask(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(next - 1)}, &again)
	if again.GetResponseId() != next {
		t.Errorf("the same answer again: %d, want %d", again.GetResponseId(), next)
	}
	wantClass(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(next - 2)}, "InvalidApplicationMasterRequestException", "expect responseId")
	wantClass(t, am, masterProtocol, "registerApplicationMaster", &yarnpb.RegisterApplicationMasterRequestProto{}, "InvalidApplicationMasterRequestException", "already registered")
	wantClass(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: &next, Ask: []*yarnpb.ResourceRequestProto{{ResourceName: new("*"), Capability: capability(64<<10, 0), NumContainers: new(int32(1))}}},
		"InvalidResourceRequestException", "greater than maximum allowed allocation")
	other := yarnpb.Container(rm.ContainerID{Attempt: rm.AttemptID{Application: rm.ApplicationID{Cluster: 1, Sequence: 1}, Number: 1}, Number: 1})
	wantClass(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: &next, Release: []*yarnpb.ContainerIdProto{other}}, "InvalidContainerReleaseException", "")

	// A release is answered at once, and once.
	ends := allocate(&yarnpb.AllocateRequestProto{Release: []*yarnpb.ContainerIdProto{got[1].Id}}).CompletedContainerStatuses
	if len(ends) != 1 || ends[0].GetExitStatus() != -100 || ends[0].GetState() != yarnpb.ContainerStateProto_C_COMPLETE {
		t.Errorf("released: %v", ends)
	}
	// The other one is launched, as its node manager does, and ends with its node manager's word.
	id, _ := yarnpb.ParseContainer(got[0].Id)
	if errs, err := c.leader().LaunchContainers(t.Context(), id.Attempt, []rm.ContainerLaunch{{Container: id, Launch: &rm.Launch{Argv: []string{"work"}, Dialect: rm.DialectYARN}}}); err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	eventually(t, "the container to run", func() bool { return len(n.running(false)) == 1 })
	n.set(func() { n.containers[id.String()].cancel() })
	n.poke()
	var over []*yarnpb.ContainerStatusProto
	eventually(t, "its end to be told", func() bool {
		over = append(over, allocate(&yarnpb.AllocateRequestProto{}).CompletedContainerStatuses...)
		return len(over) > 0
	})
	if ended, _ := yarnpb.ParseContainer(over[0].ContainerId); len(over) != 1 || ended != id {
		t.Errorf("told of %v", over)
	}

	var finished yarnpb.FinishApplicationMasterResponseProto
	for range 2 { // the second time because the answer was lost
		ask(t, am, masterProtocol, "finishApplicationMaster", &yarnpb.FinishApplicationMasterRequestProto{FinalApplicationStatus: yarnpb.FinalApplicationStatusProto_APP_SUCCEEDED.Enum(), Diagnostics: new("done")}, &finished)
		if !finished.GetIsUnregistered() {
			t.Error("it has not been taken down at once")
		}
	}
	wantClass(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: &next}, "ApplicationAttemptNotFoundException", "")
	if r := report(); r.GetYarnApplicationState() != yarnpb.YarnApplicationStateProto_FINISHED || r.GetFinalApplicationStatus() != yarnpb.FinalApplicationStatusProto_APP_SUCCEEDED || r.GetDiagnostics() != "done" {
		t.Errorf("at the end: %v", r)
	}
}

// yarnGroup has three members that speak YARN's RPC, a node that says that it does, too, and an application whose master runs there. dial connects to a
// member as that master.
func yarnGroup(t *testing.T) (c *testCluster, app rm.ApplicationID, dial func(*member) *hrpc.Client) {
	listeners := map[string]net.Listener{}
	c = newTestCluster(t, 3, func(c *Config) {
		l := listen(t, "127.0.0.1:0")
		listeners[c.ID], c.IPC = l, []net.Listener{l}
	})
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	n.set(func() { n.spoil = func(r *pb.NodeReport) { r.IpcAddress = "127.0.0.1:1002" } })
	c.awaitOpen(n)
	c.raise()
	eventually(t, "the node's ipc", func() bool { return c.leader().View().Node(rm.NodeID(n.id)).IPC != "" })
	at := func(m *member) string { return listeners[m.config.ID].Addr().String() }
	c.whileLeading(anybody, func(leader *member) (err error) {
		for _, m := range c.live {
			if m == leader {
				continue
			}
			follower := dialYARN(t, at(m), clientProtocol, "alice", nil)
			if err := classed(t, follower, clientProtocol, "getNewApplication", &yarnpb.GetNewApplicationRequestProto{}, "ipc.StandbyException", "not Active"); err != nil {
				return err
			}
		}
		app, err = submittedYARN(t, dialYARN(t, at(leader), clientProtocol, "alice", nil))
		return err
	})
	eventually(t, "the master to run", func() bool {
		return slices.ContainsFunc(n.running(true), func(s *pb.ContainerSpec) bool { return s.ApplicationId == app.String() })
	})
	proof := c.live[0].yarnTokens.Master(time.Now(), rm.AttemptID{Application: app, Number: 1})
	return c, app, func(m *member) *hrpc.Client { return dialYARN(t, at(m), masterProtocol, "", &proof) }
}

// registerYARN and allocateYARN are calls of a master.
func registerYARN(t *testing.T, am *hrpc.Client) error {
	return am.Call(t.Context(), masterProtocol, "registerApplicationMaster", &yarnpb.RegisterApplicationMasterRequestProto{Host: new("h"), RpcPort: new(int32(-1))}, &yarnpb.RegisterApplicationMasterResponseProto{})
}

func allocateYARN(t *testing.T, am *hrpc.Client, number int32, rows ...*yarnpb.ResourceRequestProto) (*yarnpb.AllocateResponseProto, error) {
	out := &yarnpb.AllocateResponseProto{}
	return out, am.Call(t.Context(), masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: &number, Ask: rows}, out)
}

// A master goes on with another leader, which knows nothing of it: it registers again and says what it wants.
func TestAMasterOfYARNsAfterAFailOver(t *testing.T) {
	c, app, dial := yarnGroup(t)
	row := &yarnpb.ResourceRequestProto{ResourceName: new("*"), Capability: capability(896, 1), NumContainers: new(int32(9))}
	first := c.whileLeading(anybody, func(m *member) error {
		am := dial(m)
		if err := registerYARN(t, am); err != nil {
			return err
		}
		_, err := allocateYARN(t, am, 0, row)
		return err
	})
	eventually(t, "four grants", func() bool { return c.leader().View().Application(app).Live == 5 })
	c.kill(slices.Index(c.live, first))

	c.whileLeading(anybody, func(second *member) error {
		am := dial(second)
		if err := classed(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(int32(1))}, "ApplicationMasterNotRegisteredException", "register again"); err != nil {
			return err
		}
		if err := registerYARN(t, am); err != nil {
			return err
		}
		if left := second.View().Asks(app); len(left) != 0 {
			return fmt.Errorf("what the master wanted of the first leader stays: %v", left)
		}
		// The four that were granted are told again, because nobody knows whether the first answer arrived.
		var got []*yarnpb.ContainerProto
		for next := int32(0); len(got) < 4; next++ {
			out, err := allocateYARN(t, am, next)
			if err != nil || next > 1000 {
				return fmt.Errorf("%d containers, %w", len(got), err)
			}
			got = append(got, out.AllocatedContainers...)
		}
		if len(got) != 4 || len(got[0].ContainerToken.GetIdentifier()) == 0 {
			return fmt.Errorf("told again: %v", got)
		}
		return nil
	})
}

// Leadership goes to another process and comes back: what the first one knew of the master is of an earlier reign, and counts no more.
func TestAMasterOfYARNsAfterLeadershipComesBack(t *testing.T) {
	c, _, dial := yarnGroup(t)
	said := func(am *hrpc.Client, numbers int32) error {
		if err := registerYARN(t, am); err != nil {
			return err
		}
		for number := range numbers {
			if _, err := allocateYARN(t, am, number); err != nil {
				return err
			}
		}
		return nil
	}
	first := c.whileLeading(anybody, func(m *member) error { return said(dial(m), 5) })
	c.whileLeading(func(m *member) bool { return m != first }, func(m *member) error { return said(dial(m), 2) })
	c.whileLeading(func(m *member) bool { return m == first }, func(m *member) error {
		am := dial(m)
		if err := classed(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(int32(2))}, "ApplicationMasterNotRegisteredException", "register again"); err != nil {
			return err
		}
		return said(am, 1)
	})
}

func TestWhoMayWhatByYARNsRPC(t *testing.T) {
	c, n, addr := yarnCluster(t)
	app := submitYARN(t, dialYARN(t, addr, clientProtocol, "alice", nil))
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	bob := dialYARN(t, addr, clientProtocol, "bob", nil)
	kill := &yarnpb.KillApplicationRequestProto{ApplicationId: yarnpb.Application(app)}
	wantClass(t, bob, clientProtocol, "forceKillApplication", kill, "YarnException", "User bob cannot perform operation MODIFY_APP on "+app.String())
	master, _ := rm.ParseContainerID(n.running(true)[0].ContainerId)
	wantClass(t, bob, clientProtocol, "signalToContainer", &yarnpb.SignalContainerRequestProto{
		ContainerId: yarnpb.Container(master), Command: yarnpb.SignalContainerCommandProto_FORCEFUL_SHUTDOWN.Enum(),
	}, "YarnException", "cannot perform operation MODIFY_APP")
	wantClass(t, bob, adminProtocol, "refreshQueues", &yarnpb.RefreshQueuesRequestProto{}, "AccessControlException", "bob")
	gone := &yarnpb.GetApplicationReportRequestProto{ApplicationId: yarnpb.Application(rm.ApplicationID{Cluster: 1, Sequence: 9})}
	wantClass(t, bob, clientProtocol, "getApplicationReport", gone, "ApplicationNotFoundException", "Application with id 'application_1_0009' doesn't exist in RM.")
	wantClass(t, bob, clientProtocol, "getNewReservation", &yarnpb.GetNewApplicationRequestProto{}, "YarnException", "ReservationSystem is not enabled")
	wantClass(t, bob, clientProtocol, "getDelegationToken", &yarnpb.GetNewApplicationRequestProto{}, "Exception", "only with kerberos authentication")
	for what, spoil := range map[string]func(*yarnpb.ApplicationSubmissionContextProto){
		"unmanaged":        func(p *yarnpb.ApplicationSubmissionContextProto) { p.UnmanagedAm = new(true) },
		"greater than":     func(p *yarnpb.ApplicationSubmissionContextProto) { p.Resource = capability(1<<20, 0) },
		"credentials":      func(p *yarnpb.ApplicationSubmissionContextProto) { p.AmContainerSpec.Tokens = []byte("no HDTS") },
		"not provided":     func(p *yarnpb.ApplicationSubmissionContextProto) { p.ApplicationId = nil },
		"Too many":         func(p *yarnpb.ApplicationSubmissionContextProto) { p.ApplicationTags = make([]string, 11) },
		"is not supported": func(p *yarnpb.ApplicationSubmissionContextProto) { p.NodeLabelExpression = new("gpu") },
		"no path inside": func(p *yarnpb.ApplicationSubmissionContextProto) {
			p.AmContainerSpec.LocalResources = []*yarnpb.StringLocalResourceMapProto{{Key: new("../x"), Value: &yarnpb.LocalResourceProto{Type: yarnpb.LocalResourceTypeProto_FILE.Enum(), Resource: &yarnpb.URLProto{File: new("/f")}}}}
		},
		"aux": func(p *yarnpb.ApplicationSubmissionContextProto) {
			p.AmContainerSpec.ServiceData = []*yarnpb.StringBytesMapProto{{Key: new("x")}}
		},
		"Cannot allocate": func(p *yarnpb.ApplicationSubmissionContextProto) { p.Resource.Memory = new(int64(-1)) },
	} {
		p := &yarnpb.ApplicationSubmissionContextProto{
			ApplicationId: yarnpb.Application(rm.ApplicationID{Cluster: app.Cluster, Sequence: 77}), Resource: capability(256, 0),
			AmContainerSpec: &yarnpb.ContainerLaunchContextProto{Command: []string{"true"}},
		}
		spoil(p)
		wantClass(t, bob, clientProtocol, "submitApplication", &yarnpb.SubmitApplicationRequestProto{ApplicationSubmissionContext: p}, "Exception", what)
	}

	// The token of an attempt: of another cluster, of one that is over, and one with another attempt written into it.
	dial := func(with token.Token) error {
		conn, err := hrpc.Dial(t.Context(), addr, hrpc.DialConfig{Protocol: masterProtocol, DialTimeout: time.Minute, Token: func(string) (hrpc.Token, bool) {
			return hrpc.Token{Identifier: with.Identifier, Password: with.Password}, true
		}})
		if err == nil {
			conn.Close()
		}
		return err
	}
	issuer := c.leader().yarnTokens
	id := rm.AttemptID{Application: app, Number: 1}
	if err := dial(issuer.Master(time.Now(), id)); err != nil {
		t.Errorf("the master's own token: %v", err)
	}
	foreign := yarntoken.NewIssuer(func(string, ...[]byte) []byte { return []byte("another secret") })
	forged := issuer.Master(time.Now(), id)
	forged.Identifier = bytes.Clone(foreign.Master(time.Now(), rm.AttemptID{Application: app, Number: 2}).Identifier)
	for what, with := range map[string]token.Token{
		"of another cluster": foreign.Master(time.Now(), id), "of an attempt that there is not": issuer.Master(time.Now(), rm.AttemptID{Application: app, Number: 2}),
		"forged": forged, "old": issuer.Master(time.Now().Add(-2*yarntoken.Period), id),
	} {
		if err := dial(with); err == nil {
			t.Errorf("a token %s is taken", what)
		}
	}
	ask(t, dialYARN(t, addr, clientProtocol, "alice", nil), clientProtocol, "forceKillApplication", kill, &yarnpb.KillApplicationResponseProto{})
	eventually(t, "its end", func() bool { return c.leader().View().Application(app).State.Final() })
	if err := dial(issuer.Master(time.Now(), id)); err != nil { // it may still want to know that it is over
		t.Errorf("the token of the last attempt of an application that has ended: %v", err)
	}
}

// What may be changed of an application that lives, by YARN's RPC.
func TestApplicationsAreChangedByYARNsRPC(t *testing.T) {
	c, n, addr := yarnCluster(t)
	alice := dialYARN(t, addr, clientProtocol, "alice", nil)
	app := submitYARN(t, alice)
	id := yarnpb.Application(app)
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	raise := func(p int32) *yarnpb.UpdateApplicationPriorityRequestProto {
		return &yarnpb.UpdateApplicationPriorityRequestProto{ApplicationId: id, ApplicationPriority: &yarnpb.PriorityProto{Priority: &p}}
	}
	end := func(at string) *yarnpb.UpdateApplicationTimeoutsRequestProto {
		return &yarnpb.UpdateApplicationTimeoutsRequestProto{ApplicationId: id, ApplicationTimeouts: []*yarnpb.ApplicationUpdateTimeoutMapProto{{
			ApplicationTimeoutType: yarnpb.ApplicationTimeoutTypeProto_APP_TIMEOUT_LIFETIME.Enum(), ExpireTime: &at,
		}}}
	}
	move := func(queue string) *yarnpb.MoveApplicationAcrossQueuesRequestProto {
		return &yarnpb.MoveApplicationAcrossQueuesRequestProto{ApplicationId: id, TargetQueue: &queue}
	}
	var priority yarnpb.UpdateApplicationPriorityResponseProto
	ask(t, alice, clientProtocol, "updateApplicationPriority", raise(99), &priority)
	if got := priority.ApplicationPriority.GetPriority(); got != rm.MaxPriority || c.leader().View().Application(app).Priority != rm.MaxPriority {
		t.Errorf("priority %d", got)
	}
	tomorrow := time.Now().Add(24 * time.Hour).UTC().Format(jersey.Timeout)
	ask(t, alice, clientProtocol, "updateApplicationTimeouts", end(tomorrow), &yarnpb.UpdateApplicationTimeoutsResponseProto{})
	var report yarnpb.GetApplicationReportResponseProto
	ask(t, alice, clientProtocol, "getApplicationReport", &yarnpb.GetApplicationReportRequestProto{ApplicationId: id}, &report)
	if got := report.ApplicationReport.AppTimeouts[0].ApplicationTimeout.GetExpireTime(); got != tomorrow {
		t.Errorf("it ends at %s, not at %s", got, tomorrow)
	}
	ask(t, alice, clientProtocol, "moveApplicationAcrossQueues", move("default"), &yarnpb.MoveApplicationAcrossQueuesResponseProto{})
	wantClass(t, alice, clientProtocol, "moveApplicationAcrossQueues", move("nowhere"), "AccessControlException", "the target queue doesn't exist: nowhere")
	wantClass(t, alice, clientProtocol, "updateApplicationTimeouts", end("soon"), "YarnException", "ISO8601")
	wantClass(t, alice, clientProtocol, "updateApplicationTimeouts", end("2001-01-01T00:00:00.000+0000"), "YarnException", "less than current time")
	wantClass(t, alice, clientProtocol, "updateApplicationTimeouts", &yarnpb.UpdateApplicationTimeoutsRequestProto{ApplicationId: id}, "YarnException", "At least one")
	eve := dialYARN(t, addr, clientProtocol, "eve", nil)
	wantClass(t, eve, clientProtocol, "updateApplicationPriority", raise(1), "YarnException", "eve cannot perform operation MODIFY_APP")
	attempt := func(number int) *yarnpb.FailApplicationAttemptRequestProto {
		return &yarnpb.FailApplicationAttemptRequestProto{ApplicationAttemptId: yarnpb.Attempt(rm.AttemptID{Application: app, Number: number})}
	}
	wantClass(t, eve, clientProtocol, "failApplicationAttempt", attempt(1), "YarnException", "MODIFY_APP")
	wantClass(t, alice, clientProtocol, "failApplicationAttempt", attempt(2), "ApplicationAttemptNotFoundException", "doesn't exist")
	ask(t, alice, clientProtocol, "failApplicationAttempt", attempt(1), &yarnpb.FailApplicationAttemptResponseProto{})
	ask(t, alice, clientProtocol, "forceKillApplication", &yarnpb.KillApplicationRequestProto{ApplicationId: id}, &yarnpb.KillApplicationResponseProto{})
	eventually(t, "its end", func() bool { return c.leader().View().Application(app).State.Final() })
	wantClass(t, alice, clientProtocol, "moveApplicationAcrossQueues", move("default"), "YarnException", "App in KILLED state cannot be moved.")
	ask(t, alice, clientProtocol, "updateApplicationPriority", raise(1), &priority)
	if got := priority.ApplicationPriority.GetPriority(); got != rm.MaxPriority {
		t.Errorf("of one that has ended: priority %d", got)
	}
	wantClass(t, alice, clientProtocol, "failApplicationAttempt", attempt(1), "YarnException", "cannot fail")
}

// What the yarn command line asks.
func TestWhatYARNsToolsAsk(t *testing.T) {
	_, n, addr := yarnCluster(t)
	root := dialYARN(t, addr, clientProtocol, "root", nil)
	app := submitYARN(t, root)
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	list := func(q *yarnpb.GetApplicationsRequestProto) int {
		var out yarnpb.GetApplicationsResponseProto
		ask(t, root, clientProtocol, "getApplications", q, &out)
		return len(out.Applications)
	}
	for what, c := range map[string]struct {
		q    *yarnpb.GetApplicationsRequestProto
		want int
	}{
		"all": {&yarnpb.GetApplicationsRequestProto{}, 1}, "accepted": {&yarnpb.GetApplicationsRequestProto{ApplicationStates: []yarnpb.YarnApplicationStateProto{yarnpb.YarnApplicationStateProto_ACCEPTED}}, 1},
		"running":       {&yarnpb.GetApplicationsRequestProto{ApplicationStates: []yarnpb.YarnApplicationStateProto{yarnpb.YarnApplicationStateProto_RUNNING}}, 0},
		"spark":         {&yarnpb.GetApplicationsRequestProto{ApplicationTypes: []string{"spark"}}, 1},
		"mapreduce":     {&yarnpb.GetApplicationsRequestProto{ApplicationTypes: []string{"MAPREDUCE"}}, 0},
		"tag":           {&yarnpb.GetApplicationsRequestProto{ApplicationTags: []string{"a"}}, 1},
		"other user":    {&yarnpb.GetApplicationsRequestProto{Users: []string{"bob"}}, 0},
		"queue":         {&yarnpb.GetApplicationsRequestProto{Queues: []string{"default"}}, 1},
		"no such queue": {&yarnpb.GetApplicationsRequestProto{Queues: []string{"x"}}, 0},
		"none":          {&yarnpb.GetApplicationsRequestProto{Limit: new(int64)}, 0},
		"before":        {&yarnpb.GetApplicationsRequestProto{StartEnd: new(int64(1))}, 0},
		"own":           {&yarnpb.GetApplicationsRequestProto{Scope: yarnpb.ApplicationsRequestScopeProto_OWN.Enum()}, 1},
	} {
		if got := list(c.q); got != c.want {
			t.Errorf("%s: %d applications, want %d", what, got, c.want)
		}
	}
	var nodes yarnpb.GetClusterNodesResponseProto
	ask(t, root, clientProtocol, "getClusterNodes", &yarnpb.GetClusterNodesRequestProto{NodeStates: []yarnpb.NodeStateProto{yarnpb.NodeStateProto_NS_RUNNING}}, &nodes)
	if len(nodes.NodeReports) != 1 || yarnpb.ParseNode(nodes.NodeReports[0].NodeId) != "127.0.0.1:1002" || nodes.NodeReports[0].GetNumContainers() != 1 {
		t.Errorf("nodes: %v", &nodes)
	}
	var metrics yarnpb.GetClusterMetricsResponseProto
	ask(t, root, clientProtocol, "getClusterMetrics", &yarnpb.GetClusterMetricsRequestProto{}, &metrics)
	if metrics.ClusterMetrics.GetNumNodeManagers() != 1 || metrics.ClusterMetrics.GetNumActiveNms() != 1 {
		t.Errorf("metrics: %v", &metrics)
	}
	var queue yarnpb.GetQueueInfoResponseProto
	ask(t, root, clientProtocol, "getQueueInfo", &yarnpb.GetQueueInfoRequestProto{QueueName: new("root"), Recursive: new(true), IncludeChildQueues: new(true), IncludeApplications: new(true)}, &queue)
	if q := queue.QueueInfo; q.GetQueuePath() != "root" || len(q.ChildQueues) != 1 || len(q.Applications) != 1 || q.ChildQueues[0].QueueStatistics.GetNumAppsPending() != 1 || q.QueueStatistics.GetAllocatedMemoryMB() != 512 {
		t.Errorf("queue: %v", q)
	}
	queue.Reset()
	ask(t, root, clientProtocol, "getQueueInfo", &yarnpb.GetQueueInfoRequestProto{QueueName: new("nowhere")}, &queue)
	if queue.QueueInfo != nil {
		t.Error("there is no queue of that name, and YARN answers with none")
	}
	var attempts yarnpb.GetApplicationAttemptsResponseProto
	ask(t, root, clientProtocol, "getApplicationAttempts", &yarnpb.GetApplicationAttemptsRequestProto{ApplicationId: yarnpb.Application(app)}, &attempts)
	if len(attempts.ApplicationAttempts) != 1 || attempts.ApplicationAttempts[0].AmContainerId == nil {
		t.Errorf("attempts: %v", &attempts)
	}
	var containers yarnpb.GetContainersResponseProto
	ask(t, root, clientProtocol, "getContainers", &yarnpb.GetContainersRequestProto{ApplicationAttemptId: yarnpb.Attempt(rm.AttemptID{Application: app, Number: 1})}, &containers)
	if len(containers.Containers) != 1 || !strings.Contains(containers.Containers[0].GetLogUrl(), "/node/containerlogs/container_") {
		t.Errorf("containers: %v", &containers)
	}
	var groups yarnpb.GetGroupsForUserResponseProto
	ask(t, root, adminProtocol, "getGroupsForUser", &yarnpb.GetGroupsForUserRequestProto{User: new("root")}, &groups)
	if !slices.Contains(groups.Groups, "root") {
		t.Errorf("groups of root: %v", &groups)
	}
	wantClass(t, root, adminProtocol, "replaceLabelsOnNode", &yarnpb.RefreshQueuesRequestProto{}, "UnsupportedOperationException", "not supported")
	if err := root.Call(context.Background(), clientProtocol, "getQueueUserAcls", &yarnpb.GetQueueUserAclsInfoRequestProto{}, &yarnpb.GetQueueUserAclsInfoResponseProto{}); err != nil {
		t.Error(err)
	}
}

// laterReign is a resource manager whose reign has begun at another time than it did.
type laterReign struct {
	*Server
	since time.Time
}

func (l laterReign) Reign() (uint64, time.Time) {
	number, _ := l.Server.Reign()
	return number, l.since
}

// Tokens are renewed while they still count, and a container's counts as long as the container is held.
func TestTheTokensOfAMasterOfYARNs(t *testing.T) {
	c, n, addr := yarnCluster(t)
	app := submitYARN(t, dialYARN(t, addr, clientProtocol, "alice", nil))
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	leader, issuer := c.leader(), c.leader().yarnTokens

	// The same resource manager at another port, with a clock of the test's, and a reign that began after the grants below.
	var clock atomic.Pointer[time.Time]
	now := time.Now()
	clock.Store(&now)
	config := leader.hadoop()
	config.Now = func() time.Time { return *clock.Load() }
	since := now.Add(time.Hour)
	config.Cluster = laterReign{leader.Server, since}
	l := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- hadoop.New(config).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	id := rm.AttemptID{Application: app, Number: 1}
	yesterday := issuer.Master(now.Add(-yarntoken.Period), id)
	am := dialYARN(t, l.Addr().String(), masterProtocol, "", &yesterday)
	// Somebody else names the attempt with a newer token, and cannot prove it.
	forged := issuer.Master(now, id)
	forged.Password = []byte("a guess")
	if conn, err := hrpc.Dial(t.Context(), l.Addr().String(), hrpc.DialConfig{Protocol: masterProtocol, DialTimeout: time.Minute, Token: func(string) (hrpc.Token, bool) {
		return hrpc.Token{Identifier: forged.Identifier, Password: forged.Password}, true
	}}); err == nil {
		conn.Close()
		t.Error("a guess is taken")
	}
	ask(t, am, masterProtocol, "registerApplicationMaster", &yarnpb.RegisterApplicationMasterRequestProto{Host: new("h"), RpcPort: new(int32(-1))}, &yarnpb.RegisterApplicationMasterResponseProto{})
	next := int32(0)
	allocate := func(q *yarnpb.AllocateRequestProto) *yarnpb.AllocateResponseProto {
		t.Helper()
		q.ResponseId = new(next)
		var out yarnpb.AllocateResponseProto
		ask(t, am, masterProtocol, "allocate", q, &out)
		next++
		return &out
	}
	out := allocate(&yarnpb.AllocateRequestProto{Ask: []*yarnpb.ResourceRequestProto{{ResourceName: new("*"), Capability: capability(896, 1), NumContainers: new(int32(1))}}})
	if out.AmRmToken == nil {
		t.Error("a master that has shown yesterday's token is given no new one")
	}
	got, visits := out.AllocatedContainers, out.NmTokens
	eventually(t, "a container", func() bool {
		if len(got) == 0 {
			out = allocate(&yarnpb.AllocateRequestProto{})
			got, visits = append(got, out.AllocatedContainers...), append(visits, out.NmTokens...)
		}
		return len(got) > 0
	})
	if len(visits) != 1 {
		t.Errorf("%d NMTokens for one node", len(visits))
	}
	keys := func(at time.Time) *yarntoken.Verifier {
		return yarntoken.NewVerifier(issuer.NodeKeys(at, rm.NodeID(n.id)))
	}
	grant, err := keys(now).Container(now, yarntoken.Read(got[0].ContainerToken))
	if want := metadata.TimeOf(since.Add(leader.config.LaunchWithin)); err != nil || grant.Expires != want {
		t.Errorf("the container's token ends at %v, and the container is held until %v: %v", grant.Expires.Time(), want.Time(), err)
	}
	if again := allocate(&yarnpb.AllocateRequestProto{}); len(again.NmTokens) != 0 {
		t.Errorf("given again in the same period: %v", again.NmTokens)
	}
	tomorrow := now.Add(yarntoken.Period)
	clock.Store(&tomorrow)
	out = allocate(&yarnpb.AllocateRequestProto{})
	if len(out.NmTokens) != 1 || out.AmRmToken == nil {
		t.Fatalf("in the next period: NMTokens %v, AMRMToken %v", out.NmTokens, out.AmRmToken)
	}
	late := tomorrow.Add(yarntoken.Period)
	if _, _, err := keys(late).Node(late, out.NmTokens[0].Token.Identifier); err != nil {
		t.Errorf("the new NMToken a period later: %v", err)
	}
	if out = allocate(&yarnpb.AllocateRequestProto{}); len(out.NmTokens) != 0 || out.AmRmToken != nil {
		t.Errorf("given twice: %v", out)
	}
}

// Many names of hosts: what is preferred is cut, what is required is taken whole, and what would be too much work is refused.
func TestManyNamesByYARNsRPC(t *testing.T) {
	c, n, addr := yarnCluster(t)
	app := submitYARN(t, dialYARN(t, addr, clientProtocol, "alice", nil))
	eventually(t, "the master to run", func() bool { return len(n.running(true)) == 1 })
	proof := c.leader().yarnTokens.Master(time.Now(), rm.AttemptID{Application: app, Number: 1})
	am := dialYARN(t, addr, masterProtocol, "", &proof)
	ask(t, am, masterProtocol, "registerApplicationMaster", &yarnpb.RegisterApplicationMasterRequestProto{Host: new("h"), RpcPort: new(int32(-1))}, &yarnpb.RegisterApplicationMasterResponseProto{})
	row := func(request int64, name string, relax bool) *yarnpb.ResourceRequestProto {
		return &yarnpb.ResourceRequestProto{
			ResourceName: &name, Capability: capability(896, 4), NumContainers: new(int32(2)), AllocationRequestId: &request, RelaxLocality: &relax,
		}
	}
	var rows []*yarnpb.ResourceRequestProto
	for request, relax := range []bool{false, true} {
		rows = append(rows, row(int64(request), "*", relax))
		for i := range 1500 {
			rows = append(rows, row(int64(request), fmt.Sprintf("h%04d", i), relax))
		}
	}
	rows = append(rows, row(2, "*", true), row(2, "/default-rack", true))
	ask(t, am, masterProtocol, "allocate", &yarnpb.AllocateRequestProto{ResponseId: new(int32), Ask: rows}, &yarnpb.AllocateResponseProto{})
	got := map[string]string{}
	for _, a := range c.leader().View().Asks(app) {
		got[strings.Split(a.ID, "/")[2]] = fmt.Sprint(len(a.Near.Words().Hosts), len(a.Near.Words().Racks), a.Strict)
	}
	if want := map[string]string{"0": "1500 0 true", "1": "1000 0 false", "2": "0 1 false"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var avoid []string
	for i := range 1500 {
		avoid = append(avoid, fmt.Sprintf("h%04d", i))
	}
	rows = nil
	for request := range int64(100) {
		rows = append(rows, row(request+10, "*", true))
	}
	much := &yarnpb.AllocateRequestProto{ResponseId: new(int32(1)), Ask: rows, BlacklistRequest: &yarnpb.ResourceBlacklistRequestProto{BlacklistAdditions: avoid}}
	wantClass(t, am, masterProtocol, "allocate", much, "InvalidApplicationMasterRequestException", "each with the 1500 to avoid")
	much.Ask = nil
	ask(t, am, masterProtocol, "allocate", much, &yarnpb.AllocateResponseProto{})
}
