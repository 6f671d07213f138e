package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/jmx/jmxtest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// fakeNamespace is a ClientProtocol with files of one block on one datanode: what the door needs to be driven.
type fakeNamespace struct {
	mu      sync.Mutex
	node    *Server
	pool    string
	files   map[string]*fakeFile
	next    uint64
	holders map[string]bool // clients that ever created
	users   map[string]bool
}

type fakeFile struct {
	id, block, gen, size uint64
	mode, unmasked       uint32
	holder               string
}

func (f *fakeNamespace) serve(t testing.TB) string {
	l := listen(t)
	s := hrpc.NewServer(hrpc.ServerConfig{Door: security.NewDoor(security.Config{}), Logger: slog.New(slog.DiscardHandler), Exception: func(err error) (string, string) {
		switch metadata.KindOf(err) {
		case metadata.ErrNotExist:
			return "java.io.FileNotFoundException", err.Error()
		case metadata.ErrExist:
			return "org.apache.hadoop.fs.FileAlreadyExistsException", err.Error()
		}
		return "java.io.IOException", err.Error()
	}})
	f.register(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

func method[Q any, P interface {
	*Q
	hrpc.Message
}](f *fakeNamespace, s *hrpc.Server, name string, do func(P) (hrpc.Message, error)) {
	s.Handle("org.apache.hadoop.hdfs.protocol.ClientProtocol", hrpc.Method{
		Name: name, New: func() hrpc.Message { return P(new(Q)) }, Right: security.ByPath,
		Handle: func(c *hrpc.Call) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.users[c.Caller.User] = true
			if m, err := do(c.Request.(P)); err != nil {
				c.Fail(err)
			} else {
				c.Reply(m)
			}
		},
	})
}

func (f *fakeNamespace) status(x *fakeFile) *hadooppb.HdfsFileStatusProto {
	return &hadooppb.HdfsFileStatusProto{
		FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte{}, Length: new(x.size), Permission: &hadooppb.FsPermissionProto{Perm: new(x.mode)},
		Owner: new("ann"), Group: new("ann"), ModificationTime: new(uint64(0)), AccessTime: new(uint64(0)), FileId: new(x.id),
		BlockReplication: new(uint32(1)), Blocksize: new(uint64(1 << 20)),
	}
}

func (f *fakeNamespace) located(x *fakeFile) *hadooppb.LocatedBlockProto {
	return &hadooppb.LocatedBlockProto{
		B:      &hadooppb.ExtendedBlockProto{PoolId: new(f.pool), BlockId: new(x.block), GenerationStamp: new(x.gen), NumBytes: new(x.size)},
		Offset: new(uint64(0)), Locs: []*hadooppb.DatanodeInfoProto{hadoopNode(f.node.id)}, Corrupt: new(false),
		BlockToken: f.token(x.block),
		StorageIDs: []string{"s"}, StorageTypes: []hadooppb.StorageTypeProto{hadooppb.StorageTypeProto_DISK},
	}
}

// token lets its bearer do anything to a block.
func (f *fakeNamespace) token(block uint64) *hadooppb.TokenProto {
	t := f.node.trust.Sign(f.pool, metadata.BlockID(block), security.ReadBlock|security.WriteBlock|security.CopyBlock)
	return &hadooppb.TokenProto{Identifier: t.Identifier, Password: t.Password, Kind: new(security.BlockTokenKind), Service: new("")}
}

func (f *fakeNamespace) find(src string) (*fakeFile, error) {
	if x := f.files[src]; x != nil {
		return x, nil
	}
	return nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", src)
}

func (f *fakeNamespace) register(s *hrpc.Server) {
	method(f, s, "getServerDefaults", func(*hadooppb.GetServerDefaultsRequestProto) (hrpc.Message, error) {
		return &hadooppb.GetServerDefaultsResponseProto{ServerDefaults: &hadooppb.FsServerDefaultsProto{
			BlockSize: new(uint64(1 << 20)), BytesPerChecksum: new(uint32(512)), WritePacketSize: new(uint32(65536)), Replication: new(uint32(1)),
			FileBufferSize: new(uint32(4096)), ChecksumType: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
		}}, nil
	})
	method(f, s, "create", func(q *hadooppb.CreateRequestProto) (hrpc.Message, error) {
		if f.files[q.GetSrc()] == nil && q.GetCreateFlag()&1 == 0 {
			return nil, metadata.Errorf(metadata.ErrNotExist, "Can't overwrite non-existent %s", q.GetSrc())
		}
		if f.files[q.GetSrc()] != nil && q.GetCreateFlag()&2 == 0 {
			return nil, metadata.Errorf(metadata.ErrExist, "%s already exists", q.GetSrc())
		}
		f.next++
		x := &fakeFile{id: f.next, mode: q.GetMasked().GetPerm(), unmasked: q.GetUnmasked().GetPerm(), holder: q.GetClientName()}
		f.files[q.GetSrc()] = x
		f.holders[x.holder] = true
		return &hadooppb.CreateResponseProto{Fs: f.status(x)}, nil
	})
	method(f, s, "append", func(q *hadooppb.AppendRequestProto) (hrpc.Message, error) {
		x, err := f.find(q.GetSrc())
		if err != nil {
			return nil, err
		}
		x.holder = q.GetClientName()
		return &hadooppb.AppendResponseProto{Block: f.located(x), Stat: f.status(x)}, nil
	})
	method(f, s, "addBlock", func(q *hadooppb.AddBlockRequestProto) (hrpc.Message, error) {
		x, err := f.find(q.GetSrc())
		if err != nil {
			return nil, err
		}
		f.next++
		x.block, x.gen = 1<<30+f.next, 1000+f.next
		return &hadooppb.AddBlockResponseProto{Block: f.located(x)}, nil
	})
	method(f, s, "updateBlockForPipeline", func(q *hadooppb.UpdateBlockForPipelineRequestProto) (hrpc.Message, error) {
		f.next++
		b := &hadooppb.LocatedBlockProto{
			B: q.Block, Offset: new(uint64(0)), Corrupt: new(false),
			BlockToken: f.token(q.Block.GetBlockId()),
		}
		b.B.GenerationStamp = new(1000 + f.next)
		return &hadooppb.UpdateBlockForPipelineResponseProto{Block: b}, nil
	})
	method(f, s, "updatePipeline", func(q *hadooppb.UpdatePipelineRequestProto) (hrpc.Message, error) {
		for _, x := range f.files {
			if x.block == q.GetOldBlock().GetBlockId() {
				x.gen = q.GetNewBlock().GetGenerationStamp()
			}
		}
		return new(hadooppb.UpdatePipelineResponseProto), nil
	})
	method(f, s, "complete", func(q *hadooppb.CompleteRequestProto) (hrpc.Message, error) {
		x, err := f.find(q.GetSrc())
		if err != nil {
			return nil, err
		}
		if q.Last != nil {
			x.size, x.gen = q.GetLast().GetNumBytes(), q.GetLast().GetGenerationStamp()
		}
		x.holder = ""
		return &hadooppb.CompleteResponseProto{Result: new(true)}, nil
	})
	method(f, s, "delete", func(q *hadooppb.DeleteRequestProto) (hrpc.Message, error) {
		_, ok := f.files[q.GetSrc()]
		delete(f.files, q.GetSrc())
		return &hadooppb.DeleteResponseProto{Result: new(ok)}, nil
	})
	method(f, s, "renewLease", func(*hadooppb.RenewLeaseRequestProto) (hrpc.Message, error) {
		return new(hadooppb.RenewLeaseResponseProto), nil
	})
	method(f, s, "getBlockLocations", func(q *hadooppb.GetBlockLocationsRequestProto) (hrpc.Message, error) {
		x, err := f.find(q.GetSrc())
		if err != nil {
			return nil, err
		}
		m := &hadooppb.LocatedBlocksProto{FileLength: new(x.size), UnderConstruction: new(x.holder != ""), IsLastBlockComplete: new(x.holder == "")}
		if x.block != 0 {
			m.Blocks = []*hadooppb.LocatedBlockProto{f.located(x)}
			m.LastBlock = f.located(x)
		}
		return &hadooppb.GetBlockLocationsResponseProto{Locations: m}, nil
	})
}

// doorCluster is a datanode with a door, and the fake namespace behind it.
func doorCluster(t *testing.T) (*Server, *fakeNamespace) {
	t.Helper()
	return doorClusterIn(t, t.TempDir())
}

// doorClusterIn is doorCluster with a directory for its volume.
func doorClusterIn(t *testing.T, dir string) (*Server, *fakeNamespace) {
	t.Helper()
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	ns := &fakeNamespace{pool: "BP-lab", files: map[string]*fakeFile{}, holders: map[string]bool{}, users: map[string]bool{}}
	addr := ns.serve(t)
	d, _ := runDatanode(t, Config{
		Volumes: []Volume{{Path: dir}}, Reserve: -1, Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t),
		NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	waitReady(t, d)
	ns.mu.Lock()
	ns.node = d
	ns.mu.Unlock()
	return d, ns
}

func ask(t *testing.T, d *Server, method, pathAndQuery string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+d.cfg.HTTP.Addr().String()+webhdfsPrefix+pathAndQuery, body)
	check(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	tr := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 5 * time.Second}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	check(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp, string(b)
}

func TestDoorTellsTheModeBeforeTheUmask(t *testing.T) {
	d, ns := doorCluster(t)
	for _, c := range []struct {
		query          string
		mode, unmasked uint32
	}{
		{"", 0o644, 0o644},
		{"&permission=600", 0o600, 0o600},
		{"&permission=0", 0, 0},
		{"&permission=644&unmaskedpermission=664", 0o644, 0o664},
	} {
		if resp, text := ask(t, d, "PUT", "/f?op=CREATE&overwrite=true&user.name=ann"+c.query, nil); resp.StatusCode != http.StatusCreated {
			t.Fatalf("%q: %d %s", c.query, resp.StatusCode, text)
		}
		if f := ns.files["/f"]; f.mode != c.mode || f.unmasked != c.unmasked {
			t.Errorf("%q makes a file of mode %o, unmasked %o; want %o and %o", c.query, f.mode, f.unmasked, c.mode, c.unmasked)
		}
	}
}

// TestDoorObeysCreateFlags: as a stock datanode does, CREATE and OVERWRITE mean what they mean over IPC.
func TestDoorObeysCreateFlags(t *testing.T) {
	d, ns := doorCluster(t)
	for _, c := range []struct {
		flags string
		there bool
		code  int
	}{
		{"create", false, 201},
		{"create", true, 403},
		{"OVERWRITE", false, 404},
		{"OVERWRITE", true, 201},
		{"append", false, 404},
		{"append", true, 403},
		{"create,overwrite", true, 201},
		{"create,lazy_persist,sync_block", false, 201},
		{"", false, 201},
	} {
		delete(ns.files, "/f")
		if c.there {
			if resp, text := ask(t, d, "PUT", "/f?op=CREATE&user.name=ann", nil); resp.StatusCode != 201 {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
		}
		resp, text := ask(t, d, "PUT", "/f?op=CREATE&user.name=ann&createflag="+c.flags, nil)
		if resp.StatusCode != c.code {
			t.Errorf("createflag=%s, the file is there: %v: %d %s, want %d", c.flags, c.there, resp.StatusCode, text, c.code)
		}
	}
}

func TestDoorCreateAppendOpenChecksum(t *testing.T) {
	d, ns := doorCluster(t)
	body := strings.Repeat("0123456789", 30_000)
	resp, text := ask(t, d, "PUT", "/dir/a%20b?op=CREATE&user.name=ann&permission=640&namenoderpcaddress=nn:8020", strings.NewReader(body), "Expect", "100-continue")
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Location") != "hdfs://nn:8020/dir/a%20b" || text != "" {
		t.Fatalf("create: %d %q %v", resp.StatusCode, text, resp.Header)
	}
	if f := ns.files["/dir/a b"]; f == nil || f.mode != 0o640 || f.holder != "" {
		t.Fatalf("file %+v", f)
	}
	for h := range ns.holders {
		if namenode.WriterNode(h) != namenode.NodeID(d.UUID()) {
			t.Errorf("lease holder %q does not name the datanode", h)
		}
	}
	if !ns.users["ann"] || len(ns.users) != 1 {
		t.Errorf("acted as %v", ns.users)
	}
	// A body of unknown length.
	resp, text = ask(t, d, "POST", "/dir/a%20b?op=append&user.name=ann", io.MultiReader(strings.NewReader("more")))
	if resp.StatusCode != http.StatusOK || text != "" {
		t.Fatalf("append: %d %q", resp.StatusCode, text)
	}
	body += "more"
	resp, text = ask(t, d, "GET", "/dir/a%20b?OP=OPEN&user.name=ann", nil)
	if resp.StatusCode != http.StatusOK || text != body || resp.Header.Get("Content-Type") != "application/octet-stream" || resp.ContentLength != int64(len(body)) {
		t.Fatalf("open: %d, %d bytes, %v", resp.StatusCode, len(text), resp.Header)
	}
	if _, text = ask(t, d, "GET", "/dir/a%20b?op=OPEN&user.name=ann&offset=299998&length=4", nil); text != "89mo" {
		t.Errorf("range is %q", text)
	}
	if _, text = ask(t, d, "GET", "/dir/a%20b?op=OPEN&user.name=ann&offset=300000&length=400", nil); text != "more" {
		t.Errorf("range beyond the end is %q", text)
	}
	resp, text = ask(t, d, "GET", "/dir/a%20b?op=GETFILECHECKSUM&user.name=ann", nil)
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, `"algorithm":"MD5-of-0MD5-of-512CRC32C"`) || !strings.Contains(text, `"length":28`) {
		t.Errorf("checksum: %d %s", resp.StatusCode, text)
	}
	resp, _ = ask(t, d, "OPTIONS", "/x?op=CREATE", nil)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Access-Control-Allow-Origin") != "*" || resp.Header.Get("Access-Control-Max-Age") != "1728000" {
		t.Errorf("options: %d %v", resp.StatusCode, resp.Header)
	}
}

