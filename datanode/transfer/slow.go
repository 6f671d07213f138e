package transfer

import (
	"time"

	"github.com/gohops/hops/internal/slowlog"
)

// slow is where it is told what takes too long, in the words of HDFS's BlockReceiver and with its threshold
// (dfs.datanode.slow.io.warning.threshold.ms).
type slow struct {
	disk, mirror, flush, ack *slowlog.Operation
}

func newSlow(l *slowlog.Log) slow {
	limit := time.Duration(0)
	if l != nil {
		limit = l.Limits.IO
	}
	return slow{l.Operation("disk_write", limit), l.Operation("mirror_write", limit), l.Operation("flush", limit), l.Operation("ack_write", limit)}
}

// wroteDisk is told when a call that writes packets to the disk began.
func (in *receiver) wroteDisk(began time.Time) {
	if took := time.Since(began); in.slow.disk.Slow(took) {
		in.slow.disk.Tell("Slow BlockReceiver write data to disk cost:%dms (threshold=%dms), volume=%s, blockId=%d", took.Milliseconds(), in.slow.disk.Limit().Milliseconds(), in.volume(), in.block.ID)
	}
}

// flushed is told when a call that brings data to the disk began.
func (in *receiver) flushed(began time.Time) {
	if took := time.Since(began); in.slow.flush.Slow(took) {
		in.slow.flush.Tell("Slow flushOrSync took %dms (threshold=%dms), volume=%s, blockId=%d", took.Milliseconds(), in.slow.flush.Limit().Milliseconds(), in.volume(), in.block.ID)
	}
}

// wroteMirror is told when a call that passes packets on began.
func (in *receiver) wroteMirror(began time.Time, mirror *peer) {
	if took := time.Since(began); in.slow.mirror.Slow(took) {
		in.slow.mirror.Tell("Slow BlockReceiver write packet to mirror took %dms (threshold=%dms), downstream DN=%s, blockId=%d", took.Milliseconds(), in.slow.mirror.Limit().Milliseconds(), mirror.addr, in.block.ID)
	}
}

// wroteAcks is told when a call that sends acknowledgements began.
func (in *receiver) wroteAcks(began time.Time) {
	if took := time.Since(began); in.slow.ack.Slow(took) {
		in.slow.ack.Tell("Slow PacketResponder send ack to upstream took %dms (threshold=%dms), upstream=%v, blockId=%d", took.Milliseconds(), in.slow.ack.Limit().Milliseconds(), in.nc.RemoteAddr(), in.block.ID)
	}
}

// volume is where the replica is.
func (in *receiver) volume() string { return in.w.Replica().Volume }
