package server

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gohops/hops/namenode"
)

// reportRoute is what `hops datanode list` asks. Like the pages it names no user, path or file.
const reportRoute = "GET /api/v1/datanodes"

// datanodeReport is the answer.
type datanodeReport struct {
	// Leader: this namenode leads, and what it says of datanodes is what counts.
	Leader    bool         `json:"leader"`
	Datanodes []datanodeIs `json:"datanodes"`
}

// datanodeIs is a datanode as beats and reports tell it. Sizes are in bytes, times in seconds before now.
type datanodeIs struct {
	UUID     string `json:"uuid"`
	Transfer string `json:"transfer"`
	HTTP     string `json:"http"`
	// State is live; stale: silent for so long that it is avoided; or dead: its blocks are replicated again.
	State  string  `json:"state"`
	Silent float64 `json:"silent_s"`
	// Reported is how long ago the last full block report ended; -1: there was none yet.
	Reported  float64    `json:"reported_s"`
	Blocks    int        `json:"blocks"`
	Transfers int        `json:"transfers"`
	Volumes   []volumeIs `json:"volumes"`
}

type volumeIs struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Capacity  int64  `json:"capacity"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Failed    bool   `json:"failed"`
}

func (s *Server) reportDatanodes(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(reportOf(s.Active(), s.Datanodes(), time.Now()))
}

func reportOf(leader bool, nodes []namenode.NodeReport, now time.Time) datanodeReport {
	r := datanodeReport{Leader: leader, Datanodes: []datanodeIs{}}
	for _, n := range nodes {
		d := datanodeIs{
			UUID: string(n.Node.ID), Transfer: n.Node.TransferAddr(), HTTP: net.JoinHostPort(n.Node.IP, strconv.Itoa(int(n.Node.HTTPPort))), State: "live",
			Silent: max(now.Sub(n.LastBeat), 0).Seconds(), Reported: -1, Blocks: n.Blocks, Transfers: n.Xceivers, Volumes: []volumeIs{},
		}
		switch {
		case !n.Alive:
			d.State = "dead"
		case n.Stale:
			d.State = "stale"
		}
		if !n.LastReport.IsZero() {
			d.Reported = max(now.Sub(n.LastReport), 0).Seconds()
		}
		for _, v := range n.Volumes {
			d.Volumes = append(d.Volumes, volumeIs{
				ID: string(v.ID), Type: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Failed: v.Failed,
			})
		}
		r.Datanodes = append(r.Datanodes, d)
	}
	return r
}
