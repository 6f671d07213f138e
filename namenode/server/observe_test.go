package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// aligned speaks Hadoop IPC as Java clients do whose proxy provider is ObserverReadProxyProvider: it says what it has seen.
type aligned struct {
	t        *testing.T
	protocol string // empty: ClientProtocol
	seen     int64
	id       int32
	// staleness, in milliseconds: it speaks as hops' own clients that limit it.
	staleness uint64
}

// call returns the class of the exception that the call ended in, empty for none.
func (a *aligned) call(m *member, method string, request, response proto.Message) string {
	a.t.Helper()
	conn, err := net.Dial("tcp", m.ipc)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	frame := func(messages ...proto.Message) {
		var b strings.Builder
		for _, m := range messages {
			if _, err := protodelim.MarshalTo(&b, m); err != nil {
				a.t.Fatal(err)
			}
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(b.Len())), b.String()...)); err != nil {
			a.t.Fatal(err)
		}
	}
	header := func(id int32) *hadoop.RpcRequestHeaderProto {
		h := &hadoop.RpcRequestHeaderProto{
			RpcKind: hadoop.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(), RpcOp: hadoop.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(),
			CallId: &id, ClientId: []byte("0123456789abcdef"), StateId: &a.seen,
		}
		if a.staleness > 0 {
			h.StateId, h.SeenStateId, h.MaxStaleness = nil, &a.seen, &a.staleness
		}
		return h
	}
	if _, err := conn.Write([]byte("hrpc\x09\x00\x00")); err != nil {
		a.t.Fatal(err)
	}
	user, protocol := m.config.Door.Daemon(), cmp.Or(a.protocol, clientprotocol.Name)
	frame(header(-3), &hadoop.IpcConnectionContextProto{UserInfo: &hadoop.UserInformationProto{EffectiveUser: &user}, Protocol: &protocol})
	a.id++
	frame(header(a.id), &hadoop.RequestHeaderProto{MethodName: &method, DeclaringClassProtocolName: &protocol, ClientProtocolVersion: ptr(uint64(1))}, request)
	r := bufio.NewReader(conn)
	if _, err := io.CopyN(io.Discard, r, 4); err != nil {
		a.t.Fatal(err)
	}
	answer := new(hadoop.RpcResponseHeaderProto)
	if err := protodelim.UnmarshalFrom(r, answer); err != nil {
		a.t.Fatal(err)
	}
	if answer.StateId == nil {
		a.t.Fatalf("%s: the answer does not say what the namenode has seen", method)
	}
	a.seen = max(a.seen, answer.GetStateId())
	if answer.GetStatus() != hadoop.RpcResponseHeaderProto_SUCCESS {
		return answer.GetExceptionClassName()
	}
	if err := protodelim.UnmarshalFrom(r, response); err != nil {
		a.t.Fatal(err)
	}
	return ""
}

