package server

import (
	"math"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

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
		if body, err := f.ns.FindBody(metadata.BlockID(number), 0); owned && err == nil && body != nil {
			f.printf("Block Id: %s\nBlock belongs to: %s\nIt is the body of a small file: the namenodes have its %d bytes, no datanode has\n", name, path, body.Block.Length)
			state := statusHealthy
			if f.findBody(body.Block) != nil {
				state = statusCorrupt
			}
			f.printf("Block replica on the namenodes %s\n", state)
			continue
		}
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
	for last := metadata.BlockID(math.MinInt64); f.ctx.Err() == nil && f.Active(); {
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
