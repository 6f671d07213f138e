package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
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
		"allowed=true ugi=" + daemon + " (auth:SIMPLE) cmd=setSpaceQuota src=/a proto=rpc",
		`allowed=false ugi=bob (auth:SIMPLE) cmd=mkdirs src=/b\nallowed=true proto=rpc`,
		`allowed=false ugi=bob (auth:SIMPLE) cmd=setSpaceQuota src=/b\nallowed=true proto=rpc`,
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

// The lines are those of Apache Hadoop 3.4's FSNamesystem: which commands say whose the inode is, what they are called, and what is the source.
func TestAuditLinesAreThoseOfHDFS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := security.OpenAudit(security.AuditConfig{Path: path})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan error, 1)
	go func() { written <- audit.Run(ctx) }()
	c := newCluster(t, 1, func(c *Config) { c.Door.SetAudit(audit) })
	m := c.raised()
	root := m.config.Door.Daemon()
	fs, on := c.root(), t.Context()
	rename2 := func(src, dst string, overwrite, trash *bool) {
		t.Helper()
		must(t, m.rpc(t).Call(on, clientprotocol.Name, "rename2", &hdfspb.Rename2RequestProto{Src: &src, Dst: &dst, OverwriteDest: overwrite, MoveToTrash: trash}, new(hdfspb.Rename2ResponseProto)))
	}
	web := func(query string) {
		t.Helper()
		r, _ := http.NewRequest(http.MethodPut, "http://"+m.http+"/webhdfs/v1"+query+"&user.name="+root, nil)
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", query, resp.Status)
		}
	}
	xattr := metadata.XAttr{Namespace: metadata.XAttrUser, Name: "a", Value: []byte("b")}
	acl := []metadata.ACLEntry{{Type: metadata.ACLUser, Name: "ann", Rights: 7}}
	must(t, fs.Mkdirs(on, "/a", 0o777, true))
	must(t, fs.Mkdirs(on, "/a", 0o700, true)) // it is there
	must(t, fs.WriteFile(on, "/a/f", []byte("f"), true))
	must(t, fs.WriteFile(on, "/a/g", []byte("g"), true))
	must(t, fs.Concat(on, "/a/f", []string{"/a/g"}))
	must(t, fs.SetPermission(on, "/a", 0o1770))
	must(t, fs.SetOwner(on, "/a", "ann", "staff"))
	must(t, fs.SetTimes(on, "/a/f", 1, 2))
	_, err = fs.SetReplication(on, "/a/f", 2)
	must(t, err)
	must(t, fs.SetXAttr(on, "/a/f", xattr, dfs.XAttrCreate))
	must(t, fs.RemoveXAttr(on, "/a/f", xattr))
	must(t, fs.ModifyACL(on, "/a/f", acl))
	must(t, fs.RemoveACL(on, "/a/f"))
	must(t, fs.SetStoragePolicy(on, "/a", "COLD"))
	must(t, fs.UnsetStoragePolicy(on, "/a"))
	must(t, fs.Mkdirs(on, "/b/a", 0o777, true))
	must(t, fs.SetPermission(on, "/b", 0o700))
	ok, err := fs.Rename(on, "/a/f", "/b/a") // into it
	if must(t, err); !ok {
		t.Fatal("not renamed")
	}
	rename2("/b/a/f", "/b/f", ptr(false), nil)
	rename2("/b/f", "/b/g", ptr(true), nil)
	rename2("/b/g", "/b/h", ptr(true), ptr(true))
	must(t, fs.SetQuota(on, "/b", 5, metadata.QuotaKeep))
	must(t, fs.SetQuota(on, "/b", metadata.QuotaKeep, 5<<20))
	must(t, fs.SetQuota(on, "/b", metadata.QuotaUnset, metadata.QuotaKeep))
	must(t, fs.SetQuota(on, "/b", metadata.QuotaKeep, metadata.QuotaUnset))
	must(t, fs.SetTypeQuota(on, "/b", namenode.SSD, 5<<20))
	must(t, fs.SetTypeQuota(on, "/b", namenode.SSD, metadata.QuotaUnset))
	if err := c.client("bob").SetQuota(on, "/b", metadata.QuotaUnset, metadata.QuotaKeep); err == nil {
		t.Error("bob sets a quota")
	}
	for _, want := range []bool{true, false} { // what does nothing, HDFS takes for refused, or says nothing of
		if ok, err := fs.Delete(on, "/b/h", false); ok != want || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := fs.Rename(on, "/b/a", "/x/"+strconv.FormatBool(want)); ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := fs.SetReplication(on, "/b/a", 2); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	web("/c?op=MKDIRS&permission=750")
	web("/c?op=RENAME&destination=/d")
	web("/d?op=RENAME&destination=/e&renameoptions=OVERWRITE")
	web("/x?op=RENAME&destination=/y")
	web("/x?op=SETREPLICATION&replication=2")
	web("/e?op=SETQUOTA&namespacequota=-1")
	web("/e?op=SETQUOTABYSTORAGETYPE&storagetype=SSD&storagespacequota=-1")
	stop()
	must(t, <-written)
	text, err := os.ReadFile(path)
	must(t, err)
	var got []string
	for line := range strings.Lines(string(text)) {
		_, fields, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "audit: ")
		fields, _, _ = strings.Cut(fields, "\treason=")
		fields = strings.ReplaceAll(strings.ReplaceAll(fields, "ugi="+root+" (auth:SIMPLE)\tip=/127.0.0.1\t", ""), root+":", "ROOT:")
		got = append(got, strings.ReplaceAll(fields, "\t", " "))
	}
	want := strings.Split(strings.TrimSpace(`
allowed=true cmd=mkdirs src=/a dst=null perm=ROOT:supergroup:rwxr-xr-x proto=rpc
allowed=true cmd=mkdirs src=/a dst=null perm=ROOT:supergroup:rwxr-xr-x proto=rpc
allowed=true cmd=create src=/a/f dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=create src=/a/g dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=concat src=[/a/g] dst=/a/f perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=setPermission src=/a dst=null perm=ROOT:supergroup:rwxrwx--T proto=rpc
allowed=true cmd=setOwner src=/a dst=null perm=ann:staff:rwxrwx--T proto=rpc
allowed=true cmd=setTimes src=/a/f dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=setReplication src=/a/f dst=null perm=null proto=rpc
allowed=true cmd=setXAttr src=/a/f dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=removeXAttr src=/a/f dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=modifyAclEntries src=/a/f dst=null perm=ROOT:supergroup:rw-rwxr-- proto=rpc
allowed=true cmd=removeAcl src=/a/f dst=null perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=setStoragePolicy src=/a dst=null perm=ann:staff:rwxrwx--T proto=rpc
allowed=true cmd=unsetStoragePolicy src=/a dst=null perm=ann:staff:rwxrwx--T proto=rpc
allowed=true cmd=mkdirs src=/b/a dst=null perm=ROOT:supergroup:rwxr-xr-x proto=rpc
allowed=true cmd=setPermission src=/b dst=null perm=ROOT:supergroup:rwx------ proto=rpc
allowed=true cmd=rename src=/a/f dst=/b/a perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=rename (options=[NONE]) src=/b/a/f dst=/b/f perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=rename (options=[OVERWRITE]) src=/b/f dst=/b/g perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=rename (options=[OVERWRITE, TO_TRASH]) src=/b/g dst=/b/h perm=ROOT:supergroup:rw-r--r-- proto=rpc
allowed=true cmd=setQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=setSpaceQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=clearQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=clearSpaceQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=setSpaceQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=clearSpaceQuota src=/b dst=null perm=null proto=rpc
allowed=false ugi=bob (auth:SIMPLE) ip=/127.0.0.1 cmd=clearQuota src=/b dst=null perm=null proto=rpc
allowed=true cmd=delete src=/b/h dst=null perm=null proto=rpc
allowed=false cmd=rename src=/b/a dst=/x/true perm=null proto=rpc
allowed=false cmd=delete src=/b/h dst=null perm=null proto=rpc
allowed=false cmd=rename src=/b/a dst=/x/false perm=null proto=rpc
allowed=true cmd=mkdirs src=/c dst=null perm=ROOT:supergroup:rwxr-x--- proto=webhdfs
allowed=true cmd=rename src=/c dst=/d perm=ROOT:supergroup:rwxr-x--- proto=webhdfs
allowed=true cmd=rename (options=[OVERWRITE]) src=/d dst=/e perm=ROOT:supergroup:rwxr-x--- proto=webhdfs
allowed=false cmd=rename src=/x dst=/y perm=null proto=webhdfs
allowed=true cmd=clearQuota src=/e dst=null perm=null proto=webhdfs
allowed=true cmd=clearSpaceQuota src=/e dst=null perm=null proto=webhdfs
`), "\n")
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing:  %s", want[i])
		case i >= len(want):
			t.Errorf("too much: %s", got[i])
		case got[i] != want[i]:
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
}
