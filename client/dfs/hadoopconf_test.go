package dfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

func confDir(t *testing.T, core, hdfs string) string {
	dir := t.TempDir()
	for name, body := range map[string]string{"core-site.xml": core, "hdfs-site.xml": hdfs} {
		if body == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func conf(pairs ...string) string {
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\"?>\n<configuration>\n")
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString("  <property><name> " + pairs[i] + "</name><value>" + pairs[i+1] + "\n</value><final>true</final></property>\n")
	}
	return b.String() + "</configuration>\n"
}

func TestURIsAndNameServices(t *testing.T) {
	t.Setenv("HADOOP_USER_NAME", "ann")
	c, err := LoadHadoopConf(confDir(t, conf("fs.defaultFS", "hdfs://lab", "base", "10.0.0"), conf(
		"dfs.nameservices", "lab, old",
		"dfs.ha.namenodes.lab", "nn1,nn2",
		"dfs.namenode.rpc-address.lab.nn1", "${base}.1:9000",
		"dfs.namenode.rpc-address.lab.nn2", "10.0.0.2",
		"dfs.namenode.rpc-address.old", "10.0.0.9:8020",
	)))
	if err != nil {
		t.Fatal(err)
	}
	lab := []string{"10.0.0.1:9000", "10.0.0.2:8020"}
	for _, test := range []struct {
		uri, path string
		namenodes []string
	}{
		{"/a/b", "/a/b", lab},
		{"a", "/user/ann/a", lab},
		{"", "/user/ann", lab},
		{".", "/user/ann", lab},
		{"x:y", "/user/ann/x:y", lab},
		{"hdfs:///a", "/a", lab},
		{"hdfs:/a", "/a", lab},
		{"hdfs://lab/a//b/", "/a/b", lab},
		{"hdfs://lab", "/", lab},
		{"hdfs://old/a b?c#d", "/a b?c#d", []string{"10.0.0.9:8020"}},
		{"HDFS://host:99/a", "/a", []string{"host:99"}},
		{"hdfs://host/a", "/a", []string{"host:8020"}},
		{"hdfs://ann@host/a", "/a", []string{"host:8020"}},
		{"hdfs://[::1]:99/a", "/a", []string{"[::1]:99"}},
	} {
		l, err := c.Locate(test.uri)
		if err != nil || l.Path != test.path || !slices.Equal(l.Config.Namenodes, test.namenodes) {
			t.Errorf("%q: %q at %v, %v", test.uri, l.Path, l.Config.Namenodes, err)
		}
	}
	for uri, want := range map[string]error{"s3://b/x": metadata.ErrUnsupported, "file:///x": metadata.ErrUnsupported, "hdfs://a b/x": metadata.ErrInvalidArgument} {
		if _, err := c.Locate(uri); !errors.Is(err, want) {
			t.Errorf("%q: %v", uri, err)
		}
	}
	if l, err := c.LocateAs("x", "bob"); err != nil || l.Path != "/user/bob/x" || l.Config.User != "bob" {
		t.Errorf("as bob: %+v, %v", l, err)
	}
}

func TestPropertiesShapeTheClient(t *testing.T) {
	c, err := LoadHadoopConf(confDir(t, conf("fs.defaultFS", "hdfs://h:1", "fs.permissions.umask-mode", "u=rwx,g=rx,o=", "fs.trash.interval", "90"),
		conf("dfs.replication", "2", "dfs.blocksize", "64m", "dfs.client.use.datanode.hostname", "true", "dfs.client.socket-timeout", "1500")))
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Locate("/")
	if err != nil {
		t.Fatal(err)
	}
	got := l.Config
	if got.Replication != 2 || got.BlockSize != 64<<20 || *got.Umask != 0o027 || !got.UseHostname || got.DatanodeTimeout != 1500*time.Millisecond {
		t.Errorf("got %+v", got)
	}
	if trash, err := c.TrashInterval(); trash != 90*time.Minute || err != nil {
		t.Errorf("trash %v, %v", trash, err)
	}
}

