package dfs

import (
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// hasten makes a client of a cluster find frozen datanodes in a moment, and hold no other one for silent, however long it
// takes for a word.
func (c *cluster) hasten(client *Client) {
	client.times.stall, client.times.probe = 100*time.Millisecond, limit
	client.mute = func(node *hadooppb.DatanodeInfoProto) (frozen bool) {
		for _, n := range c.nodes {
			if n.uuid == node.GetId().GetDatanodeUuid() {
				n.set(func() { frozen = n.frozen != nil })
			}
		}
		return frozen
	}
}
