// Package journal is the durable part of one member of a Raft group: its log, its term and its vote.
//
//   - Entries lie in segments: files that were written in full before they are used, and used again when the log has lost its
//     head. An append is one write and one fdatasync, which overwrites and so commits no metadata.
//   - Every entry has an envelope: lengths, CRC32C, index, term, the salt of the segment and the epoch of the state, checked at
//     every read and for the whole log at Open.
//   - A watermark says how far this member has acknowledged entries. It rides in the envelopes of the next append and is written,
//     without fsync, into the file of the state, so it costs no fsync. Damage below it is corruption and Open refuses; a torn
//     tail above it is a crash and is cut.
//   - The state is term, vote, watermark, and where the log was cut last, in one record, written twice and checksummed.
//   - A write has a deadline and no second try: both end in Config.Fatal.
//   - Recent entries are kept in memory, limited in bytes.
//
// FORMAT.md has the bytes. Lock order: Journal.writeMu, pool.mu, Journal.mu; stateFile.mu is the last.
package journal
