package server

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hdfspb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// operator calls hops' own protocol as a user.
func (m *member) operator(t *testing.T, user, method string, request, answer hrpc.Message) error {
	t.Helper()
	client, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.OperatorName, User: user, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return client.Call(t.Context(), clientprotocol.OperatorName, method, request, answer)
}

// set asks for a state of datanodes, and says what the answer was: the addresses, or the words of the error.
func (m *member) set(t *testing.T, user string, state hdfspb.SetDatanodeStateRequestProto_StateProto, life time.Duration, names ...string) string {
	t.Helper()
	var answer hdfspb.SetDatanodeStateResponseProto
	err := m.operator(t, user, "setDatanodeState", &hdfspb.SetDatanodeStateRequestProto{
		Datanodes: names, State: state.Enum(), Duration: new(life.Milliseconds()),
	}, &answer)
	if err != nil {
		return err.Error()
	}
	return strings.Join(answer.Datanodes, " ")
}

// adminOf is the state of a datanode as a namenode knows it.
func (m *member) adminOf(uuid string) namenode.AdminState {
	for _, n := range m.Datanodes() {
		if string(n.Node.ID) == uuid {
			return n.Node.Admin
		}
	}
	return namenode.Normal
}

// oneBlock makes a file of one block, with a replica on each of the datanodes.
func (m *member) oneBlock(t *testing.T, path string, replication uint32, on ...*datanode) metadata.Block {
	t.Helper()
	w := m.begin(t, path, "writer", replication)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(100)
	for _, d := range on {
		d.has(b, pb.ReplicaState_FINALIZED)
	}
	m.knows(t, b, len(on))
	eventually(t, path+" is closed", func() bool {
		ok, err := w.complete()
		return err == nil && ok
	})
	return b
}

