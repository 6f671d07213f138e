package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// TokenOffer is how the bearer of a delegation token proves it: SASL's TOKEN, with the qualities of protection that are offered.
func TokenOffer(service namenode.Tokens, qualities []sasl.Quality) hrpc.Offer {
	return hrpc.Offer{
		Method: sasl.Token, Mechanism: sasl.DigestMD5, Protocol: hrpc.TokenService, ServerID: hrpc.TokenServer, First: true,
		New: func(*security.Peer) (sasl.Mechanism, error) {
			return sasl.NewAcceptor(sasl.AcceptorConfig{
				Service: hrpc.TokenService, Server: hrpc.TokenServer, Qualities: qualities,
				Lookup: func(name string) (string, sasl.Identity, error) {
					identifier, err := sasl.DecodeName(name)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					password, id, err := service.TokenPassword(identifier)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					return sasl.EncodePassword(password), sasl.Identity{Name: id.Owner, RealUser: id.RealUser, Method: sasl.Token}, nil
				},
			}), nil
		},
	}
}

// proved refuses what nobody may do who is known by a token, or not at all: a token would be good for ever, and make a name that is
// only claimed one that is proved.
func proved(c *hrpc.Call, what string) error {
	if c.Authentication == sasl.Token || c.Proof != security.Proved {
		return metadata.Errorf(metadata.ErrIO, "Delegation Token can be %s only with kerberos or web authentication", what)
	}
	return nil
}

func (p *protocol) getDelegationToken(c *hrpc.Call, r *pb.GetDelegationTokenRequestProto) {
	if err := proved(c, "issued"); err != nil {
		c.Fail(err)
		return
	}
	p.service.IssueToken(c.Caller, r.GetRenewer(), result(c, func(t security.Token) hrpc.Message {
		return &pb.GetDelegationTokenResponseProto{Token: &pb.TokenProto{
			Identifier: t.Identifier, Password: t.Password, Kind: ptr(token.Kind), Service: new(""),
		}}
	}))
}

func (p *protocol) renewDelegationToken(c *hrpc.Call, r *pb.RenewDelegationTokenRequestProto) {
	if err := proved(c, "renewed"); err != nil {
		c.Fail(err)
		return
	}
	p.service.RenewToken(c.Caller, tokenIn(r.GetToken()), result(c, func(t metadata.Time) hrpc.Message {
		return &pb.RenewDelegationTokenResponseProto{NewExpiryTime: ptr(uint64(t))}
	}))
}

func (p *protocol) cancelDelegationToken(c *hrpc.Call, r *pb.CancelDelegationTokenRequestProto) {
	p.service.CancelToken(c.Caller, tokenIn(r.GetToken()), done(c))
}

func tokenIn(t *pb.TokenProto) security.Token {
	return security.Token{Identifier: t.GetIdentifier(), Password: t.GetPassword()}
}

// getDataEncryptionKey answers without a key where blocks move as they are.
func (p *protocol) getDataEncryptionKey(c *hrpc.Call, _ *pb.GetDataEncryptionKeyRequestProto) {
	if !p.service.Defaults().EncryptTransfer {
		c.Reply(&pb.GetDataEncryptionKeyResponseProto{})
		return
	}
	k, err := p.service.EncryptionKey()
	if err != nil {
		c.Fail(err)
		return
	}
	c.Reply(&pb.GetDataEncryptionKeyResponseProto{DataEncryptionKey: &pb.DataEncryptionKeyProto{
		KeyId: ptr(uint32(k.ID)), BlockPoolId: p.blockPool(), Nonce: k.Nonce, EncryptionKey: k.Key, ExpiryDate: ptr(uint64(k.Expires)), EncryptionAlgorithm: ptr("rc4"),
	}})
}
