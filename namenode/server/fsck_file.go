package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// checkFile looks at the blocks of a file.
func (f *fsckRun) checkFile(path string) error {
	file, err := f.ns.Blocks(f.caller, path, 0, 1<<62)
	if metadata.KindOf(err) == metadata.ErrNotExist && err != nil {
		return nil // it is gone
	}
	if err != nil {
		return err
	}
	f.judge(path, file)
	return nil
}

// judge tells of a file, as it was when its blocks were read.
func (f *fsckRun) judge(path string, file *namespace.FileBlocks) {
	t := &f.totals
	policy, coded := metadata.ErasurePolicyOf(file.Status.Erasure)
	if coded {
		t = &f.coded
	}
	all := len(file.Blocks)
	if file.UnderConstruction && !f.open {
		t.openFiles++
		t.openSize += file.Length
		t.openBlocks += int64(all)
		return
	}
	t.files++
	t.size += file.Length
	t.blocks += int64(all)
	if f.files || f.open && file.UnderConstruction {
		state := ":"
		if f.open && file.UnderConstruction {
			state = ", OPENFORWRITE:"
		}
		kind := fmt.Sprintf("replicated: replication=%d", file.Status.Replication)
		if coded {
			kind = "erasure-coded: policy=" + policy.Name
		}
		f.printf("%s %d bytes, %s, %d block(s)%s ", path, file.Length, kind, all, state)
	}
	one := &fsckFile{fsckRun: f, sums: t, path: path, replication: int(file.Status.Replication), policy: namenode.StoragePolicyByID(file.Status.StoragePolicy), coded: coded}
	for at := 0; at < all; at += fsckPage {
		page := file.Blocks[at:min(at+fsckPage, all)]
		reports := make([]blockmanager.BlockReport, len(page))
		known := true
		f.soft.mu.Lock()
		for i := range page {
			ok := false
			reports[i], ok = f.soft.m.Describe(page[i].Block.ID)
			known = known && (ok || page[i].Small)
		}
		f.soft.mu.Unlock()
		if !known && !f.stands(file) {
			one.changed = true
			break
		}
		for i := range page {
			if page[i].Small {
				one.body(at+i, page[i].Block)
			} else if page[i].Complete {
				one.block(at+i, page[i].Block, &reports[i])
			} else {
				one.openBlock(at+i, &page[i], &reports[i])
			}
		}
	}
	one.end(file)
}

// stands reports whether a file still is as it was when its blocks were read.
func (f *fsckRun) stands(was *namespace.FileBlocks) bool {
	if was.InSnapshot {
		return true
	}
	is, err := f.ns.Blocks(f.caller, inodePath(was), 0, 1<<62)
	return err == nil && is.UnderConstruction == was.UnderConstruction && slices.EqualFunc(is.Blocks, was.Blocks, func(a, b namespace.BlockAt) bool { return a.Block == b.Block })
}

// inodePath names a file whatever comes to its path.
func inodePath(file *namespace.FileBlocks) string { return inodeAt(file.Status.ID) }

func inodeAt(id metadata.INodeID) string { return fmt.Sprintf("/.reserved/.inodes/%d", id) }