// A datanode has the name of the machine in its certificate, in commands and in files.
func TestDatanodesAreNamedByTheirMachine(t *testing.T) {
	t.Parallel()
	exclude := filepath.Join(t.TempDir(), "exclude")
	if err := os.WriteFile(exclude, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, func(c *Config) { c.Properties.HostsExclude = exclude })
	one := c.datanode("dn-1") // every test's datanode is on the machine "test"
	lead := c.leader()
	super := lead.config.Door.Daemon()
	if got := lead.set(t, super, decommission, 0, "TEST"); got != one.transfer() {
		t.Fatalf("decommission: %q", got)
	}
	eventually(t, "it is decommissioned", func() bool { return lead.adminOf("dn-1") == namenode.Decommissioned })
	if got := lead.set(t, super, inService, 0, "test"); got != one.transfer() {
		t.Fatalf("recommission: %q", got)
	}
	eventually(t, "it is in service", func() bool { return lead.adminOf("dn-1") == namenode.Normal })
	if err := os.WriteFile(exclude, []byte("test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lead.refreshNodes(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file has it decommissioned", func() bool { return lead.adminOf("dn-1") == namenode.Decommissioned })
}

// What a machine's datanodes have is known before the machine is taken out.
func TestWhatAMachineHolds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	one, two := c.datanode("dn-1"), c.datanode("dn-2")
	lead := c.leader()
	b := lead.oneBlock(t, "/g", 2, one) // of which two replicas stay
	only := func(nodes ...namenode.NodeID) int {
		lead.soft.mu.Lock()
		defer lead.soft.mu.Unlock()
		return lead.soft.m.OnlyOn(nodes, slices.Collect(lead.soft.m.BlocksOf("dn-1")))
	}
	eventually(t, "the block to be dn-1's alone", func() bool { return only("dn-1") == 1 && only("dn-2") == 0 })
	two.has(b, pb.ReplicaState_FINALIZED)
	eventually(t, "another one to have it", func() bool { return only("dn-1") == 0 })
	if n := only("dn-1", "dn-2"); n != 1 {
		t.Errorf("%d blocks are those of both alone", n)
	}
	ask := func(machine, user string) string {
		t.Helper()
		answer, err := http.Get("http://" + lead.http + "/api/v1/cluster/machines/" + machine + "/holds?user.name=" + user)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, row := range []struct{ who, machine, user, words string }{
		{"the superuser", "test", lead.config.Door.Daemon(), `"blocks":1,"only":1`},
		{"the superuser, of a machine without datanodes", "m9", lead.config.Door.Daemon(), `"datanodes":[],"blocks":0,"only":0`},
		{"a user", "test", "alice", "alice is not a superuser"},
	} {
		t.Run(row.who, func(t *testing.T) {
			if text := ask(row.machine, row.user); !strings.Contains(text, row.words) {
				t.Errorf("%s, want %s", text, row.words)
			}
		})
	}
	one.die()
	two.die()
	missing := fmt.Sprintf(`"only":0,"missing":1,"lost":["blk_%d"]`, b.ID)
	eventually(t, "the blocks of datanodes that are dead are missing", func() bool { return strings.Contains(ask("test", lead.config.Door.Daemon()), missing) })
	if text := ask("m9", lead.config.Door.Daemon()); strings.Contains(text, "missing") {
		t.Errorf("of a machine that has no datanode: %s", text)
	}
}

// transfer is the address of its data transfer.
func (d *datanode) transfer() string { return fmt.Sprintf("127.0.0.1:%d", d.port) }

const (
	inService     = hdfspb.SetDatanodeStateRequestProto_IN_SERVICE
	decommission  = hdfspb.SetDatanodeStateRequestProto_DECOMMISSIONED
	inMaintenance = hdfspb.SetDatanodeStateRequestProto_IN_MAINTENANCE
)

func TestADatanodeIsDecommissionedAndTheNextLeaderKnows(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	one, two := c.datanode("dn-1"), c.datanode("dn-2")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	b := lead.oneBlock(t, "/g", 1, one)

	for _, refused := range []struct{ who, user, name, words string }{
		{"a user", "alice", one.transfer(), "Superuser privilege is required"},
		{"the superuser, of a datanode that is not there", super, "nowhere:1", "no datanode nowhere:1: give a machine's name, HOST"},
		{"the superuser, of no name at all", super, "a:b:c", "neither HOST nor HOST:PORT"},
	} {
		t.Run("refused: "+refused.who, func(t *testing.T) {
			if got := lead.set(t, refused.user, decommission, 0, refused.name); !strings.Contains(got, refused.words) {
				t.Errorf("%q, want %q", got, refused.words)
			}
		})
	}
	if got := lead.set(t, super, decommission, 0, one.transfer()); got != one.transfer() {
		t.Fatalf("decommission: %q", got)
	}
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" knows", func() bool { return m.adminOf("dn-1") != namenode.Normal })
	}
	// Its block is copied, and then it may go.
	one.received("copy the block", func(o *pb.Orders) bool {
		return slices.ContainsFunc(o.Replicate, func(r *pb.Replicate) bool { return r.Block.Id == int64(b.ID) && r.Targets[0].Uuid == "dn-2" })
	})
	if s := lead.adminOf("dn-1"); s != namenode.DecommissionInProgress {
		t.Errorf("with a block left it is %v", s)
	}
	two.has(b, pb.ReplicaState_FINALIZED)
	eventually(t, "it is decommissioned", func() bool { return lead.adminOf("dn-1") == namenode.Decommissioned })

	// Another one leads: it finds the same.
	next := c.handOver(t, func(m *member) bool { return m != lead }, "")
	eventually(t, "the next leader has decommissioned it", func() bool { return next.adminOf("dn-1") == namenode.Decommissioned })
	if got := next.set(t, super, inService, 0, "dn-1"); got != one.transfer() {
		t.Errorf("recommission: %q", got)
	}
	eventually(t, "it is in service", func() bool { return next.adminOf("dn-1") == namenode.Normal })
}

