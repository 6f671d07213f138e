// Package raftstore replicates state machines. A Host carries any number of Raft groups on one listener; a Group is this
// process's member of one of them: it proposes commands in batches, serves linearizable reads, keeps log and snapshots,
// and stops the process rather than trust a disk that failed.
//
//	host, err := raftstore.NewHost(raftstore.HostConfig{ID: "nn1", Listener: l, Dir: dir, Credentials: credentials, Role: authority.Namenode, Door: door})
//	go host.Run(ctx)
//	group, err := host.Open(raftstore.GroupConfig{Name: "namespace", Members: members, Bootstrap: first}, machine)
//	result, err := group.Propose(ctx, command)
//
// Errors that callers tell apart: *NotLeader (errors.Is metadata.ErrStandby: nothing happened, ask the leader),
// ErrUnknown (the command may or may not take effect), metadata.ErrNoSpace, metadata.ErrRetriable (too much queued) and,
// at Open, metadata.ErrCorrupt (this member must be reinstalled from its peers).
//
// Lock order: Host.mu; Group.watchMu; batcher.mu, reader.mu and the snapshot store's mutex are leaves. No lock is held
// while a state machine or a callback runs, except watchMu during callbacks of Watch.
package raftstore
