// Package config reads hops.yaml, the one file that describes a cluster and the roles of a machine in it, and the server
// settings that carry Hadoop's own names. Unknown keys are errors that name the nearest known one, and Validate lists
// every mistake at once.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yaml"
)

// File is hops.yaml. The lists of namenodes and resource managers are the same on every machine; each role's own
// section is there where the role runs.
type File struct {
	Cluster          Cluster           `yaml:"cluster"`
	Namenodes        []NamenodeMember  `yaml:"namenodes"`
	ResourceManagers []ManagerMember   `yaml:"resourcemanagers"`
	Namenode         *Namenode         `yaml:"namenode"`
	Datanode         *Datanode         `yaml:"datanode"`
	ResourceManager  *ResourceManager  `yaml:"resourcemanager"`
	NodeManager      *NodeManager      `yaml:"nodemanager"`
	Audit            Audit             `yaml:"audit"`
	Properties       map[string]string `yaml:"properties"`
	properties       Properties
}

// Cluster names the cluster and its secret.
type Cluster struct {
	Name string `yaml:"name"`
	// SecretFile is shared by all servers, mode 0600; the first server started with --bootstrap makes it.
	SecretFile string `yaml:"secret_file"`
	// Conf, when set, is a directory into which a starting namenode writes core-site.xml, hdfs-site.xml and yarn-site.xml.
	Conf string `yaml:"conf"`
}

// Audit says what is kept of who was let do what, and where.
type Audit struct {
	// Dir is the directory of the audit logs, one a role; default: the role's own data directory.
	Dir string `yaml:"dir"`
	// Reads are kept too when they are allowed; default: changes and refusals only.
	Reads bool `yaml:"reads"`
}

// NamenodeMember is one namenode as everybody reaches it.
type NamenodeMember struct {
	ID   string `yaml:"id"`
	IPC  string `yaml:"ipc"`
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	Raft string `yaml:"raft"`
}

// ManagerMember is one resource manager as everybody reaches it.
type ManagerMember struct {
	ID   string `yaml:"id"`
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	Raft string `yaml:"raft"`
}

// Namenode is the namenode of this machine.
type Namenode struct {
	ID   string `yaml:"id"`
	Data string `yaml:"data"`
	// Reserve is the free space below which the namespace turns read-only; default 256MiB.
	Reserve Size `yaml:"reserve"`
	// DeadAfter is how long a silent datanode counts as alive; default 90s. StaleAfter is when it is avoided; default 10s.
	DeadAfter  time.Duration `yaml:"dead_after"`
	StaleAfter time.Duration `yaml:"stale_after"`
	// Heartbeat is what datanodes are told; default 3s.
	Heartbeat time.Duration `yaml:"heartbeat"`
}

// Datanode is the datanode of this machine.
type Datanode struct {
	Volumes  []Volume `yaml:"volumes"`
	Transfer string   `yaml:"transfer"`
	HTTP     string   `yaml:"http"`
	IPC      string   `yaml:"ipc"`
	GRPC     string   `yaml:"grpc"`
	// Reserve is the free space on each volume below which it takes no new replicas; default 256MiB.
	Reserve Size `yaml:"reserve"`
}

// Volume is one directory of block files.
type Volume struct {
	Path string `yaml:"path"`
	// Type is DISK (default), SSD, ARCHIVE, RAM_DISK or NVDIMM.
	Type string `yaml:"type"`
}

// ResourceManager is the resource manager of this machine.
type ResourceManager struct {
	ID      string        `yaml:"id"`
	Data    string        `yaml:"data"`
	Lease   time.Duration `yaml:"lease"`
	Reserve Size          `yaml:"reserve"`
	Queues  Queues        `yaml:"queues"`
}

// Queues is the tree of queues, by name; its one root is named root.
type Queues map[string]Queue

// Queue is one queue of the tree.
type Queue struct {
	// Capacity and Max are percentages of the parent, "40%". Max defaults to 100%.
	Capacity  string   `yaml:"capacity"`
	Max       string   `yaml:"max"`
	ACLSubmit []string `yaml:"acl_submit"`
	Children  Queues   `yaml:"children"`
}

// NodeManager is the node manager of this machine.
type NodeManager struct {
	Work   string `yaml:"work"`
	HTTP   string `yaml:"http"`
	Memory Size   `yaml:"memory"`
	VCores int    `yaml:"vcores"`
	// GPUs is auto, none, sim:N, or the path of a file that describes simulated devices; default auto.
	GPUs string `yaml:"gpus"`
	// Labels are matched by jobs that ask for one.
	Labels []string      `yaml:"labels"`
	Lease  time.Duration `yaml:"lease"`
	// LogLimit is how much log a container may write; default 1GiB. LogRate is how much of it a second, once a quarter of the
	// limit is written; default 4MiB. A container that exceeds one of them is ended.
	LogLimit Size `yaml:"log_limit"`
	LogRate  Size `yaml:"log_rate"`
}

// Load reads and validates a file.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w (name another file with -c; docs/reference/configuration.md shows one)", err)
	}
	return Parse(path, text)
}

