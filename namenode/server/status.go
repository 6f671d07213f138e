package server

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata/search"
	"github.com/gohops/hops/namenode"
)

// pages are what the HTTP port shows beside WebHDFS. readyz is 200 when a client that asks now gets an answer, from this
// namenode or from the leader that it knows.
func (s *Server) pages() *status.Pages {
	return status.New(status.Config{
		Role: "namenode", Port: "namenode HTTP", Aliases: []string{"/index.html", "/dfshealth.html", "/explorer.html"}, Report: s.report, Figures: s.figures, Beans: s.beans,
	})
}

func (s *Server) report() status.Report {
	h, st := s.health(), s.Statistics()
	r := status.Report{
		ID: h.ID, State: h.State, Problem: h.problem(), Detail: h,
		Facts: []status.Fact{
			{Name: "cluster", Value: h.Cluster},
			{Name: "leader", Value: h.Leader},
			{Name: "files", Value: strconv.FormatInt(h.Files, 10)},
			{Name: "blocks", Value: fmt.Sprintf("%d, of them %d under-replicated, %d missing", h.Blocks, h.Under, h.Missing)},
			{Name: "datanodes", Value: fmt.Sprintf("%d live, %d dead", h.Live, h.Dead)},
			{Name: "space", Value: fmt.Sprintf("%s of %s used, %s free", size.About(st.Used), size.About(st.Capacity), size.About(st.Remaining))},
			{Name: "term, entry", Value: fmt.Sprintf("%d, %d, which is %d behind what is committed", h.Term, h.Index, h.Lag)},
			{Name: "disk of the log", Value: fmt.Sprintf("%s free, of which %s are reserved", size.About(h.FreeBytes), size.About(h.ReserveBytes))},
		},
		Links: []status.Link{{Address: "/webhdfs/v1/?op=LISTSTATUS", Text: "the root directory, by WebHDFS"}},
	}
	for _, m := range h.Members {
		text := m.Address
		if !m.Voter {
			text += ", no vote yet"
		}
		if m.Known && m.Silent > 5 {
			text += fmt.Sprintf(", silent for %.0f s", m.Silent)
		}
		r.Facts = append(r.Facts, status.Fact{Name: "member " + m.ID, Value: text})
	}
	if h.LeaderHTTP != "" && h.State != "active" {
		r.Links = append(r.Links, status.Link{Address: security.PageOf(h.LeaderHTTP), Text: "the leader"})
	}
	if x := h.Search; x != nil {
		text := fmt.Sprintf("%s, %d files and directories, %s, %d ms behind", x.State, x.Entries, size.About(x.Bytes), x.Lag)
		if x.State == string(search.Rebuilding) {
			text = fmt.Sprintf("is rebuilt: %d of about %d files and directories", x.Done, x.Total)
		}
		r.Facts = append(r.Facts, status.Fact{Name: "search", Value: text})
		if x.Problem != "" {
			r.Warnings = append(r.Warnings, "search does not go on: "+x.Problem)
		}
	}
	if n := s.scrub.lost.Load(); n > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d small files are damaged here, and no other namenode that answers has them", n))
	}
	for _, o := range h.Late {
		if text := o.String(); text != r.Problem {
			r.Warnings = append(r.Warnings, text)
		}
	}
	if h.State != "active" {
		return r // what it knows of blocks is the leader's to judge
	}
	warn := func(n int64, format string) {
		if n > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf(format, n))
		}
	}
	warn(h.Missing, "%d blocks have no replica that can be read")
	warn(h.Under, "%d blocks have fewer replicas than they should")
	warn(int64(h.Dead), "%d datanodes are dead")
	warn(int64(h.Slow), "%d volumes of datanodes are slow: calls of their disks do not come back for seconds")
	if h.Live == 0 {
		r.Warnings = append(r.Warnings, "no datanode is there: files cannot be written")
	}
	return r
}

// problem says why nobody should ask; "" is ready.
func (h *health) problem() string {
	hung := slices.IndexFunc(h.Late, func(o overdue) bool { return o.What == theNamespace && o.of >= status.Hangs })
	switch {
	case h.Joining && h.Leader != "" && h.applying == 0: // the namespace may be silent while it is replaced
		return "this member began empty, takes over the others' state, and has no vote yet"
	case h.Stuck:
		return stuckOn(h.StuckAt, h.stuckSince)
	case hung >= 0:
		return h.Late[hung].String()
	case h.Leader == "":
		return "no leader is known"
	case h.Joining:
		return "this member began empty, takes over the others' state, and has no vote yet"
	case h.SafeMode != "" && h.State == "active":
		return h.SafeMode
	}
	return ""
}

