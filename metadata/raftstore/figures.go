package raftstore

import (
	"time"

	"github.com/gohops/hops/internal/status"
)

// Figures gives a group's status to Prometheus.
func (s *Status) Figures(to status.Sample) {
	group := func(labels ...string) []string { return append([]string{"group", s.Name}, labels...) }
	to.Gauge("hops_raft_leader", "1 while this member leads the group.", status.Bool(s.Leader), group()...)
	to.Gauge("hops_raft_joining", "1 while this member started empty and has no vote yet.", status.Bool(s.Joining), group()...)
	to.Gauge("hops_raft_stuck", "1 while the state machine of this member does not come back with an entry, or answers nobody.", status.Bool(s.Stuck), group()...)
	took := 0.0
	if s.Stuck {
		took = max(time.Since(s.StuckSince), 0).Seconds()
	}
	to.Gauge("hops_raft_stuck_seconds", "For how long the state machine of this member has been stuck; 0: it is not.", took, group()...)
	to.Gauge("hops_raft_failed", "1 when the group has stopped in this process.", status.Bool(s.Failure != nil), group()...)
	to.Gauge("hops_raft_term", "Term of the last election that this member knows of.", float64(s.Term), group()...)
	for _, i := range []struct {
		kind  string
		value uint64
	}{{"first", s.First}, {"last", s.Last}, {"committed", s.Commit}, {"applied", s.Applied}, {"snapshot", s.Snapshot}} {
		to.Gauge("hops_raft_log_index", "Entries of this member's log, by what is known of them.", float64(i.value), group("entry", i.kind)...)
	}
	to.Gauge("hops_raft_queued_commands", "Commands that wait for a place in an entry.", float64(s.Queued), group()...)
	to.Gauge("hops_raft_disk_free_bytes", "Free bytes of the disk with the log.", float64(s.FreeBytes), group()...)
	to.Gauge("hops_raft_disk_reserve_bytes", "Free bytes below which nothing is changed.", float64(s.ReserveBytes), group()...)
	for _, m := range s.Members {
		to.Gauge("hops_raft_member_voter", "1 for members that vote, 0 for those that join.", status.Bool(m.Voter), group("member", m.ID)...)
		if !s.Leader {
			continue
		}
		to.Gauge("hops_raft_member_lag_entries", "Entries of the leader's log that a member lacks, as far as the leader knows.", float64(s.Last-min(m.Match, s.Last)), group("member", m.ID)...)
		if !m.Contact.IsZero() {
			to.Gauge("hops_raft_member_silence_seconds", "Time since a member last answered the leader.", time.Since(m.Contact).Seconds(), group("member", m.ID)...)
		}
	}
}
