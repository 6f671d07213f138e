package dfs

import "time"

// hasten makes a client find silent datanodes in a moment.
func hasten(c *Client) {
	c.times.stall, c.times.probe = 100*time.Millisecond, 500*time.Millisecond
}
