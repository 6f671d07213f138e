package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore/raftstoretest"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

func inspect(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, say bytes.Buffer
	status = run(append([]string{"hops", "operator", "inspect"}, args...), strings.NewReader(""), &out, &say)
	if strings.Count(say.String(), "\n") > 1 {
		t.Errorf("%q: more than a line: %s", args, &say)
	}
	return status, out.String(), say.String()
}

func command(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// groupOf makes the directory of a group with a log.
func groupOf(t *testing.T, name string, commands ...[]byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "log"), 0o700),
		os.WriteFile(filepath.Join(dir, "member.json"), fmt.Appendf(nil, `{"format":2,"cluster":"c1","group":%q,"member":"nn1"}`, name), 0o600)); err != nil {
		t.Fatal(err)
	}
	raftstoretest.WriteLog(t, filepath.Join(dir, "log"), commands)
	return dir
}

func namespaceGroup(t *testing.T) string {
	return groupOf(t, "namespace",
		command(t, &logpb.Command{Caller: &logpb.Caller{User: "alice"}, Op: &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: &logpb.Target{Path: "a/b c"}, Mode: 0o755}}}),
		command(t, &logpb.Command{Op: &logpb.Command_AddBlock{AddBlock: &logpb.AddBlock{Inode: 17, ClientName: "cli", Block: &logpb.Block{Id: 5, Generation: 6}, Nodes: []string{"d1", "d2"}}}}),
		command(t, &logpb.Command{Op: &logpb.Command_RollTokenKey{RollTokenKey: &logpb.RollTokenKey{Seed: []byte("verysecretverysecret")}}}),
	)
}

func TestInspectLog(t *testing.T) {
	dir := namespaceGroup(t)
	status, out, say := inspect(t, "log", "--commands", dir)
	if status != 0 || say != "" {
		t.Fatalf("status %d: %s", status, say)
	}
	for _, want := range []string{
		"group      namespace of cluster c1, member nn1\n", "term       4\n", "vote       for one:1 in term 4\n", "watermark  3\n",
		"configuration", "one at one:1  two at two:1 without a vote\n", "command", " 3\n", "noop",
		`mkdirs target="/a/b c" mode=0755 by alice` + "\n", "add_block inode=17 client_name=cli block=blk_5_6:0 nodes=[d1 d2]\n", "roll_token_key seed=(hidden)\n",
		"entries 1 to 3, acknowledged up to 3\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, "verysecret") {
		t.Error("a secret is shown")
	}
	if _, out, _ := inspect(t, "log", "--from", "3", "--to", "3", dir); !strings.Contains(out, "noop") || strings.Contains(out, "configuration") || strings.Contains(out, "mkdirs") {
		t.Errorf("entry 3:\n%s", out)
	}
	copied := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(dir, "log"))); err != nil {
		t.Fatal(err)
	}
	if status, out, say := inspect(t, "log", "--commands", "--group", "namespace", "--json", copied); status != 0 || strings.Contains(out, "verysecret") {
		t.Errorf("a copy of the log: %d, %s", status, say)
	} else {
		var entry logLine
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err := json.Unmarshal([]byte(lines[2]), &entry); err != nil || len(lines) != 5 || entry.Entry.Index != 2 || entry.Entry.Count != 3 ||
			entry.Entry.Commands[0].String() != `mkdirs target="/a/b c" mode=0755 by alice` {
			t.Errorf("%v in\n%s", err, out)
		}
	}
	if status, _, say := inspect(t, "log", "--commands", copied); status != exitUsage || !strings.Contains(say, "--group") {
		t.Errorf("a log of nobody knows whom: %d, %s", status, say)
	}
}

func TestInspectLogOfResourceManagers(t *testing.T) {
	id := state.ApplicationID(rm.ApplicationID{Cluster: 1700000000000, Sequence: 7})
	dir := groupOf(t, "resourcemanager",
		command(t, &statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: &statepb.Application{Name: "train", User: "bob", Queue: "q", Document: []byte("secret: x")}}}}),
		command(t, &statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{Application: id, Attempt: 1, Host: "h"}}}))
	status, out, say := inspect(t, "log", "--commands", filepath.Join(dir, "log"))
	if status != 0 || !strings.Contains(out, "submit application={name=train user=bob queue=q}\n") || !strings.Contains(out, "register_master application=application_1700000000000_0007 attempt=1 host=h\n") || strings.Contains(out, "secret") {
		t.Errorf("%d: %s%s", status, out, say)
	}
	if status, _, say := inspect(t, "log", "--commands", "--group", "namespace", dir); status != exitFailed || !strings.Contains(say, "cannot be read by this program") {
		t.Errorf("read as a namespace: %d, %s", status, say)
	}
}

