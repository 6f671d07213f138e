// Package blockstore keeps replicas of blocks in files, so that bytes once promised survive the end of the process and of
// the power: a datanode.BlockStore on disk. FORMAT.md describes the files and argues why nothing promised is lost.
//
// A volume fails as a whole: the first error of its disk other than a lack of space takes it and its replicas out of the store,
// while the others go on.
//
// # Locks
//
// In this order: replica.io, replica.mu, shard.mu; volume.dirMu and volume.queueMu are leaves. replica.io is held over disk
// writes by whoever changes a replica; a writer, a recovery and a deletion exclude each other by it. replica.mu guards what is
// known of the replica and is held for a moment only, also while its files are opened and renamed. A shard's lock covers the
// map of a 256th of the blocks; there is no lock over the store.
package blockstore