// Parse reads and validates the text of the file called name.
func Parse(name string, text []byte) (*File, error) {
	f := &File{}
	err := yaml.UnmarshalStrict(name, text, f)
	if wrong, ok := errors.AsType[*yaml.Mistakes](err); err != nil && (!ok || wrong.Hides()) {
		return nil, err
	}
	if invalid := f.Validate(); invalid != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w", name, invalid))
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// HadoopProperties are the file's properties over Hadoop's defaults.
func (f *File) HadoopProperties() Properties { return f.properties }

// Validate fills in defaults and lists every mistake at once.
func (f *File) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	need := func(where, value string) {
		if value == "" {
			wrong("%s is missing", where)
		}
	}
	address := func(where, value string) {
		if value == "" {
			wrong("%s is missing", where)
		} else if _, _, err := net.SplitHostPort(value); err != nil {
			wrong("%s: %q is not host:port", where, value)
		} else if err := security.CheckBind(value); err != nil {
			wrong("%s: %w", where, err)
		}
	}
	need("cluster.name", f.Cluster.Name)
	need("cluster.secret_file", f.Cluster.SecretFile)
	ids := map[string]bool{}
	for i, n := range f.Namenodes {
		where := fmt.Sprintf("namenodes[%d]", i)
		need(where+".id", n.ID)
		if ids[n.ID] {
			wrong("%s.id: %s stands twice", where, n.ID)
		}
		ids[n.ID] = true
		address(where+".ipc", n.IPC)
		address(where+".http", n.HTTP)
		address(where+".grpc", n.GRPC)
		address(where+".raft", n.Raft)
	}
	managers := map[string]bool{}
	for i, m := range f.ResourceManagers {
		where := fmt.Sprintf("resourcemanagers[%d]", i)
		need(where+".id", m.ID)
		if managers[m.ID] {
			wrong("%s.id: %s stands twice", where, m.ID)
		}
		managers[m.ID] = true
		address(where+".http", m.HTTP)
		address(where+".grpc", m.GRPC)
		address(where+".raft", m.Raft)
	}
	if n := f.Namenode; n != nil {
		need("namenode.data", n.Data)
		if !ids[n.ID] {
			wrong("namenode.id: %q is not in the list of namenodes", n.ID)
		}
		n.Reserve = cmp.Or(n.Reserve, 256<<20)
		n.DeadAfter = cmp.Or(n.DeadAfter, 90*time.Second)
		n.StaleAfter = cmp.Or(n.StaleAfter, 10*time.Second)
		n.Heartbeat = cmp.Or(n.Heartbeat, 3*time.Second)
		if n.DeadAfter <= n.Heartbeat {
			wrong("namenode.dead_after: %v is not above the heartbeat of %v", n.DeadAfter, n.Heartbeat)
		}
	}
	if d := f.Datanode; d != nil {
		if len(d.Volumes) == 0 {
			wrong("datanode.volumes is empty: a datanode needs a directory")
		}
		for i := range d.Volumes {
			need(fmt.Sprintf("datanode.volumes[%d].path", i), d.Volumes[i].Path)
			d.Volumes[i].Type = cmp.Or(d.Volumes[i].Type, "DISK")
			if types := []string{"DISK", "SSD", "ARCHIVE", "RAM_DISK", "NVDIMM"}; !slices.Contains(types, d.Volumes[i].Type) {
				wrong("datanode.volumes[%d].type: %q is none of %s", i, d.Volumes[i].Type, strings.Join(types, " "))
			}
		}
		for _, a := range []struct {
			name string
			addr *string
			port string
		}{{"transfer", &d.Transfer, "9866"}, {"http", &d.HTTP, "9864"}, {"ipc", &d.IPC, "9867"}, {"grpc", &d.GRPC, "9868"}} {
			*a.addr = cmp.Or(*a.addr, "127.0.0.1:"+a.port)
			address("datanode."+a.name, *a.addr)
		}
		d.Reserve = cmp.Or(d.Reserve, 256<<20)
	}
	if r := f.ResourceManager; r != nil {
		need("resourcemanager.data", r.Data)
		if !managers[r.ID] {
			wrong("resourcemanager.id: %q is not in the list of resourcemanagers", r.ID)
		}
		r.Lease = cmp.Or(r.Lease, 10*time.Second)
		r.Reserve = cmp.Or(r.Reserve, 256<<20)
		if r.Queues == nil {
			r.Queues = DefaultQueues()
		}
		if _, ok := r.Queues["root"]; !ok || len(r.Queues) != 1 {
			wrong("resourcemanager.queues: the one queue at the top is named root")
		}
	}
	if n := f.NodeManager; n != nil {
		need("nodemanager.work", n.Work)
		n.HTTP = cmp.Or(n.HTTP, "127.0.0.1:8042")
		address("nodemanager.http", n.HTTP)
		n.GPUs = cmp.Or(n.GPUs, "auto")
		n.Lease = cmp.Or(n.Lease, 10*time.Second)
		n.LogLimit = cmp.Or(n.LogLimit, 1<<30)
		n.LogRate = cmp.Or(n.LogRate, 4<<20)
		if n.Memory <= 0 {
			wrong("nodemanager.memory is missing: how much may containers use, as 60GiB")
		}
		if n.LogLimit < 1<<20 {
			wrong("nodemanager.log_limit: %v would end containers for a few lines of log; the least is 1MiB", n.LogLimit)
		}
		if n.VCores <= 0 {
			wrong("nodemanager.vcores is missing: how many cores may containers use")
		}
	}
	f.properties = DefaultProperties()
	for _, name := range slices.Sorted(maps.Keys(f.Properties)) {
		if err := f.properties.Set(name, f.Properties[name]); err != nil {
			wrong("properties: %w", err)
		}
	}
	return errors.Join(errs...)
}

// DefaultQueues is a root with the one child default.
func DefaultQueues() Queues {
	return Queues{"root": {Children: Queues{"default": {Capacity: "100%"}}}}
}
