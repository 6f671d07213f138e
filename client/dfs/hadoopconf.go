package dfs

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
)

// defaultPort is where a namenode listens that names no port.
const defaultPort = "8020"

// MachineConf is the configuration that the servers of a machine write for its users.
const MachineConf = "/etc/hops/conf"

// maxConfFile bounds a configuration file, in bytes.
const maxConfFile = 16 << 20

// HadoopConf is what a Hadoop configuration directory says: the properties of core-site.xml and hdfs-site.xml, by name,
// with ${...} resolved. Only those that this client knows matter; their defaults are Hadoop's.
type HadoopConf struct {
	Properties map[string]string
}

// LoadHadoopConf reads core-site.xml and hdfs-site.xml of a directory. Files that are missing say nothing.
func LoadHadoopConf(dir string) (*HadoopConf, error) {
	c := &HadoopConf{Properties: map[string]string{}}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("hadoop configuration: %w", err)
	}
	for _, name := range []string{"core-site.xml", "hdfs-site.xml"} {
		if err := c.LoadFile(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if err := c.expandAll(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

// HadoopConfFromEnv reads the directory that $HADOOP_CONF_DIR names; without that variable the configuration is empty.
func HadoopConfFromEnv() (*HadoopConf, error) {
	dir := os.Getenv("HADOOP_CONF_DIR")
	if dir == "" {
		return &HadoopConf{Properties: map[string]string{}}, nil
	}
	return LoadHadoopConf(dir)
}

// ConfigFromEnv is the configuration for the default file system of $HADOOP_CONF_DIR.
func ConfigFromEnv() (Config, error) {
	c, err := HadoopConfFromEnv()
	if err != nil {
		return Config{}, err
	}
	l, err := c.Locate("/")
	if err != nil {
		return Config{}, err
	}
	return l.Config, nil
}

// LoadFile adds the properties of one configuration file; they replace those of the same name.
func (c *HadoopConf) LoadFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.read(f); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// read adds the properties of a configuration file.
func (c *HadoopConf) read(r io.Reader) error {
	var document struct {
		XMLName  xml.Name `xml:"configuration"`
		Property []struct {
			Name  string `xml:"name"`
			Value string `xml:"value"`
		} `xml:"property"`
	}
	decoder := xml.NewDecoder(io.LimitReader(r, maxConfFile))
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // an empty file
		}
		return err
	}
	for _, p := range document.Property {
		c.Properties[strings.TrimSpace(p.Name)] = strings.TrimSpace(p.Value)
	}
	return nil
}

// expandAll writes out the values. All of them together are bounded as a file is: a few that name each other would make
// gigabytes of a few lines.
func (c *HadoopConf) expandAll() error {
	expanded := make(map[string]string, len(c.Properties))
	total := 0
	for name, value := range c.Properties {
		expanded[name] = c.expand(value)
		if total += len(expanded[name]); total > maxConfFile {
			return fmt.Errorf("with every ${...} written out its properties have more than %d bytes: %w", maxConfFile, metadata.ErrInvalidArgument)
		}
	}
	c.Properties = expanded
	return nil
}

// expand replaces ${name} by the property or, for ${user.name} and ${env.NAME}, what it stands for. An unknown one stays.
func (c *HadoopConf) expand(value string) string {
	for range 20 { // Hadoop's limit of nesting
		start := strings.Index(value, "${")
		if start < 0 {
			break
		}
		end := strings.IndexByte(value[start:], '}')
		if end < 0 {
			break
		}
		name := value[start+2 : start+end]
		with, ok := c.Properties[name]
		switch {
		case ok:
		case name == "user.name":
			with = currentUser()
		case strings.HasPrefix(name, "env."):
			with = os.Getenv(name[4:])
		default:
			return value
		}
		value = value[:start] + with + value[start+end+1:]
	}
	return value
}

// DefaultFS is the URI of the file system that a path without one means, empty if none is configured.
func (c *HadoopConf) DefaultFS() string {
	if v := c.Properties["fs.defaultFS"]; v != "" {
		return v
	}
	return c.Properties["fs.default.name"]
}

// maxTrashMinutes is a century.
const maxTrashMinutes = 100 * 365 * 24 * 60

// TrashInterval is how long deleted files are kept, zero if they are not.
func (c *HadoopConf) TrashInterval() (time.Duration, error) {
	v := c.Properties["fs.trash.interval"]
	if v == "" {
		return 0, nil
	}
	minutes, err := strconv.ParseFloat(v, 64)
	if err != nil || !(minutes >= 0 && minutes <= maxTrashMinutes) { // NaN is neither
		return 0, fmt.Errorf("fs.trash.interval: %q is no number of minutes from 0 to %d", v, int64(maxTrashMinutes))
	}
	return time.Duration(minutes * float64(time.Minute)), nil
}

// Location is what a URI names: a path, and the client that reaches it.
type Location struct {
	// Authority is the host and port or the name service of the URI, empty for a path in the default file system.
	Authority string
	// Path is absolute.
	Path   string
	Config Config
}

// Locate resolves hdfs://host[:port]/path, hdfs://nameservice/path, and paths without a scheme, which are in the default
// file system and, if relative, in the user's home.
func (c *HadoopConf) Locate(uri string) (Location, error) {
	return c.LocateAs(uri, "")
}

// LocateAs is Locate for a user of that name; empty means the process's.
func (c *HadoopConf) LocateAs(uri, user string) (Location, error) {
	config, err := c.config()
	if err != nil {
		return Location{}, err
	}
	config.User = firstSet(user, currentUser())
	config.Filesystem = c.DefaultFS()
	scheme, authority, name, err := splitURI(uri)
	if err != nil {
		return Location{}, err
	}
	if scheme == "" || authority == "" && scheme == "hdfs" {
		base := c.DefaultFS()
		if base == "" {
			return Location{}, fmt.Errorf("%q names no file system and none is configured: set fs.defaultFS, HADOOP_CONF_DIR or give hdfs://host:port: %w", uri, metadata.ErrInvalidArgument)
		}
		if scheme, authority, _, err = splitURI(base); err != nil {
			return Location{}, fmt.Errorf("fs.defaultFS: %w", err)
		}
		l := Location{Path: name}
		if l.Config, err = c.reach(config, scheme, authority); err != nil {
			return Location{}, fmt.Errorf("fs.defaultFS: %w", err)
		}
		if err := l.Config.authenticate(c, authority, user); err != nil {
			return Location{}, err
		}
		config.User = l.Config.User
		if !strings.HasPrefix(name, "/") {
			l.Path = "/user/" + config.User + "/" + name
		}
		l.Path = path.Clean(l.Path)
		return l, nil
	}
	l := Location{Authority: authority, Path: path.Clean("/" + name)}
	if l.Config, err = c.reach(config, scheme, authority); err != nil {
		return Location{}, err
	}
	if err := l.Config.authenticate(c, authority, user); err != nil {
		return Location{}, err
	}
	return l, nil
}

// lookupTimeout is how long the name of a namenode is looked up to find a token for its address.
const lookupTimeout = 5 * time.Second

// authenticate takes what proves who the user is: the token of a job, or the tickets of the process's user. Of a user that was named only
// a token of theirs counts.
func (c *Config) authenticate(conf *HadoopConf, authority, user string) error {
	if err := c.useToken(authority, user); err != nil || user != "" {
		return err
	}
	return c.login(conf)
}

// useToken takes the token for a file system from the file that $HADOOP_TOKEN_FILE_LOCATION names, as jobs of Hadoop's do, and looks there
// again for each connection. Without one for it, or with one of another user than the one that was named, nothing changes.
func (c *Config) useToken(authority, user string) error {
	credentials, err := token.FromEnvironment()
	if err != nil || len(credentials) == 0 {
		return err
	}
	services := TokenServices(authority, c.Namenodes)
	t, ok := credentials.For(services...)
	if !ok {
		return nil
	}
	id, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return fmt.Errorf("%s: the token for %s: %w", os.Getenv(token.LocationVariable), t.Service, err)
	}
	if user != "" && user != id.Owner {
		return nil
	}
	c.Token, c.User = &t, id.Owner
	c.Refresh = func() *token.Token {
		credentials, err := token.FromEnvironment()
		if err != nil { // it is being replaced, or the job's end is near
			return nil
		}
		now, ok := credentials.For(services...)
		if of, err := token.ParseIdentifier(now.Identifier); !ok || err != nil || of.Owner != id.Owner {
			return nil
		}
		return &now
	}
	return nil
}

