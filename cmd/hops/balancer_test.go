package main

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// markNamenode is as much of a namenode as the mark of a balancer needs. It tells the calls that say whose the mark is.
type markNamenode struct {
	addr string

	mu    sync.Mutex
	calls []string
}

func startMarkNamenode(t *testing.T) *markNamenode {
	t.Helper()
	const protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
	n := &markNamenode{}
	s := hrpc.NewServer(hrpc.ServerConfig{Door: security.NewDoor(security.Config{}), Logger: slog.New(slog.DiscardHandler)})
	handle := func(name string, request func() hrpc.Message, answer hrpc.Message) {
		s.Handle(protocol, hrpc.Method{Name: name, Right: security.ByPath, New: request, Handle: func(c *hrpc.Call) {
			n.mu.Lock()
			n.calls = append(n.calls, name)
			n.mu.Unlock()
			c.Reply(answer)
		}})
	}
	yes := true
	handle("mkdirs", func() hrpc.Message { return new(hadooppb.MkdirsRequestProto) }, &hadooppb.MkdirsResponseProto{Result: &yes})
	handle("delete", func() hrpc.Message { return new(hadooppb.DeleteRequestProto) }, &hadooppb.DeleteResponseProto{Result: &yes})
	handle("complete", func() hrpc.Message { return new(hadooppb.CompleteRequestProto) }, &hadooppb.CompleteResponseProto{Result: &yes})
	handle("recoverLease", func() hrpc.Message { return new(hadooppb.RecoverLeaseRequestProto) }, &hadooppb.RecoverLeaseResponseProto{Result: &yes})
	handle("renewLease", func() hrpc.Message { return new(hadooppb.RenewLeaseRequestProto) }, &hadooppb.RenewLeaseResponseProto{})
	handle("create", func() hrpc.Message { return new(hadooppb.CreateRequestProto) }, &hadooppb.CreateResponseProto{Fs: &hadooppb.HdfsFileStatusProto{
		FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte{}, Length: new(uint64(0)), Permission: &hadooppb.FsPermissionProto{Perm: new(uint32(0o644))},
		Owner: new("hops"), Group: new("hops"), ModificationTime: new(uint64(1)), AccessTime: new(uint64(1)), FileId: new(uint64(20001)), BlockReplication: new(uint32(3)), Blocksize: new(uint64(1 << 20)),
	}})
	handle("getServerDefaults", func() hrpc.Message { return new(hadooppb.GetServerDefaultsRequestProto) }, &hadooppb.GetServerDefaultsResponseProto{ServerDefaults: &hadooppb.FsServerDefaultsProto{
		BlockSize: new(uint64(1 << 20)), BytesPerChecksum: new(uint32(512)), WritePacketSize: new(uint32(65536)), Replication: new(uint32(3)),
		FileBufferSize: new(uint32(4096)), ChecksumType: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

// The mark of a balancer or a mover is deleted while it is its own. Closed before, it would be there for another one to take, whose mark is deleted then; and a third one would
// run beside that.
func TestMarkIsDeletedBeforeItIsAnybodys(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		n := startMarkNamenode(t)
		fs, err := dfs.New(dfs.Config{Namenodes: []string{n.addr}, User: "hops", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer fs.Close()
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		free, err := (&hadoopTool{ctx: ctx}).onlyOne(fs, balancerFile)
		if err != nil {
			t.Fatal(err)
		}
		if interrupted {
			interrupt()
		}
		free()
		n.mu.Lock()
		calls := slices.Clone(n.calls)
		n.mu.Unlock()
		gone := slices.Index(calls, "delete")
		for _, lets := range []string{"complete", "recoverLease"} {
			if at := slices.Index(calls, lets); gone < 0 || at >= 0 && at < gone {
				t.Errorf("interrupted %v: the mark is anybody's before it is deleted: %q", interrupted, calls)
			}
		}
	}
}
