package config

import (
	"os"
	"strings"
	"testing"
	"time"
)

const whole = `
cluster: {name: lab, secret_file: /etc/hops/secret}
namenodes:
  - {id: nn1, ipc: "127.0.0.1:8020", http: "127.0.0.1:9870", raft: "127.0.0.1:8487", grpc: "127.0.0.1:8486"}
resourcemanagers:
  - {id: rm1, http: "127.0.0.1:8088", raft: "127.0.0.1:8587", grpc: "127.0.0.1:8586"}
namenode: {id: nn1, data: /var/lib/hops/nn, dead_after: 10s}
datanode: {volumes: [{path: /data1/hops, type: SSD}]}
nodemanager: {work: /data1/nm, memory: 60GiB, vcores: 16, log_limit: 2GiB}
resourcemanager:
  id: rm1
  data: /var/lib/hops/rm
  minimum_allocation: 256MiB
  maximum_allocation: {memory: 16GiB, gpus: 8}
  queues: {root: {children: {default: {capacity: 40%, stopped: true}, research: {capacity: 60%, max: 100%, acl_submit: [ann], acl_administer: [eve]}}}}
properties: {dfs.replication: 2, dfs.blocksize: 64MiB, hadoop.proxyuser.hue.hosts: "*"}
`

func TestWholeFile(t *testing.T) {
	f, err := Parse("hops.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if f.Namenode.DeadAfter != 10*time.Second || f.Namenode.Heartbeat != 3*time.Second || f.NodeManager.Memory != 60<<30 ||
		f.NodeManager.LogLimit != 2<<30 || f.NodeManager.LogRate != 4<<20 ||
		f.Datanode.Transfer != "127.0.0.1:9866" || f.ResourceManager.Queues["root"].Children["research"].ACLSubmit[0] != "ann" {
		t.Errorf("parsed %+v %+v %+v", f.Namenode, f.Datanode, f.NodeManager)
	}
	r := f.ResourceManager
	if q := r.Queues["root"].Children; !q["default"].Stopped || q["research"].Stopped || q["research"].ACLAdminister[0] != "eve" ||
		r.MinimumAllocation != 256<<20 || r.MaximumAllocation != (Allocation{Memory: 16 << 30, GPUs: 8}) || r.Lease != time.Minute || r.LogRetention != 7*24*time.Hour {
		t.Errorf("resource manager %+v", r)
	}
	p := f.HadoopProperties()
	if p.Replication != 2 || p.BlockSize != 64<<20 || p.MinBlockSize != 1<<20 || p.ProxyUsers["hue"].Hosts[0] != "*" {
		t.Errorf("properties %+v", p)
	}
}

func TestMistakesAreNamedWithTheRemedy(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"mistyped key":         {"secret_file", "secretfile", "unknown key cluster.secretfile (did you mean secret_file?)"},
		"mistyped nested key":  {"vcores: 16", "vcore: 16", "unknown key nodemanager.vcore (did you mean vcores?)"},
		"mistyped queue key":   {"acl_submit", "acl_sumbit", "did you mean acl_submit?"},
		"mistyped property":    {"dfs.replication", "dfs.replicaton", "unknown property dfs.replicaton (did you mean dfs.replication?)"},
		"bad property":         {"dfs.replication: 2", "dfs.replication: zero", `dfs.replication: "zero" is not a whole number from 1 to 512`},
		"memory alone":         {"type: SSD", "type: RAM_DISK", "datanode.volumes: all are of type RAM_DISK"},
		"relative socket":      {"datanode: {", "datanode: {domain_socket: run/dn, ", `datanode.domain_socket: "run/dn" is no absolute path`},
		"long socket":          {"datanode: {", "datanode: {domain_socket: /" + strings.Repeat("x", 104) + "_PORT, ", "a socket's path has 107 at most: choose a shorter one"},
		"bad socket property":  {"dfs.replication: 2", "dfs.domain.socket.path: dn", `dfs.domain.socket.path: "dn" is no absolute path`},
		"bad flag":             {"dfs.replication: 2", "dfs.client.read.shortcircuit: yes please", `dfs.client.read.shortcircuit: "yes please" is neither true nor false`},
		"not loopback":         {"127.0.0.1:8020", "0.0.0.0:8020", "0.0.0.0:8020 is no address that anybody can reach: give this machine's own"},
		"not an address":       {"127.0.0.1:8020", "nowhere", `"nowhere" is not host:port`},
		"not a member":         {"namenode: {id: nn1", "namenode: {id: nn9", `namenode.id: "nn9" is not in the list of namenodes`},
		"too slow a scrub":     {"namenode: {id: nn1", "namenode: {scrub_rate: 1KiB, id: nn1", "namenode.scrub_rate: 1KiB a second would never come to an end; the least is 64KiB"},
		"kept at once":         {"namenode: {id: nn1", "namenode: {small_file_delay: 100ms, id: nn1", "namenode.small_file_delay: 100ms is not between 1s and 24h0m0s, nor 0, with which"},
		"kept after days":      {"namenode: {id: nn1", "namenode: {small_file_delay: 48h, id: nn1", "namenode.small_file_delay: 48h0m0s is not between"},
		"kept before":          {"namenode: {id: nn1", "namenode: {small_file_delay: -1m, id: nn1", "namenode.small_file_delay: -1m0s is not between"},
		"no passes":            {"namenode: {id: nn1", "namenode: {scrub_every: -1h, id: nn1", "namenode.scrub_every: -1h0m0s is negative"},
		"too little memory":    {"namenode: {id: nn1", "namenode: {memory: 32MiB, id: nn1", "namenode.memory: 32MiB is less than 64MiB"},
		"bad size":             {"60GiB", "60XiB", "is not a size"},
		"containers as root":   {"log_limit: 2GiB", "log_limit: 2GiB, min_user_id: 0", "nodemanager.min_user_id: 0 is no user id that containers could run from"},
		"no process allowed":   {"log_limit: 2GiB", "log_limit: 2GiB, pids: 3", "nodemanager.pids: 3 processes and threads are too few"},
		"endless grace":        {"log_limit: 2GiB", "log_limit: 2GiB, grace: 1h", "nodemanager.grace: 1h0m0s is outside 0..10m0s"},
		"no such cpu":          {"log_limit: 2GiB", "log_limit: 2GiB, cpu: hard", "nodemanager.cpu: \"hard\" is none of shares limit"},
		"no such cpuset":       {"log_limit: 2GiB", "log_limit: 2GiB, cpuset: near", "nodemanager.cpuset: \"near\" is none of any gpu"},
		"idle at once":         {"log_limit: 2GiB", "log_limit: 2GiB, gpu_idle: 1s", "nodemanager.gpu_idle: 1s is too short"},
		"script somewhere":     {"log_limit: 2GiB", "log_limit: 2GiB, health_script: {path: check}", "nodemanager.health_script.path: \"check\" is no absolute path"},
		"script all the time":  {"log_limit: 2GiB", "log_limit: 2GiB, health_script: {path: /check, interval: 1ms}", "the least is 1s"},
		"no such isolation":    {"log_limit: 2GiB", "log_limit: 2GiB, isolation: some", "nodemanager.isolation: \"some\" is none of auto any off"},
		"hardly anything kept": {"log_limit: 2GiB", "log_limit: 2GiB, log_keep: 1k", "nodemanager.log_keep: 1KiB of a log file are too few lines"},
		"rolled elsewhere":     {"log_limit: 2GiB", "log_limit: 2GiB, log_rolled: [../x]", "nodemanager.log_rolled: \"../x\" is neither"},
		"no such pattern":      {"log_limit: 2GiB", "log_limit: 2GiB, log_rolled: [\"[a\"]", "nodemanager.log_rolled: \"[a\" is neither"},
		"hardly any log":       {"2GiB", "2k", "nodemanager.log_limit: 2KiB would end containers"},
		"lease too short":      {"minimum_allocation: 256MiB", "lease: 10ms", "resourcemanager.lease: 10ms is not between 1s and 24h"},
		"logs kept too short":  {"minimum_allocation: 256MiB", "log_retention: 1m", "resourcemanager.log_retention: 1m0s is less than 1h"},
		"no allocation":        {"256MiB", "1k", "minimum_allocation: 1024 bytes are less than 1MiB"},
		"too little at most":   {"memory: 16GiB", "memory: 1MiB", "maximum_allocation.memory is below"},
		"bad volume type":      {"type: SSD", "type: TAPE", `"TAPE" is none of DISK`},
		"negative beat":        {"dead_after: 10s", "heartbeat: -1s", "namenode: heartbeat is -1s and stale_after 10s, both have to be above 0"},
		"dead before the beat": {"dead_after: 10s", "dead_after: 1s", "not above the heartbeat"},
		"not YAML":             {"cluster: {", "cluster: }", "mapping value"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(whole, c.from, c.to, 1)
			if text == whole {
				t.Fatal("nothing replaced")
			}
			if _, err := Parse("hops.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q", err, c.want)
			}
		})
	}
	_, err := Parse("hops.yaml", []byte("namenode: {}\ndatanode: {}\n"))
	for _, want := range []string{"cluster.name is missing", "namenode.data is missing", "datanode.volumes is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q among others", err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1000": 1000, "64k": 64 << 10, "128MiB": 128 << 20, "1.5g": 3 << 29, "2 TB": 2 << 40, "10b": 10} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "9999999999g", "1 2"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d", text, got)
		}
	}
	if s := Size(128 << 20).String(); s != "128MiB" {
		t.Error(s)
	}
}