func TestDoorErrors(t *testing.T) {
	d, _ := doorCluster(t)
	resp, _ := ask(t, d, "PUT", "/a?op=CREATE&user.name=ann", strings.NewReader("x"))
	if resp.StatusCode != http.StatusCreated {
		t.Fatal(resp.Status)
	}
	for _, c := range []struct {
		method, url string
		code        int
		text        string
	}{
		{"PUT", "/a?op=CREATE&user.name=ann", 403, `"javaClassName":"org.apache.hadoop.fs.FileAlreadyExistsException"`},
		{"GET", "/b?op=OPEN&user.name=ann", 404, `"exception":"FileNotFoundException"`},
		{"GET", "/b?op=OPEN&user.name=ann", 404, "does not exist"},
		{"GET", "/a?op=OPEN&user.name=ann&offset=1", 403, `Offset=1 out of the range [0, 1); OPEN, path=/a`},
		{"GET", "/a?op=OPEN&user.name=ann&offset=-1", 400, `Invalid value for webhdfs parameter \"offset\"`},
		{"PUT", "/c?op=CREATE&user.name=ann&permission=999", 400, `Invalid value for webhdfs parameter \"permission\"`},
		{"PUT", "/c?op=CREATE&user.name=ann&overwrite=perhaps", 400, `Invalid value for webhdfs parameter \"overwrite\"`},
		{"GET", "/a?op=LISTSTATUS&user.name=ann", 400, `Invalid value for webhdfs parameter \"op\"`},
		{"PUT", "/a?op=OPEN&user.name=ann", 400, `IllegalArgumentException`},
		{"PUT", "/c?op=CREATE", 403, `a request without user.name may read, and nothing else`},
		{"POST", "/a?op=APPEND", 403, `a request without user.name may read, and nothing else`},
		{"GET", "/a?op=OPEN&user.name=ann&user.NAME=bob", 403, `the request has user.name more than once`},
	} {
		resp, text := ask(t, d, c.method, c.url, strings.NewReader("x"))
		if resp.StatusCode != c.code || !strings.Contains(text, c.text) || !strings.HasPrefix(text, `{"RemoteException":{`) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.url, resp.StatusCode, text, c.code, c.text)
		}
	}
	// A web page elsewhere must not get in.
	for _, h := range [][]string{{"Host", "evil.example"}, {"Origin", "http://evil.example"}} {
		if resp, _ := ask(t, d, "GET", "/a?op=OPEN&user.name=ann", nil, h...); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %d", h, resp.StatusCode)
		}
	}
}