func TestConfigurationSaysWhereReadsGo(t *testing.T) {
	const provider = "dfs.client.failover.proxy.provider.lab"
	const class = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"
	const period = "dfs.client.failover.observer.auto-msync-period.lab"
	const probe = "dfs.client.failover.observer.probe.retry.period"
	for _, test := range []struct {
		properties []string
		reads      Reads
		msync      time.Duration
		stale      time.Duration
		rest       time.Duration
	}{
		{},
		{properties: []string{probe, "5s"}},
		{properties: []string{provider, class, probe, "5s"}, reads: ReadAnywhere, rest: 5 * time.Second},
		{properties: []string{provider, class, probe, "1500"}, reads: ReadAnywhere, rest: 1500 * time.Millisecond},
		{properties: []string{provider, class, probe, "0"}, reads: ReadAnywhere, rest: -1},
		{properties: []string{provider, "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider", period, "5s"}},
		{properties: []string{provider, class}, reads: ReadAnywhere},
		{properties: []string{provider, class, period, "-1"}, reads: ReadAnywhere},
		{properties: []string{provider, class, period, "0"}, reads: ReadAnywhere, msync: -1},
		{properties: []string{provider, class, period, "500"}, reads: ReadAnywhere, msync: 500 * time.Millisecond},
		{properties: []string{provider, class, period, "5s"}, reads: ReadAnywhere, msync: 5 * time.Second},
		{properties: []string{provider, class + "WithIPFailover", period, "1d"}, reads: ReadAnywhere, msync: 24 * time.Hour},
		{properties: []string{"hops.client.max-staleness", "2s"}, stale: 2 * time.Second},
		{properties: []string{"hops.client.max-staleness", "250"}, stale: 250 * time.Millisecond},
	} {
		c, err := LoadHadoopConf(confDir(t, "", conf(append(test.properties,
			"fs.defaultFS", "hdfs://lab", "dfs.nameservices", "lab", "dfs.ha.namenodes.lab", "nn1", "dfs.namenode.rpc-address.lab.nn1", "h:1")...)))
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Locate("/")
		if got := l.Config; err != nil || got.Reads != test.reads || got.AutoMsync != test.msync || got.MaxStaleness != test.stale || got.ObserverRest != test.rest {
			t.Errorf("%v: %v, msync %v, staleness %v, %v", test.properties, got.Reads, got.AutoMsync, got.MaxStaleness, err)
		}
	}
	for _, properties := range [][]string{{provider, class, period, "soon"}, {provider, class, probe, "soon"}, {provider, class, period, "99999999999d"}, {"hops.client.max-staleness", "-1"}, {"hops.client.max-staleness", "1y"}} {
		c, err := LoadHadoopConf(confDir(t, "", conf(append(properties,
			"fs.defaultFS", "hdfs://lab", "dfs.nameservices", "lab", "dfs.ha.namenodes.lab", "nn1", "dfs.namenode.rpc-address.lab.nn1", "h:1")...)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Locate("/"); !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), properties[len(properties)-2]) {
			t.Errorf("%v: %v", properties, err)
		}
	}
	for _, stale := range []time.Duration{-time.Second, time.Microsecond} {
		if _, err := New(Config{Namenodes: []string{"h:1"}, MaxStaleness: stale}); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%v: %v", stale, err)
		}
	}
}

func TestConfigurationMistakesAreNamed(t *testing.T) {
	if _, err := LoadHadoopConf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there")
	}
	if _, err := LoadHadoopConf(confDir(t, "<configuration><property>", "")); err == nil || !strings.Contains(err.Error(), "core-site.xml") {
		t.Errorf("broken XML: %v", err)
	}
	for property, value := range map[string]string{
		"dfs.replication": "many", "dfs.blocksize": "12q", "fs.permissions.umask-mode": "999", "dfs.client.use.datanode.hostname": "maybe",
		"dfs.client.socket-timeout": "soon", "dfs.ha.namenodes.lab": "nn1",
	} {
		c, err := LoadHadoopConf(confDir(t, conf("fs.defaultFS", "hdfs://lab", "dfs.nameservices", "lab", property, value), ""))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Locate("/"); err == nil || !strings.Contains(err.Error(), strings.Split(property, ".ha")[0]) {
			t.Errorf("%s=%s: %v", property, value, err)
		}
	}
	t.Setenv("HADOOP_CONF_DIR", "")
	if _, err := ConfigFromEnv(); err == nil || !strings.Contains(err.Error(), "fs.defaultFS") {
		t.Errorf("no configuration: %v", err)
	}
	t.Setenv("HADOOP_CONF_DIR", confDir(t, conf("fs.defaultFS", "hdfs://h:1"), ""))
	if config, err := ConfigFromEnv(); err != nil || config.Namenodes[0] != "h:1" {
		t.Errorf("got %+v, %v", config, err)
	}
}

func TestUmaskReadsLikeHadoops(t *testing.T) {
	for text, want := range map[string]metadata.Mode{"022": 0o022, "0": 0, "u=rwx,g=r,o=": 0o037, "a=rwx": 0, "=rx": 0o222} {
		if got, err := parseUmask(text); err != nil || got != want {
			t.Errorf("umask %q: %o, %v", text, got, err)
		}
	}
}
