package yarntoken

import (
	"bytes"
	"crypto/hmac"
	"time"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// maxIdentifier bounds what is decoded of a token, in bytes.
const maxIdentifier = 16 << 10

// invalid is a refusal in Hadoop's words: SecretManager.InvalidToken.
func invalid(format string, args ...any) error {
	return metadata.Errorf(metadata.ErrToken, format, args...)
}

// Master makes the AMRMToken of an attempt.
func (i *Issuer) Master(now time.Time, attempt rm.AttemptID) token.Token {
	id := KeyID(now)
	identifier, err := (&pb.AMRMTokenIdentifierProto{AppAttemptId: pb.Attempt(attempt), KeyId: &id}).MarshalVT()
	if err != nil {
		panic(err) // all fields are there
	}
	return token.Token{Identifier: identifier, Password: sign(i.key(MasterKind, id, ""), identifier), Kind: MasterKind}
}

// CheckMaster is the password that belongs to the identifier of an AMRMToken, and the attempt that its bearer is. Key tells its period.
// Errors are of kind metadata.ErrToken.
func (i *Issuer) CheckMaster(now time.Time, identifier []byte) (password []byte, attempt rm.AttemptID, key int32, err error) {
	var p pb.AMRMTokenIdentifierProto
	if len(identifier) > maxIdentifier || p.UnmarshalVT(identifier) != nil {
		return nil, attempt, 0, invalid("Can't de-serialize tokenIdentifier")
	}
	attempt, ok := pb.ParseAttempt(p.AppAttemptId)
	if !ok {
		return nil, attempt, 0, invalid("it is no token of an application's master")
	}
	if key = p.GetKeyId(); !current(key, now) {
		return nil, attempt, 0, invalid("Invalid AMRMToken from %v", attempt)
	}
	return sign(i.key(MasterKind, key, ""), identifier), attempt, key, nil
}

// Visit is what an NMToken says: the attempt may ask the node manager about its containers.
type Visit struct {
	Attempt rm.AttemptID
	// Address is host:port of the node manager's ipc.
	Address string
	// User has submitted the application.
	User string
}

// Node makes an NMToken for a node.
func (i *Issuer) Node(now time.Time, node rm.NodeID, v Visit) token.Token {
	id := KeyID(now)
	address, _ := pb.Node(v.Address)
	identifier, err := (&pb.NMTokenIdentifierProto{AppAttemptId: pb.Attempt(v.Attempt), NodeId: address, AppSubmitter: &v.User, KeyId: &id}).MarshalVT()
	if err != nil {
		panic(err) // all fields are there
	}
	return token.Token{Identifier: identifier, Password: sign(i.key(NodeKind, id, node), identifier), Kind: NodeKind, Service: v.Address}
}

// Node is the password that belongs to the identifier of an NMToken, and what it says. Errors are of kind metadata.ErrToken,
// or metadata.ErrRetriable before the node has been given the key.
func (v *Verifier) Node(now time.Time, identifier []byte) (password []byte, who Visit, err error) {
	var p pb.NMTokenIdentifierProto
	if len(identifier) > maxIdentifier || p.UnmarshalVT(identifier) != nil {
		return nil, who, invalid("Can't de-serialize tokenIdentifier")
	}
	attempt, ok := pb.ParseAttempt(p.AppAttemptId)
	if !ok || p.NodeId == nil {
		return nil, who, invalid("it is no token for a node manager")
	}
	k, err := v.find(p.GetKeyId(), now, invalid("Given NMToken for application : %v seems to have been generated illegally.", attempt))
	if err != nil {
		return nil, who, err
	}
	return sign(k.Node, identifier), Visit{attempt, pb.ParseNode(p.NodeId), p.GetAppSubmitter()}, nil
}

// Grant is what a ContainerToken says: this may be started on the node whose manager can check it, until it expires.
type Grant struct {
	Container rm.ContainerID
	// Address is host:port of the node manager's ipc.
	Address string
	// User has submitted the application; the container runs as them.
	User     string
	Resource rm.Resource
	// Expires and Created, in milliseconds since 1970.
	Expires, Created metadata.Time
	Priority         int
	// Master: an application's master is to run in it.
	Master bool
	// Request is the allocation_request_id of what it was granted for.
	Request int64
}

// Container makes a ContainerToken for a node.
func (i *Issuer) Container(now time.Time, node rm.NodeID, g Grant) token.Token {
	id := KeyID(now)
	kind := pb.ContainerTypeProto_TASK
	if g.Master {
		kind = pb.ContainerTypeProto_APPLICATION_MASTER
	}
	identifier, err := (&pb.ContainerTokenIdentifierProto{
		ContainerId: pb.Container(g.Container), NmHostAddr: &g.Address, AppSubmitter: &g.User, Resource: pb.Resource(g.Resource, g.Resource.Names()),
		ExpiryTimeStamp: new(int64(g.Expires)), MasterKeyId: &id, RmIdentifier: new(g.Container.Attempt.Application.Cluster),
		Priority: &pb.PriorityProto{Priority: new(int32(g.Priority))}, CreationTime: new(int64(g.Created)), NodeLabelExpression: new(""),
		ContainerType: &kind, ExecutionType: pb.ExecutionTypeProto_GUARANTEED.Enum(), Version: new(int32), AllocationRequestId: &g.Request,
	}).MarshalVT()
	if err != nil {
		panic(err) // all fields are there
	}
	return token.Token{Identifier: identifier, Password: sign(i.key(ContainerKind, id, node), identifier), Kind: ContainerKind, Service: g.Address}
}

// Container checks a ContainerToken and reads what it says, also when it has expired: then err is ErrExpired. Other errors are as
// those of Node.
func (v *Verifier) Container(now time.Time, t token.Token) (Grant, error) {
	var p pb.ContainerTokenIdentifierProto
	if len(t.Identifier) > maxIdentifier || p.UnmarshalVT(t.Identifier) != nil {
		return Grant{}, invalid("Can't de-serialize tokenIdentifier")
	}
	id, ok := pb.ParseContainer(p.ContainerId)
	if !ok {
		return Grant{}, invalid("it is no token of a container")
	}
	illegal := invalid("Given Container %v seems to have an illegally generated token.", id)
	k, err := v.find(p.GetMasterKeyId(), now, illegal)
	if err != nil {
		return Grant{}, err
	}
	if !hmac.Equal(sign(k.Container, t.Identifier), t.Password) {
		return Grant{}, illegal
	}
	r, err := pb.ParseResource(p.Resource)
	if err != nil {
		return Grant{}, invalid("%v", err)
	}
	g := Grant{
		Container: id, Address: p.GetNmHostAddr(), User: p.GetAppSubmitter(), Resource: r, Expires: metadata.Time(p.GetExpiryTimeStamp()),
		Created: metadata.Time(p.GetCreationTime()), Priority: int(p.GetPriority().GetPriority()),
		Master: p.GetContainerType() == pb.ContainerTypeProto_APPLICATION_MASTER, Request: p.GetAllocationRequestId(),
	}
	if metadata.TimeOf(now) > g.Expires {
		return g, ErrExpired
	}
	return g, nil
}

// ErrExpired: the token is good, but what it allows was to be done before.
var ErrExpired = metadata.Errorf(metadata.ErrToken, "This token is expired.")

// Write writes a token as a message of YARN's.
func Write(t token.Token) *pb.TokenProto {
	return &pb.TokenProto{Identifier: t.Identifier, Password: t.Password, Kind: &t.Kind, Service: &t.Service}
}

// Read reads what Write writes.
func Read(p *pb.TokenProto) token.Token {
	return token.Token{Identifier: bytes.Clone(p.GetIdentifier()), Password: bytes.Clone(p.GetPassword()), Kind: p.GetKind(), Service: p.GetService()}
}