func TestInspectLogOfWhatIsNone(t *testing.T) {
	dir := namespaceGroup(t)
	damaged := func(change func(log string) error) string {
		copied := filepath.Join(t.TempDir(), "copy")
		if err := errors.Join(os.CopyFS(copied, os.DirFS(dir)), change(filepath.Join(copied, "log"))); err != nil {
			t.Fatal(err)
		}
		return copied
	}
	segment := func(log string) string { return filepath.Join(log, "0000000000000001.log") }
	flip := func(path string, at int64) error {
		raw, err := os.ReadFile(path)
		if err == nil {
			raw[at] ^= 1
			err = os.WriteFile(path, raw, 0o600)
		}
		return err
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ dir, says, shows string }{
		"nothing":              {filepath.Join(t.TempDir(), "none"), "no such file", ""},
		"a file":               {file, "not a directory", ""},
		"an empty directory":   {t.TempDir(), "neither the directory of a raft group nor its log", ""},
		"another's":            {filepath.Dir(file), "neither the directory of a raft group nor its log", ""},
		"an empty member.json": {damaged(func(log string) error { return os.Truncate(filepath.Join(log, "../member.json"), 0) }), "member.json is damaged", ""},
		"a later member.json": {damaged(func(log string) error {
			return os.WriteFile(filepath.Join(log, "../member.json"), []byte(`{"format":99}`), 0o600)
		}), "has format 99, this program reads", ""},
		"a later level": {damaged(func(log string) error {
			return os.WriteFile(filepath.Join(log, "../member.json"), []byte(`{"format":2,"level":99}`), 0o600)
		}), "level 99", ""},
		"no state":                      {damaged(func(log string) error { return os.Remove(filepath.Join(log, "state")) }), "no such file", ""},
		"an empty state":                {damaged(func(log string) error { return os.Truncate(filepath.Join(log, "state"), 0) }), "state is damaged", ""},
		"an empty segment":              {damaged(func(log string) error { return os.Truncate(segment(log), 0) }), "damaged in 2 places", "damage: 0000000000000001.log at 0: the header is damaged"},
		"a segment that is cut":         {damaged(func(log string) error { return os.Truncate(segment(log), 4200) }), "damaged in ", "damage: 0000000000000001.log at 4096: entry 1 is cut off"},
		"the header of the first entry": {damaged(func(log string) error { return flip(segment(log), 4096+10) }), "damaged in 1 place", "damage: 0000000000000001.log at 4096: what stands in front of entry 2 is damaged"},
		"a flipped bit":                 {damaged(func(log string) error { return flip(segment(log), 4096+70) }), "damaged in 1 place", "damage: 0000000000000001.log at 4096: entry 1: checksum"},
	} {
		status, out, say := inspect(t, "log", c.dir)
		if status != exitFailed || !strings.HasPrefix(say, "hops: ") || !strings.Contains(say, c.says) || !strings.Contains(out, c.shows) {
			t.Errorf("%s: status %d, %q\n%s", name, status, say, out)
		}
	}
	for _, args := range [][]string{{"log"}, {"log", dir, dir}, {"log", "--from", "5", "--to", "4", dir}, {"log", "--group", "x", dir}, {"log", "--from", "x", dir}, {"nothing"}} {
		if status, _, say := inspect(t, args...); status != exitUsage {
			t.Errorf("%q: status %d, %s", args, status, say)
		}
	}
}

func TestInspectSnapshotAndCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoint")
	store, err := badger.Open(dir, badger.Options{Apart: namespace.Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := namespace.Open(namespace.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	ns.Apply(2, [][]byte{command(t, &logpb.Command{
		Caller: &logpb.Caller{User: "alice", Superuser: true}, Op: &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: &logpb.Target{Path: "a"}, Mode: 0o755}},
	})})
	frozen, err := ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := frozen.WriteTo(io.Discard); err != nil {
		t.Fatal(err)
	}
	frozen.Release()
	if status, _, say := inspect(t, "checkpoint", dir); status != exitFailed || !strings.Contains(say, "a server has it open") {
		t.Errorf("beside the server: %d, %s", status, say)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if status, out, say := inspect(t, "checkpoint", "--records", "--class", "D", dir); status != 0 || !strings.Contains(out, "/a  {id=") || !strings.Contains(out, "mode=0755") || !strings.Contains(out, "index      2\n") {
		t.Errorf("%d: %s%s", status, out, say)
	}
	if status, _, say := inspect(t, "checkpoint", t.TempDir()); status != exitFailed || !strings.Contains(say, "is no checkpoint") {
		t.Errorf("an empty directory: %d, %s", status, say)
	}
	if status, out, say := inspect(t, "snapshot", "../../metadata/raftstore/testdata/snapshots-2/reference.snap"); status != 0 || !strings.Contains(out, "reference  to version 50 of the checkpoint") || !strings.Contains(out, "nn2 at other:8485, has no vote") {
		t.Errorf("a reference: %d: %s%s", status, out, say)
	}
	for _, none := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none"), "operator_test.go"} {
		if status, _, say := inspect(t, "snapshot", none); status != exitFailed || say == "" {
			t.Errorf("%s: %d, %s", none, status, say)
		}
	}
	for _, args := range [][]string{{"checkpoint"}, {"snapshot"}, {"checkpoint", "--class", "d", dir}, {"checkpoint", "--records", "--class", "?", dir}} {
		if status, _, _ := inspect(t, args...); status != exitUsage {
			t.Errorf("%q: status %d", args, status)
		}
	}
}