func (s *Server) figures(to status.Sample) {
	x, st, rpc := s.look(), s.Statistics(), s.ipc.Counts()
	to.Gauge("hops_namenode_active", "1 while this namenode leads and serves clients.", status.Bool(s.Active()))
	x.figures(to)
	to.Gauge("hops_namenode_safe_mode", "1 while nothing may be changed.", status.Bool(s.SafeMode() != ""))
	if x.state.Known() {
		x.state.Value.figures(to)
	}
	if x.feed.Known() {
		f := &x.feed.Value
		to.Gauge("hops_namenode_feed_bytes", "What the feed of changes takes.", float64(f.Bytes))
		to.Gauge("hops_namenode_feed_waiting_bytes", "What of the feed of changes is not in a file yet.", float64(f.Waiting))
		to.Counter("hops_namenode_feed_gaps_total", "How often events were lost, or were never here because the state was pulled from another namenode.", float64(f.Gaps))
	}
	if x.bodies.Known() {
		b := &x.bodies.Value
		to.Gauge("hops_namenode_small_file_segments_bytes", "What the segments with bodies take on this namenode.", float64(b.Bytes))
		to.Gauge("hops_namenode_small_file_dead_bytes", "What of it belongs to bodies that are gone, as far as is known.", float64(b.Dead))
		to.Gauge("hops_namenode_small_file_waiting_bytes", "What of the bodies is not in a segment yet.", float64(b.Waiting))
		to.Gauge("hops_namenode_small_file_damaged", "Bodies that are known to be damaged on this namenode.", float64(b.Damaged))
		to.Counter("hops_namenode_small_file_copied_bytes_total", "What was copied to clear away bodies that are gone.", float64(b.Copied))
		to.Counter("hops_namenode_small_file_freed_bytes_total", "What that has freed.", float64(b.Freed))
	}
	to.Counter("hops_namenode_small_file_gaps_total", "Bodies that a state came without that was pulled from another namenode.", float64(s.ns.BodyGaps()))
	to.Counter("hops_namenode_small_file_mended_total", "Bodies that were missing or damaged here and came from another namenode.", float64(s.mended.Load()))
	to.Counter("hops_namenode_small_file_scrubbed_bytes_total", "Bytes of the small files that were verified in the background.", float64(s.scrub.bytes.Load()))
	to.Counter("hops_namenode_small_file_scrub_damaged_total", "Bodies that were found damaged in the background.", float64(s.scrub.damaged.Load()))
	to.Counter("hops_namenode_small_file_scrub_passes_total", "How often all small files were verified.", float64(s.scrub.passes.Load()))
	to.Gauge("hops_namenode_small_file_lost", "Bodies that are damaged here and that no other namenode had that answered.", float64(s.scrub.lost.Load()))
	to.Counter("hops_namenode_small_file_kept_total", "Files that were written to datanodes and became small ones by themselves.", float64(s.adoptions.files.Load()))
	to.Counter("hops_namenode_small_file_kept_bytes_total", "Their bytes.", float64(s.adoptions.bytes.Load()))
	to.Gauge("hops_namenode_small_file_keep_waiting", "Files whose bytes could not be had to become small ones, and that are tried again.", float64(s.adoptions.waiting.Load()))
	to.Counter("hops_namenode_small_file_keep_dropped_total", "Such files that stay on datanodes, because too many wait to be tried again.", float64(s.adoptions.dropped.Load()))
	if x := x.search.Value; x != nil {
		to.Gauge("hops_namenode_search_following", "1 while the search index follows the feed of changes, 0 while it is rebuilt or fails.", status.Bool(x.State == string(search.Following)))
		to.Gauge("hops_namenode_search_lag_seconds", "How long the last change took until it could be searched, or how long it has been waiting.", float64(x.Lag)/1000)
		to.Gauge("hops_namenode_search_lag_entries", "Entries of the log between the search index and the end of the feed of changes.", float64(max(int64(x.FeedEnd.Entry())-int64(x.Position.Entry()), 0)))
		to.Gauge("hops_namenode_search_entries", "Files and directories in the search index.", float64(x.Entries))
		to.Gauge("hops_namenode_search_bytes", "What the search index takes on disk.", float64(x.Bytes))
		to.Gauge("hops_namenode_search_waiting_bytes", "What of the search index is not on disk yet.", float64(x.Waiting))
		to.Counter("hops_namenode_search_rebuilds_total", "How often the search index was made anew.", float64(x.Rebuilds))
	}
	for _, b := range []struct {
		state string
		n     int64
	}{{"under_replicated", st.UnderReplicated}, {"missing", st.Missing}, {"corrupt", st.Corrupt}, {"critical", st.Critical}, {"pending_deletion", st.PendingDeletion}} {
		to.Gauge("hops_namenode_unhealthy_blocks", "Blocks that need work, by why; a block may count for several reasons.", float64(b.n), "reason", b.state)
	}
	live, dead, leaving, left, blocks, slow := 0, 0, 0, 0, 0, 0
	for _, n := range x.nodes {
		switch n.Node.Admin {
		case namenode.DecommissionInProgress, namenode.EnteringMaintenance:
			leaving++
			blocks += n.Leaving.Blocks
		case namenode.Decommissioned, namenode.InMaintenance:
			left++
		}
		slow += n.Slow()
		if n.Alive {
			live++
		} else {
			dead++
		}
	}
	to.Counter("hops_namenode_lazy_files_removed_total", "Files of the storage policy LAZY_PERSIST that were removed because a block was lost with the memory of its datanode.", float64(s.lazyRemoved.Load()))
	to.Gauge("hops_namenode_datanodes", "Datanodes by state.", float64(live), "state", "live")
	to.Gauge("hops_namenode_datanodes", "Datanodes by state.", float64(dead), "state", "dead")
	to.Gauge("hops_namenode_datanodes", "Datanodes by state.", float64(leaving), "state", "leaving")
	to.Gauge("hops_namenode_datanodes", "Datanodes by state.", float64(left), "state", "left")
	to.Gauge("hops_namenode_slow_volumes", "Volumes of live datanodes of which a call has not come back for seconds.", float64(slow))
	to.Gauge("hops_namenode_leaving_blocks", "Blocks that keep datanodes from being let go.", float64(blocks))
	to.Gauge("hops_namenode_capacity_bytes", "Bytes of the live datanodes' volumes.", float64(st.Capacity))
	to.Gauge("hops_namenode_used_bytes", "Bytes that replicas take on live datanodes.", float64(st.Used))
	to.Gauge("hops_namenode_remaining_bytes", "Bytes that are free for replicas on live datanodes.", float64(st.Remaining))
	to.Gauge("hops_namenode_ipc_connections", "Connections of Hadoop's RPC.", float64(rpc.Connections))
	to.Counter("hops_namenode_ipc_calls_total", "Calls by Hadoop's RPC.", float64(rpc.Calls))
	to.Counter("hops_namenode_ipc_failures_total", "Calls that ended in an exception.", float64(rpc.Failures))
	g := s.group.Status()
	g.Figures(to)
	s.config.Slow.Figures(to)
}