// fsckFile is a file on its way through a walk.
type fsckFile struct {
	*fsckRun
	sums                            *fsckTotals // that it counts to
	path                            string
	replication                     int
	policy                          *namenode.StoragePolicy
	coded                           bool // it has an erasure coding policy
	missing, corrupt, under, astray int
	missingSize, corruptSize        int64
	report                          strings.Builder
	reported                        bool
	changed                         bool // it is not what it was any more: nothing is said of its blocks from there on
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

// lost reports whether no replica of a block is good, or too few internal blocks of a group are.
func lost(r *blockmanager.BlockReport) bool {
	if r.Erasure != 0 {
		return r.Readable == 0
	}
	n, _ := holders(r)
	return n == [len(n)]int{}
}

// block is one that is complete.
func (f *fsckFile) block(number int, b metadata.Block, r *blockmanager.BlockReport) {
	t := f.sums
	n, racks := holders(r)
	live := n[namenode.Normal]
	want, group := f.replication, r.Erasure != 0
	if group || f.coded { // or the open end
		want = r.Want
	}
	total := 0
	for _, k := range n {
		total += k
	}
	t.decommissioned += int64(n[namenode.Decommissioned])
	t.leaving += int64(n[namenode.DecommissionInProgress])
	t.entering += int64(n[namenode.EnteringMaintenance])
	t.inService += int64(n[namenode.InMaintenance])
	t.replicas += int64(total)
	if lost(r) {
		t.tooFew++
	} else {
		t.enough++
		t.wanted += int64(want)
	}
	if live > want {
		t.over++
	}
	corrupt := lost(r) && r.Corrupt > 0
	if corrupt {
		t.corruptBlocks++
		t.corruptSize += b.Length
		f.corrupt++
		f.corruptSize += b.Length
		f.printf("\n%s: CORRUPT blockpool %s block blk_%d\n", f.path, f.BlockPool(), b.ID)
	}
	if total < want && (total > 0 || group) {
		t.lacking += int64(want - total)
		t.under++
		f.under++
		if !f.files {
			f.printf("\n%s: ", f.path)
		}
		f.printf(" Under replicated %s. Target Replicas is %d but found %d live replica(s), %d decommissioned replica(s), %d decommissioning replica(s)",
			f.name(b), want, live, n[namenode.Decommissioned], n[namenode.DecommissionInProgress])
		if f.maintenance { // HDFS has the comma there
			f.printf("%d, entering maintenance replica(s) and %d in maintenance replica(s)", n[namenode.EnteringMaintenance], n[namenode.InMaintenance])
		}
		f.printf(".\n")
	}
	least := min(2, want, f.racks)
	if group { // as many as there are
		least = min(want, f.racks)
	}
	if len(racks) < least && total > 1 {
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
		if f.requeue {
			f.soft.mu.Lock()
			queued := f.soft.m.Requeue(b.ID)
			f.soft.mu.Unlock()
			if queued {
				t.queued++
			}
		}
	}
	if f.policies != nil {
		f.policies.add(f.policy, r, corrupt)
	}
	gone := lost(r) && !corrupt
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

// body is that of a small file, of which every namenode has a copy. One that this namenode lacks is got from another one.
func (f *fsckFile) body(number int, b metadata.Block) {
	t, copies := f.sums, f.namenodes()
	whole := f.findBody(b) == nil
	if whole {
		t.enough++
		t.wanted += copies
		t.replicas += copies
	} else {
		t.tooFew++
		t.missingBlocks++
		t.missingSize += b.Length
		f.missing++
		f.missingSize += b.Length
		f.printf("\n%s: the bytes of block blk_%d, of a small file, are missing or damaged on this namenode, and no other one that answers has them\n", f.path, b.ID)
	}
	if !f.files || !f.blocks {
		return
	}
	fmt.Fprintf(&f.report, "%d. %s len=%d", number, f.name(b), b.Length)
	if whole {
		fmt.Fprintf(&f.report, " Live_repl=%d  [on the namenodes]\n", copies)
	} else {
		f.report.WriteString(" MISSING!\n")
	}
	f.spill()
}

// findBody has no error when this namenode has a body, or has got it. Errors: those of Body.
func (f *fsckRun) findBody(b metadata.Block) error {
	r, err := f.ns.FindBody(b.ID, b.Generation)
	if err == nil && r != nil && (r.Data != nil || f.bodies.Has(b.ID)) { // its bytes are verified when they are read
		return nil
	}
	f.meanwhile(func() { _, err = f.bodyFor(f.ctx, f.caller.User, b.ID, b.Generation) })
	return err
}

// namenodes is how many there are.
func (f *fsckRun) namenodes() int64 {
	servers, err := f.roster.Servers()
	if err != nil {
		return 1
	}
	return int64(max(1, len(servers.Namenodes)))
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
	if !f.locations && !f.rackNames && !f.details && !f.domains {
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
		if f.domains { // datanodes have none
			text += "(ud=undefined)"
		}
		if f.details {
			text += "(" + f.detail(&at) + ")"
		}
		if r.Erasure != 0 {
			text = fmt.Sprintf("blk_%d:%s", r.ID.Internal(at.Unit), text)
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
		return "STALE_NODE"
	}
	return "LIVE"
}

// end tells what is wrong with the file as a whole, and does what is asked for then.
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
		f.sums.corruptFiles++
		if !file.UnderConstruction {
			f.mend(file)
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
	case f.changed:
		f.printf(" CHANGED\n")
	case f.under+f.astray == 0:
		f.printf(" OK\n")
	}
	if f.blocks {
		f.printf("%s\n", f.report.String())
	}
}

// lacks reports whether a block of a file has no good replica now. Error: of a body nobody can say that; a namenode that did not answer may have it, or a disk could not read it.
func (f *fsckRun) lacks(file *namespace.FileBlocks) (bool, error) {
	var unknown error
	for _, b := range file.Blocks {
		if !b.Small {
			continue
		}
		err := f.findBody(b.Block)
		if bodyLost(err) {
			return true, nil
		}
		unknown = cmp.Or(unknown, err)
	}
	for at := 0; at < len(file.Blocks); at += fsckPage {
		f.soft.mu.Lock()
		lacks := slices.ContainsFunc(file.Blocks[at:min(at+fsckPage, len(file.Blocks))], func(b namespace.BlockAt) bool {
			if b.Small {
				return false
			}
			r, _ := f.soft.m.Describe(b.Block.ID)
			return lost(&r)
		})
		f.soft.mu.Unlock()
		if lacks {
			return true, nil
		}
	}
	return false, unknown
}
