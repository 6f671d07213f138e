package main

import (
	"strings"
	"testing"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/namenode"
)

func TestNobodyOverlooksAStuckNamenode(t *testing.T) {
	file := &config.File{Namenodes: []config.NamenodeMember{{ID: "nn1"}, {ID: "nn2"}}}
	members := []namenode.Member{{ID: "nn1", Voter: true}, {ID: "nn2", Voter: true}}
	all := []namenodeHealth{{ID: "nn1", State: "active", Members: members}, {ID: "nn2", State: "standby", Stuck: true, StuckAt: 7, StuckSince: "2026-01-02T03:04:05Z"}}
	rows := namenodeRows(file, all, &all[0])
	if len(rows) != 2 || rows[0].Remarks != "" || rows[1].Remarks != "is stuck at entry 7, since 2026-01-02T03:04:05Z: look at its disks" {
		t.Errorf("%+v", rows)
	}
	const problem = "namespace: what it is like was asked for at 2026-01-02T03:04:05Z"
	all[1] = namenodeHealth{ID: "nn2", State: "standby", Problem: problem, Late: []struct{ What string }{{"namespace"}}}
	if rows := namenodeRows(file, all, &all[0]); !strings.Contains(rows[1].Remarks, problem) {
		t.Errorf("%+v", rows)
	}
}
