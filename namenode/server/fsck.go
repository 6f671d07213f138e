package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// fsck walks over a tree in the rights of who asks and tells what is wrong with its blocks, in the words of HDFS (NamenodeFsck), which
// its client reads: the last line decides about the exit status. The answer is written while the walk goes on, a page of a directory
// at a time, so that it takes neither memory nor locks for longer than a page.

// fsckRoute is where HDFS's fsck asks.
const fsckRoute = "GET /fsck"

const (
	// fsckAtOnce is how many walks are under way at a time.
	fsckAtOnce = 4
	// fsckPage is how many entries of a directory, or blocks of a file, are looked at at a time.
	fsckPage = 200
	// fsckBreath is how often who asked hears that it goes on: HDFS's client gives up after 60 s without a word.
	fsckBreath = 10 * time.Second
	// fsckPatience is how long a client may take nothing of the answer.
	fsckPatience = time.Minute
)

// How the last line of a report ends.
const (
	statusHealthy = "is HEALTHY"
	statusCorrupt = "is CORRUPT"
	statusFailed  = "FAILED"
	statusNowhere = "does not exist"
)

// fsckRun is one walk.
type fsckRun struct {
	*Server
	ctx    context.Context
	caller metadata.Caller
	w      *bufio.Writer
	path   string
	racks  int // that the datanodes of the cluster stand on
	// What is shown.
	files, blocks, locations, rackNames, details, domains, open, maintenance, snapshots bool
	// What is done to files that lack blocks, and to blocks that stand on too few racks.
	move, remove, requeue bool
	policies              *policySummary // nil: it is not asked for

	client *dfs.Client // copies what move saves; nil: nothing was copied yet
	mouth  sync.Mutex  // held by who breathes
	breath time.Time   // when who asked has heard something for certain; guarded by mouth
	failed bool        // something that was asked for could not be done
	begun  time.Time
	totals fsckTotals
	coded  fsckTotals // of files with an erasure coding policy: their blocks are groups, replicas internal blocks
}

// fsckTotals are the sums at the end of a report.
type fsckTotals struct {
	dirs, files, openFiles                       int64
	size, openSize                               int64
	blocks, openBlocks                           int64
	replicas, wanted, lacking                    int64
	enough, tooFew, over, under, misplaced       int64
	corruptFiles, corruptBlocks, corruptSize     int64
	missingBlocks, missingSize                   int64
	decommissioned, leaving, entering, inService int64
	queued                                       int64 // for copies on more racks
}

// fsckDoor serves fsckRoute.
func (s *Server) fsckDoor(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if ugi := query.Get("ugi"); ugi != "" && query.Get("user.name") == "" { // HDFS's client claims its name so
		query.Set("user.name", ugi)
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
	}
	caller, err := s.config.Door.HTTPCaller(r)
	d := security.Decision{Caller: caller, Port: "fsck", Command: "fsck", Source: query.Get("path"), Read: !changing(query)}
	if err == nil {
		err = s.mayFsck(r, caller)
	}
	d.Allowed = !security.Refused(err)
	if err != nil {
		d.Reason = err.Error()
	}
	s.config.Door.Record(d)
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if err != nil {
		http.Error(w, err.Error(), memberStatus(err))
		return
	}
	if s.fscks.Add(1) > fsckAtOnce {
		s.fscks.Add(-1)
		header.Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d others check already: try again", fsckAtOnce), http.StatusServiceUnavailable)
		return
	}
	defer s.fscks.Add(-1)
	if query.Has("move") {
		if !s.moving.CompareAndSwap(false, true) { // two would make the same files
			header.Set("Retry-After", "10")
			http.Error(w, "another fsck -move is under way: try again", http.StatusServiceUnavailable)
			return
		}
		defer s.moving.Store(false)
	}
	f := &fsckRun{
		Server: s, ctx: r.Context(), caller: caller, begun: time.Now(), breath: time.Now(), path: query.Get("path"),
		files: query.Has("files"), blocks: query.Has("blocks"), locations: query.Has("locations"), rackNames: query.Has("racks"),
		details: query.Has("replicadetails"), domains: query.Has("upgradedomains"), open: query.Has("openforwrite"), maintenance: query.Has("maintenance"),
		snapshots: query.Has("includeSnapshots"), move: query.Has("move"), remove: query.Has("delete"), requeue: query.Has("replicate"),
	}
	if query.Has("storagepolicies") {
		f.policies = &policySummary{}
	}
	if f.path == "" {
		f.path = "/"
	}
	f.w = bufio.NewWriterSize(&patient{w, http.NewResponseController(w)}, 16<<10)
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	switch {
	case query.Has("blockId"):
		f.printf("FSCK started by %s (auth:SIMPLE) from /%s at %s\n", caller.User, host, javaTime(f.begun))
		f.lookUp(strings.Fields(query.Get("blockId")))
	case query.Has("listcorruptfileblocks"):
		f.listCorrupt(query.Get("startblockafter"))
	default:
		f.printf("FSCK started by %s (auth:SIMPLE) from /%s for path %s at %s\n", caller.User, host, f.path, javaTime(f.begun))
		f.walk()
	}
	if f.client != nil {
		f.client.Close()
	}
	_ = f.w.Flush() // fails only when the client is gone
}

