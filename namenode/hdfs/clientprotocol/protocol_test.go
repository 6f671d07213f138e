package clientprotocol

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// scripted is a service that answers what a test wants; other calls panic on the nil interface.
type scripted struct {
	namenode.Service
	standby bool
	later   bool // nothing is told at once
	stat    *metadata.FileStatus
	summary *metadata.ContentSummary
	located *namenode.LocatedFile
	listing *namenode.Listing
	created namenode.CreateRequest
}

func (s *scripted) Active() bool      { return !s.standby }
func (s *scripted) BlockPool() string { return "BP-1" }
func (s *scripted) Defaults() namenode.Defaults {
	return namenode.Defaults{BlockSize: 128 << 20, Replication: 3, BytesPerChecksum: 512, PacketSize: 65536, FileBufferSize: 4096}
}

func (s *scripted) Statistics() namenode.Statistics {
	return namenode.Statistics{Capacity: 100, Used: 7}
}
func (s *scripted) Datanodes() []namenode.NodeReport { return nil }
func (s *scripted) SafeMode() string                 { return "" }
func (s *scripted) Healthy() error                   { return errors.New("no leader") }
func (s *scripted) CheckAccess(_ metadata.Caller, _ string, _ metadata.Access, done func(error)) {
	done(nil)
}

func (s *scripted) Stat(_ metadata.Caller, _ string, done func(*metadata.FileStatus, error)) {
	done(s.stat, nil)
}

func (s *scripted) StatNow(metadata.Caller, string, *metadata.FileStatus) (*metadata.FileStatus, bool, error) {
	return s.stat, !s.later, nil
}

func (s *scripted) StatEach(_ metadata.Caller, paths []string, rooms []metadata.FileStatus) int {
	if s.later {
		return 0
	}
	for i := range paths {
		if s.stat != nil {
			rooms[i] = *s.stat
		}
	}
	return len(paths)
}

func (s *scripted) ContentSummary(_ metadata.Caller, _ string, done func(*metadata.ContentSummary, error)) {
	done(s.summary, nil)
}

func (s *scripted) Locate(_ metadata.Caller, _ namenode.LocateRequest, done func(*namenode.LocatedFile, error)) {
	done(s.located, nil)
}

func (s *scripted) List(_ metadata.Caller, _ namenode.ListRequest, done func(*namenode.Listing, error)) {
	done(s.listing, nil)
}

func (s *scripted) Create(_ metadata.Caller, r namenode.CreateRequest, done func(*metadata.FileStatus, error)) {
	s.created = r
	done(s.stat, nil)
}