func TestAMaintenanceEndsByItself(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	one := c.datanode("dn-1")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	if got := lead.set(t, super, inMaintenance, time.Hour, "127.0.0.1"); got != one.transfer() {
		t.Fatal(got)
	}
	eventually(t, "it is in maintenance", func() bool { return lead.adminOf("dn-1") == namenode.InMaintenance })
	if got := lead.set(t, super, decommission, time.Hour, "dn-1"); !strings.Contains(got, "nothing else ends by itself") {
		t.Errorf("a decommission with an end: %q", got)
	}
	if got := lead.set(t, super, inMaintenance, time.Millisecond, "dn-1"); got != one.transfer() {
		t.Fatal(got)
	}
	eventually(t, "its time is over", func() bool { return lead.adminOf("dn-1") == namenode.Normal })
	eventually(t, "the register has forgotten it", func() bool {
		for range lead.ns.Items(wishes) {
			return false
		}
		return true
	})
}

func TestHostListsAreTheClustersAndReadWhenTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	include, exclude := filepath.Join(dir, "hosts"), filepath.Join(dir, "exclude")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(include, "")
	write(exclude, "localhost\n")
	c := newCluster(t, 1, func(c *Config) {
		c.Properties = config.DefaultProperties()
		c.Properties.Hosts, c.Properties.HostsExclude = include, exclude
	})
	c.datanode("dn-1")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	refresh := func(user string) error {
		client, err := hrpc.Dial(t.Context(), lead.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: user, DialTimeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		return client.Call(t.Context(), clientprotocol.Name, "refreshNodes", new(hdfspb.RefreshNodesRequestProto), new(hdfspb.RefreshNodesResponseProto))
	}
	eventually(t, "a new cluster has read them", func() bool { return lead.adminOf("dn-1") == namenode.Decommissioned })
	if got := lead.set(t, super, inService, 0, "dn-1"); !strings.Contains(got, "take it off the file") {
		t.Errorf("recommission of one in the file: %q", got)
	}
	if err := refresh("alice"); err == nil || !strings.Contains(err.Error(), "Superuser privilege is required for operation refreshNodes") {
		t.Errorf("a user refreshes: %v", err)
	}
	write(exclude, "dn:x\n")
	if err := refresh(super); err == nil || !strings.Contains(err.Error(), "dfs.hosts.exclude: line 1") {
		t.Errorf("a mistake in the file: %v", err)
	}
	write(exclude, "")
	if err := refresh(super); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is back in service", func() bool { return lead.adminOf("dn-1") == namenode.Normal })

	// Who is not in dfs.hosts is not let in, and may not stay.
	write(include, "10.1.1.1\n")
	if err := refresh(super); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a datanode that is not listed is refused", func() bool {
		_, err := lead.datanodes.beat("dn-1", &pb.Beat{DatanodeUuid: "dn-1"})
		return metadata.KindOf(err) == metadata.ErrPermission
	})
	_, err := lead.datanodes.Register(t.Context(), &pb.RegisterRequest{Datanode: &pb.DatanodeID{Uuid: "dn-9", Ip: "10.9.9.9", TransferPort: 9866}})
	if err == nil || !strings.Contains(err.Error(), "the host is not in the include-list: 10.9.9.9:9866") {
		t.Errorf("registration: %v", err)
	}
}

