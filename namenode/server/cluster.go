package server

import (
	"fmt"
	"html"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	"github.com/gohops/hops/namenode/hdfs/webhdfs"
)

// Defaults implements namenode.Cluster.
func (s *Server) Defaults() namenode.Defaults {
	p := &s.config.Properties
	return namenode.Defaults{
		BlockSize: int64(p.BlockSize), Replication: p.Replication, BytesPerChecksum: 512, PacketSize: 64 << 10, FileBufferSize: 4096,
		TrashMinutes: p.TrashInterval, Supergroup: s.config.Door.Supergroup(), ListLimit: p.ListLimit, EncryptTransfer: p.EncryptTransfer,
	}
}

// Address implements namenode.Cluster.
func (s *Server) Address() string { return s.config.IPC.Addr().String() }

// BlockPool implements namenode.Cluster.
func (s *Server) BlockPool() string {
	if id := s.cluster.Load(); id != nil {
		return id.pool
	}
	return ""
}

// Statistics implements namenode.Cluster.
func (s *Server) Statistics() namenode.Statistics {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return s.soft.m.Statistics()
}

// Datanodes implements namenode.Cluster. Of those that were never heard of it is what was known last if the namespace cannot be asked.
func (s *Server) Datanodes() []namenode.NodeReport {
	nodes, _ := s.lookAtDatanodes()
	return nodes
}

// Healthy implements namenode.Cluster: a member that knows no leader, or carries nothing out, can serve nobody.
func (s *Server) Healthy() error {
	s.reignMu.Lock()
	leader := s.latest.LeaderID
	s.reignMu.Unlock()
	if leader == "" {
		return metadata.Errorf(metadata.ErrRetriable, "%s knows of no leader", s.config.ID)
	}
	return s.stuck()
}

// stuckError is the answer of a namenode to what would wait for its namespace for nobody knows how long.
type stuckError struct{ error }

func (e stuckError) Unwrap() error { return e.error }

// stuck is nil unless the namespace is known to be stuck.
func (s *Server) stuck() error {
	if s.started.Load() == nil {
		return nil
	}
	if g := s.group.Status(); g.Stuck {
		return stuckError{metadata.Errorf(metadata.ErrRetriable, "%s: %s", s.config.ID, stuckOn(g.StuckAt, g.StuckSince))}
	}
	return nil
}

// stuckOn says that the namespace does not come back with an entry, or does not answer.
func stuckOn(entry uint64, since time.Time) string {
	return fmt.Sprintf("its namespace is stuck at entry %d, since %s, for %.0f s: look at the disks of the checkpoint and of small files",
		entry, status.Stamp(since), max(time.Since(since), 0).Seconds())
}

// health is what the health page says.
type health struct {
	ID      string `json:"-"` // said by status.Health
	State   string `json:"-"` // active, standby, joining; likewise
	Cluster string `json:"cluster"`
	Leader  string `json:"leader"`
	// LeaderIPC and LeaderHTTP are where the leader serves, if it is in this member's list.
	LeaderIPC  string `json:"leader_ipc,omitempty"`
	LeaderHTTP string `json:"leader_http,omitempty"`
	Term       uint64 `json:"term"`
	SafeMode   string `json:"safe_mode,omitempty"`
	// Joining: this member began empty and has no vote yet. Lag is how many entries that a leader has committed are missing here.
	Joining bool              `json:"joining,omitempty"`
	Lag     uint64            `json:"lag"`
	Members []namenode.Member `json:"members"`
	// Stuck: the namespace does not come back with an entry, StuckAt, or answers nobody behind it, since StuckSince: something waits for a disk.
	Stuck      bool   `json:"stuck,omitempty"`
	StuckAt    uint64 `json:"stuck_at,omitempty"`
	StuckSince string `json:"stuck_since,omitempty"`
	// Late is what could not be asked for now, so that what is said of it is old, or absent.
	Late []overdue `json:"late,omitempty"`
	// Stranger says that this namenode is none of the group's members.
	Stranger string `json:"stranger,omitempty"`
	Index    uint64 `json:"index"`
	// FreeBytes and ReserveBytes are of the disk of the log; below the reserve nothing can be changed.
	FreeBytes    int64 `json:"free_bytes"`
	ReserveBytes int64 `json:"reserve_bytes"`
	Files        int64 `json:"files"`
	Blocks       int64 `json:"blocks"`
	Live         int   `json:"live_datanodes"`
	Dead         int   `json:"dead_datanodes"`
	Slow         int   `json:"slow_volumes"`
	// Leaving are being decommissioned or enter maintenance, Left are decommissioned or in maintenance.
	Leaving int   `json:"leaving_datanodes"`
	Left    int   `json:"left_datanodes"`
	Under   int64 `json:"under_replicated"`
	Missing int64 `json:"missing"`
	// Search is how the search index is, if there is one.
	Search *namenode.SearchStatus `json:"search,omitempty"`

	stuckSince time.Time
	// applying is the entry that is being carried out; 0: there is none.
	applying uint64
}

