package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// javaFlags keep a Java virtual machine small and cheap to start.
var javaFlags = []string{
	"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true",
	// WebHDFS's XML library reaches into the class loader.
	"--add-opens=java.base/java.lang=ALL-UNNAMED",
	"-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8",
}

// javaEnv of the servers and clients.
func javaEnv() []string { return []string{"HADOOP_USER_NAME=" + superuser(), "LC_ALL=C.UTF-8"} }

const namenode = "org.apache.hadoop.hdfs.server.namenode.NameNode"

// stockJava is a command line of a class of Hadoop.
func stockJava(dir, conf, classPath string, class ...string) []string {
	argv := append([]string{"java"}, javaFlags...)
	argv = append(argv, "-Dhadoop.log.dir="+dir, "-Djava.io.tmpdir="+filepath.Join(dir, "tmp"), "-cp", conf+":"+classPath)
	return append(argv, class...)
}

// startStock formats and starts Apache HDFS in dir: a namenode and three datanodes.
func startStock(ctx context.Context, classPath, dir string) (*cluster, error) {
	free, err := freePorts(2 + 3*datanodes)
	if err != nil {
		return nil, err
	}
	next := taken(free)
	c := &cluster{name: "stock", stores: map[string]string{}, conf: filepath.Join(dir, "conf")}
	for _, d := range []string{c.conf, filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	c.ipc, c.http = []string{next()}, []string{next()}
	c.authority = c.ipc[0]
	c.uri = "hdfs://" + c.authority
	site := append(settings(),
		[2]string{"fs.defaultFS", c.uri},
		[2]string{"hadoop.tmp.dir", filepath.Join(dir, "tmp")},
		[2]string{"dfs.namenode.rpc-address", c.ipc[0]},
		[2]string{"dfs.namenode.http-address", c.http[0]},
		[2]string{"dfs.namenode.name.dir", "file://" + filepath.Join(dir, "nn")},
		[2]string{"dfs.namenode.safemode.extension", "0"},
		[2]string{"dfs.namenode.datanode.registration.ip-hostname-check", "false"},
		[2]string{"dfs.heartbeat.interval", "1"},
		[2]string{"dfs.namenode.redundancy.interval.seconds", "1s"},
		[2]string{"dfs.datanode.hostname", "127.0.0.1"},
		// Nobody but the superuser has a group, and nothing depends on the users of this machine.
		[2]string{"hadoop.user.group.static.mapping.overrides", "dr.who=;alice=;bob=;carol=;" + superuser() + "=" + superuser()},
	)
	site = append(site, clientSettings...)
	if err := writeSite(c.conf, site); err != nil {
		return nil, err
	}
	java := func(class ...string) []string { return stockJava(dir, c.conf, classPath, class...) }
	if _, err := tool(dir, javaEnv(), java(namenode, "-format", "-force", "-nonInteractive")...); err != nil {
		return nil, fmt.Errorf("format of the stock HDFS: %w", err)
	}
	run := func(name string, class ...string) error {
		p, err := start(name, dir, javaEnv(), java(class...)...)
		if err == nil {
			c.parts = append([]*process{p}, c.parts...)
		}
		return err
	}
	if err := run("namenode", namenode); err != nil {
		return nil, err
	}
	for i := range datanodes {
		transfer, store := next(), filepath.Join(dir, fmt.Sprintf("dn%d", i+1))
		c.datanode, c.stores[transfer] = next(), store
		if err := run(fmt.Sprintf("datanode%d", i+1), "org.apache.hadoop.hdfs.server.datanode.DataNode",
			"-D", "dfs.datanode.address="+transfer, "-D", "dfs.datanode.http.address="+next(), "-D", "dfs.datanode.ipc.address="+c.datanode,
			"-D", "dfs.datanode.data.dir=file://"+store); err != nil {
			c.stop()
			return nil, err
		}
	}
	if err := c.ready(ctx, 3*time.Minute); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// startStockHA formats and starts three namenodes of Apache HDFS, which share their edit log in a directory. The first one leads, and
// there are no datanodes.
func startStockHA(ctx context.Context, classPath, dir string) (*cluster, error) {
	const namenodes = 3
	free, err := freePorts(2 * namenodes)
	if err != nil {
		return nil, err
	}
	next := taken(free)
	c := &cluster{name: "stock", conf: filepath.Join(dir, "conf"), authority: "stock", uri: "hdfs://stock"}
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return nil, err
	}
	site := append(settings(),
		[2]string{"fs.defaultFS", c.uri},
		[2]string{"hadoop.tmp.dir", filepath.Join(dir, "tmp")},
		[2]string{"dfs.nameservices", "stock"},
		[2]string{"dfs.ha.namenodes.stock", "nn1,nn2,nn3"},
		[2]string{"dfs.client.failover.proxy.provider.stock", "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"},
		[2]string{"dfs.namenode.shared.edits.dir", "file://" + filepath.Join(dir, "edits")},
		[2]string{"dfs.namenode.safemode.extension", "0"},
	)
	for i := range namenodes {
		ipc, http := next(), next()
		c.ipc, c.http = append(c.ipc, ipc), append(c.http, http)
		site = append(site, [2]string{fmt.Sprintf("dfs.namenode.rpc-address.stock.nn%d", i+1), ipc}, [2]string{fmt.Sprintf("dfs.namenode.http-address.stock.nn%d", i+1), http})
	}
	if err := writeSite(c.conf, append(site, clientSettings...)); err != nil {
		return nil, err
	}
	of := func(i int, args ...string) []string {
		id := fmt.Sprintf("nn%d", i+1)
		return stockJava(dir, c.conf, classPath, append([]string{namenode, "-D", "dfs.ha.namenode.id=" + id, "-D", "dfs.namenode.name.dir=file://" + filepath.Join(dir, id)}, args...)...)
	}
	if _, err := tool(dir, javaEnv(), of(0, "-format", "-force", "-nonInteractive")...); err != nil {
		return nil, fmt.Errorf("format of the stock HDFS: %w", err)
	}
	for i := range namenodes {
		if i == 0 {
			continue
		}
		if err := os.CopyFS(filepath.Join(dir, fmt.Sprintf("nn%d", i+1)), os.DirFS(filepath.Join(dir, "nn1"))); err != nil { // -bootstrapStandby asks one that leads
			return nil, err
		}
	}
	for i := range namenodes {
		p, err := start(fmt.Sprintf("namenode%d", i+1), dir, javaEnv(), of(i)...)
		if err != nil {
			c.stop()
			return nil, err
		}
		c.parts = append([]*process{p}, c.parts...)
	}
	fs, err := c.client("")
	if err != nil {
		c.stop()
		return nil, err
	}
	defer fs.Close()
	if err := c.await(ctx, 3*time.Minute, func() error { return fs.Transition(ctx, c.ipc[0], true) }); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}