func TestPropertiesRoundTrip(t *testing.T) {
	p := DefaultProperties()
	p.Set("hadoop.proxyuser.hue.users", "ann, bob")
	q := Properties{}
	for _, pair := range p.Pairs() {
		if err := q.Set(pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	if q.BlockSize != p.BlockSize || q.Replication != 3 || !q.SyncOnClose || len(q.ProxyUsers["hue"].Users) != 2 {
		t.Errorf("%+v", q)
	}
}

func TestTimesOfPropertiesAreThoseOfHadoop(t *testing.T) {
	const name = "dfs.datanode.disk.check.timeout"
	p := DefaultProperties()
	for text, want := range map[string]time.Duration{"600000": 10 * time.Minute, "10m": 10 * time.Minute, "45s": 45 * time.Second, "1500ms": 1500 * time.Millisecond} {
		if err := p.Set(name, text); err != nil || p.DiskCheckTimeout != want {
			t.Errorf("%s: %v, %v", text, p.DiskCheckTimeout, err)
		}
	}
	for _, text := range []string{"", "soon", "999", "-5000", "2h", "3600001", "99999999999999999999"} {
		if err := p.Set(name, text); err == nil {
			t.Errorf("%q is taken for %v", text, p.DiskCheckTimeout)
		}
	}
}

func TestMistakesOfAllKindsAreToldTogether(t *testing.T) {
	_, err := Parse("hops.yaml", []byte("clustre: {name: x}\nnamenode: {dta: /x}\ncluster: {nam: y}\n"))
	for _, want := range []string{
		"hops.yaml: line 1: unknown key clustre (did you mean cluster?)", "hops.yaml: line 2: unknown key namenode.dta (did you mean data?)",
		"hops.yaml: line 3: unknown key cluster.nam (did you mean name?)", "cluster.name is missing",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q among others", err, want)
		}
	}
	_, err = Parse("hops.yaml", []byte("namenode: {dead_after: 10}\n"))
	if err == nil || !strings.Contains(err.Error(), "line 1: namenode.dead_after: 10 is not a duration") {
		t.Errorf("error = %v", err)
	}
}

// The example of a cluster with three of each, as the page has it.
func TestExampleOfTheClusterPageIsValid(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no example")
	}
	f, err := Parse("cluster.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Namenodes) != 3 || len(f.ResourceManagers) != 3 || f.Namenode == nil || f.ResourceManager == nil {
		t.Errorf("%d namenodes, %d resource managers", len(f.Namenodes), len(f.ResourceManagers))
	}
	taken := map[string]bool{}
	for _, n := range f.Namenodes {
		for _, address := range []string{n.IPC, n.HTTP, n.GRPC, n.Raft} {
			if taken[address] {
				t.Errorf("%s stands twice", address)
			}
			taken[address] = true
		}
	}
}

