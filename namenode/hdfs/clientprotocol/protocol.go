// Package clientprotocol serves Hadoop's ClientProtocol and the small protocols beside it over internal/hrpc: it decodes,
// calls a namenode.Service and encodes. It knows Hadoop's messages and nothing of how the service does its work.
//
// The table of methods is complete for Hadoop 3.4. What this namenode has no feature for answers
// UnsupportedOperationException, never silence; a name that Hadoop does not have answers RpcNoSuchMethodException.
package clientprotocol

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The names of the protocols on the wire.
const (
	Name             = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
	HAName           = "org.apache.hadoop.ha.HAServiceProtocol"
	UserMappingsName = "org.apache.hadoop.tools.GetUserMappingsProtocol"
	NamenodeName     = "org.apache.hadoop.hdfs.server.protocol.NamenodeProtocol"
	// OperatorName is hops' own.
	OperatorName = "io.gohops.OperatorProtocol"
)

// maxClientName is the longest name of a lease holder, in bytes. Hadoop's are about 50 long.
const maxClientName = 1024

// protocol is the state of the handlers.
type protocol struct {
	service namenode.Service
	encode  encoder
	pool    atomic.Pointer[string]
	groups  func(user string) []string
}

// Register puts the methods on a server. groups answers GetUserMappingsProtocol.
func Register(s *hrpc.Server, service namenode.Service, groups func(user string) []string) {
	p := &protocol{service: service, groups: groups}
	p.encode.pool = p.blockPool
	for _, m := range p.methods() {
		m.Source = beginsWithPath(m.New())
		s.Handle(Name, p.led(withAudit(m)))
	}
	for _, m := range p.haMethods() {
		s.Handle(HAName, m)
	}
	for _, m := range p.operatorMethods() {
		s.Handle(OperatorName, p.led(m))
	}
	for _, m := range p.namenodeMethods() {
		s.Handle(NamenodeName, p.led(m))
	}
	for _, m := range p.userMappingMethods() {
		s.Handle(UserMappingsName, m)
	}
}

// beginsWithPath tells whether the first field of a request is the path that it is about: it is in all of Hadoop's, where they are about one.
func beginsWithPath(request hrpc.Message) bool {
	m, ok := request.(proto.Message)
	if !ok {
		return false
	}
	f := m.ProtoReflect().Descriptor().Fields().ByNumber(1)
	return f != nil && f.Kind() == protoreflect.StringKind && f.Name() == "src"
}

// blockPool is the id of the block pool, which a new cluster does not have before its first leader.
func (p *protocol) blockPool() *string {
	if pool := p.pool.Load(); pool != nil {
		return pool
	}
	pool := p.service.BlockPool()
	if pool != "" {
		p.pool.Store(&pool)
	}
	return &pool
}

// anywhere are the methods that a namenode answers whether it leads or not.
var anywhere = map[string]bool{
	"getDatanodeReport": true, "getDatanodeStorageReport": true, "setSafeMode": true, "saveNamespace": true,
	"restoreFailedStorage": true, "refreshNodes": true, "finalizeUpgrade": true, "getHAServiceState": true,
	"searchStatus": true, "rebuildSearch": true,
}

// led lets the other methods through only while this namenode leads.
func (p *protocol) led(m hrpc.Method) hrpc.Method {
	if anywhere[m.Name] {
		return m
	}
	handle, batch, observed := m.Handle, m.Batch, observed[m.Name]
	if batch != nil {
		m.Batch = func(b *hrpc.Batch) {
			if p.service.Active() {
				batch(b)
			}
		}
	}
	m.Handle = func(c *hrpc.Call) {
		switch {
		case p.service.Active():
			handle(c)
		case observed && c.Aligned:
			p.service.Await(c.StateID, func(err error) {
				if err != nil {
					c.Fail(err)
					return
				}
				c.Caller.Local = true
				handle(c)
			})
		case observed && c.Staleness > 0:
			p.service.Within(c.Staleness, c.StateID, func(fresh func() bool, err error) {
				if err != nil {
					c.Fail(err)
					return
				}
				c.Caller.Local = true
				c.Doubt = func() error {
					if !fresh() {
						return namenode.ErrStandbyRead
					}
					return nil
				}
				handle(c)
			})
		default:
			c.Fail(namenode.ErrStandbyRead)
		}
	}
	return m
}

// observed are the methods that a namenode that does not lead answers to clients that say what they have seen (HDFS-12943,
// ObserverReadProxyProvider), or how old a state they allow to be read.
var observed = map[string]bool{
	"getServerDefaults": true, "getFileInfo": true, "getListing": true, "getBlockLocations": true, "getContentSummary": true, "checkAccess": true,
	"isFileClosed": true, "getFileLinkInfo": true, "getLocatedFileInfo": true, "getQuotaUsage": true, "getPreferredBlockSize": true,
	"openWithData": true, "openManyWithData": true, "getFileInfos": true,
	"getAclStatus": true, "getXAttrs": true, "listXAttrs": true, "getStoragePolicy": true,
}

