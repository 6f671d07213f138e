package security

import "os"

// Peer is the local user that owns the far end of a connection.
func (d *Door) Peer(conn ConnAddrs) (uint32, error) { return d.config.Owner(conn) }

// ownUser reports whether uid is root or the user of this process: what they do, they do for others.
func ownUser(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
