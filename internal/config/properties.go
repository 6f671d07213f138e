package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/nearest"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
)

// Properties are the server settings that carry Hadoop's own names and defaults. Make them with DefaultProperties.
type Properties struct {
	// Replication is what a client that asks for nothing gets (dfs.replication, 3).
	Replication int
	// BlockSize is what a client that asks for nothing gets (dfs.blocksize, 128 MiB).
	BlockSize Size
	// MinBlockSize is the smallest block size that a create may ask for (dfs.namenode.fs-limits.min-block-size, 1 MiB).
	MinBlockSize Size
	// TrashInterval is how many minutes removed files stay in the trash; 0: there is no trash (fs.trash.interval, 0).
	TrashInterval int
	// TrashCheckpoint is how many minutes lie between two checkpoints of the trash; 0, and more than TrashInterval: as many as
	// TrashInterval (fs.trash.checkpoint.interval, 0).
	TrashCheckpoint int
	// Supergroup makes its members superusers (dfs.permissions.superusergroup, supergroup).
	Supergroup string
	// ListLimit is the page size of listings (dfs.ls.limit, 1000).
	ListLimit int
	// CorruptFilesReturned is how many files one answer of listCorruptFileBlocks names at most (dfs.corruptfilesreturned.max, 500).
	CorruptFilesReturned int
	// LeaseHardLimit is after how many seconds an abandoned file is closed by the namenode
	// (dfs.namenode.lease-hard-limit-sec, 1200).
	LeaseHardLimit int
	// AccessTimePrecision is after how many milliseconds at the earliest a read sets a file's access time again; 0: reads do
	// not set it (dfs.namenode.accesstime.precision, 3600000).
	AccessTimePrecision int
	// Protected are directories that nobody can remove or rename while there is something in them (fs.protected.directories;
	// HDFS has none). Of those that the cluster needs, SystemDirectories, the missing ones are made.
	Protected []string
	// TokenKeyInterval is after how many milliseconds a new key signs delegation tokens (dfs.namenode.delegation.key.update-interval,
	// a day).
	TokenKeyInterval int
	// TokenMaxLifetime is how many milliseconds a delegation token is good at most (dfs.namenode.delegation.token.max-lifetime, 7
	// days).
	TokenMaxLifetime int
	// TokenRenewInterval is for how many milliseconds it is good until it is renewed (dfs.namenode.delegation.token.renew-interval, a
	// day).
	TokenRenewInterval int
	// RPCProtection are the qualities of protection that are offered on Hadoop IPC to who is authenticated by SASL
	// (hadoop.rpc.protection, authentication).
	RPCProtection []sasl.Quality
	// Hosts and HostsExclude are files on the machines of the namenodes that list the datanodes that may serve, and those that are to leave
	// (dfs.hosts, dfs.hosts.exclude; none). They are read when the cluster begins, and by refreshNodes.
	Hosts, HostsExclude string
	// NodesExclude is a file on the machines of the resource managers that names the node managers that are to leave
	// (yarn.resourcemanager.nodes.exclude-path).
	NodesExclude string
	// MaintenanceReplication is how many replicas a block must have elsewhere for a datanode to be in maintenance
	// (dfs.namenode.maintenance.replication.min, 1).
	MaintenanceReplication int
	// LockedMemory is how much memory replicas may take at a datanode that cache directives want there (dfs.datanode.max.locked.memory, 0: none).
	LockedMemory Size
	// BalanceBandwidth is how many bytes a second a datanode sends at most for the balancer (dfs.datanode.balance.bandwidthPerSec, 100 MiB).
	BalanceBandwidth Size
	// LazyScrubInterval is how many seconds lie between two looks for lazily persisted files that were lost with the memory of a datanode; 0: they stay
	// (dfs.namenode.lazypersist.file.scrub.interval.sec, 300).
	LazyScrubInterval int
	// LazyWriterInterval is how many seconds lie between two times at which a datanode saves what is in memory on its disks (dfs.datanode.lazywriter.interval.sec, 60).
	LazyWriterInterval int
	// DiskCheckTimeout is how long a call of a datanode's disk may take before its volume has failed (dfs.datanode.disk.check.timeout, 30 s; HDFS has 10 min).
	DiskCheckTimeout time.Duration
	// SyncOnClose has a datanode sync a replica before it acknowledges that it is closed (dfs.datanode.synconclose, true; HDFS has false).
	SyncOnClose bool
	// TransferProtection are the qualities of protection of which one has to be agreed on with a datanode before blocks move; none: they
	// move without (dfs.data.transfer.protection, empty).
	TransferProtection []sasl.Quality
	// EncryptTransfer has blocks move encrypted only (dfs.encrypt.data.transfer, false).
	EncryptTransfer bool
	// DomainSocket is the path of the Unix-domain sockets of datanodes, with _PORT for the port (dfs.domain.socket.path, none).
	DomainSocket string
	// ShortCircuit and DomainTraffic say whether clients read by descriptors, and move blocks over those sockets otherwise, as their
	// configuration says it; empty: nothing is said (dfs.client.read.shortcircuit, dfs.client.domain.socket.data.traffic).
	ShortCircuit, DomainTraffic string
	// RackScript is a program that is given addresses of machines and prints the rack of each, RackTable a file that has them in
	// two columns; at most one of them (net.topology.script.file.name, net.topology.table.file.name; none).
	RackScript, RackTable string
	// ProxyUsers says who may act for whom (hadoop.proxyuser.USER.{users,groups,hosts}).
	ProxyUsers map[string]security.ProxyRule
	// Kerberos says who takes tickets.
	Kerberos Kerberos
}

