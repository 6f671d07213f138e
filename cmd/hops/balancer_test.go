package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// markNamenode is as much of a namenode as the mark of a balancer needs. It tells the calls that say whose the mark is.
type markNamenode struct {
	addr string

	mu     sync.Mutex
	calls  []string
	inode  uint64 // of the mark; 0: there is none
	last   uint64
	holder string // who writes it
	silent bool   // for longer than others have patience
}

func (n *markNamenode) file() *hadooppb.HdfsFileStatusProto {
	return &hadooppb.HdfsFileStatusProto{
		FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte{}, Length: new(uint64(0)), Permission: &hadooppb.FsPermissionProto{Perm: new(uint32(0o644))},
		Owner: new("hops"), Group: new("hops"), ModificationTime: new(uint64(1)), AccessTime: new(uint64(1)), FileId: new(n.inode), BlockReplication: new(uint32(3)), Blocksize: new(uint64(1 << 20)),
	}
}

func startMarkNamenode(t *testing.T) *markNamenode {
	t.Helper()
	const protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
	n := &markNamenode{last: 20000}
	s := hrpc.NewServer(hrpc.ServerConfig{Door: security.NewDoor(security.Config{}), Logger: slog.New(slog.DiscardHandler)})
	handle := func(name string, request func() hrpc.Message, do func(hrpc.Message) (hrpc.Message, error)) {
		s.Handle(protocol, hrpc.Method{Name: name, Right: security.ByPath, New: request, Handle: func(c *hrpc.Call) {
			n.mu.Lock()
			n.calls = append(n.calls, name)
			answer, err := do(c.Request)
			n.mu.Unlock()
			if err != nil {
				c.Fail(err)
				return
			}
			c.Reply(answer)
		}})
	}
	always := func(m hrpc.Message) func(hrpc.Message) (hrpc.Message, error) {
		return func(hrpc.Message) (hrpc.Message, error) { return m, nil }
	}
	yes := true
	handle("mkdirs", func() hrpc.Message { return new(hadooppb.MkdirsRequestProto) }, always(&hadooppb.MkdirsResponseProto{Result: &yes}))
	handle("complete", func() hrpc.Message { return new(hadooppb.CompleteRequestProto) }, always(&hadooppb.CompleteResponseProto{Result: &yes}))
	handle("recoverLease", func() hrpc.Message { return new(hadooppb.RecoverLeaseRequestProto) }, always(&hadooppb.RecoverLeaseResponseProto{Result: &yes}))
	handle("renewLease", func() hrpc.Message { return new(hadooppb.RenewLeaseRequestProto) }, always(&hadooppb.RenewLeaseResponseProto{}))
	handle("delete", func() hrpc.Message { return new(hadooppb.DeleteRequestProto) }, func(m hrpc.Message) (hrpc.Message, error) {
		src := m.(*hadooppb.DeleteRequestProto).GetSrc()
		switch {
		case src == fmt.Sprintf("/.reserved/.inodes/%d", n.inode), src == balancerFile && n.inode != 0:
			n.inode = 0
		case src != balancerFile:
			return nil, &hrpc.RemoteError{Class: "java.io.FileNotFoundException", Message: "File for given inode path does not exist: " + src}
		default:
			return &hadooppb.DeleteResponseProto{Result: new(bool)}, nil
		}
		return &hadooppb.DeleteResponseProto{Result: &yes}, nil
	})
	handle("create", func() hrpc.Message { return new(hadooppb.CreateRequestProto) }, func(m hrpc.Message) (hrpc.Message, error) {
		if n.inode != 0 {
			return nil, &hrpc.RemoteError{Class: "org.apache.hadoop.fs.FileAlreadyExistsException", Message: "it is there"}
		}
		n.last++
		n.inode, n.holder, n.silent = n.last, m.(*hadooppb.CreateRequestProto).GetClientName(), false
		return &hadooppb.CreateResponseProto{Fs: n.file()}, nil
	})
	handle("append", func() hrpc.Message { return new(hadooppb.AppendRequestProto) }, func(m hrpc.Message) (hrpc.Message, error) {
		if !n.silent {
			return nil, &hrpc.RemoteError{Class: "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", Message: n.holder + " writes it"}
		}
		n.holder, n.silent = m.(*hadooppb.AppendRequestProto).GetClientName(), false
		return &hadooppb.AppendResponseProto{Stat: n.file()}, nil
	})
	handle("getServerDefaults", func() hrpc.Message { return new(hadooppb.GetServerDefaultsRequestProto) }, always(&hadooppb.GetServerDefaultsResponseProto{ServerDefaults: &hadooppb.FsServerDefaultsProto{
		BlockSize: new(uint64(1 << 20)), BytesPerChecksum: new(uint32(512)), WritePacketSize: new(uint32(65536)), Replication: new(uint32(3)),
		FileBufferSize: new(uint32(4096)), ChecksumType: hadooppb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
	}}))
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

// A balancer that stood still for longer than others have patience, and goes on, leaves alone the mark of the one that took its place, and so does one that took it over and was overtaken.
func TestNobodyDeletesTheMarkOfItsSuccessor(t *testing.T) {
	n := startMarkNamenode(t)
	mark := func() (free func(), _ error) {
		fs, err := dfs.New(dfs.Config{Namenodes: []string{n.addr}, User: "hops", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { fs.Close() })
		return (&hadoopTool{ctx: t.Context()}).onlyOne(fs, balancerFile)
	}
	first, err := mark()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mark(); !errors.Is(err, metadata.ErrBeingCreated) {
		t.Errorf("a second one beside the first: %v", err)
	}
	n.mu.Lock()
	n.silent = true
	n.mu.Unlock()
	second, err := mark()
	if err != nil {
		t.Fatalf("nobody takes the mark over: %v", err)
	}
	first()
	if _, err := mark(); !errors.Is(err, metadata.ErrBeingCreated) {
		t.Errorf("a third one beside the second, whose mark the first has deleted: %v", err)
	}
	second()
	if _, err := mark(); err != nil {
		t.Errorf("after all have ended: %v", err)
	}
}
