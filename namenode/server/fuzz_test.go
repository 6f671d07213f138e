package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// panics counts the handlers that have panicked, by what the server says about them.
type panics struct {
	slog.Handler
	seen atomic.Pointer[string]
}

func (p *panics) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panicked") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		p.seen.Store(&text)
	}
	return nil
}

func (p *panics) Enabled(context.Context, slog.Level) bool { return true }
func (p *panics) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p *panics) WithGroup(string) slog.Handler            { return p }

// fuzzed starts a namenode that everybody on this machine may be anybody at.
func fuzzed(f *testing.F) (*member, *panics) {
	p := &panics{}
	c := newCluster(f, 1, func(c *Config) {
		c.Logger = slog.New(p)
		c.Requests = security.NewBudget(security.BudgetConfig{Purpose: "requests", Total: 16 << 20})
		c.Answers = security.NewBudget(security.BudgetConfig{Purpose: "answers", Total: 16 << 20})
		c.Door = security.NewDoor(security.Config{
			Owner:  func(security.ConnAddrs) (uint32, error) { return uint32(os.Geteuid()), nil },
			Groups: func(string) []string { return nil },
		})
	})
	if err := c.root().Mkdirs(f.Context(), "/a", 0o777, true); err != nil {
		f.Fatal(err)
	}
	m := c.leader()
	nothingIsHeld(f, m)
	return m, p
}

func nothingIsHeld(t testing.TB, m *member) {
	t.Helper()
	eventually(t, "nothing is held", func() bool { return m.config.Requests.Used() == 0 && m.config.Answers.Used() == 0 })
}

type vtMessage interface{ MarshalVT() ([]byte, error) }

