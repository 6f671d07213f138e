package rendezvous

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/gohops/hops/training"
)

// TrialDir in a value of an environment stands for the directory in which the member's process works.
const TrialDir = "$HOPS_TRIAL_DIR"

// Options are what a plan needs beside the members.
type Options struct {
	// RunID names the gang through all of its generations.
	RunID string
	// Generation counts the starts of the gang from 1: the attempt.
	Generation int
	// MaxRestarts is how often the gang may start again.
	MaxRestarts int
	// Threads of each process for OpenMP. Default 1: without it every process starts one per core.
	Threads int
	// Given is the environment that a person asked for. What it says about threads and network interfaces stays as it is.
	Given map[string]string
}

var (
	hostName      = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$`)
	interfaceName = regexp.MustCompile(`^[A-Za-z0-9_.:@-]{1,15}$`)
)

// CheckAddress says what is wrong with where a member of the shape says that it is: host, interface and ports come from a
// network, and become environment of others.
func CheckAddress(s training.GangShape, m Member) error {
	if _, err := netip.ParseAddr(m.Host); err != nil && !hostName.MatchString(m.Host) {
		return fmt.Errorf("rank %d: host %.100q is neither an address nor a name", m.Rank, m.Host)
	}
	if s.Framework == training.Horovod && m.Role == training.Chief && strings.Contains(m.Host, ":") {
		return fmt.Errorf("rank %d: host %s is an IPv6 address, and Horovod's client of the rendezvous speaks IPv4 alone: let the node's name, or an IPv4 address, be its address", m.Rank, m.Host)
	}
	if m.Interface != "" && !interfaceName.MatchString(m.Interface) {
		return fmt.Errorf("rank %d: interface %.100q is no name of one", m.Rank, m.Interface)
	}
	if want := s.Ports(m.Role); len(m.Ports) != want {
		return fmt.Errorf("rank %d: %d ports were reserved, %s of %s needs %d", m.Rank, len(m.Ports), m.Role, s.Framework, want)
	}
	for i, p := range m.Ports {
		if p < 1 || p > 65535 {
			return fmt.Errorf("rank %d: port %d does not exist", m.Rank, p)
		}
		for _, q := range m.Ports[:i] {
			if p == q {
				return fmt.Errorf("rank %d: port %d stands there twice", m.Rank, p)
			}
		}
	}
	return nil
}

// maxVariable is what Linux takes for one variable of an environment, in bytes (MAX_ARG_STRLEN without the end).
const maxVariable = 128<<10 - 1

// Plan is the environment and the files of one member's process. members are all of the gang by rank, each with its address. Every
// framework gets HOPS_RANK, HOPS_WORLD_SIZE, HOPS_ROLE, HOPS_ROLE_INDEX, HOPS_LOCAL_RANK, HOPS_LOCAL_WORLD_SIZE,
// HOPS_FRAMEWORK, HOPS_GENERATION and HOPS_MEMBERS (JSON). The error lists what is wrong with the members.
func Plan(s training.GangShape, members []Member, rank int, o Options) (env, files map[string]string, err error) {
	if err := check(s, members, rank); err != nil {
		return nil, nil, err
	}
	me := &members[rank]
	env = map[string]string{
		"HOPS_FRAMEWORK":        string(s.Framework),
		"HOPS_RANK":             strconv.Itoa(rank),
		"HOPS_WORLD_SIZE":       strconv.Itoa(len(members)),
		"HOPS_ROLE":             string(me.Role),
		"HOPS_ROLE_INDEX":       strconv.Itoa(me.Index),
		"HOPS_LOCAL_RANK":       strconv.Itoa(me.LocalRank),
		"HOPS_LOCAL_WORLD_SIZE": strconv.Itoa(me.LocalWorld),
		"HOPS_GENERATION":       strconv.Itoa(max(1, o.Generation)),
		"HOPS_MEMBERS":          addresses(members),
	}
	unlessGiven := func(name, value string) {
		if _, given := o.Given[name]; !given {
			env[name] = value
		}
	}
	unlessGiven("OMP_NUM_THREADS", strconv.Itoa(max(1, o.Threads)))
	switch s.Framework {
	case training.Torch:
		torch(env, members, me, o, unlessGiven)
	case training.TensorFlow, training.ParameterServer:
		tensorflow(env, members, me)
	case training.JAX:
		// Of these jax.distributed.initialize() without arguments reads at least the first; hops.dist.initialize hands over all three.
		env["JAX_COORDINATOR_ADDRESS"] = at(&members[0])
		env["JAX_NUM_PROCESSES"] = strconv.Itoa(len(members))
		env["JAX_PROCESS_ID"] = strconv.Itoa(rank)
	case training.Horovod:
		horovod(env, members, me, unlessGiven)
	case training.MPI:
		files = map[string]string{"hostfile": hostfile(members)}
		env["HOPS_HOSTFILE"] = TrialDir + "/hostfile"
		env["OMPI_MCA_orte_default_hostfile"] = TrialDir + "/hostfile"
		env["PRTE_MCA_prte_default_hostfile"] = TrialDir + "/hostfile"
	}
	for _, name := range []string{"HOPS_MEMBERS", "TF_CONFIG"} { // the others do not grow with the gang
		if n := len(name) + len("=") + len(env[name]); n > maxVariable {
			return nil, nil, fmt.Errorf("%s of %d members has %d bytes, a process takes %d: the names of the hosts are too long", name, len(members), n, maxVariable)
		}
	}
	return env, files, nil
}

// check holds for members that Arrange made and whose addresses CheckAddress passed.
func check(s training.GangShape, members []Member, rank int) error {
	if err := s.Validate(); err != nil {
		return err
	}
	roles := s.Roles()
	if len(members) != len(roles) {
		return fmt.Errorf("there are %d members, the gang has %d", len(members), len(roles))
	}
	if rank < 0 || rank >= len(members) {
		return fmt.Errorf("rank %d is none of 0 … %d", rank, len(members)-1)
	}
	var wrong []error
	owner := map[string]int{}
	for i := range members {
		m := &members[i]
		if m.Rank != i || m.Role != roles[i] {
			wrong = append(wrong, fmt.Errorf("member %d is rank %d, %s; want %s", i, m.Rank, m.Role, roles[i]))
		}
		if err := CheckAddress(s, *m); err != nil {
			wrong = append(wrong, err)
		}
		for _, p := range m.Ports {
			a := address(m.Host, p)
			if other, taken := owner[a]; taken {
				wrong = append(wrong, fmt.Errorf("ranks %d and %d both say that they have %s", other, i, a))
			}
			owner[a] = i
		}
	}
	return errors.Join(wrong...)
}

// torch sets what torchrun sets for a process (torch/distributed/elastic/agent/server/local_elastic_agent.py), and the flags of
// torchrun itself (PET_*), for who starts it in each member.
func torch(env map[string]string, members []Member, me *Member, o Options, unlessGiven func(name, value string)) {
	node, nodes := nodeOf(members, me)
	port := strconv.Itoa(members[0].Ports[0])
	generation, restarts := max(1, o.Generation), max(0, o.MaxRestarts)
	for name, value := range map[string]string{
		"MASTER_ADDR": members[0].Host, "MASTER_PORT": port,
		"RANK": strconv.Itoa(me.Rank), "WORLD_SIZE": strconv.Itoa(len(members)),
		"LOCAL_RANK": strconv.Itoa(me.LocalRank), "LOCAL_WORLD_SIZE": strconv.Itoa(me.LocalWorld),
		"GROUP_RANK": strconv.Itoa(node), "NODE_RANK": strconv.Itoa(node), "GROUP_WORLD_SIZE": strconv.Itoa(nodes),
		"ROLE_NAME": "default", "ROLE_RANK": strconv.Itoa(me.Rank), "ROLE_WORLD_SIZE": strconv.Itoa(len(members)),
		"TORCHELASTIC_RUN_ID": o.RunID, "TORCHELASTIC_RESTART_COUNT": strconv.Itoa(generation - 1), "TORCHELASTIC_MAX_RESTARTS": strconv.Itoa(restarts),
		// Rank 0 opens the store itself: no agent does.
		"TORCHELASTIC_USE_AGENT_STORE": "False",
		"PET_NNODES":                   strconv.Itoa(len(members)), "PET_NPROC_PER_NODE": strconv.Itoa(max(1, len(me.GPUs))), "PET_NODE_RANK": strconv.Itoa(me.Rank),
		"PET_MASTER_ADDR": members[0].Host, "PET_MASTER_PORT": port,
	} {
		env[name] = value
	}
	if me.Interface != "" {
		unlessGiven("GLOO_SOCKET_IFNAME", me.Interface)
		unlessGiven("NCCL_SOCKET_IFNAME", "="+me.Interface) // = is: exactly this name, not those that begin with it
	}
}

// What Horovod's rendezvous may take, in seconds. Its own 30 are for ranks that start together; here one may still import what another has
// imported, and who is lost is noticed by hops.
const horovodTimeout = "300"

// horovod sets what horovodrun sets for a process (horovod/runner/gloo_run.py, create_slot_env_vars and create_run_env_vars of v0.28.1). Horovod
// makes groups of the processes with one HOROVOD_HOSTNAME, and of those with one local rank: a node of its own is what LocalRank counts in.
func horovod(env map[string]string, members []Member, me *Member, unlessGiven func(name, value string)) {
	node, _ := nodeOf(members, me)
	cross, crossSize, seen := 0, 0, map[string]bool{}
	name := me.Host
	for i := range members {
		m := &members[i]
		if m.LocalRank == me.LocalRank {
			if m.Rank < me.Rank {
				cross++
			}
			crossSize++
		}
		if m.Host == me.Host {
			seen[m.node()] = true
		}
	}
	if len(seen) > 1 { // members of one host see different devices; no host has a name with ~ in it
		name += "~" + strconv.Itoa(node)
	}
	for name, value := range map[string]string{
		"HOROVOD_RANK": strconv.Itoa(me.Rank), "HOROVOD_SIZE": strconv.Itoa(len(members)),
		"HOROVOD_LOCAL_RANK": strconv.Itoa(me.LocalRank), "HOROVOD_LOCAL_SIZE": strconv.Itoa(me.LocalWorld),
		"HOROVOD_CROSS_RANK": strconv.Itoa(cross), "HOROVOD_CROSS_SIZE": strconv.Itoa(crossSize),
		"HOROVOD_HOSTNAME": name, "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
		"HOROVOD_GLOO_RENDEZVOUS_ADDR": members[0].Host, "HOROVOD_GLOO_RENDEZVOUS_PORT": strconv.Itoa(members[0].Ports[0]),
	} {
		env[name] = value
	}
	unlessGiven("HOROVOD_GLOO_TIMEOUT_SECONDS", horovodTimeout)
	if me.Interface != "" {
		unlessGiven("HOROVOD_GLOO_IFACE", me.Interface)
		unlessGiven("NCCL_SOCKET_IFNAME", "="+me.Interface)
	}
}

// nodeOf numbers the nodes of a gang, those that LocalRank counts in, by their first rank.
func nodeOf(members []Member, me *Member) (node, nodes int) {
	number := map[string]int{}
	for i := range members {
		if _, known := number[members[i].node()]; !known {
			number[members[i].node()] = len(number)
		}
	}
	return number[me.node()], len(number)
}

// tensorflow writes TF_CONFIG. A program alone has none: strategies of several workers fall back to one device then. The
// evaluator is no part of the cluster that the others see: it opens no server, and they would wait for it.
func tensorflow(env map[string]string, members []Member, me *Member) {
	cluster, trained := map[string][]string{}, 0
	for i := range members {
		m := &members[i]
		if m.Role != training.Evaluator {
			trained++
		}
		if m.Role != training.Evaluator || me.Role == training.Evaluator {
			cluster[string(m.Role)] = append(cluster[string(m.Role)], at(m))
		}
	}
	if me.Role == training.PS {
		env["CUDA_VISIBLE_DEVICES"] = ""
	}
	if trained == 1 && me.Role != training.Evaluator {
		return
	}
	config, err := json.Marshal(map[string]any{"cluster": cluster, "task": map[string]any{"type": me.Role, "index": me.Index}})
	if err != nil {
		panic(err) // strings and numbers
	}
	env["TF_CONFIG"] = string(config)
}

// hostfile lists the hosts by rank, as mpirun and DeepSpeed read it: a slot for each device, without devices for each member.
func hostfile(members []Member) string {
	var hosts []string
	slots, counted := map[string]int{}, map[string]bool{}
	for _, m := range members {
		if _, known := slots[m.Host]; !known {
			hosts = append(hosts, m.Host)
		}
		if len(m.GPUs) == 0 {
			slots[m.Host]++
		}
		for _, gpu := range m.GPUs {
			if !counted[m.Host+"\n"+gpu] {
				counted[m.Host+"\n"+gpu] = true
				slots[m.Host]++
			}
		}
	}
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s slots=%d\n", h, slots[h])
	}
	return b.String()
}

// addresses is HOPS_MEMBERS.
func addresses(members []Member) string {
	type member struct {
		Rank  int           `json:"rank"`
		Role  training.Role `json:"role"`
		Index int           `json:"index"`
		Host  string        `json:"host"`
		Ports []int         `json:"ports"`
	}
	out := make([]member, len(members))
	for i, m := range members {
		out[i] = member{m.Rank, m.Role, m.Index, m.Host, append([]int{}, m.Ports...)}
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// at is host:port of a member's first port.
func at(m *Member) string { return address(m.Host, m.Ports[0]) }

// address is host:port as people and programs write it, with brackets around an IPv6 address.
func address(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}
