package dfs

import (
	"context"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// PropertyChange is what became of a property when a server read its configuration anew; Error is empty if it was changed.
type PropertyChange struct{ Name, Old, New, Error string }

// Reconfiguration is how far a server is with its configuration. Began is 0 if it never read it anew, Ended if it still does.
type Reconfiguration struct {
	Began, Ended metadata.Time
	Changes      []PropertyChange
}

// Reconfigure has the datanode at an IPC address read its configuration anew. Superusers only.
func (c *Client) Reconfigure(ctx context.Context, addr string) error {
	return c.at(ctx, "reconfigure", addr, clientDatanodeProtocol, "startReconfiguration", new(hadooppb.StartReconfigurationRequestProto), new(hadooppb.StartReconfigurationResponseProto))
}

// Reconfiguration asks the datanode at an IPC address how far that is. Superusers only.
func (c *Client) Reconfiguration(ctx context.Context, addr string) (Reconfiguration, error) {
	var answer hadooppb.GetReconfigurationStatusResponseProto
	err := c.at(ctx, "reconfigure", addr, clientDatanodeProtocol, "getReconfigurationStatus", new(hadooppb.GetReconfigurationStatusRequestProto), &answer)
	r := Reconfiguration{Began: metadata.Time(answer.GetStartTime()), Ended: metadata.Time(answer.GetEndTime())}
	for _, p := range answer.GetChanges() {
		r.Changes = append(r.Changes, PropertyChange{p.GetName(), p.GetOldValue(), p.GetNewValue(), p.GetErrorMessage()})
	}
	return r, err
}

// Reconfigurable are the properties that the datanode at an IPC address can change while it works. Superusers only.
func (c *Client) Reconfigurable(ctx context.Context, addr string) ([]string, error) {
	var answer hadooppb.ListReconfigurablePropertiesResponseProto
	err := c.at(ctx, "reconfigure", addr, clientDatanodeProtocol, "listReconfigurableProperties", new(hadooppb.ListReconfigurablePropertiesRequestProto), &answer)
	return answer.GetName(), err
}
