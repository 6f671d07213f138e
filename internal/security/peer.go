package security

import (
	"net/http"
	"os"
)

// Nobody is the user whose share of a budget connections have whose owner is not known.
const Nobody = ^uint32(0)

// Peer is the local user that owns the far end of a connection.
func (d *Door) Peer(conn ConnAddrs) (uint32, error) { return d.config.Owner(conn) }

// ShareOf is the user whose share of a budget a connection uses: its owner, whatever name it gives, or Nobody.
func (d *Door) ShareOf(conn ConnAddrs) uint32 {
	uid, err := d.Peer(conn)
	if err != nil {
		return Nobody
	}
	return uid
}

// ShareOfRequest is ShareOf for the connection of an HTTP request.
func (d *Door) ShareOfRequest(r *http.Request) uint32 {
	conn, err := addrsOfRequest(r)
	if err != nil {
		return Nobody
	}
	return d.ShareOf(conn)
}

// ownUser reports whether uid is root or the user of this process: what they do, they do for others.
func ownUser(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