// changing reports whether a walk is to change something.
func changing(query url.Values) bool {
	return query.Has("move") || query.Has("delete") || query.Has("replicate")
}

// mayFsck refuses what is not to be had here, and those who may not have it.
func (s *Server) mayFsck(r *http.Request, c metadata.Caller) error {
	query := r.URL.Query()
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" && changing(query) {
		return metadata.Errorf(metadata.ErrPermission, "fsck -move, -delete and -replicate are not taken from another site's page")
	}
	if !s.Active() {
		return namenode.ErrStandbyRead
	}
	if s.listing.Load() {
		return metadata.Errorf(metadata.ErrRetriable, "which blocks there are is not known yet. %s", s.waiting())
	}
	// They name files of anybody, or have the namenode write.
	if (query.Has("blockId") || query.Has("listcorruptfileblocks") || query.Has("move")) && !c.Superuser {
		return metadata.NeedsSuperuser(c.User, "fsck")
	}
	return nil
}

// patient gives the client time for each part of an answer.
type patient struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(fsckPatience)) // a recorder in a test has none
	n, err := p.w.Write(b)
	if err == nil {
		_ = p.control.Flush()
	}
	return n, err
}

// breathe has who asked hear now and then that it goes on, of a walk that finds nothing to tell of, too. It returns for how long nothing need be said.
func (f *fsckRun) breathe() time.Duration {
	f.mouth.Lock()
	defer f.mouth.Unlock()
	now := time.Now()
	if now.Sub(f.breath) >= fsckBreath {
		f.breath = now
		f.printf("\n")
		_ = f.w.Flush() // ctx ends when the client is gone
	}
	return f.breath.Add(fsckBreath).Sub(now)
}

// meanwhile does what waits for datanodes or other namenodes, while who asked hears that it goes on. It prints nothing.
func (f *fsckRun) meanwhile(wait func()) {
	done := make(chan struct{})
	var breathing sync.WaitGroup
	breathing.Go(func() {
		for {
			next := time.NewTimer(f.breathe())
			select {
			case <-done:
				next.Stop()
				return
			case <-next.C:
			}
		}
	})
	defer breathing.Wait()
	defer close(done)
	wait()
}

func (f *fsckRun) printf(format string, args ...any) { fmt.Fprintf(f.w, format, args...) }

// javaTime is a time as Java's Date prints it.
func javaTime(t time.Time) string { return t.Format("Mon Jan 02 15:04:05 MST 2006") }