func encoded(t testing.TB, m vtMessage) []byte {
	b, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frame is a frame of messages, each with its length in front.
func frame(messages ...[]byte) []byte {
	b := make([]byte, 4)
	for _, m := range messages {
		b = binary.AppendUvarint(b, uint64(len(m)))
		b = append(b, m...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func rpcHeader(t testing.TB, id int32) []byte {
	return encoded(t, &hadoop.RpcRequestHeaderProto{
		RpcKind: hadoop.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(), RpcOp: hadoop.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(),
		CallId: &id, ClientId: []byte("0123456789abcdef"), RetryCount: new(int32),
	})
}

// answers reads answers until there are n of them or the connection ends.
func answers(t testing.TB, conn net.Conn, n int) (headers []*hadoop.RpcResponseHeaderProto) {
	for range n {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("no answer, and the connection is open; so far: %v", headers)
			}
			return headers
		}
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, body); err != nil {
			t.Fatalf("an answer breaks off: %v", err)
		}
		length, at := binary.Uvarint(body)
		h := new(hadoop.RpcResponseHeaderProto)
		if at <= 0 || length > uint64(len(body)-at) || h.UnmarshalVT(body[at:at+int(length)]) != nil {
			t.Fatalf("answer %x", body)
		}
		headers = append(headers, h)
		if h.GetStatus() == hadoop.RpcResponseHeaderProto_FATAL {
			return headers
		}
	}
	return headers
}

// FuzzIPC speaks to a namenode: some negotiation, some context, a call of any method with any body. It answers the call and
// the next one, or says why the connection ends; no handler panics, and no memory stays charged.
func FuzzIPC(f *testing.F) {
	m, p := fuzzed(f)
	var methods []string
	m.Server.ipc.Methods(func(protocol string, method hrpc.Method) {
		if protocol == clientprotocol.Name {
			methods = append(methods, method.Name)
		}
	})
	slices.Sort(methods)
	add := func(name string, request vtMessage) {
		i := slices.Index(methods, name)
		if i < 0 {
			f.Fatalf("no method %s", name)
		}
		f.Add(false, []byte(nil), []byte(nil), uint8(i), encoded(f, request))
	}
	block := &hadoop.ExtendedBlockProto{PoolId: new(m.BlockPool()), BlockId: new(uint64(1)), GenerationStamp: new(uint64(1000)), NumBytes: new(uint64(5))}
	add("getFileInfo", &hadoop.GetFileInfoRequestProto{Src: new("/a")})
	add("getListing", &hadoop.GetListingRequestProto{Src: new("/"), StartAfter: []byte("a"), NeedLocation: new(true)})
	add("mkdirs", &hadoop.MkdirsRequestProto{Src: new("/a/b"), Masked: &hadoop.FsPermissionProto{Perm: new(uint32(0o755))}, CreateParent: new(true)})
	add("create", &hadoop.CreateRequestProto{
		Src: new("/a/f"), Masked: &hadoop.FsPermissionProto{Perm: new(uint32(0o644))}, ClientName: new("c"), CreateFlag: new(uint32(1)),
		CreateParent: new(true), Replication: new(uint32(1)), BlockSize: new(uint64(1 << 20)),
	})
	add("addBlock", &hadoop.AddBlockRequestProto{Src: new("/a/f"), ClientName: new("c"), Previous: block})
	add("complete", &hadoop.CompleteRequestProto{Src: new("/a/f"), ClientName: new("c"), Last: block})
	add("concat", &hadoop.ConcatRequestProto{Trg: new("/a/f"), Srcs: []string{"/a/g", "/a/h"}})
	add("updatePipeline", &hadoop.UpdatePipelineRequestProto{ClientName: new("c"), OldBlock: block, NewBlock: block})
	add("setAcl", &hadoop.SetAclRequestProto{Src: new("/a"), AclSpec: []*hadoop.AclEntryProto{{
		Type: hadoop.AclEntryProto_USER.Enum(), Scope: hadoop.AclEntryProto_ACCESS.Enum(), Permissions: hadoop.AclEntryProto_READ.Enum(), Name: new("bob"),
	}}})
	add("rename2", &hadoop.Rename2RequestProto{Src: new("/a/b"), Dst: new("/a/c"), OverwriteDest: new(true)})
	f.Add(true, encoded(f, &hadoop.RpcSaslProto{State: hadoop.RpcSaslProto_NEGOTIATE.Enum()}), []byte(nil), uint8(0), []byte{})
	f.Add(false, []byte(nil), encoded(f, &hadoop.IpcConnectionContextProto{
		UserInfo: &hadoop.UserInformationProto{EffectiveUser: new("alice"), RealUser: new("bob")},
	}), uint8(3), []byte{0x0a, 0x01, '/'})

	user := m.config.Door.Daemon()
	who := encoded(f, &hadoop.IpcConnectionContextProto{UserInfo: &hadoop.UserInformationProto{EffectiveUser: &user}})
	good := encoded(f, &hadoop.GetFileInfoRequestProto{Src: new("/a")})
	call := func(t testing.TB, method string) []byte {
		return encoded(t, &hadoop.RequestHeaderProto{
			MethodName: &method, DeclaringClassProtocolName: new(clientprotocol.Name), ClientProtocolVersion: new(uint64(1)),
		})
	}
	f.Fuzz(func(t *testing.T, negotiate bool, sasl, context []byte, method uint8, body []byte) {
		conn, err := net.Dial("tcp", m.ipc)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(limit))
		hello, want := []byte("hrpc\x09\x00\x00"), 2
		send := [][]byte{hello}
		if negotiate {
			hello[6] = 0xdf
			send = append(send, frame(rpcHeader(t, -33), sasl))
			var s hadoop.RpcSaslProto
			if s.UnmarshalVT(sasl) == nil && s.GetState() == hadoop.RpcSaslProto_NEGOTIATE {
				want++
			}
		}
		if len(context) == 0 {
			context = who
		}
		name := methods[int(method)%len(methods)]
		send = append(send, frame(rpcHeader(t, -3), context), frame(rpcHeader(t, 1), call(t, name), body), frame(rpcHeader(t, 2), call(t, "getFileInfo"), good))
		_, _ = conn.Write(bytes.Join(send, nil))
		got := answers(t, conn, want)
		if text := p.seen.Swap(nil); text != nil {
			t.Fatalf("%s: %s", name, *text)
		}
		last := &hadoop.RpcResponseHeaderProto{}
		if len(got) > 0 {
			last = got[len(got)-1]
		}
		switch {
		case last.GetStatus() == hadoop.RpcResponseHeaderProto_FATAL:
			if last.GetExceptionClassName() == "" || last.GetErrorMsg() == "" {
				t.Errorf("the connection ends without a reason: %v", last)
			}
		case len(got) != want:
			t.Errorf("%s: %d answers, %d are due: %v", name, len(got), want, got)
		default:
			for _, h := range got {
				if h.GetCallId() == 2 && h.GetStatus() != hadoop.RpcResponseHeaderProto_SUCCESS {
					t.Errorf("after %s: %v", name, h)
				}
			}
		}
	})
	f.Cleanup(func() { nothingIsHeld(f, m) })
}

