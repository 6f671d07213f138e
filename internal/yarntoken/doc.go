// Package yarntoken makes and checks the tokens of YARN's protocols: by an AMRMToken the master of an application is known to
// the resource manager, by an NMToken to a node manager, and a ContainerToken says there what it may start.
//
// Nothing is stored for them. A password is the HMAC-SHA1 of the identifier under a key that is derived from the cluster's secret,
// for one kind of token, one period of time and, for what a node manager checks, one node:
//
//	secret ── kind, key id ──────────► key of AMRMTokens: with resource managers only
//	secret ── kind, key id, node ────► keys of NMTokens and ContainerTokens: with resource managers, and with that node manager
//
// A node manager is given the keys of its own node (NodeKeys) and cannot make a token for another one. Key ids count periods; a token
// of the present period and of the one before it counts, and one of the next, by a resource manager whose clock is ahead.
//
// Identifiers are protobufs (yarnpb), signed as their bytes are. SHA-1 and the length of the passwords are Hadoop's: clients carry
// both without looking inside, but every Hadoop tool that prints tokens expects them.
package yarntoken