// javaFloat is a float as Java prints it: 100.0, 13.333333.
func javaFloat(x float32) string {
	text := strconv.FormatFloat(float64(x), 'f', -1, 32)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// walk checks a tree.
func (f *fsckRun) walk() {
	racks := map[string]struct{}{}
	nodes := 0
	for _, n := range f.Datanodes() {
		if n.Alive {
			nodes++
			racks[n.Node.Rack] = struct{}{}
		}
	}
	f.racks = len(racks)
	status, err := f.ns.Stat(f.caller, f.path)
	if err == nil && status == nil {
		f.printf("\n\nPath '%s' %s\n", f.path, statusNowhere)
		return
	}
	if err == nil {
		err = f.check(f.path, status)
	}
	if err != nil {
		f.fail(err)
		return
	}
	t := &f.totals
	healthy, word := t.missingBlocks+t.corruptBlocks+f.coded.missingBlocks+f.coded.corruptBlocks == 0, "HEALTHY"
	if !healthy {
		word = "CORRUPT"
	}
	f.printf("\nStatus: %s\n Number of data-nodes:\t%d\n Number of racks:\t\t%d\n Total dirs:\t\t\t%d\n Total symlinks:\t\t0\n\nReplicated Blocks:\n", word, nodes, f.racks, t.dirs)
	f.printTotals()
	f.printf("\nErasure Coded Block Groups:\n")
	f.printCoded()
	if f.policies != nil {
		f.policies.print(f.w)
	}
	f.end()
	if f.failed {
		f.fail(errFsck)
		return
	}
	status0 := statusHealthy
	if !healthy {
		status0 = statusCorrupt
	}
	f.printf("\n\nThe filesystem under path '%s' %s\n", f.path, status0)
}

// errFsck is HDFS's word for what the report has said above.
var errFsck = errors.New("fsck encountered internal errors!")

func (f *fsckRun) end() {
	now := time.Now()
	f.printf("FSCK ended at %s in %d milliseconds\n", javaTime(now), now.Sub(f.begun).Milliseconds())
}

// fail ends a report that says nothing of how healthy it all is.
func (f *fsckRun) fail(err error) {
	f.end()
	f.printf("%v\n\n\nFsck on path '%s' %s\n", err, f.path, statusFailed)
}

// partOf is a part in percent, as HDFS prints it behind a number.
func partOf(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return " (" + javaFloat(float32(part*100)/float32(whole)) + " %)"
}

// printTotals is NamenodeFsck.ReplicationResult.toString.
func (f *fsckRun) printTotals() {
	t := &f.totals
	f.printf(" Total size:\t%d B", t.size)
	if t.openSize != 0 {
		f.printf(" (Total open files size: %d B)", t.openSize)
	}
	f.printf("\n Total files:\t%d", t.files)
	if t.openFiles != 0 {
		f.printf(" (Files currently being written: %d)", t.openFiles)
	}
	f.printf("\n Total blocks (validated):\t%d", t.blocks)
	if t.blocks > 0 {
		f.printf(" (avg. block size %d B)", t.size/t.blocks)
	}
	if t.openBlocks != 0 {
		f.printf(" (Total open file blocks (not validated): %d)", t.openBlocks)
	}
	if t.corruptFiles > 0 || t.tooFew > 0 {
		f.printf("\n  ********************************")
		if t.tooFew > 0 {
			f.printf("\n  UNDER MIN REPL'D BLOCKS:\t%d%s\n  MINIMAL BLOCK REPLICATION:\t1", t.tooFew, partOf(t.tooFew, t.blocks))
		}
		if t.corruptFiles > 0 {
			f.printf("\n  CORRUPT FILES:\t%d", t.corruptFiles)
			if t.missingSize > 0 {
				f.printf("\n  MISSING BLOCKS:\t%d\n  MISSING SIZE:\t\t%d B", t.missingBlocks, t.missingSize)
			}
			if t.corruptBlocks > 0 {
				f.printf("\n  CORRUPT BLOCKS: \t%d\n  CORRUPT SIZE:\t\t%d B", t.corruptBlocks, t.corruptSize)
			}
		}
		f.printf("\n  ********************************")
	}
	f.printf("\n Minimally replicated blocks:\t%d%s", t.enough, partOf(t.enough, t.blocks))
	f.printf("\n Over-replicated blocks:\t%d%s", t.over, partOf(t.over, t.blocks))
	f.printf("\n Under-replicated blocks:\t%d%s", t.under, partOf(t.under, t.blocks))
	f.printf("\n Mis-replicated blocks:\t\t%d%s", t.misplaced, partOf(t.misplaced, t.blocks))
	f.printf("\n Default replication factor:\t%d", f.config.Properties.Replication)
	average := float32(0)
	if t.blocks > 0 {
		average = float32(t.replicas) / float32(t.blocks)
	}
	f.printf("\n Average block replication:\t%s\n Missing blocks:\t\t%d\n Corrupt blocks:\t\t%d\n Missing replicas:\t\t%d%s",
		javaFloat(average), t.missingBlocks, t.corruptBlocks, t.lacking, partOf(t.lacking, t.wanted))
	if t.decommissioned > 0 {
		f.printf("\n DecommissionedReplicas:\t%d", t.decommissioned)
	}
	if t.leaving > 0 {
		f.printf("\n DecommissioningReplicas:\t%d", t.leaving)
	}
	if t.entering > 0 {
		f.printf("\n EnteringMaintenanceReplicas:\t%d", t.entering)
	}
	if t.inService > 0 {
		f.printf("\n InMaintenanceReplicas:\t%d", t.inService)
	}
	f.printf("\n Blocks queued for replication:\t%d\n", t.queued)
}

// printCoded is NamenodeFsck.ErasureCodingResult.toString.
func (f *fsckRun) printCoded() {
	t := &f.coded
	f.printf(" Total size:\t%d B", t.size)
	if t.openSize != 0 {
		f.printf(" (Total open files size: %d B)", t.openSize)
	}
	f.printf("\n Total files:\t%d", t.files)
	if t.openFiles != 0 {
		f.printf(" (Files currently being written: %d)", t.openFiles)
	}
	f.printf("\n Total block groups (validated):\t%d", t.blocks)
	if t.blocks > 0 {
		f.printf(" (avg. block group size %d B)", t.size/t.blocks)
	}
	if t.openBlocks != 0 {
		f.printf(" (Total open file block groups (not validated): %d)", t.openBlocks)
	}
	if t.corruptFiles > 0 || t.tooFew > 0 {
		f.printf("\n  ********************************")
		if t.tooFew > 0 {
			f.printf("\n  UNRECOVERABLE BLOCK GROUPS:\t%d%s", t.tooFew, partOf(t.tooFew, t.blocks))
		}
		if t.corruptFiles > 0 {
			f.printf("\n  CORRUPT FILES:\t%d", t.corruptFiles)
			if t.missingSize > 0 {
				f.printf("\n  MISSING BLOCK GROUPS:\t%d\n  MISSING SIZE:\t\t%d B", t.missingBlocks, t.missingSize)
			}
			if t.corruptBlocks > 0 {
				f.printf("\n  CORRUPT BLOCK GROUPS: \t%d\n  CORRUPT SIZE:\t\t%d B", t.corruptBlocks, t.corruptSize)
			}
		}
		f.printf("\n  ********************************")
	}
	average := float32(0)
	if t.blocks > 0 {
		average = float32(t.replicas) / float32(t.blocks)
	}
	f.printf("\n Minimally erasure-coded block groups:\t%d%s\n Over-erasure-coded block groups:\t%d%s\n Under-erasure-coded block groups:\t%d%s\n"+
		" Unsatisfactory placement block groups:\t%d%s\n Average block group size:\t%s\n Missing block groups:\t\t%d\n Corrupt block groups:\t\t%d\n Missing internal blocks:\t%d%s",
		t.enough, partOf(t.enough, t.blocks), t.over, partOf(t.over, t.blocks), t.under, partOf(t.under, t.blocks), t.misplaced, partOf(t.misplaced, t.blocks),
		javaFloat(average), t.missingBlocks, t.corruptBlocks, t.lacking, partOf(t.lacking, t.wanted))
	if t.decommissioned > 0 {
		f.printf("\n Decommissioned internal blocks:\t%d", t.decommissioned)
	}
	if t.leaving > 0 {
		f.printf("\n Decommissioning internal blocks:\t%d", t.leaving)
	}
	if t.entering > 0 {
		f.printf("\n EnteringMaintenanceReplicas:\t%d", t.entering)
	}
	if t.inService > 0 {
		f.printf("\n InMaintenanceReplicas:\t%d", t.inService)
	}
	f.printf("\n Blocks queued for replication:\t%d\n", t.queued)
}

// check looks at a file, or at a directory and everything below it.
func (f *fsckRun) check(path string, s *metadata.FileStatus) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	if (f.totals.dirs+f.totals.files+f.coded.files)%1000 == 0 {
		f.printf("\n")
	}
	f.breathe()
	if !s.IsDir() {
		return f.checkFile(path)
	}
	if f.snapshots && s.Snapshottable {
		inside := strings.TrimSuffix(path, "/") + "/.snapshot"
		if all, err := f.ns.Stat(f.caller, inside); err != nil || all == nil { // nil: meanwhile it is not snapshottable
			return err
		} else if err := f.check(inside, all); err != nil {
			return err
		}
	}
	if f.files {
		f.printf("%s <dir>\n", path)
	}
	f.totals.dirs++
	for after := ""; ; {
		l, err := f.ns.List(f.caller, path, after, fsckPage)
		if err != nil || l == nil { // nil: it is gone
			return err
		}
		if !f.Active() {
			return namenode.ErrStandbyRead
		}
		for i := range l.Entries {
			e := &l.Entries[i]
			if err := f.check(strings.TrimSuffix(path, "/")+"/"+e.Name, e); err != nil {
				return err
			}
			after = e.Name
		}
		if l.Remaining == 0 || len(l.Entries) == 0 {
			return nil
		}
	}
}
