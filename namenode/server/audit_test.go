package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hdfspb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// By whatever door a request comes, the audit log has what was changed and who was refused, and no reads.
func TestDecisionsAreInTheAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan error, 1)
	go func() { written <- audit.Run(ctx) }()
	c := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) })
	m := c.leader()
	mkdirs := func(user, path string) {
		rpc, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: user, DialTimeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer rpc.Close()
		_ = rpc.Call(t.Context(), clientprotocol.Name, "mkdirs", &hdfspb.MkdirsRequestProto{
			Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true),
		}, new(hdfspb.MkdirsResponseProto)) // the log says how it went
		_ = rpc.Call(t.Context(), clientprotocol.Name, "getFileInfo", &hdfspb.GetFileInfoRequestProto{Src: &path}, new(hdfspb.GetFileInfoResponseProto))
		_ = rpc.Call(t.Context(), clientprotocol.Name, "setQuota", &hdfspb.SetQuotaRequestProto{
			Path: &path, NamespaceQuota: ptr(uint64(9)), StoragespaceQuota: ptr(uint64(1 << 40)),
		}, new(hdfspb.SetQuotaResponseProto))
	}
	mkdirs(m.config.Door.Daemon(), "/a")
	mkdirs("bob", "/b\nallowed=true")
	for _, stop := range []bool{false, false, true} { // that it goes on is not kept
		for _, user := range []string{"bob", m.config.Door.Daemon()} {
			err := m.operator(t, user, "balance", &hdfspb.BalanceRequestProto{Session: ptr("one"), Threshold: ptr(10.0), Stop: &stop}, new(hdfspb.BalanceResponseProto))
			if (err != nil) != (user == "bob") {
				t.Errorf("%s: %v", user, err)
			}
		}
		m.balancer.mu.Lock()
		m.balancer.until = time.Now().Add(time.Hour) // however long it takes to say that it goes on
		m.balancer.mu.Unlock()
	}
	for _, call := range []struct{ method, query string }{
		{"PUT", "/c?op=MKDIRS&user.name=bob"}, {"PUT", "/d?op=MKDIRS&user.name=" + m.config.Door.Daemon()}, {"GET", "/d?op=LISTSTATUS&user.name=bob"},
	} {
		r, _ := http.NewRequest(call.method, "http://"+m.http+"/webhdfs/v1"+call.query, nil)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) < 8 {
			t.Fatalf("%q", line)
		}
		_, allowed, _ := strings.Cut(fields[0], "audit: ")
		got = append(got, strings.Join([]string{allowed, fields[1], fields[3], fields[4], fields[7]}, " "))
	}
	daemon := m.config.Door.Daemon()
	want := []string{
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=mkdirs src=/a proto=rpc",
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=setQuota src=/a proto=rpc",
		`allowed=false ugi=bob (auth:SIMPLE) cmd=mkdirs src=/b\nallowed=true proto=rpc`,
		"allowed=false ugi=bob (auth:SIMPLE) cmd=setQuota src=null proto=rpc", // before the request was decoded
		"allowed=false ugi=bob (auth:SIMPLE) cmd=balance src=null proto=rpc",
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=balance src=null proto=rpc", // it begins
		"allowed=false ugi=bob (auth:SIMPLE) cmd=balance src=null proto=rpc",
		"allowed=false ugi=bob (auth:SIMPLE) cmd=balance src=null proto=rpc",
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=balance src=null proto=rpc", // it ends
		"allowed=false ugi=bob (auth:SIMPLE) cmd=mkdirs src=/c proto=webhdfs",
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=mkdirs src=/d proto=webhdfs",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Snapshots are in the audit log with the paths that HDFS has for them, by whatever door they are changed.
func TestSnapshotsAreInTheAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: path, Reads: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan error, 1)
	go func() { written <- audit.Run(ctx) }()
	m := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) }).raised()
	daemon := m.config.Door.Daemon()
	rpc, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: daemon, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer rpc.Close()
	call := func(method string, request, response hrpc.Message) {
		t.Helper()
		if err := rpc.Call(t.Context(), clientprotocol.Name, method, request, response); err != nil {
			t.Fatal(err)
		}
	}
	web := func(method, query string) {
		t.Helper()
		r, _ := http.NewRequest(method, "http://"+m.http+"/webhdfs/v1/d?"+query+"&user.name="+daemon, nil)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", query, resp.Status)
		}
	}
	root := ptr("/d")
	call("mkdirs", &hdfspb.MkdirsRequestProto{Src: root, Masked: &hdfspb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, new(hdfspb.MkdirsResponseProto))
	call("allowSnapshot", &hdfspb.AllowSnapshotRequestProto{SnapshotRoot: root}, new(hdfspb.AllowSnapshotResponseProto))
	call("createSnapshot", &hdfspb.CreateSnapshotRequestProto{SnapshotRoot: root, SnapshotName: ptr("a")}, new(hdfspb.CreateSnapshotResponseProto))
	call("renameSnapshot", &hdfspb.RenameSnapshotRequestProto{SnapshotRoot: root, SnapshotOldName: ptr("a"), SnapshotNewName: ptr("b")}, new(hdfspb.RenameSnapshotResponseProto))
	call("getSnapshotDiffReport", &hdfspb.GetSnapshotDiffReportRequestProto{SnapshotRoot: root, FromSnapshot: ptr("b"), ToSnapshot: ptr("")}, new(hdfspb.GetSnapshotDiffReportResponseProto))
	call("deleteSnapshot", &hdfspb.DeleteSnapshotRequestProto{SnapshotRoot: root, SnapshotName: ptr("b")}, new(hdfspb.DeleteSnapshotResponseProto))
	call("disallowSnapshot", &hdfspb.DisallowSnapshotRequestProto{SnapshotRoot: root}, new(hdfspb.DisallowSnapshotResponseProto))
	web(http.MethodPut, "op=ALLOWSNAPSHOT")
	web(http.MethodPut, "op=CREATESNAPSHOT&snapshotname=a")
	web(http.MethodPut, "op=RENAMESNAPSHOT&oldsnapshotname=a&snapshotname=b")
	web(http.MethodGet, "op=GETSNAPSHOTDIFF&oldsnapshotname=b&snapshotname=")
	web(http.MethodDelete, "op=DELETESNAPSHOT&snapshotname=b")
	web(http.MethodPut, "op=DISALLOWSNAPSHOT")
	stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), "\t"); len(fields) > 7 && strings.Contains(fields[3], "nap") {
			got = append(got, strings.Join([]string{fields[3], fields[4], fields[5], fields[7]}, " "))
		}
	}
	var want []string
	for _, door := range []string{"rpc", "webhdfs"} {
		for _, what := range []string{
			"allowSnapshot src=/d dst=null", "createSnapshot src=/d dst=/d/.snapshot/a", "renameSnapshot src=/d/.snapshot/a dst=/d/.snapshot/b",
			"computeSnapshotDiff src=/d/.snapshot/b dst=/d", "deleteSnapshot src=/d/.snapshot/b dst=null", "disallowSnapshot src=/d dst=null",
		} {
			want = append(want, "cmd="+what+" proto="+door)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
