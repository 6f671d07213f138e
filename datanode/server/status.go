package server

import (
	"fmt"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/status"
)

// newPages makes the pages of every server. readyz is 200 while the datanode is of use: a volume works and a namenode knows
// it.
func (s *Server) newPages() *status.Pages {
	return status.New(status.Config{
		Role: "datanode", Port: "datanode HTTP", Aliases: []string{"/datanode.html", "/index.html"}, Report: s.report, Figures: s.figures, Beans: s.beans,
	})
}

// scrubHealth is how far the scrubber is on a volume, counted since the start of the process.
type scrubHealth struct {
	// Begun is when the pass under way, or the last one, began.
	Begun    string `json:"pass_begun,omitempty"`
	Done     bool   `json:"pass_done"`
	Replicas int64  `json:"verified_replicas"`
	Bytes    int64  `json:"verified_bytes"`
	Damaged  int64  `json:"damaged"`
	Waiting  int64  `json:"suspects_waiting"`
}

func (s *Server) scrubbed(volume string) scrubHealth {
	st, _ := s.scrub.Status(volume)
	h := scrubHealth{Done: st.Done, Replicas: st.Replicas, Bytes: st.Bytes, Damaged: st.Damaged, Waiting: st.Waiting}
	if !st.Begun.IsZero() {
		h.Begun = st.Begun.UTC().Format(time.RFC3339)
	}
	return h
}

type volumeHealth struct {
	ID        string      `json:"id"`
	Path      string      `json:"path"`
	Type      string      `json:"type"`
	Capacity  int64       `json:"capacity"`
	Used      int64       `json:"used"`
	Remaining int64       `json:"remaining"`
	Replicas  int         `json:"replicas"`
	Slow      bool        `json:"slow,omitempty"`
	Failed    string      `json:"failed,omitempty"`
	Scrub     scrubHealth `json:"scrub"`
	// Of the volume's opening: directories and packs taken from its index, scanned ones, places that could not be read, and how long it took.
	Indexed int     `json:"indexed"`
	Scanned int     `json:"scanned"`
	Unread  int     `json:"unread,omitempty"`
	Opening float64 `json:"opening_seconds"`
}

type namenodeHealth struct {
	Address    string  `json:"address"`
	Registered bool    `json:"registered"`
	Leader     bool    `json:"leader"`
	Term       uint64  `json:"term"`
	Problem    string  `json:"problem,omitempty"`
	Silent     float64 `json:"seconds_since_contact"`
}

// health is what /health says beside what every server's does.
type health struct {
	UUID      string           `json:"uuid"`
	Cluster   string           `json:"cluster"`
	BlockPool string           `json:"block_pool"`
	Transfers int              `json:"transfers"`
	Volumes   []volumeHealth   `json:"volumes"`
	Namenodes []namenodeHealth `json:"namenodes"`
}

func (s *Server) health() health {
	own := s.store.Identity()
	h := health{UUID: own.Datanode, Cluster: own.Cluster, BlockPool: own.BlockPool, Transfers: s.transfer.Active()}
	for _, v := range s.store.Volumes() {
		o := volumeHealth{ID: v.ID, Path: v.Path, Type: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Replicas: v.Replicas, Slow: v.Slow}
		o.Scrub = s.scrubbed(v.ID)
		o.Indexed, o.Scanned, o.Unread, o.Opening = v.Opened.Indexed, v.Opened.Scanned, v.Opened.Unread, v.Opened.Took.Seconds()
		if v.Failed != nil {
			o.Failed = v.Failed.Error()
		}
		h.Volumes = append(h.Volumes, o)
	}
	for _, n := range s.all() {
		leads := n.leads()
		n.mu.Lock()
		o := namenodeHealth{Address: n.addr, Registered: n.registered, Leader: leads, Problem: n.problem}
		if n.orders != nil {
			o.Term = n.orders.Term
		}
		if !n.heard.IsZero() {
			o.Silent = time.Since(n.heard).Seconds()
		}
		n.mu.Unlock()
		h.Namenodes = append(h.Namenodes, o)
	}
	return h
}

func (s *Server) report() status.Report {
	h := s.health()
	r := status.Report{
		ID: h.UUID, State: "ok", Detail: h,
		Facts: []status.Fact{
			{Name: "cluster", Value: h.Cluster},
			{Name: "block pool", Value: h.BlockPool},
			{Name: "transfers", Value: strconv.Itoa(h.Transfers)},
		},
	}
	working, known := false, false
	for _, v := range h.Volumes {
		text := fmt.Sprintf("%s, %s of %s used, %s free, %d replicas", v.Type, size.About(v.Used), size.About(v.Capacity), size.About(v.Remaining), v.Replicas)
		if v.Failed != "" {
			text, r.State = "failed: "+v.Failed, "degraded"
			r.Warnings = append(r.Warnings, fmt.Sprintf("volume %s failed: %s", v.Path, v.Failed))
		} else {
			working = true
		}
		if v.Unread > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("volume %s: its disk could not read %d places when it was opened, see the log", v.Path, v.Unread))
		}
		if v.Slow {
			text, r.State = "slow: "+text, "degraded"
			r.Warnings = append(r.Warnings, fmt.Sprintf("volume %s is slow: a call of its disk has not come back for seconds", v.Path))
		}
		r.Facts = append(r.Facts, status.Fact{Name: v.Path, Value: text})
	}
	for _, n := range h.Namenodes {
		text := "not registered"
		switch {
		case n.Problem != "":
			text = n.Problem
			r.Warnings = append(r.Warnings, fmt.Sprintf("namenode %s: %s", n.Address, n.Problem))
		case n.Leader:
			text = "leads"
		case n.Registered:
			text = "follows"
		}
		known = known || n.Registered
		r.Facts = append(r.Facts, status.Fact{Name: n.Address, Value: text})
	}
	switch {
	case !working:
		r.Problem = "no volume works"
	case !known:
		r.Problem = "no namenode knows this datanode"
	}
	return r
}

