package differ

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Protocol is what both sides are asked in.
const protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// Side is one of the two file systems.
type Side struct {
	Name      string
	Namenodes []string // IPC addresses
	// Superuser of the file system.
	Superuser string

	rpc     map[string]*hrpc.Failover
	clients map[string]*dfs.Client
	// clock holds when each operation of the sequence began, in milliseconds; the end of the last one behind it.
	clock []int64
	// held are the files that are being written.
	held []*dfs.Writer
	// snapshotted: the sequence has made a snapshot, or tried to; moved: and has renamed something since.
	snapshotted, moved bool
}

func (s *Side) name() string { return s.Name }

func (s *Side) user(name string) string {
	if name == "" {
		return s.Superuser
	}
	return name
}

func (s *Side) connection(user string) (*hrpc.Failover, error) {
	user = s.user(user)
	if c := s.rpc[user]; c != nil {
		return c, nil
	}
	c, err := hrpc.NewFailover(hrpc.FailoverConfig{
		DialConfig: hrpc.DialConfig{Protocol: protocol, User: user, CallTimeout: 30 * time.Second}, Addresses: s.Namenodes, Logger: silent,
	})
	if err != nil {
		return nil, err
	}
	if s.rpc == nil {
		s.rpc = map[string]*hrpc.Failover{}
	}
	s.rpc[user] = c
	return c, nil
}

func (s *Side) client(user string) (*dfs.Client, error) {
	user = s.user(user)
	if c := s.clients[user]; c != nil {
		return c, nil
	}
	c, err := dfs.New(dfs.Config{Namenodes: s.Namenodes, User: user, Logger: silent, Replication: 1})
	if err != nil {
		return nil, err
	}
	if s.clients == nil {
		s.clients = map[string]*dfs.Client{}
	}
	s.clients[user] = c
	return c, nil
}

func (s *Side) close() {
	for _, c := range s.rpc {
		c.Close()
	}
	for _, c := range s.clients {
		c.Close()
	}
}

var silent = slog.New(slog.DiscardHandler)

// call asks the namenode as a user.
func (s *Side) call(ctx context.Context, user, method string, request, response hrpc.Message) error {
	c, err := s.connection(user)
	if err != nil {
		return err
	}
	return c.Call(ctx, protocol, method, request, response)
}

// wrote has everything that is under way written: hops sets access times behind the reader's back, but in order.
func (s *Side) wrote(ctx context.Context) {
	root := "/differ"
	_ = s.call(ctx, "", "mkdirs", &pb.MkdirsRequestProto{Src: &root, Masked: &pb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(false)}, new(pb.MkdirsResponseProto))
}

// answer is what an operation did: a result, or an exception's class.
type answer struct {
	result  string
	class   string
	message string
	// broken: the server could not be asked, which is no answer.
	broken error
}

func (a answer) String() string {
	if a.broken != nil {
		return "no answer: " + a.broken.Error()
	}
	if a.class == "" {
		return a.result
	}
	return a.class + ": " + a.message
}

// unsupported: the server says that the operation is not there.
func (a answer) unsupported() bool {
	return strings.HasSuffix(a.class, ".UnsupportedOperationException") || strings.HasSuffix(a.class, ".RpcNoSuchMethodException")
}

// absolute reports whether all paths of an operation are. To others HDFS says whatever it stumbles over first.
func (o Operation) absolute() bool {
	paths := o.list("srcs")
	for _, name := range []string{"src", "dst", "target", "link"} {
		if path, ok := o.Args[name]; ok {
			paths = append(paths, path)
		}
	}
	return !slices.ContainsFunc(paths, func(path string) bool { return !strings.HasPrefix(path, "$R") && !strings.HasPrefix(path, "/") })
}

// accepts compares results and classes; messages only if strict. Where HDFS stumbles over an odd argument, which it tells
// by an exception of the language, any refusal is as good.
func (a answer) accepts(b answer, strict bool) bool {
	if a.broken != nil || b.broken != nil {
		return false
	}
	switch a.class {
	case "java.lang.AssertionError", "java.lang.NullPointerException", "java.lang.ArrayIndexOutOfBoundsException":
		return b.class != ""
	case "java.lang.IllegalArgumentException":
		// Hadoop's own class extends it.
		return b.class == a.class || b.class == "org.apache.hadoop.HadoopIllegalArgumentException"
	}
	return a.result == b.result && a.class == b.class && (!strict || a.message == b.message)
}

// begin makes root, for anybody to write into.
func (s *Side) begin(ctx context.Context, root string) error {
	s.clock, s.snapshotted, s.moved = nil, false, false
	var made pb.MkdirsResponseProto
	if err := s.call(ctx, "", "mkdirs", &pb.MkdirsRequestProto{Src: &root, Masked: &pb.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true)}, &made); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	if err := s.call(ctx, "", "setPermission", &pb.SetPermissionRequestProto{Src: &root, Permission: &pb.FsPermissionProto{Perm: ptr(uint32(0o777))}}, new(pb.SetPermissionResponseProto)); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// end removes root and what else a sequence has left.
