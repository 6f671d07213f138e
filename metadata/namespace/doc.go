// Package namespace is the file-system state machine: directories, files, blocks, leases and the retry cache, changed
// only by replicated commands (metadata/logpb), with HDFS's semantics and messages.
//
// It is deterministic: what a command does depends on the commands before it and on nothing else, neither on a clock
// nor on what happens to be in memory. Members that applied the same log have the same Hash.
//
// A Namespace is a raftstore.StateMachine. Apply, Freeze and Restore are called by one goroutine; a Snapshot's WriteTo
// and all reads run beside it.
//
// The working set is in memory; everything else is loaded from the checkpoint in a kv.Store when it is first needed.
// DESIGN.md explains the request path and the crash argument, FORMAT.md what is on disk.
//
// Locks: checkpointMu before mu. mu guards the state. Readers hold it shared as long as all they need is in memory, and
// start again holding it alone when something has to be loaded.
package namespace
