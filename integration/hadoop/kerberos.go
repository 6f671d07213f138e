package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/integration/kdc"
)

// secured is a hops cluster in a realm of Kerberos, with users who have tickets.
type secured struct {
	*cluster
	kdc       *kdc.KDC
	classPath string
	caches    map[string]string // of tickets, by user
	confs     map[string]string // of clients, by hadoop.rpc.protection
}

func (s *secured) stop() {
	if s.cluster != nil {
		s.cluster.stop()
	}
	s.kdc.Stop()
}

// protections of Hadoop IPC.
var protections = []string{"authentication", "integrity", "privacy"}

// secure starts a KDC and a cluster whose servers take tickets.
func (s *suite) secure(ctx context.Context) (*secured, error) {
	classPath, err := s.hadoop()
	if err != nil {
		return nil, err
	}
	if kdc.Installed() != nil {
		say("installing MIT Kerberos")
	}
	if err := kdc.Install(ctx); err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, "kerberos")
	realm := filepath.Join(dir, "realm")
	if err := os.MkdirAll(realm, 0o700); err != nil {
		return nil, err
	}
	say("starting a KDC, and hops: 1 namenode, %d datanodes", datanodes)
	k, err := kdc.Start(realm)
	if err != nil {
		return nil, err
	}
	c := &secured{kdc: k, classPath: classPath, caches: map[string]string{"nobody": filepath.Join(realm, "none")}, confs: map[string]string{}}
	if err := c.fill(ctx, s.binary, dir); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (s *secured) fill(ctx context.Context, binary, dir string) error {
	properties := [][2]string{
		{"hadoop.security.authentication", "kerberos"},
		{"hadoop.rpc.protection", strings.Join(protections, ",")},
		// The superuser of the cluster is the user of this process; their principal is hdfs.
		{"hadoop.security.auth_to_local", "RULE:[1:$1@$0](hdfs@" + kdc.Realm + ")s/.*/" + superuser() + "/ DEFAULT"},
	}
	for name, keys := range map[string][3]string{
		"nn":   {"nn/localhost", "dfs.namenode.kerberos.principal", "dfs.namenode.keytab.file"},
		"dn":   {"dn/localhost", "dfs.datanode.kerberos.principal", "dfs.datanode.keytab.file"},
		"HTTP": {"HTTP/localhost", "dfs.web.authentication.kerberos.principal", "dfs.web.authentication.kerberos.keytab"},
	} {
		path, principal := filepath.Join(s.kdc.Dir, name+".keytab"), keys[0]+"@"+kdc.Realm
		if err := s.kdc.Keytab(path, "", principal); err != nil {
			return err
		}
		properties = append(properties, [2]string{keys[1], principal}, [2]string{keys[2], path})
	}
	for _, user := range []string{"hdfs", "alice", "bob"} {
		cache, err := s.kdc.User(user)
		if err != nil {
			return err
		}
		s.caches[user] = cache
	}
	var err error
	if s.cluster, err = startOurs(ctx, binary, dir, 1, properties...); err != nil {
		return err
	}
	for _, p := range protections {
		s.confs[p] = filepath.Join(dir, "conf-"+p)
		for _, file := range []string{"core-site.xml", "hdfs-site.xml", "yarn-site.xml"} {
			text, err := os.ReadFile(filepath.Join(s.conf, file))
			if err == nil {
				err = os.MkdirAll(s.confs[p], 0o755)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(s.confs[p], file), text, 0o644)
			}
			if err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(s.confs[p], "log4j.properties"), []byte(log4j), 0o644); err != nil {
			return err
		}
		if err := addToSite(filepath.Join(s.confs[p], "core-site.xml"), [][2]string{{"hadoop.rpc.protection", p}, {"ipc.client.connect.max.retries", "2"}}); err != nil {
			return err
		}
	}
	return nil
}

// as runs a program with a user's tickets and returns all that it printed.
func (s *secured) as(ctx context.Context, user, stdin string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), append(s.kdc.Env(s.caches[user]), "TZ=UTC", "LC_ALL=C.UTF-8", "HADOOP_CONF_DIR="+s.confs["authentication"])...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := spawn(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), err
}

// hadoopFS is `hadoop fs`, with a configuration of clients.
func (s *secured) hadoopFS(conf string, args ...string) []string {
	argv := append([]string{"java"}, javaFlags...)
	argv = append(argv, "-Djava.security.krb5.conf="+s.kdc.Config(), "-cp", conf+":"+s.classPath, "org.apache.hadoop.fs.FsShell")
	return append(argv, args...)
}

