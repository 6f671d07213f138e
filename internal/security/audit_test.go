package security

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

func TestAuditLinesHaveTheFieldsOfHDFS(t *testing.T) {
	at := time.Date(2026, 11, 22, 4, 5, 6, 789e6, time.UTC)
	for want, d := range map[string]Decision{
		"2026-11-22 04:05:06,789 INFO FSNamesystem.audit: allowed=true\tugi=ann (auth:SIMPLE)\tip=/127.0.0.1\tcmd=rename\tsrc=/a\tdst=/b\tperm=null\tproto=rpc\n": {
			Allowed: true, Caller: metadata.Caller{User: "ann", Host: "127.0.0.1"}, Port: "rpc", Command: "rename", Source: "/a", Target: "/b",
		},
		"2026-11-22 04:05:06,789 INFO FSNamesystem.audit: allowed=true\tugi=ann (auth:SIMPLE)\tip=/127.0.0.1\tcmd=mkdirs\tsrc=/a\tdst=null\tperm=ann:a\\tb:rwxr-x--T\tproto=rpc\n": {
			Allowed: true, Caller: metadata.Caller{User: "ann", Host: "127.0.0.1"}, Port: "rpc", Command: "mkdirs", Source: "/a", Changed: metadata.Changed{Owner: "ann", Group: "a\tb", Mode: 0o1750},
		},
		"2026-11-22 04:05:06,789 INFO FSNamesystem.audit: allowed=false\tugi=ann (auth:PROXY) via hue (auth:SIMPLE)\tip=/null\tcmd=open\tsrc=/ä\\tallowed=true\\n\\\\\\xff\tdst=null\tperm=null\tproto=webhdfs\treason=no\n": {
			Caller: metadata.Caller{User: "ann", RealUser: "hue"}, Port: "webhdfs", Command: "open", Source: "/ä\tallowed=true\n\\\xff", Reason: "no", Read: true,
		},
	} {
		if got := string(appendDecision(new(stamp).append(nil, at), &d)); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestStampsAreTimesFormatted(t *testing.T) {
	var s stamp
	at := time.Date(2026, 11, 22, 4, 5, 58, 0, time.FixedZone("", 5400))
	for i := range 5000 {
		now := at.Add(time.Duration(i*i%7001) * 999_983)
		if got, want := string(s.append(nil, now)), now.Format(auditTime); got != want {
			t.Fatalf("%s for %s", got, want)
		}
	}
}

func TestAuditKeepsChangesAndRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	a.Record(Decision{Allowed: true, Command: "open", Read: true})
	a.Record(Decision{Allowed: false, Command: "list", Read: true})
	a.Record(Decision{Allowed: true, Command: "mkdirs"})
	(*Audit)(nil).Record(Decision{})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 || !strings.Contains(string(text), "cmd=list") || !strings.Contains(string(text), "cmd=mkdirs") {
		t.Fatalf("%v\n%s", err, text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
}

func BenchmarkAudit(b *testing.B) {
	a, err := OpenAudit(AuditConfig{Path: filepath.Join(b.TempDir(), "audit.log")})
	if err != nil {
		b.Fatal(err)
	}
	d := Decision{Allowed: true, Caller: metadata.Caller{User: "ann", Host: "127.0.0.1"}, Port: "rpc", Command: "mkdirs", Source: "/user/ann/data/part-00001"}
	for b.Loop() {
		a.Record(d)
	}
}