func serve(t *testing.T, s namenode.Service) (*hrpc.Server, *hrpc.Client) {
	t.Helper()
	door := security.NewDoor(security.Config{Supergroup: "supergroup"})
	server := hrpc.NewServer(hrpc.ServerConfig{Door: door, Exception: hdfs.Exception})
	Register(server, s, func(user string) []string { return []string{"g-" + user} })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	client, err := hrpc.Dial(t.Context(), l.Addr().String(), hrpc.DialConfig{Protocol: Name, User: door.Daemon(), DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server, client
}

// Hadoop's protocol has a request message per method; every one is answered, and each says the right it needs.
func TestEveryMethodOfHadoopIsThereWithARight(t *testing.T) {
	server, _ := serve(t, &scripted{})
	rights := map[string]security.Right{}
	for _, r := range server.Routes("") {
		if name, ok := strings.CutPrefix(r.Name, "ClientProtocol/"); ok {
			rights[name] = r.Right
		}
	}
	messages := pb.File_namenode_hdfs_hadooppb_client_namenode_proto.Messages()
	count := 0
	for i := range messages.Len() {
		name, ok := strings.CutSuffix(string(messages.Get(i).Name()), "RequestProto")
		if !ok {
			continue
		}
		name = strings.ToLower(name[:1]) + name[1:]
		if name == "getFsStatus" {
			name = "getFsStats" // the one method whose request has another name
		}
		count++
		if _, ok := rights[name]; !ok {
			t.Errorf("method %s has no answer", name)
		}
	}
	if count != len(rights) {
		t.Errorf("%d methods are registered, the protocol has %d", len(rights), count)
	}
	// What anyone may call touches nothing of anybody's. Adding to this list is a decision.
	anyone := []string{
		"getServerDefaults", "getFsStats", "setSafeMode", "getDatanodeReport", "getFsReplicatedBlockStats", "getFsECBlockGroupStats",
		"getStoragePolicies", "getHAServiceState", "msync", "getDelegationToken", "getDataEncryptionKey", "getErasureCodingPolicies",
		"getErasureCodingCodecs", "getSnapshottableDirListing", "listEncryptionZones", "listReencryptionStatus", "listCacheDirectives",
		"listCachePools", "upgradeStatus", "getSlowDatanodeReport", "renewDelegationToken", "cancelDelegationToken",
	}
	for _, name := range anyone {
		if rights[name] != security.Anyone {
			t.Errorf("%s needs %v", name, rights[name])
		}
		delete(rights, name)
	}
	for name, r := range rights {
		if r == security.Anyone {
			t.Errorf("%s may be called by anyone", name)
		}
	}
}

func failure(t *testing.T, err error) *hrpc.RemoteError {
	t.Helper()
	remote, ok := errors.AsType[*hrpc.RemoteError](err)
	if !ok {
		t.Fatalf("got %v, want an exception", err)
	}
	return remote
}

func TestWhatDoesNotExistSaysSo(t *testing.T) {
	_, client := serve(t, &scripted{})
	ctx := t.Context()
	for method, want := range map[string]string{
		"getBatchedListing": "getBatchedListing: listing several directories at once is not supported",
	} {
		// Whatever the request is.
		remote := failure(t, client.Call(ctx, Name, method, &pb.TruncateRequestProto{Src: ptr("/f"), NewLength: ptr(uint64(1)), ClientName: ptr("c")}, discard{}))
		if remote.Class != hdfs.UnsupportedOperation || remote.Text() != want {
			t.Errorf("%s: %v", method, remote)
		}
	}
	link := &pb.CreateSymlinkRequestProto{Target: ptr("/a"), Link: ptr("/b"), DirPerm: &pb.FsPermissionProto{Perm: zero32}, CreateParent: no}
	if remote := failure(t, client.Call(ctx, Name, "createSymlink", link, discard{})); remote.Class != hdfs.UnsupportedOperation || remote.Text() != "Symlinks not supported" {
		t.Errorf("createSymlink: %v", remote)
	}
	remote := failure(t, client.Call(ctx, Name, "getTheMoon", &pb.MsyncRequestProto{}, discard{}))
	if remote.Class != "org.apache.hadoop.ipc.RpcNoSuchMethodException" || !strings.HasPrefix(remote.Message, "Unknown method getTheMoon called on "+Name) {
		t.Errorf("unknown method: %v", remote)
	}
	remote = failure(t, client.Call(ctx, HAName, "transitionToObserver", &pb.MsyncRequestProto{}, discard{}))
	if remote.Class != hdfs.UnsupportedOperation {
		t.Errorf("transitionToObserver: %v", remote)
	}
	remote = failure(t, client.Call(ctx, HAName, "monitorHealth", &pb.MonitorHealthRequestProto{}, discard{}))
	if remote.Class != "org.apache.hadoop.ha.HealthCheckFailedException" || remote.Message != "no leader" {
		t.Errorf("monitorHealth: %v", remote)
	}
}

func TestStandbyAnswersOnlyWhatHadoopsDoes(t *testing.T) {
	server, client := serve(t, &scripted{standby: true})
	checked := 0
	server.Methods(func(protocol string, m hrpc.Method) {
		if protocol != Name || anywhere[m.Name] {
			return
		}
		request := m.New()
		if typed, ok := request.(protoreflect.ProtoMessage); ok {
			fill(typed.ProtoReflect())
		}
		checked++
		if remote := failure(t, client.Call(t.Context(), Name, m.Name, request, discard{})); remote.Class != hdfs.Standby {
			t.Errorf("%s on a standby: %v", m.Name, remote)
		}
	})
	if checked < 90 {
		t.Errorf("only %d methods were tried", checked)
	}
	for _, name := range []string{"getDatanodeReport", "getHAServiceState", "setSafeMode"} {
		if !anywhere[name] {
			t.Errorf("%s is not answered by a standby", name)
		}
	}
}

// fill sets the required fields of a message.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Cardinality() != protoreflect.Required:
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, f.Default())
		}
	}
}