// kerberosRow drives a cluster of a realm with users who have tickets, and some who have not.
func (s *suite) kerberosRow(ctx context.Context) error {
	c, err := s.secure(ctx)
	if err != nil {
		return err
	}
	defer c.stop()
	say("Kerberos")
	row := &row{name: "kerberos", title: "Kerberos: Hadoop's shell, curl, hops fs"}
	s.rows = append(s.rows, row)
	body := filepath.Join(s.dir, "kerberos.body")
	if err := os.WriteFile(body, []byte("hers\n"), 0o644); err != nil {
		return err
	}
	web := "http://localhost:" + c.http[0][strings.LastIndexByte(c.http[0], ':')+1:] + "/webhdfs/v1"
	curl := func(args ...string) []string {
		return append([]string{"curl", "-sS", "-w", " %{http_code}"}, args...)
	}
	ticket := func(args ...string) []string { return curl(append([]string{"--negotiate", "-u", ":"}, args...)...) }
	type step struct {
		name, user string
		argv       []string
		stdin      string
		want       string // a part of what is printed
		fails      bool   // the status is not 0
	}
	plain := c.confs["authentication"]
	steps := []step{
		{"a directory for everybody, by the superuser's principal", "hdfs", c.hadoopFS(plain, "-mkdir", "-p", "/k"), "", "", false},
		{"its mode", "hdfs", c.hadoopFS(plain, "-chmod", "1777", "/k"), "", "", false},
	}
	for _, p := range protections {
		steps = append(steps,
			step{"-put, protection " + p, "alice", c.hadoopFS(c.confs[p], "-put", "-", "/k/"+p), strings.Repeat(p, 20000), "", false},
			step{"-ls, protection " + p, "alice", c.hadoopFS(c.confs[p], "-ls", "/k/"+p), "", "alice", false},
			step{"-cat, protection " + p, "bob", c.hadoopFS(c.confs[p], "-cat", "/k/"+p), "", p + p, false})
	}
	steps = append(steps, []step{
		{"without the right", "alice", c.hadoopFS(plain, "-mkdir", "/no"), "", "Permission denied: user=alice, access=WRITE", true},
		{"without a ticket", "nobody", c.hadoopFS(plain, "-ls", "/"), "", "Server asks us to fall back to SIMPLE auth, but this client is configured to only allow secure connections.", true},
		{"WebHDFS: a ticket", "alice", ticket(web + "/?op=GETHOMEDIRECTORY"), "", `{"Path":"/user/alice"} 200`, false},
		{"WebHDFS: CREATE, redirected", "alice", ticket("-L", "-X", "PUT", "-T", body, web+"/k/web?op=CREATE"), "", "201", false},
		{"WebHDFS: OPEN, redirected", "alice", ticket("-L", web+"/k/web?op=OPEN"), "", "hers\n 200", false},
		{"WebHDFS: whose it is", "bob", ticket(web + "/k/web?op=GETFILESTATUS"), "", `"owner":"alice"`, false},
		{"WebHDFS: no ticket", "nobody", curl("-i", web+"/?op=LISTSTATUS"), "", "401 Unauthorized\r\n", false},
		{"WebHDFS: a ticket and another name", "alice", ticket(web + "/?op=LISTSTATUS&user.name=" + superuser()), "", "the ticket is of user alice", false},
		{"WebHDFS: garbage", "nobody", curl("-H", "Authorization: Negotiate Z2FyYmFnZQ==", web+"/?op=LISTSTATUS"), "", "it is no token of SPNEGO or Kerberos", false},
	}...)
	uri := "webhdfs://" + strings.TrimSuffix(strings.TrimPrefix(web, "http://"), "/webhdfs/v1")
	steps = append(steps, []step{
		{"WebHDFS by Hadoop's client: -ls", "alice", c.hadoopFS(plain, "-ls", uri+"/k/web"), "", "alice", false},
		{"-cp from HDFS to WebHDFS", "alice", c.hadoopFS(plain, "-cp", "hdfs://"+c.authority+"/k/integrity", uri+"/k/copied"), "", "", false},
		{"what was copied", "bob", c.hadoopFS(plain, "-cat", uri+"/k/copied"), "", "integrityintegrity", false},
	}...)
	hops := func(conf string, args ...string) []string {
		return append([]string{"env", "HADOOP_CONF_DIR=" + conf, s.binary, "fs"}, args...)
	}
	for _, p := range protections {
		conf := c.confs[p]
		steps = append(steps,
			step{"hops fs -put, protection " + p, "alice", hops(conf, "-put", "-", "/k/hops-"+p), strings.Repeat(p, 20000), "", false},
			step{"hops fs -cat, protection " + p, "bob", hops(conf, "-cat", "/k/hops-"+p), "", p + p, false},
			step{"hops fs -stat, protection " + p, "bob", hops(conf, "-stat", "%u", "/k/hops-"+p), "", "alice\n", false})
	}
	steps = append(steps, []step{
		{"hops fs without the right", "alice", hops(plain, "-mkdir", "/no"), "", "Permission denied: user=alice, access=WRITE", true},
		{"hops fs without a ticket", "nobody", hops(plain, "-ls", "/"), "", "kinit first", true},
	}...)
	const down = "with the KDC down: "
	steps = append(steps, []step{
		{down + "a ticket that is at hand", "alice", ticket(web + "/?op=GETHOMEDIRECTORY"), "", `{"Path":"/user/alice"} 200`, false},
		{down + "hops fs", "bob", hops(plain, "-ls", "/"), "", "no KDC of realm HOPS.TEST answers", true},
	}...)
	for _, st := range steps {
		if strings.HasPrefix(st.name, down) {
			c.kdc.Down()
		}
		out, err := c.as(ctx, st.user, st.stdin, st.argv...)
		exit := new(exec.ExitError)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.As(err, &exit):
			return err
		case (err != nil) != st.fails || !strings.Contains(out, st.want):
			row.add(st.name, failed, fmt.Sprintf("  %s: %v\n  got  %s\n  want %s\n", st.argv[0], err, shorten(out), shorten(st.want)))
		default:
			row.add(st.name, passed, "")
		}
	}
	return nil
}