// figures are those of the namespace's state.
func (x *stateSight) figures(to status.Sample) {
	counts := &x.counts
	to.Gauge("hops_namenode_files", "Files of the namespace.", float64(counts.Files))
	to.Gauge("hops_namenode_directories", "Directories of the namespace.", float64(counts.Directories))
	to.Gauge("hops_namenode_open_files", "Files that are being written.", float64(counts.OpenFiles))
	to.Gauge("hops_namenode_leases", "Clients that write.", float64(counts.Leases))
	to.Gauge("hops_namenode_reclaiming_directories", "Deleted directories that are not yet taken apart.", float64(counts.Reclaiming))
	to.Gauge("hops_namenode_resident_inodes", "Files and directories in memory.", float64(counts.Resident))
	to.Gauge("hops_namenode_resident_bytes", "What files and directories in memory take, by an estimate.", float64(counts.ResidentBytes))
	to.Gauge("hops_namenode_memory_budget_bytes", "What they may take; the rest is read from the checkpoint.", float64(counts.MemoryBytes))
	to.Counter("hops_namenode_cold_reads_total", "Reads of the checkpoint, of what was not in memory.", float64(counts.Misses))
	to.Counter("hops_namenode_evicted_inodes_total", "Files and directories that were let go from memory.", float64(counts.Evicted))
	to.Gauge("hops_namenode_small_files", "Bodies of small files, those that only snapshots have included.", float64(x.bodies))
	to.Gauge("hops_namenode_small_file_bytes", "Bytes of those bodies.", float64(x.bodyBytes))
	to.Gauge("hops_namenode_blocks", "Blocks of the namespace.", float64(counts.Blocks))
}
