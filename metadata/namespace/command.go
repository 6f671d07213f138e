package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// NewCommand makes a command of caller c for a proposer to complete with an operation. clientID and callID are the
// request's identity for the retry cache, now the proposer's clock.
func NewCommand(c metadata.Caller, clientID []byte, callID int32, now metadata.Time) *logpb.Command {
	return &logpb.Command{
		Caller:   &logpb.Caller{User: c.User, Groups: c.Groups, Superuser: c.Superuser, Host: c.Host},
		ClientId: clientID,
		CallId:   callID,
		Now:      int64(now),
	}
}
