package rendezvous

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gohops/hops/training"
)

var update = flag.Bool("update", false, "rewrite testdata")

// gang arranges a gang over the seats and gives its members addresses.
func gang(t *testing.T, s training.GangShape, seats ...Seat) []Member {
	t.Helper()
	members, _, err := Arrange(s, seats)
	if err != nil {
		t.Fatal(err)
	}
	for i := range members {
		members[i].Interface = "eth0"
		for p := range s.Ports(members[i].Role) {
			members[i].Ports = append(members[i].Ports, 40000+10*i+p)
		}
	}
	return members
}

// TestPlans compares each framework's environment with testdata/<name>.txt, made of the table of launchers in the reference.
func TestPlans(t *testing.T) {
	cpu := []Seat{{Host: "10.0.0.10"}, {Host: "10.0.0.9"}, {Host: "10.0.0.10"}, {Host: "10.0.0.9"}, {Host: "10.0.0.11"}}
	gpu := []Seat{{"node-10", []string{"GPU-c"}}, {"node-9", []string{"GPU-a"}}, {"node-9", []string{"GPU-b"}}, {"node-10", nil}}
	shared := []Seat{{"a", []string{"GPU-a", "GPU-b"}}, {"a", []string{"GPU-a", "GPU-b"}}, {"b", []string{"GPU-c", "GPU-d"}}, {"b", []string{"GPU-c", "GPU-d"}}}
	for _, c := range []struct {
		name  string
		shape training.GangShape
		seats []Seat
		o     Options
	}{
		{"torch", training.GangShape{Framework: training.Torch, Workers: 3}, cpu, Options{RunID: "application_1_0007_1/0007", Generation: 2, MaxRestarts: 3, Threads: 2}},
		{"torch-devices", training.GangShape{Framework: training.Torch, Workers: 3}, gpu, Options{Given: map[string]string{"NCCL_SOCKET_IFNAME": "ib0", "OMP_NUM_THREADS": "8"}}},
		{"torch-shared-devices", training.GangShape{Framework: training.Torch, Workers: 4}, shared, Options{}},
		{"torch-ipv6", training.GangShape{Framework: training.Torch, Workers: 1}, []Seat{{Host: "fd00::1"}}, Options{}},
		{"tensorflow", training.GangShape{Framework: training.TensorFlow, Workers: 2, Evaluator: true}, cpu, Options{}},
		{"tensorflow-alone", training.GangShape{Framework: training.TensorFlow, Workers: 1}, cpu, Options{}},
		{"parameter-server", training.GangShape{Framework: training.ParameterServer, Workers: 2, ParameterServers: 1, Evaluator: true}, gpu, Options{}},
		{"jax", training.GangShape{Framework: training.JAX, Workers: 2}, cpu, Options{}},
		{"jax-ipv6", training.GangShape{Framework: training.JAX, Workers: 2}, []Seat{{Host: "fd00::1"}, {Host: "fd00::2"}}, Options{}},
		{"horovod", training.GangShape{Framework: training.Horovod, Workers: 4}, cpu, Options{Given: map[string]string{"HOROVOD_GLOO_IFACE": "ib0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}}},
		{"horovod-devices", training.GangShape{Framework: training.Horovod, Workers: 3}, gpu, Options{}},
		{"horovod-shared-devices", training.GangShape{Framework: training.Horovod, Workers: 4}, shared, Options{}},
		{"mpi", training.GangShape{Framework: training.MPI, Workers: 4}, shared, Options{}},
		{"plain", training.GangShape{Framework: training.Plain, Workers: 2}, cpu, Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			members := gang(t, c.shape, c.seats...)
			var b strings.Builder
			for rank := range members {
				env, files, err := Plan(c.shape, members, rank, c.o)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "rank %d\n", rank)
				for _, name := range slices.Sorted(maps.Keys(env)) {
					if name == "HOPS_MEMBERS" && rank > 0 {
						continue // as at rank 0, see below
					}
					fmt.Fprintf(&b, "  %s=%s\n", name, env[name])
				}
				for _, name := range slices.Sorted(maps.Keys(files)) {
					fmt.Fprintf(&b, "  file %s:\n    %s\n", name, strings.ReplaceAll(strings.TrimSpace(files[name]), "\n", "\n    "))
				}
				again, _, _ := Plan(c.shape, members, rank, c.o)
				if !reflect.DeepEqual(env, again) {
					t.Errorf("rank %d: two plans of the same members differ", rank)
				}
				if first, _, _ := Plan(c.shape, members, 0, c.o); env["HOPS_MEMBERS"] != first["HOPS_MEMBERS"] {
					t.Errorf("rank %d knows other members than rank 0", rank)
				}
			}
			file := filepath.Join("testdata", c.name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s (-file +code):\n%s", file, diff)
			}
		})
	}
}

// TestArrange holds what a gang relies on, for any seats: ranks and local ranks without a gap, the chief first, roles as asked
// for, no seat twice, neighbours together, and the same again.
func TestArrange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := training.GangShape{Framework: rapid.SampledFrom(training.Frameworks).Draw(t, "framework"), Workers: rapid.IntRange(1, 9).Draw(t, "workers")}
		if s.Framework == training.ParameterServer {
			s.Workers++
			s.ParameterServers = rapid.IntRange(1, 3).Draw(t, "ps")
		}
		if s.Framework == training.ParameterServer || s.Framework == training.TensorFlow {
			s.Evaluator = rapid.Bool().Draw(t, "evaluator")
		}
		seats := make([]Seat, s.Size()+rapid.IntRange(0, 3).Draw(t, "spare"))
		for i := range seats {
			seats[i].Host = fmt.Sprintf("node-%d", rapid.IntRange(1, 12).Draw(t, "host"))
			if rapid.Bool().Draw(t, "device") {
				seats[i].GPUs = []string{fmt.Sprintf("GPU-%d", rapid.IntRange(0, 3).Draw(t, "gpu"))}
			}
		}
		members, at, err := Arrange(s, seats)
		if err != nil {
			t.Fatal(err)
		}
		again, _, _ := Arrange(s, seats)
		if diff := cmp.Diff(members, again); diff != "" {
			t.Fatal(diff)
		}
		taken, local, index, ended := map[int]bool{}, map[string][]int{}, map[training.Role]int{}, map[string]bool{}
		last := ""
		for i, m := range members {
			if m.Rank != i || (m.Role == training.Chief) != (i == 0) || m.Index != index[m.Role] {
				t.Fatalf("member %d is %+v", i, m)
			}
			index[m.Role]++
			if taken[at[i]] || seats[at[i]].Host != m.Host {
				t.Fatalf("rank %d sits on seat %d of %+v", i, at[i], seats[at[i]])
			}
			taken[at[i]] = true
			if m.LocalRank != len(local[m.node()]) {
				t.Fatalf("local ranks of %q: %v, then %d", m.node(), local[m.node()], m.LocalRank)
			}
			local[m.node()] = append(local[m.node()], m.LocalRank)
			if s.Size() == s.Workers { // of one kind only
				if m.Host != last && ended[m.Host] {
					t.Fatalf("the ranks of %s are apart: %+v", m.Host, members)
				}
				ended[m.Host], last = true, m.Host
			}
		}
		for _, m := range members {
			if m.LocalWorld != len(local[m.node()]) {
				t.Fatalf("%+v: %d members there", m, len(local[m.node()]))
			}
		}
		if index[training.Worker]+1 != s.Workers || index[training.PS] != s.ParameterServers || (index[training.Evaluator] == 1) != s.Evaluator {
			t.Fatalf("%+v has %v", s, index)
		}
	})
}

