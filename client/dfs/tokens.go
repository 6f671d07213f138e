package dfs

import (
	"context"
	"time"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// GetDelegationToken gets a token that its bearer may show in place of any other proof of being this user. Renewer may renew it; nobody
// if that is empty. It says no service: whoever keeps it says for which one.
func (c *Client) GetDelegationToken(ctx context.Context, renewer string) (token.Token, error) {
	var answer hadooppb.GetDelegationTokenResponseProto
	err := c.call(ctx, "getDelegationToken", "", "getDelegationToken", &hadooppb.GetDelegationTokenRequestProto{Renewer: &renewer}, &answer)
	if err == nil && answer.Token == nil { // of a namenode of Hadoop's without security
		err = &Error{Op: "getDelegationToken", Kind: metadata.ErrUnsupported, Message: "the namenode gives no delegation tokens: it runs without security"}
	}
	t := answer.GetToken()
	return token.Token{Identifier: t.GetIdentifier(), Password: t.GetPassword(), Kind: t.GetKind()}, err
}

// RenewDelegationToken makes a token good for longer, and says until when. The user has to be its renewer.
func (c *Client) RenewDelegationToken(ctx context.Context, t token.Token) (time.Time, error) {
	var answer hadooppb.RenewDelegationTokenResponseProto
	err := c.call(ctx, "renewDelegationToken", "", "renewDelegationToken", &hadooppb.RenewDelegationTokenRequestProto{Token: tokenProto(t)}, &answer)
	return time.UnixMilli(int64(answer.GetNewExpiryTime())), err
}

// CancelDelegationToken ends a token. The user has to be whom it is for, or its renewer.
func (c *Client) CancelDelegationToken(ctx context.Context, t token.Token) error {
	var answer hadooppb.CancelDelegationTokenResponseProto
	return c.call(ctx, "cancelDelegationToken", "", "cancelDelegationToken", &hadooppb.CancelDelegationTokenRequestProto{Token: tokenProto(t)}, &answer)
}

func tokenProto(t token.Token) *hadooppb.TokenProto {
	return &hadooppb.TokenProto{Identifier: t.Identifier, Password: t.Password, Kind: &t.Kind, Service: &t.Service}
}