// on makes a method of a handler whose request is an *R.
func on[R any, P interface {
	*R
	hrpc.Message
}](name string, right security.Right, handle func(*hrpc.Call, P)) hrpc.Method {
	return hrpc.Method{
		Name: name, Right: right,
		New:    func() hrpc.Message { return P(new(R)) },
		Handle: func(c *hrpc.Call) { handle(c, c.Request.(P)) },
	}
}

// large says of a method that its answers are: what a namenode lists without asking Call.Admit fits into this.
func large(m hrpc.Method) hrpc.Method {
	m.Answer = 48 << 10
	return m
}

// passing says of a method that nothing of its calls is looked at once they are answered.
func passing(m hrpc.Method) hrpc.Method {
	m.Passing = true
	return m
}

// together gives a method what may serve calls that have come together.
func together(m hrpc.Method, batch func(*hrpc.Batch)) hrpc.Method {
	m.Batch = batch
	return m
}

// waits says of a method that its caller says how long to wait.
func waits(m hrpc.Method) hrpc.Method {
	m.Waits = true
	return m
}

// named gives a method the name that HDFS has for it in refusals, which depends on the request.
func named[R any, P interface {
	*R
	hrpc.Message
}](m hrpc.Method, name func(P) string) hrpc.Method {
	m.Operation = func(r hrpc.Message) string { return name(r.(P)) }
	return m
}

// called is named for a name that does not depend on it.
func called(name string, m hrpc.Method) hrpc.Method {
	m.Operation = func(hrpc.Message) string { return name }
	return m
}

// discard is a request that nobody looks at.
type discard struct{}

func (discard) MarshalToSizedBufferVT([]byte) (int, error) { return 0, nil }
func (discard) SizeVT() int                                { return 0 }
func (discard) UnmarshalVT([]byte) error                   { return nil }

// unsupported makes a method that says that a feature does not exist here.
func unsupported(name string, right security.Right, feature string) hrpc.Method {
	message := fmt.Sprintf("%s: %s not supported", name, feature)
	return hrpc.Method{
		Name: name, Right: right,
		New: func() hrpc.Message { return discard{} },
		Handle: func(c *hrpc.Call) {
			c.Fail(metadata.Errorf(metadata.ErrUnsupported, "%s", message))
		},
	}
}

// done answers a call without result.
func done(c *hrpc.Call) func(error) {
	return func(err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(nil)
	}
}

// result answers a call whose response is made of a value.
func result[T any](c *hrpc.Call, encode func(T) hrpc.Message) func(T, error) {
	return func(v T, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(encode(v))
	}
}

func retry(c *hrpc.Call) namenode.Retry {
	if c.CallID < 0 || len(c.ClientID) != 16 {
		return namenode.Retry{}
	}
	return namenode.Retry{ClientID: c.ClientID, CallID: c.CallID}
}

// block decodes a block that a client names; absent is nil. One of another pool belongs to another cluster.
func (p *protocol) block(b *pb.ExtendedBlockProto) (*metadata.Block, error) {
	if b == nil || b.GetBlockId() == 0 {
		return nil, nil
	}
	if pool := *p.blockPool(); b.GetPoolId() != pool {
		return nil, metadata.Errorf(metadata.ErrIO, "Unexpected BlockPoolId %s - expected %s", b.GetPoolId(), pool)
	}
	if int64(b.GetNumBytes()) < 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Unexpected block size: %d", int64(b.GetNumBytes()))
	}
	return &metadata.Block{
		ID: metadata.BlockID(b.GetBlockId()), Generation: metadata.Generation(b.GetGenerationStamp()), Length: int64(b.GetNumBytes()),
	}, nil
}

// must is block for a field that is required.
func (p *protocol) must(b *pb.ExtendedBlockProto) (metadata.Block, error) {
	blk, err := p.block(b)
	if err == nil && blk == nil {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "the request names no block")
	}
	if err != nil {
		return metadata.Block{}, err
	}
	return *blk, nil
}

// client checks the name of a lease holder.
func client(name string) error {
	switch {
	case name == "":
		return metadata.Errorf(metadata.ErrInvalidArgument, "the request names no client")
	case len(name) > maxClientName:
		return metadata.Errorf(metadata.ErrInvalidArgument, "a client name of %d bytes is longer than %d", len(name), maxClientName)
	}
	return nil
}

func mode(p *pb.FsPermissionProto) metadata.Mode { return metadata.Mode(p.GetPerm() & 0o1777) }

// unmasked is a mode before the umask; nil if the client did not say.
func unmasked(p *pb.FsPermissionProto) *metadata.Mode {
	if p == nil {
		return nil
	}
	return ptr(mode(p))
}