func TestBrokenUploadLeavesNoFile(t *testing.T) {
	d, ns := doorCluster(t)
	nc, err := net.Dial("tcp", d.cfg.HTTP.Addr().String())
	check(t, err)
	_, err = fmt.Fprintf(nc, "PUT %s/half?op=CREATE&user.name=ann HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n%s", webhdfsPrefix, strings.Repeat("x", 500_000))
	check(t, err)
	within(t, "the upload has begun", func() bool {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		f := ns.files["/half"]
		return f != nil && f.block != 0
	})
	nc.Close()
	within(t, "the half file is gone", func() bool {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		return ns.files["/half"] == nil
	})
}

func TestBrokenAppendKeepsWhatCame(t *testing.T) {
	d, ns := doorCluster(t)
	resp, text := ask(t, d, "PUT", "/log?op=CREATE&user.name=ann", strings.NewReader("begun "))
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("create: %d %s", resp.StatusCode, text)
	}
	nc, err := net.Dial("tcp", d.cfg.HTTP.Addr().String())
	check(t, err)
	_, err = fmt.Fprintf(nc, "POST %s/log?op=APPEND&user.name=ann HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nsome more", webhdfsPrefix)
	check(t, err)
	holder := func() string {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		return ns.files["/log"].holder
	}
	within(t, "the append has begun", func() bool { return holder() != "" })
	check(t, nc.(*net.TCPConn).CloseWrite())
	within(t, "the file is closed", func() bool { return holder() == "" })
	nc.Close()
	if _, text = ask(t, d, "GET", "/log?op=OPEN&user.name=ann", nil); text != "begun some more" {
		t.Errorf("the file has %q", text)
	}
}

