// Package security decides who is acting and who may connect at all.
//
// Within a machine Hadoop clients send a bare user name. That name is a claim, and the machine is no proof of it, so a Door
// looks up which local user owns the peer's socket: the user of the daemon (and root) may claim any name, anybody else only
// their own. An HTTP request without a name is DrWho, who belongs to no group and may change nothing.
//
// From elsewhere who connects shows a certificate by TLS, which every port takes beside its own protocol (Enter), or proves
// something in that protocol, or is in a network whose clients are believed (Config.Simple). A Dialer makes such connections.
// Listen and Dialers see to it that connections within a machine are not paced (pacing.go).
//
// Every port is guarded (Door.Guard): the owner of a connection is looked up when it comes, and places go round fairly. A
// Budget bounds the bytes that peers make a process hold, all together and with a share for each user. What was decided about
// a caller is in an Audit log.
//
// Servers of one cluster recognise each other by a shared Secret, kept in a file of mode 0600, and the masters of
// applications are recognised by their container's token: both ends prove what they know before anything else is said, and
// neither shows it (Keyring, Key). From the secret and from seeds that the namenodes hold come the BlockKeys, with which a
// namenode signs what a client may do to a block, and datanodes check it.
package security
