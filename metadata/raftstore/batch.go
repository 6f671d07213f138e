package raftstore

import (
	"encoding/binary"
	"fmt"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
)

// The data of a log entry is a batch of commands: a version byte, their number, and each with its length in front. All
// numbers are varints.
const batchVersion = 1

// maxBatch and maxBatchBytes limit one entry; a single command may be larger. More would fill the time in which the next
// entries wait: at 64 KiB encoding, checksum and fsync of an entry take well under a millisecond.
const (
	maxBatch      = 256
	maxBatchBytes = 64 << 10
)

// MaxCommand is the largest command in bytes.
const MaxCommand = 1 << 20

func encodeBatch(commands []*proposal) []byte {
	size := 1 + binary.MaxVarintLen64
	for _, p := range commands {
		size += len(p.command) + binary.MaxVarintLen32
	}
	out := make([]byte, 0, size)
	out = append(out, batchVersion)
	out = binary.AppendUvarint(out, uint64(len(commands)))
	for _, p := range commands {
		out = binary.AppendUvarint(out, uint64(len(p.command)))
		out = append(out, p.command...)
	}
	return out
}

// decodeBatch returns the commands of an entry; they share its memory.
func decodeBatch(index uint64, data []byte) ([][]byte, error) {
	if len(data) == 0 {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "log entry %d is empty", index)
	}
	if data[0] != batchVersion {
		return nil, fmt.Errorf("log entry %d has version %d, this program reads %d: %w", index, data[0], batchVersion, release.ErrOlder)
	}
	damaged := func() ([][]byte, error) {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "log entry %d is not a batch of commands", index)
	}
	data = data[1:]
	count, n := binary.Uvarint(data)
	if n <= 0 || count > uint64(len(data)) {
		return damaged()
	}
	data = data[n:]
	commands := make([][]byte, count)
	for i := range commands {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return damaged()
		}
		commands[i] = data[n : n+int(size) : n+int(size)]
		data = data[n+int(size):]
	}
	if len(data) != 0 {
		return damaged()
	}
	return commands, nil
}
