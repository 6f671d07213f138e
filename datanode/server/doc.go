// Package server is the datanode as a process: it keeps a block store, serves data transfer, the Hadoop IPC of
// ClientDatanodeProtocol, the HTTP door of WebHDFS and the gRPC that datanodes use among each other, reports to every
// namenode and carries out the orders of the one that leads.
//
//	                     ┌────────────── blockstore ◀──────────────┐
//	clients ──DTP──▶ transfer        │ OnChange                   │ orders: replicate, delete, recover
//	clients ──HTTP─▶ door (client/dfs)▼                            │
//	                            session per namenode ──gRPC──▶ namenodes
//
// Locks: session.mu and clients.mu are leaves; OnChange of the store takes session.mu only.
package server