// FuzzWebHDFS asks a namenode for anything: any method, path and query. It answers JSON that can be read, an error with a
// class and a message, or where to go.
func FuzzWebHDFS(f *testing.F) {
	m, _ := fuzzed(f)
	recorded, err := os.ReadFile("testdata/webhdfs.txt")
	if err != nil {
		f.Fatal(err)
	}
	seen := map[string]bool{}
	for _, x := range exchanges(f, string(recorded)) {
		target := strings.ReplaceAll(x.target, "$H", "/a")
		if _, query, _ := strings.Cut(target, "?"); !seen[x.method+query] {
			seen[x.method+query] = true
			f.Add(x.method, target)
		}
	}
	for _, target := range []string{
		"/a?op=SETACL&aclspec=user::rwx,group::r-x,other::---,default:user:bob:rw-", "/a/../b/./c//d?op=MKDIRS&permission=1777",
		"/a?op=SETXATTR&xattr.name=user.x&xattr.value=0x00ff&flag=CREATE,REPLACE", "/a?op=GETXATTRS&encoding=hex&xattr.name=user.x",
		"/%00/%ff?op=LISTSTATUS", "/.reserved/.inodes/16385?op=GETFILESTATUS&doas=root",
	} {
		f.Add(http.MethodPut, target)
		f.Add(http.MethodGet, target)
	}
	codes := []int{200, 307, 400, 403, 404}
	f.Fuzz(func(t *testing.T, method, target string) {
		r, err := http.NewRequest(method, "/webhdfs/v1"+target, http.NoBody)
		if err != nil {
			return // nor does a server take it
		}
		r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
		local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}
		w := httptest.NewRecorder()
		m.Server.web.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local)))
		body := w.Body.Bytes()
		switch {
		case !strings.HasPrefix(r.URL.Path, "/webhdfs/v1/") && r.URL.Path != "/webhdfs/v1", w.Code == 405, w.Code == 301:
			return // another page than WebHDFS
		case !slices.Contains(codes, w.Code):
			t.Errorf("%s %q: status %d, %s", method, target, w.Code, body)
		case w.Code == 307:
			if u, err := url.Parse(w.Header().Get("Location")); err != nil || u.Host == "" && u.Path == "" { // a page elsewhere, or this one under its clean name
				t.Errorf("%s %q: Location %q", method, target, w.Header().Get("Location"))
			}
		case w.Header().Get("Content-Type") == "application/json" && !json.Valid(body):
			t.Errorf("%s %q: %q is no JSON", method, target, body)
		case w.Code >= 400:
			var e struct {
				RemoteException struct{ Exception, JavaClassName, Message string }
			}
			if err := json.Unmarshal(body, &e); err != nil || e.RemoteException.JavaClassName == "" || e.RemoteException.Exception == "" {
				t.Errorf("%s %q: status %d with %q", method, target, w.Code, body)
			}
		}
		if used := m.config.Answers.Used(); used != 0 {
			t.Errorf("%s %q: %d bytes are held", method, target, used)
		}
	})
}
