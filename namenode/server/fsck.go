package server

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
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
	files, blocks, locations, rackNames, details, open, maintenance, remove bool

	begun  time.Time
	totals fsckTotals
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
	d := security.Decision{Caller: caller, Port: "fsck", Command: "fsck", Source: query.Get("path"), Read: !query.Has("delete")}
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
	f := &fsckRun{
		Server: s, ctx: r.Context(), caller: caller, begun: time.Now(), path: query.Get("path"),
		files: query.Has("files"), blocks: query.Has("blocks"), locations: query.Has("locations"), rackNames: query.Has("racks"),
		details: query.Has("replicadetails"), open: query.Has("openforwrite"), maintenance: query.Has("maintenance"), remove: query.Has("delete"),
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
	_ = f.w.Flush() // fails only when the client is gone
}

// mayFsck refuses what is not to be had here, and those who may not have it.
func (s *Server) mayFsck(r *http.Request, c metadata.Caller) error {
	query := r.URL.Query()
	for _, no := range []string{"move", "replicate", "storagepolicies", "upgradedomains", "includeSnapshots"} {
		if query.Has(no) {
			return metadata.Errorf(metadata.ErrInvalidArgument, "fsck -%s is not supported", no)
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" && query.Has("delete") {
		return metadata.Errorf(metadata.ErrPermission, "fsck -delete is not taken from another site's page")
	}
	if !s.Active() {
		return namenode.ErrStandbyRead
	}
	if (query.Has("blockId") || query.Has("listcorruptfileblocks")) && !c.Superuser { // they name files of anybody
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
		f.printf("%v\n\n\nFsck on path '%s' %s\n", err, f.path, statusFailed)
		return
	}
	t := &f.totals
	healthy, word := t.missingBlocks+t.corruptBlocks == 0, "HEALTHY"
	if !healthy {
		word = "CORRUPT"
	}
	f.printf("\nStatus: %s\n Number of data-nodes:\t%d\n Number of racks:\t\t%d\n Total dirs:\t\t\t%d\n Total symlinks:\t\t0\n\nReplicated Blocks:\n", word, nodes, f.racks, t.dirs)
	f.printTotals()
	f.printf("\nErasure Coded Block Groups:\n Total size:\t0 B\n Total files:\t0\n Total block groups (validated):\t0\n Minimally erasure-coded block groups:\t0\n" +
		" Over-erasure-coded block groups:\t0\n Under-erasure-coded block groups:\t0\n Unsatisfactory placement block groups:\t0\n Average block group size:\t0.0\n" +
		" Missing block groups:\t\t0\n Corrupt block groups:\t\t0\n Missing internal blocks:\t0\n")
	f.printf(" Blocks queued for replication:\t0\n")
	now := time.Now()
	f.printf("FSCK ended at %s in %d milliseconds\n", javaTime(now), now.Sub(f.begun).Milliseconds())
	status0 := statusHealthy
	if !healthy {
		status0 = statusCorrupt
	}
	f.printf("\n\nThe filesystem under path '%s' %s\n", f.path, status0)
}

// printTotals is NamenodeFsck.ReplicationResult.toString.
func (f *fsckRun) printTotals() {
	t := &f.totals
	share := func(part, whole int64) string {
		if whole == 0 {
			return ""
		}
		return " (" + javaFloat(float32(part*100)/float32(whole)) + " %)"
	}
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
			f.printf("\n  UNDER MIN REPL'D BLOCKS:\t%d%s\n  MINIMAL BLOCK REPLICATION:\t1", t.tooFew, share(t.tooFew, t.blocks))
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
	f.printf("\n Minimally replicated blocks:\t%d%s", t.enough, share(t.enough, t.blocks))
	f.printf("\n Over-replicated blocks:\t%d%s", t.over, share(t.over, t.blocks))
	f.printf("\n Under-replicated blocks:\t%d%s", t.under, share(t.under, t.blocks))
	f.printf("\n Mis-replicated blocks:\t\t%d%s", t.misplaced, share(t.misplaced, t.blocks))
	f.printf("\n Default replication factor:\t%d", f.config.Properties.Replication)
	average := float32(0)
	if t.blocks > 0 {
		average = float32(t.replicas) / float32(t.blocks)
	}
	f.printf("\n Average block replication:\t%s\n Missing blocks:\t\t%d\n Corrupt blocks:\t\t%d\n Missing replicas:\t\t%d%s",
		javaFloat(average), t.missingBlocks, t.corruptBlocks, t.lacking, share(t.lacking, t.wanted))
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
	f.printf("\n Blocks queued for replication:\t0\n")
}

// check looks at a file, or at a directory and everything below it.
func (f *fsckRun) check(path string, s *metadata.FileStatus) error {
	if err := f.ctx.Err(); err != nil {
		return err
	}
	if (f.totals.dirs+f.totals.files)%1000 == 0 {
		f.printf("\n")
	}
	if !s.IsDir() {
		return f.checkFile(path)
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

// checkFile looks at the blocks of a file.
func (f *fsckRun) checkFile(path string) error {
	file, err := f.ns.Blocks(f.caller, path, 0, 1<<62)
	if metadata.KindOf(err) == metadata.ErrNotExist && err != nil {
		return nil // it is gone
	}
	if err != nil {
		return err
	}
	t := &f.totals
	all := len(file.Blocks)
	if file.UnderConstruction && !f.open {
		t.openFiles++
		t.openSize += file.Length
		t.openBlocks += int64(all)
		return nil
	}
	t.files++
	t.size += file.Length
	t.blocks += int64(all)
	if f.files || f.open && file.UnderConstruction {
		state := ":"
		if f.open && file.UnderConstruction {
			state = ", OPENFORWRITE:"
		}
		f.printf("%s %d bytes, replicated: replication=%d, %d block(s)%s ", path, file.Length, file.Status.Replication, all, state)
	}
	one := &fsckFile{fsckRun: f, path: path, want: int(file.Status.Replication)}
	for at := 0; at < all; at += fsckPage {
		page := file.Blocks[at:min(at+fsckPage, all)]
		reports := make([]blockmanager.BlockReport, len(page))
		f.soft.mu.Lock()
		for i := range page {
			reports[i], _ = f.soft.m.Describe(page[i].Block.ID)
		}
		f.soft.mu.Unlock()
		for i := range page {
			if page[i].Complete {
				one.block(at+i, page[i].Block, &reports[i])
			} else {
				one.openBlock(at+i, &page[i], &reports[i])
			}
		}
	}
	one.end(file)
	return nil
}

// fsckFile is a file on its way through a walk.
type fsckFile struct {
	*fsckRun
	path                            string
	want                            int
	missing, corrupt, under, astray int
	missingSize, corruptSize        int64
	report                          strings.Builder
	reported                        bool
}

// name is a block as HDFS prints it.
func (f *fsckRun) name(b metadata.Block) string {
	return fmt.Sprintf("%s:blk_%d_%d", f.BlockPool(), b.ID, b.Generation)
}

// holders counts the readable replicas by what an operator has made of their datanodes.
func holders(r *blockmanager.BlockReport) (n [namenode.InMaintenance + 1]int, racks map[string]struct{}) {
	racks = map[string]struct{}{}
	for _, at := range r.At {
		if !at.Good || at.Doomed || at.Dead && at.Node.Admin != namenode.InMaintenance {
			continue
		}
		n[at.Node.Admin]++
		racks[at.Node.Rack] = struct{}{}
	}
	return n, racks
}

// block is one that is complete.
func (f *fsckFile) block(number int, b metadata.Block, r *blockmanager.BlockReport) {
	t := &f.totals
	n, racks := holders(r)
	live := n[namenode.Normal]
	total := 0
	for _, k := range n {
		total += k
	}
	t.decommissioned += int64(n[namenode.Decommissioned])
	t.leaving += int64(n[namenode.DecommissionInProgress])
	t.entering += int64(n[namenode.EnteringMaintenance])
	t.inService += int64(n[namenode.InMaintenance])
	t.replicas += int64(total)
	if total < 1 {
		t.tooFew++
	} else {
		t.enough++
		t.wanted += int64(f.want)
	}
	if live > f.want {
		t.over++
	}
	corrupt := total == 0 && r.Corrupt > 0
	if corrupt {
		t.corruptBlocks++
		t.corruptSize += b.Length
		f.corrupt++
		f.corruptSize += b.Length
		f.printf("\n%s: CORRUPT blockpool %s block blk_%d\n", f.path, f.BlockPool(), b.ID)
	}
	if total < f.want && total > 0 {
		t.lacking += int64(f.want - total)
		t.under++
		f.under++
		if !f.files {
			f.printf("\n%s: ", f.path)
		}
		f.printf(" Under replicated %s. Target Replicas is %d but found %d live replica(s), %d decommissioned replica(s), %d decommissioning replica(s)",
			f.name(b), f.want, live, n[namenode.Decommissioned], n[namenode.DecommissionInProgress])
		if f.maintenance {
			f.printf(", %d entering maintenance replica(s) and %d in maintenance replica(s)", n[namenode.EnteringMaintenance], n[namenode.InMaintenance])
		}
		f.printf(".\n")
	}
	if least := min(2, f.want, f.racks); len(racks) < least && total > 1 {
		t.misplaced++
		f.astray++
		if !f.files {
			if f.under == 0 {
				f.printf("\n")
			}
			f.printf("%s: ", f.path)
		}
		f.printf(" Replica placement policy is violated for %s. Block should be additionally replicated on %d more rack(s). Total number of racks in the cluster: %d\n",
			f.name(b), least-len(racks), f.racks)
	}
	gone := total == 0 && !corrupt
	if gone {
		t.missingBlocks++
		t.missingSize += b.Length
		f.missing++
		f.missingSize += b.Length
	}
	if !f.files || !f.blocks {
		return
	}
	fmt.Fprintf(&f.report, "%d. %s len=%d", number, f.name(b), b.Length)
	if gone {
		f.report.WriteString(" MISSING!\n")
	} else {
		fmt.Fprintf(&f.report, " Live_repl=%d%s\n", live, f.places(r))
	}
	f.spill()
}

// openBlock is the last one of a file that is being written.
func (f *fsckFile) openBlock(number int, b *namespace.BlockAt, r *blockmanager.BlockReport) {
	if f.files && f.blocks {
		fmt.Fprintf(&f.report, "\nUnder Construction Block:\n%d. %s len=%d Expected_repl=%d%s", number, f.name(b.Block), b.Block.Length, len(r.At), f.places(r))
	}
}

// spill writes what is reported of the blocks of a large file, whose verdict then stands behind it.
func (f *fsckFile) spill() {
	if f.report.Len() < 64<<10 {
		return
	}
	if !f.reported {
		f.printf("\n")
	}
	f.reported = true
	_, _ = f.w.WriteString(f.report.String()) // the error stays with the writer
	f.report.Reset()
}

// places lists the replicas of a block, if that is asked for.
func (f *fsckFile) places(r *blockmanager.BlockReport) string {
	if !f.locations && !f.rackNames && !f.details {
		return ""
	}
	var list []string
	for _, at := range r.At {
		if at.Dead {
			continue
		}
		text := at.Node.Rack + "/" + at.Node.TransferAddr()
		if !f.rackNames {
			text = fmt.Sprintf("DatanodeInfoWithStorage[%s,%s,%s]", at.Node.TransferAddr(), at.Volume, at.Type)
		}
		if f.details {
			text += "(" + f.detail(&at) + ")"
		}
		list = append(list, text)
	}
	return "  [" + strings.Join(list, ", ") + "]"
}

// detail is the state of a replica in a word.
func (f *fsckFile) detail(at *blockmanager.ReplicaReport) string {
	switch {
	case at.Node.Admin == namenode.Decommissioned:
		return "DECOMMISSIONED"
	case at.Node.Admin == namenode.DecommissionInProgress:
		return "DECOMMISSIONING"
	case f.maintenance && at.Node.Admin == namenode.EnteringMaintenance:
		return "ENTERING MAINTENANCE"
	case f.maintenance && at.Node.Admin == namenode.InMaintenance:
		return "IN MAINTENANCE"
	case at.Corrupt:
		return "CORRUPT"
	case at.Doomed:
		return "EXCESS"
	case at.Stale:
		return "STALE NODE"
	}
	return "LIVE"
}

// end tells what is wrong with the file as a whole, and removes it if that is asked for.
func (f *fsckFile) end(file *namespace.FileBlocks) {
	if f.missing+f.corrupt > 0 {
		if !f.files {
			if f.missing > 0 {
				f.printf("\n%s: MISSING %d blocks of total size %d B.", f.path, f.missing, f.missingSize)
			}
			if f.corrupt > 0 {
				f.printf("\n%s: CORRUPT %d blocks of total size %d B.", f.path, f.corrupt, f.corruptSize)
			}
		}
		f.totals.corruptFiles++
		if f.remove && !file.UnderConstruction {
			f.delete()
		}
	}
	if !f.files {
		return
	}
	switch {
	case f.missing+f.corrupt > 0:
		if f.missing > 0 {
			f.printf(" MISSING %d blocks of total size %d B\n", f.missing, f.missingSize)
		}
		if f.corrupt > 0 {
			f.printf(" CORRUPT %d blocks of total size %d B\n", f.corrupt, f.corruptSize)
		}
	case f.under+f.astray == 0:
		f.printf(" OK\n")
	}
	if f.blocks {
		f.printf("%s\n", f.report.String())
	}
}

// delete removes a corrupt file, in the rights of who asked for it.
func (f *fsckFile) delete() {
	if err := f.safe.check(f.Server); err != nil {
		f.printf("\n%s: not deleted: %v\n", f.path, err)
		return
	}
	err := f.await(func(done func(error)) {
		f.Delete(f.caller, namenode.Retry{}, f.path, false, func(_ bool, err error) { done(err) })
	})
	if err != nil {
		f.printf("\n%s: not deleted: %v\n", f.path, err)
	}
}

// lookUp tells of blocks by id.
func (f *fsckRun) lookUp(names []string) {
	const most = 1000
	for _, name := range names[:min(len(names), most)] {
		id, _, _ := strings.Cut(strings.TrimPrefix(name, "blk_"), "_")
		number, err := strconv.ParseInt(id, 10, 64)
		if err != nil || !strings.HasPrefix(name, "blk_") {
			f.printf("Incorrect blockId format: %s\n", name)
			continue
		}
		f.printf("\n")
		path, owned := f.ns.FileOfBlock(metadata.BlockID(number))
		f.soft.mu.Lock()
		r, known := f.soft.m.Describe(metadata.BlockID(number))
		f.soft.mu.Unlock()
		if !owned || !known {
			f.printf("Block %s %s\n", name, statusNowhere)
			continue
		}
		n, _ := holders(&r)
		f.printf("Block Id: %s\nBlock belongs to: %s\nNo. of Expected Replica: %d\nNo. of live Replica: %d\nNo. of excess Replica: %d\nNo. of stale Replica: %d\n"+
			"No. of decommissioned Replica: %d\nNo. of decommissioning Replica: %d\n",
			name, path, r.Want, n[namenode.Normal], r.Doomed, r.Stale, n[namenode.Decommissioned], n[namenode.DecommissionInProgress])
		if f.maintenance {
			f.printf("No. of entering maintenance Replica: %d\nNo. of in maintenance Replica: %d\n", n[namenode.EnteringMaintenance], n[namenode.InMaintenance])
		}
		f.printf("No. of corrupted Replica: %d\n", r.Corrupt)
		for _, at := range r.At {
			state := statusHealthy
			switch {
			case at.Corrupt:
				state = statusCorrupt
			case at.Node.Admin == namenode.Decommissioned:
				state = "is DECOMMISSIONED"
			case at.Node.Admin == namenode.DecommissionInProgress:
				state = "is DECOMMISSIONING"
			case at.Node.Admin == namenode.EnteringMaintenance:
				state = "is ENTERING MAINTENANCE"
			case at.Node.Admin == namenode.InMaintenance:
				state = "is IN MAINTENANCE"
			case at.Stale || at.Dead:
				state = "is STALE"
			}
			f.printf("Block replica on datanode/rack: %s%s %s\n", at.Node.Host, at.Node.Rack, state)
		}
	}
}

// listCorrupt lists the blocks without a good replica, all in one answer: its client asks again with the cookie, and hears that there
// are no more.
func (f *fsckRun) listCorrupt(after string) {
	said := func(filler string) {
		f.printf("\n\nThe filesystem under path '%s' has %s CORRUPT files\n\n", f.path, filler)
	}
	if after != "" && after != "0" {
		said("no more")
		return
	}
	found := 0
	for last := metadata.BlockID(0); f.ctx.Err() == nil && f.Active(); {
		f.soft.mu.Lock()
		lost := f.soft.m.Lost(last, lostStep)
		f.soft.mu.Unlock()
		for _, id := range lost {
			last = id
			if path, ok := f.ns.FileOfBlock(id); ok && below(path, f.path) {
				if found++; found == 1 {
					f.printf("Cookie:\t1\n")
				}
				f.soft.mu.Lock()
				r, _ := f.soft.m.Describe(id)
				f.soft.mu.Unlock()
				f.printf("blk_%d\t%d\t%s\n", id, r.Want, path)
			}
		}
		if len(lost) < lostStep {
			break
		}
	}
	if found == 0 {
		said("no")
		return
	}
	said(strconv.Itoa(found))
}