// DefaultProperties are HDFS's own defaults, except that the system directories are protected, that what is closed is on disk, and that a disk which does not answer is given up sooner.
func DefaultProperties() Properties {
	return Properties{
		Replication:          3,
		BlockSize:            128 << 20,
		MinBlockSize:         1 << 20,
		Supergroup:           "supergroup",
		ListLimit:            1000,
		CorruptFilesReturned: 500,
		LeaseHardLimit:       1200,
		AccessTimePrecision:  3600 * 1000,
		Protected:            slices.Clone(SystemDirectories),
		TokenKeyInterval:     24 * 3600 * 1000,
		TokenMaxLifetime:     7 * 24 * 3600 * 1000,
		TokenRenewInterval:   24 * 3600 * 1000,
		RPCProtection:        []sasl.Quality{sasl.Authentication},

		MaintenanceReplication: 1,
		BalanceBandwidth:       100 << 20,
		LazyScrubInterval:      300,
		LazyWriterInterval:     60,
		DiskCheckTimeout:       30 * time.Second,
		SyncOnClose:            true,
	}
}

// SystemDirectories are what every user of a cluster needs.
var SystemDirectories = []string{"/Projects", "/logs", "/tmp", "/user"}

const proxyUser = "hadoop.proxyuser."

type property struct {
	name string
	get  func(*Properties) string
	set  func(*Properties, string) error
}