func TestTrustedNetworks(t *testing.T) {
	for text, says := range map[string]string{
		`["10.0.0.0/8", "fd00::/8"]`: "", `["0.0.0.0/0"]`: "", "[]": "",
		"[10.0.0.0]":              `clients.simple[0]: "10.0.0.0" is no network, as 10.0.0.0/8`,
		"[10.0.0.1/8]":            "clients.simple[0]: 10.0.0.1/8 has bits behind its length: the network is 10.0.0.0/8",
		`["10.0.0.0/8", "all"]`:   `clients.simple[1]: "all" is no network`,
		"[10.0.0.0/33]":           "is no network",
		`["::ffff:10.0.0.0/104"]`: "as a network of IPv4",
		"[" + strings.Repeat("10.0.0.0/8, ", 64) + "10.0.0.0/8]": "clients.simple has 65 networks, 64 are allowed",
	} {
		_, err := Parse("hops.yaml", []byte("cluster: {name: a, secret_file: b}\nclients: {simple: "+text+"}\n"))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, says := range map[string]string{
		"{address: 10.0.0.5}": "", "{address: dn1.example, bind: 0.0.0.0}": "", `{address: "fd00::5", bind: "::"}`: "", "{hosts: [files.example, 10.0.0.9]}": "",
		"{address: 0.0.0.0}":                          "is no address that anybody can reach",
		"{address: two words}":                        `cluster.address: "two words" is neither an IP address nor the name of a host`,
		"{bind: dn1.example}":                         `cluster.bind: "dn1.example" is no IP address`,
		"{hosts: [http://x]}":                         "cluster.hosts[0]",
		"{address: " + strings.Repeat("a", 300) + "}": "is neither an IP address nor the name of a host",
	} {
		text = "{name: a, secret_file: b, " + strings.TrimPrefix(text, "{")
		f, err := Parse("hops.yaml", []byte("cluster: "+text+"\ndatanode: {volumes: [{path: /d}]}\n"))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
		if err == nil && strings.Contains(text, "fd00") && f.Datanode.Transfer != "[fd00::5]:9866" {
			t.Errorf("the datanode is at %s", f.Datanode.Transfer)
		}
	}
}

// The socket of a section counts before the property, and "none" says that there is none.
func TestSocketPath(t *testing.T) {
	for _, c := range []struct{ section, property, want string }{
		{"", "", ""},
		{"", "/run/a/dn._PORT", "/run/a/dn._PORT"},
		{"/run/b/dn._PORT", "", "/run/b/dn._PORT"},
		{"/run/b/dn._PORT", "/run/a/dn._PORT", "/run/b/dn._PORT"},
		{"none", "/run/a/dn._PORT", ""},
	} {
		text := strings.Replace(whole, "datanode: {", "datanode: {domain_socket: '"+c.section+"', ", 1)
		text = strings.Replace(text, "dfs.replication: 2", "dfs.replication: 2, dfs.domain.socket.path: '"+c.property+"'", 1)
		f, err := Parse("hops.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.SocketPath(f.Datanode); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if got := f.SocketPath(nil); got != c.property {
			t.Errorf("%+v: %q without a datanode", c, got)
		}
	}
}