// TokenServices are the names that Hadoop's clients have in tokens for a file system, the usual one first: of a name service that, of a
// single namenode its address as numbers.
func TokenServices(authority string, namenodes []string) []string {
	services := []string{"ha-hdfs:" + authority}
	if len(namenodes) == 1 {
		services = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	for _, addr := range namenodes {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			continue
		}
		ips, _ := net.DefaultResolver.LookupHost(ctx, host) // without an address its name is what is left
		for _, ip := range ips {
			services = append(services, net.JoinHostPort(ip, port))
		}
		services = append(services, strings.ToLower(addr))
	}
	return services
}

// splitURI cuts a URI at "scheme://authority" as Hadoop does: a path may hold any character.
func splitURI(uri string) (scheme, authority, name string, err error) {
	i := strings.Index(uri, ":")
	slash := strings.IndexByte(uri, '/')
	if i <= 0 || slash >= 0 && slash < i || !strings.HasPrefix(uri[i+1:], "/") {
		return "", "", uri, nil
	}
	scheme, rest := strings.ToLower(uri[:i]), uri[i+1:]
	if strings.HasPrefix(rest, "//") {
		authority, name, _ = strings.Cut(rest[2:], "/")
		name = "/" + name
	} else {
		name = rest
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	if u, err := url.Parse(scheme + "://" + authority); err != nil || u.Host != authority {
		return "", "", "", fmt.Errorf("%q: %q is no host: %w", uri, authority, metadata.ErrInvalidArgument)
	}
	return scheme, authority, name, nil
}

// reach fills in the namenodes of an authority.
func (c *HadoopConf) reach(config Config, scheme, authority string) (Config, error) {
	if scheme != "hdfs" {
		return Config{}, fmt.Errorf("file system %q is not supported, hdfs is: %w", scheme, metadata.ErrUnsupported)
	}
	for _, service := range splitList(c.Properties["dfs.nameservices"]) {
		if service != authority {
			continue
		}
		names := splitList(c.Properties["dfs.ha.namenodes."+service])
		properties := make([]string, 0, len(names)+1)
		for _, name := range names {
			properties = append(properties, "dfs.namenode.rpc-address."+service+"."+name)
		}
		if alone := "dfs.namenode.rpc-address." + service; len(names) == 0 && c.Properties[alone] != "" {
			properties = append(properties, alone)
		}
		for _, property := range properties {
			addr := c.Properties[property]
			if addr == "" {
				return Config{}, fmt.Errorf("name service %s: %s is not set: %w", service, property, metadata.ErrInvalidArgument)
			}
			addr, err := withPort(property, addr)
			if err != nil {
				return Config{}, err
			}
			config.Namenodes = append(config.Namenodes, addr)
		}
		if err := c.observers(&config, service); err != nil {
			return Config{}, err
		}
		if len(config.Namenodes) == 0 {
			return Config{}, fmt.Errorf("name service %s has no namenodes: %w", service, metadata.ErrInvalidArgument)
		}
		return config, nil
	}
	if authority == "" {
		return Config{}, fmt.Errorf("the URI names no host: %w", metadata.ErrInvalidArgument)
	}
	addr, err := withPort("the URI", authority)
	if err != nil {
		return Config{}, err
	}
	config.Namenodes = []string{addr}
	return config, nil
}

// observers fills in which namenodes of a name service are read from, as the class says that Hadoop's clients have for it.
func (c *HadoopConf) observers(config *Config, service string) error {
	class := c.Properties["dfs.client.failover.proxy.provider."+service]
	if !strings.HasSuffix(class, ".ObserverReadProxyProvider") && !strings.HasSuffix(class, ".ObserverReadProxyProviderWithIPFailover") {
		return nil
	}
	config.Reads = ReadAnywhere
	if period, said, err := c.period("dfs.client.failover.observer.auto-msync-period." + service); err != nil {
		return err
	} else if said && period >= 0 {
		config.AutoMsync = cmp.Or(period, -1) // in Config zero means that nothing is said
	}
	if period, said, err := c.period("dfs.client.failover.observer.probe.retry.period"); err != nil {
		return err
	} else if said {
		config.ObserverRest = cmp.Or(max(period, 0), -1)
	}
	return nil
}

// period is the time that a property says; said: it says one.
func (c *HadoopConf) period(name string) (period time.Duration, said bool, err error) {
	v := c.Properties[name]
	if v == "" {
		return 0, false, nil
	}
	if period, err = parseTime(v); err != nil {
		return 0, false, fmt.Errorf("%s: %q: %w", name, v, err)
	}
	return period, true, nil
}

// parseTime reads a time as Hadoop writes it: a number with a unit, from ns to d, or of milliseconds.
func parseTime(v string) (time.Duration, error) {
	unit := time.Duration(0)
	number, days := strings.CutSuffix(v, "d")
	if days {
		unit = 24 * time.Hour
	} else if strings.Trim(v, "-0123456789") == "" {
		unit = time.Millisecond
	}
	if unit == 0 {
		t, err := time.ParseDuration(v)
		if err != nil {
			return 0, metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
		}
		return t, nil
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit) {
		return 0, metadata.Errorf(metadata.ErrInvalidArgument, "not a time, such as 500ms or 10s")
	}
	return time.Duration(n) * unit, nil
}

// withPort is an address of a namenode with its port. Error: ErrInvalidArgument, with the name of what says so.
func withPort(source, addr string) (string, error) {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr, nil
	}
	with := net.JoinHostPort(strings.Trim(addr, "[]"), defaultPort)
	if _, _, err := net.SplitHostPort(with); err != nil {
		return "", fmt.Errorf("%s: %q is neither a host nor host:port: %w", source, addr, metadata.ErrInvalidArgument)
	}
	return with, nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

// config takes over the properties that shape new files.
func (c *HadoopConf) config() (Config, error) {
	var config Config
	var problems []error
	get := func(name string, set func(string) error) {
		if v := c.Properties[name]; v != "" {
			if err := set(v); err != nil {
				problems = append(problems, fmt.Errorf("%s: %q: %w", name, v, err))
			}
		}
	}
	get("dfs.replication", func(v string) (err error) {
		if config.Replication, err = strconv.Atoi(v); err == nil && config.Replication == 0 { // which is "not set" in Config
			config.Replication = NoReplication
		}
		return err
	})
	get("dfs.blocksize", func(v string) error {
		n, err := size.Parse(v)
		if err != nil {
			return metadata.Errorf(metadata.ErrInvalidArgument, "%v", err)
		}
		config.BlockSize = n
		return nil
	})
	get("dfs.checksum.type", func(v string) error {
		config.Checksum.Type = v
		_, err := config.Checksum.over(dtp.DefaultChecksum)
		return err
	})
	get("dfs.bytes-per-checksum", func(v string) error {
		n, err := strconv.Atoi(v)
		if err == nil && n <= 0 {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "not a positive number")
		}
		config.Checksum.BytesPer = n
		return err
	})
	get("fs.permissions.umask-mode", func(v string) error {
		umask, err := parseUmask(v)
		config.Umask = &umask
		return err
	})
	get("dfs.data.transfer.protection", func(v string) (err error) {
		config.Protection, err = sasl.ParseQualities(v)
		return err
	})
	get("hadoop.rpc.protection", func(v string) (err error) {
		config.Qualities, err = sasl.ParseQualities(v)
		return err
	})
	get("dfs.client.use.datanode.hostname", func(v string) (err error) {
		config.UseHostname, err = strconv.ParseBool(v)
		return err
	})
	get("dfs.client.socket-timeout", func(v string) error {
		ms, err := strconv.ParseInt(strings.TrimSuffix(v, "ms"), 10, 64)
		if err == nil && ms > 0 {
			config.DatanodeTimeout = time.Duration(min(ms, math.MaxInt32)) * time.Millisecond // Hadoop has an int for it
		}
		return err
	})
	get("dfs.domain.socket.path", func(v string) error {
		if localsocket.CheckForm(v) == nil { // else there is none, and TCP is the way, as for Hadoop's client
			config.DomainSocket = v
		}
		return nil
	})
	get("dfs.client.read.shortcircuit", func(v string) error {
		on, err := strconv.ParseBool(v)
		config.NoShortCircuit = !on
		return err
	})
	get("dfs.client.domain.socket.data.traffic", func(v string) error {
		on, err := strconv.ParseBool(v)
		config.NoDomainTraffic = !on
		return err
	})
	get("hops.cluster.roots", func(v string) error {
		config.Roots = v
		return nil
	})
	get("hops.client.max-staleness", func(v string) (err error) {
		config.MaxStaleness, err = parseTime(v)
		if err == nil && config.MaxStaleness < 0 {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "less than zero")
		}
		return err
	})
	get("hops.cluster.identity", func(v string) error {
		config.Identity = v
		return nil
	})
	count := func(set func(int)) func(string) error {
		return func(v string) error {
			n, err := strconv.Atoi(v)
			if err == nil && n < 0 {
				err = metadata.Errorf(metadata.ErrInvalidArgument, "less than zero")
			}
			if err == nil {
				set(n)
			}
			return err
		}
	}
	// In Hadoop's files zero is a value, in Config it means that nothing is said.
	get("dfs.client.hedged.read.threadpool.size", count(func(n int) { config.HedgedReads = firstSet(n, -1) }))
	get("dfs.client.hedged.read.threshold.millis", count(func(n int) { config.HedgeAfter = time.Duration(min(n, math.MaxInt32)) * time.Millisecond }))
	get(replaceProperty+"policy", func(v string) (err error) {
		config.ReplaceDatanode.When, err = parseReplaceWhen(v)
		return err
	})
	get(replaceProperty+"enable", func(v string) error {
		enabled, err := strconv.ParseBool(v)
		if err == nil && !enabled {
			config.ReplaceDatanode.When = ReplaceNever
		}
		return err
	})
	get(replaceProperty+"best-effort", func(v string) (err error) {
		config.ReplaceDatanode.BestEffort, err = strconv.ParseBool(v)
		return err
	})
	get(minReplicationProperty, count(func(n int) { config.ReplaceDatanode.MinReplication = firstSet(n, -1) }))
	return config, errors.Join(problems...)
}

