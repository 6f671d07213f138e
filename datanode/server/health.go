package server

import (
	"net/http"
	"time"
)

// scrubbed is how far the scrubber is on a volume, counted since the start of the process.
type scrubbed struct {
	// Begun is when the pass under way, or the last one, began.
	Begun    string `json:"pass_begun,omitempty"`
	Done     bool   `json:"pass_done"`
	Replicas int64  `json:"verified_replicas"`
	Bytes    int64  `json:"verified_bytes"`
	Damaged  int64  `json:"damaged"`
	Waiting  int64  `json:"suspects_waiting"`
}

func (s *Server) scrubbed(volume string) scrubbed {
	st, _ := s.scrub.Status(volume)
	out := scrubbed{Done: st.Done, Replicas: st.Replicas, Bytes: st.Bytes, Damaged: st.Damaged, Waiting: st.Waiting}
	if !st.Begun.IsZero() {
		out.Begun = st.Begun.UTC().Format(time.RFC3339)
	}
	return out
}

// health tells operators and probes how the datanode is: 200 while it is of use, 503 when no volume works or no namenode
// knows it.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	type volume struct {
		ID        string   `json:"id"`
		Path      string   `json:"path"`
		Type      string   `json:"type"`
		Capacity  int64    `json:"capacity"`
		Used      int64    `json:"used"`
		Remaining int64    `json:"remaining"`
		Replicas  int      `json:"replicas"`
		Failed    string   `json:"failed,omitempty"`
		Scrub     scrubbed `json:"scrub"`
	}
	type peer struct {
		Address    string  `json:"address"`
		Registered bool    `json:"registered"`
		Leader     bool    `json:"leader"`
		Term       uint64  `json:"term"`
		Problem    string  `json:"problem,omitempty"`
		Silent     float64 `json:"seconds_since_contact"`
	}
	own := s.store.Identity()
	body := struct {
		Status    string   `json:"status"`
		UUID      string   `json:"uuid"`
		Cluster   string   `json:"cluster"`
		BlockPool string   `json:"block_pool"`
		Transfers int      `json:"transfers"`
		Volumes   []volume `json:"volumes"`
		Namenodes []peer   `json:"namenodes"`
	}{Status: "ok", UUID: own.Datanode, Cluster: own.Cluster, BlockPool: own.BlockPool, Transfers: s.transfer.Active()}
	working, registered := false, false
	for _, v := range s.store.Volumes() {
		o := volume{ID: v.ID, Path: v.Path, Type: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Replicas: v.Replicas}
		o.Scrub = s.scrubbed(v.ID)
		if v.Failed != nil {
			o.Failed = v.Failed.Error()
			body.Status = "degraded"
		} else {
			working = true
		}
		body.Volumes = append(body.Volumes, o)
	}
	for _, n := range s.sessions {
		leads := n.leads()
		n.mu.Lock()
		o := peer{Address: n.addr, Registered: n.registered, Leader: leads, Problem: n.problem}
		if n.orders != nil {
			o.Term = n.orders.Term
		}
		if !n.heard.IsZero() {
			o.Silent = time.Since(n.heard).Seconds()
		}
		n.mu.Unlock()
		registered = registered || o.Registered
		body.Namenodes = append(body.Namenodes, o)
	}
	code := http.StatusOK
	switch {
	case !working:
		body.Status, code = "no volume works", http.StatusServiceUnavailable
	case !registered:
		body.Status, code = "no namenode knows this datanode", http.StatusServiceUnavailable
	}
	writeJSON(w, code, body)
}
