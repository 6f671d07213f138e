package transfer

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Trust is what a datanode knows of whom it may trust. Its methods may ask a namenode before they say no.
type Trust interface {
	// Check lets the bearer of a block token do mode to a block, or says why not, without a secret in it.
	Check(ctx context.Context, t security.Token, pool string, b metadata.BlockID, mode security.BlockMode) error
	// Sign makes a token for a transfer of the datanode's own.
	Sign(pool string, b metadata.BlockID, mode security.BlockMode) security.Token
	// Password is that of the block token with an identifier; EncryptionKey the key of a nonce under a block key, and which that is: 0 is
	// the one that signs.
	Password(ctx context.Context, identifier []byte) ([]byte, error)
	EncryptionKey(ctx context.Context, id int32, nonce []byte) (key []byte, used int32, err error)
	// Datanode says why addr, a host:port, is not where a datanode of this cluster takes transfers; nil: it is.
	Datanode(ctx context.Context, addr string) error
}

// blockOfRequest is what a request is about and what it wants to do there. No mode: it is about no block, and not
// supported. The list is complete: an operation that is missing here is served to nobody.
func blockOfRequest(request dtp.Message) (*hadooppb.BaseHeaderProto, security.BlockMode) {
	switch m := request.(type) {
	case *hadooppb.OpReadBlockProto:
		return m.GetHeader().GetBaseHeader(), security.ReadBlock
	case *hadooppb.OpBlockChecksumProto:
		return m.GetHeader(), security.ReadBlock
	case *hadooppb.OpBlockGroupChecksumProto:
		return m.GetHeader(), security.ReadBlock
	case *hadooppb.OpRequestShortCircuitAccessProto:
		return m.GetHeader(), security.ReadBlock
	case *hadooppb.OpWriteBlockProto:
		return m.GetHeader().GetBaseHeader(), security.WriteBlock
	case *hadooppb.OpTransferBlockProto:
		return m.GetHeader().GetBaseHeader(), security.CopyBlock
	case *hadooppb.OpCopyBlockProto: // it gives the block's bytes
		return m.GetHeader(), security.ReadBlock
	case *hadooppb.OpReplaceBlockProto:
		return m.GetHeader(), security.ReplaceBlock
	}
	return nil, 0
}

// nearOnly are the operations about no block: slots that say whether descriptors are still good.
func nearOnly(request dtp.Message) bool {
	switch request.(type) {
	case *hadooppb.ShortCircuitShmRequestProto, *hadooppb.ReleaseShortCircuitAccessRequestProto:
		return true
	}
	return false
}

// Routes lists the operations. Those on blocks need a token for the block.
func Routes(port string) []security.Route {
	var out []security.Route
	for op := range dtp.Op(math.MaxUint8) {
		request := op.NewRequest()
		if request == nil {
			continue
		}
		if _, mode := blockOfRequest(request); mode != 0 {
			out = append(out, security.Route{Port: port, Name: op.String(), Right: security.BlockToken})
		} else if nearOnly(request) {
			out = append(out, security.Route{Port: port, Name: op.String(), Right: security.ThisMachine})
		}
	}
	return out
}

// Reads is Routes of a server without a Store, which serves reads only.
func Reads(port string) []security.Route {
	return []security.Route{
		{Port: port, Name: dtp.OpReadBlock.String(), Right: security.BlockToken},
		{Port: port, Name: dtp.OpBlockChecksum.String(), Right: security.BlockToken},
	}
}

// authorize lets a request through to its block if the token in it was signed for that. It comes before anything looks at
// the block, so that a refusal does not tell whether there is a replica, or of which generation.
func (s *Server) authorize(ctx context.Context, h *hadooppb.BaseHeaderProto, mode security.BlockMode) error {
	b, t := h.GetBlock(), h.GetToken()
	return s.cfg.Trust.Check(ctx, security.Token{Identifier: t.GetIdentifier(), Password: t.GetPassword()},
		b.GetPoolId(), metadata.BlockID(b.GetBlockId()), mode)
}

// refused tells the audit log of a request without a right to its block. Its token is not believed, so there is no user.
func (c *conn) refused(op dtp.Op, h *hadooppb.BaseHeaderProto, err error) {
	if c.cfg.Refused == nil {
		return
	}
	host, _, _ := net.SplitHostPort(c.nc.RemoteAddr().String())
	c.cfg.Refused(security.Decision{
		Caller: metadata.Caller{Host: host}, Port: "transfer", Command: op.String(), Reason: err.Error(),
		Source: fmt.Sprintf("blk_%d_%d", h.GetBlock().GetBlockId(), h.GetBlock().GetGenerationStamp()),
	})
}

// checkTarget refuses to connect to what is not a datanode of this cluster, whatever a client says.
func (s *Server) checkTarget(ctx context.Context, target *hadooppb.DatanodeInfoProto) error {
	return s.cfg.Trust.Datanode(ctx, dtp.TransferAddr(target.GetId(), s.cfg.UseHostnames))
}

// ownToken is a token for a transfer of this datanode's own.
func (s *Server) ownToken(pool string, b metadata.BlockID) *hadooppb.TokenProto {
	t := s.cfg.Trust.Sign(pool, b, security.WriteBlock)
	return tokenProto(t)
}

// tokenProto is a token as a request carries it; its fields are required, of an empty one too.
func tokenProto(t security.Token) *hadooppb.TokenProto {
	if t.Identifier == nil {
		t = security.Token{Identifier: []byte{}, Password: []byte{}}
	}
	return &hadooppb.TokenProto{Identifier: t.Identifier, Password: t.Password, Kind: new(security.BlockTokenKind), Service: new(string)}
}

const (
	// lingerTime and lingerData limit what is still taken from a sender that was refused.
	lingerTime = time.Second
	lingerData = 2 * maxFollowing
)

// linger takes what a refused sender had sent without waiting for the answer. With unread data the connection would be
// reset, and the answer lost.
func (c *conn) linger() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		c.deadlines(lingerTime, lingerTime)
		_, _ = io.CopyN(io.Discard, c.r, lingerData)
	}
}