func TestGoldenMessages(t *testing.T) {
	s := &scripted{
		summary: &metadata.ContentSummary{Length: 4, Files: 1, SpaceConsumed: 12, Quota: -1, SpaceQuota: -1},
		stat: &metadata.FileStatus{
			ID: 16386, Type: metadata.TypeFile, Length: 4, Mode: 0o644, Owner: "ann", Group: "staff", MTime: 1000, ATime: 2000, Replication: 3, BlockSize: 1 << 20,
		},
	}
	_, client := serve(t, s)
	ctx := t.Context()
	var summary pb.GetContentSummaryResponseProto
	if err := client.Call(ctx, Name, "getContentSummary", &pb.GetContentSummaryRequestProto{Path: ptr("/f")}, &summary); err != nil {
		t.Fatal(err)
	}
	m := summary.Summary
	if m.GetErasureCodingPolicy() != "Replicated" {
		t.Errorf("policy of a file: %q", m.GetErasureCodingPolicy())
	}
	m.SnapshotLength, m.SnapshotFileCount, m.SnapshotDirectoryCount, m.SnapshotSpaceConsumed, m.ErasureCodingPolicy = nil, nil, nil, nil, nil
	got, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	const want = "\x08\x04\x10\x01\x18\x00\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x28\x0c\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
	if string(got) != want {
		t.Errorf("content summary: %x, want %x", got, want)
	}
	// All fields of a token are required, of one that says nothing too.
	if got := appendToken(nil, 5, &security.Token{}); string(got) != "\x2a\x08\x0a\x00\x12\x00\x1a\x00\x22\x00" {
		t.Errorf("empty token: %x", got)
	}
	status := s.stat
	for _, s.later = range []bool{false, true} {
		s.stat = status
		var info pb.GetFileInfoResponseProto
		if err := client.Call(ctx, Name, "getFileInfo", &pb.GetFileInfoRequestProto{Src: ptr("/f")}, &info); err != nil {
			t.Fatal(err)
		}
		f := info.Fs
		if f.GetFileType() != pb.HdfsFileStatusProto_IS_FILE || f.Path == nil || len(f.Path) != 0 || f.GetPermission().GetPerm() != 0o644 || f.Flags == nil ||
			f.GetFileId() != 16386 || f.ChildrenNum == nil || f.GetBlockReplication() != 3 || f.GetBlocksize() != 1<<20 || f.Locations != nil || f.StoragePolicy == nil {
			t.Errorf("file info: %v", f)
		}
		s.stat = nil
		info.Reset()
		if err := client.Call(ctx, Name, "getFileInfo", &pb.GetFileInfoRequestProto{Src: ptr("/f")}, &info); err != nil || info.Fs != nil {
			t.Errorf("file info of nothing: %v, %v", info.Fs, err)
		}
	}
	var defaults pb.GetServerDefaultsResponseProto
	if err := client.Call(ctx, Name, "getServerDefaults", &pb.GetServerDefaultsRequestProto{}, &defaults); err != nil ||
		defaults.ServerDefaults.GetChecksumType() != pb.ChecksumTypeProto_CHECKSUM_CRC32C || defaults.ServerDefaults.GetPolicyId() != 7 || defaults.ServerDefaults.KeyProviderUri == nil {
		t.Errorf("server defaults: %v, %v", defaults.ServerDefaults, err)
	}
	var groups pb.GetGroupsForUserResponseProto
	if err := client.Call(ctx, UserMappingsName, "getGroupsForUser", &pb.GetGroupsForUserRequestProto{User: ptr("ann")}, &groups); err != nil || len(groups.Groups) != 1 || groups.Groups[0] != "g-ann" {
		t.Errorf("groups: %v, %v", groups.Groups, err)
	}
}

