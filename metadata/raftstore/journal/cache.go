package journal

import (
	"bytes"

	"github.com/hashicorp/raft"
)

// entryOverhead is what an entry costs in memory beside its data, in bytes.
const entryOverhead = 128

// cache holds the newest entries of the log without a gap, up to a limit in bytes. raft's own LogCache counts entries,
// and an entry may carry anything from nothing to a full batch.
type cache struct {
	limit int64
	bytes int64
	// entries[i] has index base+i.
	base    uint64
	entries []*raft.Log
}

func (c *cache) get(index uint64) *raft.Log {
	if index < c.base || index-c.base >= uint64(len(c.entries)) {
		return nil
	}
	return c.entries[index-c.base]
}

func (c *cache) append(e *raft.Log) {
	if e.Index != c.base+uint64(len(c.entries)) {
		c.base, c.entries, c.bytes = e.Index, nil, 0
	}
	c.entries = append(c.entries, e)
	c.bytes += int64(len(e.Data)) + entryOverhead
	for c.bytes > c.limit && len(c.entries) > 1 {
		c.bytes -= int64(len(c.entries[0].Data)) + entryOverhead
		c.entries[0] = nil
		c.entries = c.entries[1:]
		c.base++
	}
}

// own copies the entries out of the buffers that they are part of, which are larger.
func (c *cache) own() {
	for _, e := range c.entries {
		e.Data, e.Extensions = bytes.Clone(e.Data), bytes.Clone(e.Extensions)
	}
}

// drop forgets the entries of a range that is deleted from the log's head or tail, and all in front of such a tail that
// would be left with a gap behind them.
func (c *cache) drop(low, high uint64) {
	for len(c.entries) > 0 && c.base <= high && c.base >= low {
		c.bytes -= int64(len(c.entries[0].Data)) + entryOverhead
		c.entries[0] = nil
		c.entries = c.entries[1:]
		c.base++
	}
	for n := len(c.entries); n > 0 && c.base+uint64(n)-1 >= low && c.base+uint64(n)-1 <= high; n = len(c.entries) {
		c.bytes -= int64(len(c.entries[n-1].Data)) + entryOverhead
		c.entries[n-1] = nil
		c.entries = c.entries[:n-1]
	}
}
