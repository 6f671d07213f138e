package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/size"
	pages "github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	rm "github.com/gohops/hops/resourcemanager"
)

// The doctor's patience with one server, and with the file that it writes.
const (
	serverPatience = 5 * time.Second
	probePatience  = 20 * time.Second
)

// mostLag is how many entries a member may be behind; a follower of a busy group is some behind all the time.
const mostLag = 10_000

// mostSilence is for how long a member may not answer the leader, which sends it something several times a second.
const mostSilence = 5 * time.Second

// askedAtOnce is how many servers are asked at a time, shownOfRole how many of a role that are well get a line of their own.
const (
	askedAtOnce = 16
	shownOfRole = 5
)

// dataDirectory is where the `hops dev` that is looked at keeps its data; "" for other clusters.
func dataDirectory(conf string) string {
	if own, err := login.Chosen(); conf == "" && (own != nil || err != nil) {
		return ""
	}
	if dir, err := findConf(conf); err == nil {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), devLock)); err != nil {
			return ""
		}
		return filepath.Dir(dir)
	}
	dir, _ := devDirectory()
	return dir
}

// server is one that ought to be there.
type server struct {
	role, address string
	health        serverHealth
	err           error
}

// serverHealth is what the doctor reads of /health.
type serverHealth struct {
	pages.Health
	// Of namenodes: see raft's status.
	Joining  bool              `json:"joining"`
	Stranger string            `json:"stranger"`
	Index    uint64            `json:"index"`
	Members  []namenode.Member `json:"members"`
}

// ask fetches /health of servers, several at a time.
func ask(ctx context.Context, servers []*server) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, askedAtOnce)
	for _, s := range servers {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			s.ask(ctx)
		})
	}
	wg.Wait()
}

func (s *server) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	s.err = func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/health", nil)
		if err != nil {
			return err
		}
		resp, err := toServers.Do(r)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("does not answer within %v: it hangs, is stopped, or the network is cut", serverPatience)
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<20)).Decode(&s.health); err != nil {
			return fmt.Errorf("this is no %s of hops: /health answered %s", s.role, resp.Status)
		}
		return nil
	}()
}

// findings says how the servers of a role are. Those that are well are counted when they are many.
func findings(role string, servers []*server) []finding {
	var found []finding
	well := 0
	for _, s := range servers {
		switch {
		case s.err != nil:
			found = append(found, finding{
				what: role, detail: s.address + " cannot be reached: " + s.err.Error(),
				remedy: "start it (hops server --role " + role + "), or look at its log; without it the next loss is felt",
			})
		case s.health.Stranger != "":
			found = append(found, finding{what: role, detail: s.address + ": " + s.health.Stranger, remedy: "do so, or stop it; see docs/how-to/namenodes.md"})
		case !s.health.Ready:
			found = append(found, finding{what: role, detail: s.address + " is not ready: " + s.health.Problem, remedy: "look at its log"})
		case s.health.Joining:
			found = append(found, finding{what: role, detail: s.address + " joins the group and has no vote yet", remedy: "wait until it has caught up; if it does not, see docs/how-to/namenodes.md"})
		case len(s.health.Notices) > 0:
			found = append(found, finding{what: role, detail: s.address + ": " + strings.Join(s.health.Notices, "; "), remedy: "take the networks out of clients.simple of hops.yaml, and let clients prove who they are (docs/how-to/hadoop-clients.md)"})
		case len(s.health.Warnings) > 0 && role != "namenode": // a namenode's warnings are about the rest of the cluster
			found = append(found, finding{what: role, detail: s.address + ": " + strings.Join(s.health.Warnings, "; "), remedy: "see " + security.PageOf(s.address)})
		default:
			if well++; well <= shownOfRole {
				found = append(found, finding{what: role, ok: true, detail: s.address + " " + s.health.State})
			}
		}
	}
	if well > shownOfRole {
		found = append(found, finding{what: role, ok: true, detail: fmt.Sprintf("and %d more that are well", well-shownOfRole)})
	}
	return found
}