func TestClientDatanodeProtocol(t *testing.T) {
	d, _ := doorCluster(t)
	c, err := hrpc.Dial(t.Context(), d.cfg.IPC.Addr().String(), hrpc.DialConfig{Protocol: clientDatanodeProtocol, User: "ann"})
	check(t, err)
	defer c.Close()
	putOpen(t, d, 7, 1001, "some bytes")
	length := func(id, gen uint64) (uint64, error) {
		var m hadooppb.GetReplicaVisibleLengthResponseProto
		err := c.Call(t.Context(), clientDatanodeProtocol, "getReplicaVisibleLength", &hadooppb.GetReplicaVisibleLengthRequestProto{
			Block: &hadooppb.ExtendedBlockProto{PoolId: new("BP-lab"), BlockId: &id, GenerationStamp: &gen},
		}, &m)
		return m.GetLength(), err
	}
	if n, err := length(7, 1001); n != 10 || err != nil {
		t.Errorf("visible length %d, %v", n, err)
	}
	for _, x := range [][2]uint64{{8, 1001}, {7, 1002}} {
		if _, err := length(x[0], x[1]); err == nil || !strings.Contains(err.Error(), "ReplicaNotFoundException") {
			t.Errorf("block %v: %v", x, err)
		}
	}
	var info hadooppb.GetDatanodeInfoResponseProto
	check(t, c.Call(t.Context(), clientDatanodeProtocol, "getDatanodeInfo", new(hadooppb.GetDatanodeInfoRequestProto), &info))
	if info.GetLocalInfo().GetSoftwareVersion() != SoftwareVersion {
		t.Errorf("info %v", &info)
	}
	if err := c.Call(t.Context(), clientDatanodeProtocol, "getVolumeReport", new(hadooppb.GetVolumeReportRequestProto), new(hadooppb.GetVolumeReportResponseProto)); err == nil {
		t.Error("an ordinary user gets the volume report")
	}
}