// TestServingLeavesDevices: a parameter server takes a seat without a device, if there is one.
func TestServingLeavesDevices(t *testing.T) {
	s := training.GangShape{Framework: training.ParameterServer, Workers: 2, ParameterServers: 1}
	members := gang(t, s, Seat{Host: "a"}, Seat{"b", []string{"G1"}}, Seat{"c", []string{"G2"}}, Seat{"d", []string{"G3"}})
	for _, m := range members {
		if (m.Role == training.PS) == (len(m.GPUs) > 0) {
			t.Errorf("%s has devices %v", m.Role, m.GPUs)
		}
	}
}

// TestWhoIsWaitedFor: a chief always is; members that serve never end by themselves.
func TestWhoIsWaitedFor(t *testing.T) {
	for _, c := range []struct {
		framework training.Framework
		ends      []training.Role
	}{{training.Torch, []training.Role{training.Chief, training.Worker}}, {training.TensorFlow, []training.Role{training.Chief, training.Worker}}, {training.ParameterServer, []training.Role{training.Chief}}, {training.MPI, []training.Role{training.Chief}}} {
		var ends []training.Role
		for _, r := range []training.Role{training.Chief, training.Worker, training.PS, training.Evaluator} {
			m := Member{Role: r, Serves: training.GangShape{Framework: c.framework}.Serves(r)}
			if m.Ends() {
				ends = append(ends, r)
			}
		}
		if !slices.Equal(ends, c.ends) {
			t.Errorf("%s: %v, want %v", c.framework, ends, c.ends)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	good := training.GangShape{Framework: training.Torch, Workers: 2}
	two := gang(t, good, Seat{Host: "a"}, Seat{Host: "b"})
	change := func(f func(m []Member)) []Member {
		m := slices.Clone(two)
		f(m)
		return m
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{training.GangShape{Framework: "mxnet", Workers: 1}.Validate(), `framework "mxnet" is not known; there are torch, tensorflow, parameter_server, jax, horovod, mpi, plain`},
		{training.GangShape{Framework: training.Horovod, Workers: 2, Evaluator: true}.Validate(), "framework horovod has no evaluator"},
		{CheckAddress(training.GangShape{Framework: training.Horovod}, Member{Role: training.Chief, Host: "fd00::1", Ports: []int{5}}), "host fd00::1 is an IPv6 address, and Horovod's client"},
		{training.GangShape{Framework: training.Torch}.Validate(), "workers is 0"},
		{training.GangShape{Framework: training.ParameterServer, Workers: 2}.Validate(), "parameter_servers is 0"},
		{training.GangShape{Framework: training.ParameterServer, Workers: 1, ParameterServers: 1}.Validate(), "the chief coordinates"},
		{training.GangShape{Framework: training.JAX, Workers: 2, ParameterServers: 1}.Validate(), "framework jax has none"},
		{training.GangShape{Framework: training.JAX, Workers: 2, Evaluator: true}.Validate(), "no evaluator"},
		{training.GangShape{Framework: training.Torch, Workers: training.MaxGangMembers + 1}.Validate(), "at most 1024"},
		{second(Arrange(good, []Seat{{Host: "a"}})), "a gang of 2 members has 1 executors"},
		{second(Plan(good, two, 2, Options{})), "rank 2 is none of 0 … 1"},
		{second(Plan(good, two[:1], 0, Options{})), "there are 1 members, the gang has 2"},
		{second(Plan(good, change(func(m []Member) { m[0].Host = "a; rm -rf /" }), 0, Options{})), "neither an address nor a name"},
		{second(Plan(good, change(func(m []Member) { m[0].Ports = nil }), 0, Options{})), "0 ports were reserved, chief of torch needs 1"},
		{second(Plan(good, change(func(m []Member) { m[0].Ports = []int{0} }), 0, Options{})), "port 0 does not exist"},
		{second(Plan(good, change(func(m []Member) { m[1].Interface = "eth0 lo" }), 0, Options{})), "interface"},
		{second(Plan(good, change(func(m []Member) { m[1].Rank = 0 }), 0, Options{})), "member 1 is rank 0, worker; want worker"},
		{second(Plan(training.GangShape{Framework: training.Plain, Workers: 2}, []Member{{Role: training.Chief, Host: "a", Ports: []int{5}}, {Rank: 1, Role: training.Worker, Host: "a", Ports: []int{5}}}, 0, Options{})), "ranks 0 and 1 both say that they have a:5"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

// TestHorovodsGroups: Horovod forms a group of the processes with one HOROVOD_HOSTNAME and one of those with one local rank. In each
// the ranks go from 0 to the size that all of its members are told, in the order of their ranks.
func TestHorovodsGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := training.GangShape{Framework: training.Horovod, Workers: rapid.IntRange(1, 12).Draw(t, "workers")}
		seats := make([]Seat, s.Size())
		for i := range seats {
			seats[i].Host = fmt.Sprintf("node-%d", rapid.IntRange(1, 4).Draw(t, "host"))
			seats[i].GPUs = rapid.SampledFrom([][]string{nil, {"GPU-a", "GPU-b"}, {"GPU-c"}}).Draw(t, "devices")
		}
		members, _, err := Arrange(s, seats)
		if err != nil {
			t.Fatal(err)
		}
		members[0].Ports = []int{40000}
		groups := map[string][]string{} // rank in the group and size, by group
		for rank, m := range members {
			env, _, err := Plan(s, members, rank, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for group, is := range map[string]string{
				"global":                             env["HOROVOD_RANK"] + "/" + env["HOROVOD_SIZE"],
				"local_" + env["HOROVOD_HOSTNAME"]:   env["HOROVOD_LOCAL_RANK"] + "/" + env["HOROVOD_LOCAL_SIZE"],
				"cross_" + env["HOROVOD_LOCAL_RANK"]: env["HOROVOD_CROSS_RANK"] + "/" + env["HOROVOD_CROSS_SIZE"],
				"devices " + m.node():                env["HOPS_LOCAL_RANK"] + "/" + env["HOPS_LOCAL_WORLD_SIZE"],
			} {
				groups[group] = append(groups[group], is)
			}
		}
		for group, ranks := range groups {
			for i, is := range ranks {
				if want := fmt.Sprintf("%d/%d", i, len(ranks)); is != want {
					t.Fatalf("group %s: %v, want %s at %d", group, ranks, want, i)
				}
			}
		}
	})
}

// TestEnvironmentIsWellFormed: any members whose addresses pass make an environment that a process can have.
func TestEnvironmentIsWellFormed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := training.GangShape{Framework: rapid.SampledFrom(training.Frameworks).Draw(t, "framework"), Workers: rapid.IntRange(2, 5).Draw(t, "workers")}
		if s.Framework == training.ParameterServer {
			s.ParameterServers = 1
		}
		hosts := rapid.SampledFrom([]string{"fd00::7", "10.1.2.3", "node-7.example.org", "::1"})
		members, _, err := Arrange(s, make([]Seat, s.Size()))
		if err != nil {
			t.Fatal(err)
		}
		for i := range members {
			m := &members[i]
			m.Host = hosts.Draw(t, "host")
			if s.Framework == training.Horovod && i == 0 {
				m.Host = "node-7.example.org" // no IPv6
			}
			m.Interface = rapid.SampledFrom([]string{"", "lo", "eth0.1"}).Draw(t, "interface")
			m.Ports = nil
			for p := range s.Ports(m.Role) {
				m.Ports = append(m.Ports, 1000+10*i+p)
			}
		}
		for rank := range members {
			env, _, err := Plan(s, members, rank, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range env {
				if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
					t.Fatalf("%q=%q", name, value)
				}
			}
			if text, there := env["TF_CONFIG"]; there {
				var config struct {
					Cluster map[string][]string `json:"cluster"`
					Task    struct {
						Type  string `json:"type"`
						Index int    `json:"index"`
					} `json:"task"`
				}
				if err := json.Unmarshal([]byte(text), &config); err != nil {
					t.Fatal(err)
				}
				mine := config.Cluster[config.Task.Type][config.Task.Index]
				if host, port, err := net.SplitHostPort(mine); err != nil || host != members[rank].Host || port != fmt.Sprint(members[rank].Ports[0]) {
					t.Fatalf("rank %d is at %s, its address is %+v", rank, mine, members[rank])
				}
			}
		}
	})
}