// Namenodes that do not lead answer reads of clients that say what they have seen, when they have seen as much.
func TestObserverReads(t *testing.T) {
	t.Parallel()
	const standby, retriable = "org.apache.hadoop.ipc.StandbyException", "org.apache.hadoop.ipc.RetriableException"
	c := newCluster(t, 3, nil)
	lead := c.leader()
	var other *member
	for _, m := range c.nodes {
		if m.Server != lead.Server {
			other = m
		}
	}
	a := &aligned{t: t, seen: math.MinInt64}
	if class := a.call(lead, "msync", &hadoop.MsyncRequestProto{}, &hadoop.MsyncResponseProto{}); class != "" || a.seen <= 0 {
		t.Fatalf("msync: %q, and the state is %d", class, a.seen)
	}
	eventually(t, "the other namenode observes", func() bool {
		state := new(hadoop.GetHAServiceStateResponseProto)
		a.call(other, "getHAServiceState", &hadoop.GetHAServiceStateRequestProto{}, state)
		return state.GetState() == hadoop.HAServiceStateProto_OBSERVER
	})
	for i := range 20 {
		path := "/d" + strings.Repeat("x", i)
		class := a.call(lead, "mkdirs", &hadoop.MkdirsRequestProto{Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &hadoop.MkdirsResponseProto{})
		if class != "" {
			t.Fatal(class)
		}
		eventually(t, "the other namenode answers", func() bool {
			found := new(hadoop.GetFileInfoResponseProto)
			switch class := a.call(other, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, found); {
			case class == standby || class == retriable: // a busy machine
				return false
			case class != "":
				t.Fatal(class)
			case found.GetFs() == nil:
				t.Fatalf("%s, which the client has made, is not there", path)
			}
			return true
		})
	}
	path := "/w"
	if class := a.call(other, "mkdirs", &hadoop.MkdirsRequestProto{Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &hadoop.MkdirsResponseProto{}); class != standby {
		t.Fatalf("a change of one that does not lead: %q", class)
	}
	if err := other.rpc(t).Call(t.Context(), clientprotocol.Name, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, new(hadoop.GetFileInfoResponseProto)); !errors.Is(err, metadata.ErrStandby) && !strings.Contains(err.Error(), "StandbyException") {
		t.Fatalf("a client that does not say what it has seen: %v", err)
	}
	far := &aligned{t: t, seen: math.MaxInt64}
	class := standby // while it applies what it has heard of it observes nothing
	eventually(t, "a client that has seen what is not there is answered", func() bool {
		class = far.call(other, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, new(hadoop.GetFileInfoResponseProto))
		return class != standby
	})
	if class != retriable {
		t.Fatalf("a client that has seen what is not there: %q", class)
	}
}

// Namenodes that do not lead answer reads whose callers say how old the answer may be, and show what these have seen.
func TestReadsOfLimitedStaleness(t *testing.T) {
	t.Parallel()
	const standby, retriable = "org.apache.hadoop.ipc.StandbyException", "org.apache.hadoop.ipc.RetriableException"
	c := newCluster(t, 3, nil)
	lead := c.leader()
	var other *member
	for _, m := range c.nodes {
		if m.Server != lead.Server {
			other = m
		}
	}
	a := &aligned{t: t, seen: math.MinInt64, staleness: 5000}
	for i := range 20 {
		path := "/d" + strings.Repeat("x", i)
		class := a.call(lead, "mkdirs", &hadoop.MkdirsRequestProto{Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &hadoop.MkdirsResponseProto{})
		if class != "" {
			t.Fatal(class)
		}
		eventually(t, "the other namenode answers", func() bool {
			found := new(hadoop.GetFileInfoResponseProto)
			switch class := a.call(other, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, found); {
			case class == standby || class == retriable: // a busy machine
				return false
			case class != "":
				t.Fatal(class)
			case found.GetFs() == nil:
				t.Fatalf("%s, which the client has made, is not there", path)
			}
			return true
		})
	}
	path := "/w"
	if class := a.call(other, "mkdirs", &hadoop.MkdirsRequestProto{Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &hadoop.MkdirsResponseProto{}); class != standby {
		t.Fatalf("a change of one that does not lead: %q", class)
	}
	far := &aligned{t: t, seen: math.MaxInt64, staleness: 5000}
	if class := far.call(other, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, new(hadoop.GetFileInfoResponseProto)); class != retriable && class != standby {
		t.Fatalf("a client that has seen what is not there: %q", class)
	}
}

// traffic counts what is sent to each address.
type traffic struct {
	mu   sync.Mutex
	sent map[string]int
}

func (f *traffic) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &counted{conn, f, addr}, nil
}

func (f *traffic) to(addr string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[addr]
}

type counted struct {
	net.Conn
	traffic *traffic
	addr    string
}

func (c *counted) Write(b []byte) (int, error) {
	c.traffic.mu.Lock()
	c.traffic.sent[c.addr]++
	c.traffic.mu.Unlock()
	return c.Conn.Write(b)
}

// A client whose reads any namenode answers sees what it has done itself, whichever leads or is gone, and reads from those that do not lead.
func TestClientsReadAnywhere(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]dfs.Config{
		"limited":       {MaxStaleness: 5 * time.Second},
		"as observers":  {Reads: dfs.ReadAnywhere},
		"always synced": {Reads: dfs.ReadAnywhere, AutoMsync: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, nil)
			f := &traffic{sent: map[string]int{}}
			config := reads
			config.User, config.Logger, config.Dial = c.nodes[0].config.Door.Daemon(), slog.New(slog.DiscardHandler), f.dial
			for _, m := range c.nodes {
				config.Namenodes = append(config.Namenodes, m.ipc)
			}
			client, err := dfs.New(config)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			root := c.root()
			made := 0
			makes := func(n int) {
				for range n {
					path := fmt.Sprintf("/d%d", made)
					made++
					if err := client.Mkdirs(t.Context(), path, 0o755, true); err != nil {
						t.Fatal(err)
					}
					if _, err := client.Stat(t.Context(), path); err != nil {
						t.Fatalf("what the client has made: %v", err)
					}
					if page, err := client.ListPage(t.Context(), "/", ""); err != nil || len(page.Entries) < made {
						t.Fatalf("%d entries of %d, %v", len(page.Entries), made, err)
					}
				}
			}
			lead := c.leader()
			elsewhere := func() (n int) {
				for _, m := range c.nodes {
					if m.ipc != lead.ipc {
						n += f.to(m.ipc)
					}
				}
				return n
			}
			before := elsewhere()
			eventually(t, "reads go to namenodes that do not lead", func() bool { makes(1); return elsewhere() > before+20 })
			if reads.AutoMsync < 0 {
				for i := range 5 {
					path := fmt.Sprintf("/by-another%d", i)
					if err := root.Mkdirs(t.Context(), path, 0o755, true); err != nil {
						t.Fatal(err)
					}
					if _, err := client.Stat(t.Context(), path); err != nil {
						t.Fatalf("what another client has made: %v", err)
					}
				}
			}
			if err := root.TransferLeadership(t.Context(), ""); err != nil {
				t.Log(err)
			}
			makes(10)
			for i, m := range c.nodes {
				if m.Server != c.leader().Server {
					m.stop()
					c.nodes[i] = nil
					break
				}
			}
			makes(10)
		})
	}
}

// Who does not lead sends a client that wants to know places to the one that does, when it knows none: also for a listing.
func TestObserversKnowPlacesOrSaySo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	d := c.datanode("d1")
	lead := c.leader()
	w := lead.begin(t, "/dir/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	var other *member
	for _, m := range c.nodes {
		if m.Server != lead.Server {
			other = m
		}
	}
	caller := other.caller()
	caller.Local = true
	list := func() error {
		got := make(chan error, 1)
		other.List(caller, namenode.ListRequest{Path: "/dir", Locations: true}, func(l *namenode.Listing, err error) {
			if err == nil && (len(l.Files) != 1 || len(l.Files[0].Blocks) != 1 || len(l.Files[0].Blocks[0].Locations) != 1) {
				t.Errorf("%+v", l)
			}
			got <- err
		})
		return <-got
	}
	eventually(t, "the other namenode has the file's block", func() bool {
		f, err := other.ns.Blocks(caller, "/dir/f", 0, 1)
		return err == nil && len(f.Blocks) == 1
	})
	eventually(t, "the only datanode is dead, and the listing says so", func() bool {
		d.die() // again, should a message of its life have come late
		return errors.Is(list(), namenode.ErrRetryOnActive)
	})
}