func TestLocatedBlocksAreAligned(t *testing.T) {
	node := &namenode.Node{ID: "u1", IP: "127.0.0.1", Host: "h", Rack: "/default-rack", TransferPort: 1}
	block := namenode.LocatedBlock{
		Block: metadata.Block{ID: 1, Generation: 2, Length: 3}, Corrupt: true,
		Locations: []namenode.Location{{Node: node, Volume: "v", Type: namenode.SSD}, {Node: node, Volume: "w"}},
	}
	s := &scripted{
		located: &namenode.LocatedFile{Length: 3, Blocks: []namenode.LocatedBlock{block, {Block: metadata.Block{ID: 2}}}, Last: &block},
		listing: &namenode.Listing{
			Entries: []metadata.FileStatus{{Type: metadata.TypeDirectory, Name: "d"}, {Type: metadata.TypeFile, Name: "f"}},
			Files:   []*namenode.LocatedFile{nil, {}}, Remaining: 9,
		},
	}
	_, client := serve(t, s)
	var r pb.GetBlockLocationsResponseProto
	request := &pb.GetBlockLocationsRequestProto{Src: ptr("/f"), Offset: ptr(uint64(0)), Length: ptr(uint64(1))}
	if err := client.Call(t.Context(), Name, "getBlockLocations", request, &r); err != nil {
		t.Fatal(err)
	}
	b := r.Locations.Blocks[0]
	if len(b.Locs) != 2 || len(b.StorageIDs) != 2 || len(b.StorageTypes) != 2 || b.StorageTypes[0] != pb.StorageTypeProto_SSD ||
		b.StorageTypes[1] != pb.StorageTypeProto_DISK || !b.GetCorrupt() || b.B.GetPoolId() != "BP-1" || len(r.Locations.Blocks[1].Locs) != 0 {
		t.Errorf("locations: %v", r.Locations)
	}
	for _, bad := range []*pb.GetBlockLocationsRequestProto{
		{Src: ptr("/f"), Offset: ptr(^uint64(0)), Length: ptr(uint64(1))}, {Src: ptr("/f"), Offset: ptr(uint64(0)), Length: ptr(^uint64(0))},
	} {
		if remote := failure(t, client.Call(t.Context(), Name, "getBlockLocations", bad, &r)); remote.Class != hdfs.IllegalArgument {
			t.Errorf("negative range: %v", remote)
		}
	}
	// A file in a listing with locations carries them even when it is empty, a directory never.
	var l pb.GetListingResponseProto
	if err := client.Call(t.Context(), Name, "getListing", &pb.GetListingRequestProto{Src: ptr("/"), StartAfter: []byte{}, NeedLocation: ptr(true)}, &l); err != nil {
		t.Fatal(err)
	}
	e := l.DirList.PartialListing
	if len(e) != 2 || e[0].Locations != nil || e[1].Locations == nil || string(e[1].Path) != "f" || l.DirList.GetRemainingEntries() != 9 {
		t.Errorf("listing: %v", l.DirList)
	}
}