// parseUmask reads an octal or, like "u=rwx,g=rx,o=", a symbolic umask; the symbolic one names what is left.
func parseUmask(v string) (metadata.Mode, error) {
	if n, err := strconv.ParseUint(v, 8, 16); err == nil && n <= 0o777 {
		return metadata.Mode(n), nil
	}
	umask := metadata.Mode(0o777)
	for clause := range strings.SplitSeq(v, ",") {
		who, rights, ok := strings.Cut(clause, "=")
		if !ok {
			return 0, fmt.Errorf("not a umask: %w", metadata.ErrInvalidArgument)
		}
		var bits metadata.Mode
		for _, r := range rights {
			i := strings.IndexRune("xwr", r)
			if i < 0 {
				return 0, fmt.Errorf("not a umask: %w", metadata.ErrInvalidArgument)
			}
			bits |= 1 << i
		}
		if who == "" {
			who = "a"
		}
		for _, w := range who {
			switch w {
			case 'u':
				umask &^= bits << 6
			case 'g':
				umask &^= bits << 3
			case 'o':
				umask &^= bits
			case 'a':
				umask &^= bits<<6 | bits<<3 | bits
			default:
				return 0, fmt.Errorf("not a umask: %w", metadata.ErrInvalidArgument)
			}
		}
	}
	return umask, nil
}
