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

// startStock formats and starts Apache HDFS in dir: a namenode and three datanodes.
func startStock(ctx context.Context, classPath, dir string) (*cluster, error) {
	free, err := freePorts(2 + 3*datanodes)
	if err != nil {
		return nil, err
	}
	next := taken(free)
	c := &cluster{name: "stock", conf: filepath.Join(dir, "conf")}
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
	java := func(name string, class ...string) []string {
		argv := append([]string{"java"}, javaFlags...)
		argv = append(argv, "-Dhadoop.log.dir="+dir, "-Djava.io.tmpdir="+filepath.Join(dir, "tmp"), "-cp", c.conf+":"+classPath)
		return append(argv, class...)
	}
	const namenode = "org.apache.hadoop.hdfs.server.namenode.NameNode"
	if _, err := tool(dir, javaEnv(), java("format", namenode, "-format", "-force", "-nonInteractive")...); err != nil {
		return nil, fmt.Errorf("format of the stock HDFS: %w", err)
	}
	run := func(name string, class ...string) error {
		p, err := start(name, dir, javaEnv(), java(name, class...)...)
		if err == nil {
			c.parts = append([]*process{p}, c.parts...)
		}
		return err
	}
	if err := run("namenode", namenode); err != nil {
		return nil, err
	}
	for i := range datanodes {
		if err := run(fmt.Sprintf("datanode%d", i+1), "org.apache.hadoop.hdfs.server.datanode.DataNode",
			"-D", "dfs.datanode.address="+next(), "-D", "dfs.datanode.http.address="+next(), "-D", "dfs.datanode.ipc.address="+next(),
			"-D", "dfs.datanode.data.dir=file://"+filepath.Join(dir, fmt.Sprintf("dn%d", i+1))); err != nil {
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
