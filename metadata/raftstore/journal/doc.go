// Package journal is the durable part of one member of a Raft group: its log, its term and its vote.
//
// It wraps a Backend, by default hashicorp/raft-wal, which has no checksum that is looked at when an entry is read, loses
// what lies behind a damaged frame without a word, and goes on after a failed fsync. The wrapper adds
//
//   - an envelope around every entry (CRC32C, index, term), checked at every read and for the whole log at Open;
//   - a watermark: how far this member has acknowledged entries. It rides in the envelopes of the next write, so it
//     costs no fsync. Damage below it is corruption and Open refuses; a torn tail above it is a crash and is cut;
//   - term and vote in a file of its own, in one record, written twice and checksummed;
//   - a deadline for every write and no second try after a failed one: both end in Config.Fatal;
//   - a cache of recent entries, limited in bytes.
//
// FORMAT.md has the bytes. Lock order: Journal.writeMu, then Journal.mu.
package journal