func TestBadRequestsAreRefusedByName(t *testing.T) {
	s := &scripted{stat: &metadata.FileStatus{Type: metadata.TypeFile}}
	_, client := serve(t, s)
	create := func(change func(*pb.CreateRequestProto)) error {
		r := &pb.CreateRequestProto{
			Src: ptr("/f"), Masked: &pb.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: ptr("c"), CreateFlag: ptr(uint32(1 | 2 | 1<<20)),
			CreateParent: ptr(true), Replication: ptr(uint32(1)), BlockSize: ptr(uint64(1 << 20)),
		}
		change(r)
		return client.Call(t.Context(), Name, "create", r, new(pb.CreateResponseProto))
	}
	if err := create(func(*pb.CreateRequestProto) {}); err != nil || !s.created.Create || !s.created.Overwrite || len(s.created.Retry.ClientID) != 16 {
		t.Errorf("unknown flags are ignored: %+v, %v", s.created, err)
	}
	for name, change := range map[string]func(*pb.CreateRequestProto){
		"no client":     func(r *pb.CreateRequestProto) { r.ClientName = ptr("") },
		"long client":   func(r *pb.CreateRequestProto) { r.ClientName = ptr(strings.Repeat("x", 2000)) },
		"both policies": func(r *pb.CreateRequestProto) { r.EcPolicyName = ptr("RS"); r.CreateFlag = ptr(uint32(1 | 128)) },
	} {
		if remote := failure(t, create(change)); remote.Class != hdfs.IllegalArgument {
			t.Errorf("%s: %v", name, remote)
		}
	}
	for want, change := range map[string]func(*pb.CreateRequestProto){
		"":                         func(*pb.CreateRequestProto) {},
		"XOR-2-1-1024k":            func(r *pb.CreateRequestProto) { r.EcPolicyName = ptr("XOR-2-1-1024k") },
		namenode.ReplicationPolicy: func(r *pb.CreateRequestProto) { r.CreateFlag = ptr(uint32(1 | 128)) },
	} {
		if err := create(change); err != nil || s.created.Policy != want {
			t.Errorf("policy %q, want %q; %v", s.created.Policy, want, err)
		}
	}
	block := func(pool string, id uint64) *pb.ExtendedBlockProto {
		return &pb.ExtendedBlockProto{PoolId: &pool, BlockId: &id, GenerationStamp: ptr(uint64(1))}
	}
	bump := func(b *pb.ExtendedBlockProto) error {
		return client.Call(t.Context(), Name, "updateBlockForPipeline", &pb.UpdateBlockForPipelineRequestProto{Block: b, ClientName: ptr("c")}, new(pb.UpdateBlockForPipelineResponseProto))
	}
	if remote := failure(t, bump(block("BP-other", 1))); remote.Class != hdfs.IOException || !strings.Contains(remote.Message, "BP-other") || !strings.Contains(remote.Message, "BP-1") {
		t.Errorf("block of another pool: %v", remote)
	}
	if remote := failure(t, bump(block("BP-1", 0))); remote.Class != hdfs.IllegalArgument {
		t.Errorf("no block: %v", remote)
	}
}

// Every method that changes something, and every question that HDFS's audit log has a name for, has one. The others say why not.
func TestMethodsHaveNamesInTheAuditLog(t *testing.T) {
	const (
		writing   = "serves a file that is open"
		asks      = "tells of the cluster, of nobody's files"
		different = "is recorded elsewhere"
	)
	without := map[string]string{
		"addBlock": writing, "complete": writing, "updateBlockForPipeline": writing, "updatePipeline": writing, "abandonBlock": writing,
		"getAdditionalDatanode": writing, "renewLease": writing, "fsync": writing, "beginRewrite": writing,
		"getServerDefaults": asks, "getFsStats": asks, "getDatanodeReport": asks, "getDatanodeStorageReport": asks, "getFsReplicatedBlockStats": asks,
		"getFsECBlockGroupStats": asks, "getStoragePolicies": asks, "getLinkTarget": asks, "getEZForPath": asks, "getEnclosingRoot": asks,
		"getSlowDatanodeReport": asks, "getHAServiceState": asks, "msync": asks, "getDataEncryptionKey": asks, "listEncryptionZones": asks,
		"listReencryptionStatus": asks, "upgradeStatus": asks, "getCurrentEditLogTxid": asks, "searchStatus": asks,
		"getEditsFromTxid": different, "getEvents": different, "search": different, "balance": different, "tier": different,
	}
	p := &protocol{}
	for _, m := range append(p.methods(), p.operatorMethods()...) {
		m = withAudit(m)
		_, unnamed := without[m.Name]
		if _, refuses := m.New().(discard); !refuses && (m.Command == "") != unnamed {
			t.Errorf("%s: %q in the audit log", m.Name, m.Command)
		}
		delete(without, m.Name)
	}
	for name := range without {
		t.Errorf("there is no method %s", name)
	}
}

// A call that panics after its handler has returned is answered with an error, too, and the connection goes on.
func TestAPanicOfALaterGoroutineIsAnswered(t *testing.T) {
	_, client := serve(t, &scripted{stat: &metadata.FileStatus{}}) // without FilesWithData
	err := client.Call(t.Context(), OperatorName, "openManyWithData", &pb.OpenManyWithDataRequestProto{Paths: []string{"/f"}}, new(pb.OpenManyWithDataResponseProto))
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); !ok || !strings.Contains(remote.Message, "internal error in openManyWithData") {
		t.Errorf("it is answered %v", err)
	}
	if err := client.Call(t.Context(), Name, "getFileInfo", &pb.GetFileInfoRequestProto{Src: new("/f")}, new(pb.GetFileInfoResponseProto)); err != nil {
		t.Error(err)
	}
}