func (s *Server) figures(to status.Sample) {
	h := s.health()
	s.cfg.Slow.Figures(to)
	to.Gauge("hops_datanode_transfers", "Reads, writes and copies under way.", float64(h.Transfers))
	near := s.transfer.NearCounts()
	to.Counter("hops_datanode_local_connections_total", "Connections by the Unix-domain socket.", float64(near.Connections))
	to.Counter("hops_datanode_local_reads_total", "Replicas whose descriptors were handed over to clients on this machine.", float64(near.Passed))
	to.Counter("hops_datanode_local_refused_total", "Requests for descriptors that were refused, so that the client reads over a socket.", float64(near.Refused))
	to.Counter("hops_datanode_local_unreached_total", "Connections to datanodes on this machine that were made by TCP because their Unix-domain socket was of no use.", float64(s.near.Failures()))
	to.Gauge("hops_datanode_local_shared_bytes", "Memory that clients on this machine share with the datanode, in bytes.", float64(near.Shared))
	for _, v := range h.Volumes {
		label := []string{"volume", v.Path, "type", v.Type}
		to.Gauge("hops_datanode_volume_failed", "1 when the volume has failed.", status.Bool(v.Failed != ""), label...)
		to.Gauge("hops_datanode_volume_slow", "1 while a call of the volume's disk has not come back for seconds.", status.Bool(v.Slow), label...)
		to.Gauge("hops_datanode_volume_capacity_bytes", "Bytes that the volume has for replicas.", float64(v.Capacity), label...)
		to.Gauge("hops_datanode_volume_used_bytes", "Bytes that replicas take.", float64(v.Used), label...)
		to.Gauge("hops_datanode_volume_remaining_bytes", "Bytes that are free for replicas.", float64(v.Remaining), label...)
		to.Counter("hops_datanode_scrubbed_bytes_total", "Bytes of replicas that were verified in the background.", float64(v.Scrub.Bytes), label...)
		to.Counter("hops_datanode_scrub_damaged_total", "Replicas that were found damaged in the background.", float64(v.Scrub.Damaged), label...)
		to.Gauge("hops_datanode_scrub_suspects", "Replicas that somebody called damaged and that wait to be verified.", float64(v.Scrub.Waiting), label...)
		to.Gauge("hops_datanode_volume_replicas", "Replicas on the volume.", float64(v.Replicas), label...)
		to.Gauge("hops_datanode_volume_opening_indexed", "Directories and packs that were taken from the volume's index when it was opened.", float64(v.Indexed), label...)
		to.Gauge("hops_datanode_volume_opening_scanned", "Directories and packs that were scanned when the volume was opened.", float64(v.Scanned), label...)
		to.Gauge("hops_datanode_volume_opening_unread", "Places that the volume's disk could not read when it was opened.", float64(v.Unread), label...)
		to.Gauge("hops_datanode_volume_opening_seconds", "How long it took to find the volume's replicas when it was opened.", v.Opening, label...)
	}
	m := s.store.Memory()
	to.Counter("hops_datanode_memory_written_total", "Replicas that were written to volumes of type RAM_DISK.", float64(m.Written))
	to.Counter("hops_datanode_memory_fallback_total", "Replicas that were to be written there, and went to a disk for want of room.", float64(m.Fallbacks))
	to.Counter("hops_datanode_memory_saved_total", "Replicas on volumes of type RAM_DISK that were saved on a disk.", float64(m.Saved))
	to.Counter("hops_datanode_memory_saved_bytes_total", "Bytes of those replicas.", float64(m.SavedBytes))
	to.Counter("hops_datanode_memory_evicted_total", "Saved replicas that have left memory, for others or because they were to change.", float64(m.Evicted))
	to.Counter("hops_datanode_memory_synced_total", "Replicas that have left memory because they were synced while they were written.", float64(m.Left))
	r := &s.rebuilt
	to.Counter("hops_datanode_rebuild_tasks_total", "Orders to compute lost internal blocks of block groups that were begun.", float64(r.tasks.Load()))
	to.Counter("hops_datanode_rebuild_failed_total", "Of these the ones that have failed, as a whole or for some of the blocks.", float64(r.failed.Load()))
	to.Counter("hops_datanode_rebuilt_blocks_total", "Internal blocks of block groups that were computed.", float64(r.blocks.Load()))
	to.Counter("hops_datanode_rebuild_read_bytes_total", "Bytes that were read of other internal blocks to compute them.", float64(r.read.Load()))
	to.Counter("hops_datanode_rebuilt_bytes_total", "Bytes of internal blocks that were computed.", float64(r.written.Load()))
	for _, n := range h.Namenodes {
		to.Gauge("hops_datanode_registered", "1 while the namenode knows this datanode.", status.Bool(n.Registered), "namenode", n.Address)
		to.Gauge("hops_datanode_namenode_silence_seconds", "Time since the namenode was last heard.", n.Silent, "namenode", n.Address)
	}
}
