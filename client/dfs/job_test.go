package dfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/token"
)

// ticket is a token of a user; n tells tokens apart.
func ticket(user string, n int32) token.Token {
	id := token.Identifier{Owner: user, Renewer: "yarn", MaxDate: 1, Sequence: n, Key: 1}.Encode()
	return token.Token{Identifier: id, Password: []byte("secret"), Kind: token.Kind, Service: "ha-hdfs:lab"}
}

// A program of a job shows the token in its job's file of credentials, as the job's user, and the newest one.
func TestAProgramOfAJobFollowsItsCredentials(t *testing.T) {
	dir := confDir(t, conf("fs.defaultFS", "hdfs://lab", "dfs.nameservices", "lab", "dfs.ha.namenodes.lab", "a,b",
		"dfs.namenode.rpc-address.lab.a", "127.0.0.1:1", "dfs.namenode.rpc-address.lab.b", "127.0.0.1:2"), "")
	c, err := LoadHadoopConf(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(token.LocationVariable, "")
	l, err := c.LocateAs("hdfs://lab", "ann")
	if err != nil || l.Config.Token != nil || l.Config.User != "ann" {
		t.Fatalf("without credentials: %+v, %v", l.Config, err)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	put := func(tokens ...token.Token) {
		var all token.Credentials
		for _, k := range tokens {
			all = append(all, token.Entry{Alias: k.Service, Token: k})
		}
		if err := all.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(token.LocationVariable, path)
	if _, err := c.LocateAs("hdfs://lab", "ann"); err == nil || !strings.Contains(err.Error(), "which is not there") {
		t.Errorf("no file: %v", err)
	}
	put(ticket("bob", 1))
	if l, err := c.LocateAs("hdfs://lab", "ann"); err != nil || l.Config.Token != nil || l.Config.User != "ann" {
		t.Errorf("another's token: %+v, %v", l.Config, err)
	}
	put(ticket("ann", 1))
	for _, uri := range []string{"hdfs://lab", ""} {
		if l, err = c.LocateAs(uri, "ann"); err != nil || l.Config.Token == nil || l.Config.User != "ann" {
			t.Fatalf("%s: %+v, %v", uri, l.Config, err)
		}
	}
	files, err := New(l.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	shown := func() int32 {
		k, ok := files.dialConfig(clientProtocol, "namenode").Token("127.0.0.1:1")
		id, err := token.ParseIdentifier(k.Identifier)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		return id.Sequence
	}
	if n := shown(); n != 1 {
		t.Errorf("token %d", n)
	}
	put(ticket("ann", 2))
	if n := shown(); n != 2 {
		t.Errorf("token %d after the file was replaced", n)
	}
	other := ticket("ann", 3)
	other.Service = "ha-hdfs:other"
	for what, damage := range map[string]func(){
		"another's token":     func() { put(ticket("bob", 3)) },
		"no token for it":     func() { put(other) },
		"half a file":         func() { _ = os.WriteFile(path, []byte("HDTS\x00\x01"), 0o600) },
		"a file that is gone": func() { _ = os.Remove(path) },
	} {
		damage()
		if n := shown(); n != 1 { // the one that it began with
			t.Errorf("%s: token %d", what, n)
		}
	}
	put(ticket("ann", 4))
	if n := shown(); n != 4 {
		t.Errorf("token %d at last", n)
	}
}