// Hadoop's clients call themselves by the block when they ask for its length, whoever runs them.
func TestTheNameOfABlockIsNoUser(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	d, _ := runDatanode(t, Config{
		Volumes: []Volume{{Path: t.TempDir()}}, Reserve: -1, Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t),
		NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{"127.0.0.1:1"}, Credentials: credentials, Logger: slog.New(slog.DiscardHandler),
		Door: security.NewDoor(security.Config{Owner: func(security.ConnAddrs) (uint32, error) { return 4294000000, nil }}),
	})
	waitReady(t, d)
	putOpen(t, d, 7, 1001, "some bytes")
	ask := func(user string) (uint64, error) {
		c, err := hrpc.Dial(t.Context(), d.cfg.IPC.Addr().String(), hrpc.DialConfig{Protocol: clientDatanodeProtocol, User: user})
		check(t, err)
		defer c.Close()
		var m hadooppb.GetReplicaVisibleLengthResponseProto
		err = c.Call(t.Context(), clientDatanodeProtocol, "getReplicaVisibleLength", &hadooppb.GetReplicaVisibleLengthRequestProto{
			Block: &hadooppb.ExtendedBlockProto{PoolId: new("BP-lab"), BlockId: new(uint64(7)), GenerationStamp: new(uint64(1001))},
		}, &m)
		return m.GetLength(), err
	}
	if n, err := ask("blk_7_1001"); n != 10 || err != nil {
		t.Errorf("as the block: %d, %v", n, err)
	}
	if _, err := ask("root"); err == nil {
		t.Error("a stranger is root")
	}
}

func TestHealth(t *testing.T) {
	d, _ := doorCluster(t)
	jmxtest.Check(t, d.cfg.HTTP.Addr().String(), "Hadoop:service=DataNode,name=DataNodeInfo", "Hadoop:service=DataNode,name=FSDatasetState", "Hadoop:service=DataNode,name=FSDatasetState-UUID")
	resp, err := http.Get("http://" + d.cfg.HTTP.Addr().String() + "/health")
	check(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	check(t, err)
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != 200 || !bytes.Contains(b, []byte(`"ready":true`)) || !bytes.Contains(b, []byte(`"leader":true`)) || !bytes.Contains(b, []byte(d.UUID())) {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}