func TestOperatorsCalls(t *testing.T) {
	t.Parallel()
	// Votes are kept back for longer than who is told to lead waits at least before it stands again.
	c := newCluster(t, 3, func(c *Config) { c.Timers = raftstore.Timers{Heartbeat: 2 * standAgain, Lease: 2 * standAgain} })
	one := c.datanode("dn-1")
	lead := c.leader()
	super := lead.config.Door.Daemon()
	call := func(m *member, method string, request, answer hrpc.Message) string {
		t.Helper()
		if err := m.rpc(t).Call(t.Context(), clientprotocol.Name, method, request, answer); err != nil {
			return err.Error()
		}
		return ""
	}
	if got := call(lead, "saveNamespace", new(hdfspb.SaveNamespaceRequestProto), new(hdfspb.SaveNamespaceResponseProto)); !strings.Contains(got, "Safe mode should be turned ON in order to create namespace image.") {
		t.Errorf("saveNamespace out of safe mode: %q", got)
	}
	for _, name := range []string{"../x", "a/b", ".hidden", ""} {
		if got := call(lead, "metaSave", &hdfspb.MetaSaveRequestProto{Filename: &name}, new(hdfspb.MetaSaveResponseProto)); !strings.Contains(got, "want the name of a file") {
			t.Errorf("metaSave %q: %q", name, got)
		}
	}
	b := lead.oneBlock(t, "/lacks one", 2, one)
	if got := call(lead, "metaSave", &hdfspb.MetaSaveRequestProto{Filename: new("m.txt")}, new(hdfspb.MetaSaveResponseProto)); got != "" {
		t.Fatal(got)
	}
	text, err := os.ReadFile(filepath.Join(lead.config.Dir, "metasave", "m.txt"))
	if err != nil || !strings.Contains(string(text), "/lacks one: blk_") || !strings.Contains(string(text), "(replicas: live: 1 ") || !strings.Contains(string(text), "Live Datanodes: 1\n") {
		t.Errorf("metasave of %v: %v\n%s", b, err, text)
	}
	if got := call(lead, "setBalancerBandwidth", &hdfspb.SetBalancerBandwidthRequestProto{Bandwidth: new(int64(-1))}, new(hdfspb.SetBalancerBandwidthResponseProto)); !strings.Contains(got, "greater than zero") {
		t.Errorf("bandwidth of -1: %q", got)
	}
	if got := call(lead, "setBalancerBandwidth", &hdfspb.SetBalancerBandwidthRequestProto{Bandwidth: new(int64(5 << 20))}, new(hdfspb.SetBalancerBandwidthResponseProto)); got != "" {
		t.Error(got)
	}
	for _, m := range c.nodes {
		eventually(t, m.config.ID+" knows the bandwidth", func() bool { return m.balancerBandwidth() == 5<<20 })
	}
	// Safe mode, and the image.
	if err := lead.SetSafeMode(true); err != nil {
		t.Fatal(err)
	}
	if got := call(lead, "saveNamespace", new(hdfspb.SaveNamespaceRequestProto), new(hdfspb.SaveNamespaceResponseProto)); got != "" {
		t.Errorf("saveNamespace: %q", got)
	}
	if err := lead.SetSafeMode(false); err != nil {
		t.Fatal(err)
	}
	// Who leads: as Hadoop's haadmin asks, with three calls.
	ha := func(m *member, method string, request, answer hrpc.Message) error {
		client, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.HAName, User: super, DialTimeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		return client.Call(t.Context(), clientprotocol.HAName, method, request, answer)
	}
	info := &hdfspb.HAStateChangeRequestInfoProto{ReqSource: hdfspb.HARequestSource_REQUEST_BY_USER_FORCED.Enum()}
	to := c.nodes[0]
	if to == lead {
		to = c.nodes[1]
	}
	// As often as it takes: who is behind at that moment is not elected.
	again := func(err error) bool {
		t.Helper()
		if err != nil && !strings.Contains(err.Error(), "RetriableException") && !strings.Contains(err.Error(), "StandbyException") && !strings.Contains(err.Error(), "hand over leadership") {
			t.Fatal(err)
		}
		return err == nil
	}
	eventually(t, "the leader becomes a standby", func() bool {
		return again(ha(lead, "transitionToStandby", &hdfspb.TransitionToStandbyRequestProto{ReqInfo: info}, new(hdfspb.TransitionToStandbyResponseProto))) || !lead.Active()
	})
	eventually(t, "the one that was told leads", func() bool {
		return again(ha(to, "transitionToActive", &hdfspb.TransitionToActiveRequestProto{ReqInfo: info}, new(hdfspb.TransitionToActiveResponseProto))) && to.Active()
	})
	// And with hops' own one.
	eventually(t, "leadership is back", func() bool {
		return lead.Active() ||
			again(c.leader().operator(t, super, "transferLeadership", &hdfspb.TransferLeadershipRequestProto{To: &lead.config.ID}, new(hdfspb.TransferLeadershipResponseProto))) && lead.Active()
	})
	if err := lead.operator(t, "alice", "transferLeadership", new(hdfspb.TransferLeadershipRequestProto), new(hdfspb.TransferLeadershipResponseProto)); err == nil || !strings.Contains(err.Error(), "Superuser privilege is required") {
		t.Errorf("a user hands over: %v", err)
	}
}