func (s *Side) end(ctx context.Context, root string) {
	s.dropSnapshots(ctx, root)
	_, _ = remove(ctx, s, op("delete", "src", root, "recursive", true))
	for _, w := range s.held {
		w.Abort()
	}
	s.held = nil
}

// exists tells whether there is something, to the superuser.
func (s *Side) exists(ctx context.Context, path string) bool { return s.inode(ctx, path) != 0 }

func (s *Side) inode(ctx context.Context, path string) uint64 {
	var answer pb.GetFileInfoResponseProto
	_ = s.call(ctx, "", "getFileInfo", &pb.GetFileInfoRequestProto{Src: &path}, &answer)
	return answer.GetFs().GetFileId()
}

var inodeOf = regexp.MustCompile(`\$ID\(([^()]*)\)`)

// located writes out $R, the root, and $ID(path), the number of an inode: one that does not exist if the path does not.
func (s *Side) located(ctx context.Context, root string, o Operation) Operation {
	args := make(map[string]string, len(o.Args))
	for name, value := range o.Args {
		value = strings.ReplaceAll(value, "$R", root)
		for strings.Contains(value, "$ID(") {
			value = inodeOf.ReplaceAllStringFunc(value, func(match string) string {
				return fmt.Sprint(cmp.Or(s.inode(ctx, inodeOf.FindStringSubmatch(match)[1]), 9876543210))
			})
		}
		args[name] = value
	}
	o.Args = args
	return o
}

// do runs an operation below root. The clock has moved on since the one before.
func (s *Side) do(ctx context.Context, root string, o Operation) answer {
	o = s.located(ctx, root, o)
	now := time.Now().UnixMilli()
	for n := len(s.clock); n > 0 && now <= s.clock[n-1]; now = time.Now().UnixMilli() {
		time.Sleep(200 * time.Microsecond)
	}
	if n := len(s.clock); n > 0 {
		s.clock[n-1] = now // the end of the one before, or the beginning of this one: nothing happens between
	} else {
		time.Sleep(2 * time.Millisecond) // root was made before
		now = time.Now().UnixMilli()
		s.clock = append(s.clock, now)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	result, err := kinds[o.Kind].run(ctx, s, o)
	s.clock = append(s.clock, time.Now().UnixMilli())
	return answerOf(root, result, err)
}

// when names the operation during which a server took a time from its clock; times before and behind the sequence, which
// were set, are exact.
func (s *Side) when(t uint64) string {
	at := int64(t)
	if len(s.clock) == 0 || at < s.clock[0]-1000 || at > s.clock[len(s.clock)-1]+1000 {
		return fmt.Sprint(at)
	}
	for i := len(s.clock) - 2; i >= 0; i-- {
		if at >= s.clock[i] {
			return fmt.Sprintf("#%d", i+1)
		}
	}
	return "#0"
}

var (
	leaseHolder = regexp.MustCompile(`DFSClient_NONMAPREDUCE_-?\d+_\d+`)
	fileID      = regexp.MustCompile(`\b(inode|fileId) \d+`)
	blockName   = regexp.MustCompile(`(BP-[\w.-]+:)?blk_-?\d+(_\d+)?`)
	address     = regexp.MustCompile(`127\.0\.0\.1(:\d+)?`)
	holders     = regexp.MustCompile(`\[Lease\..*`)
)

func answerOf(root, result string, err error) answer {
	var a answer
	switch remote, ok := errors.AsType[*hrpc.RemoteError](err); {
	case err == nil:
		a.result = result
		return a
	case ok:
		a.class, a.message = remote.Class, remote.Text()
	default:
		failed, known := errors.AsType[*dfs.Error](err)
		kind, kinded := errors.AsType[*metadata.Kind](err)
		switch {
		case known && failed.Class != "":
			a.class, a.message = failed.Class, failed.Message
		case kinded:
			a.class, a.message = kind.Error(), err.Error()
		default:
			return answer{broken: err}
		}
	}
	a.message = strings.TrimPrefix(a.message, a.class+": ")
	a.message = strings.ReplaceAll(a.message, root, "$R")
	a.message = leaseHolder.ReplaceAllString(a.message, "<holder>")
	a.message = fileID.ReplaceAllString(a.message, "$1 <id>")
	a.message = blockName.ReplaceAllString(a.message, "<block>")
	a.message = address.ReplaceAllString(a.message, "<host>")
	a.message = holders.ReplaceAllString(a.message, "<lease>")
	return a
}
