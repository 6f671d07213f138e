// Package security decides who is acting and who may connect at all.
//
// On loopback, where everything listens until there is TLS, Hadoop clients send a bare user name. That name is a claim,
// and loopback is no proof of it, so a Door looks up which local user owns the peer's socket: the user of the daemon
// (and root) may claim any name, anybody else only their own. An HTTP request without a name is DrWho, who belongs to no
// group and may change nothing.
//
// A Budget bounds the bytes that peers make a process hold, all together and with a share for each user.
//
// Servers of one cluster recognise each other by a shared Secret, kept in a file of mode 0600.
package security