var properties = []property{
	number("dfs.replication", 1, 512, func(p *Properties) *int { return &p.Replication }),
	bytes("dfs.blocksize", 512, func(p *Properties) *Size { return &p.BlockSize }),
	bytes("dfs.namenode.fs-limits.min-block-size", 0, func(p *Properties) *Size { return &p.MinBlockSize }),
	number("fs.trash.interval", 0, 1<<30, func(p *Properties) *int { return &p.TrashInterval }),
	number("fs.trash.checkpoint.interval", 0, 1<<30, func(p *Properties) *int { return &p.TrashCheckpoint }),
	{
		"dfs.permissions.superusergroup",
		func(p *Properties) string { return p.Supergroup },
		func(p *Properties, v string) error {
			if v == "" {
				return fmt.Errorf("must not be empty")
			}
			p.Supergroup = v
			return nil
		},
	},
	file("dfs.hosts", func(p *Properties) *string { return &p.Hosts }),
	file("dfs.hosts.exclude", func(p *Properties) *string { return &p.HostsExclude }),
	file("yarn.resourcemanager.nodes.exclude-path", func(p *Properties) *string { return &p.NodesExclude }),
	number("dfs.namenode.maintenance.replication.min", 0, 512, func(p *Properties) *int { return &p.MaintenanceReplication }),
	bytes("dfs.datanode.max.locked.memory", 0, func(p *Properties) *Size { return &p.LockedMemory }),
	bytes("dfs.datanode.balance.bandwidthPerSec", 1<<10, func(p *Properties) *Size { return &p.BalanceBandwidth }),
	number("dfs.namenode.lazypersist.file.scrub.interval.sec", 0, 1<<30, func(p *Properties) *int { return &p.LazyScrubInterval }),
	number("dfs.datanode.lazywriter.interval.sec", 1, 1<<20, func(p *Properties) *int { return &p.LazyWriterInterval }),
	milliseconds("dfs.datanode.disk.check.timeout", time.Second, time.Hour, func(p *Properties) *time.Duration { return &p.DiskCheckTimeout }),
	number("dfs.ls.limit", 1, 1<<20, func(p *Properties) *int { return &p.ListLimit }),
	number("dfs.corruptfilesreturned.max", 1, 10_000, func(p *Properties) *int { return &p.CorruptFilesReturned }),
	number("dfs.namenode.lease-hard-limit-sec", 1, 1<<30, func(p *Properties) *int { return &p.LeaseHardLimit }),
	number("dfs.namenode.accesstime.precision", 0, 1<<40, func(p *Properties) *int { return &p.AccessTimePrecision }),
	number("dfs.namenode.delegation.key.update-interval", 1000, 1<<40, func(p *Properties) *int { return &p.TokenKeyInterval }),
	number("dfs.namenode.delegation.token.max-lifetime", 1000, 1<<40, func(p *Properties) *int { return &p.TokenMaxLifetime }),
	number("dfs.namenode.delegation.token.renew-interval", 1000, 1<<40, func(p *Properties) *int { return &p.TokenRenewInterval }),
	{
		"hadoop.rpc.protection",
		func(p *Properties) string { return sasl.FormatQualities(p.RPCProtection) },
		func(p *Properties, v string) (err error) {
			p.RPCProtection, err = sasl.ParseQualities(v)
			return err
		},
	},
	{
		"dfs.data.transfer.protection",
		func(p *Properties) string { return sasl.FormatQualities(p.TransferProtection) },
		func(p *Properties, v string) (err error) {
			p.TransferProtection = nil
			if v != "" {
				p.TransferProtection, err = sasl.ParseQualities(v)
			}
			return err
		},
	},
	boolean("dfs.encrypt.data.transfer", func(p *Properties) *bool { return &p.EncryptTransfer }),
	boolean("dfs.datanode.synconclose", func(p *Properties) *bool { return &p.SyncOnClose }),
	file(rackScript, func(p *Properties) *string { return &p.RackScript }),
	file(rackTable, func(p *Properties) *string { return &p.RackTable }),
	{
		"fs.protected.directories",
		func(p *Properties) string { return strings.Join(p.Protected, ",") },
		func(p *Properties, v string) error {
			p.Protected = nil
			for dir := range strings.SplitSeq(v, ",") {
				if dir = strings.TrimSpace(dir); dir == "" {
					continue
				}
				if !strings.HasPrefix(dir, "/") || dir == "/" || path.Clean(dir) != dir {
					return fmt.Errorf("%q is no directory below /", dir)
				}
				p.Protected = append(p.Protected, dir)
			}
			return nil
		},
	},
}

// socketProperties are listed only when they are set: Hadoop's clients complain when they cannot do what these say.
var socketProperties = []property{
	{
		SocketProperty,
		func(p *Properties) string { return p.DomainSocket },
		func(p *Properties, v string) error {
			p.DomainSocket = v
			if v == "" {
				return nil
			}
			return localsocket.CheckForm(v)
		},
	},
	flag("dfs.client.read.shortcircuit", func(p *Properties) *string { return &p.ShortCircuit }),
	flag("dfs.client.domain.socket.data.traffic", func(p *Properties) *string { return &p.DomainTraffic }),
}

// SocketProperty is Hadoop's name of the path of datanodes' Unix-domain sockets.
const SocketProperty = "dfs.domain.socket.path"