// namenodePages are the HTTP addresses of the namenodes of a client's configuration.
func namenodePages(conf *dfs.HadoopConf) (addresses []string) {
	for _, name := range slices.Sorted(maps.Keys(conf.Properties)) {
		if strings.HasPrefix(name, "dfs.namenode.http-address") {
			addresses = append(addresses, conf.Properties[name])
		}
	}
	return addresses
}

func examineCluster(c *cli.Context) []finding {
	cl, err := dial(c)
	if isNoCluster(err) {
		return []finding{{what: "cluster", detail: err.Error()}}
	}
	if err != nil {
		return []finding{{what: "configuration", detail: err.Error(), remedy: "look at HADOOP_CONF_DIR, or run `hops login` again"}}
	}
	defer cl.Close()
	var namenodes, managers []*server
	if conf, _, err := clusterConf(c.String("conf")); err == nil {
		for _, address := range namenodePages(conf) {
			namenodes = append(namenodes, &server{role: "namenode", address: address})
		}
	}
	for _, address := range cl.ResourceManagers() {
		managers = append(managers, &server{role: "resourcemanager", address: address[strings.LastIndexByte(address, '/')+1:]})
	}
	ask(c.Context, slices.Concat(namenodes, managers))
	found := findings("namenode", namenodes)
	for _, n := range namenodes {
		if n.health.State != "active" {
			continue // the leader knows of the others
		}
		found = append(found, memberFindings(n.health)...)
	}
	if cl.HasFS() == nil {
		found = append(found, examineFiles(c.Context, cl)...)
	}
	if len(managers) == 0 {
		return append(found, finding{what: "resourcemanager", ok: true, detail: "none is configured"})
	}
	found = append(found, findings("resourcemanager", managers)...)
	return append(found, examineNodes(c.Context, cl)...)
}