func (s *Server) health() health {
	s.reignMu.Lock()
	l := s.latest
	s.reignMu.Unlock()
	x, st := s.look(), s.Statistics()
	counts := &x.state.Value.counts
	h := health{
		ID: s.config.ID, Cluster: s.ClusterID(), State: "standby", Leader: l.LeaderID, Term: l.Term, SafeMode: s.SafeMode(),
		Index: x.state.Value.index, Files: counts.Files, Blocks: counts.Blocks, Under: st.UnderReplicated, Missing: st.Missing,
		Search: x.search.Value, Late: x.late(),
	}
	if s.Active() {
		h.State = "active"
	}
	group := s.group.Status()
	if !x.state.Late.IsZero() {
		h.Index = group.Applied
	}
	if group.Stuck {
		h.Stuck, h.StuckAt, h.StuckSince, h.stuckSince = true, group.StuckAt, status.Stamp(group.StuckSince), group.StuckSince
	}
	h.applying = group.Applying
	h.Joining, h.Stranger, h.FreeBytes, h.ReserveBytes = group.Joining, group.Stranger, group.FreeBytes, max(group.ReserveBytes, 0)
	if h.Joining {
		h.State = "joining"
	}
	if group.Committed > group.Applied {
		h.Lag = group.Committed - group.Applied
	}
	h.Members = []namenode.Member{}
	for _, m := range group.Members {
		one := namenode.Member{ID: m.ID, Address: m.Address, Voter: m.Voter}
		if !m.Contact.IsZero() {
			one.Match, one.Silent = m.Match, max(time.Since(m.Contact), 0).Seconds()
			one.Known = true
		}
		h.Members = append(h.Members, one)
	}
	for _, p := range s.config.Peers {
		if p.ID == l.LeaderID {
			h.LeaderIPC, h.LeaderHTTP = p.IPC, p.HTTP
		}
	}
	for _, n := range x.nodes {
		switch n.Node.Admin {
		case namenode.DecommissionInProgress, namenode.EnteringMaintenance:
			h.Leaving++
		case namenode.Decommissioned, namenode.InMaintenance:
			h.Left++
		}
		if n.Alive {
			h.Live++
		} else {
			h.Dead++
		}
		h.Slow += n.Slow()
	}
	return h
}

// routes is the HTTP door: WebHDFS, and the pages of every server.
func (s *Server) routes(files *webhdfs.Handler) http.Handler {
	pages := s.pages()
	members := http.NewServeMux()
	members.HandleFunc(reportRoute, s.reportDatanodes)
	members.HandleFunc(eventsRoute, s.serveEvents)
	members.HandleFunc(searchRoute, s.serveSearch)
	for _, m := range memberRoutes {
		members.HandleFunc(m.pattern, func(w http.ResponseWriter, r *http.Request) { s.administer(w, r, m.command, m.run) })
	}
	for _, m := range clusterRoutes {
		members.HandleFunc(m.pattern, func(w http.ResponseWriter, r *http.Request) { s.administer(w, r, m.command, m.unlessStuck) })
	}
	for _, u := range userRoutes {
		members.HandleFunc(u.pattern, func(w http.ResponseWriter, r *http.Request) { s.serveUser(w, r, u.command, u.right, u.run) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not by a ServeMux, which would redirect paths that it finds unclean.
		switch rest, ok := strings.CutPrefix(r.URL.Path, webhdfs.Prefix); {
		case ok && (rest == "" || rest[0] == '/'):
			files.ServeHTTP(w, r)
		case r.URL.Path == "/fsck" && r.Method == http.MethodGet:
			s.fsckDoor(w, r)
		case pages.Serves(r):
			pages.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/api/"):
			members.ServeHTTP(w, r)
		default:
			notFound(w, r)
		}
	})
}

// notFound is a page as HDFS's web server has it for paths that it does not know.
func notFound(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html;charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNotFound)
	_, _ = fmt.Fprintf(w, "<!DOCTYPE html>\n<title>Error 404 Not Found</title>\n<h1>HTTP ERROR 404 Not Found</h1>\n<p>Nothing is at %s. WebHDFS is below %s.</p>\n",
		html.EscapeString(r.URL.Path), webhdfs.Prefix)
}

// Routes lists what the ports of a namenode do, and the right that each thing needs.
func Routes() []security.Route {
	ipc := hrpc.NewServer(hrpc.ServerConfig{Door: security.NewDoor(security.Config{})})
	clientprotocol.Register(ipc, nil, nil)
	out := ipc.Routes("namenode IPC")
	out = append(out, webhdfs.Routes("namenode HTTP")...)
	out = append(out, (*Server)(nil).pages().Routes()...)
	out = append(out, security.Route{Port: "namenode HTTP", Name: reportRoute, Right: security.Open})
	out = append(out, security.Route{Port: "namenode HTTP", Name: fsckRoute, Right: security.ByPath})
	out = append(out, security.Route{Port: "namenode HTTP", Name: eventsRoute, Right: security.ByPath})
	out = append(out, security.Route{Port: "namenode HTTP", Name: searchRoute, Right: security.ByPath})
	for _, m := range slices.Concat(memberRoutes, clusterRoutes) {
		out = append(out, security.Route{Port: "namenode HTTP", Name: m.pattern, Right: security.Superuser})
	}
	for _, u := range userRoutes {
		out = append(out, security.Route{Port: "namenode HTTP", Name: u.pattern, Right: u.right})
	}
	out = append(out, security.Routes("namenode HTTP", calls(nil)...)...)
	out = append(out, transfer.Reads("namenode data transfer")...)
	out = append(out, security.Routes("namenode gRPC", services(nil, nil)...)...)
	return append(out, raftstore.Routes()...)
}
