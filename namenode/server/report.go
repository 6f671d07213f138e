package server

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gohops/hops/namenode"
)

// reportRoute answers with a namenode.DatanodeList.
const reportRoute = "GET /api/v1/datanodes"

func (s *Server) reportDatanodes(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(reportOf(s.Active(), s.Datanodes(), time.Now()))
}

func reportOf(leader bool, nodes []namenode.NodeReport, now time.Time) namenode.DatanodeList {
	r := namenode.DatanodeList{Leader: leader, Datanodes: []namenode.DatanodeStatus{}}
	for _, n := range nodes {
		d := namenode.DatanodeStatus{
			UUID: string(n.Node.ID), Transfer: n.Node.TransferAddr(), HTTP: net.JoinHostPort(n.Node.IP, strconv.Itoa(int(n.Node.HTTPPort))), State: "live",
			Silent: max(now.Sub(n.LastBeat), 0).Seconds(), Reported: -1, Blocks: n.Blocks, Transfers: n.Xceivers, Volumes: []namenode.VolumeStatus{},
			Admin: n.Node.Admin.Word(), Left: n.Leaving.Blocks, LeftOnly: n.Leaving.Only, LeftOpen: n.Leaving.Open, LeftLooked: n.Leaving.Looked,
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
			d.Volumes = append(d.Volumes, namenode.VolumeStatus{
				ID: string(v.ID), Type: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Failed: v.Failed, Slow: v.Slow,
			})
		}
		r.Datanodes = append(r.Datanodes, d)
	}
	return r
}