// memberFindings says which members of the group the leader lacks, in the list of the configuration or not: each of them is
// part of the majority that is needed.
func memberFindings(leader serverHealth) (found []finding) {
	for _, m := range leader.Members {
		f := finding{what: "members"}
		switch {
		case m.ID == leader.ID:
			continue
		case !m.Voter:
			f.detail, f.remedy = m.ID+" has no vote yet", "wait until it has caught up"
		case !m.Known:
			f.detail, f.remedy = m.ID+" has never answered "+leader.ID+", which leads", "start it, or, if it is gone for good: hops namenode remove "+m.ID
		case m.Silent > mostSilence.Seconds():
			f.detail = fmt.Sprintf("%s has not answered %s, which leads, for %.0fs", m.ID, leader.ID, m.Silent)
			f.remedy = "start it, or, if it is gone for good: hops namenode remove " + m.ID
		case m.Match+mostLag < leader.Index:
			f.detail, f.remedy = fmt.Sprintf("%s is %d entries behind", m.ID, leader.Index-m.Match), "look at its disk, its network and its log"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// examineFiles looks at datanodes and blocks, and tries the filesystem.
func examineFiles(ctx context.Context, cl *client.Client) []finding {
	var found []finding
	nodes, err := patiently(ctx, func(ctx context.Context) ([]dfs.Datanode, error) { return cl.FS().Datanodes(ctx, dfs.LiveDatanodes) })
	if err != nil {
		return []finding{{what: "filesystem", detail: err.Error(), remedy: "start the namenodes (hops dev, or hops server --role namenode); a majority of them must run"}}
	}
	var datanodes []*server
	var remaining, capacity int64
	for _, n := range nodes {
		datanodes = append(datanodes, &server{role: "datanode", address: fmt.Sprintf("%s:%d", n.IP, n.HTTPPort)})
		remaining, capacity = remaining+n.Remaining, capacity+n.Capacity
	}
	ask(ctx, datanodes)
	found = append(found, findings("datanode", datanodes)...)
	dead, err := patiently(ctx, func(ctx context.Context) ([]dfs.Datanode, error) { return cl.FS().Datanodes(ctx, dfs.DeadDatanodes) })
	if err != nil {
		found = append(found, finding{what: "datanode", detail: "which ones are dead is not known: " + err.Error(), remedy: "look at the namenodes' logs"})
	}
	for _, n := range dead {
		found = append(found, finding{
			what: "datanode", detail: fmt.Sprintf("%s:%d is dead: last heard %s", n.IP, n.TransferPort, n.LastContact.Time().Format(time.DateTime)),
			remedy: "start it, or give it up: hops datanode forget " + fmt.Sprintf("%s:%d", n.IP, n.TransferPort) + "; its blocks are copied elsewhere meanwhile",
		})
	}
	if capacity > 0 {
		f := finding{what: "space", ok: remaining > capacity/20, detail: fmt.Sprintf("%s of %s free on the datanodes", size.About(remaining), size.About(capacity))}
		if !f.ok {
			f.remedy = "delete files, or add a datanode or a volume"
		}
		found = append(found, f)
	}
	stats, err := patiently(ctx, cl.FS().FsStats)
	if err != nil {
		found = append(found, finding{what: "blocks", detail: err.Error(), remedy: "look at the namenodes' logs"})
	} else {
		f := finding{
			what: "blocks", ok: stats.MissingBlocks == 0 && stats.UnderReplicated == 0,
			detail: fmt.Sprintf("%d missing, %d under-replicated, %d corrupt", stats.MissingBlocks, stats.UnderReplicated, stats.CorruptBlocks),
		}
		switch {
		case stats.MissingBlocks > 0:
			f.remedy = "start the datanodes that have them"
		case stats.UnderReplicated > 0:
			f.remedy = "wait until they are copied; that needs as many datanodes with space as the files have replicas"
		}
		found = append(found, f)
	}
	found = append(found, examineDirectories(ctx, cl))
	return append(found, probe(ctx, cl))
}

// patiently asks one thing, for which a server has serverPatience however long others have taken.
func patiently[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	return question(ctx)
}

// examineDirectories looks at the directories that every user needs.
func examineDirectories(ctx context.Context, cl *client.Client) finding {
	f := finding{what: "directories"}
	var wrong []string
	for _, dir := range config.SystemDirectories {
		info, err := patiently(ctx, func(ctx context.Context) (metadata.FileStatus, error) { return cl.FS().Stat(ctx, dir) })
		switch {
		case errors.Is(err, metadata.ErrNotExist):
			wrong = append(wrong, dir+" is missing")
			f.remedy = "make it as the superuser, with mode 1777 (/user: 755); namenodes do so for those in fs.protected.directories"
		case err != nil:
			wrong = append(wrong, dir+": "+err.Error())
			f.remedy = cmp.Or(f.remedy, "look at the namenodes' logs")
		case dir != "/user" && info.Mode&0o777 != 0o777:
			wrong = append(wrong, fmt.Sprintf("%s is for %s alone: mode %o, not 1777", dir, info.Owner, info.Mode&0o1777))
		}
	}
	f.ok, f.detail = len(wrong) == 0, strings.Join(wrong, "; ")
	if f.ok {
		f.detail = strings.Join(config.SystemDirectories, ", ") + " are there"
	}
	return f
}

// probe writes, reads and deletes a small file, as the user who asks, where that user may.
func probe(ctx context.Context, cl *client.Client) finding {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	fs := cl.FS()
	content := []byte("written by hops doctor\n")
	var refused error
	for _, dir := range []string{"/tmp", "/user/" + cl.User(), "/"} {
		name := fmt.Sprintf("%s/.hops-doctor-%016x", strings.TrimSuffix(dir, "/"), rand.Uint64())
		start := time.Now()
		w, err := fs.Create(ctx, name, dfs.CreateOptions{}) // ends with ctx
		kind := metadata.KindOf(err)
		if err != nil && (kind == metadata.ErrPermission || kind == metadata.ErrNotExist) {
			refused = err
			continue
		}
		if err == nil {
			_, err = w.Write(content)
			if closed := w.Close(); err == nil { // after a write that failed it fails alike
				err = closed
			}
			if err == nil {
				var got []byte
				if got, err = fs.ReadFile(ctx, name); err == nil && !bytes.Equal(got, content) {
					err = fmt.Errorf("%s reads as %q", name, got)
				}
			}
			kind = metadata.KindOf(err)
		}
		took := time.Since(start).Round(time.Millisecond)
		clean, done := context.WithTimeout(context.WithoutCancel(ctx), serverPatience)
		_, deleted := fs.Delete(clean, name, false)
		done()
		if err == nil {
			err = deleted
		}
		if err != nil {
			remedy := "look at the namenode's and the datanodes' logs"
			switch kind {
			case metadata.ErrSafeMode:
				remedy = "wait for the datanodes to report, or free disk space on the namenodes"
			case metadata.ErrNoSpace:
				remedy = "free disk space on the datanodes"
			}
			return finding{what: "filesystem", detail: "a file cannot be written and read: " + err.Error(), remedy: remedy}
		}
		return finding{what: "filesystem", ok: true, detail: fmt.Sprintf("writable: a file was written, read and deleted in %s within %v", dir, took)}
	}
	return finding{what: "filesystem", detail: fmt.Sprintf("not tried: %s may write nowhere that was looked at (%v)", cl.User(), refused)}
}

// examineNodes looks at the nodes of the resource manager, and asks their node managers.
func examineNodes(ctx context.Context, cl *client.Client) []finding {
	nodes, err := patiently(ctx, cl.Jobs().Nodes)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return []finding{{what: "nodes", detail: err.Error(), remedy: "start a resource manager: hops server --role resourcemanager"}}
	case err != nil:
		return []finding{{what: "nodes", detail: err.Error(), remedy: "look at the resource manager's log"}}
	}
	found, running := nodeFindings(nodes)
	ask(ctx, running)
	return append(found, findings("nodemanager", running)...)
}

// nodeFindings says what the resource manager knows of its nodes, and which node managers ought to answer.
func nodeFindings(nodes []client.Node) (found []finding, running []*server) {
	gpus, simulated, instances := 0, 0, 0
	notes := map[string][]string{} // which nodes say so
	for _, n := range nodes {
		if n.State != rm.NodeRunning {
			f := finding{what: "nodemanager", detail: fmt.Sprintf("%s is %s: %s", n.ID, n.State, n.HealthReport)}
			f.remedy = "start it (hops server --role nodemanager), or look at its log"
			switch {
			case n.State == rm.NodeUnhealthy:
				f.remedy = "mend it; it takes work again by itself"
			case n.Leaving != nil: // as an operator wants it
				f.ok, f.remedy = true, ""
			}
			found = append(found, f)
			continue
		}
		running = append(running, &server{role: "nodemanager", address: n.HTTP})
		for _, g := range n.GPUs {
			if g.Profile != "" {
				instances++
				continue
			}
			if gpus++; g.Simulated {
				simulated++
			}
		}
		for note := range strings.SplitSeq(n.HealthReport, "; ") {
			if note != "" && !strings.HasSuffix(note, " simulated") { // these are counted below
				notes[note] = append(notes[note], n.ID)
			}
		}
	}
	for _, note := range slices.Sorted(maps.Keys(notes)) {
		who := notes[note]
		names := strings.Join(who[:min(len(who), shownOfRole)], ", ")
		if more := len(who) - shownOfRole; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		found = append(found, finding{what: "nodemanager", detail: names + ": " + note})
	}
	f := finding{what: "nodes", ok: len(running) > 0, detail: fmt.Sprintf("%d that take work, with %d GPUs", len(running), gpus)}
	if instances > 0 {
		f.detail += fmt.Sprintf(" and %d MIG instances", instances)
	}
	if simulated > 0 {
		f.detail += fmt.Sprintf(" (%d simulated)", simulated)
	}
	if !f.ok {
		f.remedy = "start a node manager: hops server --role nodemanager"
	}
	return append(found, f), running
}