func TestNumbersInNames(t *testing.T) {
	for _, names := range [][]string{{"10.0.0.9", "10.0.0.10", "10.0.1.1"}, {"a", "a1", "a2", "a10", "a10b", "b"}, {"n01", "n1", "n2"}, {"", "a"}} {
		for i := range names {
			for j := range names {
				if got := naturally(names[i], names[j]); (got < 0) != (i < j) || (got == 0) != (i == j) {
					t.Errorf("naturally(%q, %q) = %d", names[i], names[j], got)
				}
			}
		}
	}
}

func second[A, B any](_ A, _ B, err error) error { return err }

// The environment of the largest gang fits into a process, and names of hosts that make it too long are refused, not tried.
func TestAnEnvironmentThatIsTooLongIsRefused(t *testing.T) {
	for length, fits := range map[int]bool{15: true, 253: false} {
		members := make([]Member, 1000)
		for i, role := range (training.GangShape{Framework: training.Plain, Workers: len(members)}).Roles() {
			members[i] = Member{Rank: i, Role: role, Index: max(0, i-1), Ports: []int{1 + i}}
			members[i].Host = strings.Repeat("h", length)
		}
		_, _, err := Plan(training.GangShape{Framework: training.Plain, Workers: len(members)}, members, 7, Options{})
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "HOPS_MEMBERS of 1000 members has") {
			t.Errorf("hosts of %d bytes: %v", length, err)
		}
	}
}
