package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/gohops/hops/internal/token"
)

// tokenSettings make the servers of the row of tokens take nothing but what SASL protects.
var tokenSettings = [][2]string{
	{"hadoop.rpc.protection", "privacy"},
	{"dfs.data.transfer.protection", "privacy"},
}

// securedJob is how a job of a secured Hadoop runs: with Kerberos configured and without a ticket, so that there is nothing but its tokens.
var securedJob = []string{
	"-D", "hadoop.security.authentication=kerberos", "-D", "hadoop.rpc.protection=privacy", "-D", "dfs.data.transfer.protection=privacy",
}

// tokensRow gets delegation tokens with the stock client and ours, and works with nothing else.
func (s *suite) tokensRow(ctx context.Context) error {
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "tokens")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	say("starting hops: privacy on Hadoop IPC and data transfer")
	c, err := startOurs(ctx, s.binary, dir, 1, tokenSettings...)
	if err != nil {
		return err
	}
	defer c.stop()
	say("delegation tokens")
	row := &row{name: "tokens", title: "delegation tokens, SASL: FsShell, fetchdt, hops fs"}
	s.rows = append(s.rows, row)

	file, ours, part := filepath.Join(dir, "token"), filepath.Join(dir, "token-hops"), filepath.Join(dir, "part")
	data := make([]byte, 300_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = 'a' + byte(r.IntN(26))
	}
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return err
	}
	const fetchdt = "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher"
	java := func(class string, args ...string) []string {
		argv := append(append([]string{"java"}, javaFlags...), "-Djava.security.krb5.realm=NONE", "-Djava.security.krb5.kdc=localhost", "-cp", c.conf+":"+classPath, class)
		return append(argv, args...)
	}
	shell := func(more []string, args ...string) []string {
		return java("org.apache.hadoop.fs.FsShell", append(more, args...)...)
	}
	with := func(setting string) []string { return append(append([]string(nil), securedJob...), "-D", setting) }
	hops := func(args ...string) []string { return append([]string{s.binary}, args...) }
	for _, st := range []struct {
		name  string
		token string // that the command has; empty: none
		argv  []string
		fails bool
		want  string // a part of what it says
	}{
		{"fetchdt of the stock client", "", java(fetchdt, "--renewer", superuser(), file), false, ""},
		{"fetchdt --print of the stock client", "", java(fetchdt, "--print", file), false, "HDFS_DELEGATION_TOKEN token 1 for " + superuser()},
		{"hops fetchdt --print of that file", "", hops("fetchdt", "--print", file), false, "HDFS_DELEGATION_TOKEN token 1 for " + superuser()},
		{"FsShell without a token", "", shell(securedJob, "-ls", "/"), true, "Server asks us to fall back to SIMPLE auth"},
		{"FsShell -mkdir", file, shell(securedJob, "-mkdir", "/tokens"), false, ""},
		{"FsShell -put", file, shell(securedJob, "-put", part, "/tokens/part"), false, ""},
		{"FsShell -cat", file, shell(securedJob, "-cat", "/tokens/part"), false, string(data)},
		{"FsShell -cat, AES/CTR", file, shell(with("dfs.encrypt.data.transfer.cipher.suites=AES/CTR/NoPadding"), "-cat", "/tokens/part"), false, string(data)},
		{"FsShell -checksum", file, shell(securedJob, "-checksum", "/tokens/part"), false, "MD5-of-0MD5-of-512CRC32C"},
		{"FsShell, IPC with less protection", file, shell(with("hadoop.rpc.protection=authentication"), "-ls", "/"), true, "No common protection layer"},
		{"FsShell, data with less protection", file, shell(with("dfs.data.transfer.protection=authentication"), "-cat", "/tokens/part"), true, "Could not obtain block"},
		{"hops fs -cat", file, hops("fs", "-cat", "/tokens/part"), false, string(data)},
		{"hops fs -put", file, hops("fs", "-put", part, "/tokens/part2"), false, ""},
		{"hops fetchdt", "", hops("fetchdt", "--renewer", superuser(), ours), false, ""},
		{"fetchdt --print of the stock client, of that file", "", java(fetchdt, "--print", ours), false, "HDFS_DELEGATION_TOKEN token 2 for " + superuser()},
		{"FsShell with the token of hops fetchdt", ours, shell(securedJob, "-cat", "/tokens/part2"), false, string(data)},
		{"fetchdt by a token", file, hops("fetchdt", filepath.Join(dir, "second")), true, "can be issued only with"},
		{"fetchdt --renew of the stock client", "", java(fetchdt, "--renew", file), false, ""},
		{"hops fetchdt --renew", "", hops("fetchdt", "--renew", ours), false, "Renewed token for"},
		{"fetchdt --cancel of the stock client", "", java(fetchdt, "--cancel", file), false, ""},
		{"FsShell with a token that was cancelled", file, shell(securedJob, "-ls", "/"), true, "can't be found in cache"},
		{"hops fs with a token that was cancelled", file, hops("fs", "-ls", "/"), true, "can't be found in cache"},
		{"hops fetchdt --cancel", "", hops("fetchdt", "--cancel", ours), false, "Cancelled token for"},
	} {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !strings.Contains(st.name, s.cases) {
			continue
		}
		env := append(javaEnv(), "HADOOP_CONF_DIR="+c.conf)
		if st.token != "" {
			env = append(env, token.LocationVariable+"="+st.token)
		}
		out, err := tool(dir, env, st.argv...)
		if (err != nil) == st.fails && strings.Contains(out, st.want) {
			row.add(st.name, passed, "")
		} else {
			row.add(st.name, failed, fmt.Sprintf("%v; it says %.2000s", err, out))
		}
	}
	return nil
}