// flag is true or false, or empty.
func flag(name string, field func(*Properties) *string) property {
	return property{
		name,
		func(p *Properties) string { return *field(p) },
		func(p *Properties, v string) error {
			if v != "" && v != "true" && v != "false" {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			*field(p) = v
			return nil
		},
	}
}

const (
	rackScript = "net.topology.script.file.name"
	rackTable  = "net.topology.table.file.name"
)

func number(name string, least, most int, field func(*Properties) *int) property {
	return property{
		name,
		func(p *Properties) string { return strconv.Itoa(*field(p)) },
		func(p *Properties, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < least || n > most {
				return fmt.Errorf("%q is not a whole number from %d to %d", v, least, most)
			}
			*field(p) = n
			return nil
		},
	}
}

// milliseconds is a time: so many, or a number with a unit.
func milliseconds(name string, least, most time.Duration, field func(*Properties) *time.Duration) property {
	return property{
		name,
		func(p *Properties) string { return strconv.FormatInt(field(p).Milliseconds(), 10) },
		func(p *Properties, v string) error {
			d, err := time.ParseDuration(v)
			if n, plain := strconv.ParseInt(v, 10, 64); plain == nil && n >= 0 && n <= most.Milliseconds() {
				d, err = time.Duration(n)*time.Millisecond, nil
			}
			if err != nil || d < least || d > most {
				return fmt.Errorf("%q is not a time from %v to %v, such as 30s, or milliseconds", v, least, most)
			}
			*field(p) = d
			return nil
		},
	}
}

func boolean(name string, field func(*Properties) *bool) property {
	return property{
		name,
		func(p *Properties) string { return strconv.FormatBool(*field(p)) },
		func(p *Properties, v string) (err error) {
			*field(p), err = strconv.ParseBool(v)
			return err
		},
	}
}

// file is an absolute path, or empty.
func file(name string, field func(*Properties) *string) property {
	return property{
		name,
		func(p *Properties) string { return *field(p) },
		func(p *Properties, v string) error {
			if v != "" && !strings.HasPrefix(v, "/") {
				return fmt.Errorf("%q is no absolute path", v)
			}
			*field(p) = v
			return nil
		},
	}
}

func bytes(name string, least Size, field func(*Properties) *Size) property {
	return property{
		name,
		func(p *Properties) string { return strconv.FormatInt(int64(*field(p)), 10) },
		func(p *Properties, v string) error {
			n, err := ParseSize(v)
			if err != nil {
				return err
			}
			if n < least {
				return fmt.Errorf("%v is less than %v", n, least)
			}
			*field(p) = n
			return nil
		},
	}
}

// Set changes one property. An unknown name is refused with the nearest known one.
func (p *Properties) Set(name, value string) error {
	value = strings.TrimSpace(value)
	if rest, ok := strings.CutPrefix(name, proxyUser); ok {
		return p.setProxy(name, rest, value)
	}
	all := slices.Concat(properties, kerberosProperties, socketProperties)
	for _, known := range all {
		if known.name == name {
			if err := known.set(p, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
	}
	var names []string
	for _, known := range all {
		names = append(names, known.name)
	}
	return fmt.Errorf("unknown property %s%s", name, nearest.Hint(name, append(names, proxyUser+"USER.hosts")))
}

func (p *Properties) setProxy(name, rest, value string) error {
	dot := strings.LastIndexByte(rest, '.')
	if dot <= 0 {
		return fmt.Errorf("%s: want %sUSER.hosts, .groups or .users", name, proxyUser)
	}
	who, what := rest[:dot], rest[dot+1:]
	var list []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	rule := p.ProxyUsers[who]
	switch what {
	case "hosts":
		rule.Hosts = list
	case "groups":
		rule.Groups = list
	case "users":
		rule.Users = list
	default:
		return fmt.Errorf("unknown property %s%s", name, nearest.Hint(what, []string{"hosts", "groups", "users"}))
	}
	p.ProxyUsers = maps.Clone(p.ProxyUsers)
	if p.ProxyUsers == nil {
		p.ProxyUsers = map[string]security.ProxyRule{}
	}
	p.ProxyUsers[who] = rule
	return nil
}

// Pairs lists every property with its value, by name: what goes into hdfs-site.xml.
func (p Properties) Pairs() [][2]string {
	var pairs [][2]string
	for _, known := range properties {
		if known.name == rackScript || known.name == rackTable { // of the servers' machines
			continue
		}
		pairs = append(pairs, [2]string{known.name, known.get(&p)})
	}
	for _, known := range slices.Concat(kerberosProperties, socketProperties) {
		if v := known.get(&p); v != "" {
			pairs = append(pairs, [2]string{known.name, v})
		}
	}
	for _, who := range slices.Sorted(maps.Keys(p.ProxyUsers)) {
		rule := p.ProxyUsers[who]
		for _, part := range []struct {
			name string
			list []string
		}{{"groups", rule.Groups}, {"hosts", rule.Hosts}, {"users", rule.Users}} {
			if part.list != nil {
				pairs = append(pairs, [2]string{proxyUser + who + "." + part.name, strings.Join(part.list, ",")})
			}
		}
	}
	sort.Slice(pairs, func(i, j int) bool { return pairs[i][0] < pairs[j][0] })
	return pairs
}
