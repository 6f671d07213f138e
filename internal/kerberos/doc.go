// Package kerberos proves who somebody is by Kerberos 5 (RFC 4120), at both ends of a connection.
//
// An Acceptor has the keys of services, from a keytab, and takes the tickets that clients show: within SASL's GSSAPI mechanism
// (RFC 4752) on Hadoop IPC, and within SPNEGO on HTTP (RFC 4559). Both carry tokens of the Kerberos mechanism of GSS-API (RFC
// 4121), which protects the messages that follow when integrity or confidentiality was agreed. An acceptor never talks to a KDC.
// An Initiator is the client's side: it has the tickets of kinit, or makes them from a keytab.
//
// Rules make the short name of a principal (hadoop.security.auth_to_local).
//
// Only AES is spoken (RFC 3962, RFC 8009): encryption types of DES, 3DES and RC4 are refused by their name.
//
// What a peer can send is parsed and decrypted by this package alone; it has no loops over announced lengths, and no message is
// longer than MaxToken. The library under the Initiator sees what the KDC and the user's own files say.
package kerberos
